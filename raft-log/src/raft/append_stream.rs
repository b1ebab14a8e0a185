//! The append stream, both ends: many requests in flight, answers in order, and a stall that is noticed.
//!
//! ```text
//! openraft's requests ─▶ pump ─▶ channel ─▶ … peer … ─▶ channel ─▶ answers, in order ─▶ openraft
//!                         ▲  window of bytes in flight                   │
//!                         └───────────────── opened again by ◀───────────┘
//! ```

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use flotilla_runtime::{Either, Instant, Runtime, Task, select};
use futures::{Stream, StreamExt};
use openraft::OptionalSend;
use openraft::errors::{RPCError, Unreachable};
use openraft::raft::{AppendEntriesRequest, StreamAppendResult};
use tokio::sync::{Notify, mpsc};

use super::fence::NOT_KNOWN;
use super::gone_watch::GoneWatch;
use super::network::{follows, protocol_error, rpc_error};
use super::planted;
use super::stamp::Stamp;
use super::type_config::{LogRaft, TypeConfig};
use super::wire::{DurableMark, PeerMessage, decode, encode, kept};
use crate::ack::ReplicaMarks;
use crate::lease_clock::LeaseClock;
use crate::log_view::LogView;
use crate::standing::Standings;
use crate::transport::AppendChannel;
use crate::{FlushMode, LogIndex, NodeId, Term, TransportError};

/// Bytes of requests that may wait for their answers (one request may pass it alone).
const IN_FLIGHT_BYTES_MAX: usize = 8 << 20;
/// Requests that may wait for their answers; the receiving core takes as many at a time.
const IN_FLIGHT_MAX: usize = 64;
/// A stream with requests in flight and no answer for this long is broken.
const STALL: Duration = Duration::from_secs(3);

type RpcResult<T> = Result<T, RPCError<TypeConfig>>;

/// The sending end of one session.
pub(super) struct AppendStream {
    runtime: Runtime,
    flight: Arc<Flight>,
    channel: AppendChannel,
    /// Told of what the answers say.
    marks: ReplicaMarks,
    /// Told that there are any.
    clock: LeaseClock,
    /// Whose answers count, and who judges that.
    peer: (NodeId, Standings),
    last_answer: Instant,
    /// An error was passed on: the channel's state is not known any more.
    failed: bool,
    /// Cancelled with the session.
    _pump: Task<()>,
}

/// What is in flight, shared with the pump.
#[derive(Default)]
struct Flight {
    state: Mutex<FlightState>,
    /// An answer made room.
    room: Notify,
    /// A request went out, or the last one did.
    news: Notify,
}

#[derive(Default)]
struct FlightState {
    /// Size, time and reign of each request without an answer.
    requests: VecDeque<(usize, Instant, Term)>,
    bytes: usize,
    /// openraft has no more requests for this session, or the channel took no more.
    pump_ended: bool,
}

impl Flight {
    fn state(&self) -> MutexGuard<'_, FlightState> {
        self.state.lock().expect("flight lock is never poisoned: no code panics while holding it")
    }

    /// Waits until a request of that size may go, and counts it.
    async fn enter(&self, bytes: usize, term: Term, runtime: &Runtime) {
        loop {
            {
                let mut state = self.state();
                let fits = state.bytes + bytes <= IN_FLIGHT_BYTES_MAX && state.requests.len() < IN_FLIGHT_MAX;
                if fits || state.requests.is_empty() {
                    state.bytes += bytes;
                    state.requests.push_back((bytes, runtime.now(), term));
                    break;
                }
            }
            // A permit is stored for us, so nothing is missed between the look and the wait.
            self.room.notified().await;
        }
        self.news.notify_one();
    }
}

impl AppendStream {
    /// Begins to send what `input` yields.
    pub(super) fn start<S>(
        runtime: &Runtime,
        mut channel: AppendChannel,
        (marks, clock): (ReplicaMarks, LeaseClock),
        peer: (NodeId, Standings),
        mut input: S,
    ) -> AppendStream
    where
        S: Stream<Item = AppendEntriesRequest<TypeConfig>> + OptionalSend + Unpin + 'static,
    {
        let flight = Arc::new(Flight::default());
        let (counted, requests, own_runtime) = (flight.clone(), channel.requests.clone(), runtime.clone());
        let own_answers = planted::answers_of_its_own(runtime, &mut channel);
        let own = peer.1.clone();
        let pump = runtime.spawn("append-pump", async move {
            while let Some(request) = input.next().await {
                let term = Term(request.vote.leader_id().term);
                let own_answer = own_answers.is_some().then(|| own.stamp().put_on(planted::answer_to(&request)));
                let frame = own.stamp().put_on(encode(PeerMessage::AppendRequest(request)));
                counted.enter(frame.len(), term, &own_runtime).await;
                if requests.send(frame).await.is_err() {
                    break;
                }
                if let (Some(answers), Some(answer)) = (&own_answers, own_answer) {
                    // Whoever takes them is gone with the session.
                    let _ = answers.send(answer).await;
                }
            }
            counted.state().pump_ended = true;
            counted.news.notify_one();
        });
        let last_answer = runtime.now();
        let runtime = runtime.clone();
        AppendStream { runtime, flight, channel, marks, clock, peer, last_answer, failed: false, _pump: pump }
    }

