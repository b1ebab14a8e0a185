//! What the simulation sees with its own eyes: every applied entry, every acknowledgement, every disk.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, Weak};

use bytes::Bytes;
use flotilla_checkers::EntrySeen;
use flotilla_raft_log::{LogIndex, RestoreError, StateMachine, Term};

use crate::disk::SimDisk;
use crate::executor::lock;
use crate::memberships::Memberships;
use crate::replica::Replica;
use crate::rng::fnv;

/// The one who sees everything; shared by all replicas' lives.
#[derive(Clone)]
pub struct Witness {
    inner: Arc<Inner>,
}

struct Inner {
    disks: Vec<SimDisk>,
    /// Whether replicas confirm what is in their page cache.
    confirms_early: bool,
    seen: Mutex<Seen>,
    /// The replicas that are open, by number.
    open: Mutex<BTreeMap<u64, Weak<dyn Replica>>>,
    memberships: Mutex<Memberships>,
}

#[derive(Default)]
struct Seen {
    entries: BTreeMap<(u64, u64), EntrySeen>,
    digests: BTreeMap<u64, (u64, String)>,
    /// The highest term that each replica let others know of.
    terms: BTreeMap<u64, u64>,
    findings: Vec<String>,
    acks: u64,
    marks: BTreeMap<String, u64>,
}

/// What was in force when messages were sent.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    oldest_membership: u64,
}

/// More findings of a run than anybody reads.
const FINDINGS_MAX: usize = 20;

/// The mark of a machine that lost power.
pub const POWER_LOSS: &str = "a power loss";

impl Witness {
    pub fn new(disks: Vec<SimDisk>, confirms_early: bool) -> Witness {
        let (seen, open, memberships) = Default::default();
        Witness { inner: Arc::new(Inner { disks, confirms_early, seen, open, memberships }) }
    }

    /// Something is wrong; the run goes on, and fails.
    pub fn object(&self, finding: String) {
        let mut seen = lock(&self.inner.seen);
        if seen.findings.len() < FINDINGS_MAX {
            seen.findings.push(finding);
        }
    }

    pub fn findings(&self) -> Vec<String> {
        lock(&self.inner.seen).findings.clone()
    }

    /// Counts that something worth reaching was reached.
    pub fn mark(&self, what: &str) {
        let mut seen = lock(&self.inner.seen);
        match seen.marks.get_mut(what) {
            Some(count) => *count += 1,
            None => drop(seen.marks.insert(what.to_owned(), 1)),
        }
    }

    pub fn marks(&self) -> BTreeMap<String, u64> {
        lock(&self.inner.seen).marks.clone()
    }

    pub fn ack_count(&self) -> u64 {
        lock(&self.inner.seen).acks
    }

    /// A replica is open: from now on the witness looks at its log's memberships.
    pub fn opened(&self, id: u64, replica: &Arc<dyn Replica>) {
        lock(&self.inner.open).insert(id, Arc::downgrade(replica));
    }

    /// Looks at every open replica's newest membership.
    pub(crate) fn look_at_memberships(&self) {
        let open: Vec<_> = lock(&self.inner.open).values().filter_map(Weak::upgrade).collect();
        for replica in open {
            lock(&self.inner.memberships).note(&replica.members());
        }
    }

    /// Messages are about to be sent: to be handed to [`Witness::acknowledged`].
    pub fn asked(&self) -> Asked {
        self.look_at_memberships();
        Asked { oldest_membership: lock(&self.inner.memberships).oldest_in_force() }
    }

    /// A leader is about to acknowledge these messages: each must be on the disks of a majority of the voters
    /// now, such that a power loss of all machines would spare it; or in their page caches, if that is all they promise.
    pub fn acknowledged(&self, asked: Asked, message_ids: &[String]) {
        let Inner { disks, confirms_early, .. } = &*self.inner;
        self.look_at_memberships();
        for message_id in message_ids {
            let mark = message_id.as_bytes();
            let holds = |disk: &SimDisk| if *confirms_early { disk.holds(mark) } else { disk.holds_durably(mark) };
            let holders: BTreeSet<u64> = (1..).zip(disks).filter(|(_, disk)| holds(disk)).map(|(id, _)| id).collect();
            if lock(&self.inner.memberships).are_enough(asked.oldest_membership, &holders) {
                continue;
            }
            if !confirms_early {
                self.object(format!("{message_id} is acknowledged and durable on the disks {holders:?} only"));
            } else if !self.marks().contains_key(POWER_LOSS) {
                // A follower that confirmed it may have lost power since, which takes what it promised no more than this. That
                // nothing is lost by that is seen at the end.
                self.object(format!("{message_id} is acknowledged and in the page caches {holders:?} only"));
            }
        }
        lock(&self.inner.seen).acks += message_ids.len() as u64;
    }

