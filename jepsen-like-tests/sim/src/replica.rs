//! A replica as the simulation drives it: the real replicated log under some model of a state machine.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use flotilla_checkers::{Ack, Delivery, Dump, QueueKey};
use flotilla_proto::{Admin, Messaging, peer};
use flotilla_raft_log::{
    Applied, Disk, GroupMembers, Incarnation, LogConfig, LogStatus, PeerCallKind, ProposeError, ReplicatedLog,
    Standing, StateMachine, Term, Transport,
};
use flotilla_runtime::{BoxFuture, Either, Instant, Runtime, select};
use tokio::sync::mpsc;

use crate::executor::lock;
use crate::net::PeerService;
use crate::options::{Mutant, Options};
use crate::witness::{Watched, Witness};

/// Messages on their way into one queue.
#[derive(Debug, Clone)]
pub struct Batch {
    pub queue: QueueKey,
    pub message_ids: Vec<String>,
    /// Filler, for each message.
    pub body_bytes: usize,
}

/// Where a message was stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    pub queue: QueueKey,
    pub offset: u64,
    pub term: u64,
    pub leader: u64,
}

impl Placed {
    /// As a history has it.
    pub(crate) fn ack(&self) -> Ack {
        Ack {
            queue: self.queue.clone(),
            offset: self.offset,
            term: Some(self.term),
            leader: Some(self.leader),
            log_index: None,
            early: false,
        }
    }
}

/// Why a send has no places.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SendError {
    /// Surely not stored; ask `leader` if it is known.
    Refused { leader: Option<u64> },
    /// May or may not be stored.
    Unknown,
}

/// A message handed to a consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    pub queue: QueueKey,
    pub offset: u64,
    pub message_id: String,
    /// The how-manieth delivery, from 1.
    pub attempt: u32,
    /// What the acknowledgement must name.
    pub seq: u32,
    /// As brokers have it.
    pub handle: String,
}

/// What an acknowledgement came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acknowledged {
    /// All that it names is settled.
    All,
    /// Some of it had been handed to somebody else meanwhile.
    NotAll,
}

/// A running replica.
pub trait Replica: PeerService {
    /// Proposes a batch and waits until it is applied.
    fn send(&self, batch: Batch) -> BoxFuture<'static, Result<Vec<Placed>, SendError>>;
    /// Takes what is next in a queue for the one consumer group; empty if nothing is. The same
    /// `attempt_id` again gives the same again.
    fn receive(&self, queue: QueueKey, attempt_id: String) -> BoxFuture<'static, Result<Vec<Received>, SendError>>;
    /// Acknowledges what one `receive` gave.
    fn acknowledge(&self, received: Vec<Received>) -> BoxFuture<'static, Result<Acknowledged, SendError>>;
    fn status(&self) -> LogStatus;
    /// Whether it votes: the group has taken in the life of its directory, and it lacks nothing that it may have confirmed.
    fn has_vote(&self) -> bool;
    /// The newest membership in its log.
    fn members(&self) -> GroupMembers;
    /// Voters of a settled membership, each with the life that is recorded of it.
    fn voters_recorded(&self) -> BTreeMap<u64, Incarnation> {
        let members = self.members();
        if members.is_joint || !members.is_committed {
            return BTreeMap::new();
        }
        let recorded = members.members.iter().filter(|(node, _)| members.voters.contains(node));
        recorded.map(|(node, member)| (node.0, member.incarnation)).collect()
    }
    /// The life of its own directory.
    fn life(&self) -> Incarnation;
    /// The last `count` messages of a queue as this replica has applied them.
    fn look(&self, queue: &QueueKey, count: u64) -> Result<Vec<Delivery>, String>;
    /// Everything in every queue.
    fn dump(&self) -> Result<Dump, String>;
    /// The state's digest, and the entry it stands after.
    fn digest(&self) -> (u64, String);
    /// Resolves when the replica must stop.
    fn failed(&self) -> BoxFuture<'static, String>;
    /// Asks for a new leader.
    fn transfer(&self) -> BoxFuture<'static, Result<(), String>>;
    /// What clients call, where this is a whole broker.
    fn messaging(&self) -> Option<Arc<dyn Messaging>> {
        None
    }
    /// What operators call, where this is a whole broker.
    fn admin(&self) -> Option<Arc<dyn Admin>> {
        None
    }
    /// Takes in a client's call from another broker.
    fn forward(&self, request: peer::ForwardRequest) -> BoxFuture<'static, peer::ForwardResponse> {
        let _ = request;
        Box::pin(std::future::pending())
    }
    /// Ids of what ended among the dead letters.
    fn dead_letters(&self) -> Result<Vec<String>, String> {
        Ok(Vec::new())
    }
}

