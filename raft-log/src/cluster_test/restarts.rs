//! Field cases about restarts: laggards first, tails that are cut, followers that come back.

use super::*;

/// Orders in which three stopped replicas come back, by their place: 0 is the one that lagged.
const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

/// A01, F14: a replica that lagged starts first and alone. It cannot win with its shorter log, nobody's log is cut, and
/// nobody gives up while there is no leader.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_laggard_that_starts_first_takes_nothing_from_the_others() {
    let mut cluster = Cluster::start(3).await;
    let mut count = 0;
    for order in ORDERS {
        let (leader, log) = cluster.leader().await;
        drop(log);
        let laggard = cluster.nodes().into_iter().find(|node| *node != leader).unwrap();
        cluster.kill(laggard);
        for _ in 0..30 {
            cluster.propose(payload(count)).await;
            count += 1;
        }
        let mut nodes = cluster.nodes();
        nodes.retain(|node| *node != laggard);
        nodes.insert(0, laggard);
        nodes[1..].iter().for_each(|node| cluster.kill(*node));
        for place in order {
            cluster.start_node(nodes[place]).await;
            // Longer than an election takes.
            cluster.runtime.sleep(Duration::from_millis(500)).await;
        }
        let mut seen = numbers(&cluster.settle().await);
        seen.dedup();
        assert_eq!(seen, (0..count).collect::<Vec<_>>(), "started in the order {order:?}");
    }
}

/// A02: a leader that is cut off keeps a tail that nobody else has. Back with the others it lets go of that, all its marks
/// with it, and can lead again.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_replica_whose_tail_was_cut_can_lead_again() {
    let mut cluster = Cluster::start(3).await;
    cluster.propose(payload(0)).await;
    for round in 1..4_u32 {
        let (old, log) = cluster.leader().await;
        cluster.net.isolate(old, true);
        // In its lease it still takes proposals; none of them can be committed.
        let (cut, runtime) = (log.clone(), cluster.runtime.clone());
        let stuck: Vec<_> = (0..5)
            .map(|number| {
                let cut = cut.clone();
                runtime.spawn("stuck", async move { cut.propose(payload(1000 + number), None).await })
            })
            .collect();
        let others = async {
            loop {
                for (_, (log, _)) in cluster.running.iter().filter(|(node, _)| **node != old) {
                    if log.status().can_write && log.propose(payload(round), None).await.is_ok() {
                        return;
                    }
                }
                cluster.runtime.sleep(Duration::from_millis(10)).await;
            }
        };
        cluster.within("a proposal to another leader", others).await;
        cluster.net.isolate(old, false);
        cluster.settle().await;
        for task in stuck {
            let outcome = cluster.within("an answer", task.join()).await.unwrap();
            assert!(outcome.is_err(), "{outcome:?} was never committed");
        }
        drop((cut, log));
        let (leader, log) = cluster.leader().await;
        if leader != old {
            log.transfer_leader(Some(old), PATIENCE).await.unwrap();
        }
        // A handle would keep the directory.
        drop(log);
        cluster.propose(payload(100 + round)).await;
        // Its marks hold after a restart, too.
        cluster.kill(old);
        cluster.start_node(old).await;
        let applied = cluster.settle().await;
        assert!(numbers(&applied).iter().all(|number| *number < 1000), "{:?}", numbers(&applied));
    }
}

/// A03: a follower that was cut off for longer than any election time comes back and disturbs nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_follower_that_comes_back_costs_no_election() {
    // Seconds of patience: a busy machine must not look like a disturbance.
    let cluster = slow_to_elect(3).await;
    cluster.propose(payload(0)).await;
    cluster.settle().await;
    let (leader, log) = cluster.leader().await;
    let term = log.status().term;
    let follower = cluster.nodes().into_iter().find(|node| *node != leader).unwrap();
    cluster.net.isolate(follower, true);
    cluster.runtime.sleep(Duration::from_millis(7000)).await;
    cluster.propose(payload(1)).await;
    cluster.net.isolate(follower, false);
    cluster.settle().await;
    assert_eq!((log.status().term, log.status().role), (term, Role::Leader), "no term was lost to it");
}

/// F06: killed and back at once, the leader of before knows vote, marks and state, and leads no term a second time.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_leader_that_is_back_at_once_leads_only_after_an_election() {
    let mut cluster = Cluster::start(3).await;
    for round in 0..5 {
        cluster.propose(payload(round)).await;
        let (leader, log) = cluster.leader().await;
        let term = log.status().term;
        drop(log);
        cluster.kill(leader);
        cluster.start_node(leader).await;
        let (_, log) = cluster.leader().await;
        assert!(log.status().term > term, "round {round}: term {} follows {term}", log.status().term);
        let read = log.confirm_leadership(PATIENCE).await.unwrap();
        assert!(log.status().applied >= Some(read));
        let applied = numbers(&cluster.settle().await);
        assert!(applied.contains(&round), "{applied:?}");
    }
}

/// What a start found can be asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_start_tells_its_phases() {
    let mut cluster = Cluster::start(1).await;
    for number in 0..120 {
        cluster.propose(payload(number)).await;
    }
    cluster.kill(NodeId(1));
    cluster.start_node(NodeId(1)).await;
    let report = cluster.running[&NodeId(1)].0.recovery();
    let names: Vec<_> = report.phases.iter().map(|phase| phase.name).collect();
    assert_eq!(names, ["directory", "marks", "segments", "tail", "checkpoint", "reapply"]);
    let entries: u64 = report.phases[2..4].iter().map(|phase| phase.entries).sum();
    assert!(entries > 120 && report.phases[2].bytes > 100_000, "{report:?}");
    let checkpoint = report.checkpoint.expect("segments of 64 KiB make checkpoints").0;
    let reapplied = report.phases[5].entries;
    assert!(reapplied > 0 && checkpoint + reapplied < entries + 10, "{report:?}");
    assert_eq!((report.torn_tail, report.foreign_files.len()), (None, 0));
}

/// Files that are gone because they were purged are not missed by the tools.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tools_find_nothing_wrong_with_a_purged_log() {
    use crate::tools::{Depth, OfflineDisk, OfflineLog};

    let mut cluster = Cluster::start(3).await;
    purged_to(&cluster, 0..300).await;
    for number in 300..340 {
        cluster.propose(payload(number)).await;
    }
    cluster.settle().await;
    for node in cluster.nodes() {
        let first = cluster.running[&node].0.extent().first;
        assert!(first > LogIndex(60), "{first}");
        cluster.kill(node);
        let opened = async {
            loop {
                match OfflineLog::open(Arc::new(OfflineDisk), cluster.dirs[&node].path(), false) {
                    Ok(log) => return log,
                    Err(_) => cluster.runtime.sleep(Duration::from_millis(5)).await,
                }
            }
        };
        let found = cluster.within("the replica's end", opened).await.examine(Depth::Checksums).unwrap();
        assert!(found.damages.is_empty(), "{:?}", found.damages);
        assert_eq!(found.first, first.0);
        assert!(found.checkpoints.iter().any(|row| row.last.is_some_and(|last| last.index + 1 == first.0)));
    }
}
