//! Numbers written short if they are small: seven bits a byte, the lowest first.

/// Appends `value`, 1 to 10 bytes.
pub(crate) fn put(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends the way from `before` to `value`, which may lead back: short if they are near to one another.
pub(crate) fn put_step(value: u64, before: u64, out: &mut Vec<u8>) {
    let step = value.wrapping_sub(before) as i64;
    put(((step << 1) ^ (step >> 63)) as u64, out);
}

/// Appends four bytes as they are, for numbers that are never small.
pub(crate) fn put_word(value: u32, out: &mut Vec<u8>) {
    out.extend_from_slice(&value.to_le_bytes());
}

/// Reads what the functions above wrote.
pub(crate) struct Numbers<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Numbers<'a> {
    pub fn from(bytes: &'a [u8], at: usize) -> Numbers<'a> {
        Numbers { bytes, at }
    }

    /// How many bytes of the whole are read.
    pub fn at(&self) -> usize {
        self.at
    }

    /// `None` if the bytes end, or the number is too large.
    pub fn take(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = *self.bytes.get(self.at)?;
            self.at += 1;
            let bits = u64::from(byte & 0x7F);
            if shift == 63 && bits > 1 {
                return None;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    pub fn take_u32(&mut self) -> Option<u32> {
        u32::try_from(self.take()?).ok()
    }

    pub fn take_step(&mut self, before: u64) -> Option<u64> {
        let coded = self.take()?;
        let step = (coded >> 1) as i64 ^ -((coded & 1) as i64);
        Some(before.wrapping_add(step as u64))
    }

    pub fn take_word(&mut self) -> Option<u32> {
        let word = self.bytes.get(self.at..self.at + 4)?;
        self.at += 4;
        Some(u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_read_back_as_written(values in prop::collection::vec((any::<u64>(), 0u32..64, any::<u32>()), 0..20)) {
            let mut bytes = Vec::new();
            let mut before = 0;
            for (value, shift, word) in &values {
                put(value >> shift, &mut bytes);
                put_step(*value, before, &mut bytes);
                put_word(*word, &mut bytes);
                before = *value;
            }
            let mut numbers = Numbers::from(&bytes, 0);
            let mut before = 0;
            for (value, shift, word) in &values {
                prop_assert_eq!(numbers.take(), Some(value >> shift));
                prop_assert_eq!(numbers.take_step(before), Some(*value));
                prop_assert_eq!(numbers.take_word(), Some(*word));
                before = *value;
            }
            prop_assert_eq!((numbers.at(), numbers.take(), numbers.take_word()), (bytes.len(), None, None));
        }

        #[test]
        fn no_bytes_make_reading_panic(bytes in prop::collection::vec(any::<u8>(), 0..30)) {
            let mut numbers = Numbers::from(&bytes, 0);
            while numbers.take_u32().is_some() && numbers.take_step(7).is_some() {}
            prop_assert!(numbers.at() <= bytes.len());
        }
    }
}
