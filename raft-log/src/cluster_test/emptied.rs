//! Replicas whose directories were emptied, and replicas that are new.

use std::time::Duration;

use crate::cluster_test::{Cluster, PATIENCE, numbers, payload};
use crate::{GroupMembers, NodeId, Role, Standing};

impl Cluster {
    /// Its directory is another one from now on.
    pub(crate) fn empty(&mut self, node: NodeId) {
        self.dirs.insert(node, tempfile::tempdir().unwrap());
    }

    /// Waits until every running replica says that these vote and nobody is missing from its log.
    pub(crate) async fn await_voters(&self, voters: &[u64]) {
        let voters = voters.iter().copied().map(NodeId).collect();
        let agreed = async {
            while !self.running.values().all(|(log, _)| {
                let members = log.members();
                members.voters == voters
                    && !members.is_joint
                    && members.is_committed
                    && log.standing() == Standing::Member
            }) {
                self.runtime.sleep(Duration::from_millis(20)).await;
            }
        };
        self.within("the voters", agreed).await;
    }

    /// Waits until the members of all running replicas are recorded with their lives, and nothing of that is under way.
    pub(crate) async fn await_recorded(&self) {
        let recorded = async {
            while !self.running.values().all(|(log, _)| {
                let GroupMembers { members, is_committed, is_joint, .. } = log.members();
                let are_known = members.values().all(|member| member.incarnation.is_known());
                !members.is_empty() && are_known && is_committed && !is_joint
            }) {
                self.runtime.sleep(Duration::from_millis(20)).await;
            }
        };
        self.within("the members' lives", recorded).await;
    }
}

