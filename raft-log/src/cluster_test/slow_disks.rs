//! Elections and reigns where keeping a vote, or an entry, takes longer than the usual time-outs.

use std::collections::BTreeSet;

use super::*;

/// A leader must be found within this time, however the slow disks of these tests delay it.
const ELECTION_MAX: Duration = Duration::from_secs(8);

/// Kills the leader where the syncs of the other two take so long each. Time until one of them leads.
async fn elect_where_syncs_take(first_ms: u64, second_ms: u64) -> Duration {
    let mut cluster = Cluster::start(3).await;
    cluster.propose(payload(0)).await;
    cluster.settle().await;
    let (leader, _) = cluster.leader().await;
    let left = cluster.nodes().into_iter().filter(|node| *node != leader);
    for (node, ms) in left.zip([first_ms, second_ms]) {
        cluster.disks[&node].take_longer(Duration::from_millis(ms));
    }
    cluster.kill(leader);
    let began = cluster.runtime.now();
    let (_, log) = cluster.leader().await;
    let took = cluster.runtime.now() - began;
    let applied = cluster.within("a proposal", log.propose(payload(1), None)).await;
    assert!(applied.is_ok(), "{applied:?}");
    took
}

/// The voter's answer comes long after the candidate would have asked anew: it must count all the same. By then it has asked for
/// a pre-vote, too; were that answer taken first, a new term would begin each time and the vote be for nothing. Which of the
/// two is first is chance: hence several groups at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_candidate_waits_for_the_vote_of_the_only_other_voter_however_slow_its_disk() {
    for (ms, limit_ms) in [(300, 2_300), (700, 3_500)] {
        let groups = (0..6).map(|_| elect_where_syncs_take(0, ms));
        for took in futures::future::join_all(groups).await {
            println!("{ms} ms a sync at one of the two: a leader after {took:?}");
            assert!(took < Duration::from_millis(limit_ms), "{ms} ms a sync: a leader only after {took:?}");
        }
    }
}

/// Neither gives up before the other one has answered, and the one that voted does not depose whom it voted for.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_leader_is_found_where_every_disk_is_slow() {
    for ms in [300, 500] {
        let took = elect_where_syncs_take(ms, ms).await;
        println!("{ms} ms a sync at both: a leader after {took:?}");
        assert!(took < ELECTION_MAX, "{ms} ms a sync: a leader only after {took:?}");
    }
}

/// What helps where disks are slow costs nothing where they are not: the gone leader is replaced without waiting for a lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn where_votes_are_kept_quickly_nobody_pauses() {
    let took = elect_where_syncs_take(0, 0).await;
    println!("healthy disks: a leader after {took:?}");
    assert!(took < Duration::from_secs(3), "a leader only after {took:?}");
}

/// Signs of life do not stand in line behind syncs: a leader keeps its lease, its term and its callers.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_leader_whose_followers_sync_longer_than_its_lease_goes_on_leading() {
    let cluster = Cluster::start(3).await;
    cluster.propose(payload(0)).await;
    cluster.settle().await;
    let (leader, log) = cluster.leader().await;
    let term = log.status().term;
    for disk in cluster.disks.values() {
        disk.take_longer(Duration::from_millis(600));
    }
    let began = cluster.runtime.now();
    let mut indexes = BTreeSet::new();
    while cluster.runtime.now() - began < Duration::from_secs(6) {
        let applied = cluster.within("a proposal", log.propose(payload(1), None)).await;
        indexes.insert(applied.expect("it leads").index);
        assert!(log.status().can_write, "the followers are heard while they sync");
    }
    assert_eq!((log.status().term, log.status().role), (term, Role::Leader), "node {leader}");
    assert!(indexes.len() >= 3, "slow, but on it goes: {}", indexes.len());
}
