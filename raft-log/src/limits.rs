//! The named limits of the log, in one place.

/// Smallest segment file, bytes.
pub const SEGMENT_BYTES_MIN: u64 = 64 * 1024;
/// Largest segment file, bytes: positions within a file fit 32 bits.
pub const SEGMENT_BYTES_MAX: u64 = 4 * 1024 * 1024 * 1024 - 4096;
/// Largest payload of one entry, bytes (smaller still if a segment cannot hold it).
pub const PAYLOAD_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Shortest interval of an async flush, milliseconds.
pub const FLUSH_INTERVAL_MS_MIN: u64 = 1;
/// Longest interval of an async flush, milliseconds.
pub const FLUSH_INTERVAL_MS_MAX: u64 = 60_000;
/// Fewest bytes that may set off an async flush.
pub const FLUSH_BYTES_MIN: u64 = 64 * 1024;
/// Most bytes that may set off an async flush.
pub const FLUSH_BYTES_MAX: u64 = 1 << 30;
