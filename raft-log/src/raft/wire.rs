//! What replicas say to each other, as bytes; drawn in `docs/formats/peer-wire.md`.

use bytes::{BufMut, Bytes, BytesMut};
use openraft::alias::{SnapshotMetaOf, StoredMembershipOf};
use openraft::raft::{
    AppendEntriesRequest, StreamAppendError, StreamAppendResult, TransferLeaderError, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};

use super::acquaintance::{AcquaintanceAnswer, Verdict};
use super::gone_watch::{GoneAnswer, GoneQuestion};
use super::membership::{decode_membership, encode_membership};
use super::parcel::ParcelId;
use super::stamp::STAMP_BYTES;
use super::type_config::{Entry, LogId, TypeConfig, Vote, to_entry, to_entry_id, to_log_id, to_record};
use super::vote_hold::HoldAnswer;
use crate::fields::{FieldError, FieldReader, u32_at};
use crate::ids::EntryId;
use crate::member::CONTACT_BYTES_MAX;
use crate::repair::{FetchAnswer, FetchRequest};
use crate::segment::{Record, RecordKind};
use crate::vitals::{Fitness, StateDigest, VitalsAnswer};
use crate::{Incarnation, LogIndex, NodeId, Term};

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
    let message = match kind {
        1 => PeerMessage::AppendRequest(get_append_request(&mut body)?),
        2 => PeerMessage::AppendResponse(get_append_response(&mut body)?),
        3 => PeerMessage::VoteRequest(VoteRequest {
            vote: get_vote(&mut body)?,
            last_log_id: get_log_id(&mut body)?,
            leadership_transfer: body.flag("leadership transfer")?,
        }),
        4 => PeerMessage::VoteResponse(VoteResponse {
            vote: get_vote(&mut body)?,
            last_log_id: get_log_id(&mut body)?,
            vote_granted: body.flag("vote granted")?,
        }),
        5 => PeerMessage::TransferRequest(TransferLeaderRequest::new(
            get_vote(&mut body)?,
            body.u64()?,
            get_log_id(&mut body)?,
        )),
        6 => PeerMessage::TransferResponse(get_transfer_response(&mut body)?),
        9 => PeerMessage::GoneQuestion(GoneQuestion { leader: NodeId(body.u64()?), term: Term(body.u64()?) }),
        10 => PeerMessage::GoneAnswer(GoneAnswer {
            is_gone: body.flag("leader gone")?,
            last: get_log_id(&mut body)?.as_ref().map(to_entry_id),
        }),
        11 => PeerMessage::FetchRequest(FetchRequest { first: LogIndex(body.u64()?), end: LogIndex(body.u64()?) }),
        12 => PeerMessage::FetchAnswer(get_fetch_answer(&mut body)?),
        13 => PeerMessage::VitalsRequest,
        14 => PeerMessage::VitalsAnswer(get_vitals(&mut body)?),
        16 => get_snapshot_piece(&mut body)?,
        17 => PeerMessage::SnapshotAnswer(SnapshotAnswer {
            vote: get_vote(&mut body)?,
            is_done: body.flag("snapshot done")?,
            next: body.u64()?,
        }),
        18 => PeerMessage::DurableMark(DurableMark { term: Term(body.u64()?), index: LogIndex(body.u64()?) }),
        19 => PeerMessage::HoldQuestion,
        20 => PeerMessage::HoldAnswer(HoldAnswer {
            recovers: body.flag("recovers")?,
            last: get_log_id(&mut body)?.as_ref().map(to_entry_id),
        }),
        21 => PeerMessage::Acquaintance,
        22 => PeerMessage::AcquaintanceAnswer(get_acquaintance(&mut body)?),
        unknown => return Err(WireError::Kind(unknown)),
    };
    body.finish()?;
    Ok(message)
}

/// What an entry takes besides its payload: term, index, kind, length.
const ENTRY_BYTES: usize = 8 + 8 + 1 + 4;
/// What a digest takes: index, version, digest.
const DIGEST_BYTES: usize = 8 + 4 + 16;
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

