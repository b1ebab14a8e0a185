//! Streams over the simulated network: frames in order, each at most once, until one side or the link ends it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use flotilla_raft_log::AppendChannel;
use flotilla_runtime::{Either, Instant, select};
use tokio::sync::{Notify, mpsc};

use crate::net::{Address, Inner};

/// Frames under way on one wire: a connection's window.
const WINDOW_FRAMES: usize = 32;
/// Frames that wait at either end.
const CHANNEL_FRAMES: usize = 8;

/// The ends of a stream that belong to whoever opens it.
pub(crate) struct Ends<A, B> {
    /// What it has to say.
    pub(crate) requests: mpsc::Receiver<A>,
    /// Where it hears the answers.
    pub(crate) responses: mpsc::Sender<B>,
}

/// The opener's channel, and the ends that will be wired to the peer.
pub(crate) fn pair() -> (Ends<Bytes, Bytes>, AppendChannel) {
    let (request_in, requests) = mpsc::channel(CHANNEL_FRAMES);
    let (responses, response_out) = mpsc::channel(CHANNEL_FRAMES);
    (Ends { requests, responses }, AppendChannel { requests: request_in, responses: response_out })
}

/// Wires the ends to a new pair of channels, which are the peer's.
pub(crate) fn connect<S, A, B>(
    net: Arc<Inner<S>>,
    from: Address,
    to: Address,
    ends: Ends<A, B>,
) -> (mpsc::Receiver<A>, mpsc::Sender<B>)
where
    S: ?Sized + Send + Sync + 'static,
    A: Send + 'static,
    B: Send + 'static,
{
    let (request_out, requests) = mpsc::channel(CHANNEL_FRAMES);
    let (responses, response_in) = mpsc::channel(CHANNEL_FRAMES);
    let broken = Arc::new(Broken::default());
    let runtime = net.runtime.clone();
    let there = Wire { net: net.clone(), from, to, broken: broken.clone() };
    let back = Wire { net, from: to, to: from, broken };
    runtime.spawn("wire", there.carry(ends.requests, request_out)).detach();
    runtime.spawn("wire", back.carry(response_in, ends.responses)).detach();
    (requests, responses)
}

/// Told to both directions once either is broken.
#[derive(Default)]
struct Broken {
    flag: AtomicBool,
    told: Notify,
}

impl Broken {
    fn set(&self) {
        self.flag.store(true, Ordering::Relaxed);
        self.told.notify_waiters();
    }

    async fn wait(&self) {
        while !self.flag.load(Ordering::Relaxed) {
            self.told.notified().await;
        }
    }
}

/// One direction.
struct Wire<S: ?Sized> {
    net: Arc<Inner<S>>,
    from: Address,
    to: Address,
    broken: Arc<Broken>,
}

impl<S: ?Sized + Send + Sync + 'static> Wire<S> {
    async fn carry<T: Send>(self, source: mpsc::Receiver<T>, target: mpsc::Sender<T>) {
        // Ends (and with them both channels) at the first of: sender done, receiver gone, link broken.
        let broken = self.broken.clone();
        if let Either::Right(is_whole) = select(broken.wait(), self.pump(source, target)).await
            && !is_whole
        {
            broken.set();
        }
    }

    /// False if the link broke; else one of the ends was done with it.
    async fn pump<T: Send>(&self, mut source: mpsc::Receiver<T>, target: mpsc::Sender<T>) -> bool {
        let mut under_way: VecDeque<(Instant, T)> = VecDeque::new();
        let mut is_open = true;
        loop {
            let room = is_open && under_way.len() < WINDOW_FRAMES;
            let next = async { if room { source.recv().await } else { std::future::pending().await } };
            let first = under_way.front().map(|(arrival, _)| *arrival);
            let due = async {
                match first {
                    Some(arrival) => self.net.runtime.sleep_until(arrival).await,
                    // Nothing under way: the end still notices a receiver that is gone, and, by its
                    // keep-alive pings, a link that is.
                    None if is_open => {
                        select(target.closed(), self.net.silent_too_long(self.from, self.to)).await;
                    }
                    None => {}
                }
            };
            match select(due, next).await {
                Either::Right(Some(frame)) => {
                    let earliest = under_way.back().map_or(Instant::from_nanos(0), |(arrival, _)| *arrival);
                    under_way.push_back((self.net.arrival().max(earliest), frame));
                    if self.net.breaks_now() {
                        return false;
                    }
                }
                Either::Right(None) => is_open = false,
                Either::Left(()) => {
                    if self.net.is_cut(self.from, self.to) && !self.net.outlives_cut(self.from, self.to).await {
                        return false;
                    }
                    let Some((_, frame)) = under_way.pop_front() else {
                        // A receiver that is gone ends this direction only: what the other one still
                        // carries arrives. A link that is gone ends both.
                        return target.is_closed() || (!is_open && self.part().await);
                    };
                    if target.send(frame).await.is_err() {
                        return true;
                    }
                }
            }
        }
    }

    /// The sender's end is closed: the receiver learns of it after one more latency, or, if the
    /// sender's machine lost power, only when the connection times out.
    async fn part(&self) -> bool {
        let silence = if self.net.is_silent(self.from) { self.net.keep_alive() } else { self.net.latency() };
        self.net.runtime.sleep(silence).await;
        true
    }
}
