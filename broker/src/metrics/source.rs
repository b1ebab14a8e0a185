//! A replica as monitoring asks it.

use std::sync::{Arc, Weak};

use flotilla_metrics::{Exposition, Health, Source};

use super::{health_numbers, log_numbers, message_numbers};
use crate::lead::leadership::Place;
use crate::replica::Replica;

/// Does not keep the replica alive: a stopped one tells nothing.
pub struct ReplicaSource {
    replica: Weak<Replica>,
    part: String,
}

impl ReplicaSource {
    /// The source of one replica's numbers.
    pub fn new(replica: &Arc<Replica>) -> ReplicaSource {
        let part = format!("replica {} of {}", replica.config.node, replica.config.group);
        ReplicaSource { replica: Arc::downgrade(replica), part }
    }

    fn judged(&self, judge: impl FnOnce(&Replica, Health) -> Health) -> Health {
        let health = Health::of(&self.part);
        match self.replica.upgrade() {
            Some(replica) => judge(&replica, health),
            None => health.unless(false, || "replica has stopped".to_owned()),
        }
    }
}

impl Source for ReplicaSource {
    fn measure(&self, into: &mut Exposition) {
        let Some(replica) = self.replica.upgrade() else { return };
        let (config, node) = (&replica.config, replica.config.node.to_string());
        into.set_base(&[
            ("cluster", config.cluster.as_str()),
            ("node_type", "broker"),
            ("node_id", config.group.as_str()),
            ("replica", node.as_str()),
        ]);
        let help = "1; the version that runs.";
        into.gauge_whole("flotilla_build_info", help, &[("version", env!("CARGO_PKG_VERSION"))], 1);
        let ready = judge_ready(&replica, Health::of(""));
        let help = "1 if this replica can serve: what /ready says.";
        into.gauge_whole("flotilla_ready", help, &[], u64::from(ready.is_ok()));
        log_numbers::write(&replica, into);
        health_numbers::write(&replica, into);
        message_numbers::write(&replica, into);
    }

    fn live(&self) -> Health {
        self.judged(judge_live)
    }

    fn ready(&self) -> Health {
        self.judged(judge_ready)
    }
}

fn judge_live(replica: &Replica, health: Health) -> Health {
    let failure = replica.failure.get().or_else(|| replica.log.failure());
    health.unless(failure.is_none(), || failure.clone().unwrap_or_default())
}

fn judge_ready(replica: &Replica, health: Health) -> Health {
    let (seen, stats) = (replica.log.status(), replica.log.stats());
    let known = seen.committed.max(stats.cluster_committed).map_or(0, |index| index.0);
    let applied = seen.applied.map_or(0, |index| index.0);
    let (lag, lag_max) = (known.saturating_sub(applied), replica.config.ready_lag_entries_max);
    let no_member = replica.no_member();
    judge_live(replica, health)
        .unless(no_member.is_none(), || format!("replica {}", no_member.clone().unwrap_or_default()))
        .unless(Place::of(&seen) != Place::Nobody, || "no leader is known that may write".to_owned())
        .unless(lag <= lag_max, || format!("{lag} committed entries are not applied, at most {lag_max} are allowed"))
        // Where all disks are slow or full the group still serves, and nobody should be sent away.
        .warn(replica.alarms.raised().into_iter().map(|(alarm, reason)| format!("{}: {reason}", alarm.text())))
}
