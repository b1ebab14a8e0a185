//! A group goes on with one replica when its majority is gone for good, and what comes back does not count.

use std::time::Duration;

use crate::cluster_test::{Cluster, Log, numbers, payload};
use crate::{LogIndex, NodeId, RecoveryError, RecoveryRefusal, Role, Standing};

impl Cluster {
    /// Has the group go on with `survivor` alone, which is started again for it.
    async fn recover(&mut self, survivor: NodeId) {
        let (log, _) = self.running[&survivor].clone();
        log.order_recovery().await.unwrap();
        let why = self.within("the survivor to stop", log.failed()).await;
        assert!(why.contains("start it again"), "{why}");
        drop(log);
        self.kill(survivor);
        self.start_node(survivor).await;
        self.await_leader(survivor).await;
    }

    async fn await_leader(&self, node: NodeId) -> Log {
        let (leader, log) = self.leader().await;
        assert_eq!(leader, node, "who leads");
        log
    }

    async fn await_given_up(&self, node: NodeId) {
        let (log, _) = &self.running[&node];
        let told = async {
            while log.standing() != (Standing::GivenUp { epoch: 1 }) {
                self.runtime.sleep(Duration::from_millis(20)).await;
            }
        };
        self.within("the word that it is given up", told).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_survivor_goes_on_with_all_it_had_and_the_majority_that_comes_back_takes_nothing_away() {
    let mut cluster = Cluster::start(3).await;
    cluster.await_recorded().await;
    for number in 0..50 {
        cluster.propose(payload(number)).await;
    }
    cluster.settle().await;
    let (leader, _) = cluster.leader().await;
    let survivor = cluster.nodes().into_iter().find(|node| *node != leader).unwrap();
    let given_up: Vec<NodeId> = cluster.nodes().into_iter().filter(|node| *node != survivor).collect();
    for node in &given_up {
        cluster.kill(*node);
    }
    let plan = cluster.running[&survivor].0.plan_recovery().await;
    assert_eq!((plan.node, plan.epoch, plan.refusal), (survivor, 1, None));
    assert!(plan.committed >= Some(LogIndex(49)) && plan.durable == plan.last.map(|(_, last)| last));
    assert_eq!(plan.given_up.keys().copied().collect::<Vec<_>>(), given_up);
    assert!(plan.given_up.values().all(|member| member.is_voter && member.answered.is_none()));
    cluster.recover(survivor).await;
    let members = cluster.running[&survivor].0.members();
    assert_eq!((members.voters, members.members.len(), members.epoch), ([survivor].into(), 1, 1));
    for number in 50..60 {
        cluster.propose(payload(number)).await;
    }
    // Both are a majority of the membership that they know.
    for node in &given_up {
        cluster.start_node(*node).await;
    }
    for node in &given_up {
        cluster.await_given_up(*node).await;
    }
    cluster.runtime.sleep(Duration::from_secs(2)).await;
    let log = cluster.await_leader(survivor).await;
    assert_eq!(log.status().members, [survivor].into());
    drop(log);
    // They know it for good, even where the survivor cannot be asked.
    cluster.net.isolate(survivor, true);
    for node in &given_up {
        cluster.kill(*node);
    }
    for node in &given_up {
        cluster.start_node(*node).await;
    }
    cluster.runtime.sleep(Duration::from_secs(2)).await;
    for node in &given_up {
        let (log, _) = &cluster.running[node];
        assert_ne!(log.status().role, Role::Leader, "replica {node} was given up and leads");
        assert_eq!(log.standing(), Standing::GivenUp { epoch: 1 });
    }
    for node in &given_up {
        cluster.kill(*node);
    }
    cluster.net.isolate(survivor, false);
    // With empty directories they are taken in again.
    for node in &given_up {
        cluster.start_newcomer(node.0).await;
        cluster.add(node.0).await;
    }
    cluster.await_led_by(&[1, 2, 3]).await;
    cluster.propose(payload(60)).await;
    assert!(cluster.running.values().all(|(log, _)| log.members().epoch == 1));
    let mut seen = numbers(&cluster.settle().await);
    seen.dedup();
    assert_eq!(seen, (0..=60).collect::<Vec<_>>());
    // And a majority of the new group does without the survivor.
    cluster.kill(survivor);
    cluster.propose(payload(61)).await;
}

/// Where nobody can tell them, replicas that were given up go on as the majority that they are: the first word ends it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_majority_that_led_on_elsewhere_ends_at_the_first_word_of_the_group() {
    let mut cluster = Cluster::start(3).await;
    cluster.await_recorded().await;
    for number in 0..10 {
        cluster.propose(payload(number)).await;
    }
    cluster.settle().await;
    let (leader, _) = cluster.leader().await;
    let survivor = cluster.nodes().into_iter().find(|node| *node != leader).unwrap();
    let given_up: Vec<NodeId> = cluster.nodes().into_iter().filter(|node| *node != survivor).collect();
    cluster.net.isolate(survivor, true);
    let (log, _) = cluster.running[&survivor].clone();
    log.order_recovery().await.unwrap();
    drop(log);
    cluster.kill(survivor);
    cluster.start_node(survivor).await;
    let (log, _) = cluster.running[&survivor].clone();
    let leads = async {
        while !log.status().can_write {
            cluster.runtime.sleep(Duration::from_millis(10)).await;
        }
    };
    cluster.within("the survivor to lead", leads).await;
    for number in 10..20 {
        log.propose(payload(number), None).await.unwrap();
    }
    // Declared dead, and well.
    let other_leader = async {
        loop {
            if let Some(node) = given_up.iter().find(|node| cluster.running[node].0.status().can_write) {
                return *node;
            }
            cluster.runtime.sleep(Duration::from_millis(10)).await;
        }
    };
    let other_leader = cluster.within("the others' leader", other_leader).await;
    let (other, _) = cluster.running[&other_leader].clone();
    other.propose(payload(1000), None).await.unwrap();
    cluster.net.isolate(survivor, false);
    let why = cluster.within("the others' leader to stop", other.failed()).await;
    assert!(why.contains("epoch 1") && why.contains("gone on without this replica"), "{why}");
    drop(other);
    cluster.kill(other_leader);
    cluster.runtime.sleep(Duration::from_secs(1)).await;
    let follower = given_up.into_iter().find(|node| *node != other_leader).unwrap();
    assert_ne!(cluster.running[&follower].0.status().role, Role::Leader, "alone it is no majority");
    cluster.start_node(other_leader).await;
    cluster.await_given_up(other_leader).await;
    cluster.await_given_up(follower).await;
    log.propose(payload(20), None).await.unwrap();
    let mut seen = numbers(&cluster.running[&survivor].1.applied());
    seen.dedup();
    assert_eq!(seen, (0..=20).collect::<Vec<_>>(), "nothing of the others' is here, and nothing is missing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_recovery_that_would_be_wrong_is_refused_with_its_reason() {
    let mut cluster = Cluster::start(5).await;
    cluster.await_recorded().await;
    cluster.await_voters(&[1, 2, 3, 4, 5]).await;
    cluster.propose(payload(0)).await;
    cluster.settle().await;
    let (leader, log) = cluster.leader().await;
    let followers: Vec<NodeId> = cluster.nodes().into_iter().filter(|node| *node != leader).collect();
    let (behind, ahead) = (followers[0], followers[1]);
    let (log_behind, _) = cluster.running[&behind].clone();
    let refused = log_behind.order_recovery().await;
    let expected = RecoveryRefusal::MajorityAnswers { alive: 5, voters: 5 };
    assert!(matches!(&refused, Err(RecoveryError::Refused(refusal)) if *refusal == expected), "{refused:?}");
    cluster.net.isolate(behind, true);
    for number in 1..5 {
        log.propose(payload(number), None).await.unwrap();
    }
    let last = log.status().last.unwrap();
    drop(log);
    cluster.running[&ahead].0.wait_durable(last).await.unwrap();
    for node in cluster.nodes() {
        if node != ahead && node != behind {
            cluster.kill(node);
        }
    }
    cluster.net.isolate(behind, false);
    let refused = log_behind.order_recovery().await;
    let Err(RecoveryError::Refused(RecoveryRefusal::LongerLog { node, last: theirs, .. })) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!((node, theirs >= last), (ahead, true));
    drop(log_behind);
    // Whoever survives beside the one that goes on is given up like the dead ones.
    cluster.recover(ahead).await;
    cluster.await_given_up(behind).await;
    let seen = numbers(&cluster.running[&ahead].1.applied());
    assert_eq!(seen, (0..5).collect::<Vec<_>>());
}
