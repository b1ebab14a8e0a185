//! The bounds of the state machine's memory; each has one name and one place where it is checked.

/// Most topics of one broker group, dead-letter topics made on demand not counted.
pub const TOPICS_MAX: usize = 50_000;

/// Most consumer groups of one broker group.
pub const GROUPS_MAX: usize = 50_000;

/// Most messages of one (group, topic, queue) that are delivered and not yet acknowledged. When
/// it is reached, nothing new is granted from that queue until something is acknowledged.
pub const IN_FLIGHT_PER_QUEUE_MAX: usize = 10_000;

/// Most attempt ids remembered of one (group, topic, queue); the oldest goes first.
pub const ATTEMPTS_PER_QUEUE_MAX: usize = 64;

/// Longest attempt id, bytes.
pub const ATTEMPT_ID_BYTES_MAX: usize = 255;

/// Most message ids in the window that finds repeated sends, unless it is set otherwise; the oldest goes first.
pub const DEDUP_ENTRIES_MAX: usize = 200_000;

/// What it may be set to.
pub const DEDUP_ENTRIES_RANGE: std::ops::RangeInclusive<usize> = 1_000..=5_000_000;

/// How long a message id stays in that window, milliseconds of the window's own time.
pub const DEDUP_WINDOW_MS: u64 = 10 * 60 * 1000;

/// The most by which one entry moves the window's time on, milliseconds: log time that jumps by an hour makes nobody forget
/// what was sent a moment ago. In a group at rest ids stay for longer.
pub const DEDUP_STEP_MS_MAX: u64 = 60 * 1000;

/// Most delayed messages that wait at a time; a send beyond is refused.
pub const DELAYED_MAX: usize = 10_000_000;

/// Most half messages at a time, parked ones included; a send beyond is refused.
pub const HALVES_MAX: usize = 1_000_000;

/// Of how many recalls and ended transactions the end is remembered; the oldest goes first.
pub const ENDED_MAX: usize = 100_000;

/// Most commands of one entry.
pub const COMMANDS_PER_ENTRY_MAX: usize = 65_536;

/// Most pauses in the retry table of a group: as many as RocketMQ has levels of delay.
pub const RETRY_PAUSES_MAX: usize = 18;

/// Longest pause in it, milliseconds: 7 days.
pub const RETRY_PAUSE_MS_MAX: u32 = 7 * 24 * 3600 * 1000;
