//! openraft's network over a [`Transport`]: unary calls with time-outs, and the pipelined append stream.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flotilla_runtime::{BoxFuture, Either, Runtime, select};
use futures::{Stream, StreamExt};
use openraft::OptionalSend;
use openraft::alias::SnapshotOf;
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendError, StreamAppendResult,
    TransferLeaderRequest, TransferLeaderResponse, VoteRequest, VoteResponse,
};
use tokio::sync::Notify;

use super::append_stream::AppendStream;
use super::async_runtime::ask_for_time;
use super::parcel::Parcel;
use super::stream_resets::StreamResets;
use super::type_config::{TypeConfig, Vote};
use super::votes_asked::VotesAsked;
use super::wire::{PeerMessage, SnapshotPiece, decode, encode};
use crate::ack::{AckTracker, ReplicaMarks};
use crate::lease_clock::LeaseClock;
use crate::member::Member;
use crate::standing::Standings;
use crate::transport::AppendChannel;
use crate::{NodeId, PeerCallKind, Term, Transport, TransportError};

type RpcResult<T> = Result<T, RPCError<TypeConfig>>;
type Responses<'s> = futures::stream::BoxStream<'s, RpcResult<StreamAppendResult<TypeConfig>>>;

/// A snapshot is sent in pieces of this many bytes, one at a time: a vote on the same connection waits for one at most.
const PIECE_BYTES: usize = 256 << 10;
/// Opening an append stream may take this long.
const OPEN_TIMEOUT: Duration = Duration::from_secs(2);

/// A voter may take so long to keep its vote.
const VOTE_ANSWER_MAX: Duration = Duration::from_secs(10);
/// A vote that was asked for earlier counts if it comes so much later than the answer to a pre-vote.
const VOTE_FIRST: Duration = Duration::from_millis(20);

/// Makes the connections of one replica to its peers.
pub(crate) struct NetworkFactory {
    transport: Arc<dyn Transport>,
    runtime: Runtime,
    acks: AckTracker,
    /// Followers answer only for what they have on disk.
    matched_is_durable: bool,
    resets: StreamResets,
    standings: Standings,
    votes: VotesAsked,
    clock: LeaseClock,
}

impl NetworkFactory {
    pub(crate) fn new(
        transport: Arc<dyn Transport>,
        runtime: Runtime,
        acks: AckTracker,
        matched_is_durable: bool,
        resets: StreamResets,
        standings: Standings,
        clock: LeaseClock,
    ) -> NetworkFactory {
        let votes = VotesAsked::default();
        NetworkFactory { transport, runtime, acks, matched_is_durable, resets, standings, votes, clock }
    }

    fn network(&self, target: u64, appends_by_call: bool) -> Network {
        Network {
            target: NodeId(target),
            transport: self.transport.clone(),
            runtime: self.runtime.clone(),
            marks: ReplicaMarks::new(self.acks.clone(), NodeId(target), self.matched_is_durable),
            appends_by_call,
            channel: None,
            reset: self.resets.bell(NodeId(target)),
            standings: self.standings.clone(),
            votes: self.votes.clone(),
            clock: self.clock.clone(),
        }
    }
}

impl RaftNetworkFactory<TypeConfig> for NetworkFactory {
    type Network = Network;

    async fn new_client(&mut self, target: u64, _node: &Member) -> Network {
        self.network(target, false)
    }

    /// Heartbeats are calls: on the control connection they never wait behind entries.
    async fn new_heartbeat_client(&mut self, target: u64, _node: &Member) -> Network {
        self.network(target, true)
    }
}

/// The way to one peer.
pub(crate) struct Network {
    target: NodeId,
    transport: Arc<dyn Transport>,
    runtime: Runtime,
    marks: ReplicaMarks,
    /// Each append is a call of its own.
    appends_by_call: bool,
    /// An open append channel with nothing in flight, kept from one session to the next.
    channel: Option<AppendChannel>,
    /// Rings when the append stream is to break.
    reset: Arc<Notify>,
    standings: Standings,
    votes: VotesAsked,
    clock: LeaseClock,
}

/// openraft backs off after `Unreachable` and tries again at once after `Network`.
pub(super) fn rpc_error(error: &TransportError) -> RPCError<TypeConfig> {
    match error {
        TransportError::Unreachable(_) => RPCError::Unreachable(Unreachable::new(error)),
        TransportError::Broken(_) | TransportError::Timeout => RPCError::Network(NetworkError::new(error)),
    }
}

