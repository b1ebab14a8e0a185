//! The page of orders that a harness writes and the shim in a process reads: numbers at fixed places.
//!
//! ```text
//!   byte   what                                                   who writes
//!   0      magic                                                  harness, once
//!   8      error number that writes below the data folder answer  harness
//!   16     error number that syncs answer                         harness
//!   24     syncs that still pass before the error                 harness, counted down by the shim
//!   32     syncs that fail then; 0 without end                    harness
//!   40     every sync takes so long more, microseconds            harness
//!   48     syncs answer well and do nothing (1)                   harness
//!   56     free bytes of the file system, as told, + 1; 0: true   harness
//!   64     wall clock: offset, nanoseconds (signed)               harness
//!   72     wall clock: drift, parts per million (signed)          harness
//!   80     drift counts from here, nanoseconds of the monotonic clock; 0: from the first look on
//!   128    writes refused                                         shim
//!   136    syncs refused, delayed or left out                     shim
//!   144    looks at a shifted clock                               shim
//! ```
//!
//! All numbers are 8 bytes, little endian. This file is compiled into both sides.

/// Size of the page.
pub const PAGE_BYTES: usize = 4_096;
/// First 8 bytes.
pub const MAGIC: u64 = 0x464c_4f54_5348_494d;
/// Names the page's file to the process.
pub const PAGE_VARIABLE: &str = "FLOTILLA_SHIM_PAGE";
/// Names the file that is read in place of the system's own id of the boot.
pub const BOOT_VARIABLE: &str = "FLOTILLA_SHIM_BOOT";
/// Names the folder whose files may be hurt.
pub const DATA_VARIABLE: &str = "FLOTILLA_SHIM_DATA";

/// See the module's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
#[allow(missing_docs, reason = "the module's table says what each is")]
pub enum Place {
    Magic = 0,
    WriteErrno = 8,
    SyncErrno = 16,
    SyncsPass = 24,
    SyncsFail = 32,
    SyncDelayUs = 40,
    SyncLies = 48,
    FreeBytesPlusOne = 56,
    ClockOffsetNs = 64,
    ClockDriftPpm = 72,
    ClockDriftSinceNs = 80,
    WritesHurt = 128,
    SyncsHurt = 136,
    ClockLooks = 144,
}
