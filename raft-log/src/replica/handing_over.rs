//! Leadership handed over on purpose.

use std::time::Duration;

use flotilla_runtime::{BoxFuture, Either, Elapsed, select};

use super::Replica;
use crate::vitals::ask_vitals;
use crate::{Fitness, NodeId, Probe, Role, TransferError};

/// While leadership is handed over, the target is looked at this often: whether it is still there.
const TARGET_LOOK_PAUSE: Duration = Duration::from_millis(50);

impl Replica {
    /// See [`crate::ReplicatedLog::transfer_leader`].
    pub(crate) fn transfer_leader(
        &self,
        target: Option<NodeId>,
        timeout: Duration,
    ) -> BoxFuture<'_, Result<NodeId, TransferError>> {
        Box::pin(async move {
            let status = self.status.now();
            if status.role != Role::Leader {
                return Err(TransferError::NotLeader { leader: status.leader });
            }
            let target = match target {
                Some(target) if target != self.node && status.members.contains(&target) => {
                    // Asked first: a hand-over that the target refuses costs the group an election time-out.
                    match ask_vitals(&self.runtime, &*self.transport, target).await {
                        Some(answer) if answer.fitness == Fitness::Unfit => return Err(TransferError::NotFit(target)),
                        _ => target,
                    }
                }
                Some(target) => return Err(TransferError::NoSuchVoter(target)),
                None => self.fittest_follower().await.ok_or(TransferError::NoneCaughtUp)?,
            };
            tracing::info!(%target, "handing over leadership");
            self.raft.trigger().transfer_leader(target.0).await.map_err(|_| TransferError::Stopped)?;
            let taken = async {
                let mut seen = status;
                loop {
                    self.status.changed(&seen).await;
                    seen = self.status.now();
                    if let Some(leader) = seen.leader
                        && leader != self.node
                    {
                        return leader;
                    }
                }
            };
            let refused = async {
                loop {
                    self.runtime.sleep(TARGET_LOOK_PAUSE).await;
                    if self.transport.probe(target, TARGET_LOOK_PAUSE).await == Probe::Refused {
                        return;
                    }
                }
            };
            match self.runtime.timeout(timeout, select(taken, refused)).await {
                Ok(Either::Left(leader)) => Ok(leader),
                // Whoever is left elects once this process is gone, too.
                Ok(Either::Right(())) => Err(TransferError::TargetGone(target)),
                Err(Elapsed) => Err(TransferError::Timeout),
            }
        })
    }
}
