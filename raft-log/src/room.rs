//! Whether the log may still grow: answers proposals before `append` ever meets a full disk.
//!
//! A segment is prepared ahead of its need. When the quota or the reserve leaves no room for the next one, the log is
//! *blocked*: what is left of the tail file is shared out among proposals, by class, and the rest are refused.
//!
//! ```text
//! free space of the disk │◀─ reserve ──────────────────────────────────────▶│
//!  segments for data     │ for settlements and retention │ for what a leader │ vote, checkpoints
//! ───────────────────────┼──────────── 1/2 ──────────────┼─ sends ── 1/4 ────┼──────────────────
//! ```

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use flotilla_runtime::Instant;

use crate::FullReason;
use crate::segment::record_bytes;

/// Kept in the tail file for the core's own entries (blank, membership).
const CORE_BYTES: u64 = 8 * 1024;
/// Each class above retention leaves this share of a segment to the classes below it, at most so many bytes.
const CLASS_SHARE: u64 = 32;
const CLASS_BYTES_MAX: u64 = 8 << 20;
/// A blocked log looks again after this time.
pub(crate) const RECHECK: Duration = Duration::from_secs(1);

/// What a proposal is for: who may still write when space runs short.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ProposalClass {
    /// New data: refused first.
    #[default]
    Data,
    /// Settles what is there (acknowledgements, offsets, ends of transactions), so that it can be let go.
    Settlement,
    /// Makes room: trims, and what has to be carried along for that.
    Retention,
}

/// What a segment file is needed for, and so how much of the reserve must stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    Data,
    Settlement,
    /// Entries that must be appended: a leader sent them.
    Append,
}

/// Free and total bytes of the file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DiskSpace {
    pub(crate) free_bytes: u64,
    pub(crate) total_bytes: u64,
}

/// Limits of a log's space, from its settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct RoomLimits {
    pub(crate) segment_bytes: u64,
    pub(crate) data_bytes_max: Option<u64>,
    pub(crate) disk_free_bytes_min: u64,
    pub(crate) disk_free_percent_min: u8,
    pub(crate) disk_free_percent_bytes_max: u64,
}

impl RoomLimits {
    /// Bytes of a file system of that size that data must leave free.
    fn reserve(&self, total_bytes: u64) -> u64 {
        let share = total_bytes / 100 * u64::from(self.disk_free_percent_min);
        self.disk_free_bytes_min.max(share.min(self.disk_free_percent_bytes_max))
    }
}

/// Limits and counters of one log's space.
pub(crate) struct Room {
    limits: RoomLimits,
    /// Bytes of all segment files, the prepared one included.
    files_bytes: AtomicU64,
    /// Bytes left in the tail file.
    tail_left: AtomicU64,
    /// Bytes of a prepared file that was made out of the reserve.
    spare_bytes: AtomicU64,
    /// The tail file was made out of the reserve.
    tail_is_spare: AtomicBool,
    /// Record bytes of proposals that may still be appended.
    in_flight: AtomicU64,
    blocked: Mutex<Option<(FullReason, Instant)>>,
    is_closing: AtomicBool,
}

