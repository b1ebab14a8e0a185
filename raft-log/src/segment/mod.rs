//! One segment file and what is kept in memory about it; the bytes are drawn in `docs/formats/segment.md`.

mod examination;
mod header;
mod inspect;
mod positions;
mod read_ahead;
mod record;
mod record_stream;
#[allow(clippy::module_inception, reason = "the file is named after its type")]
mod segment;
mod summary;

pub(crate) use examination::{DamagedRange, Examination, Examined};
pub(crate) use header::{SEGMENT_HEADER_BYTES, SegmentHeader, identity_hash, parse_segment_name};
pub(crate) use inspect::{Found, record_behind, walk_segment};
pub(crate) use record::{
    ALIGN_BYTES, RECORD_HEADER_BYTES, Record, RecordKind, encode_header, encode_record, record_bytes,
};
pub(crate) use record_stream::{RecordStream, Unsound};
pub(crate) use segment::{Check, PartError, Segment, SegmentPart, scan_segment};
pub(crate) use summary::Summary;
