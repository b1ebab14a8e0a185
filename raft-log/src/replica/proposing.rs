//! Proposals, and the certainty of leading.

use std::time::Duration;

use bytes::Bytes;
use flotilla_planted_bugs::{Bug, is_planted};
use flotilla_runtime::BoxFuture;
use openraft::ReadPolicy;
use openraft::errors::{ClientWriteError, ForwardReason, ForwardToLeader, LinearizableReadError, RaftError};
use openraft::raft::linearizable_read::Linearizer;

use super::Replica;
use crate::ack::{AckTicket, TicketSlot};
use crate::raft::{Proposal, Reply, ReplyTo, TypeConfig, to_entry_id};
use crate::{LogIndex, NodeId, ProposalClass, ProposeError, Role, Term};

impl Replica {
    /// See [`crate::ReplicatedLog::propose_with`]. Returns where the entry stands and what the state machine answered.
    pub(crate) fn propose(
        &self,
        class: ProposalClass,
        payload: Bytes,
        term: Option<Term>,
        ticket: Option<AckTicket>,
    ) -> BoxFuture<'_, Result<(LogIndex, Term, Reply), ProposeError>> {
        Box::pin(async move {
            if self.failure.is_set() || self.stopper.has_begun() {
                return Err(ProposeError::Stopped);
            }
            if payload.len() > self.payload_bytes_max {
                return Err(ProposeError::TooLarge {
                    bytes: payload.len() as u64,
                    bytes_max: self.payload_bytes_max as u64,
                });
            }
            let _claim = self.claim_room(payload.len(), class)?;
            let (reply_to, reply) = ReplyTo::pair();
            let slot = ticket.map_or_else(TicketSlot::default, TicketSlot::of);
            let mut write = self.raft.write(Proposal::new(payload, slot)).responder(reply_to);
            if let Some(term) = term {
                write = write.with_leader(openraft::vote::leader_id_std::CommittedLeaderId::new(term.0));
            }
            if write.await.is_err() {
                return Err(ProposeError::Stopped);
            }
            match reply.await {
                Ok(Ok(response)) => {
                    let at = to_entry_id(&response.log_id);
                    Ok((at.index, at.term, response.data))
                }
                Ok(Err(ClientWriteError::ForwardToLeader(forward))) => Err(refused(&forward)),
                Ok(Err(other)) => Err(ProposeError::Unknown(other.to_string())),
                // The core went away with the proposal in its hands.
                Err(_) => Err(ProposeError::Unknown("log stopped before the outcome was known".to_owned())),
            }
        })
    }

    /// See [`crate::ReplicatedLog::confirm_leadership`].
    pub(crate) fn confirm_leadership(&self, timeout: Duration) -> BoxFuture<'_, Result<LogIndex, ProposeError>> {
        Box::pin(async move {
            let status = self.status.now();
            if is_planted(Bug::ReadsWithoutLease) && status.role == Role::Leader {
                return Ok(status.applied.unwrap_or_default());
            }
            let asking = async {
                let linearizer = self.ask_quorum().await?;
                let ready = linearizer.await_ready(&self.raft).await.map_err(|_| ProposeError::Stopped)?;
                Ok(LogIndex(ready.read_log_id().index()))
            };
            self.runtime.timeout(timeout, asking).await.unwrap_or(Err(ProposeError::NoQuorum))
        })
    }

    /// Whether this replica leads, by the word of a quorum that was asked after this began; false if that takes longer.
    pub(crate) async fn leads_by_quorum(&self, timeout: Duration) -> bool {
        self.runtime.timeout(timeout, self.ask_quorum()).await.is_ok_and(|asked| asked.is_ok())
    }

    /// Asks a quorum whether it still follows this replica. The core's word is not enough, see [`LeaseClock`](crate::lease_clock).
    async fn ask_quorum(&self) -> Result<Linearizer<TypeConfig>, ProposeError> {
        let began = self.runtime.now();
        let linearizer = match self.raft.get_read_linearizer(ReadPolicy::ReadIndex).await {
            Ok(linearizer) => linearizer,
            Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(forward))) => return Err(refused(&forward)),
            Err(RaftError::APIError(LinearizableReadError::QuorumNotEnough(_))) => return Err(ProposeError::NoQuorum),
            Err(RaftError::Fatal(_)) => return Err(ProposeError::Stopped),
        };
        // A leader reads from its own first entry on at the earliest.
        let term = Term(linearizer.read_log_id().committed_leader_id().term);
        if self.status.heard_since(term, began).await {
            Ok(linearizer)
        } else {
            Err(ProposeError::NotLeader { leader: None })
        }
    }
}

/// A refusal that is sure: nothing was appended.
fn refused(forward: &ForwardToLeader<TypeConfig>) -> ProposeError {
    match forward.reason {
        ForwardReason::LeaseExpired => ProposeError::NoQuorum,
        ForwardReason::NotLeader | ForwardReason::LeadershipTransfer => {
            ProposeError::NotLeader { leader: forward.leader_id.map(NodeId) }
        }
    }
}