/// What a machine answers to a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Placement {
    /// Queue and offset of each message, in order.
    Placed(Vec<(QueueKey, u64)>),
    /// On every replica alike: nothing was stored.
    Rejected(String),
    /// Only this replica could not: what the others did is not known here.
    Failed,
}

/// A way to give the log a meaning.
pub trait Model: Send + Sync + Sized + 'static {
    type Output: Send + 'static;
    type Machine: StateMachine<Output = Self::Output>;

    /// The machine and what reads it.
    fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        queues: &[QueueKey],
        options: &Options,
    ) -> Result<(Self::Machine, Self), String>;
    /// What founds the topics; proposed by whoever leads until it is applied.
    fn found(&self, log_time_ms: u64, term: u64) -> Bytes;
    fn encode(&self, batch: &Batch, log_time_ms: u64, term: u64) -> Bytes;
    /// What the machine answered to a batch.
    fn places(&self, batch: &Batch, output: Self::Output) -> Placement;
    /// What takes the next messages of a queue for so long; `None` if there are none.
    fn deliver(
        &self,
        queue: &QueueKey,
        attempt_id: String,
        log_time_ms: u64,
        term: u64,
        invisible: Duration,
    ) -> Option<Bytes>;
    /// What the machine handed out.
    fn received(
        &self,
        log: &ReplicatedLog<Self::Output>,
        queue: &QueueKey,
        output: Self::Output,
    ) -> Result<Vec<Received>, String>;
    /// What acknowledges messages of one queue.
    fn acknowledge(&self, received: &[Received], log_time_ms: u64, term: u64) -> Bytes;
    /// What the machine answered to an acknowledgement.
    fn acknowledged(&self, output: Self::Output) -> Acknowledged;
    /// The newest stamp applied; 0 before the first.
    fn log_time_ms(&self) -> u64;
    /// Whether the topics are there.
    fn is_founded(&self) -> bool;
    /// The last `last` messages of a queue, or all.
    fn read(
        &self,
        log: &ReplicatedLog<Self::Output>,
        queue: &QueueKey,
        last: Option<u64>,
    ) -> Result<flotilla_checkers::QueueDump, String>;
    fn queues(&self) -> &[QueueKey];
    /// The digest, and the entry that the state stands after.
    fn digest(&self) -> (u64, String);
    /// Resolves if the machine cannot go on, and the replica must stop.
    fn failed(&self) -> BoxFuture<'static, String>;
}

/// A replicated log with a model, and the world around it.
pub struct LogReplica<M: Model> {
    node: u64,
    log: ReplicatedLog<M::Output>,
    model: Arc<M>,
    stamps: Arc<Stamps>,
    witness: Witness,
    /// How long what consumers take is their own.
    invisible: Duration,
}

/// Log time as a leader stamps it: it goes on with the leader's monotonic clock from the newest
/// stamp the leader knows, and never back. The wall clock only starts it.
struct Stamps {
    runtime: Runtime,
    base: Mutex<(u64, Instant)>,
}

impl Stamps {
    fn new(runtime: &Runtime) -> Stamps {
        Stamps { runtime: runtime.clone(), base: Mutex::new((0, runtime.now())) }
    }

    fn next<M: Model>(&self, model: &M) -> u64 {
        let now = self.runtime.now();
        let applied_ms = model.log_time_ms();
        let mut base = lock(&self.base);
        let mut stamp_ms = base.0 + (now - base.1).as_millis() as u64;
        if base.0 == 0 || applied_ms > stamp_ms {
            stamp_ms = if applied_ms == 0 { self.runtime.wall_ms() } else { applied_ms };
            *base = (stamp_ms, now);
        }
        stamp_ms
    }
}

