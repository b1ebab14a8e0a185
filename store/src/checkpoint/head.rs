//! The head of a checkpoint: what changes all the time, and the names of the files that hold everything else.

use bincode::{Decode, Encode};

use super::BODY_BYTES_MAX;
use super::pack::PartFileId;
use crate::index_file::IndexFileId;

/// The numbers of the envelope; `docs/formats/checkpoint-state.md` draws it.
mod layout {
    pub const MAGIC: [u8; 4] = *b"FLSC";
    /// Versions before it hold all of the state in one piece. They are refused: the log is applied again.
    pub const VERSION: u16 = 6;
    /// Without the feature level: what is written at level 0.
    pub const VERSION_LEVELLESS: u16 = 5;
    pub const VERSION_AT: usize = 4;
    pub const FLAGS_AT: usize = 6;
    pub const BODY_BYTES_AT: usize = 8;
    pub const CRC_AT: usize = 16;
    pub const HEADER_BYTES: usize = 20;

    /// The node's store had failed: the body is the reason, and must not be restored.
    pub const FLAG_FAILED: u16 = 1;
}

/// The head.
#[derive(Debug, Clone, Encode, Decode)]
pub(crate) struct Head {
    /// Counts the checkpoints of the node that made it, and of those whose state it went on from.
    pub number: u64,
    pub applied: u64,
    pub log_time_ms: u64,
    pub last_uid: u64,
    pub last_seq: u32,
    pub trimmed_below: u64,
    pub trimmed_before_ms: u64,
    pub expired: u64,
    pub dedup: WindowMark,
    /// The dedup window's own time, milliseconds.
    pub dedup_now_ms: u64,
    /// Most ids that it keeps.
    pub dedup_entries_max: u64,
    pub ended: WindowMark,
    /// Log index where the slots in memory begin.
    pub open_index: u64,
    pub index_files: Vec<IndexFileId>,
    /// Oldest first.
    pub part_files: Vec<PartFileId>,
}

/// Where a window of numbered rows begins and ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Encode, Decode)]
pub(crate) struct WindowMark {
    pub first_serial: u64,
    pub end_serial: u64,
    /// Running hash over all that ever entered.
    pub hash: u128,
}

pub(crate) fn put(part: &impl Encode, body: &mut Vec<u8>) {
    bincode::encode_into_std_write(part, body, bincode::config::standard())
        .expect("plain data encodes into memory without an error");
}

pub(crate) fn encode(head: &Head, feature_level: u8) -> Vec<u8> {
    let mut body = Vec::new();
    put(head, &mut body);
    if feature_level == 0 {
        return envelope(layout::VERSION_LEVELLESS, &body, 0);
    }
    body.push(feature_level);
    envelope(layout::VERSION, &body, 0)
}

/// What a failed store answers instead of its state.
pub(crate) fn encode_failed(reason: &str) -> Vec<u8> {
    envelope(layout::VERSION_LEVELLESS, reason.as_bytes(), layout::FLAG_FAILED)
}

fn envelope(version: u16, body: &[u8], flags: u16) -> Vec<u8> {
    let mut out = Vec::with_capacity(layout::HEADER_BYTES + body.len());
    out.extend_from_slice(&layout::MAGIC);
    out.extend_from_slice(&version.to_le_bytes());
    out.extend_from_slice(&flags.to_le_bytes());
    out.extend_from_slice(&(body.len() as u64).to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(&out), body);
    out.extend_from_slice(&crc.to_le_bytes());
    out.extend_from_slice(body);
    out
}

/// The head, and the feature level of the state.
pub(crate) fn decode(bytes: &[u8]) -> Result<(Head, u8), String> {
    let (version, flags, body) = open_envelope(bytes)?;
    if flags == layout::FLAG_FAILED {
        return Err(format!("it was taken after the store had failed: {}", String::from_utf8_lossy(body)));
    }
    if flags != 0 {
        return Err(format!("its flags {flags:#x} are unknown"));
    }
    let config = bincode::config::standard().with_limit::<BODY_BYTES_MAX>();
    let (head, used) =
        bincode::decode_from_slice::<Head, _>(body, config).map_err(|error| format!("its body: {error}"))?;
    match (version, &body[used..]) {
        (layout::VERSION_LEVELLESS, []) => Ok((head, 0)),
        (layout::VERSION, [level]) if *level > 0 => Ok((head, *level)),
        _ => Err(format!("its body has {} bytes, its head takes {used} of them", body.len())),
    }
}

/// Version, flags and body.
fn open_envelope(bytes: &[u8]) -> Result<(u16, u16, &[u8]), String> {
    let Some((header, body)) = bytes.split_first_chunk::<{ layout::HEADER_BYTES }>() else {
        return Err(format!("it has {} bytes, its header alone has {}", bytes.len(), layout::HEADER_BYTES));
    };
    if header[..4] != layout::MAGIC {
        return Err("it does not begin with its magic".to_owned());
    }
    let version = u16::from_le_bytes([header[layout::VERSION_AT], header[layout::VERSION_AT + 1]]);
    if !(layout::VERSION_LEVELLESS..=layout::VERSION).contains(&version) {
        let known = format!("{} and {} are known", layout::VERSION_LEVELLESS, layout::VERSION);
        return Err(format!("its version is {version}, {known}"));
    }
    let mut said = [0; 8];
    said.copy_from_slice(&header[layout::BODY_BYTES_AT..layout::CRC_AT]);
    if u64::from_le_bytes(said) != body.len() as u64 {
        return Err(format!("its body has {} bytes, it says {}", body.len(), u64::from_le_bytes(said)));
    }
    let mut found = [0; 4];
    found.copy_from_slice(&header[layout::CRC_AT..]);
    let computed = crc32c::crc32c_append(crc32c::crc32c(&header[..layout::CRC_AT]), body);
    if u32::from_le_bytes(found) != computed {
        return Err("it does not fit its checksum".to_owned());
    }
    let flags = u16::from_le_bytes([header[layout::FLAGS_AT], header[layout::FLAGS_AT + 1]]);
    Ok((version, flags, body))
}