fn put_body(frame: &mut BytesMut, message: PeerMessage) {
    match message {
        PeerMessage::AppendRequest(request) => {
            put_vote(frame, &request.vote);
            put_log_id(frame, request.prev_log_id.as_ref());
            put_log_id(frame, request.leader_commit.as_ref());
            frame.put_u32_le(u32::try_from(request.entries.len()).expect("requests hold at most some hundred entries"));
            request.entries.into_iter().for_each(|entry| put_record(frame, &to_record(entry)));
        }
        PeerMessage::AppendResponse(Ok(matching)) => {
            frame.put_u8(0);
            put_log_id(frame, matching.as_ref());
        }
        PeerMessage::AppendResponse(Err(StreamAppendError::Conflict(at))) => {
            frame.put_u8(1);
            put_log_id(frame, Some(&at));
        }
        PeerMessage::AppendResponse(Err(StreamAppendError::HigherVote(vote))) => {
            frame.put_u8(2);
            put_vote(frame, &vote);
        }
        PeerMessage::VoteRequest(request) => {
            put_vote(frame, &request.vote);
            put_log_id(frame, request.last_log_id.as_ref());
            frame.put_u8(request.leadership_transfer.into());
        }
        PeerMessage::VoteResponse(response) => {
            put_vote(frame, &response.vote);
            put_log_id(frame, response.last_log_id.as_ref());
            frame.put_u8(response.vote_granted.into());
        }
        PeerMessage::TransferRequest(request) => {
            put_vote(frame, request.from_leader());
            frame.put_u64_le(*request.to_node_id());
            put_log_id(frame, request.last_log_id());
        }
        PeerMessage::TransferResponse(Ok(())) => frame.put_u8(0),
        PeerMessage::TransferResponse(Err(TransferLeaderError::VoteChanged { expected, actual })) => {
            frame.put_u8(1);
            put_vote(frame, &expected);
            put_vote(frame, &actual);
        }
        PeerMessage::TransferResponse(Err(TransferLeaderError::LogNotFlushed { expected, actual })) => {
            frame.put_u8(2);
            put_log_id(frame, expected.as_ref());
            put_log_id(frame, actual.as_ref());
        }
        PeerMessage::SnapshotPiece(SnapshotPiece { vote, meta, id, offset, bytes }) => {
            put_vote(frame, &vote);
            put_log_id(frame, meta.last_log_id.as_ref());
            put_log_id(frame, meta.last_membership.log_id().as_ref());
            put_bytes(frame, &encode_membership(meta.last_membership.membership()));
            frame.put_u64_le(id.bytes);
            frame.put_u32_le(id.crc);
            frame.put_u64_le(offset);
            put_bytes(frame, &bytes);
        }
        PeerMessage::SnapshotAnswer(SnapshotAnswer { vote, is_done, next }) => {
            put_vote(frame, &vote);
            frame.put_u8(is_done.into());
            frame.put_u64_le(next);
        }
        PeerMessage::GoneQuestion(GoneQuestion { leader, term }) => {
            frame.put_u64_le(leader.0);
            frame.put_u64_le(term.0);
        }
        PeerMessage::FetchRequest(request) => {
            frame.put_u64_le(request.first.0);
            frame.put_u64_le(request.end.0);
        }
        PeerMessage::FetchAnswer(answer) => put_fetch_answer(frame, &answer),
        PeerMessage::VitalsRequest => {}
        PeerMessage::VitalsAnswer(answer) => put_vitals(frame, &answer),
        PeerMessage::GoneAnswer(GoneAnswer { is_gone, last }) => {
            frame.put_u8(is_gone.into());
            put_log_id(frame, last.map(to_log_id).as_ref());
        }
        PeerMessage::DurableMark(DurableMark { term, index }) => {
            frame.put_u64_le(term.0);
            frame.put_u64_le(index.0);
        }
        PeerMessage::HoldQuestion | PeerMessage::Acquaintance => {}
        PeerMessage::AcquaintanceAnswer(answer) => {
            frame.put_u8(match answer.verdict {
                Verdict::Welcome => 0,
                Verdict::Stranger { .. } => 1,
                Verdict::GivenUp { .. } => 2,
            });
            frame.put_u64_le(match answer.verdict {
                Verdict::Stranger { known } => known.0,
                Verdict::GivenUp { epoch } => epoch.into(),
                Verdict::Welcome => Incarnation::UNKNOWN.0,
            });
            frame.put_u8(answer.is_newcomer.into());
            put_log_id(frame, answer.durable.map(to_log_id).as_ref());
            put_bytes(frame, answer.contact.as_bytes());
        }
        PeerMessage::HoldAnswer(HoldAnswer { recovers, last }) => {
            frame.put_u8(recovers.into());
            put_log_id(frame, last.map(to_log_id).as_ref());
        }
    }
}

