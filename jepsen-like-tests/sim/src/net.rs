//! The simulated network: machines, links between them that delay, lose and can be cut, and calls over them.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use flotilla_raft_log::{AppendChannel, NodeId, PeerCallKind, Probe, Transport, TransportError};
use flotilla_runtime::{BoxFuture, Instant, Runtime};
use futures::channel::oneshot;
use tokio::sync::{Notify, mpsc};

use crate::executor::lock;
use crate::rng::Rng;
use crate::wire;

/// A machine's name on the network: replicas by their node id, clients above.
pub type Address = u64;

/// What a replica offers to its peers. A handle of one life: it is gone once that life ends.
pub trait PeerService: Send + Sync + 'static {
    /// Answers a call; an error counts as a broken connection.
    fn call(&self, kind: PeerCallKind, body: Bytes) -> BoxFuture<'static, Result<Bytes, String>>;
    /// Serves an append stream until it ends.
    fn append(&self, requests: mpsc::Receiver<Bytes>, responses: mpsc::Sender<Bytes>) -> BoxFuture<'static, ()>;
}

/// How links behave while nothing is broken on purpose.
#[derive(Debug, Clone)]
pub struct LinkOptions {
    /// One way, microseconds.
    pub latency_us: (u64, u64),
    /// Of a thousand messages so many take [`LinkOptions::spike_us`] instead.
    pub spike_permille: u64,
    /// How long those take, microseconds.
    pub spike_us: (u64, u64),
    /// Of a thousand calls so many are lost on their way there.
    pub request_lost_permille: u64,
    /// Of a thousand calls so many are executed, and their answer is lost.
    pub response_lost_permille: u64,
    /// Of a thousand frames of a stream so many break it.
    pub stream_break_permille: u64,
    /// Of a thousand probes so many are refused though the process is there.
    pub false_refusal_permille: u64,
    /// How long a stream whose link is silent lives on.
    pub keep_alive: Duration,
}

impl Default for LinkOptions {
    fn default() -> LinkOptions {
        LinkOptions {
            latency_us: (50, 300),
            spike_permille: 0,
            spike_us: (0, 0),
            request_lost_permille: 0,
            response_lost_permille: 0,
            stream_break_permille: 0,
            false_refusal_permille: 0,
            keep_alive: Duration::from_secs(2),
        }
    }
}

/// Why a call over the network has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetError {
    /// Connection refused: surely not delivered.
    Refused,
    /// The connection broke: may or may not have been executed.
    Broken,
}

/// The network. It outlives all machines on it.
pub struct SimNet<S: ?Sized> {
    pub(crate) inner: Arc<Inner<S>>,
}

impl<S: ?Sized> Clone for SimNet<S> {
    fn clone(&self) -> Self {
        SimNet { inner: self.inner.clone() }
    }
}

pub(crate) struct Inner<S: ?Sized> {
    /// The harness's own: what is under way lives on when its sender dies.
    pub(crate) runtime: Runtime,
    state: Mutex<State<S>>,
    changed: Notify,
}

struct State<S: ?Sized> {
    options: LinkOptions,
    rng: Rng,
    /// Directed.
    cut: BTreeSet<(Address, Address)>,
    hosts: BTreeMap<Address, Host<S>>,
    /// Machines without power: they do not even refuse.
    silent: BTreeSet<Address>,
}

struct Host<S: ?Sized> {
    runtime: Runtime,
    service: Arc<S>,
}

impl<S: ?Sized> Clone for Host<S> {
    fn clone(&self) -> Self {
        Host { runtime: self.runtime.clone(), service: self.service.clone() }
    }
}

