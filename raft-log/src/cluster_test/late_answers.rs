//! F02: answers that are under way while the follower loses what they speak of.

use super::*;
use crate::testing::{Link, Weather};

const FROZEN: Link = Link { delay: Duration::ZERO, is_frozen: true, breaks: false };
/// A follower's answers are under way for so long.
const LATE: Link = Link { delay: Duration::from_millis(700), is_frozen: false, breaks: false };

/// The only follower that is left confirms entries, loses its disk while its words are under way, and comes back empty. The
/// leader hears the old words after that. Nothing that it proposes from then on counts, until the third replica is back: then
/// the group gives up the lost disk, fills the new one, and goes on with everything that was acknowledged.
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

        // The words that were under way come, and the signs of life of the one that is empty.
        let until = cluster.runtime.now() + Duration::from_secs(3);
        for number in 31.. {
            if cluster.runtime.now() >= until {
                break;
            }
            let proposed =
                cluster.runtime.timeout(Duration::from_millis(200), log.propose(payload(number), None)).await;
            assert!(
                !matches!(proposed, Ok(Ok(_))),
                "wiped after {wiped_after_ms} ms: proposal {number} counts on one disk"
            );
            cluster.runtime.sleep(Duration::from_millis(20)).await;
        }

        weather.set_around(absent, &cluster.nodes(), Link::default());
        weather.set(follower, leader, Link::default());
        cluster.propose(payload(1_000)).await;
        let mut acknowledged = Vec::new();
        for proposal in proposing {
            if let Ok(applied) = cluster.within("the end of a proposal", proposal.join()).await.expect("it ends") {
                acknowledged.push(applied.index);
            }
        }
        let applied = cluster.settle().await;
        for index in acknowledged {
            assert!(
                applied.iter().any(|(at, _)| *at == index),
                "wiped after {wiped_after_ms} ms: entry {index} is lost"
            );
        }
        let returned = &cluster.running[&follower].0;
        assert!(
            returned.read(LogIndex(2)).is_ok_and(|entry| entry.is_some()),
            "the new disk is filled from the beginning"
        );
    }
}
