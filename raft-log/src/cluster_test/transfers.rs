//! Field cases about hand-overs that go wrong: the target is dead, stands still, is cut off, or is the leader itself.

use super::*;
use crate::TransferError;
use crate::testing::{Link, Weather};

/// However a hand-over ends, somebody takes proposals again within this time.
const PAUSE_MAX: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Dead,
    Frozen,
    CutOff,
    Itself,
    Unknown,
}

/// A04, F07: nobody is left refusing because of a successor that never came.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_hand_over_that_fails_stops_nobody_for_long() {
    for target in [Target::Dead, Target::Frozen, Target::CutOff, Target::Itself, Target::Unknown] {
        let weather = Weather::default();
        let mut cluster = Cluster::start_in(3, &weather, 300).await;
        cluster.propose(payload(0)).await;
        cluster.settle().await;
        let (leader, log) = cluster.leader().await;
        let successor = cluster.nodes().into_iter().find(|node| *node != leader).unwrap();
        let frozen = Link { is_frozen: true, ..Link::default() };
        let wanted = match target {
            Target::Dead => {
                cluster.kill(successor);
                successor
            }
            Target::Frozen => {
                weather.set_around(successor, &cluster.nodes(), frozen);
                successor
            }
            Target::CutOff => successor,
            Target::Itself => leader,
            Target::Unknown => NodeId(9),
        };
        let began = cluster.runtime.now();
        let moving = {
            let log = log.clone();
            cluster
                .runtime
                .spawn("transfer", async move { log.transfer_leader(Some(wanted), Duration::from_secs(2)).await })
        };
        if target == Target::CutOff {
            // The word is out, or nearly.
            cluster.runtime.sleep(Duration::from_millis(1)).await;
            weather.set_around(successor, &cluster.nodes(), frozen);
        }
        // A follower that is out of reach may believe what it likes: proposals go to the others.
        let hidden = cluster.running.remove(&successor);
        cluster.propose(payload(1)).await;
        let paused = cluster.runtime.now() - began;
        assert!(paused < PAUSE_MAX, "{target:?}: nobody took a proposal for {paused:?}");
        let outcome = cluster.within("the hand-over's end", moving.join()).await.unwrap();
        match target {
            Target::Dead | Target::Frozen => {
                let is_told = matches!(
                    outcome,
                    Err(TransferError::TargetGone(_) | TransferError::Timeout | TransferError::NoneCaughtUp)
                );
                // The others may have elected the other follower meanwhile, which is a new leader, too.
                assert!(is_told || outcome.as_ref().is_ok_and(|new| *new != successor), "{target:?}: {outcome:?}");
            }
            // It may just have got through.
            Target::CutOff => {}
            Target::Itself | Target::Unknown => {
                assert_eq!(outcome.unwrap_err().to_string(), TransferError::NoSuchVoter(wanted).to_string());
                assert_eq!(log.status().role, Role::Leader, "{target:?}: nothing happened");
            }
        }
        // All come together again afterwards.
        weather.set_around(successor, &cluster.nodes(), Link::default());
        match hidden {
            Some(hidden) => drop(cluster.running.insert(successor, hidden)),
            None => cluster.start_node_in(successor, &weather, 300, Arc::new(OsDisk)).await,
        }
        cluster.propose(payload(2)).await;
        let mut seen = numbers(&cluster.settle().await);
        seen.dedup();
        assert_eq!(seen, [0, 1, 2], "{target:?}");
    }
}

/// A13: leader after leader under load: each proposal is answered, none is kept for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn fifty_hand_overs_under_load_leave_no_proposal_without_an_answer() {
    let cluster = Cluster::start(3).await;
    cluster.propose(payload(0)).await;
    let is_over = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let logs: Vec<Log> = cluster.running.values().map(|(log, _)| log.clone()).collect();
    let proposers: Vec<_> = (1..=8_u32)
        .map(|proposer| {
            let (logs, runtime, is_over) = (logs.clone(), cluster.runtime.clone(), is_over.clone());
            cluster.runtime.spawn("proposer", async move {
                let (mut acked, mut longest) = (Vec::new(), Duration::ZERO);
                let mut number = proposer * 100_000;
                while !is_over.load(std::sync::atomic::Ordering::SeqCst) {
                    // To whom it goes is left to chance: followers refuse, and must do so at once.
                    let log = &logs[usize::try_from(runtime.random_below(3)).unwrap()];
                    let began = runtime.now();
                    let outcome = runtime.timeout(PATIENCE, log.propose(payload(number), None)).await;
                    longest = longest.max(runtime.now() - began);
                    match outcome.expect("each proposal is answered") {
                        Ok(_) => acked.push(number),
                        Err(_) => runtime.sleep(Duration::from_millis(1)).await,
                    }
                    number += 1;
                }
                (acked, longest)
            })
        })
        .collect();
    for _ in 0..50 {
        let (_, log) = cluster.leader().await;
        // Refused while the one before is being made: then it moves the next time.
        let _ = log.transfer_leader(None, Duration::from_secs(5)).await;
    }
    is_over.store(true, std::sync::atomic::Ordering::SeqCst);
    let (_, log) = cluster.leader().await;
    assert!(log.status().term.0 > 25, "leadership moved: term {}", log.status().term);
    let mut acked = Vec::new();
    for proposer in proposers {
        let (own, longest) = cluster.within("the proposers", proposer.join()).await.expect("no proposer fails");
        assert!(longest < Duration::from_secs(5), "a proposal waited for {longest:?}");
        acked.extend(own);
    }
    let applied: std::collections::BTreeSet<u32> = numbers(&cluster.settle().await).into_iter().collect();
    assert!(acked.iter().all(|number| applied.contains(number)));
    assert!(acked.len() > 200, "{} acknowledged", acked.len());
}
