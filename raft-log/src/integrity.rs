//! How sound a replica's copy of the log is, as it knows itself.

use std::collections::BTreeMap;

use crate::{LogIndex, NodeId};

/// A replica's knowledge of its own soundness.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Integrity {
    /// Entries that cannot be read here now.
    pub damaged_entries: u64,
    /// The first of them.
    pub damaged_first: Option<LogIndex>,
    /// Segments with damage, or under suspicion.
    pub damaged_segments: u64,
    /// Damaged segments found since the start.
    pub damages_found_total: u64,
    /// Segments made whole again since the start.
    pub damages_mended_total: u64,
    /// It knows no reason not to lead: no damage, and no quorum that contradicts its clock.
    pub is_fit_to_lead: bool,
    /// How often it gave leadership away by itself for one of these reasons since the start, and how often nobody took it.
    pub hand_overs_done_total: u64,
    /// See `hand_overs_done_total`.
    pub hand_overs_failed_total: u64,
    /// A quorum's wall clocks contradict this one's.
    pub is_clock_off: bool,
    /// Replicas differ in their state, in words.
    pub state_alarm: Option<String>,
    /// Voters that did not answer this replica's last question, with the reason. Asked every 5 s.
    pub unreached: BTreeMap<NodeId, String>,
    /// The scrub.
    pub scrub: ScrubProgress,
}

/// How far the scrub of sealed segments is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ScrubProgress {
    /// Whether a pass is under way.
    pub is_running: bool,
    /// Passes over everything since the start.
    pub passes_total: u64,
    /// Bytes looked at since the start.
    pub bytes_total: u64,
    /// Segments looked at in the pass under way, or in the last one.
    pub segments_done: u64,
    /// Segments of that pass.
    pub segments: u64,
    /// Damaged segments that the scrub found since the start.
    pub findings_total: u64,
    /// When the last pass ended, ms since 1970 by this replica's clock; 0 before the first.
    pub last_ended_wall_ms: u64,
}
