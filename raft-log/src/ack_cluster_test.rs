//! Acknowledgements below and above the quorum, over three replicas in one process.

use std::time::Duration;

use bytes::Bytes;

use crate::cluster_test::{Cluster, Log, PATIENCE, numbers, payload};
use crate::testing::ACKNOWLEDGED;
use crate::{
    AckFailure, AckTicket, AckWatch, AckWhen, FlushMode, LogIndex, LostTail, NodeId, OsDisk, ProposalClass,
    ProposeError, Term,
};

const SYNC: AckWhen = AckWhen::InSync { durable: true };

/// One that its sender hears of before it is committed.
fn early(number: u32) -> Bytes {
    let mut bytes = payload(number).to_vec();
    bytes.extend([ACKNOWLEDGED]);
    bytes.into()
}

/// Proposes in the background; the watches tell.
fn propose(cluster: &Cluster, log: &Log, payload: Bytes, wishes: &[AckWhen]) -> Vec<AckWatch> {
    let mut ticket = AckTicket::new();
    let watches = wishes.iter().map(|when| ticket.watch(*when)).collect();
    let log = log.clone();
    let proposing = cluster.runtime.spawn("proposing", async move {
        let done: Result<_, ProposeError> = log.propose_with(ProposalClass::Data, payload, None, Some(ticket)).await;
        done.is_ok()
    });
    proposing.detach();
    watches
}

