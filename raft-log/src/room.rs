//! Whether the log may still grow: answers proposals before `append` ever meets a full disk.
//!
//! A segment is prepared ahead of its need. When the quota or the file system leaves no room for the next one, the log
//! is *blocked*: what is left of the tail file is then shared out among proposals in flight, and the rest are refused.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use flotilla_runtime::Instant;

use crate::FullReason;
use crate::segment::record_bytes;

/// Kept for the core's own entries (blank, membership).
const RESERVE_BYTES: u64 = 8 * 1024;
/// A blocked log looks again after this time.
const RECHECK: Duration = Duration::from_secs(1);

/// Limits and counters of one log's space.
pub(crate) struct Room {
    data_bytes_max: Option<u64>,
    disk_free_bytes_min: u64,
    /// Bytes of all segment files, the prepared one included.
    files_bytes: AtomicU64,
    /// Bytes left in the tail file.
    tail_left: AtomicU64,
    /// Record bytes of proposals that may still be appended.
    in_flight: AtomicU64,
    blocked: Mutex<Option<(FullReason, Instant)>>,
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
    pub(crate) fn new(data_bytes_max: Option<u64>, disk_free_bytes_min: u64) -> Room {
        Room {
            data_bytes_max,
            disk_free_bytes_min,
            files_bytes: AtomicU64::new(0),
            tail_left: AtomicU64::new(0),
            in_flight: AtomicU64::new(0),
            blocked: Mutex::new(None),
        }
    }

    pub(crate) fn file_added(&self, bytes: u64) {
        self.files_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn file_removed(&self, bytes: u64) {
        self.files_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(crate) fn set_tail_left(&self, bytes: u64) {
        self.tail_left.store(bytes, Ordering::Relaxed);
    }

    /// Whether a file of `bytes` may be made, given the file system's free bytes.
    pub(crate) fn admits_file(&self, bytes: u64, free_bytes: u64) -> Result<(), FullReason> {
        let files_bytes = self.files_bytes.load(Ordering::Relaxed) + bytes;
        if let Some(bytes_max) = self.data_bytes_max
            && files_bytes > bytes_max
        {
            return Err(FullReason::Quota { bytes: files_bytes, bytes_max });
        }
        let free_after = free_bytes.saturating_sub(bytes);
        if free_after < self.disk_free_bytes_min || bytes > free_bytes {
            return Err(FullReason::DiskFree { free_bytes: free_after, free_bytes_min: self.disk_free_bytes_min });
        }
        Ok(())
    }

    /// `None` opens the log again.
    pub(crate) fn set_blocked(&self, reason: Option<FullReason>, now: Instant) {
        let mut blocked = self.blocked.lock().expect("room lock is never poisoned: no code panics while holding it");
        if let Some(reason) = reason
            && blocked.is_none()
        {
            tracing::warn!(%reason, "no room for another segment");
        }
        *blocked = reason.map(|reason| (reason, now));
    }

    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked.lock().expect("room lock is never poisoned: no code panics while holding it").is_some()
    }

    /// True once in a while when blocked: time to look at the disk again.
    pub(crate) fn recheck_due(&self, now: Instant) -> bool {
        let mut blocked = self.blocked.lock().expect("room lock is never poisoned: no code panics while holding it");
        match blocked.as_mut() {
            Some((_, since)) if now.saturating_since(*since) >= RECHECK => {
                *since = now;
                true
            }
            _ => false,
        }
    }

    /// Room for a proposal, held as long as the claim lives.
    pub(crate) fn claim(&self, payload_bytes: usize) -> Result<Claim<'_>, FullReason> {
        let bytes = record_bytes(payload_bytes);
        let in_flight = self.in_flight.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let claim = Claim { room: self, bytes };
        let blocked = self.blocked.lock().expect("room lock is never poisoned: no code panics while holding it");
        match *blocked {
            Some((reason, _)) if in_flight + RESERVE_BYTES > self.tail_left.load(Ordering::Relaxed) => Err(reason),
            _ => Ok(claim),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blocked_log_shares_out_what_is_left_and_then_refuses() {
        let room = Room::new(Some(3000), 100);
        room.file_added(2000);
        assert_eq!(room.admits_file(1001, 1 << 40), Err(FullReason::Quota { bytes: 3001, bytes_max: 3000 }));
        assert_eq!(room.admits_file(1000, 1050), Err(FullReason::DiskFree { free_bytes: 50, free_bytes_min: 100 }));
        assert_eq!(room.admits_file(1000, 1100), Ok(()));
        let now = Instant::from_nanos(0);
        room.set_tail_left(RESERVE_BYTES + 100);
        assert!(room.claim(1 << 20).is_ok(), "as long as the next segment can be made the tail is no limit");
        room.set_blocked(Some(FullReason::Quota { bytes: 3001, bytes_max: 3000 }), now);
        let first = room.claim(60).unwrap();
        assert!(room.claim(10).is_err(), "the first proposal claims nearly all that is left");
        drop(first);
        assert!(room.claim(60).is_ok());
        assert!(!room.recheck_due(now));
        assert!(room.recheck_due(now + RECHECK) && !room.recheck_due(now + RECHECK));
        room.set_blocked(None, now);
        assert!(room.claim(1 << 20).is_ok());
    }
}
