//! What replicas say to each other, as bytes; drawn in `docs/formats/peer-wire.md`.

use bytes::{BufMut, Bytes, BytesMut};
use openraft::alias::SnapshotMetaOf;
use openraft::raft::{
    AppendEntriesRequest, StreamAppendResult, TransferLeaderRequest, TransferLeaderResponse, VoteRequest, VoteResponse,
};

use super::acquaintance::AcquaintanceAnswer;
use super::gone_watch::{GoneAnswer, GoneQuestion};
use super::parcel::ParcelId;
use super::stamp::STAMP_BYTES;
use super::type_config::{Entry, TypeConfig, Vote};
use super::vote_hold::HoldAnswer;
use super::wire_body::{DIGEST_BYTES, ENTRY_BYTES, get_body, put_body};
use crate::fields::{FieldError, FieldReader, u32_at};
use crate::repair::{FetchAnswer, FetchRequest};
use crate::vitals::VitalsAnswer;
use crate::{LogIndex, Term};

const MAGIC: [u8; 4] = *b"FLPW";
const VERSION: u8 = 2;
const HEADER_BYTES: usize = 16;
/// The part of the header that the checksum covers begins here, behind the magic and the checksum itself.
const COVERED_FROM: usize = 8;

/// One message between replicas.
pub(crate) enum PeerMessage {
    AppendRequest(AppendEntriesRequest<TypeConfig>),
    AppendResponse(StreamAppendResult<TypeConfig>),
    VoteRequest(VoteRequest<TypeConfig>),
    VoteResponse(VoteResponse<TypeConfig>),
    TransferRequest(TransferLeaderRequest<TypeConfig>),
    TransferResponse(TransferLeaderResponse<TypeConfig>),
    SnapshotPiece(SnapshotPiece),
    SnapshotAnswer(SnapshotAnswer),
    GoneQuestion(GoneQuestion),
    GoneAnswer(GoneAnswer),
    FetchRequest(FetchRequest),
    FetchAnswer(FetchAnswer),
    VitalsRequest,
    VitalsAnswer(VitalsAnswer),
    DurableMark(DurableMark),
    HoldQuestion,
    HoldAnswer(HoldAnswer),
    Acquaintance,
    AcquaintanceAnswer(AcquaintanceAnswer),
}

/// On an append stream, between answers: how far the follower's log is on disk, as far as it matches the leader's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DurableMark {
    /// The reign in which it matched.
    pub(crate) term: Term,
    pub(crate) index: LogIndex,
}

/// A piece of a snapshot.
pub(crate) struct SnapshotPiece {
    pub(crate) vote: Vote,
    pub(crate) meta: SnapshotMetaOf<TypeConfig>,
    pub(crate) id: ParcelId,
    /// Where in the parcel it belongs.
    pub(crate) offset: u64,
    /// None: the sender asks where to go on.
    pub(crate) bytes: Bytes,
}

/// What became of a piece.
pub(crate) struct SnapshotAnswer {
    /// The receiver's vote; a higher one than the sender's ends the transfer.
    pub(crate) vote: Vote,
    /// All of it is here and installed, or was not needed.
    pub(crate) is_done: bool,
    /// Where in the parcel to go on.
    pub(crate) next: u64,
}

/// Why bytes are no message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WireError {
    #[error("frame of {0} bytes is too short")]
    Short(usize),
    #[error("magic of a peer frame is missing")]
    Magic,
    #[error("frame has version {0}, this program speaks version {VERSION}")]
    Version(u8),
    #[error("header says {said} bytes follow, there are {found}")]
    Length { said: u32, found: usize },
    #[error("frame does not match its checksum")]
    Checksum,
    #[error("the frame's stamp does not match its checksum")]
    Stamp,
    #[error("frame of kind {0} is not known")]
    Kind(u8),
    #[error(transparent)]
    Fields(#[from] FieldError),
}

