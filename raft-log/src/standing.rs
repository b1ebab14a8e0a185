//! What this replica is to its group: in which life its directory is, and whether it may vote in that.
//!
//! ```text
//!  empty directory ─▶ undecided ─┬─ enough others know it in no other life ─▶ founder ──────────────┐
//!                                └─ one says: the group is there without you ─▶ newcomer            ├─▶ votes
//!                                             the group makes it a member, in this life ────────────┘
//!  any of them ─ the group went on without it, by an operator's order ─▶ given up, for good
//! ```
//! A directory that was emptied has forgotten what it voted and confirmed. So it votes only once the group has committed
//! that its life before is no voter any more, and has made a member of the new one.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use openraft::metrics::RaftMetrics;
use openraft_rt::watch::WatchReceiver;
use tokio::sync::Notify;

use crate::disk::Disk;
use crate::identity::{Identity, Origin};
use crate::member::{GroupMembers, Member};
use crate::raft::{FifoWatchReceiver, Remembrance, Stamp, TypeConfig, epoch_of, member_of};
use crate::{Incarnation, LogIndex, NodeId, Term};

/// What a replica is to its group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// A member in the life it is in: a voter or a learner, as [`GroupMembers`] says.
    Member,
    /// Its directory is new. It waits for the others, to found the group with them.
    Founding,
    /// It came to a group that is there, which does not know it yet.
    Newcomer,
    /// The group knows its number in another life: this directory is not the one it had. It neither votes nor counts
    /// until the group has taken it in again.
    LostDisk {
        /// That life.
        known: Incarnation,
    },
    /// The group went on without this directory, by an operator's order. It neither votes nor counts any more; to come back
    /// its replica needs an empty directory.
    GivenUp {
        /// The epoch in which the group goes on.
        epoch: u16,
    },
}

/// Who was heard, in which life, and the feature level that its program supports.
type Heard = BTreeMap<NodeId, (Incarnation, u8)>;

/// Cheap handle.
#[derive(Clone)]
pub(crate) struct Standings {
    inner: Arc<Inner>,
}

struct Inner {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    identity: Mutex<Identity>,
    /// Whoever replaces the file.
    writing: Mutex<()>,
    metrics: OnceLock<FifoWatchReceiver<RaftMetrics<TypeConfig>>>,
    /// In which life the others know this replica, by the word of one of them.
    known_as: Mutex<Incarnation>,
    /// Lives that answered under a member's number and are not that member.
    strangers: Mutex<BTreeMap<NodeId, Incarnation>>,
    /// What others confirmed to this replica, each in its last life that did.
    memory: Mutex<BTreeMap<NodeId, (Incarnation, Remembrance)>>,
    /// Those that spoke as of a later epoch than this replica knows.
    superiors: Mutex<BTreeSet<NodeId>>,
    superiors_news: Notify,
    /// The others have not been asked yet whether the group has gone on without this directory.
    is_settling: AtomicBool,
    /// The feature level that this program supports.
    level: u8,
    heard: Mutex<Heard>,
}

const POISON: &str = "standing lock is never poisoned: no code panics while holding it";

impl Standings {
    pub(crate) fn new(disk: Arc<dyn Disk>, dir: PathBuf, identity: Identity, level: u8) -> Standings {
        let is_settling = AtomicBool::new(identity.origin != Origin::Undecided);
        Standings {
            inner: Arc::new(Inner {
                disk,
                dir,
                identity: Mutex::new(identity),
                writing: Mutex::new(()),
                metrics: OnceLock::new(),
                known_as: Mutex::default(),
                strangers: Mutex::default(),
                memory: Mutex::default(),
                superiors: Mutex::default(),
                superiors_news: Notify::new(),
                is_settling,
                level,
                heard: Mutex::default(),
            }),
        }
    }

    /// From now on the core's membership counts.
    pub(crate) fn set_metrics(&self, metrics: FifoWatchReceiver<RaftMetrics<TypeConfig>>) {
        // Set once, when the core is there.
        let _ = self.inner.metrics.set(metrics);
    }

