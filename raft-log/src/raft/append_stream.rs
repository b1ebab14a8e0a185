//! The append stream, both ends: many requests in flight, answers in order, and a stall that is noticed.
//!
//! ```text
//! openraft's requests ─▶ pump ─▶ channel ─▶ … peer … ─▶ channel ─▶ answers, in order ─▶ openraft
//!                         ▲  window of bytes in flight                   │
//!                         └───────────────── opened again by ◀───────────┘
//! ```

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use flotilla_runtime::{Either, Instant, Runtime, Task, select};
use futures::{Stream, StreamExt};
use openraft::OptionalSend;
use openraft::errors::{RPCError, Unreachable};
use openraft::raft::{AppendEntriesRequest, StreamAppendResult};
use tokio::sync::{Notify, mpsc};

use super::gone_watch::GoneWatch;
use super::network::{protocol_error, rpc_error};
use super::type_config::{LogRaft, TypeConfig};
use super::wire::{PeerMessage, decode, encode};
use crate::transport::AppendChannel;
use crate::{NodeId, TransportError};

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
    /// Size and time of each request without an answer.
    requests: VecDeque<(usize, Instant)>,
    bytes: usize,
    /// openraft has no more requests for this session, or the channel took no more.
    pump_ended: bool,
}

impl Flight {
    fn state(&self) -> MutexGuard<'_, FlightState> {
        self.state.lock().expect("flight lock is never poisoned: no code panics while holding it")
    }

    /// Waits until a request of that size may go, and counts it.
    async fn enter(&self, bytes: usize, runtime: &Runtime) {
        loop {
            {
                let mut state = self.state();
                let fits = state.bytes + bytes <= IN_FLIGHT_BYTES_MAX && state.requests.len() < IN_FLIGHT_MAX;
                if fits || state.requests.is_empty() {
                    state.bytes += bytes;
                    state.requests.push_back((bytes, runtime.now()));
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
    pub(super) fn start<S>(runtime: &Runtime, channel: AppendChannel, mut input: S) -> AppendStream
    where
        S: Stream<Item = AppendEntriesRequest<TypeConfig>> + OptionalSend + Unpin + 'static,
    {
        let flight = Arc::new(Flight::default());
        let (counted, requests, clock) = (flight.clone(), channel.requests.clone(), runtime.clone());
        let pump = runtime.spawn("append-pump", async move {
            while let Some(request) = input.next().await {
                let frame = encode(PeerMessage::AppendRequest(request));
                counted.enter(frame.len(), &clock).await;
                if requests.send(frame).await.is_err() {
                    break;
                }
            }
            counted.state().pump_ended = true;
            counted.news.notify_one();
        });
        let last_answer = runtime.now();
        AppendStream { runtime: runtime.clone(), flight, channel, last_answer, failed: false, _pump: pump }
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
                return Some(self.answered(frame));
            }
            let (oldest, pump_ended) = {
                let state = self.flight.state();
                (state.requests.front().map(|(_, sent_at)| *sent_at), state.pump_ended)
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
            return Some(match received {
                Some(frame) => self.answered(frame),
                None => Err(rpc_error(&TransportError::Broken("append stream ended".to_owned()))),
            });
        }
    }

    fn answered(&mut self, frame: Bytes) -> RpcResult<StreamAppendResult<TypeConfig>> {
        {
            let mut state = self.flight.state();
            let Some((bytes, _)) = state.requests.pop_front() else {
                return Err(protocol_error("an answer without a request"));
            };
            state.bytes -= bytes;
        }
        self.flight.room.notify_one();
        self.last_answer = self.runtime.now();
        match decode(frame).map_err(protocol_error)? {
            PeerMessage::AppendResponse(result) => Ok(result),
            _ => Err(protocol_error("another message than an append response")),
        }
    }
}

/// The receiving end: feeds requests to the core and sends its answers back, until either side closes. Tells `watch` of
/// each sign of life, and when the stream ends.
pub(crate) fn serve_append(
    runtime: &Runtime,
    raft: LogRaft,
    watch: GoneWatch,
    requests: mpsc::Receiver<Bytes>,
    responses: mpsc::Sender<Bytes>,
) -> Task<()> {
    runtime.spawn("append-serve", async move {
        // openraft reads the input in a task of its own, which must end with this one.
        let (_open, closed) = futures::channel::oneshot::channel::<()>();
        let source = Source { requests, closed, watch, leader: None };
        let input = futures::stream::unfold(source, |mut source| async move {
            let Either::Left(Some(frame)) = select(source.requests.recv(), &mut source.closed).await else {
                // The peer's side closed, or nobody takes our answers any more.
                source.leader.inspect(|leader| source.watch.broke(*leader));
                return None;
            };
            match decode(frame) {
                Ok(PeerMessage::AppendRequest(request)) => {
                    let leader = NodeId(request.vote.leader_id().voted_for);
                    source.leader = Some(leader);
                    source.watch.heard_from(leader);
                    Some((request, source))
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
        while let Some(Ok(answer)) = answers.next().await {
            if responses.send(encode(PeerMessage::AppendResponse(answer))).await.is_err() {
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
    /// Who sent the last request.
    leader: Option<NodeId>,
}
