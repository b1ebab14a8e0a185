//! Members come and go while the group runs.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::cluster_test::{Cluster, Log, PATIENCE, numbers, payload};
use crate::{MemberError, NodeId, Role};

impl Cluster {
    /// Starts a replica with an empty directory that comes to a group that is there.
    pub(crate) async fn start_newcomer(&mut self, node: u64) {
        let node = NodeId(node);
        self.dirs.insert(node, tempfile::tempdir().unwrap());
        let mut config = self.config(node);
        config.voters = BTreeSet::new();
        self.start_node_with(config).await;
    }

    /// Repeats a step at whoever leads until it is done.
    async fn until_done(&self, what: &str, step: impl AsyncFn(&Log) -> Result<bool, MemberError>) {
        let trying = async {
            loop {
                let (_, log) = self.leader().await;
                match step(&log).await {
                    Ok(true) => return,
                    Ok(false)
                    | Err(
                        MemberError::Busy
                        | MemberError::HandedOver
                        | MemberError::NotLeader { .. }
                        | MemberError::NotMade(_)
                        | MemberError::Silent(_),
                    ) => self.runtime.sleep(Duration::from_millis(20)).await,
                    Err(error) => panic!("{what} is refused: {error}"),
                }
            }
        };
        self.within(what, trying).await;
    }

    pub(crate) async fn add(&self, node: u64) {
        let node = NodeId(node);
        self.until_done("taking in", async |log| log.add_learner(node, PATIENCE).await.map(|()| true)).await;
        self.until_done("promoting", async |log| log.promote(node, PATIENCE).await.map(|()| true)).await;
    }

    async fn remove(&self, node: u64) {
        self.until_done("taking out", async |log| log.remove_member(NodeId(node), PATIENCE).await).await;
    }

