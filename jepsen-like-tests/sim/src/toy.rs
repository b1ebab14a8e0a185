//! A toy of a state machine: queues as lists in memory, sends deduplicated by message id, a checkpoint in JSON.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use flotilla_checkers::{QueueDump, QueueKey, SlotDump};
use flotilla_raft_log::{Disk, LogIndex, ReplicatedLog, RestoreError, StateMachine, Term};
use flotilla_runtime::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::executor::lock;
use crate::options::Options;
use crate::replica::{Acknowledged, Batch, Model, Placement, Received};
use crate::rng::fnv;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct State {
    applied: u64,
    queues: BTreeMap<u32, Vec<SlotDump>>,
    places: BTreeMap<String, (u32, u64)>,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    queue: u32,
    message_ids: Vec<String>,
    body: String,
}

/// The machine's half.
pub struct ToyMachine {
    state: Arc<Mutex<State>>,
}

impl StateMachine for ToyMachine {
    /// Queue and offset of each message.
    type Output = Vec<(u32, u64)>;

    fn apply(&mut self, index: LogIndex, _term: Term, payload: Bytes) -> Self::Output {
        let mut state = lock(&self.state);
        state.applied = index.0;
        let Ok(entry) = serde_json::from_slice::<Entry>(&payload) else { return Vec::new() };
        let State { queues, places, .. } = &mut *state;
        let place = |(ordinal, message_id): (usize, String)| {
            *places.entry(message_id.clone()).or_insert_with(|| {
                let queue = queues.entry(entry.queue).or_default();
                let offset = queue.len() as u64;
                queue.push(SlotDump { offset, message_id, log_index: index.0, ordinal: ordinal as u32 });
                (entry.queue, offset)
            })
        };
        entry.message_ids.into_iter().enumerate().map(place).collect()
    }

    fn segment_started(&mut self, _first: LogIndex) -> io::Result<()> {
        Ok(())
    }

    fn checkpoint(&self) -> Vec<u8> {
        serde_json::to_vec(&*lock(&self.state)).expect("the toy's state has string keys")
    }

    fn restore(&mut self, checkpoint: &[u8], applied: LogIndex) -> Result<(), RestoreError> {
        let mut state: State = serde_json::from_slice(checkpoint).map_err(|error| RestoreError(error.to_string()))?;
        state.applied = applied.0;
        *lock(&self.state) = state;
        Ok(())
    }
}

/// The reader's half.
pub struct Toy {
    state: Arc<Mutex<State>>,
    queues: Vec<QueueKey>,
}

impl Model for Toy {
    type Output = Vec<(u32, u64)>;
    type Machine = ToyMachine;

    fn open(
        _disk: Arc<dyn Disk>,
        _dir: &Path,
        queues: &[QueueKey],
        _options: &Options,
    ) -> Result<(ToyMachine, Toy), String> {
        let state = Arc::new(Mutex::new(State::default()));
        Ok((ToyMachine { state: state.clone() }, Toy { state, queues: queues.to_vec() }))
    }

    fn found(&self, _log_time_ms: u64, _term: u64) -> Bytes {
        Bytes::new()
    }

    fn encode(&self, batch: &Batch, _log_time_ms: u64, _term: u64) -> Bytes {
        let body = "x".repeat(batch.body_bytes * batch.message_ids.len());
        let entry = Entry { queue: batch.queue.queue, message_ids: batch.message_ids.clone(), body };
        serde_json::to_vec(&entry).expect("an entry has string keys").into()
    }

    fn places(&self, batch: &Batch, output: Self::Output) -> Placement {
        let topic = &batch.queue.topic;
        let places: Vec<_> = output.into_iter().map(|(queue, offset)| (QueueKey::new(topic, queue), offset)).collect();
        assert_eq!(places.len(), batch.message_ids.len(), "the toy stores every entry that it made itself");
        Placement::Placed(places)
    }

    fn deliver(
        &self,
        _queue: &QueueKey,
        _attempt_id: String,
        _log_time_ms: u64,
        _term: u64,
        _invisible: Duration,
    ) -> Option<Bytes> {
        None
    }

    fn received(
        &self,
        _log: &ReplicatedLog<Self::Output>,
        _queue: &QueueKey,
        _output: Self::Output,
    ) -> Result<Vec<Received>, String> {
        Ok(Vec::new())
    }

    fn acknowledge(&self, _received: &[Received], _log_time_ms: u64, _term: u64) -> Bytes {
        Bytes::new()
    }

    fn acknowledged(&self, _output: Self::Output) -> Acknowledged {
        Acknowledged::NotAll
    }

    fn log_time_ms(&self) -> u64 {
        0
    }

    fn is_founded(&self) -> bool {
        true
    }

    fn read(
        &self,
        _log: &ReplicatedLog<Self::Output>,
        queue: &QueueKey,
        last: Option<u64>,
    ) -> Result<QueueDump, String> {
        let state = lock(&self.state);
        let slots = state.queues.get(&queue.queue).cloned().unwrap_or_default();
        let from = last.map_or(0, |last| slots.len().saturating_sub(last as usize));
        Ok(QueueDump { queue: queue.clone(), offset_min: 0, slots: slots[from..].to_vec() })
    }

    fn queues(&self) -> &[QueueKey] {
        &self.queues
    }

    fn digest(&self) -> (u64, String) {
        let state = lock(&self.state);
        let mut hash = crate::rng::FNV_START;
        for slot in state.queues.values().flatten() {
            hash = hash.rotate_left(7) ^ fnv(slot.message_id.as_bytes()) ^ slot.offset ^ (slot.log_index << 20);
        }
        (state.applied, format!("{hash:016x}"))
    }

    fn failed(&self) -> BoxFuture<'static, String> {
        Box::pin(std::future::pending())
    }
}