    /// A replica has this digest after the entry `applied`.
    pub fn digest(&self, replica: u64, applied: u64, digest: String) {
        let mut seen = lock(&self.inner.seen);
        let (first, known) = seen.digests.entry(applied).or_insert_with(|| (replica, digest.clone())).clone();
        drop(seen);
        if known != digest {
            self.object(format!(
                "after entry {applied} replica {first} had digest {known}, replica {replica} has {digest}"
            ));
        }
    }

    /// A replica has answered somebody in that term, or led in it: it must never forget it.
    pub fn promised_term(&self, replica: u64, term: u64) {
        let mut seen = lock(&self.inner.seen);
        let promised = seen.terms.entry(replica).or_default();
        *promised = term.max(*promised);
    }

    /// A replica's disk is another one: what it answered before counts no more, and its new life may begin anywhere.
    pub fn lost_disk(&self, replica: u64) {
        lock(&self.inner.seen).terms.remove(&replica);
    }

    /// A replica is back, in that term.
    pub fn came_back(&self, replica: u64, term: u64) {
        let promised = lock(&self.inner.seen).terms.get(&replica).copied().unwrap_or(0);
        if term < promised {
            self.object(format!("replica {replica} had answered in term {promised}, and came back in term {term}"));
        }
    }

    /// A replica has applied that entry.
    pub fn applied(&self, replica: u64, index: u64, term: u64, payload: &[u8]) {
        let entry = EntrySeen { replica, index, term, payload_hash: fnv(payload) };
        let mut seen = lock(&self.inner.seen);
        let known = seen.entries.entry((index, replica)).or_insert_with(|| entry.clone()).clone();
        drop(seen);
        if known != entry {
            self.object(format!(
                "replica {replica} applied entry {index} of term {} before, and one of term {term} now, payload {}",
                known.term,
                if known.payload_hash == entry.payload_hash { "equal" } else { "different" }
            ));
        }
    }

    /// Every entry that a replica applied, once for each replica.
    pub fn entries(&self) -> Vec<EntrySeen> {
        lock(&self.inner.seen).entries.values().cloned().collect()
    }
}

/// A state machine with the witness looking over its shoulder.
pub struct Watched<M> {
    machine: M,
    witness: Witness,
    replica: u64,
    skips_entries: bool,
    applied: Option<LogIndex>,
}

impl<M> Watched<M> {
    pub fn new(machine: M, witness: Witness, replica: u64) -> Watched<M> {
        Watched { machine, witness, replica, skips_entries: false, applied: None }
    }

    /// Leaves out one entry in forty: to see that the simulation notices.
    pub fn skipping_entries(mut self) -> Watched<M> {
        self.skips_entries = true;
        self
    }
}

impl<M: StateMachine> StateMachine for Watched<M> {
    type Output = M::Output;

    fn apply(&mut self, index: LogIndex, term: Term, payload: Bytes) -> M::Output {
        if self.applied.is_some_and(|applied| index <= applied) {
            let applied = self.applied.unwrap_or_default();
            self.witness.object(format!("replica {} applied entry {index} after entry {applied}", self.replica));
        }
        self.applied = Some(index);
        self.witness.applied(self.replica, index.0, term.0, &payload);
        let skipped = self.skips_entries && index.0.is_multiple_of(40);
        self.machine.apply(index, term, if skipped { Bytes::new() } else { payload })
    }

    fn acknowledged_early(payload: &[u8]) -> u64 {
        M::acknowledged_early(payload)
    }

    fn segment_started(&mut self, first: LogIndex) -> io::Result<()> {
        self.witness.mark("a segment was started");
        self.machine.segment_started(first)
    }

    fn checkpoint(&self) -> Vec<u8> {
        self.witness.mark("a checkpoint was taken");
        self.machine.checkpoint()
    }

    fn restore(&mut self, checkpoint: &[u8], applied: LogIndex) -> Result<(), RestoreError> {
        self.witness.mark("a checkpoint was restored");
        if self.applied.is_some_and(|before| applied < before) {
            let before = self.applied.unwrap_or_default();
            self.witness.object(format!("replica {} went back from entry {before} to {applied}", self.replica));
        }
        // One that the machine refuses leaves it as it was.
        self.machine.restore(checkpoint, applied)?;
        self.applied = Some(applied);
        Ok(())
    }
}
