//! What planted bugs do to the append stream. Without the feature each of these is a constant, and gone.

use bytes::Bytes;
use flotilla_planted_bugs::{Bug, is_planted};
use flotilla_runtime::Runtime;
use openraft::raft::AppendEntriesRequest;
use tokio::sync::mpsc;

use super::type_config::{TypeConfig, to_vote};
use super::wire::{PeerMessage, encode};
use crate::log_view::LogView;
use crate::transport::AppendChannel;

/// Frames that wait where a leader answers itself.
const ANSWERS_MAX: usize = 64;

/// Whether this leader's answers come from itself.
pub(super) fn answers_itself() -> bool {
    is_planted(Bug::AckBeforeQuorum)
}

/// A leader that takes what it sent for answered; `None` where it waits for its peer, as it should.
pub(super) fn answers_of_its_own(runtime: &Runtime, channel: &mut AppendChannel) -> Option<mpsc::Sender<Bytes>> {
    if !answers_itself() {
        return None;
    }
    let (own, answers) = mpsc::channel(ANSWERS_MAX);
    let mut peers = std::mem::replace(&mut channel.responses, answers);
    runtime.spawn("planted", async move { while peers.recv().await.is_some() {} }).detach();
    Some(own)
}

/// The answer that the peer should have given.
pub(super) fn answer_to(request: &AppendEntriesRequest<TypeConfig>) -> Bytes {
    let matched = request.entries.last().map(|entry| entry.log_id).or(request.prev_log_id);
    encode(PeerMessage::AppendResponse(Ok(matched)))
}

/// A request as a follower with a bug sees it.
pub(super) fn seen(mut request: AppendEntriesRequest<TypeConfig>, view: &LogView) -> AppendEntriesRequest<TypeConfig> {
    if is_planted(Bug::StaleLeaderObeyed)
        && let Some(own) = view.vote().map(to_vote)
        && request.vote.leader_id().term < own.leader_id().term
    {
        request.vote = own;
    }
    if is_planted(Bug::ReadsUncommitted)
        && let Some(last) = request.entries.last()
    {
        request.leader_commit = Some(last.log_id);
    }
    request
}
