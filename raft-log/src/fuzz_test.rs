//! Damaged bytes for every decoder of this crate: records, headers, slots, identities, checkpoints, members, peer messages,
//! lost tails, boot marks.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use flotilla_fuzz::{Target, set_crc, set_last_crc};

use crate::boot_mark;
use crate::checkpoint_file::Checkpoint;
use crate::identity::{Identity, Origin};
use crate::ids::EntryId;
use crate::lost_tail::{LostEntry, LostTail};
use crate::raft::{DurableMark, HoldAnswer, PeerMessage, STAMP_BYTES, decode, decode_membership, encode};
use crate::segment::{
    Check, Record, RecordKind, SEGMENT_HEADER_BYTES, Segment, SegmentHeader, Summary, encode_record, record_behind,
    scan_segment, walk_segment,
};
use crate::testing::checkpoint_of;
use crate::vote_and_marks::{COMMIT_MAGIC, CONTROL_MAGIC, COVERED_BYTES, SavedVote, Slot, TailFloor};
use crate::{DiskFile, Incarnation, LogIndex, NodeId, Term};

fn corpus(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz-corpus").join(name)
}

/// A file of exactly these bytes; reading past their end is an error, as on a disk.
struct FileOf(Bytes);

impl DiskFile for FileOf {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }
    fn write_at(&self, _offset: u64, _bytes: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
    fn read_at(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        let range = offset as usize..offset as usize + len;
        assert!(range.end <= self.0.len(), "{len} bytes at {offset} are asked for, the file has {}", self.0.len());
        Ok(self.0.slice(range))
    }
    fn sync_data(&self) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
}

fn segment_header() -> SegmentHeader {
    SegmentHeader { identity: 1, sequence: 7, segment_bytes: 8192, first: LogIndex(10), previous: None }
}

fn records(count: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for index in 10..10 + count {
        let kind = [RecordKind::Blank, RecordKind::Membership, RecordKind::Normal][index as usize % 3];
        let payload = Bytes::from(vec![index as u8; (index * 7 % 40) as usize]);
        encode_record(&mut bytes, &Record { id: EntryId::new(2, index), kind, payload }, 7);
    }
    bytes
}

/// The records that stand one behind the other from the front get right checksums.
fn mend_records(bytes: &mut [u8]) {
    let mut at = 0;
    while at + 32 <= bytes.len() {
        let len = u32::from_le_bytes(*bytes[at + 4..].first_chunk().expect("a header is there")) as usize;
        let end = (at + 32).saturating_add(len);
        set_crc(bytes, at, at + 4..end);
        at = end.next_multiple_of(8);
    }
}

#[test]
fn records_of_any_bytes_are_read_within_the_file() {
    let mut zero_tail = records(3);
    zero_tail.resize(zero_tail.len() + 100, 0);
    let corpus = corpus("records");
    let examples = vec![("one", records(1)), ("five", records(5)), ("zero-tail", zero_tail)];
    Target { name: "records", corpus: &corpus, examples, mend: mend_records }.run(|bytes| {
        let header = segment_header();
        let mut whole = header.encode();
        whole.extend_from_slice(bytes);
        let file: std::sync::Arc<dyn DiskFile> = std::sync::Arc::new(FileOf(Bytes::from(whole)));
        let mut segment = Segment::new(PathBuf::from("/f"), file.clone(), header);
        scan_segment(&mut segment, None, Check::Checksums, |_| {}).expect("the file ends where it says");
        let mut walked = 0;
        let stop = walk_segment(&*file, &header, None, true, &mut |found| {
            walked += u64::from(found.wrong.is_none());
            true
        });
        let stop = stop.expect("the file ends where it says");
        record_behind(&*file, &header, stop.position).expect("the file ends where it says");
        assert!(stop.position >= segment.position, "the tool sees at least what a start sees");
        if segment.end > header.first {
            let mut part = segment.part(header.first, segment.end, false);
            while let Some(record) = part.next() {
                record.expect("what a scan found sound reads back");
            }
        }
        walked > 0
    });
}

#[test]
fn segment_headers_of_any_bytes_are_answered() {
    let previous = SegmentHeader { previous: Some(EntryId::new(3, 9)), ..segment_header() };
    let page = |header: SegmentHeader| header.encode()[..SEGMENT_HEADER_BYTES as usize / 16].to_vec();
    let corpus = corpus("segment-header");
    let examples = vec![("first", page(segment_header())), ("later", page(previous))];
    let target = Target { name: "segment header", corpus: &corpus, examples, mend: |bytes| set_crc(bytes, 72, 0..72) };
    target.run(|bytes| SegmentHeader::decode(&Bytes::copy_from_slice(bytes)).is_ok());
}

