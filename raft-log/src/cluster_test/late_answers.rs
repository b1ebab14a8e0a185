//! F02: answers that are under way while the follower loses what they speak of.

use super::*;
use crate::testing::{Link, Weather};

const FROZEN: Link = Link { delay: Duration::ZERO, is_frozen: true, breaks: false };
/// A follower's answers are under way for so long.
const LATE: Link = Link { delay: Duration::from_millis(700), is_frozen: false, breaks: false };

/// The only follower that is left confirms entries, loses its disk while its words are under way, and comes back empty. The
/// leader learns from a sign of life that the follower has nothing, and after that hears the old words. From then on nothing
/// may be acknowledged that is not on both disks.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_a_follower_said_before_it_lost_its_disk_is_no_progress_of_the_empty_one() {
    for wiped_after_ms in [0, 60, 300] {
        let weather = Weather::default();
        let mut cluster = Cluster::start_in(3, &weather, 2_500).await;
        cluster.propose(payload(0)).await;
        cluster.settle().await;
        let (leader, log) = cluster.leader().await;
        let [follower, absent] = *cluster.nodes().into_iter().filter(|node| *node != leader).collect::<Vec<_>>() else {
            panic!("there are three");
        };
        weather.set_around(absent, &cluster.nodes(), FROZEN);
        weather.set(follower, leader, LATE);
        let proposing: Vec<_> = (1..=30)
            .map(|number| {
                let log = log.clone();
                cluster.runtime.spawn("proposal", async move { log.propose(payload(number), None).await })
            })
            .collect();
        cluster.runtime.sleep(Duration::from_millis(wiped_after_ms)).await;
        cluster.kill(follower);
        cluster.dirs.insert(follower, tempfile::tempdir().unwrap());
        cluster.start_node_in(follower, &weather, 2_500, Arc::new(OsDisk)).await;
        let returned = cluster.running[&follower].0.clone();

        let mut acknowledged = 0;
        let until = cluster.runtime.now() + Duration::from_secs(4);
        for number in 31.. {
            if cluster.runtime.now() >= until {
                break;
            }
            let Ok(applied) = cluster.within("a proposal", log.propose(payload(number), None)).await else {
                // Nobody was heard for a lease.
                cluster.runtime.sleep(Duration::from_millis(20)).await;
                continue;
            };
            acknowledged += 1;
            let durable = returned.status().durable;
            assert!(
                durable >= Some(applied.index),
                "wiped after {wiped_after_ms} ms: entry {} counts, the follower's disk has {durable:?}",
                applied.index
            );
            // Behind the membership and the leader's blank entry.
            let has = |index| returned.read(index).unwrap().is_some();
            assert!(has(LogIndex(2)) && has(applied.index), "wiped after {wiped_after_ms} ms: there are holes");
        }
        assert!(acknowledged > 0, "wiped after {wiped_after_ms} ms: it goes on with the one that came back");
        for proposal in proposing {
            cluster.within("the end of a proposal", proposal.join()).await.expect("it ends").ok();
        }
    }
}