impl<S: ?Sized + Send + Sync + 'static> SimNet<S> {
    /// A network without machines; `runtime` must outlive all of them.
    pub fn new(seed: u64, runtime: Runtime, options: LinkOptions) -> SimNet<S> {
        let state = State {
            options,
            rng: Rng::stream(seed, "net"),
            cut: BTreeSet::new(),
            hosts: BTreeMap::new(),
            silent: BTreeSet::new(),
        };
        SimNet { inner: Arc::new(Inner { runtime, state: Mutex::new(state), changed: Notify::new() }) }
    }

    /// A replica starts to listen; its answers are computed on `runtime`.
    pub fn listen(&self, address: Address, runtime: Runtime, service: Arc<S>) {
        let mut state = lock(&self.inner.state);
        state.hosts.insert(address, Host { runtime, service });
        state.silent.remove(&address);
        drop(state);
        self.inner.changed.notify_waiters();
    }

    /// A replica is gone. With `silently` its machine is too: nobody refuses or resets.
    pub fn vanish(&self, address: Address, silently: bool) {
        let mut state = lock(&self.inner.state);
        let host = state.hosts.remove(&address);
        if silently {
            state.silent.insert(address);
        } else {
            state.silent.remove(&address);
        }
        drop(state);
        drop(host);
    }

    /// The machine has power again, though no process listens yet.
    pub fn power_on(&self, address: Address) {
        lock(&self.inner.state).silent.remove(&address);
    }

    /// Replaces all cuts.
    pub fn set_cuts(&self, cut: BTreeSet<(Address, Address)>) {
        lock(&self.inner.state).cut = cut;
        self.inner.changed.notify_waiters();
    }

    /// Adds cuts.
    pub fn cut(&self, cut: impl IntoIterator<Item = (Address, Address)>) {
        lock(&self.inner.state).cut.extend(cut);
        self.inner.changed.notify_waiters();
    }

    /// Takes cuts away.
    pub fn heal(&self, healed: impl IntoIterator<Item = (Address, Address)>) {
        let mut state = lock(&self.inner.state);
        for link in healed {
            state.cut.remove(&link);
        }
        drop(state);
        self.inner.changed.notify_waiters();
    }

    /// Whether nobody listens anywhere.
    pub fn is_empty(&self) -> bool {
        lock(&self.inner.state).hosts.is_empty()
    }

    /// What outlives all machines.
    pub fn runtime(&self) -> &Runtime {
        &self.inner.runtime
    }

    /// How links behave from now on.
    pub fn set_options(&self, options: LinkOptions) {
        lock(&self.inner.state).options = options;
    }

    /// How links behave now.
    pub fn options(&self) -> LinkOptions {
        lock(&self.inner.state).options.clone()
    }

    /// Asks the process at `to`. What is asked runs there, and goes on if the asker gives up or
    /// dies; whoever waits for the answer must bound the wait, for what is lost is never answered.
    pub fn exchange<T: Send + 'static>(
        &self,
        from: Address,
        to: Address,
        ask: impl FnOnce(Arc<S>) -> BoxFuture<'static, T> + Send + 'static,
    ) -> impl Future<Output = Result<T, NetError>> + Send + 'static {
        let (answer, wait) = oneshot::channel();
        let inner = self.inner.clone();
        let body = async move {
            let outcome = inner.carry(from, to, ask).await;
            // The asker may have given up.
            let _ = answer.send(outcome);
        };
        self.inner.runtime.spawn("call", body).detach();
        async move {
            match wait.await {
                Ok(outcome) => outcome,
                // The harness is being torn down.
                Err(oneshot::Canceled) => Err(NetError::Broken),
            }
        }
    }

    /// The transport of the replica at `from`.
    pub fn transport_of(&self, from: Address) -> Arc<dyn Transport>
    where
        S: PeerService,
    {
        Arc::new(PeerTransport { net: self.clone(), from })
    }
}

impl<S: ?Sized + Send + Sync + 'static> Inner<S> {
    async fn carry<T: Send + 'static>(
        &self,
        from: Address,
        to: Address,
        ask: impl FnOnce(Arc<S>) -> BoxFuture<'static, T> + Send + 'static,
    ) -> Result<T, NetError> {
        let (request_lost, response_lost) = {
            let mut state = lock(&self.state);
            let (there, back) = (state.options.request_lost_permille, state.options.response_lost_permille);
            (state.rng.chance(there), state.rng.chance(back))
        };
        if request_lost || !self.travel(from, to).await || self.is_silent(to) {
            return std::future::pending().await;
        }
        let host = lock(&self.state).hosts.get(&to).cloned();
        let outcome = match host {
            None => Err(NetError::Refused),
            Some(host) => {
                let (answer, wait) = oneshot::channel();
                let Host { runtime, service } = host;
                let serve = async move {
                    // Asked in here, so that whatever it spawns belongs to the host's life too.
                    let _ = answer.send(ask(service).await);
                };
                runtime.spawn("serve-call", serve).detach();
                wait.await.map_err(|oneshot::Canceled| NetError::Broken)
            }
        };
        if response_lost || (outcome.is_err() && self.is_silent(to)) || !self.travel(to, from).await {
            return std::future::pending().await;
        }
        outcome
    }

    /// One way of one message. False if it got lost. A message that meets a cut is either lost, or
    /// held by a retransmitting sender until the cut heals, and then arrives late.
    async fn travel(&self, from: Address, to: Address) -> bool {
        self.runtime.sleep(self.latency()).await;
        if !self.is_cut(from, to) {
            return true;
        }
        if lock(&self.state).rng.chance(500) {
            return false;
        }
        self.healed(from, to).await;
        self.runtime.sleep(self.latency()).await;
        true
    }

    pub(crate) fn latency(&self) -> Duration {
        let mut state = lock(&self.state);
        let State { options, rng, .. } = &mut *state;
        let range = if rng.chance(options.spike_permille) { options.spike_us } else { options.latency_us };
        Duration::from_micros(rng.between(range.0, range.1))
    }

    pub(crate) fn arrival(&self) -> Instant {
        self.runtime.now() + self.latency()
    }

    pub(crate) fn is_cut(&self, from: Address, to: Address) -> bool {
        lock(&self.state).cut.contains(&(from, to))
    }

    pub(crate) fn is_silent(&self, address: Address) -> bool {
        lock(&self.state).silent.contains(&address)
    }

    pub(crate) fn keep_alive(&self) -> Duration {
        lock(&self.state).options.keep_alive
    }

    pub(crate) fn breaks_now(&self) -> bool {
        let mut state = lock(&self.state);
        let permille = state.options.stream_break_permille;
        state.rng.chance(permille)
    }

    /// Tries to connect: the machine at `to` accepts or refuses, if it has power and both ways are open.
    async fn probe(&self, from: Address, to: Address) -> Probe {
        if !self.travel(from, to).await || self.is_silent(to) {
            return std::future::pending().await;
        }
        let probe = {
            let mut state = lock(&self.state);
            let permille = state.options.false_refusal_permille;
            let lies = state.rng.chance(permille);
            if state.hosts.contains_key(&to) && !lies { Probe::Listening } else { Probe::Refused }
        };
        if !self.travel(to, from).await {
            return std::future::pending().await;
        }
        probe
    }

    async fn healed(&self, from: Address, to: Address) {
        while self.is_cut(from, to) {
            self.changed.notified().await;
        }
    }
}