impl<M: Model> LogReplica<M> {
    /// Opens the replica's log and model. Must run inside the replica's life.
    pub async fn open(
        config: LogConfig,
        queues: Vec<QueueKey>,
        runtime: Runtime,
        disk: Arc<dyn Disk>,
        transport: Arc<dyn Transport>,
        witness: Witness,
        options: &Options,
    ) -> Result<Arc<dyn Replica>, String> {
        let node = config.node.0;
        let (machine, model) = M::open(disk.clone(), &config.dir, &queues, options)?;
        let mut machine = Watched::new(machine, witness.clone(), node);
        if options.mutant == Some(Mutant::SkipsEntries) && node == 2 {
            machine = machine.skipping_entries();
        }
        let log = ReplicatedLog::open(config, runtime.clone(), disk, transport, machine).await;
        let log = log.map_err(|error| error.to_string())?;
        let (model, stamps) = (Arc::new(model), Arc::new(Stamps::new(&runtime)));
        runtime.spawn("founder", found(log.clone(), model.clone(), stamps.clone())).detach();
        let replica = LogReplica { node, log, model, stamps, witness, invisible: options.invisible };
        Ok(Arc::new(replica))
    }
}

/// Makes the topics once, by whoever leads first.
async fn found<M: Model>(log: ReplicatedLog<M::Output>, model: Arc<M>, stamps: Arc<Stamps>) {
    while !model.is_founded() {
        let status = log.status();
        if status.can_write && !model.is_founded() {
            let payload = model.found(stamps.next(&*model), status.term.0);
            // Refused or unknown: whoever leads next tries again, and a second time does no harm.
            let _ = log.propose(payload, Some(status.term)).await;
        }
        stamps.runtime.sleep(Duration::from_millis(20)).await;
    }
}

/// The last messages of a queue, as a reader of that replica sees them.
pub(crate) fn look<M: Model>(
    model: &M,
    log: &ReplicatedLog<M::Output>,
    node: u64,
    queue: &QueueKey,
    count: u64,
) -> Result<Vec<Delivery>, String> {
    let read = model.read(log, queue, Some(count))?;
    let reader = format!("a reader of replica {node}");
    let seen = read.slots.into_iter();
    Ok(seen.map(|slot| Delivery::new(reader.clone(), queue.clone(), slot.offset, slot.message_id)).collect())
}

/// Whether that replica votes.
pub(crate) fn has_vote<O: Send + 'static>(log: &ReplicatedLog<O>) -> bool {
    log.standing() == Standing::Member && !log.is_recovering()
}

/// Everything in every queue of that replica.
pub(crate) fn dump<M: Model>(model: &M, log: &ReplicatedLog<M::Output>, node: u64) -> Result<Dump, String> {
    let (applied_index, digest) = model.digest();
    let queues = model.queues().iter().map(|queue| model.read(log, queue, None));
    Ok(Dump { replica: node, applied_index, digest, queues: queues.collect::<Result<_, _>>()? })
}

impl<M: Model> PeerService for LogReplica<M> {
    fn call(&self, kind: PeerCallKind, body: Bytes) -> BoxFuture<'static, Result<Bytes, String>> {
        if kind == PeerCallKind::LeaderGone {
            self.witness.mark("a voter was asked whether the leader is gone");
        }
        let (log, witness, node) = (self.log.clone(), self.witness.clone(), self.node);
        Box::pin(async move {
            let answer = log.serve_call(kind, body).await.map_err(|error| error.to_string());
            // An error promises nothing: the vote may be what could not be kept.
            if answer.is_ok() {
                witness.promised_term(node, log.status().term.0);
            }
            answer
        })
    }

    fn append(&self, requests: mpsc::Receiver<Bytes>, responses: mpsc::Sender<Bytes>) -> BoxFuture<'static, ()> {
        let task = self.log.serve_append(requests, responses);
        Box::pin(async move {
            // However it ended, the stream is over.
            let _ = task.join().await;
        })
    }
}

/// Proposes in the given term; an error says whether it may have happened all the same.
async fn propose<O: Send + 'static>(
    log: &ReplicatedLog<O>,
    payload: Bytes,
    term: Term,
    witness: &Witness,
) -> Result<Applied<O>, SendError> {
    log.propose(payload, Some(term)).await.map_err(|error| match error {
        ProposeError::NotLeader { leader } => SendError::Refused { leader: leader.map(|leader| leader.0) },
        ProposeError::NoQuorum | ProposeError::Full(_) => SendError::Refused { leader: None },
        ProposeError::TooLarge { .. } => {
            witness.object(format!("a small proposal was refused: {error}"));
            SendError::Refused { leader: None }
        }
        ProposeError::Unknown(_) | ProposeError::Stopped => SendError::Unknown,
    })
}

