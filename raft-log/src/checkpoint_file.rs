//! A state machine's checkpoint as a file: `docs/formats/raft-checkpoint.md`.

use std::io;

use bytes::{BufMut, Bytes};

use crate::fields::{FieldError, FieldReader};
use crate::ids::EntryId;
use crate::{CheckpointBytes, LaterCheckpoint, LogIndex};

const MAGIC: [u8; 8] = *b"FLOTCKP\0";
const VERSION: u32 = 1;
const ENDING: &str = ".ckp";

/// Where a checkpoint came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Origin {
    /// Made here at a segment boundary, after the machine was told of it. Its entries were durable here before it was.
    Boundary = 1,
    /// Taken from the leader; may be ahead of the local log until the log was purged to it.
    Installed = 2,
    /// Made here on demand, anywhere. Its entries were durable here before it was.
    OnDemand = 3,
    /// Made here after so many bytes or so much time, anywhere. Its entries were durable here before it was.
    Periodic = 4,
}

/// The state after applying `last`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    pub(crate) last: EntryId,
    pub(crate) origin: Origin,
    /// The entry that set the members, and the members, encoded.
    pub(crate) members_at: Option<EntryId>,
    pub(crate) members: Bytes,
    /// What the machine made of its state.
    pub(crate) state: Bytes,
}

impl Checkpoint {
    /// `checkpoint-<index>.ckp`, 20 digits, so that names sort by index.
    pub(crate) fn file_name(&self) -> String {
        checkpoint_name(self.last.index)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(96 + self.members.len() + self.state.len());
        bytes.put_slice(&MAGIC);
        bytes.put_u32_le(VERSION);
        bytes.put_u8(self.origin as u8);
        bytes.put_u8(u8::from(self.members_at.is_some()));
        bytes.put_u16_le(0);
        let members_at = self.members_at.unwrap_or(EntryId::new(0, 0));
        for number in [self.last.term.0, self.last.index.0, members_at.term.0, members_at.index.0] {
            bytes.put_u64_le(number);
        }
        bytes.put_u64_le(self.members.len() as u64);
        bytes.put_u64_le(self.state.len() as u64);
        bytes.put_slice(&self.members);
        bytes.put_slice(&self.state);
        let crc = crc32c::crc32c(&bytes);
        bytes.put_u32_le(crc);
        bytes
    }

    /// `Err` tells what is wrong.
    pub(crate) fn decode(bytes: Bytes) -> Result<Checkpoint, String> {
        let Some(covered) = bytes.len().checked_sub(4) else {
            return Err("file is too short".to_owned());
        };
        if bytes[covered..] != crc32c::crc32c(&bytes[..covered]).to_le_bytes() {
            return Err("file does not match its checksum".to_owned());
        }
        if !bytes.starts_with(&MAGIC) {
            return Err("magic of a checkpoint is missing".to_owned());
        }
        let mut reader = FieldReader::new(bytes.slice(MAGIC.len()..covered));
        let version = reader.u32().map_err(|error| error.to_string())?;
        if version != VERSION {
            return Err(format!("checkpoint has version {version}, this program reads version {VERSION}"));
        }
        Checkpoint::decode_fields(reader).map_err(|error| error.to_string())
    }

    fn decode_fields(mut reader: FieldReader) -> Result<Checkpoint, FieldError> {
        let origin = match reader.u8()? {
            1 => Origin::Boundary,
            2 => Origin::Installed,
            3 => Origin::OnDemand,
            4 => Origin::Periodic,
            value => return Err(FieldError::Unknown { name: "origin", value: value.into() }),
        };
        let has_members_at = reader.flag("members")?;
        reader.take(2)?;
        let last = EntryId::new(reader.u64()?, reader.u64()?);
        let members_at = EntryId::new(reader.u64()?, reader.u64()?);
        let (members_bytes, state_bytes) = (reader.u64()?, reader.u64()?);
        let len = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let members = reader.take(len(members_bytes))?;
        let state = reader.take(len(state_bytes))?;
        reader.finish()?;
        Ok(Checkpoint { last, origin, members_at: has_members_at.then_some(members_at), members, state })
    }
}

/// A checkpoint whose state is held fast, and made into bytes when it is written.
pub(crate) struct PendingCheckpoint {
    /// All but the state.
    head: Checkpoint,
    state: LaterCheckpoint,
}

impl PendingCheckpoint {
    /// `head` without its state, and what makes that.
    pub(crate) fn new(head: Checkpoint, state: LaterCheckpoint) -> PendingCheckpoint {
        PendingCheckpoint { head, state }
    }

    /// The last entry applied.
    pub(crate) fn last(&self) -> EntryId {
        self.head.last
    }

    /// The whole, and how many bytes were written beside it. Blocks.
    pub(crate) fn finish(&self) -> io::Result<(Checkpoint, u64)> {
        let CheckpointBytes { state, beside_bytes } = (self.state)()?;
        Ok((Checkpoint { state, ..self.head.clone() }, beside_bytes))
    }
}

/// The name of the checkpoint that ends with that entry.
pub(crate) fn checkpoint_name(index: LogIndex) -> String {
    format!("checkpoint-{:020}{ENDING}", index.0)
}

/// The index in a checkpoint's file name; `None` for any other name.
pub(crate) fn parse_checkpoint_name(name: &str) -> Option<LogIndex> {
    let digits = name.strip_prefix("checkpoint-")?.strip_suffix(ENDING)?;
    if digits.len() != 20 {
        return None;
    }
    digits.parse().ok().map(LogIndex)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_checkpoint_reads_back_as_written(
            last: (u64, u64), origin: prop::sample::Index, members_at: Option<(u64, u64)>,
            members in prop::collection::vec(any::<u8>(), 0..40), state in prop::collection::vec(any::<u8>(), 0..400),
        ) {
            let checkpoint = Checkpoint {
                last: EntryId::new(last.0, last.1),
                origin: [Origin::Boundary, Origin::Installed, Origin::OnDemand, Origin::Periodic][origin.index(4)],
                members_at: members_at.map(|(term, index)| EntryId::new(term, index)),
                members: members.into(),
                state: state.into(),
            };
            prop_assert_eq!(parse_checkpoint_name(&checkpoint.file_name()), Some(checkpoint.last.index));
            prop_assert_eq!(Checkpoint::decode(checkpoint.encode().into()), Ok(checkpoint));
        }

        #[test]
        fn damage_is_noticed(place: prop::sample::Index, bit in 0..8_u8) {
            let checkpoint = Checkpoint {
                last: EntryId::new(1, 2), origin: Origin::OnDemand, members_at: None,
                members: Bytes::new(), state: Bytes::from_static(b"state"),
            };
            let mut bytes = checkpoint.encode();
            let at = place.index(bytes.len());
            bytes[at] ^= 1_u8 << bit;
            prop_assert!(Checkpoint::decode(bytes.into()).is_err());
        }
    }
}
