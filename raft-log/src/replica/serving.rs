//! What peers ask of a replica.

use bytes::Bytes;
use flotilla_runtime::{BoxFuture, Task};
use openraft_rt::watch::WatchReceiver;
use tokio::sync::mpsc;

use super::Replica;
use crate::identity::Origin;
use crate::raft::{
    AcquaintanceAnswer, Parcel, PeerMessage, Received, SnapshotAnswer, SnapshotPiece, Stamp, TypeConfig, WireError,
    counts, decode, encode, judge, refusal, serve_append, serve_heartbeat, to_entry_id,
};
use crate::repair::serve_fetch;
use crate::{NodeId, PeerCallKind, ServeError};

impl Replica {
    /// See [`crate::ReplicatedLog::serve_call`].
    pub(crate) fn serve_call(&self, kind: PeerCallKind, body: Bytes) -> BoxFuture<'_, Result<Bytes, ServeError>> {
        Box::pin(self.answer_call(kind, body))
    }

    async fn answer_call(&self, kind: PeerCallKind, body: Bytes) -> Result<Bytes, ServeError> {
        let malformed = |error: WireError| ServeError::Malformed(error.to_string());
        let sender = Stamp::of(&body).map_err(malformed)?;
        let message = decode(body).map_err(malformed)?;
        let raft = &self.raft;
        let standings = self.view.standings();
        if counts(kind) && !standings.admits_request(&sender) {
            if standings.given_up() == 0 && standings.has_left_behind(&sender) {
                return Ok(standings.stamp().put_on(refusal(standings.members().epoch)));
            }
            let Stamp { node, incarnation, .. } = sender;
            return Err(ServeError::Failed(format!("the group has given up directory {incarnation} of node {node}")));
        }
        let needs_vote = matches!(kind, PeerCallKind::Vote | PeerCallKind::PreVote | PeerCallKind::TransferLeader);
        if needs_vote && self.view.vote_hold().holds() {
            // No answer is no vote.
            return Err(ServeError::Failed(
                "this replica does not vote now: its directory is new to the group, or entries of it were lost"
                    .to_owned(),
            ));
        }
        let answer = match (kind, message) {
            (PeerCallKind::VoteHold, PeerMessage::HoldQuestion) => {
                let view = &self.view;
                let leads = async |timeout| self.leads_by_quorum(timeout).await;
                PeerMessage::HoldAnswer(view.vote_hold().answer(view, leads).await)
            }
            (PeerCallKind::Heartbeat, PeerMessage::AppendRequest(request)) => {
                self.gone.heard_from(NodeId(request.vote.leader_id().voted_for));
                let answer = serve_heartbeat(raft, &self.view, request).await;
                PeerMessage::AppendResponse(answer.map_err(|error| self.call_failed(error))?)
            }
            (PeerCallKind::Vote, PeerMessage::VoteRequest(request)) => {
                PeerMessage::VoteResponse(raft.vote(request).await.map_err(|error| self.call_failed(error))?)
            }
            (PeerCallKind::PreVote, PeerMessage::VoteRequest(request)) => {
                PeerMessage::VoteResponse(raft.pre_vote(request).await.map_err(|error| self.call_failed(error))?)
            }
            (PeerCallKind::TransferLeader, PeerMessage::TransferRequest(_)) if !self.guard.may_take_over() => {
                return Err(ServeError::Failed("this replica is not fit to lead".to_owned()));
            }
            (PeerCallKind::TransferLeader, PeerMessage::TransferRequest(request)) => {
                let answer = raft.handle_transfer_leader(request).await;
                PeerMessage::TransferResponse(answer.map_err(|error| self.call_failed(error))?)
            }
            (PeerCallKind::Snapshot, PeerMessage::SnapshotPiece(piece)) => {
                PeerMessage::SnapshotAnswer(self.receive_piece(piece).await?)
            }
            (PeerCallKind::LeaderGone, PeerMessage::GoneQuestion(question)) => {
                PeerMessage::GoneAnswer(self.gone.answer(question).await)
            }
            (PeerCallKind::Fetch, PeerMessage::FetchRequest(request)) => {
                let (view, committed) = (self.view.clone(), self.status.now().committed);
                let answer = self.runtime.blocking(move || serve_fetch(&view, committed, request));
                PeerMessage::FetchAnswer(answer.await)
            }
            (PeerCallKind::Acquaintance, PeerMessage::Acquaintance) => {
                PeerMessage::AcquaintanceAnswer(self.make_acquaintance(sender).await?)
            }
            (PeerCallKind::Vitals, PeerMessage::VitalsRequest) => PeerMessage::VitalsAnswer(self.vitals.answer()),
            (kind, _) => return Err(ServeError::Malformed(format!("body does not belong to a call of kind {kind:?}"))),
        };
        Ok(standings.stamp().put_on(encode(answer)))
    }

    /// Tells one that asks in which life it is known here.
    async fn make_acquaintance(&self, asker: Stamp) -> Result<AcquaintanceAnswer, ServeError> {
        if self.stopper.has_begun() {
            return Err(ServeError::Stopped);
        }
        let view = self.view.clone();
        let judging = self.view.note_identity(move || judge(view.standings(), &view, &asker));
        let verdict = judging.await.ok_or(ServeError::Stopped)?;
        let durable = self.view.durable_index().and_then(|index| self.view.id_at(index));
        let is_newcomer = self.view.standings().origin() == Origin::Newcomer;
        Ok(AcquaintanceAnswer { verdict, is_newcomer, durable, contact: self.contact.clone() })
    }

    /// Takes in a piece of a snapshot; the last one installs it.
    async fn receive_piece(&self, piece: SnapshotPiece) -> Result<SnapshotAnswer, ServeError> {
        let SnapshotPiece { vote, meta, id, offset, bytes } = piece;
        let Some(last) = meta.last_log_id.as_ref().map(to_entry_id) else {
            return Err(ServeError::Malformed("snapshot of nothing".to_owned()));
        };
        let held = self.raft.metrics().borrow_watched().vote;
        if held > vote {
            return Ok(SnapshotAnswer { vote: held, is_done: false, next: 0 });
        }
        if held == vote && self.view.has_up_to(last).await {
            // The leader did not know: confirmations were late, and it let go of those entries. The core cannot take a
            // snapshot that its log has passed.
            return Ok(SnapshotAnswer { vote, is_done: true, next: id.bytes });
        }
        let received = self.inbox.receive(last, id, offset, bytes).await.map_err(|error| self.call_failed(error))?;
        let parcel = match received {
            Received::Next(next) => return Ok(SnapshotAnswer { vote, is_done: false, next }),
            Received::Whole(parcel) => parcel,
        };
        let snapshot = openraft::alias::SnapshotOf::<TypeConfig, Parcel> { meta, snapshot: parcel };
        let response = self.raft.install_full_snapshot(vote, snapshot).await;
        let vote = response.map_err(|error| self.call_failed(error))?.vote;
        self.inbox.clear().await;
        Ok(SnapshotAnswer { vote, is_done: true, next: id.bytes })
    }

    fn call_failed(&self, error: impl std::fmt::Display) -> ServeError {
        if self.failure.is_set() || self.stopper.has_begun() {
            return ServeError::Stopped;
        }
        ServeError::Failed(error.to_string())
    }

    /// Serves a peer's append stream until either side closes it. Dropping the task closes it too.
    pub(crate) fn serve_append(&self, requests: mpsc::Receiver<Bytes>, responses: mpsc::Sender<Bytes>) -> Task<()> {
        serve_append(&self.runtime, self.raft.clone(), self.view.clone(), self.gone.clone(), requests, responses)
    }
}
