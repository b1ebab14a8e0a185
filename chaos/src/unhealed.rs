//! Replicas that a healing did not make whole: where one of them is, no fault may take another one's disk or place.
//!
//! The harness would destroy a majority by itself otherwise, and hold the loss against the cluster.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::nemesis::{FaultKind, Field};

/// How long a replica that was left behind may take to prove that it is whole after all, before each fault.
const PROOF_TIMEOUT: Duration = Duration::from_secs(1);

/// Which replicas are not whole, and since which fault.
#[derive(Debug, Default)]
pub(crate) struct Unhealed {
    since: BTreeMap<u64, (u64, FaultKind)>,
}

impl Unhealed {
    /// The healing of that fault failed for these.
    pub(crate) fn add(&mut self, number: u64, kind: FaultKind, nodes: &[u64]) {
        for node in nodes {
            self.since.entry(*node).or_insert((number, kind));
        }
    }

    /// Strikes those out that have caught up meanwhile.
    pub(crate) async fn look_again(&mut self, field: &Field) {
        let nodes: Vec<u64> = self.since.keys().copied().collect();
        for node in nodes {
            if field.is_whole(node, PROOF_TIMEOUT).await {
                self.since.remove(&node);
            }
        }
    }

    /// Why a fault of that kind is left out now; none if it may strike.
    pub(crate) fn why_not(&self, kind: FaultKind) -> Option<String> {
        let (node, (number, healed)) = self.since.first_key_value()?;
        let why =
            format!("left out: the healing of fault {number} ({healed}) failed, and replica {node} is not whole since");
        kind.card().class.is_solid().then_some(why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_take_a_second_replica_is_left_out_and_the_rest_is_not() {
        let mut unhealed = Unhealed::default();
        assert_eq!(unhealed.why_not(FaultKind::KillAll), None);
        unhealed.add(3, FaultKind::WipeDisk, &[2]);
        unhealed.add(4, FaultKind::ClockJump, &[2]);
        let why = unhealed.why_not(FaultKind::PowerLossLeader).unwrap();
        assert!(why.contains("fault 3 (wipe-disk)") && why.contains("replica 2"), "{why}");
        for kind in FaultKind::every() {
            assert_eq!(unhealed.why_not(*kind).is_some(), kind.card().class.is_solid(), "{kind}");
        }
        assert_eq!(unhealed.why_not(FaultKind::NamesrvLoss), None);
    }
}
