//! An operator's order that one replica goes on alone, and how the next start carries it out: `docs/formats/recovery-order.md`.
//!
//! ```text
//!  order on disk ─▶ the replica stops ─▶ start: membership of one, of the next epoch, behind the last entry ─▶ vote ─▶ order removed
//! ```
//! Each step is durable before the next, and may be repeated after a crash.

use std::io;
use std::path::Path;

use bytes::{BufMut, Bytes};
use futures::channel::oneshot;

use crate::disk::{Disk, read_file, write_file_atomically};
use crate::fields::{FieldError, FieldReader};
use crate::ids::EntryId;
use crate::log_files::LogFiles;
use crate::log_view::read_error_to_io;
use crate::member::{CONTACT_BYTES_MAX, Member};
use crate::raft::{Members, decode_membership, encode_membership, epoch_of};
use crate::segment::{Record, RecordKind};
use crate::vote_and_marks::SavedVote;
use crate::{Corruption, Incarnation, LogIndex, NodeId, OpenError, Term};

pub(crate) const ORDER_FILE: &str = "recovery-order";
const MAGIC: [u8; 8] = *b"FLOTRCO\0";
const VERSION: u32 = 1;

/// Who goes on, and from where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RecoveryOrder {
    pub(crate) node: NodeId,
    pub(crate) incarnation: Incarnation,
    /// The epoch in which the group goes on.
    pub(crate) epoch: u16,
    /// Where the log ended when it was given: one that goes on from there has heard of a leader meanwhile.
    pub(crate) last: EntryId,
    /// How the replica is reached; empty: as its settings say when the order is carried out.
    pub(crate) contact: String,
}

impl RecoveryOrder {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.put_slice(&MAGIC);
        bytes.put_u32_le(VERSION);
        bytes.put_u16_le(self.epoch);
        bytes.put_u16_le(0);
        for number in [self.node.0, self.incarnation.0, self.last.term.0, self.last.index.0] {
            bytes.put_u64_le(number);
        }
        bytes.put_u32_le(u32::try_from(self.contact.len()).expect("contacts are limited to 1024 bytes"));
        bytes.put_slice(self.contact.as_bytes());
        let crc = crc32c::crc32c(&bytes);
        bytes.put_u32_le(crc);
        bytes
    }

    /// `Err` tells what is wrong.
    pub(crate) fn decode(bytes: Bytes) -> Result<RecoveryOrder, String> {
        let Some(covered) = bytes.len().checked_sub(4) else {
            return Err("file is too short".to_owned());
        };
        if bytes[covered..] != crc32c::crc32c(&bytes[..covered]).to_le_bytes() {
            return Err("file does not match its checksum".to_owned());
        }
        if !bytes.starts_with(&MAGIC) {
            return Err("magic of a recovery order is missing".to_owned());
        }
        let mut reader = FieldReader::new(bytes.slice(MAGIC.len()..covered));
        let version = reader.u32().map_err(|error| error.to_string())?;
        if version != VERSION {
            return Err(format!("recovery order has version {version}, this program reads version {VERSION}"));
        }
        RecoveryOrder::decode_fields(reader).map_err(|error| error.to_string())
    }

    fn decode_fields(mut reader: FieldReader) -> Result<RecoveryOrder, FieldError> {
        let epoch = reader.u16()?;
        reader.take(2)?;
        let (node, incarnation) = (NodeId(reader.u64()?), Incarnation(reader.u64()?));
        let last = EntryId::new(reader.u64()?, reader.u64()?);
        let len = reader.u32()? as usize;
        let unknown = || FieldError::Unknown { name: "contact", value: len as u64 };
        if len > CONTACT_BYTES_MAX {
            return Err(unknown());
        }
        let contact = String::from_utf8(reader.take(len)?.to_vec()).map_err(|_| unknown())?;
        reader.finish()?;
        Ok(RecoveryOrder { node, incarnation, epoch, last, contact })
    }

    /// Durable when it returns. Blocks.
    pub(crate) fn write(&self, disk: &dyn Disk, dir: &Path) -> io::Result<()> {
        write_file_atomically(disk, dir, ORDER_FILE, &self.encode())
    }

    fn members(&self) -> Result<Members, String> {
        let member = Member {
            incarnation: self.incarnation,
            is_voter_wanted: true,
            epoch: self.epoch,
            contact: self.contact.clone(),
        };
        Members::new(
            vec![[self.node.0].into()],
            [(self.node.0, member)].into_iter().collect::<std::collections::BTreeMap<_, _>>(),
        )
        .map_err(|error| error.to_string())
    }
}