async fn reached(cluster: &Cluster, mut watches: Vec<AckWatch>) -> Result<(), AckFailure> {
    cluster.within("a watermark", watches.remove(0).reached()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_deposed_leaders_acknowledged_tail_is_counted_and_kept_aside() {
    let mut cluster = Cluster::start(3).await;
    cluster.propose(payload(0)).await;
    let (old, log) = cluster.leader().await;
    cluster.settle().await;
    cluster.net.isolate(old, true);
    // Within its lease it goes on.
    for number in 1..=3 {
        assert_eq!(reached(&cluster, propose(&cluster, &log, early(number), &[AckWhen::Appended])).await, Ok(()));
    }
    assert_eq!(reached(&cluster, propose(&cluster, &log, early(4), &[AckWhen::LeaderDurable])).await, Ok(()));
    let committed = propose(&cluster, &log, payload(5), &[SYNC]);
    let refused = async {
        loop {
            match reached(&cluster, propose(&cluster, &log, payload(6), &[AckWhen::Appended])).await {
                Err(failure) => break failure,
                Ok(()) => cluster.runtime.sleep(Duration::from_millis(20)).await,
            }
        }
    };
    assert_eq!(cluster.within("the lease to run out", refused).await, AckFailure::NotAppended);
    let (new, _) = cluster
        .within("another leader", async {
            loop {
                let (node, log) = cluster.leader().await;
                if node != old {
                    return (node, log);
                }
                cluster.runtime.sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
    assert_ne!(new, old);
    cluster.propose(payload(7)).await;
    assert_eq!(log.lost_tail().messages, 0, "not lost before it is overridden");
    cluster.net.isolate(old, false);
    assert_eq!(reached(&cluster, committed).await, Err(AckFailure::LeadershipLost));
    cluster.propose(payload(8)).await;
    let applied = numbers(&cluster.settle().await);
    assert!(!applied.iter().any(|number| (1..=4).contains(number)), "{applied:?}");
    assert_eq!((log.lost_tail().files, log.lost_tail().messages), (1, 4));
    let dir = cluster.dirs[&old].path();
    let files = LostTail::files(&OsDisk, dir).unwrap();
    let tail = LostTail::read(&OsDisk, &files[0]).unwrap();
    let lost: Vec<_> = tail.entries.iter().map(|entry| (entry.index, entry.payload.clone())).collect();
    assert_eq!(numbers(&lost), [1, 2, 3, 4]);

    drop(log);
    cluster.kill(old);
    cluster.start_node(old).await;
    assert_eq!(cluster.running[&old].0.lost_tail().messages, 4, "told after a restart too");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_killed_leaders_acknowledged_tail_is_found_when_it_comes_back() {
    let mut cluster = Cluster::start(3).await;
    cluster.propose(payload(0)).await;
    let (old, log) = cluster.leader().await;
    cluster.settle().await;
    cluster.net.isolate(old, true);
    assert_eq!(reached(&cluster, propose(&cluster, &log, early(1), &[AckWhen::LeaderDurable])).await, Ok(()));
    // Its proposal in flight holds the log: only a shutdown ends it.
    log.shutdown(PATIENCE).await;
    drop(log);
    cluster.kill(old);
    cluster.net.isolate(old, false);
    cluster.propose(payload(2)).await;
    cluster.start_node(old).await;
    cluster.propose(payload(3)).await;
    cluster.settle().await;
    assert_eq!(cluster.running[&old].0.lost_tail().messages, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_replica_that_does_not_keep_up_leaves_the_in_sync_set_and_comes_back() {
    let cluster = Cluster::start(3).await;
    cluster.propose(payload(0)).await;
    let (leader, log) = cluster.leader().await;
    cluster.settle().await;
    assert_eq!(reached(&cluster, propose(&cluster, &log, payload(1), &[SYNC])).await, Ok(()));
    cluster.settle().await;
    let in_sync = |count| {
        let (log, runtime) = (log.clone(), cluster.runtime.clone());
        async move {
            while log.replication().in_sync.len() != count {
                runtime.sleep(Duration::from_millis(5)).await;
            }
        }
    };
    cluster.within("all to keep up", in_sync(3)).await;
    let slow = cluster.nodes().into_iter().find(|node| *node != leader).unwrap();
    cluster.net.isolate(slow, true);
    let began = cluster.runtime.now();
    assert_eq!(reached(&cluster, propose(&cluster, &log, payload(2), &[SYNC])).await, Ok(()));
    let took = cluster.runtime.now() - began;
    assert!(took > Duration::from_millis(500), "it waited for the silent one until the limit: {took:?}");
    assert!(!log.replication().in_sync.contains(&slow));
    assert_eq!(reached(&cluster, propose(&cluster, &log, payload(3), &[SYNC])).await, Ok(()));
    cluster.net.isolate(slow, false);
    cluster.within("all to keep up again", in_sync(3)).await;
    assert_eq!(log.replication().followers[&slow].lag_entries, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn with_async_flush_a_mark_follows_when_the_disk_has_it() {
    let mut cluster = Cluster::start(3).await;
    for node in cluster.nodes() {
        cluster.kill(node);
    }
    for node in cluster.nodes() {
        let mut config = cluster.config(node);
        config.flush = FlushMode::Async { interval_ms: 300, bytes: 1 << 30 };
        cluster.start_node_with(config).await;
    }
    cluster.propose(payload(0)).await;
    let (_, log) = cluster.leader().await;
    cluster.settle().await;
    cluster.runtime.sleep(Duration::from_millis(400)).await;
    let began = cluster.runtime.now();
    let wishes = [AckWhen::InSync { durable: false }, AckWhen::LeaderDurable, AckWhen::QuorumDurable, SYNC];
    let watches = propose(&cluster, &log, payload(1), &wishes);
    let mut took = Vec::new();
    for watch in watches {
        assert_eq!(cluster.within("a watermark", watch.reached()).await, Ok(()));
        took.push(cluster.runtime.now() - began);
    }
    assert!(took[0] < took[3], "{took:?}");
    assert!(took[3] > Duration::from_millis(100), "nothing is on disk before the interval ends: {took:?}");
    assert!(log.durable_index() >= Some(LogIndex(2)));
    assert_eq!(log.replication().in_sync.len(), 3);
    log.shutdown(PATIENCE).await;
    let stopped = log.propose_with(ProposalClass::Data, payload(2), Some(Term(1)), Some(AckTicket::new())).await;
    assert!(stopped.is_err());
    assert!(cluster.running.contains_key(&NodeId(1)));
}
