//! Fills the index of keys in the background: each replica its own, from its own log. It looks at the queues that grew, not at
//! all of them: a group with many topics costs nothing at rest.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use flotilla_message::{FrameView, QueueId, QueueOffset, TopicName};
use flotilla_raft_log::Disk;
use flotilla_store::TopicInfo;
use flotilla_store::key_index::{KeyIndex, KeyText, KeyedMessage};

use crate::admin::messages::ReadError;
use crate::consume::frames::Frames;
use crate::replica::Replica;
use crate::start_error::StartError;

/// Pause between two passes over the queues.
const PASS_PAUSE: Duration = Duration::from_secs(1);
/// How often files are looked for that speak of nothing that is still there.
const SWEEP_PASSES: u32 = 60;
/// Messages read at once.
const CHUNK: usize = 256;
/// Messages a second while the log grows: consumers and producers come first.
const BUSY_PER_S: u32 = 10_000;
/// Messages a second at rest.
const IDLE_PER_S: u32 = 100_000;

/// The queues that grew since they were last looked at.
#[derive(Debug, Default)]
pub struct GrownQueues {
    grown: Mutex<Grown>,
}

#[derive(Debug, Default)]
struct Grown {
    queues: BTreeMap<TopicName, BTreeSet<u32>>,
    /// Anything may have grown.
    all: bool,
}

impl GrownQueues {
    /// Notes one. Cheap; at most one row a queue.
    pub fn note(&self, topic: &TopicName, queue: QueueId) {
        let mut grown = self.grown.lock().unwrap_or_else(PoisonError::into_inner);
        match grown.queues.get_mut(topic) {
            Some(queues) => drop(queues.insert(queue.0)),
            None => drop(grown.queues.insert(topic.clone(), BTreeSet::from([queue.0]))),
        }
    }

    /// All queues are to be looked at.
    pub fn note_all(&self) {
        self.grown.lock().unwrap_or_else(PoisonError::into_inner).all = true;
    }

    fn take(&self) -> Grown {
        std::mem::take(&mut *self.grown.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Opens the index of a replica that keeps its data in `data_dir`.
pub fn open(disk: &Arc<dyn Disk>, data_dir: &Path) -> Result<Arc<KeyIndex>, StartError> {
    let dir = data_dir.join("keys");
    let told = dir.display().to_string();
    let failed = |error: flotilla_store::StoreError| StartError::Store { dir: told, reason: error.to_string() };
    Ok(Arc::new(KeyIndex::open(disk.clone(), dir).map_err(failed)?))
}

/// What the index keeps of a message.
fn keyed(topic_uid: u64, stored_at_ms: u64, frame: &FrameView) -> KeyedMessage {
    let keys = frame.keys().map(|key| KeyText::Key(key).hash(topic_uid));
    let hashes = keys.chain([KeyText::Id(frame.id()).hash(topic_uid)]).collect();
    KeyedMessage { stored_at_ms, hashes }
}

/// Goes on for ever. What cannot be read or written is left out: a lookup reads it itself.
pub async fn index_keys(replica: Arc<Replica>) {
    replica.grown_queues.note_all();
    for pass in 1u32.. {
        replica.runtime.sleep(PASS_PAUSE).await;
        let Grown { queues, all } = replica.grown_queues.take();
        if all {
            for topic in replica.store.topics() {
                index_queues(&replica, &topic, 0..topic.queue_count).await;
            }
        } else {
            for (name, queues) in queues {
                if let Some(topic) = replica.store.topic(&name) {
                    index_queues(&replica, &topic, queues).await;
                }
            }
        }
        if pass % SWEEP_PASSES == 0 {
            sweep(&replica);
        }
    }
}

/// What is not indexed of the queues; those that could not be read are looked at again.
async fn index_queues(replica: &Replica, topic: &TopicInfo, queues: impl IntoIterator<Item = u32>) {
    let mut frames = Frames::new(replica);
    for queue in queues {
        let indexed = index_queue(replica, topic, queue, &mut frames).await;
        if let Err(error) = &indexed {
            tracing::debug!(topic = %topic.name, queue, ?error, "keys of a queue are not indexed yet");
        }
        if indexed.is_err() || replica.keys.is_stuck() {
            replica.grown_queues.note(&topic.name, QueueId(queue));
        }
    }
}

async fn index_queue(
    replica: &Replica,
    topic: &TopicInfo,
    queue: u32,
    frames: &mut Frames<'_>,
) -> Result<(), ReadError> {
    let bounds = replica.store.queue_bounds(&topic.name, QueueId(queue));
    if let Some((min, max)) = bounds {
        while let Some(gap) = replica.keys.gap(topic.uid, queue, min.0..max.0) {
            let count = CHUNK.min(usize::try_from(gap.end - gap.start).unwrap_or(CHUNK));
            let before = replica.store.applied();
            let slots = replica.store.slots(&topic.name, QueueId(queue), QueueOffset(gap.start), count);
            let slots = slots.map_err(ReadError::Store)?;
            // Neighbours from the gap's beginning on: else retention has been here meanwhile, or another life of the topic.
            let still = replica.store.topic(&topic.name).is_some_and(|info| info.uid == topic.uid);
            if !still || slots.first().is_none_or(|(offset, _)| offset.0 != gap.start) {
                break;
            }
            let mut messages = Vec::with_capacity(slots.len());
            for (_, slot) in &slots {
                let frame = frames.frame(slot).await.map_err(ReadError::Frame)?;
                messages.push(keyed(topic.uid, slot.stored_at_ms, &frame));
            }
            replica.keys.add(topic.uid, queue, gap.start, &messages);
            if replica.keys.is_full() {
                let index = replica.keys.clone();
                if let Err(error) = replica.log.write_beside(move || index.spill().map_err(std::io::Error::other)).await
                {
                    tracing::warn!(%error, "key index file cannot be written yet");
                }
            }
            let per_s = if replica.store.applied() == before { IDLE_PER_S } else { BUSY_PER_S };
            replica.runtime.sleep(Duration::from_secs(1) * messages.len() as u32 / per_s).await;
        }
    }
    Ok(())
}

fn sweep(replica: &Replica) {
    if replica.keys.file_count() == 0 {
        return;
    }
    let topics: std::collections::BTreeMap<u64, TopicInfo> =
        replica.store.topics().into_iter().map(|topic| (topic.uid, topic)).collect();
    let gone = replica.keys.sweep(|topic, queue| {
        let topic = topics.get(&topic)?;
        replica.store.queue_bounds(&topic.name, QueueId(queue)).map(|(min, _)| min.0)
    });
    if gone > 0 {
        tracing::debug!(gone, "key index files removed");
    }
}
