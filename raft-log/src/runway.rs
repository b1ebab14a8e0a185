//! The zero-filled stretch ahead of a log's tail: writes there change content only, which is what a quick sync needs.
//!
//! ```text
//!  written by the log │ zeroed and synced: the runway │ reserved only
//! ────────────────────┼───────────────────────────────┼──────────────▶
//!                     tail                            ready_to
//! ```
//! It is filled in the background, piece by piece: the file that comes next to its end, the tail's own only as far as needed. Who fills and who appends never write the same byte: an append goes
//! below `ready_to`, or waits until nobody fills and moves `ready_to` behind itself.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use flotilla_runtime::Runtime;
use tokio::sync::Notify;

use crate::disk::DiskFile;

/// The runway is filled up to this length, bytes.
const AHEAD_BYTES: u64 = 32 << 20;
/// It is filled again once it is shorter than this.
const LOW_BYTES: u64 = AHEAD_BYTES / 2;
/// Zeroes are written and synced in pieces of this many bytes: what a sync of the log may find in its way at most.
const PIECE_BYTES: u64 = 4 << 20;

/// The runway of one file; shared by who appends and who fills.
pub(crate) struct Runway {
    file: Arc<dyn DiskFile>,
    ready_to: AtomicU64,
    is_filling: Mutex<bool>,
    /// An append had to wait: whoever fills must not take his time any more.
    is_outrun: AtomicBool,
    moved: Notify,
}

/// The right to fill a runway; there is one at a time.
pub(crate) struct Filling {
    runway: Arc<Runway>,
    end: u64,
}

const POISON: &str = "runway lock is never poisoned: no code panics while holding it";

impl Runway {
    /// A file with nothing worth keeping from `ready_to` on.
    pub(crate) fn new(file: Arc<dyn DiskFile>, ready_to: u64) -> Arc<Runway> {
        let ready_to = AtomicU64::new(ready_to);
        Arc::new(Runway {
            file,
            ready_to,
            is_filling: Mutex::new(false),
            is_outrun: AtomicBool::new(false),
            moved: Notify::new(),
        })
    }

    pub(crate) fn file(&self) -> &Arc<dyn DiskFile> {
        &self.file
    }

    /// Whether a write up to `end` meets zeroes that are on disk.
    pub(crate) fn reaches(&self, end: u64) -> bool {
        self.ready_to.load(Ordering::Acquire) >= end
    }

    /// The right to fill, if the tail at `position` has little left before it and nobody is at it.
    pub(crate) fn begin(self: &Arc<Runway>, position: u64) -> Option<Filling> {
        let ready_to = self.ready_to.load(Ordering::Acquire);
        if ready_to >= self.file.len() || ready_to.saturating_sub(position) >= LOW_BYTES {
            return None;
        }
        self.begin_to(position.saturating_add(AHEAD_BYTES).min(self.file.len()))
    }

    /// The right to fill all of the file, if nobody is at it. For a file that is not the tail yet: there it disturbs no sync of
    /// the log, whatever it costs the file system to book the blocks as written.
    pub(crate) fn begin_all(self: &Arc<Runway>) -> Option<Filling> {
        self.begin_to(self.file.len())
    }

    fn begin_to(self: &Arc<Runway>, end: u64) -> Option<Filling> {
        let mut is_filling = self.is_filling.lock().expect(POISON);
        if std::mem::replace(&mut *is_filling, true) {
            return None;
        }
        Some(Filling { runway: self.clone(), end })
    }

    /// Makes sure that nobody fills below `end` any more. Waits only for pieces that are being written.
    pub(crate) async fn claim(&self, end: u64) {
        while !self.reaches(end) {
            let moved = self.moved.notified();
            let mut moved = std::pin::pin!(moved);
            moved.as_mut().enable();
            if self.claim_now(end) {
                return;
            }
            self.is_outrun.store(true, Ordering::Relaxed);
            moved.await;
        }
    }