impl<S: ?Sized + Send + Sync + 'static> Inner<S> {
    /// Returns once the link has been cut for longer than a connection over it is kept alive.
    pub(crate) async fn silent_too_long(&self, from: Address, to: Address) {
        loop {
            while !self.is_cut(from, to) {
                self.changed.notified().await;
            }
            if !self.outlives_cut(from, to).await {
                return;
            }
        }
    }

    /// False if the link stays cut for longer than a connection over it is kept alive.
    pub(crate) async fn outlives_cut(&self, from: Address, to: Address) -> bool {
        self.runtime.timeout(self.keep_alive(), self.healed(from, to)).await.is_ok()
    }
}

struct PeerTransport<S: ?Sized> {
    net: SimNet<S>,
    from: Address,
}

impl<S: ?Sized + PeerService> Transport for PeerTransport<S> {
    fn call(
        &self,
        target: NodeId,
        kind: PeerCallKind,
        body: Bytes,
        timeout: Duration,
    ) -> BoxFuture<'static, Result<Bytes, TransportError>> {
        let runtime = self.net.inner.runtime.clone();
        let exchange = self.net.exchange(self.from, target.0, move |service: Arc<S>| service.call(kind, body));
        Box::pin(async move {
            match runtime.timeout(timeout, exchange).await {
                Ok(Ok(Ok(answer))) => Ok(answer),
                Ok(Ok(Err(text))) => Err(TransportError::Broken(text)),
                Ok(Err(NetError::Refused)) => Err(TransportError::Unreachable("connection refused".to_owned())),
                Ok(Err(NetError::Broken)) => Err(TransportError::Broken("connection reset".to_owned())),
                Err(_) => Err(TransportError::Timeout),
            }
        })
    }

    fn open_append(&self, target: NodeId) -> BoxFuture<'static, Result<AppendChannel, TransportError>> {
        let (net, from, to) = (self.net.clone(), self.from, target.0);
        Box::pin(async move {
            let runtime = net.inner.runtime.clone();
            let (wires, channel) = wire::pair();
            let carrier = net.clone();
            // Both ends are made at the peer: the connection exists once the peer has accepted it.
            let accept = move |service: Arc<S>| -> BoxFuture<'static, ()> {
                let (requests, responses) = wire::connect(carrier.inner.clone(), from, to, wires);
                Runtime::current().spawn("serve-append", service.append(requests, responses)).detach();
                Box::pin(std::future::ready(()))
            };
            let exchange = net.exchange(from, to, accept);
            match runtime.timeout(net.inner.keep_alive(), exchange).await {
                Ok(Ok(())) => Ok(channel),
                Ok(Err(NetError::Refused)) => Err(TransportError::Unreachable("connection refused".to_owned())),
                Ok(Err(NetError::Broken)) => Err(TransportError::Broken("connection reset".to_owned())),
                Err(_) => Err(TransportError::Timeout),
            }
        })
    }

    fn probe(&self, target: NodeId, timeout: Duration) -> BoxFuture<'static, Probe> {
        let (inner, from) = (self.net.inner.clone(), self.from);
        Box::pin(async move {
            let probe = inner.probe(from, target.0);
            inner.runtime.timeout(timeout, probe).await.unwrap_or(Probe::NoAnswer)
        })
    }
}
