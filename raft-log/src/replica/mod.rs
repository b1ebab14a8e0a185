//! A replica of a log at work: what a [`ReplicatedLog`](crate::ReplicatedLog) is a handle to.
//!
//! Nothing here knows the state machine's types, and what waits is boxed here: so the core, which is all generics, is compiled
//! in this crate, once, and not again in every crate that uses the log.

mod handing_over;
mod opening;
mod proposing;
mod serving;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use flotilla_runtime::{Runtime, Task};

use crate::ack::AckTracker;
use crate::checkpoint_store::CheckpointStore;
use crate::disk::Disk;
use crate::failure::Failure;
use crate::log_files::disk_space;
use crate::log_view::LogView;
use crate::lost_tail::TailKeeper;
use crate::raft::{GoneWatch, LogRaft, SnapshotInbox, StreamResets};
use crate::repair::{LeadGuard, Steward};
use crate::room::{Claim, Need};
use crate::scrub::Scrub;
use crate::status_watch::StatusWatch;
use crate::stopper::Stopper;
use crate::vitals::{Vitals, ask_vitals};
use crate::{Fitness, NodeId, ProposalClass, ProposeError, Transport};

/// The parts, and the tasks that end with it.
pub(crate) struct Replica {
    pub(crate) node: NodeId,
    pub(crate) contact: String,
    pub(crate) payload_bytes_max: usize,
    segment_bytes: u64,
    pub(crate) dir: PathBuf,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) runtime: Runtime,
    pub(crate) raft: LogRaft,
    pub(crate) view: LogView,
    pub(crate) failure: Failure,
    pub(crate) status: StatusWatch,
    pub(crate) stopper: Stopper,
    pub(crate) gone: GoneWatch,
    inbox: SnapshotInbox,
    pub(crate) checkpoints: CheckpointStore,
    pub(crate) resets: StreamResets,
    pub(crate) vitals: Arc<Vitals>,
    pub(crate) guard: LeadGuard,
    pub(crate) scrub: Scrub,
    _steward: Steward,
    _rounds: Task<()>,
    pub(crate) acks: AckTracker,
    pub(crate) keeper: TailKeeper,
    _gone_task: Option<Task<()>>,
    _ack_tasks: Vec<Task<()>>,
    _founding: Option<Task<()>>,
}

impl Replica {
    /// The follower with the longest log of those that say they are fit to lead. Else one that can lead all the same, else
    /// one that does not answer that question (an older version, perhaps).
    async fn fittest_follower(&self) -> Option<NodeId> {
        let (mut reluctant, mut silent) = (None, None);
        for follower in self.status.followers_by_log() {
            match ask_vitals(&self.runtime, &*self.transport, follower).await.map(|answer| answer.fitness) {
                Some(Fitness::Fit) => return Some(follower),
                Some(Fitness::Reluctant) => reluctant = reluctant.or(Some(follower)),
                Some(Fitness::Unfit) => {}
                None => silent = silent.or(Some(follower)),
            }
        }
        reluctant.or(silent)
    }

    pub(crate) async fn fit_follower(&self, lag_entries_max: u64, silence_max: Duration) -> Option<NodeId> {
        let (last, contacts) = (self.status.now().last, self.status.contacts());
        let enough = last.map_or(0, |last| last.0).saturating_sub(lag_entries_max);
        let is_near = |follower: &NodeId| {
            contacts.peers.iter().any(|peer| {
                peer.node == *follower
                    && peer.silent_for.is_some_and(|silence| silence <= silence_max)
                    && peer.matched.is_some_and(|matched| matched.0 >= enough)
            })
        };
        for follower in self.status.followers_by_log().into_iter().filter(is_near) {
            let answer = ask_vitals(&self.runtime, &*self.transport, follower).await;
            if answer.is_some_and(|answer| answer.fitness == Fitness::Fit) {
                return Some(follower);
            }
        }
        None
    }

    /// Room for a proposal. A blocked log looks at the disk again now and then.
    fn claim_room(&self, payload_bytes: usize, class: ProposalClass) -> Result<Claim<'_>, ProposeError> {
        let room = &self.view.shared.room;
        let now = self.runtime.now();
        if room.recheck_due(now)
            && room.admits_file(self.segment_bytes, disk_space(&*self.disk, &self.dir), Need::Data).is_ok()
        {
            room.set_blocked(None, now);
        }
        room.claim(payload_bytes, class).map_err(ProposeError::Full)
    }
}
