//! Randomness of a plan: our own generator, so that a seed means the same plan whatever version of a library is built in.

/// A stream of random numbers (splitmix64).
#[derive(Debug, Clone)]
pub(crate) struct Rng {
    state: u64,
}

impl Rng {
    /// The stream of `seed`.
    pub(crate) fn new(seed: u64) -> Rng {
        Rng { state: seed }
    }

    /// The next number.
    pub(crate) fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number in `0..bound`; 0 when `bound` is 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A number in `low..=high`.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// A number in `low..=high` whose order of magnitude is even: as often between 50 and 100 as between 5,000 and
    /// 10,000. Durations drawn so fall on both sides of every timeout.
    pub(crate) fn magnitude(&mut self, low: u64, high: u64) -> u64 {
        let mut bounds = vec![low.max(1)];
        while let Some(last) = bounds.last().copied().filter(|last| last * 2 <= high) {
            bounds.push(last * 2);
        }
        let from = bounds[self.below(bounds.len() as u64) as usize];
        self.between(from, (from * 2 - 1).min(high))
    }

    /// True half of the times.
    pub(crate) fn coin(&mut self) -> bool {
        self.next_u64() >> 63 == 1
    }

    /// The same things in another order.
    pub(crate) fn shuffled<T: Clone>(&mut self, things: &[T]) -> Vec<T> {
        let mut things = things.to_vec();
        for last in (1..things.len()).rev() {
            things.swap(last, self.below(last as u64 + 1) as usize);
        }
        things
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_in_their_range_and_depend_on_the_seed_alone() {
        let mut rng = Rng::new(7);
        for _ in 0..1_000 {
            assert!((50..=6_000).contains(&rng.magnitude(50, 6_000)));
            assert!((3..=5).contains(&rng.between(3, 5)));
            assert_eq!(rng.below(0), 0);
        }
        let mut order = rng.shuffled(&[1, 2, 3, 4]);
        order.sort_unstable();
        assert_eq!(order, [1, 2, 3, 4]);
        assert_eq!(Rng::new(7).next_u64(), Rng::new(7).next_u64());
        assert_ne!(Rng::new(7).next_u64(), Rng::new(8).next_u64());
        assert_eq!(Rng::new(0).next_u64(), 0xe220_a839_7b1d_cdaf, "splitmix64's first number of seed 0");
    }
}
