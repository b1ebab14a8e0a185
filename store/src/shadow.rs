//! What the leader's unapplied entries will come to: queue offsets and duplicates told before their commit.
//!
//! ```text
//!  applied state ── entries appended and not applied yet ──▶ what the next send gets
//!                   (sequenced by the code that `apply` runs, over an overlay)
//! ```
//! Nothing is worked out before somebody asks, and nothing is told that is not sure: behind a command that changes topics,
//! or an entry that this has not seen, it waits until that is applied.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use flotilla_message::MessageRef;

use crate::dedup::{Seen, bounded};
use crate::entry_view::{CommandView, EntryView, FramePlace};
use crate::limits::DEDUP_WINDOW_MS;
use crate::producing::{Batch, Sequence, Way, admit, sequence};
use crate::shared::Shared;
use crate::state::State;
use crate::{Command, Outcome, Rejection, StoreReader};

/// One replica's view of the entries of its own reign that are not applied yet.
pub struct Shadow {
    shared: Arc<Shared>,
    /// Taken on the log's own task: never held while entries are read.
    incoming: Mutex<Incoming>,
    work: Mutex<Work>,
}

#[derive(Default)]
struct Incoming {
    term: u64,
    entries: VecDeque<(u64, Bytes)>,
}

#[derive(Default)]
struct Work {
    term: u64,
    rows: VecDeque<Row>,
    /// Last entry that the overlay knows.
    sequenced: u64,
    /// Nothing is sure until this entry is applied.
    unsure_until: u64,
    overlay: Overlay,
}

struct Row {
    index: u64,
    payload: Bytes,
    /// One for each command; `None` for those that are not sends.
    outcomes: Option<Vec<Option<Outcome>>>,
}

/// What unapplied entries add to the state.
#[derive(Default)]
struct Overlay {
    log_time_ms: u64,
    /// The dedup window's time.
    window_ms: u64,
    /// The next offset of a queue, and the last entry that added to it.
    tails: BTreeMap<(u64, u32), (u64, u64)>,
    /// What the dedup window will hold, with the serial number it will have there.
    seen: BTreeMap<u128, (u64, Seen)>,
    seen_order: VecDeque<(u64, u128)>,
    /// Entries that add a delayed message, once for each.
    delayed: VecDeque<u64>,
    halves: VecDeque<u64>,
}

impl std::fmt::Debug for Shadow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shadow").finish_non_exhaustive()
    }
}

const POISON: &str = "shadow lock is never poisoned: no code panics while holding it";

impl Shadow {
    /// A shadow of the state that `store` shows.
    pub fn new(store: &StoreReader) -> Shadow {
        Shadow { shared: store.shared().clone(), incoming: Mutex::default(), work: Mutex::default() }
    }

    fn incoming(&self) -> MutexGuard<'_, Incoming> {
        self.incoming.lock().expect(POISON)
    }

    /// Tells of an entry of this leader that is in its log, in log order. Cheap.
    pub fn appended(&self, index: u64, term: u64, payload: Bytes) {
        let mut incoming = self.incoming();
        if incoming.term != term {
            incoming.entries.clear();
            incoming.term = term;
        }
        incoming.entries.push_back((index, payload));
    }

    /// Tells that everything up to `index` is applied: it is not kept any longer.
    pub fn applied(&self, index: u64) {
        let mut incoming = self.incoming();
        while incoming.entries.front().is_some_and(|(first, _)| *first <= index) {
            incoming.entries.pop_front();
        }
        drop(incoming);
        let mut work = self.work.lock().expect(POISON);
        work.forget(index);
    }

    /// What the sends of the entry at `index` will come to, one for each command of the entry; `None` for commands that are
    /// not sends. `None` altogether if it is applied already, or not sure yet: then the answer comes with its application.
    pub fn predict(&self, index: u64) -> Option<Vec<Option<Outcome>>> {
        let mut work = self.work.lock().expect(POISON);
        {
            let mut incoming = self.incoming();
            if work.term != incoming.term {
                *work = Work { term: incoming.term, ..Work::default() };
            }
            work.rows.extend(incoming.entries.drain(..).map(|(index, payload)| Row { index, payload, outcomes: None }));
        }
        let state = self.shared.read();
        work.forget(state.applied);
        work.run(&state, index);
        let at = work.rows.binary_search_by_key(&index, |row| row.index).ok()?;
        work.rows[at].outcomes.clone()
    }
}

