//! What is known to be damaged now, and the wait for it to be mended.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use flotilla_runtime::BoxFuture;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::segment::DamagedRange;
use crate::{Corruption, DiskFile, LogIndex};

/// Damage of one replica's log. Segments are named by their sequence.
#[derive(Default)]
pub(crate) struct Damages {
    state: Mutex<State>,
    /// Something is to be sealed: each append asks.
    has_to_seal: AtomicBool,
    /// Told at each change.
    news: Notify,
    sealer: OnceLock<Sealer>,
}

/// Has the writer go on in a new file, if it is wanted.
pub(crate) type Sealer = Box<dyn Fn() -> BoxFuture<'static, io::Result<()>> + Send + Sync>;

#[derive(Default)]
struct State {
    /// Read badly once, not examined yet.
    suspects: BTreeMap<u64, Suspect>,
    quarantined: BTreeMap<u64, Vec<DamagedRange>>,
    /// To be sealed with the next append, so that it can be mended.
    to_seal: BTreeSet<u64>,
    found: u64,
    mended: u64,
    /// Nobody else has a copy.
    is_alone: bool,
    is_closing: bool,
}

/// A file that gave wrong bytes to somebody.
#[derive(Clone)]
pub(crate) struct Suspect {
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) corruption: Corruption,
}

/// Counts and places, for status.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DamageCounts {
    pub(crate) entries: u64,
    pub(crate) first: Option<LogIndex>,
    pub(crate) segments: u64,
    pub(crate) found: u64,
    pub(crate) mended: u64,
}

impl Damages {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("damage lock is never poisoned: no code panics while holding it")
    }

    /// A read of `file` met wrong bytes.
    pub(crate) fn suspect(&self, sequence: u64, file: &Arc<dyn DiskFile>, corruption: &Corruption) {
        {
            let mut state = self.state();
            if state.suspects.contains_key(&sequence) || state.quarantined.contains_key(&sequence) {
                return;
            }
            let suspect = Suspect { file: file.clone(), corruption: corruption.clone() };
            state.suspects.insert(sequence, suspect);
        }
        tracing::error!(%corruption, "damage: a record does not read back as it was written");
        self.news.notify_waiters();
    }

    /// Whether this replica's copy of the log has, or may have, a hole.
    pub(crate) fn any(&self) -> bool {
        let state = self.state();
        !state.suspects.is_empty() || !state.quarantined.is_empty()
    }

    pub(crate) fn suspects(&self) -> BTreeMap<u64, Suspect> {
        self.state().suspects.clone()
    }

    pub(crate) fn quarantined(&self) -> BTreeMap<u64, Vec<DamagedRange>> {
        self.state().quarantined.clone()
    }

    /// The suspicion was wrong, or the segment is gone.
    pub(crate) fn acquit(&self, sequence: u64) {
        self.state().suspects.remove(&sequence);
        self.news.notify_waiters();
    }

    /// The segment is damaged there.
    pub(crate) fn quarantine(&self, sequence: u64, ranges: Vec<DamagedRange>) {
        {
            let mut state = self.state();
            state.suspects.remove(&sequence);
            if state.quarantined.insert(sequence, ranges).is_none() {
                state.found += 1;
            }
        }
        self.news.notify_waiters();
    }

    /// The segment is whole again, or gone.
    pub(crate) fn lift(&self, sequence: u64, is_mended: bool) {
        {
            let mut state = self.state();
            state.quarantined.remove(&sequence);
            state.to_seal.remove(&sequence);
            self.note_to_seal(&state);
            state.mended += u64::from(is_mended);
        }
        self.news.notify_waiters();
    }

    /// The damaged segment is the log's last one: the writer is to go on in a new file.
    pub(crate) fn want_sealed(&self, sequence: u64) {
        let mut state = self.state();
        state.to_seal.insert(sequence);
        self.note_to_seal(&state);
    }

    /// From now on the writer can be asked.
    pub(crate) fn set_sealer(&self, sealer: Sealer) {
        // Set once, by the one who owns the writer.
        let _ = self.sealer.set(sealer);
        self.news.notify_waiters();
    }

    /// Has the writer go on in a new file now, where [`Damages::want_sealed`] asks for it. An error if there is no writer yet,
    /// or it failed.
    pub(crate) async fn seal(&self) -> io::Result<()> {
        match self.sealer.get() {
            Some(seal) => seal().await,
            None => Err(io::Error::other("log is still opening")),
        }
    }

    fn note_to_seal(&self, state: &State) {
        self.has_to_seal.store(!state.to_seal.is_empty(), Ordering::Release);
    }

    /// Asked by the writer before each append to the segment.
    pub(crate) fn wants_sealed(&self, sequence: u64) -> bool {
        self.has_to_seal.load(Ordering::Acquire) && self.state().to_seal.contains(&sequence)
    }

    /// True once after it was closed off while it was still written to.
    pub(crate) fn take_wanted_sealed(&self, sequence: u64) -> bool {
        let mut state = self.state();
        let was_wanted = state.to_seal.remove(&sequence);
        self.note_to_seal(&state);
        was_wanted
    }

    pub(crate) fn set_alone(&self) {
        self.state().is_alone = true;
    }

    /// Nobody waits for anything any more.
    pub(crate) fn close(&self) {
        self.state().is_closing = true;
        self.news.notify_waiters();
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.state().is_closing
    }

    /// Something else changed that decides who may lead.
    pub(crate) fn wake(&self) {
        self.news.notify_waiters();
    }

    /// To be enlisted (`enable`) before the look that decides whether to wait.
    pub(crate) fn news(&self) -> Notified<'_> {
        self.news.notified()
    }

    /// Whether waiting for a mended record makes sense; the error tells why not.
    pub(crate) fn check_waiting(&self, corruption: &Corruption) -> io::Result<()> {
        let state = self.state();
        if state.is_closing {
            return Err(io::Error::other("log is closing"));
        }
        if state.is_alone {
            let what = format!(
                "{corruption}; this replica is the only one of its group, so nobody can give the entry back: restore \
                 the file from a copy"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Ok(())
    }

    pub(crate) fn counts(&self) -> DamageCounts {
        let state = self.state();
        let ranges = state.quarantined.values().flatten();
        DamageCounts {
            entries: ranges.clone().map(|range| range.end.0 - range.first.0).sum(),
            first: ranges.map(|range| range.first).min(),
            segments: (state.suspects.len() + state.quarantined.len()) as u64,
            found: state.found,
            mended: state.mended,
        }
    }
}
