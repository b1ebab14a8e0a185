//! The links between replicas, as proxies on loopback ports: each direction can be frozen, as by a router that drops, and what
//! one replica sends on connections that it has made itself can be kept back for a while.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flotilla_broker::BrokerConfig;
use flotilla_runtime::{Instant, Runtime, select};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

/// A frozen link is looked at again so often.
const LOOK_PAUSE: Duration = Duration::from_millis(3);

/// Chunks that may be on a slow link.
const CHUNKS_MAX: usize = 4096;

/// By who sends and who receives.
type Directions = BTreeMap<(u64, u64), Direction>;

/// What one replica sends to another one.
#[derive(Clone, Default)]
struct Direction {
    is_frozen: Arc<AtomicBool>,
    /// On connections that the sender has made: entries and heartbeats go there, answers do not.
    delay_ms: Arc<AtomicU64>,
}

/// Whether each direction between two replicas is frozen.
#[derive(Clone)]
pub struct Links {
    runtime: Runtime,
    directions: Arc<Mutex<Directions>>,
}

impl Links {
    pub fn new() -> Links {
        Links { runtime: Runtime::tokio(), directions: Arc::default() }
    }

    /// Lets a replica reach its peers through proxies only.
    pub fn bend(&self, config: &mut BrokerConfig) {
        let own = config.node;
        for replica in config.replicas.iter_mut().filter(|replica| replica.node != own) {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a loopback port");
            listener.set_nonblocking(true).expect("a socket");
            let proxy = listener.local_addr().expect("bound").to_string();
            let target = std::mem::replace(&mut replica.peer, proxy);
            let listener = TcpListener::from_std(listener).expect("inside a runtime");
            let (there, mut back) = (self.direction(own, replica.node), self.direction(replica.node, own));
            back.delay_ms = Arc::default();
            let runtime = self.runtime.clone();
            let work = async move {
                while let Ok((near, _)) = listener.accept().await {
                    // Nobody there: the connection closes.
                    let Ok(far) = TcpStream::connect(&target).await else { continue };
                    let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
                    runtime.spawn("there", carry(runtime.clone(), near_in, far_out, there.clone())).detach();
                    runtime.spawn("back", carry(runtime.clone(), far_in, near_out, back.clone())).detach();
                }
            };
            self.runtime.spawn("proxy", work).detach();
        }
    }

    fn direction(&self, from: u64, to: u64) -> Direction {
        self.directions.lock().expect("not poisoned").entry((from, to)).or_default().clone()
    }

    /// Freezes or thaws what `from` sends to `to`: requests as well as answers.
    pub fn freeze(&self, from: u64, to: u64, is_frozen: bool) {
        self.direction(from, to).is_frozen.store(is_frozen, Ordering::SeqCst);
    }

    /// Keeps back for so long whatever `from` sends to `to`, but for its answers.
    pub fn delay(&self, from: u64, to: u64, delay: Duration) {
        let delay_ms = u64::try_from(delay.as_millis()).expect("not that long");
        self.direction(from, to).delay_ms.store(delay_ms, Ordering::SeqCst);
    }

    /// Freezes or thaws all that a replica sends and gets.
    pub fn isolate(&self, node: u64, is_frozen: bool) {
        for other in (1..=3).filter(|other| *other != node) {
            self.freeze(node, other, is_frozen);
            self.freeze(other, node, is_frozen);
        }
    }
}

async fn carry(runtime: Runtime, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, direction: Direction) {
    let (sender, mut receiver) = mpsc::channel::<(Instant, Vec<u8>)>(CHUNKS_MAX);
    let (timer, is_frozen) = (runtime.clone(), direction.is_frozen);
    let writing = async move {
        while let Some((due, chunk)) = receiver.recv().await {
            timer.sleep_until(due).await;
            while is_frozen.load(Ordering::SeqCst) {
                timer.sleep(LOOK_PAUSE).await;
            }
            if to.write_all(&chunk).await.is_err() {
                return;
            }
        }
    };
    let reading = async move {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            let due = runtime.now() + Duration::from_millis(direction.delay_ms.load(Ordering::SeqCst));
            // Fails when nobody writes any more, which is the end of both.
            let _ = sender.send((due, buffer[..count].to_vec())).await;
        }
        drop(sender);
        std::future::pending::<()>().await;
    };
    select(writing, reading).await;
}
