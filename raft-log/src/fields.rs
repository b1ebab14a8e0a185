//! Reading little-endian fields off the front of a buffer without ever running past its end.

use bytes::Bytes;

/// Why fields could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FieldError {
    #[error("{needed} more bytes are needed, {left} are left")]
    Short { needed: usize, left: usize },
    #[error("{0} bytes are left over")]
    Trailing(usize),
    #[error("field {name} has no meaning for {value}")]
    Unknown { name: &'static str, value: u64 },
}

/// A cursor over bytes; slices it hands out share them.
pub(crate) struct FieldReader {
    bytes: Bytes,
}

impl FieldReader {
    pub(crate) fn new(bytes: Bytes) -> FieldReader {
        FieldReader { bytes }
    }

    pub(crate) fn left(&self) -> usize {
        self.bytes.len()
    }

    /// The next `len` bytes, shared.
    pub(crate) fn take(&mut self, len: usize) -> Result<Bytes, FieldError> {
        if len > self.bytes.len() {
            return Err(FieldError::Short { needed: len, left: self.bytes.len() });
        }
        Ok(self.bytes.split_to(len))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], FieldError> {
        let Some(array) = self.bytes.first_chunk::<N>().copied() else {
            return Err(FieldError::Short { needed: N, left: self.bytes.len() });
        };
        bytes::Buf::advance(&mut self.bytes, N);
        Ok(array)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, FieldError> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, FieldError> {
        let bytes = self.take(2)?;
        Ok(u16::from_le_bytes([bytes[0], bytes[1]]))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, FieldError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, FieldError> {
        self.array().map(u64::from_le_bytes)
    }

    /// A byte that must be 0 or 1.
    pub(crate) fn flag(&mut self, name: &'static str) -> Result<bool, FieldError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(FieldError::Unknown { name, value: value.into() }),
        }
    }

    /// `Err` if anything is left.
    pub(crate) fn finish(self) -> Result<(), FieldError> {
        if self.bytes.is_empty() { Ok(()) } else { Err(FieldError::Trailing(self.bytes.len())) }
    }
}

/// The `N` bytes at `offset` of a block whose length the caller has checked.
pub(crate) fn array_at<const N: usize>(block: &[u8], offset: usize) -> [u8; N] {
    *block[offset..].first_chunk::<N>().expect("caller checked the block's length")
}

pub(crate) fn u32_at(block: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(array_at(block, offset))
}

pub(crate) fn u64_at(block: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(array_at(block, offset))
}
