//! A majority is gone for good, and an operator has the group go on with the one that is left.

use std::time::Duration;

use flotilla_client::FromReplica;
use flotilla_proto::admin::{RecoverGroupReply, ReplicaChange};
use serde::{Deserialize, Serialize};

use super::field::{CATCH_UP_TIMEOUT, short};
use super::{About, Field, FieldError, Nemesis, Victim};

pub(super) const ABOUT: About = About {
    what: "all replicas but one are killed and their disks are emptied, that one was cut off a while before, or not; nobody may lead",
    heals: "an operator orders the one that is left to go on alone; it does, and the others are taken in, empty, one by one",
};

/// How long the order may be refused, be carried out, and the others may take to be voters.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(100);
/// A leader that is left alone may take messages at level async until its lease is over.
const LEASE_IS_OVER: Duration = Duration::from_millis(1_500);
/// How long nobody leads then is looked at.
const ALONE: Duration = Duration::from_secs(3);

/// One that is left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MajorityGone {
    /// Who is left: one.
    #[serde(flatten)]
    pub survivor: Victim,
    /// So long before it is cut off from the others, which go on without it.
    pub lacks_ms: u64,
    /// The others are started with empty disks, under their old numbers, before the operator comes.
    pub come_back_empty: bool,
}

impl Nemesis for MajorityGone {
    async fn hurt(&self, field: &mut Field) -> Result<Vec<u64>, FieldError> {
        let nodes = self.survivor.nodes(field).await?;
        let [survivor] = nodes[..] else {
            return Err(FieldError::Nothing(format!("{nodes:?} are not the one that is left")));
        };
        let others = field.others(survivor);
        if self.lacks_ms > 0 {
            field.cut_off(&[survivor], true).await?;
            field.runtime.sleep(Duration::from_millis(self.lacks_ms)).await;
        }
        field.cluster.kill_all(&others).await?;
        field.empty_disks(&others)?;
        if self.lacks_ms > 0 {
            field.cut_off(&[survivor], false).await?;
        }
        field.survivor = Some(survivor);
        if self.come_back_empty
            && let Err(error) = field.cluster.restart_all(&others).await
        {
            field.notes.push(short(&error.to_string()));
        }
        field.runtime.sleep(LEASE_IS_OVER).await;
        match field.view.await_leader(0, ALONE).await {
            Ok(leader) => Err(FieldError::Wrong(format!(
                "replica {} leads although a majority is gone and nobody has ordered it",
                leader.node
            ))),
            Err(error) => {
                field.notes.push(format!("as it should: {error}"));
                Ok(others)
            }
        }
    }

    async fn heal(&self, field: &mut Field, targets: &[u64]) -> Result<(), FieldError> {
        let Some(survivor) = field.survivor.take() else { return field.mend(targets).await };
        // Whoever else runs is stopped first: it must not be taken for a majority, nor take itself for one.
        field.cluster.kill_all(targets).await?;
        field.order_to_go_on(survivor).await?;
        field.cluster.restart(survivor).await?;
        field.view.await_leader(0, field.leader_timeout).await?;
        for node in targets {
            // What it may have begun with an empty disk is no life of the new group's.
            if field.cluster.data(*node).join("log").exists() {
                field.empty_disks(&[*node])?;
            }
            field.cluster.set_joining(*node);
            field.cluster.restart(*node).await?;
            field.change_member(ReplicaChange::Add, *node).await?;
            field.change_member(ReplicaChange::Promote, *node).await?;
            field.await_voter(*node).await?;
            field.view.await_caught_up(*node, CATCH_UP_TIMEOUT).await?;
        }
        Ok(())
    }
}

impl Field {
    /// Does as the operator's command does: asks what would come of it, orders it, and waits until the replica has stopped.
    async fn order_to_go_on(&mut self, survivor: u64) -> Result<(), FieldError> {
        let deadline = self.runtime.now() + RECOVERY_TIMEOUT;
        loop {
            let (plan, refusal) = match self.admin.plan_recoveries().await {
                Ok(answers) => longest_of(answers),
                Err(error) => (None, error.to_string()),
            };
            if let Some((address, plan)) = plan {
                if plan.node != survivor {
                    return Err(FieldError::Wrong(format!(
                        "replica {} would go on although {survivor} is the one that is left",
                        plan.node
                    )));
                }
                let ordered = self.admin.recover_group(&address, &plan.group, survivor).await?;
                self.kept_up_to = ordered.last_index;
                let last = crate::cluster::index_text(ordered.last_index);
                self.notes.push(format!("replica {survivor} goes on alone with its entries up to {last}, by order"));
                break;
            }
            if self.runtime.now() >= deadline {
                return Err(FieldError::Wrong(format!("replica {survivor} may not go on alone: {refusal}")));
            }
            self.runtime.sleep(PAUSE).await;
        }
        while !self.cluster.dead_nodes().contains(&survivor) {
            for (node, error) in self.cluster.take_fallen() {
                if node != survivor {
                    self.notes.push(short(&error.to_string()));
                }
            }
            if self.runtime.now() >= deadline {
                return Err(FieldError::Wrong(format!("replica {survivor} does not stop though it was ordered to")));
            }
            self.runtime.sleep(PAUSE).await;
        }
        Ok(())
    }
}

/// The plan of the replica with the longest log that may go on, with its address; else why none may.
fn longest_of(answers: Vec<FromReplica<RecoverGroupReply>>) -> (Option<(String, RecoverGroupReply)>, String) {
    let (mut plans, mut refusals) = (Vec::new(), Vec::new());
    for FromReplica { address, answer } in answers {
        match answer {
            Ok(plan) if plan.refusal.is_empty() => plans.push((address, plan)),
            Ok(plan) => refusals.push(format!("{address}: {}", plan.refusal)),
            Err(error) => refusals.push(format!("{address}: {error}")),
        }
    }
    let longest = plans.into_iter().max_by_key(|(_, plan)| (plan.last_term, plan.last_index));
    (longest, refusals.join("; "))
}
