//! What the other replicas of the group ask of this one; strangers are refused.

use std::sync::Arc;

use bytes::Bytes;
use flotilla_proto::status::not_implemented;
use flotilla_proto::{CallContext, Peer, PeerError, PeerLink, Replies, peer};
use flotilla_raft_log::PeerCallKind;
use flotilla_runtime::BoxFuture;
use tokio::sync::mpsc;

use crate::admin;
use crate::consume::ack::{AckMessage, ChangeInvisibleDuration};
use crate::consume::farewell;
use crate::consume::give_up::ForwardToDeadLetters;
use crate::consume::offsets::{GetOffset, QueryOffset, UpdateOffset};
use crate::consume::pull::PullMessage;
use crate::consume::receive::ReceiveMessage;
use crate::consume::renewal;
use crate::duty::check;
use crate::edge::query::{QueryAssignment, QueryRoute};
use crate::lead::forwarder::take_in;
use crate::lead::leader_call::LeaderCall;
use crate::lead::read_mark::ReadMark;
use crate::produce::end_transaction::EndTransaction;
use crate::produce::recall::RecallMessage;
use crate::produce::send::SendMessage;
use crate::replica::Replica;

/// Frames that may wait for the log, and answers for the connection, on one append stream.
const APPEND_FRAMES_MAX: usize = 64;

/// The peer service of a replica.
pub struct PeerService {
    replica: Arc<Replica>,
}

impl PeerService {
    /// Serves the replica's peers.
    pub fn new(replica: Arc<Replica>) -> PeerService {
        PeerService { replica }
    }

    fn check(&self, cluster: &str, group: &str, from: u64, to: u64) -> Result<(), PeerError> {
        let config = &self.replica.config;
        let checks = [
            ("cluster", cluster.to_owned(), config.cluster.clone()),
            ("group", group.to_owned(), config.group.clone()),
            ("node", to.to_string(), config.node.to_string()),
        ];
        for (what, asked, own) in checks {
            if asked != own {
                return Err(PeerError::Refused(format!("call is meant for {what} {asked}, this is {what} {own}")));
            }
        }
        // Who is a member may be news that has not come yet: whose word counts is judged by the log.
        if from == to || from == 0 {
            return Err(PeerError::Refused(format!("node {from} is not another replica of group {}", config.group)));
        }
        Ok(())
    }
}

impl Peer for PeerService {
    fn call(&self, call: peer::PeerCall) -> BoxFuture<'_, Result<Bytes, PeerError>> {
        Box::pin(async move {
            self.check(&call.cluster, &call.group, call.from, call.to)?;
            let kind = PeerCallKind::from_code(call.kind)
                .ok_or_else(|| PeerError::Refused(format!("peer call of kind {} is not known", call.kind)))?;
            self.replica.log.serve_call(kind, call.body).await.map_err(|error| PeerError::Failed(error.to_string()))
        })
    }

    fn append(&self, link: PeerLink, requests: mpsc::Receiver<Bytes>) -> Result<Replies<Bytes>, PeerError> {
        self.check(&link.cluster, &link.group, link.from, link.to)?;
        let (responses, replies) = mpsc::channel(APPEND_FRAMES_MAX);
        // It ends with the stream: when the peer closes its side, or nobody reads the answers.
        self.replica.log.serve_append(requests, responses).detach();
        Ok(replies)
    }

    fn forward(&self, _context: CallContext, request: peer::ForwardRequest) -> BoxFuture<'_, peer::ForwardResponse> {
        Box::pin(dispatch(&self.replica, request))
    }
}