/// The case of the field: one is away, what is acknowledged meanwhile is on the other two; one of these loses its disk, the
/// other one is away, and the first comes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_emptied_replica_and_one_that_was_away_elect_nobody_without_the_one_that_knows() {
    for is_recorded in [true, false] {
        let mut cluster = Cluster::start(3).await;
        if is_recorded {
            cluster.await_recorded().await;
        }
        cluster.propose(payload(0)).await;
        let (knows, _) = cluster.leader().await;
        let others: Vec<NodeId> = cluster.nodes().into_iter().filter(|node| *node != knows).collect();
        let (away, emptied) = (others[0], others[1]);
        cluster.kill(away);
        for number in 1..50 {
            cluster.propose(payload(number)).await;
        }
        cluster.kill(knows);
        cluster.kill(emptied);
        cluster.empty(emptied);
        cluster.start_node(emptied).await;
        cluster.start_node(away).await;
        cluster.runtime.sleep(Duration::from_secs(3)).await;
        for (node, (log, _)) in &cluster.running {
            assert_ne!(log.status().role, Role::Leader, "node {node} leads without what was acknowledged");
        }
        let lost = cluster.running[&emptied].0.standing();
        assert!(matches!(lost, Standing::LostDisk { .. }), "{lost:?}");
        cluster.start_node(knows).await;
        for number in 50..60 {
            cluster.propose(payload(number)).await;
        }
        cluster.await_voters(&[1, 2, 3]).await;
        let mut seen = numbers(&cluster.settle().await);
        seen.dedup();
        assert_eq!(seen, (0..60).collect::<Vec<_>>());
        assert_eq!(cluster.running[&emptied].0.standing(), Standing::Member);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn each_replica_in_turn_may_lose_its_disk_and_is_a_voter_again_by_itself() {
    let mut cluster = Cluster::start(3).await;
    cluster.await_recorded().await;
    for (round, node) in cluster.nodes().into_iter().enumerate() {
        let before = cluster.running[&node].0.incarnation();
        cluster.kill(node);
        cluster.propose(payload(2 * round as u32)).await;
        cluster.empty(node);
        cluster.start_node(node).await;
        cluster.propose(payload(2 * round as u32 + 1)).await;
        let (log, _) = cluster.running[&node].clone();
        assert_ne!(log.incarnation(), before);
        let taken_in = async {
            while log.members().members.get(&node).map(|member| member.incarnation) != Some(log.incarnation()) {
                cluster.runtime.sleep(Duration::from_millis(20)).await;
            }
        };
        cluster.within("the new life", taken_in).await;
        cluster.await_voters(&[1, 2, 3]).await;
    }
    let mut seen = numbers(&cluster.settle().await);
    seen.dedup();
    assert_eq!(seen, (0..6).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_group_is_founded_once_the_last_of_three_has_come_and_by_four_of_five() {
    for (size, enough) in [(3, 3), (5, 4)] {
        let mut cluster = Cluster::start(0).await;
        for node in 1..=size {
            cluster.dirs.insert(NodeId(node), tempfile::tempdir().unwrap());
        }
        for node in 1..enough {
            cluster.start_node(NodeId(node)).await;
        }
        cluster.runtime.sleep(Duration::from_secs(1)).await;
        for (log, _) in cluster.running.values() {
            assert_eq!((log.standing(), log.status().leader), (Standing::Founding, None));
        }
        cluster.start_node(NodeId(enough)).await;
        cluster.propose(payload(0)).await;
        for node in enough + 1..=size {
            cluster.start_node(NodeId(node)).await;
        }
        cluster.await_voters(&(1..=size).collect::<Vec<_>>()).await;
        assert_eq!(numbers(&cluster.settle().await), [0]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_majority_that_lost_its_disks_founds_no_second_group() {
    let mut cluster = Cluster::start(3).await;
    cluster.propose(payload(0)).await;
    for node in cluster.nodes() {
        cluster.kill(node);
    }
    for node in [NodeId(1), NodeId(2)] {
        cluster.empty(node);
        cluster.start_node(node).await;
    }
    cluster.runtime.sleep(Duration::from_secs(1)).await;
    assert!(cluster.running.values().all(|(log, _)| log.standing() == Standing::Founding));
    cluster.start_node(NodeId(3)).await;
    let told = async {
        while !cluster.nodes()[..2]
            .iter()
            .all(|node| matches!(cluster.running[node].0.standing(), Standing::LostDisk { .. }))
        {
            cluster.runtime.sleep(Duration::from_millis(20)).await;
        }
    };
    cluster.within("the word of the third", told).await;
    cluster.runtime.sleep(Duration::from_secs(1)).await;
    assert!(cluster.running.values().all(|(log, _)| log.status().role != Role::Leader), "nobody leads");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_log_that_is_gone_from_under_its_identity_is_a_lost_disk() {
    let mut cluster = Cluster::start(3).await;
    cluster.await_recorded().await;
    let (leader, _) = cluster.leader().await;
    let node = cluster.nodes().into_iter().find(|node| *node != leader).unwrap();
    let before = cluster.running[&node].0.incarnation();
    cluster.running[&node].0.shutdown(PATIENCE).await;
    cluster.kill(node);
    for file in std::fs::read_dir(cluster.dirs[&node].path()).unwrap() {
        let path = file.unwrap().path();
        if path.file_name().is_some_and(|name| name != "identity") && path.is_file() {
            std::fs::remove_file(path).unwrap();
        }
    }
    cluster.start_node(node).await;
    assert_ne!(cluster.running[&node].0.incarnation(), before);
    cluster.propose(payload(0)).await;
    cluster.await_voters(&[1, 2, 3]).await;
    cluster.settle().await;
}

/// Two lives of one replica at the same time: the one that the group has given up is heard no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_disk_that_comes_back_after_its_replica_was_taken_in_again_does_not_count() {
    let mut cluster = Cluster::start(3).await;
    cluster.await_recorded().await;
    let (leader, _) = cluster.leader().await;
    let node = cluster.nodes().into_iter().find(|node| *node != leader).unwrap();
    cluster.running[&node].0.shutdown(PATIENCE).await;
    cluster.kill(node);
    let old = cluster.dirs.insert(node, tempfile::tempdir().unwrap()).unwrap();
    cluster.start_node(node).await;
    cluster.propose(payload(0)).await;
    cluster.await_voters(&[1, 2, 3]).await;
    cluster.settle().await;
    cluster.running[&node].0.shutdown(PATIENCE).await;
    cluster.kill(node);
    cluster.dirs.insert(node, old);
    cluster.start_node(node).await;
    for number in 1..20 {
        cluster.propose(payload(number)).await;
    }
    cluster.runtime.sleep(Duration::from_secs(1)).await;
    let (log, ledger) = &cluster.running[&node];
    let known = cluster.running[&leader].0.members().members[&node].incarnation;
    assert_ne!(log.incarnation(), known, "{:?}", log.standing());
    assert!(ledger.applied().len() < 20, "nothing of its answers counts");
    assert_eq!(cluster.running[&leader].0.status().members.len(), 3, "and it is not taken for a new one");
}