    /// The next answer; `None` when openraft has no more requests and all are answered, or after an error.
    pub(super) async fn next(&mut self) -> Option<RpcResult<StreamAppendResult<TypeConfig>>> {
        if self.failed {
            return None;
        }
        let answer = self.receive().await?;
        self.failed = !matches!(answer, Ok(Ok(_)));
        Some(answer)
    }

    /// The channel for the next session, if nothing is left in it from this one.
    pub(super) fn into_idle_channel(self) -> Option<AppendChannel> {
        let is_idle = !self.failed && self.flight.state().requests.is_empty() && !self.channel.requests.is_closed();
        is_idle.then_some(self.channel)
    }

    async fn receive(&mut self) -> Option<RpcResult<StreamAppendResult<TypeConfig>>> {
        loop {
            // An answer that is already here costs no timer.
            if let Ok(frame) = self.channel.responses.try_recv() {
                match self.answered(frame) {
                    Some(answer) => return Some(answer),
                    None => continue,
                }
            }
            let (oldest, pump_ended) = {
                let state = self.flight.state();
                (state.requests.front().map(|(_, sent_at, _)| *sent_at), state.pump_ended)
            };
            let received = match oldest {
                None if pump_ended => return None,
                None => match select(self.channel.responses.recv(), self.flight.news.notified()).await {
                    Either::Left(received) => received,
                    Either::Right(()) => continue,
                },
                Some(oldest) => {
                    let deadline = oldest.max(self.last_answer) + STALL;
                    match self.runtime.timeout_at(deadline, self.channel.responses.recv()).await {
                        Ok(received) => received,
                        Err(_) => {
                            let what = format!("peer acknowledged nothing for {} s, stream is reset", STALL.as_secs());
                            return Some(Err(RPCError::Unreachable(Unreachable::from_string(what))));
                        }
                    }
                }
            };
            match received {
                Some(frame) => {
                    if let Some(answer) = self.answered(frame) {
                        return Some(answer);
                    }
                }
                None => return Some(Err(rpc_error(&TransportError::Broken("append stream ended".to_owned())))),
            }
        }
    }

    /// `None` if the frame is not an answer to a request.
    fn answered(&mut self, frame: Bytes) -> Option<RpcResult<StreamAppendResult<TypeConfig>>> {
        let sender = match Stamp::of(&frame) {
            Ok(sender) if self.peer.1.admits_answer(self.peer.0, &sender) || planted::answers_itself() => sender,
            Ok(_) => return Some(Err(protocol_error(NOT_KNOWN))),
            Err(error) => return Some(Err(protocol_error(error))),
        };
        let result = match decode(frame) {
            Ok(PeerMessage::AppendResponse(result)) => result,
            Ok(PeerMessage::DurableMark(DurableMark { term, index })) => {
                self.marks.durable(term, index);
                self.peer.1.remember(self.peer.0, sender.incarnation, term, index);
                return None;
            }
            Ok(_) => return Some(Err(protocol_error("another message than an append response"))),
            Err(error) => return Some(Err(protocol_error(error))),
        };
        let (asked_at, term) = {
            let mut state = self.flight.state();
            let Some((bytes, asked_at, term)) = state.requests.pop_front() else {
                return Some(Err(protocol_error("an answer without a request")));
            };
            state.bytes -= bytes;
            (asked_at, term)
        };
        if follows(&result) {
            self.clock.answered(self.peer.0, term, asked_at);
        }
        self.flight.room.notify_one();
        self.last_answer = self.runtime.now();
        if let Ok(Some(matched)) = &result {
            let index = LogIndex(matched.index());
            self.marks.matched(term, index);
            if self.marks.matched_is_durable() {
                self.peer.1.remember(self.peer.0, sender.incarnation, term, index);
            }
        }
        Some(Ok(result))
    }
}