    /// Waits until whoever leads says that these vote.
    pub(crate) async fn await_led_by(&self, voters: &[u64]) {
        let voters: BTreeSet<NodeId> = voters.iter().copied().map(NodeId).collect();
        let agreed = async {
            loop {
                let (_, log) = self.leader().await;
                let members = log.members();
                if members.voters == voters && members.is_committed && !members.is_joint {
                    return;
                }
                self.runtime.sleep(Duration::from_millis(20)).await;
            }
        };
        self.within("the voters", agreed).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_group_grows_from_one_to_five_and_shrinks_back_and_loses_nothing() {
    let mut cluster = Cluster::start(1).await;
    let mut sent = 0;
    for node in 2..=5 {
        cluster.start_newcomer(node).await;
        for _ in 0..30 {
            cluster.propose(payload(sent)).await;
            sent += 1;
        }
        cluster.add(node).await;
        cluster.await_led_by(&(1..=node).collect::<Vec<_>>()).await;
    }
    // A majority of five holds what two of them do not.
    for node in [NodeId(4), NodeId(5)] {
        cluster.kill(node);
    }
    cluster.propose(payload(sent)).await;
    sent += 1;
    for node in [NodeId(4), NodeId(5)] {
        cluster.start_node(node).await;
    }
    cluster.settle().await;
    // The first ones go, whoever leads: the leader hands over first.
    for node in 1..=4 {
        cluster.remove(node).await;
        cluster.propose(payload(sent)).await;
        sent += 1;
        cluster.await_led_by(&(node + 1..=5).collect::<Vec<_>>()).await;
        let gone = cluster.running[&NodeId(node)].0.status();
        assert_ne!(gone.role, Role::Leader, "{gone:?}");
        cluster.kill(NodeId(node));
    }
    let mut seen = numbers(&cluster.settle().await);
    seen.dedup();
    assert_eq!(seen, (0..sent).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_dead_replica_is_replaced_by_a_new_one() {
    let mut cluster = Cluster::start(3).await;
    cluster.await_recorded().await;
    cluster.propose(payload(0)).await;
    cluster.kill(NodeId(3));
    cluster.start_newcomer(4).await;
    cluster.add(4).await;
    cluster.await_led_by(&[1, 2, 3, 4]).await;
    cluster.remove(3).await;
    cluster.await_led_by(&[1, 2, 4]).await;
    cluster.dirs.remove(&NodeId(3));
    cluster.kill(NodeId(1));
    cluster.propose(payload(1)).await;
    cluster.start_node(NodeId(1)).await;
    let mut seen = numbers(&cluster.settle().await);
    seen.dedup();
    assert_eq!(seen, [0, 1]);
}

/// Whatever step the change has come to when its leader dies, another one goes on from there.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_change_is_finished_although_its_leader_is_killed_in_the_middle() {
    for after_ms in [0, 5, 20, 60, 200, 400] {
        let mut cluster = Cluster::start(3).await;
        cluster.await_recorded().await;
        for number in 0..40 {
            cluster.propose(payload(number)).await;
        }
        cluster.start_newcomer(4).await;
        let (leader, log) = cluster.leader().await;
        let adding = async {
            let _ = log.add_learner(NodeId(4), PATIENCE).await;
            let _ = log.promote(NodeId(4), PATIENCE).await;
        };
        let _ = cluster.runtime.timeout(Duration::from_millis(after_ms), adding).await;
        drop(log);
        cluster.kill(leader);
        cluster.add(4).await;
        cluster.await_led_by(&[1, 2, 3, 4]).await;
        let (second, log) = cluster.leader().await;
        let removing = async { while !matches!(log.remove_member(leader, PATIENCE).await, Ok(true) | Err(_)) {} };
        let _ = cluster.runtime.timeout(Duration::from_millis(after_ms), removing).await;
        drop(log);
        cluster.start_node(leader).await;
        cluster.kill(second);
        cluster.remove(leader.0).await;
        cluster.kill(leader);
        cluster.start_node(second).await;
        let left: Vec<u64> = (1..=4).filter(|node| *node != leader.0).collect();
        cluster.await_led_by(&left).await;
        cluster.propose(payload(40)).await;
        let mut seen = numbers(&cluster.settle().await);
        seen.dedup();
        assert_eq!(seen, (0..=40).collect::<Vec<_>>(), "after {after_ms} ms");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn impossible_changes_are_refused_with_their_reason() {
    let mut cluster = Cluster::start(3).await;
    cluster.await_recorded().await;
    let (leader, log) = cluster.leader().await;
    assert_eq!(log.add_learner(NodeId(9), PATIENCE).await, Err(MemberError::Silent(NodeId(9))));
    assert_eq!(log.promote(NodeId(9), PATIENCE).await, Err(MemberError::Unknown(NodeId(9), vec![1, 2, 3])));
    assert_eq!(log.remove_member(NodeId(9), PATIENCE).await, Ok(true), "it is none already");
    assert_eq!(log.add_learner(NodeId(2), PATIENCE).await, Ok(()), "it is one already");
    let followers: Vec<NodeId> = cluster.nodes().into_iter().filter(|node| *node != leader).collect();
    let (follower, _) = (&cluster.running[&followers[0]].0, ());
    let elsewhere = follower.remove_member(followers[1], PATIENCE).await;
    assert_eq!(elsewhere, Err(MemberError::NotLeader { leader: Some(leader) }));
    cluster.kill(followers[0]);
    cluster.runtime.sleep(Duration::from_secs(4)).await;
    let refused = log.remove_member(followers[1], PATIENCE).await;
    let expected = MemberError::NoMajority { node: followers[1], left: 2, needed: 2, alive: 1 };
    assert_eq!(refused, Err(expected), "the dead one may go, the living one may not");
    drop(log);
    let alone = Cluster::start(1).await;
    let (_, log) = alone.leader().await;
    assert_eq!(log.remove_member(NodeId(1), PATIENCE).await, Err(MemberError::LastVoter(NodeId(1))));
}
