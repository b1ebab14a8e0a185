//! Handing leadership over, whoever wants it, so that each time the target is a fit one, and is counted and told.

use std::time::Duration;

use flotilla_raft_log::{NodeId, TransferError};

use crate::metrics::HandOverCause;
use crate::replica::Replica;

/// A replica that hands over because others are better takes a follower that was heard within this time,
const SILENCE_MAX: Duration = Duration::from_secs(1);
/// and lacks at most so many entries: about what is on its way under load.
const LAG_ENTRIES_MAX: u64 = 1_000;

/// Hands leadership to `target` and waits until another replica leads. Without a target it goes to the fittest follower; if
/// none is fit, to the one with the longest log, unless this replica only hands over because others are better.
pub async fn hand_over(
    replica: &Replica,
    target: Option<NodeId>,
    timeout: Duration,
    cause: HandOverCause,
) -> Result<NodeId, TransferError> {
    let target = match target {
        None if cause == HandOverCause::Unfit => replica.log.fit_follower(LAG_ENTRIES_MAX, SILENCE_MAX).await,
        target => target,
    };
    let result = match (target, cause) {
        (None, HandOverCause::Unfit) => Err(TransferError::NoneCaughtUp),
        _ => replica.log.transfer_leader(target, timeout).await,
    };
    match &result {
        Ok(leader) => tracing::info!(leader = leader.0, cause = cause.text(), "leadership handed over"),
        // Somebody else led already: there was nothing to hand over.
        Err(TransferError::NotLeader { .. }) => return result,
        Err(error) => tracing::warn!(%error, cause = cause.text(), "leadership not handed over"),
    }
    replica.counters.handed_over(cause, result.is_ok());
    result
}