/// Runs a forwarded call by its name.
async fn dispatch(replica: &Arc<Replica>, request: peer::ForwardRequest) -> peer::ForwardResponse {
    match request.method.as_str() {
        SendMessage::METHOD => take_in::<SendMessage>(replica, request).await,
        RecallMessage::METHOD => take_in::<RecallMessage>(replica, request).await,
        EndTransaction::METHOD => take_in::<EndTransaction>(replica, request).await,
        check::METHOD => check::take_in(replica, request).await,
        renewal::METHOD => renewal::take_in(replica, request),
        farewell::METHOD => farewell::take_in(replica, &request),
        ForwardToDeadLetters::METHOD => take_in::<ForwardToDeadLetters>(replica, request).await,
        ReceiveMessage::METHOD => take_in::<ReceiveMessage>(replica, request).await,
        PullMessage::METHOD => take_in::<PullMessage>(replica, request).await,
        ReadMark::METHOD => take_in::<ReadMark>(replica, request).await,
        UpdateOffset::METHOD => take_in::<UpdateOffset>(replica, request).await,
        GetOffset::METHOD => take_in::<GetOffset>(replica, request).await,
        QueryOffset::METHOD => take_in::<QueryOffset>(replica, request).await,
        AckMessage::METHOD => take_in::<AckMessage>(replica, request).await,
        ChangeInvisibleDuration::METHOD => take_in::<ChangeInvisibleDuration>(replica, request).await,
        QueryRoute::METHOD => take_in::<QueryRoute>(replica, request).await,
        QueryAssignment::METHOD => take_in::<QueryAssignment>(replica, request).await,
        admin::topics::CreateTopic::METHOD => take_in::<admin::topics::CreateTopic>(replica, request).await,
        admin::topics::DeleteTopic::METHOD => take_in::<admin::topics::DeleteTopic>(replica, request).await,
        admin::topics::DescribeTopic::METHOD => take_in::<admin::topics::DescribeTopic>(replica, request).await,
        admin::topics::ListTopics::METHOD => take_in::<admin::topics::ListTopics>(replica, request).await,
        admin::groups::CreateGroup::METHOD => take_in::<admin::groups::CreateGroup>(replica, request).await,
        admin::groups::DeleteGroup::METHOD => take_in::<admin::groups::DeleteGroup>(replica, request).await,
        admin::groups::DescribeGroup::METHOD => take_in::<admin::groups::DescribeGroup>(replica, request).await,
        admin::groups::ListGroups::METHOD => take_in::<admin::groups::ListGroups>(replica, request).await,
        admin::cluster::TransferLeader::METHOD => take_in::<admin::cluster::TransferLeader>(replica, request).await,
        admin::replicas::ChangeReplica::METHOD => take_in::<admin::replicas::ChangeReplica>(replica, request).await,
        admin::replicas::ListReplicas::METHOD => take_in::<admin::replicas::ListReplicas>(replica, request).await,
        admin::placement::SetWritePermission::METHOD => {
            take_in::<admin::placement::SetWritePermission>(replica, request).await
        }
        admin::placement::SetTopicShares::METHOD => take_in::<admin::placement::SetTopicShares>(replica, request).await,
        admin::topics::UpdateTopic::METHOD => take_in::<admin::topics::UpdateTopic>(replica, request).await,
        admin::groups::UpdateGroup::METHOD => take_in::<admin::groups::UpdateGroup>(replica, request).await,
        admin::positions::ResetGroup::METHOD => take_in::<admin::positions::ResetGroup>(replica, request).await,
        admin::dead_letters::ListDeadLetters::METHOD => {
            take_in::<admin::dead_letters::ListDeadLetters>(replica, request).await
        }
        admin::dead_letters::ResendDeadLetters::METHOD => {
            take_in::<admin::dead_letters::ResendDeadLetters>(replica, request).await
        }
        admin::transactions::ListTransactions::METHOD => {
            take_in::<admin::transactions::ListTransactions>(replica, request).await
        }
        admin::transactions::ResolveTransaction::METHOD => {
            take_in::<admin::transactions::ResolveTransaction>(replica, request).await
        }
        admin::messages::FindMessages::METHOD => take_in::<admin::messages::FindMessages>(replica, request).await,
        admin::messages::TraceMessage::METHOD => take_in::<admin::messages::TraceMessage>(replica, request).await,
        other => peer::ForwardResponse { status: Some(not_implemented(other)), ..Default::default() },
    }
}
