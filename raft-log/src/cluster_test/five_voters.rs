//! F01: with five voters an acknowledgement means three disks, however the followers overtake each other.

use super::*;
use crate::testing::{Link, Weather};

/// Proposals under way at the same time.
const PROPOSERS: u32 = 12;

/// How many of the logs have the entry on disk, as it was proposed.
fn copies(logs: &[Log], index: LogIndex, payload: &Bytes) -> usize {
    let has = |log: &&Log| {
        log.durable_index() >= Some(index)
            && log.read(index).ok().flatten().is_some_and(|entry| entry.payload == *payload)
    };
    logs.iter().filter(has).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_acknowledged_is_on_three_disks_of_five_and_outlives_any_two() {
    let weather = Weather::default();
    let mut cluster = Cluster::start_in(5, &weather, 1000).await;
    cluster.propose(payload(0)).await;
    let mut acked = vec![0];
    for round in 1..=3_u32 {
        let (leader, log) = cluster.leader().await;
        let nodes = cluster.nodes();
        let logs: Vec<Log> = cluster.running.values().map(|(log, _)| log.clone()).collect();
        let proposers = (0..PROPOSERS).map(|proposer| {
            let (log, logs, runtime) = (log.clone(), logs.clone(), cluster.runtime.clone());
            cluster.runtime.spawn("proposer", async move {
                let mut acked = Vec::new();
                let ends = runtime.now() + Duration::from_secs(4);
                for number in 0.. {
                    if runtime.now() >= ends {
                        break;
                    }
                    let number = (round * 100 + proposer) * 10_000 + number;
                    let Ok(applied) = log.propose(payload(number), None).await else { continue };
                    let copies = copies(&logs, applied.index, &payload(number));
                    assert!(copies >= 3, "entry {} was acknowledged with {copies} copies of 5", applied.index);
                    acked.push(number);
                }
                acked
            })
        });
        let proposers: Vec<_> = proposers.collect();
        drop(logs);
        // Each follower has its own delay, another one every moment.
        for _ in 0..40 {
            for follower in nodes.iter().filter(|node| **node != leader) {
                let delay = Duration::from_millis(1 + cluster.runtime.random_below(120));
                let link = Link { delay, ..Link::default() };
                weather.set(leader, *follower, link);
                weather.set(*follower, leader, link);
            }
            cluster.runtime.sleep(Duration::from_millis(100)).await;
        }
        for proposer in proposers {
            acked.extend(cluster.within("the proposers", proposer.join()).await.expect("no proposer fails"));
        }
        weather.set_around(leader, &nodes, Link::default());
        drop(log);
        // The leader and one more are gone: the other three have it all.
        let second = nodes.iter().copied().find(|node| *node != leader).unwrap();
        cluster.kill(leader);
        cluster.kill(second);
        cluster.propose(payload(round)).await;
        let applied = numbers(&cluster.settle().await);
        let applied: std::collections::BTreeSet<u32> = applied.into_iter().collect();
        let lost: Vec<_> = acked.iter().filter(|number| !applied.contains(number)).collect();
        assert!(lost.is_empty(), "round {round}: {lost:?} of {} were acknowledged", acked.len());
        assert!(acked.len() > 30 * round as usize, "{} acknowledged", acked.len());
        for node in [leader, second] {
            cluster.start_node_in(node, &weather, 1000, Arc::new(OsDisk)).await;
        }
        cluster.settle().await;
    }
}
