//! Peer messages survive the wire, and nothing a peer sends makes a replica panic.

use bytes::Bytes;
use openraft::EntryPayload;
use openraft::alias::{SnapshotMetaOf, StoredMembershipOf};
use openraft::raft::{
    AppendEntriesRequest, StreamAppendError, TransferLeaderError, TransferLeaderRequest, VoteRequest, VoteResponse,
};
use proptest::prelude::*;

use crate::repair::{FetchAnswer, FetchRequest};
use crate::segment::{Record, RecordKind};
use crate::vitals::{Fitness, StateDigest, VitalsAnswer};

use super::gone_watch::{GoneAnswer, GoneQuestion};
use super::membership::Members;
use super::parcel::ParcelId;
use super::stamp::{STAMP_BYTES, Stamp};
use super::type_config::{Entry, LogId, Proposal, Vote};
use super::wire::{PeerMessage, SnapshotAnswer, SnapshotPiece, WireError, decode, encode, kept};
use crate::ids::EntryId;
use crate::{Incarnation, LogIndex, NodeId, Term};

fn log_id() -> impl Strategy<Value = LogId> {
    any::<(u64, u64)>().prop_map(|(term, index)| LogId::new_term_index(term, index))
}

fn vote() -> impl Strategy<Value = Vote> {
    any::<(u64, u64, bool)>().prop_map(
        |(term, node, committed)| {
            if committed { Vote::new_committed(term, node) } else { Vote::new(term, node) }
        },
    )
}

fn members() -> Members {
    Members::new_with_defaults(vec![[1, 2, 3].into()], [4])
}

fn entry() -> impl Strategy<Value = Entry> {
    let payload = prop_oneof![
        Just(EntryPayload::Blank),
        Just(EntryPayload::Membership(members())),
        prop::collection::vec(any::<u8>(), 0..100)
            .prop_map(|bytes| EntryPayload::Normal(Proposal::bare(Bytes::from(bytes)))),
    ];
    (log_id(), payload).prop_map(|(log_id, payload)| Entry { log_id, payload })
}

fn round_trip(message: PeerMessage) -> PeerMessage {
    decode(encode(message)).unwrap()
}

