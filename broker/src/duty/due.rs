//! The duty that delivers delayed messages when their time has come.
//!
//! A user's delivery time means wall time, and the leader's clock tells it: never early by more than that clock is wrong.
//! The clock may jump, so a long wait looks at it again and again.

use std::sync::Arc;
use std::time::Duration;

use flotilla_store::{Command, Outcome};

use super::news::{DutyNews, LONG, REFUSED_PAUSE, led_here, wait};
use crate::replica::Replica;

/// Messages that one command delivers; the next one follows at once.
const DELIVERIES_MAX: u32 = 1000;
/// How soon a jump of the wall clock is noticed.
const CLOCK_LOOK: Duration = Duration::from_millis(500);

/// Runs as long as the replica; `news` tells that a message waits whose time comes before that of all others.
pub async fn deliver_due(replica: Arc<Replica>, news: Arc<DutyNews>) {
    loop {
        let (term, generation) = led_here(&replica).await;
        let now = replica.runtime.now();
        let wall_ms = replica.runtime.wall_ms();
        match replica.store.next_delayed_ms() {
            Some(due_ms) if due_ms <= wall_ms => {
                let command = Command::DeliverDue { until_ms: wall_ms, count: DELIVERIES_MAX };
                match replica.proposer.submit(term, command).await.map(|settled| settled.outcome) {
                    Ok(Outcome::DueDelivered { delivered }) => {
                        let late_ms = replica.runtime.wall_ms().saturating_sub(due_ms);
                        replica.counters.due_delivered(delivered.into(), late_ms);
                        tracing::trace!(delivered, "delayed messages delivered");
                    }
                    Ok(other) => {
                        tracing::debug!(?other, "delayed messages not delivered");
                        replica.runtime.sleep(REFUSED_PAUSE).await;
                    }
                    Err(error) => {
                        tracing::debug!(%error, "delayed messages not delivered");
                        replica.runtime.sleep(REFUSED_PAUSE).await;
                    }
                }
            }
            Some(due_ms) => wait(&replica, &news.due, generation, now + left(due_ms, wall_ms)).await,
            None => wait(&replica, &news.due, generation, now + LONG).await,
        }
    }
}

fn left(due_ms: u64, wall_ms: u64) -> Duration {
    Duration::from_millis(due_ms.saturating_sub(wall_ms)).min(CLOCK_LOOK)
}