/// The receiving end: feeds requests to the core and sends its answers back, until either side closes. Tells `watch` of
/// each sign of life, and when the stream ends.
pub(crate) fn serve_append(
    runtime: &Runtime,
    raft: LogRaft,
    view: LogView,
    watch: GoneWatch,
    requests: mpsc::Receiver<Bytes>,
    responses: mpsc::Sender<Bytes>,
) -> Task<()> {
    let standings = view.standings().clone();
    runtime.spawn("append-serve", async move {
        // openraft reads the input in a task of its own, which must end with this one.
        let (_open, closed) = futures::channel::oneshot::channel::<()>();
        let reign = Arc::new(AtomicU64::new(0));
        let judge = standings.clone();
        let source = Source { requests, closed, watch, view: view.clone(), leader: None, reign: reign.clone() };
        let input = futures::stream::unfold((source, judge), |(mut source, judge)| async move {
            let Either::Left(Some(frame)) = select(source.requests.recv(), &mut source.closed).await else {
                // The peer's side closed, or nobody takes our answers any more.
                source.leader.inspect(|leader| source.watch.broke(*leader));
                return None;
            };
            match Stamp::of(&frame) {
                Ok(sender) if judge.admits_request(&sender) => {}
                Ok(sender) => {
                    tracing::warn!(
                        node = sender.node.0, incarnation = %sender.incarnation,
                        "append stream closed: the group has given up the directory that it comes from, or this one"
                    );
                    return None;
                }
                Err(error) => {
                    tracing::warn!(%error, "append stream closed: peer sent nonsense");
                    return None;
                }
            }
            match decode(kept(frame)) {
                Ok(PeerMessage::AppendRequest(request)) => {
                    let leader = NodeId(request.vote.leader_id().voted_for);
                    source.leader = Some(leader);
                    source.reign.store(request.vote.leader_id().term, Ordering::Release);
                    source.watch.heard_from(leader);
                    Some((planted::seen(request, &source.view), (source, judge)))
                }
                Ok(_) => {
                    tracing::warn!("append stream closed: peer sent another message than an append request");
                    None
                }
                Err(error) => {
                    tracing::warn!(%error, "append stream closed: peer sent nonsense");
                    None
                }
            }
        });
        let mut answers = std::pin::pin!(raft.stream_append(input));
        let mut synced = SyncedMarks { view, matched: None, told: None };
        loop {
            let frame = match select(answers.next(), synced.next()).await {
                Either::Left(Some(Ok(answer))) => {
                    if let Ok(Some(matched)) = &answer {
                        synced.answered(Term(reign.load(Ordering::Acquire)), LogIndex(matched.index()));
                    }
                    PeerMessage::AppendResponse(answer)
                }
                Either::Left(_) => break,
                Either::Right(mark) => PeerMessage::DurableMark(mark),
            };
            if responses.send(standings.stamp().put_on(encode(frame))).await.is_err() {
                break;
            }
        }
    })
}

/// Where a served stream's requests come from.
struct Source {
    requests: mpsc::Receiver<Bytes>,
    /// Resolves when the serving task is over.
    closed: futures::channel::oneshot::Receiver<()>,
    watch: GoneWatch,
    view: LogView,
    /// Who sent the last request.
    leader: Option<NodeId>,
    /// Its term.
    reign: Arc<AtomicU64>,
}

/// What the leader is told of a follower that answers before its disk does.
struct SyncedMarks {
    view: LogView,
    matched: Option<(Term, LogIndex)>,
    /// Last mark told, in the reign of `matched`.
    told: Option<LogIndex>,
}

impl SyncedMarks {
    /// The next mark worth telling. Never, where an answer means that the entries are on disk.
    async fn next(&mut self) -> DurableMark {
        loop {
            let pending = self.matched.filter(|(_, matched)| self.told < Some(*matched));
            let Some((term, matched)) = pending.filter(|_| self.view.flush_mode() != FlushMode::Sync) else {
                return std::future::pending().await;
            };
            // Looked at after the answer, so that it speaks of the entries that the leader sent.
            let durable = self.view.durable_index().min(Some(matched));
            if let Some(index) = durable
                && durable > self.told
            {
                self.told = durable;
                return DurableMark { term, index };
            }
            let next = self.told.map_or(LogIndex(0), LogIndex::next);
            if self.view.wait_durable(next).await.is_err() {
                // The end.
                return std::future::pending().await;
            }
        }
    }

    /// The leader was answered that this replica has everything up to `index`.
    fn answered(&mut self, term: Term, index: LogIndex) {
        if self.matched.is_some_and(|(known, _)| known != term) {
            self.told = None;
        }
        self.matched = Some((term, index));
    }
}
