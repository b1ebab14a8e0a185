//! Hashes that are the same on every machine and in every release: they are stored and compared.

/// The hash of a tag that a queue slot carries for filtering; 0 when there is no tag (or it is
/// empty), never 0 otherwise. It is CRC-32C of the tag's bytes, with 0 mapped to 1.
pub fn tag_hash(tag: &str) -> u32 {
    if tag.is_empty() {
        return 0;
    }
    crc32c::crc32c(tag.as_bytes()).max(1)
}

/// A running 128-bit hash over numbers and bytes, for identities and digests.
///
/// It is two lanes of folded 64-bit multiplication: fast, well mixed, the same everywhere, and
/// not meant to withstand someone who searches for collisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hash128 {
    a: u64,
    b: u64,
}

const SEED_A: u64 = 0x9E37_79B9_7F4A_7C15;
const SEED_B: u64 = 0xC2B2_AE3D_27D4_EB4F;
const FACTOR_A: u64 = 0xA076_1D64_78BD_642F;
const FACTOR_B: u64 = 0xE703_7ED1_A0B4_28DB;

fn fold(x: u64, y: u64) -> u64 {
    let product = u128::from(x) * u128::from(y);
    (product as u64) ^ ((product >> 64) as u64)
}

impl Default for Hash128 {
    fn default() -> Hash128 {
        Hash128::new()
    }
}

impl Hash128 {
    /// The hash of nothing.
    pub const fn new() -> Hash128 {
        Hash128 { a: SEED_A, b: SEED_B }
    }

    /// Continues a hash that was kept as a number.
    pub const fn from_u128(value: u128) -> Hash128 {
        Hash128 { a: value as u64, b: (value >> 64) as u64 }
    }

    /// Takes in a number.
    pub fn write_u64(&mut self, value: u64) {
        // Adding the old lane keeps it from being lost when a multiplication meets a zero.
        self.a = fold(self.a ^ value, FACTOR_A).wrapping_add(self.a.rotate_left(23));
        self.b = fold(self.b.wrapping_add(value), FACTOR_B) ^ self.b.rotate_left(41);
    }

    /// Takes in bytes and their count, so that `ab`,`c` differs from `a`,`bc`.
    pub fn write_bytes(&mut self, bytes: &[u8]) {
        self.write_u64(bytes.len() as u64);
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            let mut word = [0u8; 8];
            word.copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
        let rest = chunks.remainder();
        if !rest.is_empty() {
            let mut word = [0u8; 8];
            word[..rest.len()].copy_from_slice(rest);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    /// The hash so far.
    pub fn finish(self) -> u128 {
        u128::from(self.a) | (u128::from(self.b) << 64)
    }

    /// The hash of some bytes.
    pub fn of(bytes: &[u8]) -> u128 {
        let mut hash = Hash128::new();
        hash.write_bytes(bytes);
        hash.finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn only_no_tag_hashes_to_zero() {
        assert_eq!(tag_hash(""), 0);
        assert_ne!(tag_hash("a"), 0);
        assert_ne!(tag_hash("a"), tag_hash("b"));
    }

    #[test]
    fn values_are_fixed_for_ever() {
        assert_eq!(tag_hash("TagA"), crc32c::crc32c(b"TagA"));
        let mut again = Hash128::from_u128(Hash128::of(b"flotilla"));
        let mut straight = Hash128::new();
        straight.write_bytes(b"flotilla");
        again.write_u64(7);
        straight.write_u64(7);
        assert_eq!(again.finish(), straight.finish());
    }

    #[test]
    fn near_inputs_do_not_collide() {
        let mut seen = BTreeSet::new();
        for i in 0..100_000u64 {
            assert!(seen.insert(Hash128::of(format!("id-{i}").as_bytes())));
        }
        for parts in [["ab", "c"], ["a", "bc"], ["abc", ""], ["", "abc"]] {
            let mut hash = Hash128::new();
            parts.iter().for_each(|p| hash.write_bytes(p.as_bytes()));
            assert!(seen.insert(hash.finish()));
        }
    }
}