#[test]
fn summaries_of_any_bytes_are_answered() {
    let summary = Summary {
        identity: 1,
        sequence: 7,
        first: LogIndex(10),
        end: LogIndex(60),
        position: 9000,
        runs: vec![(LogIndex(10), Term(2)), (LogIndex(30), Term(5))],
        marks: vec![(0, 4096), (20, 6000)],
    };
    let mend = |bytes: &mut [u8]| {
        if let Some(covered) = bytes.len().checked_sub(4).filter(|covered| *covered >= 16) {
            bytes[12..16].copy_from_slice(&(covered as u32).to_le_bytes());
        }
        set_last_crc(bytes);
    };
    let corpus = corpus("summary");
    Target { name: "summary", corpus: &corpus, examples: vec![("two-terms", summary.encode())], mend }
        .run(|bytes| Summary::decode(&Bytes::copy_from_slice(bytes)).is_ok());
}

#[test]
fn slots_of_any_bytes_are_answered() {
    let slot = Slot {
        sequence: 5,
        vote: Some(SavedVote { term: Term(3), node: NodeId(2), committed: true }),
        entry: Some(EntryId::new(2, 40)),
        floor: TailFloor { sequence: 9, position: 8192 },
    };
    let corpus = corpus("slot");
    let examples = vec![
        ("control", slot.encode(CONTROL_MAGIC)),
        ("commit", Slot { vote: None, ..slot }.encode(COMMIT_MAGIC)),
        ("empty", vec![0; COVERED_BYTES + 4]),
    ];
    let mend = |bytes: &mut [u8]| set_crc(bytes, COVERED_BYTES, 0..COVERED_BYTES);
    Target { name: "slot", corpus: &corpus, examples, mend }.run(|bytes| {
        // Slots are read from a page: never fewer bytes.
        let mut page = bytes.to_vec();
        page.resize(COVERED_BYTES + 4, 0);
        [CONTROL_MAGIC, COMMIT_MAGIC].into_iter().any(|magic| Slot::decode(&page, magic).is_ok())
    });
}

#[test]
fn identities_of_any_bytes_are_answered() {
    let identity = Identity {
        cluster: "cluster".to_owned(),
        group: "größe".to_owned(),
        node: NodeId(3),
        incarnation: Incarnation(1 << 40),
        origin: Origin::Undecided,
        promised: BTreeMap::new(),
        given_up: 0,
    };
    let promised = [(NodeId(1), Incarnation(7)), (NodeId(2), Incarnation(8))].into();
    let founder = Identity { origin: Origin::Founder, promised, ..identity.clone() };
    let given_up = Identity { given_up: 2, ..founder.clone() };
    let corpus = corpus("identity");
    let examples = vec![("usual", identity.encode()), ("founder", founder.encode()), ("given-up", given_up.encode())];
    let mend = |bytes: &mut [u8]| {
        if bytes.len() > 20 {
            let body = (bytes.len() - 20) as u32;
            bytes[12..16].copy_from_slice(&body.to_le_bytes());
        }
        set_last_crc(bytes);
    };
    Target { name: "identity", corpus: &corpus, examples, mend }
        .run(|bytes| Identity::decode(Bytes::copy_from_slice(bytes)).is_ok());
}

#[test]
fn checkpoints_and_members_of_any_bytes_are_answered() {
    let checkpoint = checkpoint_of(EntryId::new(4, 99), Bytes::from_static(b"the state"));
    let corpus_of_checkpoints = corpus("checkpoint");
    let examples = vec![("on-demand", checkpoint.encode())];
    Target { name: "checkpoint", corpus: &corpus_of_checkpoints, examples, mend: |bytes| set_last_crc(bytes) }.run(
        |bytes| {
            let decoded = Checkpoint::decode(Bytes::copy_from_slice(bytes));
            decoded.is_ok_and(|checkpoint| decode_membership(checkpoint.members).is_ok())
        },
    );
    let three = [
        &[1_u8, 1, 0, 0, 0, 2, 0, 0, 0][..],
        &1_u64.to_le_bytes(),
        &2_u64.to_le_bytes(),
        &[2, 0, 0, 0],
        &1_u64.to_le_bytes(),
        &2_u64.to_le_bytes(),
    ]
    .concat();
    let corpus = corpus("members");
    let examples = vec![("none", checkpoint.members.to_vec()), ("two", three)];
    Target { name: "members", corpus: &corpus, examples, mend: |_| {} }
        .run(|bytes| decode_membership(Bytes::copy_from_slice(bytes)).is_ok());
}

/// The header and the entries that stand behind it get right checksums.
fn mend_lost_tail(bytes: &mut [u8]) {
    set_crc(bytes, 48, 0..48);
    let mut at = 52;
    while at + 28 <= bytes.len() {
        let len = u32::from_le_bytes(*bytes[at + 24..].first_chunk().expect("the length is there")) as usize;
        let end = (at + 28).saturating_add(len);
        set_crc(bytes, end, at..end);
        at = end.saturating_add(4);
    }
}

#[test]
fn lost_tails_of_any_bytes_are_answered() {
    let entry = |index, payload| LostEntry { index: LogIndex(index), term: Term(3), messages: 2, payload };
    let entries = vec![entry(5, Bytes::from_static(b"payload")), entry(7, Bytes::new())];
    let tail = LostTail { node: NodeId(1), messages: 4, entries };
    let examples = vec![("two", tail.encode())];
    let corpus = corpus("lost-tail");
    Target { name: "lost tail", corpus: &corpus, examples, mend: mend_lost_tail }
        .run(|bytes| LostTail::decode(Bytes::copy_from_slice(bytes)).is_ok());
}

