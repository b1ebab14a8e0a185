//! The bodies of peer messages: each kind's fields, written and read; drawn in `docs/formats/peer-wire.md`.

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
use super::remembrance::Remembrance;
use super::type_config::{LogId, TypeConfig, Vote, to_entry, to_entry_id, to_log_id, to_record};
use super::vote_hold::HoldAnswer;
use super::wire::{DurableMark, PeerMessage, SnapshotAnswer, SnapshotPiece};
use crate::fields::{FieldError, FieldReader};
use crate::ids::EntryId;
use crate::member::CONTACT_BYTES_MAX;
use crate::repair::{FetchAnswer, FetchRequest};
use crate::segment::{Record, RecordKind};
use crate::vitals::{Fitness, StateDigest, VitalsAnswer};
use crate::{Incarnation, LogIndex, NodeId, Term};

/// What an entry takes besides its payload: term, index, kind, length.
pub(super) const ENTRY_BYTES: usize = 8 + 8 + 1 + 4;
/// What a digest takes: index, version, digest.
pub(super) const DIGEST_BYTES: usize = 8 + 4 + 16;

/// Writes the fields of a message.
pub(super) fn put_body(frame: &mut BytesMut, message: PeerMessage) {
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
            match answer.verdict {
                Verdict::Welcome => {
                    frame.put_u8(0);
                    frame.put_u64_le(Incarnation::UNKNOWN.0);
                }
                Verdict::Stranger { known } => {
                    frame.put_u8(1);
                    frame.put_u64_le(known.0);
                }
                Verdict::Remembered(Remembrance { term, index }) => {
                    frame.put_u8(2);
                    frame.put_u64_le(term.0);
                    frame.put_u64_le(index.0);
                }
                Verdict::GivenUp { epoch } => {
                    frame.put_u8(3);
                    frame.put_u64_le(epoch.into());
                }
            }
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

/// Reads the fields of a message of that kind; `None` if the kind is not known.
pub(super) fn get_body(kind: u8, body: &mut FieldReader) -> Result<Option<PeerMessage>, FieldError> {
    Ok(Some(match kind {
        1 => PeerMessage::AppendRequest(get_append_request(body)?),
        2 => PeerMessage::AppendResponse(get_append_response(body)?),
        3 => PeerMessage::VoteRequest(VoteRequest {
            vote: get_vote(body)?,
            last_log_id: get_log_id(body)?,
            leadership_transfer: body.flag("leadership transfer")?,
        }),
        4 => PeerMessage::VoteResponse(VoteResponse {
            vote: get_vote(body)?,
            last_log_id: get_log_id(body)?,
            vote_granted: body.flag("vote granted")?,
        }),
        5 => PeerMessage::TransferRequest(TransferLeaderRequest::new(get_vote(body)?, body.u64()?, get_log_id(body)?)),
        6 => PeerMessage::TransferResponse(get_transfer_response(body)?),
        9 => PeerMessage::GoneQuestion(GoneQuestion { leader: NodeId(body.u64()?), term: Term(body.u64()?) }),
        10 => PeerMessage::GoneAnswer(GoneAnswer {
            is_gone: body.flag("leader gone")?,
            last: get_log_id(body)?.as_ref().map(to_entry_id),
        }),
        11 => PeerMessage::FetchRequest(FetchRequest { first: LogIndex(body.u64()?), end: LogIndex(body.u64()?) }),
        12 => PeerMessage::FetchAnswer(get_fetch_answer(body)?),
        13 => PeerMessage::VitalsRequest,
        14 => PeerMessage::VitalsAnswer(get_vitals(body)?),
        16 => get_snapshot_piece(body)?,
        17 => PeerMessage::SnapshotAnswer(SnapshotAnswer {
            vote: get_vote(body)?,
            is_done: body.flag("snapshot done")?,
            next: body.u64()?,
        }),
        18 => PeerMessage::DurableMark(DurableMark { term: Term(body.u64()?), index: LogIndex(body.u64()?) }),
        19 => PeerMessage::HoldQuestion,
        20 => PeerMessage::HoldAnswer(HoldAnswer {
            recovers: body.flag("recovers")?,
            last: get_log_id(body)?.as_ref().map(to_entry_id),
        }),
        21 => PeerMessage::Acquaintance,
        22 => PeerMessage::AcquaintanceAnswer(get_acquaintance(body)?),
        _ => return Ok(None),
    }))
}

fn get_acquaintance(body: &mut FieldReader) -> Result<AcquaintanceAnswer, FieldError> {
    let (code, number) = (body.u8()?, body.u64()?);
    let verdict = match code {
        0 => Verdict::Welcome,
        1 => Verdict::Stranger { known: Incarnation(number) },
        2 => Verdict::Remembered(Remembrance { term: Term(number), index: LogIndex(body.u64()?) }),
        3 => {
            let unknown = |_| FieldError::Unknown { name: "epoch", value: number };
            Verdict::GivenUp { epoch: u16::try_from(number).map_err(unknown)? }
        }
        value => return Err(FieldError::Unknown { name: "verdict", value: value.into() }),
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
