//! Senders that note what they were told, and the queue's content held against it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flotilla_proto::client::CallError;
use flotilla_proto::status::Code;
use flotilla_proto::v2;
use flotilla_runtime::{Instant, Runtime, Task};

use crate::support::{Client, id_of, message, system_of};

/// What one send of one or more messages came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// Stored, at these offsets.
    Stored(Vec<i64>),
    /// Not stored.
    Denied(String),
    /// Nobody knows.
    Unknown(String),
}

/// One send: its messages' ids in order, and its end.
#[derive(Debug, Clone)]
pub struct Sent {
    pub ids: Vec<String>,
    pub told: Told,
    pub began: Instant,
    pub ended: Instant,
}

/// Senders under way.
pub struct Load {
    is_over: Arc<AtomicBool>,
    sent: Arc<Mutex<Vec<Sent>>>,
    senders: Vec<Task<()>>,
}

/// Sends `ids` as one batch.
pub async fn send(runtime: &Runtime, client: &Client, topic: &str, ids: Vec<String>, timeout: Duration) -> Sent {
    let messages = ids.iter().map(|id| message(topic, id, |_| ())).collect();
    let began = runtime.now();
    let request = v2::SendMessageRequest { messages };
    let outcome = client.messaging.send_message(client.options(timeout), request).await;
    let told = match outcome {
        Ok(reply) => {
            let status = reply.body.status.expect("a status");
            match Code::try_from(status.code) {
                Ok(Code::Ok) => Told::Stored(reply.body.entries.iter().map(|entry| entry.offset).collect()),
                Ok(Code::ProxyTimeout) => Told::Unknown(status.message),
                _ => Told::Denied(format!("{}: {}", status.code, status.message)),
            }
        }
        Err(CallError::Refused(reason)) => Told::Denied(reason),
        Err(error) => Told::Unknown(format!("call failed: {error}")),
    };
    Sent { ids, told, began, ended: runtime.now() }
}

impl Load {
    /// One sender for each client and number; `batch` gives the size of its next batch.
    pub fn start(
        runtime: &Runtime,
        clients: &[Client],
        topic: &'static str,
        senders: usize,
        timeout: Duration,
        batch: impl Fn(u64) -> u64 + Clone + Send + 'static,
    ) -> Load {
        let (is_over, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let mut tasks = Vec::new();
        for sender in 0..senders {
            let client = clients[sender % clients.len()].clone();
            let (is_over, sent, runtime, batch) = (is_over.clone(), sent.clone(), runtime.clone(), batch.clone());
            let clock = runtime.clone();
            tasks.push(runtime.spawn("sender", async move {
                for number in 0.. {
                    if is_over.load(Ordering::SeqCst) {
                        return;
                    }
                    let size = batch(clock.random_u64());
                    let ids = (0..size).map(|place| format!("s{sender}-{number}-{place}")).collect();
                    let one = send(&clock, &client, topic, ids, timeout).await;
                    let is_stored = matches!(one.told, Told::Stored(_));
                    sent.lock().expect("not poisoned").push(one);
                    if !is_stored {
                        clock.sleep(Duration::from_millis(20)).await;
                    }
                }
            }));
        }
        Load { is_over, sent, senders: tasks }
    }

    /// How many sends were told that they are stored.
    pub fn stored(&self) -> usize {
        let sent = self.sent.lock().expect("not poisoned");
        sent.iter().filter(|one| matches!(one.told, Told::Stored(_))).count()
    }

    /// Ends the senders; what all sends came to.
    pub async fn end(self) -> Vec<Sent> {
        self.is_over.store(true, Ordering::SeqCst);
        for sender in self.senders {
            sender.await.expect("no sender fails");
        }
        Arc::into_inner(self.sent).expect("nobody else").into_inner().expect("not poisoned")
    }
}

/// All of queue 0: offset and id.
pub async fn queue_of(client: &Client, topic: &str) -> BTreeMap<i64, String> {
    let (mut queue, mut next) = (BTreeMap::new(), 0);
    loop {
        let pulled = client.pull("reader", topic, next, Duration::from_millis(300)).await;
        if pulled.messages.is_empty() {
            // Nothing there, or nobody who could say.
            match client.query_offset(topic, v2::QueryOffsetPolicy::End, None).await {
                (20000, end) if next >= end => return queue,
                _ => continue,
            }
        }
        for one in &pulled.messages {
            let before = queue.insert(system_of(one).queue_offset.expect("an offset"), id_of(one).to_owned());
            assert_eq!(before, None, "an offset comes once");
        }
        next = pulled.next.expect("where to go on");
    }
}

/// What was told is true of the queue: dense, all that was stored at its offset, nothing that was denied, nothing twice,
/// no batch in parts. How many sends were stored, denied, unknown.
pub fn check(sent: &[Sent], queue: &BTreeMap<i64, String>) -> (usize, usize, usize) {
    let offsets: Vec<i64> = queue.keys().copied().collect();
    assert_eq!(offsets, (0..offsets.len() as i64).collect::<Vec<_>>(), "offsets are dense");
    let places: BTreeMap<&str, i64> = queue.iter().map(|(offset, id)| (id.as_str(), *offset)).collect();
    assert_eq!(places.len(), queue.len(), "no message stands twice");
    let known: BTreeSet<&str> = sent.iter().flat_map(|one| one.ids.iter().map(String::as_str)).collect();
    assert!(places.keys().all(|id| known.contains(id)), "nothing that was not sent");
    let mut counts = (0, 0, 0);
    for one in sent {
        let found: Vec<i64> = one.ids.iter().filter_map(|id| places.get(id.as_str()).copied()).collect();
        let is_whole = found.len() == one.ids.len() && found.windows(2).all(|pair| pair[1] == pair[0] + 1);
        assert!(
            found.is_empty() || is_whole,
            "a batch is there as a whole and in order, or not at all: {one:?} {found:?}"
        );
        match &one.told {
            Told::Stored(told) => {
                assert_eq!(&found, told, "{:?} is where it was told to be", one.ids);
                counts.0 += 1;
            }
            Told::Denied(why) => {
                assert!(found.is_empty(), "{:?} was denied ({why}) and is there", one.ids);
                counts.1 += 1;
            }
            Told::Unknown(_) => counts.2 += 1,
        }
    }
    counts
}
