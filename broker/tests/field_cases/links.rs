//! The links between replicas, as proxies on loopback ports: each direction can be frozen, as by a router that drops.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flotilla_broker::BrokerConfig;
use flotilla_runtime::Runtime;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// A frozen link is looked at again so often.
const LOOK_PAUSE: Duration = Duration::from_millis(3);

/// By who sends and who receives.
type Frozen = BTreeMap<(u64, u64), Arc<AtomicBool>>;

/// Whether each direction between two replicas is frozen.
#[derive(Clone)]
pub struct Links {
    runtime: Runtime,
    frozen: Arc<Mutex<Frozen>>,
}

impl Links {
    pub fn new() -> Links {
        Links { runtime: Runtime::tokio(), frozen: Arc::default() }
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
            let (there, back) = (self.flag(own, replica.node), self.flag(replica.node, own));
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

    fn flag(&self, from: u64, to: u64) -> Arc<AtomicBool> {
        self.frozen.lock().expect("not poisoned").entry((from, to)).or_default().clone()
    }

    /// Freezes or thaws what `from` sends to `to`: requests as well as answers.
    pub fn freeze(&self, from: u64, to: u64, is_frozen: bool) {
        self.flag(from, to).store(is_frozen, Ordering::SeqCst);
    }

    /// Freezes or thaws all that a replica sends and gets.
    pub fn isolate(&self, node: u64, is_frozen: bool) {
        for other in (1..=3).filter(|other| *other != node) {
            self.freeze(node, other, is_frozen);
            self.freeze(other, node, is_frozen);
        }
    }
}

async fn carry(runtime: Runtime, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, is_frozen: Arc<AtomicBool>) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let Ok(count @ 1..) = from.read(&mut buffer).await else { return };
        while is_frozen.load(Ordering::SeqCst) {
            runtime.sleep(LOOK_PAUSE).await;
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
