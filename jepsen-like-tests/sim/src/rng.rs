//! Randomness from the seed: one stream per purpose, so that more draws in one never shift another.

/// A stream of random numbers (xoshiro256**). Our own, so that a seed means the same run whatever
/// version of a library is built in.
#[derive(Debug, Clone)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// The stream called `purpose` of `seed`.
    pub fn stream(seed: u64, purpose: &str) -> Rng {
        let mut mix = Mix(seed ^ fnv(purpose.as_bytes()));
        Rng { state: std::array::from_fn(|_| mix.next()) }
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        let result = self.state[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let shifted = self.state[1] << 17;
        self.state[2] ^= self.state[0];
        self.state[3] ^= self.state[1];
        self.state[1] ^= self.state[2];
        self.state[0] ^= self.state[3];
        self.state[2] ^= shifted;
        self.state[3] = self.state[3].rotate_left(45);
        result
    }

    /// A number in `0..bound`; 0 when `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The high half of the product: even enough for the small bounds in use here.
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A number in `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// True `permille` times in a thousand.
    pub fn chance(&mut self, permille: u64) -> bool {
        self.below(1000) < permille
    }

    /// One of `choices`.
    ///
    /// # Panics
    /// If there are none.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len() as u64) as usize]
    }
}

/// Splitmix64: spreads a seed over the state of a stream.
struct Mix(u64);

impl Mix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// FNV-1a over bytes.
pub fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(FNV_START, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(FNV_PRIME))
}

pub(crate) const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;
pub(crate) const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_repeat_and_differ_by_seed_and_purpose() {
        let draw = |seed, purpose| {
            let mut rng = Rng::stream(seed, purpose);
            std::array::from_fn::<u64, 8, _>(|_| rng.next_u64())
        };
        assert_eq!(draw(7, "net"), draw(7, "net"));
        assert_ne!(draw(7, "net"), draw(8, "net"));
        assert_ne!(draw(7, "net"), draw(7, "disk"));
    }

    #[test]
    fn bounds_are_kept_and_reached() {
        let mut rng = Rng::stream(1, "bounds");
        let seen: std::collections::BTreeSet<u64> = (0..1000).map(|_| rng.between(3, 6)).collect();
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [3, 4, 5, 6]);
        assert_eq!(rng.below(0), 0);
    }
}
