//! Weather over the memory net: links that are slow, frozen or break off what they carry, and a count of who tried whom.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use flotilla_runtime::{BoxFuture, Instant, Runtime};
use tokio::sync::mpsc;

use crate::{AppendChannel, NodeId, PeerCallKind, Probe, Transport, TransportError};

/// A frozen link is looked at again so often.
const LOOK_PAUSE: Duration = Duration::from_millis(3);

/// What a link in one direction is like.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Link {
    /// Each frame takes so long, and keeps its place.
    pub(crate) delay: Duration,
    /// Nothing arrives, and nobody is told; what is under way arrives after the thaw.
    pub(crate) is_frozen: bool,
    /// Accepts connections and breaks whatever comes over them, at once.
    pub(crate) breaks: bool,
}

/// The weather; clones are the same one.
#[derive(Clone, Default)]
pub(crate) struct Weather {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    links: BTreeMap<(NodeId, NodeId), Link>,
    tries: BTreeMap<(NodeId, NodeId), u64>,
}

struct Weathered {
    inner: Arc<dyn Transport>,
    from: NodeId,
    weather: Weather,
    runtime: Runtime,
}

impl Weather {
    /// `inner`, the way out of `from`, in this weather.
    pub(crate) fn over(&self, inner: Arc<dyn Transport>, from: NodeId, runtime: &Runtime) -> Arc<dyn Transport> {
        Arc::new(Weathered { inner, from, weather: self.clone(), runtime: runtime.clone() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Changes the link in one direction.
    pub(crate) fn set(&self, from: NodeId, to: NodeId, link: Link) {
        self.state().links.insert((from, to), link);
    }

    /// Changes all links of a node, both ways.
    pub(crate) fn set_around(&self, node: NodeId, others: &[NodeId], link: Link) {
        for other in others.iter().filter(|other| **other != node) {
            self.set(node, *other, link);
            self.set(*other, node, link);
        }
    }

    /// How often `from` has called `to` or opened a stream.
    pub(crate) fn tries(&self, from: NodeId, to: NodeId) -> u64 {
        self.state().tries.get(&(from, to)).copied().unwrap_or(0)
    }

    fn link(&self, from: NodeId, to: NodeId) -> Link {
        self.state().links.get(&(from, to)).copied().unwrap_or_default()
    }

    /// Travels the link: resolves when what set out at `began` arrives.
    async fn travel(&self, runtime: &Runtime, from: NodeId, to: NodeId, began: Instant) {
        runtime.sleep_until(began + self.link(from, to).delay).await;
        while self.link(from, to).is_frozen {
            runtime.sleep(LOOK_PAUSE).await;
        }
    }

    /// Carries frames over the link, in order, until either side ends.
    fn carry(
        &self,
        runtime: &Runtime,
        (from, to): (NodeId, NodeId),
        mut taken: mpsc::Receiver<Bytes>,
        given: mpsc::Sender<Bytes>,
    ) {
        let (weather, clock) = (self.clone(), runtime.clone());
        let (stamped, mut under_way) = mpsc::unbounded_channel();
        let stamping = clock.clone();
        let stamp = async move {
            while let Some(frame) = taken.recv().await {
                if stamped.send((stamping.now(), frame)).is_err() {
                    return;
                }
            }
        };
        let deliver = async move {
            while let Some((began, frame)) = under_way.recv().await {
                weather.travel(&clock, from, to, began).await;
                if weather.link(from, to).breaks || given.send(frame).await.is_err() {
                    return;
                }
            }
        };
        runtime.spawn("stamp", stamp).detach();
        runtime.spawn("deliver", deliver).detach();
    }
}

impl Weathered {
    /// The way there; an error where it breaks.
    fn set_out(&self, target: NodeId) -> BoxFuture<'static, Result<(), TransportError>> {
        *self.weather.state().tries.entry((self.from, target)).or_default() += 1;
        let (weather, runtime, from) = (self.weather.clone(), self.runtime.clone(), self.from);
        Box::pin(async move {
            weather.travel(&runtime, from, target, runtime.now()).await;
            if weather.link(from, target).breaks {
                return Err(TransportError::Broken("connection reset by the test".to_owned()));
            }
            Ok(())
        })
    }
}

impl Transport for Weathered {
    fn call(
        &self,
        target: NodeId,
        kind: PeerCallKind,
        body: Bytes,
        timeout: Duration,
    ) -> BoxFuture<'static, Result<Bytes, TransportError>> {
        let out = self.set_out(target);
        let (inner, weather, runtime, from) =
            (self.inner.clone(), self.weather.clone(), self.runtime.clone(), self.from);
        Box::pin(async move {
            out.await?;
            let answer = inner.call(target, kind, body, timeout).await?;
            weather.travel(&runtime, target, from, runtime.now()).await;
            Ok(answer)
        })
    }

    fn open_append(&self, target: NodeId) -> BoxFuture<'static, Result<AppendChannel, TransportError>> {
        let out = self.set_out(target);
        let (inner, weather, runtime, from) =
            (self.inner.clone(), self.weather.clone(), self.runtime.clone(), self.from);
        Box::pin(async move {
            out.await?;
            let channel = inner.open_append(target).await?;
            let (requests, requests_out) = mpsc::channel(16);
            let (responses_in, responses) = mpsc::channel(16);
            weather.carry(&runtime, (from, target), requests_out, channel.requests);
            weather.carry(&runtime, (target, from), channel.responses, responses_in);
            Ok(AppendChannel { requests, responses })
        })
    }

    fn probe(&self, target: NodeId, timeout: Duration) -> BoxFuture<'static, Probe> {
        let link = self.weather.link(self.from, target);
        if link.is_frozen {
            return Box::pin(std::future::ready(Probe::NoAnswer));
        }
        self.inner.probe(target, timeout)
    }
}