impl Work {
    /// Everything up to `applied` is in the state.
    fn forget(&mut self, applied: u64) {
        while self.rows.front().is_some_and(|row| row.index <= applied) {
            self.rows.pop_front();
        }
    }

    /// Sequences what is not yet, up to `index`.
    fn run(&mut self, state: &State, index: u64) {
        if state.applied < self.unsure_until {
            return;
        }
        if self.unsure_until > 0 || self.sequenced <= state.applied {
            // The state has caught up with all that the overlay knew, or with what it could not know.
            self.unsure_until = 0;
            let (log_time_ms, window_ms) = (state.log_time_ms, state.dedup.now_ms());
            self.overlay = Overlay { log_time_ms, window_ms, ..Overlay::default() };
            self.sequenced = state.applied;
            self.rows.iter_mut().for_each(|row| row.outcomes = None);
        }
        self.overlay.forget(state.applied);
        let (overlay, sequenced, unsure_until) = (&mut self.overlay, &mut self.sequenced, &mut self.unsure_until);
        for row in &mut self.rows {
            if row.index <= *sequenced {
                continue;
            }
            if row.index > index {
                break;
            }
            if row.index != *sequenced + 1 {
                // An entry of somebody else is in between.
                *unsure_until = row.index - 1;
                break;
            }
            let Some(outcomes) = overlay.sequence_entry(state, row.index, &row.payload) else {
                *unsure_until = row.index;
                break;
            };
            row.outcomes = Some(outcomes);
            *sequenced = row.index;
        }
    }
}

impl Overlay {
    /// Everything up to `applied` is in the state.
    fn forget(&mut self, applied: u64) {
        while let Some((index, key)) = self.seen_order.front()
            && *index <= applied
        {
            self.seen.remove(key);
            self.seen_order.pop_front();
        }
        for pending in [&mut self.delayed, &mut self.halves] {
            while pending.front().is_some_and(|index| *index <= applied) {
                pending.pop_front();
            }
        }
        // Looked up with their entry's index, so that old ones do no harm: this only bounds them.
        const TAILS_MAX: usize = 1024;
        if self.tails.len() > TAILS_MAX {
            self.tails.retain(|_, (_, last)| *last > applied);
        }
    }

    /// What the commands of an entry come to; `None` if that is not sure.
    fn sequence_entry(&mut self, state: &State, index: u64, payload: &[u8]) -> Option<Vec<Option<Outcome>>> {
        let entry = EntryView::parse(payload).ok()?;
        let step_ms = entry.log_time_ms.saturating_sub(self.log_time_ms);
        self.log_time_ms += step_ms;
        self.window_ms += bounded(step_ms);
        let mut outcomes = Vec::with_capacity(entry.commands.len());
        for command in &entry.commands {
            let batch = match command {
                CommandView::Produce { topic, queue, frames } => {
                    Batch { index, payload, topic, queue: *queue, frames, check_after_ms: None }
                }
                CommandView::Prepare { topic, queue, check_after_ms, frames } => {
                    Batch { index, payload, topic, queue: *queue, frames, check_after_ms: Some(*check_after_ms) }
                }
                // These make slots only in queues that no client sends to: dead letters, and queues of delayed and of half
                // messages, whose sends have no offset.
                CommandView::Deliver(_)
                | CommandView::DeliverDue { .. }
                | CommandView::EndTransaction { .. }
                | CommandView::CheckTransactions { .. }
                | CommandView::Recall { .. }
                // These make none.
                | CommandView::CreateGroup { .. }
                | CommandView::DeleteGroup { .. }
                | CommandView::Touch { .. }
                | CommandView::Ack { .. }
                | CommandView::ChangeInvisible { .. }
                | CommandView::SetTopicLevel { .. }
                | CommandView::AnsweredEarly { .. }
                | CommandView::Rare(
                    Command::SetOffset { .. }
                    | Command::UpdateGroup { .. }
                    | Command::Redeliver { .. }
                    | Command::Renew { .. }
                    | Command::DeadLetter { .. }
                    | Command::SetTopicRetention { .. }
                    | Command::TrimTopic { .. },
                ) => {
                    outcomes.push(None);
                    continue;
                }
                // Topics and their queues change; and whatever this does not know.
                _ => return None,
            };
            outcomes.push(Some(self.produce(state, &batch)?));
        }
        Some(outcomes)
    }

