//! Field cases about leaders that are cut off: what they still take, and what becomes of what they had taken.

use super::bad_weather::FROZEN;
use super::*;
use crate::testing::{Link, Weather};

/// F08: a leader without a quorum refuses within its lease, and what comes to it meanwhile does not pile up.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_leader_without_a_quorum_takes_nothing_and_keeps_nothing() {
    let weather = Weather::default();
    let cluster = Cluster::start_in(3, &weather, 300).await;
    cluster.propose(payload(0)).await;
    cluster.settle().await;
    let (cut, log) = cluster.leader().await;
    let committed = log.status().committed;
    weather.set_around(cut, &cluster.nodes(), FROZEN);
    let cut_at = cluster.runtime.now();
    // A client that goes on sending; what is taken in the lease waits, and is counted.
    let (mut taken, mut refused_after) = (Vec::new(), None);
    while cluster.runtime.now() < cut_at + Duration::from_secs(4) {
        let proposing = {
            let log = log.clone();
            cluster.runtime.spawn("proposal", async move { log.propose(payload(1000), None).await })
        };
        cluster.runtime.sleep(Duration::from_millis(2)).await;
        taken.push(proposing);
        if !log.status().can_write && refused_after.is_none() {
            refused_after = Some(cluster.runtime.now() - cut_at);
        }
    }
    let refused_after = refused_after.expect("it refuses");
    assert!(refused_after < Duration::from_secs(2), "it said that it could write for {refused_after:?}");
    let (began, read) = (cluster.runtime.now(), log.confirm_leadership(Duration::from_secs(1)).await);
    assert!(read.is_err() && cluster.runtime.now() - began < Duration::from_millis(1500), "{read:?}");
    let (before, at) = (log.status().last, cluster.runtime.now());
    for _ in 0..2000 {
        let began = cluster.runtime.now();
        let refusal = log.propose(payload(1001), None).await.unwrap_err();
        assert!(matches!(refusal, ProposeError::NoQuorum | ProposeError::NotLeader { .. }), "{refusal:?}");
        assert!(cluster.runtime.now() - began < Duration::from_secs(1));
    }
    assert!(cluster.runtime.now() - at < Duration::from_secs(10));
    assert_eq!(log.status().last, before, "the log does not grow");
    assert_eq!(log.status().committed, committed, "nothing is committed");
    // The others have somebody else.
    let others = async {
        loop {
            for (_, (other, _)) in cluster.running.iter().filter(|(node, _)| **node != cut) {
                if other.status().can_write && other.propose(payload(1), None).await.is_ok() {
                    return;
                }
            }
            cluster.runtime.sleep(Duration::from_millis(10)).await;
        }
    };
    cluster.within("another leader", others).await;
    weather.set_around(cut, &cluster.nodes(), Link::default());
    let applied = numbers(&cluster.settle().await);
    assert_eq!(applied, [0, 1], "none of what it took came about");
    for proposing in taken {
        let outcome = cluster.within("an answer", proposing.join()).await.unwrap();
        assert!(outcome.is_err(), "{outcome:?}");
    }
}

/// F04: a leader of before is caught up by a snapshot that passes the entries it had under way: their proposers are told,
/// and it goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn proposals_that_a_snapshot_passed_are_answered_and_the_replica_goes_on() {
    let weather = Weather::default();
    let cluster = Cluster::start_in(3, &weather, 300).await;
    let mut number = 0;
    for round in 0..4 {
        cluster.propose(payload(number)).await;
        number += 1;
        cluster.settle().await;
        let (old, log) = cluster.leader().await;
        weather.set_around(old, &cluster.nodes(), FROZEN);
        let stuck: Vec<_> = (0..20)
            .map(|offset| {
                let log = log.clone();
                cluster.runtime.spawn("stuck", async move { log.propose(payload(100_000 + offset), None).await })
            })
            .collect();
        let next = async {
            loop {
                let found = cluster.running.iter().find(|(node, (log, _))| **node != old && log.status().can_write);
                if let Some((_, (log, _))) = found {
                    return log.clone();
                }
                cluster.runtime.sleep(Duration::from_millis(10)).await;
            }
        };
        let next = cluster.within("another leader", next).await;
        let mut last = LogIndex(0);
        for _ in 0..100 {
            last = cluster.within("a proposal", next.propose(payload(number), None)).await.unwrap().index;
            number += 1;
        }
        assert!(log.status().last < Some(last));
        next.raft().trigger().snapshot().await.unwrap();
        let mut snapshots = next.raft().watch_snapshot_progress();
        let taken = async {
            while snapshots.get().is_none_or(|id| id.index() < last.0) {
                snapshots.changed().await.unwrap();
            }
        };
        cluster.within("the snapshot", taken).await;
        next.raft().trigger().purge_log(last.0).await.unwrap();
        let purged = async {
            while next.read(last).unwrap().is_some() {
                cluster.runtime.sleep(Duration::from_millis(10)).await;
            }
        };
        cluster.within("the purge", purged).await;
        weather.set_around(old, &cluster.nodes(), Link::default());
        let applied = numbers(&cluster.settle().await);
        assert_eq!(applied, (0..number).collect::<Vec<_>>(), "round {round}");
        let (_, ledger) = &cluster.running[&old];
        assert!(ledger.restored() >= Some(last), "round {round}: a snapshot came");
        for task in stuck {
            let outcome = cluster.within("an answer", task.join()).await.unwrap();
            assert!(outcome.is_err(), "{outcome:?} was never committed");
        }
        for (log, _) in cluster.running.values() {
            assert!(cluster.runtime.timeout(Duration::from_millis(20), log.failed()).await.is_err(), "all are well");
        }
        // It may lead again.
        drop(next);
        let (leader, now) = cluster.leader().await;
        if leader != old {
            now.transfer_leader(Some(old), PATIENCE).await.unwrap();
        }
    }
}