    fn identity(&self) -> MutexGuard<'_, Identity> {
        self.inner.identity.lock().expect(POISON)
    }

    pub(crate) fn node(&self) -> NodeId {
        self.identity().node
    }

    pub(crate) fn incarnation(&self) -> Incarnation {
        self.identity().incarnation
    }

    pub(crate) fn origin(&self) -> Origin {
        self.identity().origin
    }

    /// The newest membership: what is recorded of `node`, and in which entry the membership is.
    fn recorded(&self, node: NodeId) -> (Option<Member>, Option<LogIndex>) {
        let Some(metrics) = self.inner.metrics.get() else { return (None, None) };
        let metrics = metrics.borrow_watched();
        let index = metrics.membership_config.log_id().as_ref().map(|id| LogIndex(id.index()));
        (member_of(metrics.membership_config.membership(), node).cloned(), index)
    }

    /// The life in which this replica knows `node`: as the membership says, else as promised.
    fn known(&self, node: NodeId) -> (Incarnation, Option<LogIndex>) {
        let (member, index) = self.recorded(node);
        let recorded = member.map_or(Incarnation::UNKNOWN, |member| member.incarnation);
        if recorded.is_known() {
            return (recorded, index);
        }
        let promised = self.identity().promised.get(&node).copied();
        (promised.unwrap_or_default(), index)
    }

    /// All members.
    pub(crate) fn members(&self) -> GroupMembers {
        let Some(metrics) = self.inner.metrics.get() else { return GroupMembers::default() };
        let metrics = metrics.borrow_watched();
        let stored = &metrics.membership_config;
        let members = stored.membership();
        let index = stored.log_id().as_ref().map(|id| LogIndex(id.index()));
        GroupMembers {
            index,
            is_committed: index <= metrics.local_committed.map(|id| LogIndex(id.index())),
            is_joint: members.get_joint_config().len() > 1,
            voters: members.voter_ids().map(NodeId).collect(),
            voter_sets: members
                .get_joint_config()
                .iter()
                .map(|set| set.iter().copied().map(NodeId).collect())
                .collect(),
            epoch: epoch_of(members),
            members: members.nodes().map(|(node, member)| (NodeId(*node), member.clone())).collect(),
        }
    }

    /// Whether it may vote, as far as its directory is concerned.
    pub(crate) fn may_vote(&self) -> bool {
        let (node, incarnation, origin, given_up) = {
            let identity = self.identity();
            (identity.node, identity.incarnation, identity.origin, identity.given_up)
        };
        if given_up > 0 {
            return false;
        }
        match self.recorded(node).0.map(|member| member.incarnation) {
            Some(recorded) if recorded.is_known() => recorded == incarnation,
            // Nothing is recorded (yet): so it was when the group was founded.
            _ => origin == Origin::Founder,
        }
    }

    pub(crate) fn standing(&self) -> Standing {
        let given_up = self.given_up();
        if given_up > 0 {
            return Standing::GivenUp { epoch: given_up };
        }
        if self.may_vote() {
            return Standing::Member;
        }
        let (node, origin) = (self.node(), self.origin());
        let recorded = self.recorded(node).0.map(|member| member.incarnation).filter(|known| known.is_known());
        let known = recorded.unwrap_or(*self.inner.known_as.lock().expect(POISON));
        match origin {
            _ if known.is_known() => Standing::LostDisk { known },
            Origin::Undecided | Origin::Founder => Standing::Founding,
            Origin::Newcomer => Standing::Newcomer,
        }
    }

    /// The stamp for what this replica sends now.
    pub(crate) fn stamp(&self) -> Stamp {
        let identity = self.identity();
        let (node, incarnation) = (identity.node, identity.incarnation);
        let is_founder = identity.origin == Origin::Founder;
        drop(identity);
        let (membership, epoch) = self.membership();
        Stamp { node, incarnation, membership, is_founder, reads_memory: true, epoch, level: self.inner.level }
    }

    /// Whether what this sender asks may be listened to. Refused is a life that the group has given up, unless the sender
    /// knows a newer membership than this replica does: then that one counts, and the sender has looked at itself in it.
    pub(crate) fn admits_request(&self, sender: &Stamp) -> bool {
        self.note_heard(sender);
        if self.given_up() > 0 || self.has_left_behind(sender) {
            return false;
        }
        let (known, index) = self.known(sender.node);
        !known.is_known() || known == sender.incarnation || sender.membership > index
    }

    /// Whether what this member answers counts: a vote, a confirmation. It counts in exactly the life that is recorded, and
    /// not as of a later epoch. Of one of whom nothing is recorded yet the word of a founder counts.
    pub(crate) fn admits_answer(&self, from: NodeId, sender: &Stamp) -> bool {
        self.note_heard(sender);
        if sender.node != from || self.given_up() > 0 || sender.epoch > self.membership().1 {
            return false;
        }
        let (member, _) = self.recorded(from);
        let recorded = member.map_or(Incarnation::UNKNOWN, |member| member.incarnation);
        let is_right = if recorded.is_known() {
            recorded == sender.incarnation
        } else {
            let (promised, _) = self.known(from);
            sender.is_founder && (!promised.is_known() || promised == sender.incarnation)
        };
        if !is_right {
            self.note_stranger(sender);
        }
        is_right
    }

    /// The group went on without the sender: it speaks as of an earlier epoch, and is no member of this one.
    pub(crate) fn has_left_behind(&self, sender: &Stamp) -> bool {
        let (member, _) = self.recorded(sender.node);
        let is_member = member.is_some_and(|member| member.incarnation == sender.incarnation);
        !is_member && sender.epoch < self.membership().1
    }

    /// The entry of the newest membership, and the group's epoch in it.
    fn membership(&self) -> (Option<LogIndex>, u16) {
        let Some(metrics) = self.inner.metrics.get() else { return (None, 0) };
        let metrics = metrics.borrow_watched();
        let stored = &metrics.membership_config;
        (stored.log_id().as_ref().map(|id| LogIndex(id.index())), epoch_of(stored.membership()))
    }

    fn note_heard(&self, sender: &Stamp) {
        let said = (sender.incarnation, sender.level);
        let mut heard = self.inner.heard.lock().expect(POISON);
        if heard.get(&sender.node) != Some(&said) {
            heard.insert(sender.node, said);
        }
        drop(heard);
        if sender.epoch > self.membership().1 {
            let is_news = self.inner.superiors.lock().expect(POISON).insert(sender.node);
            if is_news {
                self.inner.superiors_news.notify_one();
            }
        }
    }

    /// Resolves with those that spoke as of a later epoch than this replica knows; at once if there are some.
    pub(crate) async fn superiors(&self) -> BTreeSet<NodeId> {
        loop {
            let superiors = std::mem::take(&mut *self.inner.superiors.lock().expect(POISON));
            if !superiors.is_empty() {
                return superiors;
            }
            self.inner.superiors_news.notified().await;
        }
    }

    /// The feature level that each member's program supports, as far as it was heard in the life that is recorded; `None`:
    /// it was not.
    pub(crate) fn levels(&self) -> BTreeMap<NodeId, Option<u8>> {
        let (own, members) = (self.node(), self.members().members);
        let heard = self.inner.heard.lock().expect(POISON);
        let level = |node: &NodeId, member: &Member| match heard.get(node) {
            _ if *node == own => Some(self.inner.level),
            Some((incarnation, level)) if *incarnation == member.incarnation => Some(*level),
            _ => None,
        };
        members.iter().map(|(node, member)| (*node, level(node, member))).collect()
    }

    /// The epoch in which the group went on without this directory; 0: it did not, as far as is known.
    pub(crate) fn given_up(&self) -> u16 {
        self.identity().given_up
    }

    /// From now on, and over restarts, this directory neither votes nor counts. Blocks.
    pub(crate) fn give_up(&self, epoch: u16) -> io::Result<()> {
        self.rewrite(|identity| identity.given_up = identity.given_up.max(epoch)).map(|_| ())
    }

    /// Whether the others have still to be asked if the group has gone on without this directory.
    pub(crate) fn is_settling(&self) -> bool {
        self.inner.is_settling.load(Ordering::Acquire)
    }

    /// They were asked.
    pub(crate) fn settled(&self) {
        self.inner.is_settling.store(false, Ordering::Release);
    }

    fn note_stranger(&self, sender: &Stamp) {
        let mut strangers = self.inner.strangers.lock().expect(POISON);
        if strangers.insert(sender.node, sender.incarnation) != Some(sender.incarnation) {
            tracing::warn!(
                node = sender.node.0, incarnation = %sender.incarnation,
                "a replica answers from a directory that is not the one the group knows: it does not count"
            );
        }
    }

    /// Lives that answered and did not count, since this was asked last.
    pub(crate) fn take_strangers(&self) -> BTreeMap<NodeId, Incarnation> {
        std::mem::take(&mut *self.inner.strangers.lock().expect(POISON))
    }

    /// In its life `incarnation` `node` has confirmed to have everything up to `index` on its disk, in the reign `term`.
    pub(crate) fn remember(&self, node: NodeId, incarnation: Incarnation, term: Term, index: LogIndex) {
        let told = Remembrance { term, index };
        let mut memory = self.inner.memory.lock().expect(POISON);
        match memory.get_mut(&node) {
            Some((life, known)) if *life == incarnation => *known = told.max(*known),
            _ => drop(memory.insert(node, (incarnation, told))),
        }
    }

    /// What `node` has confirmed in that life.
    pub(crate) fn remembered(&self, node: NodeId, incarnation: Incarnation) -> Option<Remembrance> {
        let memory = self.inner.memory.lock().expect(POISON);
        memory.get(&node).filter(|(life, _)| *life == incarnation).map(|(_, known)| *known)
    }

    /// Gives up the life of this directory for another one: it has forgotten what it had confirmed. Blocks.
    pub(crate) fn renounce(&self, incarnation: Incarnation) -> io::Result<()> {
        self.note_known_as(self.incarnation());
        let changed = self.rewrite(|identity| {
            identity.incarnation = incarnation;
            identity.origin = Origin::Newcomer;
        });
        changed.map(|_| ())
    }

    /// In which life the group knows this replica, by the word of another one.
    pub(crate) fn note_known_as(&self, known: Incarnation) {
        *self.inner.known_as.lock().expect(POISON) = known;
    }

    /// Promises to know `node` in no other life than the first one that asked; gives back that one. Blocks.
    pub(crate) fn promise(&self, node: NodeId, incarnation: Incarnation) -> io::Result<Incarnation> {
        let promised = self.rewrite(|identity| {
            identity.promised.entry(node).or_insert(incarnation);
        })?;
        Ok(promised.promised[&node])
    }

    /// In which life it is promised to know `node`.
    pub(crate) fn promised(&self, node: NodeId) -> Incarnation {
        self.identity().promised.get(&node).copied().unwrap_or_default()
    }

    /// Settles what the directory is to the group. Blocks.
    pub(crate) fn set_origin(&self, origin: Origin) -> io::Result<()> {
        self.rewrite(|identity| identity.origin = origin).map(|_| ())
    }

    fn rewrite(&self, change: impl FnOnce(&mut Identity)) -> io::Result<Identity> {
        let _writing = self.inner.writing.lock().expect(POISON);
        let known = self.identity().clone();
        let mut next = known.clone();
        change(&mut next);
        if next != known {
            // Not under the lock of those who stamp frames.
            next.write(&*self.inner.disk, &self.inner.dir)?;
            *self.identity() = next.clone();
        }
        Ok(next)
    }
}
