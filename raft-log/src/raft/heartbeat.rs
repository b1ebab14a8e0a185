//! Answers the leader's signs of life without waiting for the disk.
//!
//! The core answers an append, an empty one too, once everything it accepted before is on disk. A sign of life asks for
//! less: whether this replica follows the leader, from now on for as long as the lease. That is true as soon as the core has
//! looked at it. Where syncs take longer than the lease, a leader would lose it, though nobody wants another one.

use std::time::Duration;

use flotilla_runtime::{Either, select};
use openraft::errors::RaftError;
use openraft::raft::{AppendEntriesRequest, StreamAppendResult};

use super::type_config::{LogRaft, TypeConfig};
use crate::LogIndex;
use crate::log_view::LogView;

/// A sync that has been running for so long is no slow one: the disk hangs, and a leader whose followers can keep nothing
/// must not believe that they can.
const HANGING: Duration = Duration::from_secs(5);

/// Answers a request that came by call.
pub(crate) async fn serve_heartbeat(
    raft: &LogRaft,
    view: &LogView,
    request: AppendEntriesRequest<TypeConfig>,
) -> Result<StreamAppendResult<TypeConfig>, RaftError<TypeConfig>> {
    let (vote, previous) = (request.vote, request.prev_log_id);
    let last = request.entries.last().map(|entry| entry.log_id).or(previous);
    let is_early = request.entries.is_empty() && !view.is_durable(LogIndex(u64::MAX));
    let answered = raft.append_entries(request);
    let followed = async {
        // The core takes its messages in order: by the time it answers this it has looked at the request, renewed the lease,
        // and kept the vote on disk if it was a new one. What it refuses it has refused at once, above.
        let follows = is_early
            && view.shared.flusher.syncing_for() < HANGING
            && raft.with_raft_state(move |state| *state.vote_ref() == vote).await.is_ok_and(|is_same| is_same);
        if !follows {
            std::future::pending::<()>().await;
        }
    };
    match select(answered, followed).await {
        Either::Left(response) => Ok(response?.into_stream_result(previous, last)),
        Either::Right(()) => Ok(Ok(last)),
    }
}