/// A proposal's claim on the tail file; gone when dropped.
pub(crate) struct Claim<'a> {
    room: &'a Room,
    bytes: u64,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.room.in_flight.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Room {
    pub(crate) fn new(limits: RoomLimits) -> Room {
        Room {
            limits,
            files_bytes: AtomicU64::new(0),
            tail_left: AtomicU64::new(0),
            spare_bytes: AtomicU64::new(0),
            tail_is_spare: AtomicBool::new(false),
            in_flight: AtomicU64::new(0),
            blocked: Mutex::new(None),
            is_closing: AtomicBool::new(false),
        }
    }

    pub(crate) fn segment_bytes(&self) -> u64 {
        self.limits.segment_bytes
    }

    /// Bytes of a file system of that size that data must leave free.
    pub(crate) fn reserve(&self, total_bytes: u64) -> u64 {
        self.limits.reserve(total_bytes)
    }

    pub(crate) fn file_added(&self, bytes: u64) {
        self.files_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn file_removed(&self, bytes: u64) {
        self.files_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Bytes of all segment files, the prepared one included.
    pub(crate) fn files_bytes(&self) -> u64 {
        self.files_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn set_tail_left(&self, bytes: u64) {
        self.tail_left.store(bytes, Ordering::Relaxed);
    }

    /// Notes a prepared file that was made out of the reserve.
    pub(crate) fn spare_made(&self, bytes: u64) {
        self.spare_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Notes that the prepared file became the tail.
    pub(crate) fn spare_used(&self) {
        let was_spare = self.spare_bytes.swap(0, Ordering::Relaxed) > 0;
        self.tail_is_spare.store(was_spare, Ordering::Relaxed);
    }

    fn class_bytes(&self) -> u64 {
        (self.limits.segment_bytes / CLASS_SHARE).min(CLASS_BYTES_MAX)
    }

    /// Little is left of the tail file: time for a spare one.
    pub(crate) fn is_tail_short(&self) -> bool {
        self.tail_left.load(Ordering::Relaxed) < CORE_BYTES + 4 * self.class_bytes()
    }

    /// Whether a file of `bytes` may be made, given the state of the file system.
    pub(crate) fn admits_file(&self, bytes: u64, space: DiskSpace, need: Need) -> Result<(), FullReason> {
        let files_bytes = self.files_bytes.load(Ordering::Relaxed) + bytes;
        if need != Need::Append
            && let Some(bytes_max) = self.limits.data_bytes_max
            && files_bytes > bytes_max
        {
            return Err(FullReason::Quota { bytes: files_bytes, bytes_max });
        }
        let reserve = self.limits.reserve(space.total_bytes);
        let free_bytes_min = match need {
            Need::Data => reserve,
            Need::Settlement => reserve / 2,
            Need::Append => reserve / 4,
        };
        let free_after = space.free_bytes.saturating_sub(bytes);
        if free_after < free_bytes_min || bytes > space.free_bytes {
            return Err(FullReason::DiskFree { free_bytes: free_after, free_bytes_min });
        }
        Ok(())
    }

    fn blocked(&self) -> MutexGuard<'_, Option<(FullReason, Instant)>> {
        self.blocked.lock().expect("room lock is never poisoned: no code panics while holding it")
    }

    /// `None` opens the log again.
    pub(crate) fn set_blocked(&self, reason: Option<FullReason>, now: Instant) {
        let mut blocked = self.blocked();
        match (reason, blocked.is_some()) {
            (Some(reason), false) => tracing::warn!(%reason, "no room for another segment"),
            (None, true) => tracing::info!("there is room for another segment again"),
            _ => {}
        }
        if reason.is_none() {
            self.spare_bytes.store(0, Ordering::Relaxed);
            self.tail_is_spare.store(false, Ordering::Relaxed);
        }
        *blocked = reason.map(|reason| (reason, now));
    }

    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked().is_some()
    }

    /// True once in a while when blocked: time to look at the disk again.
    pub(crate) fn recheck_due(&self, now: Instant) -> bool {
        match self.blocked().as_mut() {
            Some((_, since)) if now.saturating_since(*since) >= RECHECK => {
                *since = now;
                true
            }
            _ => false,
        }
    }

    /// Room for a proposal, held as long as the claim lives.
    pub(crate) fn claim(&self, payload_bytes: usize, class: ProposalClass) -> Result<Claim<'_>, FullReason> {
        let bytes = record_bytes(payload_bytes);
        let in_flight = self.in_flight.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let claim = Claim { room: self, bytes };
        let Some((reason, _)) = *self.blocked() else { return Ok(claim) };
        let tail_left = self.tail_left.load(Ordering::Relaxed);
        let left = match class {
            ProposalClass::Data if self.tail_is_spare.load(Ordering::Relaxed) => 0,
            ProposalClass::Data => tail_left,
            ProposalClass::Settlement | ProposalClass::Retention => {
                tail_left + self.spare_bytes.load(Ordering::Relaxed)
            }
        };
        let kept = CORE_BYTES
            + match class {
                ProposalClass::Data => 2 * self.class_bytes(),
                ProposalClass::Settlement => self.class_bytes(),
                ProposalClass::Retention => 0,
            };
        if in_flight + kept > left { Err(reason) } else { Ok(claim) }
    }

    /// Whoever waits for room gives up from now on.
    pub(crate) fn close(&self) {
        self.is_closing.store(true, Ordering::Release);
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_nanos(0);
    const QUOTA: FullReason = FullReason::Quota { bytes: 3001, bytes_max: 3000 };
    const CLASS: u64 = 2048;

    fn room() -> Room {
        Room::new(RoomLimits { segment_bytes: 64 * 1024, data_bytes_max: Some(3000), ..RoomLimits::default() })
    }

    #[test]
    fn quota_and_reserve_are_counted_with_the_file_that_is_needed_next() {
        let room = Room::new(RoomLimits {
            data_bytes_max: Some(3000),
            disk_free_bytes_min: 100,
            disk_free_percent_min: 10,
            disk_free_percent_bytes_max: 300,
            ..RoomLimits::default()
        });
        room.file_added(2000);
        let space = |free_bytes, total_bytes| DiskSpace { free_bytes, total_bytes };
        assert_eq!(room.admits_file(1001, space(1 << 40, 0), Need::Data), Err(QUOTA));
        assert_eq!(room.admits_file(1001, space(1 << 40, 0), Need::Append), Ok(()), "a leader sent it");
        let short = FullReason::DiskFree { free_bytes: 50, free_bytes_min: 100 };
        assert_eq!(room.admits_file(1000, space(1050, 0), Need::Data), Err(short));
        assert_eq!(room.admits_file(1000, space(1050, 0), Need::Settlement), Ok(()));
        assert_eq!(room.admits_file(1000, space(1100, 1000), Need::Data), Ok(()), "the absolute floor counts");
        let short = FullReason::DiskFree { free_bytes: 100, free_bytes_min: 200 };
        assert_eq!(room.admits_file(1000, space(1100, 2000), Need::Data), Err(short), "the share counts");
        assert_eq!(room.admits_file(1000, space(1100, 2000), Need::Settlement), Ok(()));
        assert_eq!(
            room.admits_file(1000, space(1300, 1 << 30), Need::Data),
            Ok(()),
            "of a large disk so much is enough"
        );
        assert!(room.admits_file(1000, space(1299, 1 << 30), Need::Data).is_err());
        assert!(room.admits_file(1000, space(1049, 2000), Need::Append).is_err());
        assert!(room.admits_file(1000, space(999, 0), Need::Append).is_err());
    }

    #[test]
    fn a_blocked_log_shares_out_what_is_left_and_then_refuses() {
        let room = room();
        room.set_tail_left(CORE_BYTES + 2 * CLASS + 100);
        assert!(
            room.claim(1 << 20, ProposalClass::Data).is_ok(),
            "while the next segment can be made the tail is no limit"
        );
        room.set_blocked(Some(QUOTA), NOW);
        let first = room.claim(60, ProposalClass::Data).unwrap();
        assert!(room.claim(10, ProposalClass::Data).is_err(), "the first proposal claims nearly all that is left");
        drop(first);
        assert!(room.claim(60, ProposalClass::Data).is_ok());
        assert!(!room.recheck_due(NOW));
        assert!(room.recheck_due(NOW + RECHECK) && !room.recheck_due(NOW + RECHECK));
        room.set_blocked(None, NOW);
        assert!(room.claim(1 << 20, ProposalClass::Data).is_ok());
    }

    #[test]
    fn settlements_go_on_when_data_is_refused_and_retention_longest() {
        let room = room();
        let may = |class| room.claim(60, class).is_ok();
        let all = [ProposalClass::Data, ProposalClass::Settlement, ProposalClass::Retention];
        room.set_blocked(Some(QUOTA), NOW);
        room.set_tail_left(CORE_BYTES + CLASS + 100);
        assert_eq!(all.map(may), [false, true, true]);
        room.set_tail_left(CORE_BYTES + 100);
        assert_eq!(all.map(may), [false, false, true]);
        room.set_tail_left(CORE_BYTES);
        assert_eq!(all.map(may), [false, false, false]);
        // A file out of the reserve is for settlements, before and after it becomes the tail.
        room.spare_made(1 << 20);
        assert_eq!(all.map(may), [false, true, true]);
        room.spare_used();
        room.set_tail_left(1 << 20);
        assert_eq!(all.map(may), [false, true, true]);
        room.set_blocked(None, NOW);
        assert_eq!(all.map(may), [true, true, true]);
    }
}
