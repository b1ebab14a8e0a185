//! Who waits is answered in the order of the log, once, and by the right watermark.

use std::time::Duration;

use flotilla_runtime::Runtime;
use proptest::prelude::*;
use tokio::sync::oneshot::error::TryRecvError;

use super::marks::LagLimits;
use super::ticket::{AckFailure, AckTicket, AckWhen};
use super::tracker::{AckTracker, ReplicaMarks};
use crate::ids::EntryId;
use crate::testing::StepRuntime;
use crate::{LogIndex, NodeId, Term};

const LIMITS: LagLimits = LagLimits { time: Duration::from_secs(1), bytes: 1 << 30 };

fn tracker(runtime: &Runtime, size: u64) -> AckTracker {
    let tracker = AckTracker::new(runtime.clone(), NodeId(1), (1..=size).map(NodeId).collect(), LIMITS);
    tracker.enter(Term(1));
    tracker
}

type Told = tokio::sync::oneshot::Receiver<Result<(), AckFailure>>;

fn append(tracker: &AckTracker, term: u64, index: u64, wishes: &[AckWhen]) -> Vec<Told> {
    let mut ticket = AckTicket::new();
    let told = wishes.iter().map(|when| ticket.watch(*when).into_receiver()).collect();
    let id = EntryId::new(term, index);
    tracker.appended(id, 100, vec![(id, ticket)]);
    told
}

#[test]
fn each_condition_has_its_own_watermark() {
    let runtime = StepRuntime::default().handle();
    let tracker = tracker(&runtime, 3);
    let follower = ReplicaMarks::new(tracker.clone(), NodeId(2), true);
    let sync = AckWhen::InSync { durable: true };
    let mut told = append(&tracker, 1, 5, &[AckWhen::Appended, AckWhen::LeaderDurable, AckWhen::QuorumDurable, sync]);
    let mut next = || told.remove(0).try_recv();
    assert_eq!(next(), Ok(Ok(())), "appended");
    tracker.synced_self(Some(LogIndex(5)));
    assert_eq!(next(), Ok(Ok(())), "on the leader's disk");
    follower.matched(Term(1), LogIndex(5));
    assert_eq!(next(), Ok(Ok(())), "on a quorum's");
    tracker.committed(LogIndex(5));
    assert_eq!(next(), Ok(Ok(())), "both that keep up have it");
}

#[test]
fn a_new_term_fails_whoever_waits_for_the_old_one() {
    let runtime = StepRuntime::default().handle();
    let tracker = tracker(&runtime, 3);
    let mut old = append(&tracker, 1, 5, &[AckWhen::LeaderDurable]).remove(0);
    tracker.enter(Term(2));
    assert_eq!(old.try_recv(), Ok(Err(AckFailure::LeadershipLost)));
    let mut new = append(&tracker, 2, 6, &[AckWhen::LeaderDurable]).remove(0);
    assert_eq!(new.try_recv(), Err(TryRecvError::Empty));
    tracker.close();
    assert_eq!(new.try_recv(), Ok(Err(AckFailure::Stopped)));
    let mut late = append(&tracker, 2, 7, &[AckWhen::LeaderDurable]).remove(0);
    assert_eq!(late.try_recv(), Ok(Err(AckFailure::Stopped)));
}

#[test]
fn a_proposal_that_was_refused_tells_so_by_its_ticket() {
    let runtime = StepRuntime::default();
    let mut ticket = AckTicket::new();
    let watch = ticket.watch(AckWhen::Appended);
    drop(ticket);
    assert_eq!(runtime.block_on(watch.reached()), Err(AckFailure::NotAppended));
}

#[tokio::test]
async fn a_silent_replica_holds_up_level_sync_no_longer_than_the_limit() {
    let runtime = Runtime::tokio();
    let tracker = tracker(&runtime, 3);
    let watching = runtime.spawn("lag-watch", tracker.clone().watch_lag());
    let (two, three) = (2, 3);
    let follower = |node| ReplicaMarks::new(tracker.clone(), NodeId(node), true);
    append(&tracker, 1, 1, &[]);
    follower(two).matched(Term(1), LogIndex(1));
    follower(three).matched(Term(1), LogIndex(1));
    tracker.synced_self(Some(LogIndex(1)));
    let told = append(&tracker, 1, 2, &[AckWhen::InSync { durable: true }]).remove(0);
    tracker.synced_self(Some(LogIndex(2)));
    follower(two).matched(Term(1), LogIndex(2));
    tracker.committed(LogIndex(2));
    let began = runtime.now();
    assert_eq!(told.await.expect("an answer"), Ok(()));
    let took = runtime.now() - began;
    assert!(took <= Duration::from_secs(5) && took >= Duration::from_millis(900), "{took:?}");
    assert_eq!(tracker.status().in_sync.len(), 2);
    tracker.close();
    watching.await.expect("the watch ends with the tracker");
}

proptest! {
    /// Against a model that keeps every entry and looks at all of them after each event.
    #[test]
    fn everybody_is_answered_exactly_when_the_watermark_has_passed(events in prop::collection::vec((0..5_u8, 0..30_u64), 1..150)) {
        let runtime = StepRuntime::default().handle();
        let tracker = tracker(&runtime, 3);
        let followers = [2, 3].map(|node| ReplicaMarks::new(tracker.clone(), NodeId(node), true));
        let (mut last, mut durable, mut has) = (0_u64, 0_u64, [0_u64; 2]);
        let mut waiting: Vec<(AckWhen, u64, Told)> = Vec::new();
        for (event, number) in events {
            match event {
                0 | 1 => {
                    last += 1;
                    let wishes = [AckWhen::LeaderDurable, AckWhen::QuorumDurable];
                    let told = append(&tracker, 1, last, &wishes);
                    waiting.extend(wishes.into_iter().zip(told).map(|(when, told)| (when, last, told)));
                }
                2 => {
                    durable = durable.max(last.saturating_sub(number));
                    tracker.synced_self(Some(LogIndex(durable)));
                }
                which => {
                    let which = usize::from(which - 3);
                    has[which] = has[which].max(last.saturating_sub(number));
                    followers[which].matched(Term(1), LogIndex(has[which]));
                }
            }
            let mut all = [durable, has[0], has[1]];
            all.sort_unstable();
            let mut left = Vec::new();
            for (when, index, mut told) in waiting {
                let reached = if when == AckWhen::LeaderDurable { durable } else { all[1] };
                if index <= reached {
                    prop_assert_eq!(told.try_recv(), Ok(Ok(())), "{:?} of {}", when, index);
                } else {
                    prop_assert_eq!(told.try_recv(), Err(TryRecvError::Empty), "{:?} of {}", when, index);
                    left.push((when, index, told));
                }
            }
            waiting = left;
        }
    }
}