impl PeerMessage {
    fn kind(&self) -> u8 {
        match self {
            PeerMessage::AppendRequest(_) => 1,
            PeerMessage::AppendResponse(_) => 2,
            PeerMessage::VoteRequest(_) => 3,
            PeerMessage::VoteResponse(_) => 4,
            PeerMessage::TransferRequest(_) => 5,
            PeerMessage::TransferResponse(_) => 6,
            PeerMessage::GoneQuestion(_) => 9,
            PeerMessage::GoneAnswer(_) => 10,
            PeerMessage::FetchRequest(_) => 11,
            PeerMessage::FetchAnswer(_) => 12,
            PeerMessage::VitalsRequest => 13,
            PeerMessage::VitalsAnswer(_) => 14,
            PeerMessage::SnapshotPiece(_) => 16,
            PeerMessage::SnapshotAnswer(_) => 17,
            PeerMessage::DurableMark(_) => 18,
            PeerMessage::HoldQuestion => 19,
            PeerMessage::HoldAnswer(_) => 20,
            PeerMessage::Acquaintance => 21,
            PeerMessage::AcquaintanceAnswer(_) => 22,
        }
    }
}

/// A whole frame, with room for a stamp in front. Payloads are copied here, once.
pub(crate) fn encode(message: PeerMessage) -> Bytes {
    let kind = message.kind();
    let mut whole = BytesMut::with_capacity(STAMP_BYTES + HEADER_BYTES + size_hint(&message));
    whole.put_bytes(0, STAMP_BYTES);
    let mut frame = whole.split_off(STAMP_BYTES);
    frame.put_slice(&MAGIC);
    frame.put_u32_le(0);
    frame.put_u8(VERSION);
    frame.put_u8(kind);
    frame.put_u16_le(0);
    frame.put_u32_le(0);
    put_body(&mut frame, message);
    let body_bytes = u32::try_from(frame.len() - HEADER_BYTES).expect("requests are bounded far below 4 GiB");
    frame[12..16].copy_from_slice(&body_bytes.to_le_bytes());
    let crc = crc32c::crc32c(&frame[COVERED_FROM..]);
    frame[4..8].copy_from_slice(&crc.to_le_bytes());
    whole.unsplit(frame);
    whole.freeze()
}

/// The message in a whole frame, whoever sent it; payloads stay in the frame's memory.
pub(crate) fn decode(frame: Bytes) -> Result<PeerMessage, WireError> {
    if frame.len() < STAMP_BYTES + HEADER_BYTES {
        return Err(WireError::Short(frame.len()));
    }
    let frame = frame.slice(STAMP_BYTES..);
    if frame[..4] != MAGIC {
        return Err(WireError::Magic);
    }
    if frame[8] != VERSION {
        return Err(WireError::Version(frame[8]));
    }
    let said = u32_at(&frame, 12);
    let found = frame.len() - HEADER_BYTES;
    if said as usize != found {
        return Err(WireError::Length { said, found });
    }
    if u32_at(&frame, 4) != crc32c::crc32c(&frame[COVERED_FROM..]) {
        return Err(WireError::Checksum);
    }
    let kind = frame[9];
    let mut body = FieldReader::new(frame.slice(HEADER_BYTES..));
    let message = get_body(kind, &mut body)?.ok_or(WireError::Kind(kind))?;
    body.finish()?;
    Ok(message)
}

/// A frame of at most so many bytes is copied before its entries are kept, see [`kept`].
const COPIED_BYTES_MAX: usize = 16 << 10;

/// The frame, in memory of its own if it is small: what a transport hands over may be a slice of a read buffer that is far larger,
/// and the entries in it stay in the cache of the log's tail for long.
pub(crate) fn kept(frame: Bytes) -> Bytes {
    if frame.len() > COPIED_BYTES_MAX { frame } else { Bytes::copy_from_slice(&frame) }
}

/// Room for all the small fields of any message.
const SMALL_BYTES: usize = 128;

fn size_hint(message: &PeerMessage) -> usize {
    SMALL_BYTES
        + match message {
            PeerMessage::AppendRequest(request) => request.entries.iter().map(entry_hint).sum(),
            PeerMessage::SnapshotPiece(piece) => piece.bytes.len() + SMALL_BYTES,
            PeerMessage::FetchAnswer(FetchAnswer::Entries(records)) => {
                records.iter().map(|record| ENTRY_BYTES + record.payload.len()).sum()
            }
            PeerMessage::VitalsAnswer(answer) => answer.digests.len() * DIGEST_BYTES,
            _ => 0,
        }
}

fn entry_hint(entry: &Entry) -> usize {
    ENTRY_BYTES
        + match &entry.payload {
            openraft::EntryPayload::Normal(proposal) => proposal.payload.len(),
            openraft::EntryPayload::Blank => 0,
            openraft::EntryPayload::Membership(_) => SMALL_BYTES,
        }
}
