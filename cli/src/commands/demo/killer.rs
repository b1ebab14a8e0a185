//! Kills one leader after the other while messages are sent, and starts each again.

use std::time::Duration;

use flotilla_chaos::cluster::{ClusterView, ClusterViewError, LocalCluster, LocalClusterError};
use flotilla_runtime::{Instant, Runtime};
use serde::Serialize;

use super::workload::Tally;

/// How long a new leader may take; far above what is promised, since then the demo fails anyway.
const LEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a restarted replica may take to have all that is committed.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// One leader's death.
#[derive(Debug, Clone, Serialize)]
pub struct Kill {
    /// The leader that was killed.
    pub node: u64,
    /// Its term.
    pub term: u64,
    /// Who led next, and in which term.
    pub next_leader: u64,
    pub next_term: u64,
    /// From the kill until a replica said that it leads and takes writes, as seen by asking every 10 ms.
    pub leader_after_ms: u64,
    /// From its restart until the victim had applied what was committed.
    pub caught_up_after_ms: u64,
    #[serde(skip)]
    pub at: Instant,
}

/// What stopped the killing.
#[derive(Debug, thiserror::Error)]
pub enum KillerError {
    #[error(transparent)]
    View(#[from] ClusterViewError),
    #[error(transparent)]
    Cluster(#[from] LocalClusterError),
}

/// Kills `count` leaders, each when it is due and the victim before it has caught up.
pub async fn kill_leaders(
    count: u64,
    cluster: &mut LocalCluster,
    view: &ClusterView,
    tally: &Tally,
    runtime: &Runtime,
    mut tell: impl FnMut(&str),
) -> Result<Vec<Kill>, KillerError> {
    let mut kills = Vec::new();
    for number in 0..count {
        while tally.completed() < tally.pacer.due_at(number) {
            cluster.check_alive()?;
            runtime.sleep(POLL_INTERVAL).await;
        }
        let leader = view.await_leader(0, LEADER_TIMEOUT).await?;
        cluster.kill(leader.node).await?;
        let at = runtime.now();
        tally.pacer.killed();
        tell(&format!(
            "killed broker {}, leader of term {}, after {} messages",
            leader.node,
            leader.term,
            tally.acked()
        ));

        let next = view.await_leader(leader.term, LEADER_TIMEOUT).await?;
        let leader_after = runtime.now() - at;
        let restarted = runtime.now();
        cluster.restart(leader.node).await?;
        view.await_caught_up(leader.node, CATCH_UP_TIMEOUT).await?;
        let caught_up_after = runtime.now() - restarted;
        tell(&format!(
            "broker {} leads term {} since {} ms after the kill; broker {} is back and caught up after {} ms",
            next.node,
            next.term,
            leader_after.as_millis(),
            leader.node,
            caught_up_after.as_millis()
        ));
        kills.push(Kill {
            node: leader.node,
            term: leader.term,
            next_leader: next.node,
            next_term: next.term,
            leader_after_ms: whole_ms(leader_after),
            caught_up_after_ms: whole_ms(caught_up_after),
            at,
        });
    }
    Ok(kills)
}

/// Rounded up, so that nothing looks faster than it was.
pub fn whole_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