/// Carries out the order in `dir`, if there is one. Nobody else uses the log yet.
/// `contact`: how this replica is reached, where the order does not say.
pub(crate) async fn carry_out(
    files: &mut LogFiles,
    disk: &dyn Disk,
    dir: &Path,
    contact: &str,
) -> Result<(), OpenError> {
    let path = dir.join(ORDER_FILE);
    let io = |source| OpenError::Io { path: path.clone(), source };
    let corrupt = |what| OpenError::Corrupt(Corruption { path: path.clone(), offset: 0, what });
    let order = match read_file(disk, &path) {
        Ok(bytes) => {
            let order = RecoveryOrder::decode(bytes).map_err(corrupt)?;
            let contact = if order.contact.is_empty() { contact.to_owned() } else { order.contact };
            RecoveryOrder { contact, ..order }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(io(error)),
    };
    let view = files.view();
    let standings = view.standings();
    if (order.node, order.incarnation) != (standings.node(), standings.incarnation()) {
        let what = format!("it is for replica {} in its life {}", order.node, order.incarnation);
        return Err(corrupt(what));
    }
    let last = view.ends().1;
    if last == Some(order.last) {
        let term = view.vote().map_or(Term(0), |vote| vote.term).max(order.last.term).next();
        let id = EntryId { term, index: order.last.index.next() };
        let payload = encode_membership(&order.members().map_err(corrupt)?);
        let record = Record { id, kind: RecordKind::Membership, payload };
        append(files, record).await.map_err(io)?;
        tracing::warn!(epoch = order.epoch, entry = %id, "recovery: the group goes on with this replica alone");
    } else if !is_carried_out(files, &order).map_err(io)? {
        tracing::error!(
            last = ?last, expected = %order.last,
            "recovery order is not carried out: the log has changed since it was given, so a leader was there"
        );
        return remove(disk, dir).map_err(io);
    }
    let term = view.ends().1.map_or(Term(0), |last| last.term);
    if view.vote().is_none_or(|vote| vote.term < term) {
        let vote = SavedVote { term, node: order.node, committed: false };
        files.save_vote(vote).await.map_err(io)?;
    }
    remove(disk, dir).map_err(io)
}

/// Whether the entry is there: the last start came to an end behind it.
fn is_carried_out(files: &LogFiles, order: &RecoveryOrder) -> io::Result<bool> {
    let view = files.view();
    let index: LogIndex = order.last.index.next();
    if view.id_at(order.last.index) != Some(order.last) || view.ends().1.map(|last| last.index) != Some(index) {
        return Ok(false);
    }
    let records = view.read(index..index.next(), 0).map_err(read_error_to_io)?;
    let members = records.into_iter().find(|record| record.kind == RecordKind::Membership);
    Ok(members.and_then(|record| decode_membership(record.payload).ok()).is_some_and(|it| epoch_of(&it) == order.epoch))
}

async fn append(files: &mut LogFiles, record: Record) -> io::Result<()> {
    let (done, flushed) = oneshot::channel();
    files.append(vec![record], Box::new(move |result| drop(done.send(result)))).await?;
    files.view().flush().await?;
    flushed.await.unwrap_or_else(|_| Err(io::Error::other("log stopped before the recovery's entry was durable")))
}

fn remove(disk: &dyn Disk, dir: &Path) -> io::Result<()> {
    disk.remove(&dir.join(ORDER_FILE))?;
    disk.sync_dir(dir)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_order_reads_back_as_written(node: u64, incarnation: u64, epoch: u16, last: (u64, u64), contact in ".{0,40}") {
            let (node, incarnation) = (NodeId(node), Incarnation(incarnation));
            let order = RecoveryOrder { node, incarnation, epoch, last: EntryId::new(last.0, last.1), contact };
            prop_assert_eq!(RecoveryOrder::decode(order.encode().into()), Ok(order));
        }

        #[test]
        fn damage_is_noticed(place: prop::sample::Index, bit in 0..8_u8) {
            let (node, incarnation) = (NodeId(1), Incarnation(2));
            let order = RecoveryOrder { node, incarnation, epoch: 1, last: EntryId::new(3, 4), contact: "here".to_owned() };
            let mut bytes = order.encode();
            let at = place.index(bytes.len());
            bytes[at] ^= 1_u8 << bit;
            prop_assert!(RecoveryOrder::decode(bytes.into()).is_err());
        }
    }
}