    fn claim_now(&self, end: u64) -> bool {
        let is_filling = self.is_filling.lock().expect(POISON);
        if !*is_filling {
            // Nobody can begin before the lock is let go; whoever does begins behind `end`.
            self.ready_to.fetch_max(end, Ordering::AcqRel);
        }
        self.reaches(end)
    }
}

impl Filling {
    /// Writes all the zeroes; blocks.
    pub(crate) fn fill(mut self) -> io::Result<()> {
        while self.fill_piece()? {}
        Ok(())
    }

    /// Writes one piece; blocks. False when there is nothing left to write.
    pub(crate) fn fill_piece(&mut self) -> io::Result<bool> {
        let at = self.runway.ready_to.load(Ordering::Acquire);
        if at >= self.end {
            return Ok(false);
        }
        let piece = PIECE_BYTES.min(self.end - at);
        self.runway.file.zero_ahead(at, piece)?;
        self.runway.ready_to.store(at + piece, Ordering::Release);
        self.runway.moved.notify_waiters();
        Ok(true)
    }

    /// Writes all the zeroes, and rests after each piece as long as it took, so that the log's own writes come first. Ends early
    /// once `is_over`.
    pub(crate) async fn fill_gently(mut self, runtime: &Runtime, is_over: impl Fn() -> bool) -> io::Result<()> {
        loop {
            let began = runtime.now();
            let (filling, more) = runtime
                .blocking(move || {
                    let more = self.fill_piece();
                    (self, more)
                })
                .await;
            self = filling;
            if !more? || is_over() {
                return Ok(());
            }
            if !self.runway.is_outrun.load(Ordering::Relaxed) {
                runtime.sleep(runtime.now().saturating_since(began)).await;
            }
        }
    }
}

impl Drop for Filling {
    fn drop(&mut self) {
        *self.runway.is_filling.lock().expect(POISON) = false;
        self.runway.moved.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Disk;
    use crate::testing::{CrashDisk, StepRuntime};

    const LEN: u64 = 64 << 20;

    fn runway() -> Arc<Runway> {
        let file = CrashDisk::new(1).create(std::path::Path::new("/file"), LEN).unwrap();
        Runway::new(file, 4096)
    }

    #[test]
    fn it_is_filled_again_when_half_of_it_is_used_and_ends_with_the_file() {
        let runway = runway();
        runway.begin(4096).expect("nothing is ready yet").fill().unwrap();
        assert!(runway.reaches(4096 + AHEAD_BYTES) && !runway.reaches(4097 + AHEAD_BYTES));
        assert!(runway.begin(4096 + LOW_BYTES).is_none(), "half of it is left");
        let filling = runway.begin(4097 + LOW_BYTES).unwrap();
        assert!(runway.begin(4097 + LOW_BYTES).is_none(), "one fills at a time");
        filling.fill().unwrap();
        runway.begin(LEN - 10).unwrap().fill().unwrap();
        assert!(runway.reaches(LEN) && runway.begin(LEN).is_none());
    }

    #[test]
    fn an_append_never_meets_who_fills() {
        let (runway, runtime) = (runway(), StepRuntime::default());
        runtime.block_on(runway.claim(8192));
        assert!(runway.reaches(8192), "nobody fills: the append goes first");
        let filling = runway.begin(8192).unwrap();
        let (appending, claimed) = (runway.clone(), Arc::new(Mutex::new(false)));
        let told = claimed.clone();
        let task = runtime.handle().spawn("append", async move {
            appending.claim(12288).await;
            *told.lock().unwrap() = true;
        });
        runtime.run();
        assert!(!*claimed.lock().unwrap(), "it waits for the piece in the making");
        filling.fill().unwrap();
        runtime.run();
        assert!(*claimed.lock().unwrap() && runway.reaches(8192 + AHEAD_BYTES));
        drop(task);
    }
}
