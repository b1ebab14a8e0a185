//! What the simulated network promises: answers, refusals, silence, order, and ends that are noticed.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flotilla_raft_log::{NodeId, PeerCallKind, Probe, Transport, TransportError};
use flotilla_runtime::{BoxFuture, Runtime};
use futures::FutureExt;
use tokio::sync::mpsc;

use crate::executor::{Executor, Life, LifeOptions, Step, ms};
use crate::net::{LinkOptions, PeerService, SimNet};

/// Answers what it is asked.
struct Echo;

impl PeerService for Echo {
    fn call(&self, _kind: PeerCallKind, body: Bytes) -> BoxFuture<'static, Result<Bytes, String>> {
        Box::pin(async move { Ok(body) })
    }

    fn append(&self, mut requests: mpsc::Receiver<Bytes>, responses: mpsc::Sender<Bytes>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            while let Some(frame) = requests.recv().await {
                if responses.send(frame).await.is_err() {
                    return;
                }
            }
        })
    }
}

struct World {
    executor: Executor,
    net: SimNet<dyn PeerService>,
    server: Life,
    client: Runtime,
}

fn world(options: LinkOptions) -> World {
    let executor = Executor::new(1, false);
    let (_, harness) = executor.begin_life(LifeOptions::named("harness"));
    let (server, server_runtime) = executor.begin_life(LifeOptions::named("server"));
    let (_, client) = executor.begin_life(LifeOptions::named("client"));
    let net: SimNet<dyn PeerService> = SimNet::new(1, harness, options);
    net.listen(2, server_runtime, Arc::new(Echo));
    World { executor, net, server, client }
}

impl World {
    fn finish<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        let task = self.client.spawn("test", work);
        while !matches!(self.executor.step(), Step::Dead) {}
        task.join().now_or_never().expect("the world is dead, so it is done").expect("the test's task does not panic")
    }

    fn call(&self) -> Result<Bytes, TransportError> {
        let transport = self.transport();
        self.finish(transport.call(NodeId(2), PeerCallKind::Vote, Bytes::from_static(b"hello"), ms(500)))
    }

    fn transport(&self) -> Arc<dyn Transport> {
        self.net.transport_of(1)
    }
}

#[test]
fn a_call_is_answered_and_takes_time() {
    let world = world(LinkOptions { latency_us: (1_000, 1_000), ..LinkOptions::default() });
    let before = world.client.now();
    assert_eq!(world.call(), Ok(Bytes::from_static(b"hello")));
    assert!(world.client.now() - before >= ms(2));
}

#[test]
fn a_dead_process_refuses_a_dead_machine_is_silent_and_a_cut_link_too() {
    let world = world(LinkOptions::default());
    world.net.cut([(2, 1)]);
    assert_eq!(world.call(), Err(TransportError::Timeout), "the answer's way is cut");
    world.net.heal([(2, 1)]);
    assert!(world.call().is_ok());
    world.executor.end_life(world.server);
    world.net.vanish(2, false);
    assert!(matches!(world.call(), Err(TransportError::Unreachable(_))));
    world.net.vanish(2, true);
    assert_eq!(world.call(), Err(TransportError::Timeout));
}

#[test]
fn a_probe_is_refused_only_by_a_machine_without_the_process() {
    let world = world(LinkOptions::default());
    let probe = || world.finish(world.transport().probe(NodeId(2), ms(100)));
    assert_eq!(probe(), Probe::Listening);
    world.net.cut([(1, 2)]);
    assert_eq!(probe(), Probe::NoAnswer);
    world.net.heal([(1, 2)]);
    world.executor.end_life(world.server);
    world.net.vanish(2, false);
    assert_eq!(probe(), Probe::Refused);
    world.net.vanish(2, true);
    assert_eq!(probe(), Probe::NoAnswer, "a machine without power");
}

#[test]
fn a_lost_answer_times_out() {
    let world = world(LinkOptions { response_lost_permille: 1000, ..LinkOptions::default() });
    assert_eq!(world.call(), Err(TransportError::Timeout));
}

#[test]
fn frames_come_back_in_order_whatever_their_latency() {
    let world = world(LinkOptions { latency_us: (10, 5_000), ..LinkOptions::default() });
    let transport = world.transport();
    let client = world.client.clone();
    let got = world.finish(async move {
        let mut channel = transport.open_append(NodeId(2)).await.unwrap();
        let requests = channel.requests;
        let sender = client.spawn("sender", async move {
            for number in 0..200_u8 {
                requests.send(Bytes::copy_from_slice(&[number])).await.unwrap();
            }
        });
        let mut got = Vec::new();
        while let Some(frame) = channel.responses.recv().await {
            got.push(frame[0]);
        }
        sender.join().await.unwrap();
        got
    });
    assert_eq!(got, (0..200).collect::<Vec<u8>>());
}

#[test]
fn a_stream_ends_when_its_peer_dies_and_when_its_link_stays_cut() {
    for dies in [true, false] {
        let world = world(LinkOptions::default());
        let transport = world.transport();
        let stream = world.client.spawn("open", async move {
            let mut channel = transport.open_append(NodeId(2)).await.unwrap();
            channel.requests.send(Bytes::from_static(b"x")).await.unwrap();
            channel.responses.recv().await.unwrap();
            // A frame under way is what notices a cut.
            let _ = channel.requests.send(Bytes::from_static(b"y")).await;
            while channel.responses.recv().await.is_some() {}
        });
        world.executor.run_until(world.client.now() + Duration::from_micros(900));
        if dies {
            world.executor.end_life(world.server);
            world.net.vanish(2, false);
        } else {
            world.net.cut([(1, 2), (2, 1)]);
        }
        let before = world.client.now();
        world.finish(async move { stream.join().await.unwrap() });
        assert!(world.client.now() - before < Duration::from_secs(5));
    }
}