fn get_acquaintance(body: &mut FieldReader) -> Result<AcquaintanceAnswer, FieldError> {
    let (code, what) = (body.u8()?, body.u64()?);
    let verdict = match (code, u16::try_from(what)) {
        (0, _) => Verdict::Welcome,
        (1, _) => Verdict::Stranger { known: Incarnation(what) },
        (2, Ok(epoch)) => Verdict::GivenUp { epoch },
        (value, _) => return Err(FieldError::Unknown { name: "verdict", value: value.into() }),
    };
    let is_newcomer = body.flag("newcomer")?;
    let durable = get_log_id(body)?.as_ref().map(to_entry_id);
    let contact = get_bytes(body)?;
    let unknown = FieldError::Unknown { name: "contact", value: contact.len() as u64 };
    if contact.len() > CONTACT_BYTES_MAX {
        return Err(unknown);
    }
    let contact = String::from_utf8(contact.to_vec()).map_err(|_| unknown)?;
    Ok(AcquaintanceAnswer { verdict, is_newcomer, durable, contact })
}

fn put_bytes(frame: &mut BytesMut, bytes: &[u8]) {
    frame.put_u32_le(u32::try_from(bytes.len()).expect("fields are bounded far below 4 GiB"));
    frame.put_slice(bytes);
}

fn put_vote(frame: &mut BytesMut, vote: &Vote) {
    frame.put_u64_le(vote.leader_id().term);
    frame.put_u64_le(vote.leader_id().voted_for);
    frame.put_u8(vote.is_committed().into());
}

fn put_log_id(frame: &mut BytesMut, id: Option<&LogId>) {
    frame.put_u8(id.is_some().into());
    if let Some(id) = id {
        frame.put_u64_le(id.committed_leader_id().term);
        frame.put_u64_le(id.index());
    }
}

fn get_bytes(body: &mut FieldReader) -> Result<Bytes, FieldError> {
    let len = body.u32()? as usize;
    body.take(len)
}

fn get_vote(body: &mut FieldReader) -> Result<Vote, FieldError> {
    let (term, node) = (body.u64()?, body.u64()?);
    Ok(if body.flag("vote committed")? { Vote::new_committed(term, node) } else { Vote::new(term, node) })
}

fn get_log_id(body: &mut FieldReader) -> Result<Option<LogId>, FieldError> {
    if !body.flag("log id")? {
        return Ok(None);
    }
    let (term, index) = (body.u64()?, body.u64()?);
    Ok(Some(LogId::new_term_index(term, index)))
}

fn get_append_request(body: &mut FieldReader) -> Result<AppendEntriesRequest<TypeConfig>, FieldError> {
    let vote = get_vote(body)?;
    let prev_log_id = get_log_id(body)?;
    let leader_commit = get_log_id(body)?;
    let count = body.u32()? as usize;
    // A lying count must not reserve memory that the frame could never fill.
    let mut entries = Vec::with_capacity(count.min(body.left() / ENTRY_BYTES));
    for _ in 0..count {
        entries.push(to_entry(get_record(body)?)?);
    }
    Ok(AppendEntriesRequest { vote, prev_log_id, entries, leader_commit })
}

fn put_record(frame: &mut BytesMut, record: &Record) {
    frame.put_u64_le(record.id.term.0);
    frame.put_u64_le(record.id.index.0);
    frame.put_u8(record.kind as u8);
    put_bytes(frame, &record.payload);
}

fn get_record(body: &mut FieldReader) -> Result<Record, FieldError> {
    let id = EntryId::new(body.u64()?, body.u64()?);
    let code = body.u8()?;
    let kind = RecordKind::from_code(code).ok_or(FieldError::Unknown { name: "entry kind", value: code.into() })?;
    Ok(Record { id, kind, payload: get_bytes(body)? })
}