    fn produce(&mut self, state: &State, batch: &Batch<'_>) -> Option<Outcome> {
        let (delayed, halves) = (state.timers.len() + self.delayed.len(), state.halves.len() + self.halves.len());
        if let Err(rejection) = state.placement.admits(batch.topic) {
            return Some(Outcome::Rejected(rejection));
        }
        match admit(&state.topics, batch, delayed, halves) {
            Ok((_, topic, way)) => {
                let (uid, window_ms) = (topic.uid, self.window_ms);
                let tail = topic.queue(batch.queue).map_or(0, crate::queue::Queue::max);
                let mut ahead = Ahead { state, overlay: self, key: (uid, batch.queue.0), tail, index: batch.index };
                let offsets = sequence(&mut ahead, batch, uid, way, window_ms);
                Some(Outcome::Produced { queue: batch.queue, offsets })
            }
            // Some may be gone by then.
            Err(Rejection::TooManyDelayed | Rejection::TooManyHalves) => None,
            Err(rejection) => Some(Outcome::Rejected(rejection)),
        }
    }
}

/// The state with the overlay over it, for one batch.
struct Ahead<'s> {
    state: &'s State,
    overlay: &'s mut Overlay,
    /// The queue's topic and number.
    key: (u64, u32),
    /// Its end in the state.
    tail: u64,
    index: u64,
}

impl Ahead<'_> {
    /// The serial number that the next message id gets in the dedup window.
    fn next_serial(&self) -> u64 {
        let dedup = &self.state.dedup;
        dedup.first_serial() + dedup.len() as u64 + self.overlay.seen_order.len() as u64
    }

    /// Whether the window still holds it when this entry is applied.
    fn is_held(&self, serial: u64, seen: &Seen) -> bool {
        serial + self.state.dedup.entries_max() as u64 >= self.next_serial()
            && seen.at_ms.saturating_add(DEDUP_WINDOW_MS) > self.overlay.window_ms
    }
}

impl Sequence for Ahead<'_> {
    fn known(&self, key: u128) -> Option<Seen> {
        let (serial, seen) = match self.overlay.seen.get(&key) {
            Some((serial, seen)) => (*serial, seen),
            None => self.state.dedup.place_of(key)?,
        };
        self.is_held(serial, seen).then_some(*seen)
    }

    fn place(&mut self, way: Way, _message: MessageRef, place: &FramePlace) -> u64 {
        match way {
            Way::Queue => {
                let tail = self.overlay.tails.entry(self.key).or_insert((self.tail, 0));
                if tail.1 <= self.state.applied {
                    tail.0 = self.tail;
                }
                let offset = tail.0;
                *tail = (offset + 1, self.index);
                offset
            }
            Way::Delayed => {
                self.overlay.delayed.push_back(self.index);
                place.head.delivery_at_ms().unwrap_or(0)
            }
            Way::Half { .. } => {
                self.overlay.halves.push_back(self.index);
                0
            }
        }
    }

    fn remember(&mut self, seen: Seen) {
        let serial = self.next_serial();
        self.overlay.seen.insert(seen.key, (serial, seen));
        self.overlay.seen_order.push_back((self.index, seen.key));
    }
}
