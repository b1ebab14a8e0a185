//! What tools tell: plain rows, ready to be printed or written as JSON.

use bytes::Bytes;
use serde::Serialize;

/// Everything found in one log's directory.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Examination {
    /// Whose log it is; `None` if that file is missing or damaged.
    pub identity: Option<IdentityRow>,
    /// The vote that counts.
    pub vote: Option<VoteRow>,
    /// The purge mark that counts.
    pub purged: Option<EntryRow>,
    /// The commit mark that counts, a hint.
    pub committed: Option<EntryRow>,
    /// The index of the first entry that is there.
    pub first: u64,
    /// The index after the last entry that is there.
    pub end: u64,
    /// Records that count.
    pub records: u64,
    /// The four slots of the vote file.
    pub slots: Vec<SlotRow>,
    /// Segment files in the order of their making.
    pub segments: Vec<SegmentRow>,
    /// Checkpoints, oldest first.
    pub checkpoints: Vec<CheckpointRow>,
    /// Files that a crash left behind, or that were made ahead: the next start uses or removes them.
    pub leftovers: Vec<String>,
    /// Files that are none of the log's.
    pub foreign_files: Vec<String>,
    /// Everything that is not as it was written.
    pub damages: Vec<Damage>,
}

/// Whose log a directory holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct IdentityRow {
    /// The cluster.
    pub cluster: String,
    /// The group.
    pub group: String,
    /// The replica.
    pub node: u64,
}

/// An entry's identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct EntryRow {
    /// Its term.
    pub term: u64,
    /// Its index.
    pub index: u64,
}

/// A vote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct VoteRow {
    /// The term.
    pub term: u64,
    /// Who got it.
    pub node: u64,
    /// Whether a quorum granted it.
    pub committed: bool,
}

/// One slot of the vote file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SlotRow {
    /// `control 0`, `control 1`, `commit 0` or `commit 1`.
    pub name: &'static str,
    /// Which write it holds; 0 if none.
    pub sequence: u64,
    /// Vote, in control slots.
    pub vote: Option<VoteRow>,
    /// Purge mark in control slots, commit mark in commit slots.
    pub entry: Option<EntryRow>,
    /// The segment file that was the newest, and how many of its bytes were durable.
    pub floor: (u64, u64),
    /// What is wrong with it.
    pub damage: Option<String>,
}

/// What a segment file stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SegmentState {
    /// The newest file, which is written to.
    Tail,
    /// A full or truncated one.
    Sealed,
    /// All of it is purged, or overridden by later files: the next start removes it.
    Dead,
    /// Its header cannot be read.
    Unreadable,
}

/// One segment file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SegmentRow {
    /// Its name.
    pub file: String,
    /// Its number, in the order of making.
    pub sequence: u64,
    /// What it stands for.
    pub state: SegmentState,
    /// Index of its first entry.
    pub first: u64,
    /// Index after the last one that counts.
    pub end: u64,
    /// Lowest and highest term of its records.
    pub terms: Option<(u64, u64)>,
    /// Records that count.
    pub records: u64,
    /// Bytes up to the end of the last one.
    pub used_bytes: u64,
    /// Length of the file.
    pub file_bytes: u64,
    /// How many damages it has.
    pub damages: u64,
}

/// One checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckpointRow {
    /// Its name.
    pub file: String,
    /// The last entry that it holds; `None` if it is damaged.
    pub last: Option<EntryRow>,
    /// `boundary`, `installed` or `on demand`.
    pub origin: Option<&'static str>,
    /// The voters, of each set while members change.
    pub voters: Vec<Vec<u64>>,
    /// Length of the machine's state.
    pub state_bytes: u64,
    /// Length of the file.
    pub file_bytes: u64,
    /// What is wrong with it.
    pub damage: Option<String>,
}

/// One record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RecordRow {
    /// Its index.
    pub index: u64,
    /// Its term.
    pub term: u64,
    /// `blank`, `membership` or `proposal`.
    pub kind: &'static str,
    /// Length of its payload.
    pub payload_bytes: u64,
    /// The file it stands in.
    pub file: String,
    /// Where in the file, bytes.
    pub position: u64,
    /// What is wrong with it.
    pub damage: Option<String>,
    /// The voters, if it is a membership.
    pub voters: Vec<Vec<u64>>,
    /// The payload itself.
    #[serde(skip)]
    pub payload: Bytes,
}

/// A place that is not as it was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// The file, by its name.
    pub file: String,
    /// Where in it, bytes.
    pub offset: u64,
    /// What is wrong.
    pub what: String,
}