pub(super) fn protocol_error(what: impl std::fmt::Display) -> RPCError<TypeConfig> {
    RPCError::Unreachable(Unreachable::from_string(format!("peer answered nonsense: {what}")))
}

/// Whether whoever gave that answer takes the asker for its leader.
pub(super) fn follows(answer: &StreamAppendResult<TypeConfig>) -> bool {
    !matches!(answer, Err(StreamAppendError::HigherVote(_)))
}

impl Network {
    async fn call(&self, kind: PeerCallKind, message: PeerMessage, timeout: Duration) -> RpcResult<PeerMessage> {
        call(&self.runtime, &*self.transport, self.target, kind, encode(message), timeout).await
    }

    async fn append_by_call(
        &self,
        request: AppendEntriesRequest<TypeConfig>,
        timeout: Duration,
    ) -> RpcResult<StreamAppendResult<TypeConfig>> {
        let (term, asked_at) = (Term(request.vote.leader_id().term), self.runtime.now());
        match self.call(PeerCallKind::Heartbeat, PeerMessage::AppendRequest(request), timeout).await? {
            PeerMessage::AppendResponse(result) => {
                if follows(&result) {
                    self.clock.answered(self.target, term, asked_at);
                }
                Ok(result)
            }
            _ => Err(protocol_error("another message than an append response")),
        }
    }

    async fn open(&mut self) -> RpcResult<AppendChannel> {
        if let Some(channel) = self.channel.take()
            && !channel.requests.is_closed()
        {
            return Ok(channel);
        }
        match self.runtime.timeout(OPEN_TIMEOUT, self.transport.open_append(self.target)).await {
            Ok(opened) => opened.map_err(|error| rpc_error(&error)),
            Err(_) => Err(RPCError::Unreachable(Unreachable::new(&TransportError::Timeout))),
        }
    }
}

impl Network {
    /// Sends a snapshot piece by piece, beginning where an earlier try broke off. The time-out is for each piece.
    async fn send_parcel(
        &self,
        vote: Vote,
        snapshot: SnapshotOf<TypeConfig, Parcel>,
        timeout: Duration,
    ) -> RpcResult<SnapshotResponse<TypeConfig>> {
        let (meta, parcel) = (snapshot.meta, snapshot.snapshot);
        let outgoing = self.runtime.blocking(move || parcel.into_outgoing()).await;
        let outgoing = Arc::new(outgoing.map_err(|error| {
            tracing::error!(target = %self.target, last = ?meta.last_log_id, %error, "snapshot cannot be sent");
            RPCError::Unreachable(Unreachable::new(&error))
        })?);
        let id = outgoing.id;
        let mut bytes = Bytes::new();
        let mut offset = 0;
        tracing::info!(target = %self.target, last = ?meta.last_log_id, bytes = id.bytes, "sending a snapshot");
        loop {
            let piece = SnapshotPiece { vote, meta: meta.clone(), id, offset, bytes: bytes.clone() };
            let answer = self.call(PeerCallKind::Snapshot, PeerMessage::SnapshotPiece(piece), timeout).await?;
            let PeerMessage::SnapshotAnswer(answer) = answer else {
                return Err(protocol_error("another message than an answer to a piece of a snapshot"));
            };
            if answer.is_done || answer.vote > vote {
                return Ok(SnapshotResponse::new(answer.vote));
            }
            if offset == 0 && answer.next > 0 && bytes.is_empty() {
                tracing::info!(target = %self.target, at = answer.next, "going on with a snapshot");
            }
            offset = answer.next;
            let source = outgoing.clone();
            let read = self.runtime.blocking(move || source.read(offset, PIECE_BYTES)).await;
            // Unreadable here is not the peer's fault; openraft tries again after a pause.
            bytes = read.map_err(|error| RPCError::Unreachable(Unreachable::new(&error)))?;
            if bytes.is_empty() {
                return Err(protocol_error("it asks for more than the snapshot has"));
            }
        }
    }
}

