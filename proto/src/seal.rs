//! Checksums over what replicas hand on to each other for clients. Networks have checksums that let some flipped bits pass; what
//! the log replicates has its own, and a message that is handed on to the leader, or comes back from it, must not be the gap.

use std::collections::BTreeMap;

use prost::Message as _;

use crate::peer;

/// What can be sealed with a CRC-32C over all else that it holds.
pub trait Sealed: Sized {
    /// The checksum over everything but the checksum.
    fn checksum(&self) -> u32;
    /// The checksum that came with it.
    fn seal_field(&mut self) -> &mut Option<u32>;

    /// With its checksum, to be sent.
    fn sealed(mut self) -> Self {
        let checksum = self.checksum();
        *self.seal_field() = Some(checksum);
        self
    }

    /// It is as it was sealed; without a seal it is not.
    fn is_whole(&mut self) -> bool {
        let checksum = self.checksum();
        *self.seal_field() == Some(checksum)
    }
}

/// Of parts that cannot be mistaken for each other: each with its length.
fn checksum_of<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u32 {
    parts.into_iter().fold(0, |crc, part| {
        let crc = crc32c::crc32c_append(crc, &(part.len() as u64).to_le_bytes());
        crc32c::crc32c_append(crc, part)
    })
}

fn pairs(metadata: &BTreeMap<String, String>) -> impl Iterator<Item = &[u8]> {
    metadata.iter().flat_map(|(name, value)| [name.as_bytes(), value.as_bytes()])
}

impl Sealed for peer::ForwardRequest {
    fn checksum(&self) -> u32 {
        let (timeout, hops) = (self.timeout_ms.to_le_bytes(), self.hops.to_le_bytes());
        let fixed = [self.method.as_bytes(), &timeout, &hops, &self.body];
        checksum_of(fixed.into_iter().chain(pairs(&self.metadata)))
    }

    fn seal_field(&mut self) -> &mut Option<u32> {
        &mut self.seal
    }
}

impl Sealed for peer::ForwardResponse {
    fn checksum(&self) -> u32 {
        let status = self.status.as_ref().map_or_else(Vec::new, |status| status.encode_to_vec());
        let flags = [u8::from(self.status.is_some()), u8::from(self.not_leader)];
        let hint = self.leader_hint.to_le_bytes();
        let fixed = [&self.body[..], &status, &flags, &hint];
        checksum_of(fixed.into_iter().chain(pairs(&self.metadata)))
    }

    fn seal_field(&mut self) -> &mut Option<u32> {
        &mut self.seal
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> peer::ForwardRequest {
        let metadata = [("x-mq-client-id", "a"), ("x-mq-language", "RUST")];
        peer::ForwardRequest {
            method: "SendMessage".to_owned(),
            metadata: metadata.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            timeout_ms: 3_000,
            body: bytes::Bytes::from_static(b"a payment of 100"),
            hops: 1,
            seal: None,
        }
    }

    #[test]
    fn no_flipped_bit_of_what_is_handed_on_passes() {
        assert!(!request().is_whole(), "without a seal nothing is known");
        let sealed = request().sealed();
        assert!(sealed.clone().is_whole());
        let bytes = sealed.encode_to_vec();
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let Ok(mut read) = peer::ForwardRequest::decode(&damaged[..]) else { continue };
            // What is not known to this program changes nothing.
            assert!(!read.is_whole() || read == sealed, "bit {bit}: {read:?}");
        }
    }

    #[test]
    fn no_flipped_bit_of_an_answer_passes() {
        let status = Some(crate::status::ok());
        let body = bytes::Bytes::from_static(b"offset 140982");
        let sealed = peer::ForwardResponse { body, status, leader_hint: 2, ..Default::default() }.sealed();
        let bytes = sealed.encode_to_vec();
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let Ok(mut read) = peer::ForwardResponse::decode(&damaged[..]) else { continue };
            assert!(!read.is_whole() || read == sealed, "bit {bit}: {read:?}");
        }
    }
}