proptest! {
    #[test]
    fn append_requests_arrive_as_sent(
        vote in vote(), prev_log_id in prop::option::of(log_id()), leader_commit in prop::option::of(log_id()),
        entries in prop::collection::vec(entry(), 0..5),
    ) {
        let request = AppendEntriesRequest { vote, prev_log_id, entries, leader_commit };
        let PeerMessage::AppendRequest(arrived) = round_trip(PeerMessage::AppendRequest(request.clone())) else {
            panic!("another message arrived")
        };
        prop_assert_eq!(arrived.vote, request.vote);
        prop_assert_eq!(arrived.prev_log_id, request.prev_log_id);
        prop_assert_eq!(arrived.leader_commit, request.leader_commit);
        prop_assert_eq!(arrived.entries, request.entries);
    }

    #[test]
    fn fetched_entries_and_vitals_arrive_as_sent(
        numbers: (u64, u64, u64), payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 1..5),
        digests: Vec<(u64, u32, u128)>, fitness in 0..3_usize,
    ) {
        let request = FetchRequest { first: LogIndex(numbers.0), end: LogIndex(numbers.1) };
        let PeerMessage::FetchRequest(arrived) = round_trip(PeerMessage::FetchRequest(request)) else {
            panic!("another message arrived")
        };
        prop_assert_eq!(arrived, request);
        let record = |payload: Vec<u8>| {
            Record { id: EntryId::new(numbers.2, numbers.0), kind: RecordKind::Normal, payload: payload.into() }
        };
        let entries = FetchAnswer::Entries(payloads.into_iter().map(record).collect());
        for answer in [entries, FetchAnswer::Absent, FetchAnswer::NotCommitted, FetchAnswer::Damaged] {
            let PeerMessage::FetchAnswer(arrived) = round_trip(PeerMessage::FetchAnswer(answer.clone())) else {
                panic!("another message arrived")
            };
            prop_assert_eq!(arrived, answer);
        }
        prop_assert!(matches!(round_trip(PeerMessage::VitalsRequest), PeerMessage::VitalsRequest));
        let digest = |(index, version, digest)| StateDigest { index: LogIndex(index), version, digest };
        let digests = digests.into_iter().map(digest);
        let answer = VitalsAnswer { fitness: [Fitness::Fit, Fitness::Reluctant, Fitness::Unfit][fitness], wall_ms: numbers.2, digests: digests.collect() };
        let PeerMessage::VitalsAnswer(arrived) = round_trip(PeerMessage::VitalsAnswer(answer.clone())) else {
            panic!("another message arrived")
        };
        prop_assert_eq!(arrived, answer);
    }

    #[test]
    fn answers_arrive_as_sent(
        vote in vote(), id in log_id(), maybe in prop::option::of(log_id()), flag: bool, next: u64,
    ) {
        for result in [Ok(maybe), Err(StreamAppendError::Conflict(id)), Err(StreamAppendError::HigherVote(vote))] {
            let PeerMessage::AppendResponse(arrived) = round_trip(PeerMessage::AppendResponse(result.clone())) else {
                panic!("another message arrived")
            };
            prop_assert_eq!(arrived, result);
        }
        for result in [
            Ok(()),
            Err(TransferLeaderError::VoteChanged { expected: vote, actual: vote }),
            Err(TransferLeaderError::LogNotFlushed { expected: maybe, actual: Some(id) }),
        ] {
            let PeerMessage::TransferResponse(arrived) = round_trip(PeerMessage::TransferResponse(result.clone())) else {
                panic!("another message arrived")
            };
            prop_assert_eq!(arrived, result);
        }
        let response = VoteResponse { vote, vote_granted: flag, last_log_id: maybe };
        let PeerMessage::VoteResponse(arrived) = round_trip(PeerMessage::VoteResponse(response.clone())) else {
            panic!("another message arrived")
        };
        prop_assert_eq!(arrived, response);
        let answer = SnapshotAnswer { vote, is_done: flag, next };
        let PeerMessage::SnapshotAnswer(arrived) = round_trip(PeerMessage::SnapshotAnswer(answer)) else {
            panic!("another message arrived")
        };
        prop_assert_eq!((arrived.vote, arrived.is_done, arrived.next), (vote, flag, next));
    }

    #[test]
    fn other_requests_arrive_as_sent(
        vote in vote(), maybe in prop::option::of(log_id()), node: u64, flag: bool,
        state in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let request = VoteRequest { vote, last_log_id: maybe, leadership_transfer: flag };
        let PeerMessage::VoteRequest(arrived) = round_trip(PeerMessage::VoteRequest(request.clone())) else {
            panic!("another message arrived")
        };
        prop_assert_eq!(arrived, request);
        let request = TransferLeaderRequest::new(vote, node, maybe);
        let PeerMessage::TransferRequest(arrived) = round_trip(PeerMessage::TransferRequest(request.clone())) else {
            panic!("another message arrived")
        };
        prop_assert_eq!(arrived, request);
        let sent = SnapshotMetaOf::<super::TypeConfig> {
            last_log_id: maybe,
            last_membership: StoredMembershipOf::<super::TypeConfig>::new(maybe, members()),
        };
        let (bytes, id) = (Bytes::from(state), ParcelId { bytes: node, crc: 7 });
        let piece = SnapshotPiece { vote, meta: sent.clone(), id, offset: 9, bytes: bytes.clone() };
        let PeerMessage::SnapshotPiece(arrived) = round_trip(PeerMessage::SnapshotPiece(piece)) else {
            panic!("another message arrived")
        };
        prop_assert_eq!((arrived.vote, arrived.meta, arrived.bytes), (vote, sent, bytes));
        prop_assert_eq!((arrived.id, arrived.offset), (id, 9));
    }

    #[test]
    fn questions_about_a_gone_leader_arrive_as_sent(
        node: u64, term: u64, flag: bool, last in prop::option::of(any::<(u64, u64)>()),
    ) {
        let question = GoneQuestion { leader: NodeId(node), term: Term(term) };
        let PeerMessage::GoneQuestion(arrived) = round_trip(PeerMessage::GoneQuestion(question)) else {
            panic!("another message arrived")
        };
        prop_assert_eq!(arrived, question);
        let answer = GoneAnswer { is_gone: flag, last: last.map(|(term, index)| EntryId::new(term, index)) };
        let PeerMessage::GoneAnswer(arrived) = round_trip(PeerMessage::GoneAnswer(answer)) else {
            panic!("another message arrived")
        };
        prop_assert_eq!(arrived, answer);
    }

    #[test]
    fn a_flipped_bit_is_noticed(entries in prop::collection::vec(entry(), 0..3), place: prop::sample::Index) {
        let request = AppendEntriesRequest { vote: Vote::new(1, 2), prev_log_id: None, entries, leader_commit: None };
        let (node, incarnation) = (NodeId(1), Incarnation(2));
        let stamp =
            Stamp { node, incarnation, membership: None, is_founder: false, reads_memory: true, epoch: 0, level: 0 };
        let mut frame = stamp.put_on(encode(PeerMessage::AppendRequest(request))).to_vec();
        let bit = place.index(frame.len() * 8);
        frame[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(Stamp::of(&frame).is_err() || decode(frame.into()).is_err());
    }

    /// The checksum is set right, so that the fields themselves are reached.
    #[test]
    fn arbitrary_bodies_never_panic(kind in 0..24_u8, body in prop::collection::vec(any::<u8>(), 0..120)) {
        let mut frame = Vec::from(*b"FLPW");
        frame.extend_from_slice(&[0; 4]);
        frame.extend_from_slice(&[2, kind, 0, 0]);
        frame.extend_from_slice(&(body.len() as u32).to_le_bytes());
        frame.extend_from_slice(&body);
        let crc = crc32c::crc32c(&frame[8..]);
        frame[4..8].copy_from_slice(&crc.to_le_bytes());
        let _ = decode([&[0; STAMP_BYTES][..], &frame].concat().into());
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        prop_assert!(decode(bytes.into()).is_err());
    }
}