/// One call. The transport is given the time-out and held to it.
async fn call(
    runtime: &Runtime,
    transport: &dyn Transport,
    target: NodeId,
    kind: PeerCallKind,
    body: Bytes,
    timeout: Duration,
) -> RpcResult<PeerMessage> {
    let answer = match runtime.timeout(timeout, transport.call(target, kind, body, timeout)).await {
        Ok(answer) => answer.map_err(|error| rpc_error(&error))?,
        Err(_) => return Err(rpc_error(&TransportError::Timeout)),
    };
    decode(answer).map_err(protocol_error)
}

impl RaftNetworkV2<TypeConfig> for Network {
    type SnapshotData = Parcel;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> RpcResult<AppendEntriesResponse<TypeConfig>> {
        Ok(AppendEntriesResponse::from(self.append_by_call(request, option.hard_ttl()).await?))
    }

    fn stream_append<'s, S>(&'s mut self, mut input: S, option: RPCOption) -> BoxFuture<'s, RpcResult<Responses<'s>>>
    where
        S: Stream<Item = AppendEntriesRequest<TypeConfig>> + OptionalSend + Unpin + 'static,
    {
        if self.appends_by_call {
            let timeout = option.hard_ttl();
            let network: &'s Network = self;
            let responses = input.then(move |request| network.append_by_call(request, timeout));
            return Box::pin(async move { Ok(responses.boxed()) });
        }
        Box::pin(async move {
            // The core's pause after failures is in its requests: without taking one first, a peer that refuses would be
            // tried again thousands of times a second.
            let Some(first) = input.next().await else { return Ok(futures::stream::empty().boxed()) };
            let channel = self.open().await?;
            let input = futures::stream::iter([first]).chain(input);
            let peer = (self.target, self.standings.clone());
            let told = (self.marks.clone(), self.clock.clone());
            let stream = AppendStream::start(&self.runtime, channel, told, peer, input);
            let kept = &mut self.channel;
            let reset = self.reset.clone();
            let session = futures::stream::unfold((stream, kept, false), move |(mut stream, kept, was_reset)| {
                let reset = reset.clone();
                async move {
                    if was_reset {
                        return None;
                    }
                    let next = match select(stream.next(), reset.notified()).await {
                        Either::Left(next) => next,
                        Either::Right(()) => {
                            let broken = rpc_error(&TransportError::Broken("stream was reset".to_owned()));
                            return Some((Err(broken), (stream, kept, true)));
                        }
                    };
                    if next.is_none() {
                        *kept = stream.into_idle_channel();
                        return None;
                    }
                    next.map(|response| (response, (stream, kept, false)))
                }
            });
            Ok(session.boxed())
        })
    }

    async fn vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> RpcResult<VoteResponse<TypeConfig>> {
        // The voter syncs its log and its vote first. An answer that comes later than the core would wait for it counts as long
        // as this replica is a candidate in that term.
        ask_for_time(VOTE_ANSWER_MAX);
        let timeout = VOTE_ANSWER_MAX.max(option.hard_ttl());
        let _asked = self.votes.ask(Term(request.vote.leader_id().term), self.target);
        match self.call(PeerCallKind::Vote, PeerMessage::VoteRequest(request), timeout).await? {
            PeerMessage::VoteResponse(response) => Ok(response),
            _ => Err(protocol_error("another message than a vote response")),
        }
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> RpcResult<VoteResponse<TypeConfig>> {
        let owes_vote = self.votes.is_open_at(self.target);
        match self.call(PeerCallKind::PreVote, PeerMessage::VoteRequest(request), option.hard_ttl()).await? {
            PeerMessage::VoteResponse(response) => {
                if owes_vote {
                    // It has kept its vote by now and answers both questions at once. Were this answer looked at first, the next
                    // term would begin, and the vote be for nothing.
                    self.runtime.sleep(VOTE_FIRST).await;
                }
                Ok(response)
            }
            _ => Err(protocol_error("another message than a vote response")),
        }
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: SnapshotOf<TypeConfig, Parcel>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        match select(cancel, self.send_parcel(vote, snapshot, option.hard_ttl())).await {
            Either::Left(closed) => Err(closed.into()),
            Either::Right(answer) => Ok(answer?),
        }
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> RpcResult<TransferLeaderResponse<TypeConfig>> {
        match self.call(PeerCallKind::TransferLeader, PeerMessage::TransferRequest(request), option.hard_ttl()).await? {
            PeerMessage::TransferResponse(response) => Ok(response),
            _ => Err(protocol_error("another message than a transfer response")),
        }
    }
}