impl<M: Model> LogReplica<M> {
    /// The term to propose in; refused unless this replica may write.
    fn writable(&self) -> Result<Term, SendError> {
        let status = self.log.status();
        if status.can_write && self.model.is_founded() {
            return Ok(status.term);
        }
        Err(SendError::Refused { leader: status.leader.map(|leader| leader.0) })
    }

    fn parts(&self) -> (ReplicatedLog<M::Output>, Arc<M>, Witness, u64) {
        (self.log.clone(), self.model.clone(), self.witness.clone(), self.stamps.next(&*self.model))
    }
}

impl<M: Model> Replica for LogReplica<M> {
    fn send(&self, batch: Batch) -> BoxFuture<'static, Result<Vec<Placed>, SendError>> {
        let (term, node, asked) = (self.writable(), self.node, self.witness.asked());
        let (log, model, witness, stamp_ms) = self.parts();
        Box::pin(async move {
            let term = term?;
            let payload = model.encode(&batch, stamp_ms, term.0);
            let applied = propose(&log, payload, term, &witness).await?;
            let places = match model.places(&batch, applied.output) {
                Placement::Placed(places) => places,
                Placement::Rejected(why) => {
                    witness.object(format!("{:?} rejected at entry {}: {why}", batch.message_ids, applied.index));
                    return Err(SendError::Refused { leader: None });
                }
                Placement::Failed => return Err(SendError::Unknown),
            };
            witness.acknowledged(asked, &batch.message_ids);
            let placed = |(queue, offset)| Placed { queue, offset, term: applied.term.0, leader: node };
            Ok(places.into_iter().map(placed).collect())
        })
    }

    fn receive(&self, queue: QueueKey, attempt_id: String) -> BoxFuture<'static, Result<Vec<Received>, SendError>> {
        let (term, invisible) = (self.writable(), self.invisible);
        let (log, model, witness, stamp_ms) = self.parts();
        Box::pin(async move {
            let term = term?;
            let payload = model.deliver(&queue, attempt_id, stamp_ms, term.0, invisible);
            let Some(payload) = payload else { return Ok(Vec::new()) };
            let applied = propose(&log, payload, term, &witness).await?;
            model.received(&log, &queue, applied.output).map_err(|why| {
                witness.object(format!("delivery from {queue} failed: {why}"));
                SendError::Unknown
            })
        })
    }

    fn acknowledge(&self, received: Vec<Received>) -> BoxFuture<'static, Result<Acknowledged, SendError>> {
        let term = self.writable();
        let (log, model, witness, stamp_ms) = self.parts();
        Box::pin(async move {
            let term = term?;
            let payload = model.acknowledge(&received, stamp_ms, term.0);
            let applied = propose(&log, payload, term, &witness).await?;
            Ok(model.acknowledged(applied.output))
        })
    }

    fn members(&self) -> GroupMembers {
        self.log.members()
    }

    fn life(&self) -> Incarnation {
        self.log.incarnation()
    }

    fn status(&self) -> LogStatus {
        self.log.status()
    }

    fn has_vote(&self) -> bool {
        has_vote(&self.log)
    }

    fn look(&self, queue: &QueueKey, count: u64) -> Result<Vec<Delivery>, String> {
        look(&*self.model, &self.log, self.node, queue, count)
    }

    fn dump(&self) -> Result<Dump, String> {
        dump(&*self.model, &self.log, self.node)
    }

    fn digest(&self) -> (u64, String) {
        self.model.digest()
    }

    fn failed(&self) -> BoxFuture<'static, String> {
        let (log, machine) = (self.log.clone(), self.model.failed());
        Box::pin(async move {
            match select(log.failed(), machine).await {
                Either::Left(reason) | Either::Right(reason) => reason,
            }
        })
    }

    fn transfer(&self) -> BoxFuture<'static, Result<(), String>> {
        let log = self.log.clone();
        Box::pin(async move {
            let moved = log.transfer_leader(None, Duration::from_secs(1)).await;
            moved.map(|_| ()).map_err(|error| error.to_string())
        })
    }
}