#[test]
fn a_later_version_is_told_apart_from_nonsense() {
    let mut frame =
        encode(PeerMessage::SnapshotAnswer(SnapshotAnswer { vote: Vote::new(1, 2), is_done: true, next: 3 })).to_vec();
    frame[STAMP_BYTES + 8] = 3;
    assert_eq!(decode(frame.into()).err(), Some(WireError::Version(3)));
}

#[test]
fn entries_that_are_kept_do_not_hold_a_read_buffer_in_memory() {
    let request = |payload: usize| AppendEntriesRequest {
        vote: Vote::new_committed(1, 2),
        prev_log_id: None,
        entries: vec![Entry {
            log_id: LogId::new_term_index(1, 1),
            payload: EntryPayload::Normal(Proposal::bare(vec![7; payload].into())),
        }],
        leader_commit: None,
    };
    for (payload, is_free) in [(100, true), (16 << 10, false)] {
        let frame = encode(PeerMessage::AppendRequest(request(payload)));
        let read_buffer = Bytes::from([&frame[..], &[0; 8 << 10]].concat());
        let Ok(PeerMessage::AppendRequest(arrived)) = decode(kept(read_buffer.slice(..frame.len()))) else {
            panic!("another message arrived")
        };
        assert_eq!(read_buffer.is_unique(), is_free, "{payload} bytes");
        assert_eq!(arrived.entries, request(payload).entries);
    }
}
