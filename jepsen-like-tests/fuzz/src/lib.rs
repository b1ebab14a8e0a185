//! Damaged bytes for decoders: the same ones in every run, from valid examples and a corpus of files.
//!
//! A decoder must answer; it must not panic, whatever it is given. Half of the mutated inputs get their checksums set right
//! again, so that the fields behind them are reached.
//!
//! - `FLOTILLA_FUZZ=2000000` tries so many inputs a target instead of the default;
//! - `FLOTILLA_FUZZ_SEED=7` tries others;
//! - `FLOTILLA_FUZZ_WRITE=1` writes the valid examples into the corpus, as `valid-….bin`. Files of that name must be accepted
//!   ever after: they are also the proof that old bytes stay readable. An input that broke a decoder belongs there under any
//!   other name.

use std::panic::{RefUnwindSafe, catch_unwind};
use std::path::Path;

/// Inputs a target in CI.
const INPUTS: u64 = 20_000;
/// Mutated inputs grow no longer than this.
const INPUT_BYTES_MAX: usize = 1 << 16;

/// One decoder under fire.
pub struct Target<'a> {
    /// Names it in messages.
    pub name: &'a str,
    /// The folder of its corpus.
    pub corpus: &'a Path,
    /// Valid inputs, each with a name.
    pub examples: Vec<(&'a str, Vec<u8>)>,
    /// Sets checksums (and what else nobody can hit by chance) right.
    pub mend: fn(&mut [u8]),
}

impl Target<'_> {
    /// Runs the decoder, which answers whether it accepts its input.
    ///
    /// # Panics
    /// If it panics (the input is told as hex digits), refuses a valid example, or accepts nothing that was mutated and
    /// mended, in which case mending does not work.
    pub fn run(&self, decode: impl Fn(&[u8]) -> bool + RefUnwindSafe) {
        let attempt = |input: &[u8]| match catch_unwind(|| decode(input)) {
            Ok(accepted) => accepted,
            Err(_) => panic!("{}: the decoder panics on {}", self.name, hex(input)),
        };
        if std::env::var_os("FLOTILLA_FUZZ_WRITE").is_some() {
            self.write_examples();
        }
        let mut pool: Vec<Vec<u8>> = Vec::new();
        for (name, bytes) in &self.examples {
            assert!(attempt(bytes), "{}: example {name} is refused", self.name);
            pool.push(bytes.clone());
        }
        let mut files: Vec<_> = std::fs::read_dir(self.corpus)
            .unwrap_or_else(|error| panic!("{}: {error}", self.corpus.display()))
            .map(|entry| entry.expect("the corpus can be listed").path())
            .collect();
        files.sort();
        for path in files {
            let bytes = std::fs::read(&path).expect("the corpus can be read");
            let accepted = attempt(&bytes);
            let is_valid = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("valid-"));
            assert!(accepted || !is_valid, "{}: {} is no longer readable", self.name, path.display());
            pool.push(bytes);
        }
        assert!(!pool.is_empty(), "{}: there is nothing to begin with", self.name);
        let mut random = Random(number_of("FLOTILLA_FUZZ_SEED").unwrap_or(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut accepted = 0_u64;
        for number in 0..number_of("FLOTILLA_FUZZ").unwrap_or(INPUTS) {
            let mut input = pool[random.below(pool.len())].clone();
            for _ in 0..=random.below(4) {
                let other = &pool[random.below(pool.len())];
                mutate(&mut input, other, &mut random);
            }
            input.truncate(INPUT_BYTES_MAX);
            if number % 2 == 0 {
                (self.mend)(&mut input);
            }
            accepted += u64::from(attempt(&input));
        }
        assert!(
            accepted > 0,
            "{}: nothing mutated was accepted, so fields behind checksums were never reached",
            self.name
        );
    }

    fn write_examples(&self) {
        std::fs::create_dir_all(self.corpus).expect("the corpus folder can be made");
        for (name, bytes) in &self.examples {
            std::fs::write(self.corpus.join(format!("valid-{name}.bin")), bytes).expect("the corpus can be written");
        }
    }
}

/// Sets the CRC-32C of `covered` at `place`, if both lie within `bytes`.
pub fn set_crc(bytes: &mut [u8], place: usize, covered: std::ops::Range<usize>) {
    if place + 4 <= bytes.len() && covered.start <= covered.end && covered.end <= bytes.len() {
        let crc = crc32c::crc32c(&bytes[covered]);
        bytes[place..place + 4].copy_from_slice(&crc.to_le_bytes());
    }
}

/// Sets the CRC-32C of everything before the last four bytes there.
pub fn set_last_crc(bytes: &mut [u8]) {
    if let Some(covered) = bytes.len().checked_sub(4) {
        set_crc(bytes, covered, 0..covered);
    }
}

fn number_of(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// xorshift64*: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        if bound == 0 { 0 } else { (self.next() % bound as u64) as usize }
    }
}

/// Numbers at which lengths and counts go wrong.
const EDGES: [u64; 12] =
    [0, 1, 2, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, i64::MAX as u64, u64::MAX];

fn mutate(input: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    let at = random.below(input.len());
    let len = 1 + random.below(16.min(input.len().max(1)));
    let end = (at + len).min(input.len());
    match random.below(9) {
        0 if !input.is_empty() => input[at] ^= 1 << random.below(8),
        1 if !input.is_empty() => input[at] = random.next() as u8,
        2 | 3 => {
            // A whole number, low byte first, of some width.
            let number = EDGES[random.below(EDGES.len())].wrapping_add(random.below(3) as u64).to_le_bytes();
            let width = [1, 2, 4, 8][random.below(4)].min(input.len() - at);
            input[at..at + width].copy_from_slice(&number[..width]);
        }
        4 => drop(input.drain(at..end)),
        5 => {
            let piece = input[at..end].to_vec();
            input.splice(at..at, piece);
        }
        6 => {
            let piece: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
            input.splice(at..at, piece);
        }
        7 => input.truncate(at),
        _ => {
            // The head of one and the tail of another.
            let from = random.below(other.len());
            input.truncate(at);
            input.extend_from_slice(&other[from..]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target<'a>(corpus: &'a Path, name: &'a str) -> Target<'a> {
        let mut example = b"name\x03abc____".to_vec();
        set_last_crc(&mut example);
        Target { name, corpus, examples: vec![("one", example)], mend: |bytes| set_last_crc(bytes) }
    }

    /// A length byte at 4, so many bytes, a checksum.
    fn decode(bytes: &[u8], trusts_length: bool) -> bool {
        let Some(covered) = bytes.len().checked_sub(4) else { return false };
        if bytes[covered..] != crc32c::crc32c(&bytes[..covered]).to_le_bytes() {
            return false;
        }
        let Some(len) = bytes.get(4).map(|len| usize::from(*len)) else { return false };
        if trusts_length { !bytes[5..5 + len].is_empty() || len == 0 } else { 5 + len == covered }
    }

    #[test]
    fn a_decoder_that_trusts_a_length_behind_a_checksum_is_caught() {
        let corpus = std::env::temp_dir();
        let dir = corpus.join(format!("flotilla-fuzz-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        target(&dir, "careful").run(|bytes| decode(bytes, false));
        let caught = catch_unwind(|| target(&dir, "trusting").run(|bytes| decode(bytes, true)));
        let text = *caught.unwrap_err().downcast::<String>().unwrap();
        assert!(text.starts_with("trusting: the decoder panics on "), "{text}");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