fn put_fetch_answer(frame: &mut BytesMut, answer: &FetchAnswer) {
    match answer {
        FetchAnswer::Entries(records) => {
            frame.put_u8(0);
            frame.put_u32_le(u32::try_from(records.len()).expect("answers hold at most some thousand entries"));
            records.iter().for_each(|record| put_record(frame, record));
        }
        FetchAnswer::Absent => frame.put_u8(1),
        FetchAnswer::NotCommitted => frame.put_u8(2),
        FetchAnswer::Damaged => frame.put_u8(3),
    }
}

fn get_fetch_answer(body: &mut FieldReader) -> Result<FetchAnswer, FieldError> {
    Ok(match body.u8()? {
        0 => {
            let count = body.u32()? as usize;
            let mut records = Vec::with_capacity(count.min(body.left() / ENTRY_BYTES));
            for _ in 0..count {
                records.push(get_record(body)?);
            }
            FetchAnswer::Entries(records)
        }
        1 => FetchAnswer::Absent,
        2 => FetchAnswer::NotCommitted,
        3 => FetchAnswer::Damaged,
        value => return Err(FieldError::Unknown { name: "fetch answer", value: value.into() }),
    })
}

fn put_vitals(frame: &mut BytesMut, answer: &VitalsAnswer) {
    frame.put_u8(match answer.fitness {
        Fitness::Unfit => 0,
        Fitness::Fit => 1,
        Fitness::Reluctant => 2,
    });
    frame.put_u64_le(answer.wall_ms);
    frame.put_u32_le(u32::try_from(answer.digests.len()).expect("only some digests are kept"));
    for StateDigest { index, version, digest } in &answer.digests {
        frame.put_u64_le(index.0);
        frame.put_u32_le(*version);
        frame.put_u128_le(*digest);
    }
}

fn get_vitals(body: &mut FieldReader) -> Result<VitalsAnswer, FieldError> {
    let fitness = match body.u8()? {
        0 => Fitness::Unfit,
        1 => Fitness::Fit,
        2 => Fitness::Reluctant,
        other => return Err(FieldError::Unknown { name: "fitness to lead", value: other.into() }),
    };
    let wall_ms = body.u64()?;
    let count = body.u32()? as usize;
    let mut digests = Vec::with_capacity(count.min(body.left() / DIGEST_BYTES));
    for _ in 0..count {
        let (index, version) = (LogIndex(body.u64()?), body.u32()?);
        let (low, high) = (body.u64()?, body.u64()?);
        digests.push(StateDigest { index, version, digest: u128::from(high) << 64 | u128::from(low) });
    }
    Ok(VitalsAnswer { fitness, wall_ms, digests })
}

fn get_append_response(body: &mut FieldReader) -> Result<StreamAppendResult<TypeConfig>, FieldError> {
    match body.u8()? {
        0 => Ok(Ok(get_log_id(body)?)),
        1 => {
            let at = get_log_id(body)?.ok_or(FieldError::Unknown { name: "conflict", value: 0 })?;
            Ok(Err(StreamAppendError::Conflict(at)))
        }
        2 => Ok(Err(StreamAppendError::HigherVote(get_vote(body)?))),
        value => Err(FieldError::Unknown { name: "append result", value: value.into() }),
    }
}

fn get_transfer_response(body: &mut FieldReader) -> Result<TransferLeaderResponse<TypeConfig>, FieldError> {
    match body.u8()? {
        0 => Ok(Ok(())),
        1 => Ok(Err(TransferLeaderError::VoteChanged { expected: get_vote(body)?, actual: get_vote(body)? })),
        2 => Ok(Err(TransferLeaderError::LogNotFlushed { expected: get_log_id(body)?, actual: get_log_id(body)? })),
        value => Err(FieldError::Unknown { name: "transfer result", value: value.into() }),
    }
}

fn get_snapshot_piece(body: &mut FieldReader) -> Result<PeerMessage, FieldError> {
    let vote = get_vote(body)?;
    let last_log_id = get_log_id(body)?;
    let members_at = get_log_id(body)?;
    let members = decode_membership(get_bytes(body)?)?;
    let last_membership = StoredMembershipOf::<TypeConfig>::new(members_at, members);
    let meta = SnapshotMetaOf::<TypeConfig> { last_log_id, last_membership };
    let id = ParcelId { bytes: body.u64()?, crc: body.u32()? };
    let offset = body.u64()?;
    Ok(PeerMessage::SnapshotPiece(SnapshotPiece { vote, meta, id, offset, bytes: get_bytes(body)? }))
}
