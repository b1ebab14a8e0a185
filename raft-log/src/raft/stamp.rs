//! Who sent a frame: in front of each frame between replicas, so that a directory made anew is not taken for the one before.

use bytes::{BufMut, Bytes, BytesMut};

use super::wire::WireError;
use crate::fields::{array_at, u32_at, u64_at};
use crate::{Incarnation, LogIndex, NodeId};

/// Bytes of a stamp. [`super::encode`] leaves room for it.
pub(crate) const STAMP_BYTES: usize = 32;
const FOUNDER: u8 = 1;
const READS_MEMORY: u8 = 2;
const CRC_AT: usize = STAMP_BYTES - 4;

/// The sender of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) node: NodeId,
    pub(crate) incarnation: Incarnation,
    /// The entry of the newest membership it knows.
    pub(crate) membership: Option<LogIndex>,
    /// It was there when the group was founded.
    pub(crate) is_founder: bool,
    /// It understands what is remembered of it ([`super::remembrance`]); older ones do not.
    pub(crate) reads_memory: bool,
    /// The group's epoch in that membership.
    pub(crate) epoch: u16,
    /// The feature level that its program supports, at most.
    pub(crate) level: u8,
}

impl Stamp {
    /// Puts the stamp in front of a frame; does not copy the frame if nobody else holds it.
    pub(crate) fn put_on(self, frame: Bytes) -> Bytes {
        let mut frame = frame.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
        assert!(frame.len() >= STAMP_BYTES, "every frame has room for a stamp");
        let mut stamp = &mut frame[..STAMP_BYTES];
        stamp.put_u64_le(self.node.0);
        stamp.put_u64_le(self.incarnation.0);
        stamp.put_u64_le(self.membership.map_or(0, |index| index.next().0));
        let founder = if self.is_founder { FOUNDER } else { 0 };
        let memory = if self.reads_memory { READS_MEMORY } else { 0 };
        stamp.put_u8(founder | memory);
        stamp.put_u16_le(self.epoch);
        stamp.put_u8(self.level);
        let crc = crc32c::crc32c(&frame[..CRC_AT]);
        frame[CRC_AT..STAMP_BYTES].copy_from_slice(&crc.to_le_bytes());
        frame.freeze()
    }

    /// The stamp of a frame.
    pub(crate) fn of(frame: &[u8]) -> Result<Stamp, WireError> {
        if frame.len() < STAMP_BYTES {
            return Err(WireError::Short(frame.len()));
        }
        if u32_at(frame, CRC_AT) != crc32c::crc32c(&frame[..CRC_AT]) {
            return Err(WireError::Stamp);
        }
        let [flags, epoch @ .., level] = array_at::<4>(frame, 24);
        Ok(Stamp {
            node: NodeId(u64_at(frame, 0)),
            incarnation: Incarnation(u64_at(frame, 8)),
            membership: u64_at(frame, 16).checked_sub(1).map(LogIndex),
            is_founder: flags & FOUNDER != 0,
            reads_memory: flags & READS_MEMORY != 0,
            epoch: u16::from_le_bytes(epoch),
            level,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raft::{PeerMessage, decode, encode};

    #[test]
    fn a_stamp_reads_back_and_leaves_the_frame_alone() {
        for membership in [None, Some(LogIndex(0)), Some(LogIndex(77))] {
            let stamp = Stamp {
                node: NodeId(3),
                incarnation: Incarnation(9),
                membership,
                is_founder: true,
                reads_memory: membership.is_none(),
                epoch: 0x1234,
                level: 7,
            };
            let frame = stamp.put_on(encode(PeerMessage::VitalsRequest));
            assert_eq!(Stamp::of(&frame), Ok(stamp));
            assert!(matches!(decode(frame.clone()), Ok(PeerMessage::VitalsRequest)));
            for bit in 0..STAMP_BYTES * 8 {
                let mut damaged = frame.to_vec();
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert!(Stamp::of(&damaged).is_err(), "bit {bit}");
            }
        }
        assert!(Stamp::of(&[0; STAMP_BYTES - 1]).is_err());
    }
}
