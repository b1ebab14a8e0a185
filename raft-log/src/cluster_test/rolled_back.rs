//! Replicas that come back with less than they had: an older copy of their whole directory, put back.

use std::path::Path;
use std::time::Duration;

use crate::cluster_test::{Cluster, PATIENCE, numbers, payload};
use crate::{NodeId, Role, Standing};

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

impl Cluster {
    /// Stops a replica for good, and gives a copy of its directory.
    async fn back_up(&mut self, node: NodeId) -> tempfile::TempDir {
        self.running[&node].0.shutdown(PATIENCE).await;
        self.kill(node);
        let backup = tempfile::tempdir().unwrap();
        copy(self.dirs[&node].path(), backup.path());
        backup
    }

    async fn await_standing(&self, node: NodeId, is_so: impl Fn(&Standing) -> bool) {
        let log = &self.running[&node].0;
        let reached = async {
            while !is_so(&log.standing()) {
                self.runtime.sleep(Duration::from_millis(5)).await;
            }
        };
        self.within("a standing", reached).await;
    }
}

/// The leader remembers what the follower confirmed to it. The copy never counts, and is filled and voting again by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_older_copy_of_a_directory_is_told_from_it_and_taken_in_again() {
    let mut cluster = Cluster::start(3).await;
    cluster.await_recorded().await;
    cluster.propose(payload(0)).await;
    let (leader, _) = cluster.leader().await;
    let victim = cluster.nodes().into_iter().find(|node| *node != leader).unwrap();
    let before = cluster.running[&victim].0.incarnation();
    let backup = cluster.back_up(victim).await;
    cluster.start_node(victim).await;
    for number in 1..30 {
        cluster.propose(payload(number)).await;
    }
    cluster.settle().await;
    assert_eq!(cluster.running[&victim].0.incarnation(), before, "a restart alone is none of that");
    drop(cluster.back_up(victim).await);
    cluster.dirs.insert(victim, backup);
    cluster.start_node(victim).await;
    let log = cluster.running[&victim].0.clone();
    let renounced = async {
        while log.incarnation() == before {
            cluster.runtime.sleep(Duration::from_millis(5)).await;
        }
    };
    cluster.within("the copy to be found out", renounced).await;
    cluster.propose(payload(30)).await;
    cluster.await_voters(&[1, 2, 3]).await;
    let mut seen = numbers(&cluster.settle().await);
    seen.dedup();
    assert_eq!(seen, (0..=30).collect::<Vec<_>>());
    // It is as good as any other from then on, also over a restart.
    drop(log);
    let life = cluster.running[&victim].0.incarnation();
    drop(cluster.back_up(victim).await);
    cluster.start_node(victim).await;
    cluster.propose(payload(31)).await;
    cluster.settle().await;
    assert_eq!(
        (cluster.running[&victim].0.incarnation(), cluster.running[&victim].0.standing()),
        (life, Standing::Member)
    );
}

/// What an older copy must not do: elect, together with one that was away, a leader without what the third has acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_older_copy_and_one_that_was_away_elect_nobody_without_the_one_that_knows() {
    let mut cluster = Cluster::start(3).await;
    cluster.await_recorded().await;
    cluster.propose(payload(0)).await;
    cluster.settle().await;
    let (knows, log) = cluster.leader().await;
    let others: Vec<NodeId> = cluster.nodes().into_iter().filter(|node| *node != knows).collect();
    let (away, victim) = (others[0], others[1]);
    let backup = cluster.back_up(victim).await;
    cluster.start_node(victim).await;
    cluster.settle().await;
    cluster.net.isolate(away, true);
    for number in 1..20 {
        cluster.propose(payload(number)).await;
    }
    drop(cluster.back_up(victim).await);
    cluster.dirs.insert(victim, backup);
    cluster.start_node(victim).await;
    cluster.await_standing(victim, |standing| matches!(standing, Standing::LostDisk { .. })).await;
    log.shutdown(PATIENCE).await;
    drop(log);
    cluster.kill(knows);
    cluster.net.isolate(away, false);
    cluster.runtime.sleep(Duration::from_secs(3)).await;
    for (node, (log, _)) in &cluster.running {
        assert_ne!(log.status().role, Role::Leader, "node {node} leads without what was acknowledged");
    }
    cluster.start_node(knows).await;
    cluster.propose(payload(20)).await;
    cluster.await_voters(&[1, 2, 3]).await;
    let mut seen = numbers(&cluster.settle().await);
    seen.dedup();
    assert_eq!(seen, (0..=20).collect::<Vec<_>>());
}

/// With two, whoever remembers is needed for everything anyway, and could not take the other one in again alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_group_of_two_goes_on_with_an_older_copy_and_fills_it() {
    let mut cluster = Cluster::start(2).await;
    cluster.await_recorded().await;
    cluster.propose(payload(0)).await;
    let (leader, _) = cluster.leader().await;
    let victim = cluster.nodes().into_iter().find(|node| *node != leader).unwrap();
    let life = cluster.running[&victim].0.incarnation();
    let backup = cluster.back_up(victim).await;
    cluster.start_node(victim).await;
    for number in 1..30 {
        cluster.propose(payload(number)).await;
    }
    drop(cluster.back_up(victim).await);
    cluster.dirs.insert(victim, backup);
    cluster.start_node(victim).await;
    cluster.propose(payload(30)).await;
    let mut seen = numbers(&cluster.settle().await);
    seen.dedup();
    assert_eq!(seen, (0..=30).collect::<Vec<_>>());
    assert_eq!(cluster.running[&victim].0.incarnation(), life);
}