#[test]
fn boot_marks_of_any_bytes_are_answered() {
    let examples = boot_mark::examples();
    let corpus = corpus("boot-mark");
    Target { name: "boot mark", corpus: &corpus, examples, mend: set_last_crc }
        .run(|bytes| boot_mark::is_sound(Bytes::copy_from_slice(bytes)));
}

#[test]
fn peer_messages_of_any_bytes_are_answered() {
    use openraft::EntryPayload;
    use openraft::raft::{AppendEntriesRequest, StreamAppendError, VoteRequest};

    use crate::raft::{
        AcquaintanceAnswer, LogId, ParcelId, Proposal, Remembrance, SnapshotAnswer, SnapshotPiece, Verdict, Vote,
    };
    use crate::repair::FetchAnswer;
    use crate::vitals::{Fitness, StateDigest, VitalsAnswer};

    let id = |index| LogId::new_term_index(2, index);
    let entry = |index, payload| crate::raft::Entry { log_id: id(index), payload };
    let append = AppendEntriesRequest {
        vote: Vote::new_committed(2, 1),
        prev_log_id: Some(id(4)),
        entries: vec![
            entry(5, EntryPayload::Blank),
            entry(6, EntryPayload::Normal(Proposal::bare(Bytes::from_static(b"payload")))),
            entry(7, EntryPayload::Membership(crate::raft::Members::default())),
        ],
        leader_commit: Some(id(4)),
    };
    let vote = VoteRequest { vote: Vote::new(3, 2), last_log_id: Some(id(9)), leadership_transfer: false };
    let mark = DurableMark { term: Term(2), index: LogIndex(7) };
    let recovering = HoldAnswer { recovers: true, last: None };
    let leading = HoldAnswer { recovers: false, last: Some(EntryId::new(2, 7)) };
    let piece = SnapshotPiece {
        vote: Vote::new_committed(2, 1),
        meta: Default::default(),
        id: ParcelId { bytes: 9000, crc: 77 },
        offset: 4000,
        bytes: Bytes::from_static(b"piece"),
    };
    let answer = SnapshotAnswer { vote: Vote::new(1, 2), is_done: false, next: 4005 };
    let known = |verdict| {
        let (durable, contact) = (Some(EntryId::new(2, 7)), "a:1 b:2".to_owned());
        encode(PeerMessage::AcquaintanceAnswer(AcquaintanceAnswer { verdict, is_newcomer: true, durable, contact }))
            .to_vec()
    };
    let remembered = Remembrance { term: Term(2), index: LogIndex(7) };
    let record = Record { id: EntryId::new(2, 7), kind: RecordKind::Normal, payload: Bytes::from_static(b"payload") };
    let digest = StateDigest { index: LogIndex(4096), version: 1, digest: 1 << 100 };
    let vitals = VitalsAnswer { fitness: Fitness::Reluctant, wall_ms: 1 << 40, digests: vec![digest] };
    let examples = vec![
        ("durable-mark", encode(PeerMessage::DurableMark(mark)).to_vec()),
        ("hold-question", encode(PeerMessage::HoldQuestion).to_vec()),
        ("hold-recovering", encode(PeerMessage::HoldAnswer(recovering)).to_vec()),
        ("hold-leading", encode(PeerMessage::HoldAnswer(leading)).to_vec()),
        ("append", encode(PeerMessage::AppendRequest(append)).to_vec()),
        ("vote", encode(PeerMessage::VoteRequest(vote)).to_vec()),
        ("conflict", encode(PeerMessage::AppendResponse(Err(StreamAppendError::Conflict(id(3))))).to_vec()),
        ("snapshot-piece", encode(PeerMessage::SnapshotPiece(piece)).to_vec()),
        ("stranger", known(Verdict::Stranger { known: Incarnation(1 << 40) })),
        ("remembered", known(Verdict::Remembered(remembered))),
        ("fetch-answer", encode(PeerMessage::FetchAnswer(FetchAnswer::Entries(vec![record]))).to_vec()),
        ("vitals-answer", encode(PeerMessage::VitalsAnswer(vitals)).to_vec()),
        ("snapshot-answer", encode(PeerMessage::SnapshotAnswer(answer)).to_vec()),
    ];
    let mend = |bytes: &mut [u8]| {
        // Behind the stamp, which tells by its own checksum when it is damaged.
        let Some(bytes) = bytes.get_mut(STAMP_BYTES..) else { return };
        if bytes.len() >= 16 {
            let body = (bytes.len() - 16) as u32;
            bytes[12..16].copy_from_slice(&body.to_le_bytes());
            let end = bytes.len();
            set_crc(bytes, 4, 8..end);
        }
    };
    let corpus = corpus("peer-message");
    Target { name: "peer message", corpus: &corpus, examples, mend }
        .run(|bytes| decode(Bytes::copy_from_slice(bytes)).is_ok());
}
