//! The network between replicas, as loopback proxies that can be told to fail: one per directed link.
//!
//! Replica `i` reaches replica `j` through the proxy `i→j`, so the link `i→j` carries the connections that `i` opens.
//! Packets travel on *paths*: what `i` writes takes the path `i→j` (also where it answers on a connection that `j`
//! opened), so that a path can fail in one direction only. A link's *door* decides about whole connections.
//!
//! ```text
//!   replica i ──connects──▶ ┌ link i→j ┐ ──connects──▶ replica j
//!              bytes of i ▶ │ path i→j │ ▶
//!                         ◀ │ path j→i │ ◀ bytes of j
//! ```

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flotilla_runtime::{Either, Instant, Runtime, Task, select};
use futures::StreamExt;
use futures::future::{join, pending};
use futures::stream::FuturesUnordered;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc};

/// What is read at once, and the unit of what is held.
const CHUNK_BYTES: usize = 16 << 10;
/// Chunks that may be under way on one connection in one direction; then its sender's buffers fill, as on a network.
const CHUNKS_MAX: usize = 64;
/// Pause after the system refused a connection for want of something.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// What becomes of bytes from one replica to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    /// They arrive.
    Flows,
    /// They do not arrive, and nobody is told: as with a router that drops. They arrive once it flows again.
    Held,
    /// Each arrives so much later.
    Delayed(Duration),
    /// So many of a hundred pieces get lost on the way and come when they are sent again, [`RESENT_AFTER`] later; what
    /// follows waits for them, as with TCP.
    Lossy(u8),
    /// One piece in `CORRUPT_ONE_IN` arrives with one bit changed, and the connection ends there: what a broken device
    /// does that the checksums of the network did not notice.
    Corrupting,
}

/// See [`Traffic::Corrupting`].
const CORRUPT_ONE_IN: u64 = 20;

/// How long TCP waits before it sends again, at the least (Linux: `TCP_RTO_MIN`).
pub const RESENT_AFTER: Duration = Duration::from_millis(200);

/// What becomes of the connections that one replica opens to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// They are carried.
    Open,
    /// New ones are accepted and old ones stay, but nothing passes in either direction.
    Frozen,
    /// Old ones are closed, new ones are closed at once: as with a router that rejects.
    Closed,
}

/// All links between the replicas of one cluster. Dropping it ends them all.
pub struct Links {
    links: BTreeMap<(u64, u64), Link>,
    paths: BTreeMap<(u64, u64), Arc<Switch<Traffic>>>,
    /// Replicas without a process, by the harness's word.
    gone: BTreeMap<u64, Arc<Switch<bool>>>,
    disturbed: Arc<AtomicU64>,
}

struct Link {
    address: SocketAddr,
    door: Arc<Switch<Door>>,
    _task: Task<()>,
}

/// What a connection needs to know of its link.
#[derive(Clone)]
struct Wire {
    target: SocketAddr,
    door: Arc<Switch<Door>>,
    gone: Arc<Switch<bool>>,
    there: Arc<Switch<Traffic>>,
    back: Arc<Switch<Traffic>>,
    disturbed: Arc<AtomicU64>,
    runtime: Runtime,
}

impl Links {
    /// Opens a link for each ordered pair of replicas, given where each serves its peers.
    ///
    /// # Errors
    /// If the system has no port left.
    pub async fn open(peers: &[(u64, SocketAddr)], runtime: &Runtime) -> io::Result<Links> {
        let pairs = || peers.iter().flat_map(|from| peers.iter().map(move |to| (from.0, *to)));
        let pairs = || pairs().filter(|(from, to)| *from != to.0);
        let paths: BTreeMap<(u64, u64), Arc<Switch<Traffic>>> =
            pairs().map(|(from, (to, _))| ((from, to), Arc::new(Switch::new(Traffic::Flows)))).collect();
        let disturbed = Arc::new(AtomicU64::new(0));
        let gone: BTreeMap<u64, Arc<Switch<bool>>> =
            peers.iter().map(|(node, _)| (*node, Arc::new(Switch::new(false)))).collect();
        let mut links = BTreeMap::new();
        for (from, (to, target)) in pairs() {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
            let address = listener.local_addr()?;
            let door = Arc::new(Switch::new(Door::Open));
            let wire = Wire {
                target,
                door: door.clone(),
                gone: gone[&to].clone(),
                there: paths[&(from, to)].clone(),
                back: paths[&(to, from)].clone(),
                disturbed: disturbed.clone(),
                runtime: runtime.clone(),
            };
            let task = runtime.spawn("link", serve(address, listener, wire));
            links.insert((from, to), Link { address, door, _task: task });
        }
        Ok(Links { links, paths, gone, disturbed })
    }

    /// Where `from` finds `to`; none from a replica to itself.
    pub fn address(&self, from: u64, to: u64) -> Option<SocketAddr> {
        self.links.get(&(from, to)).map(|link| link.address)
    }

    /// Changes what becomes of bytes from `from` to `to`.
    pub fn set_traffic(&self, from: u64, to: u64, traffic: Traffic) {
        if let Some(path) = self.paths.get(&(from, to)) {
            path.set(traffic);
        }
    }

    /// Changes what becomes of connections that `from` opens to `to`.
    pub fn set_door(&self, from: u64, to: u64, door: Door) {
        if let Some(link) = self.links.get(&(from, to)) {
            link.door.set(door);
        }
    }

    /// Tells whether a replica has no process: its kernel then refuses connections, and so do the links to it, as far as
    /// the word of its kernel can pass.
    pub fn set_gone(&self, node: u64, is_gone: bool) {
        if let Some(gone) = self.gone.get(&node) {
            gone.set(is_gone);
        }
    }

    /// Everything flows again.
    pub fn heal(&self) {
        self.links.values().for_each(|link| link.door.set(Door::Open));
        self.paths.values().for_each(|path| path.set(Traffic::Flows));
    }

    /// Whether every connection is carried and every byte passes at once.
    pub fn is_whole(&self) -> bool {
        self.links.values().all(|link| link.door.get() == Door::Open)
            && self.paths.values().all(|path| path.get() == Traffic::Flows)
    }

    /// How many chunks were held or delayed and how many connections cut or turned away until now: whether a fault
    /// met any traffic at all.
    pub fn disturbed(&self) -> u64 {
        self.disturbed.load(Ordering::Relaxed)
    }
}

/// A setting that others can wait for.
struct Switch<T> {
    state: Mutex<T>,
    changed: Notify,
}

impl<T: Copy> Switch<T> {
    fn new(state: T) -> Switch<T> {
        Switch { state: Mutex::new(state), changed: Notify::new() }
    }

    fn get(&self) -> T {
        *self.lock()
    }

    fn set(&self, state: T) {
        *self.lock() = state;
        self.changed.notify_waiters();
    }

    async fn until(&self, is_met: impl Fn(T) -> bool) {
        loop {
            let mut changed = pin!(self.changed.notified());
            // From here on no change is missed.
            changed.as_mut().enable();
            if is_met(self.get()) {
                return;
            }
            changed.await;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, T> {
        self.state.lock().expect("a switch's lock is never poisoned: no code panics while holding it")
    }
}

/// Accepts and carries connections until dropped. While the far side has no process, nobody listens: connecting is
/// refused at once. While packets do not pass, nobody can say so, and connecting is left in the air.
async fn serve(address: SocketAddr, listener: TcpListener, wire: Wire) {
    let mut listener = Some(listener);
    let mut connections = FuturesUnordered::new();
    loop {
        let one_ends = async {
            if connections.next().await.is_none() {
                pending::<()>().await;
            }
        };
        let Some(open) = &listener else {
            if let Either::Left(()) = select(wire.until_not_refusing(), one_ends).await {
                match TcpListener::bind(address).await {
                    Ok(bound) => listener = Some(bound),
                    Err(error) => {
                        tracing::warn!(%error, %address, "a link cannot listen again");
                        wire.runtime.sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
            continue;
        };
        match select(select(open.accept(), wire.until_refusing()), one_ends).await {
            Either::Left(Either::Left(Ok((stream, _)))) if wire.door.get() == Door::Closed => {
                wire.disturbed.fetch_add(1, Ordering::Relaxed);
                drop(stream);
            }
            Either::Left(Either::Left(Ok((stream, _)))) => connections.push(carry(stream, wire.clone())),
            Either::Left(Either::Left(Err(error))) => {
                tracing::warn!(%error, "a link could not accept a connection");
                wire.runtime.sleep(ACCEPT_PAUSE).await;
            }
            Either::Left(Either::Right(())) => listener = None,
            Either::Right(()) => {}
        }
    }
}

impl Wire {
    fn is_refusing(&self) -> bool {
        let passes = |path: &Switch<Traffic>| path.get() != Traffic::Held;
        self.gone.get() && self.door.get() == Door::Open && passes(&self.there) && passes(&self.back)
    }

    async fn until_refusing(&self) {
        self.until_any_change(|| self.is_refusing()).await;
    }

    async fn until_not_refusing(&self) {
        self.until_any_change(|| !self.is_refusing()).await;
    }

    /// Looks again whenever one of the settings has changed.
    async fn until_any_change(&self, is_met: impl Fn() -> bool) {
        loop {
            let (mut gone, mut door) = (pin!(self.gone.changed.notified()), pin!(self.door.changed.notified()));
            let (mut there, mut back) = (pin!(self.there.changed.notified()), pin!(self.back.changed.notified()));
            gone.as_mut().enable();
            door.as_mut().enable();
            there.as_mut().enable();
            back.as_mut().enable();
            if is_met() {
                return;
            }
            select(select(gone, door), select(there, back)).await;
        }
    }
}

/// Carries one connection until either side ends it or the door closes.
async fn carry(near: TcpStream, wire: Wire) {
    let work = async {
        // A far side that packets do not reach does not learn of the connection.
        wire.there.until(|traffic| traffic != Traffic::Held).await;
        wire.door.until(|door| door != Door::Frozen).await;
        let far = match TcpStream::connect(wire.target).await {
            Ok(far) => far,
            Err(error) => {
                tracing::debug!(target = %wire.target, %error, "the far side of a link does not listen");
                return;
            }
        };
        for stream in [&near, &far] {
            // Without effect the bytes still arrive, only later.
            let _ = stream.set_nodelay(true);
        }
        let (near_read, near_write) = near.into_split();
        let (far_read, far_write) = far.into_split();
        join(pump(near_read, far_write, &wire.there, &wire), pump(far_read, near_write, &wire.back, &wire)).await;
    };
    let cut = wire.door.until(|door| door == Door::Closed);
    if let Either::Right(()) = select(work, cut).await {
        wire.disturbed.fetch_add(1, Ordering::Relaxed);
    }
}

/// Moves bytes one way until their source ends or their target is gone.
async fn pump(mut source: OwnedReadHalf, mut target: OwnedWriteHalf, path: &Switch<Traffic>, wire: &Wire) {
    let (give, mut take) = mpsc::channel::<(Instant, Vec<u8>)>(CHUNKS_MAX);
    let read = async move {
        let mut buffer = vec![0; CHUNK_BYTES];
        while let Ok(count @ 1..) = source.read(&mut buffer).await {
            let delay = match path.get() {
                Traffic::Flows | Traffic::Held => Duration::ZERO,
                Traffic::Delayed(delay) => delay,
                Traffic::Lossy(percent) if wire.runtime.random_below(100) < u64::from(percent) => RESENT_AFTER,
                Traffic::Lossy(_) => Duration::ZERO,
                Traffic::Corrupting if wire.runtime.random_below(CORRUPT_ONE_IN) > 0 => Duration::ZERO,
                Traffic::Corrupting => {
                    // Nothing after the damaged piece arrives.
                    let bit = wire.runtime.random_below(count as u64 * 8);
                    buffer[bit as usize / 8] ^= 1 << (bit % 8);
                    wire.disturbed.fetch_add(1, Ordering::Relaxed);
                    let _ = give.send((wire.runtime.now(), buffer[..count].to_vec())).await;
                    return;
                }
            };
            if give.send((wire.runtime.now() + delay, buffer[..count].to_vec())).await.is_err() {
                return;
            }
        }
    };
    let write = async move {
        while let Some((due, bytes)) = take.recv().await {
            if due > wire.runtime.now() {
                wire.disturbed.fetch_add(1, Ordering::Relaxed);
                wire.runtime.sleep_until(due).await;
            }
            await_passage(path, wire).await;
            if target.write_all(&bytes).await.is_err() {
                // Dropping the receiver ends the reading side too.
                return;
            }
        }
        // The end is news as well.
        await_passage(path, wire).await;
        let _ = target.shutdown().await;
    };
    join(read, write).await;
}

async fn await_passage(path: &Switch<Traffic>, wire: &Wire) {
    let passes = || path.get() != Traffic::Held && wire.door.get() != Door::Frozen;
    if passes() {
        return;
    }
    wire.disturbed.fetch_add(1, Ordering::Relaxed);
    while !passes() {
        path.until(|traffic| traffic != Traffic::Held).await;
        wire.door.until(|door| door != Door::Frozen).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(100);
    const LATE: Duration = Duration::from_secs(10);

    /// Links between 1 and 2, where 2 answers each byte with the next one, and a connection from 1 to 2.
    async fn linked() -> (Links, TcpStream, Task<()>) {
        let runtime = Runtime::tokio();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let two = listener.local_addr().unwrap();
        let echo = runtime.spawn("echo", async move {
            let mut connections = FuturesUnordered::new();
            loop {
                let one_ends = async {
                    if connections.next().await.is_none() {
                        pending::<()>().await;
                    }
                };
                if let Either::Left(accepted) = select(listener.accept(), one_ends).await {
                    let (mut stream, _) = accepted.unwrap();
                    connections.push(async move {
                        while let Ok(byte) = stream.read_u8().await {
                            if stream.write_u8(byte + 1).await.is_err() {
                                return;
                            }
                        }
                    });
                }
            }
        });
        let one = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let links = Links::open(&[(1, one), (2, two)], &runtime).await.unwrap();
        let stream = TcpStream::connect(links.address(1, 2).unwrap()).await.unwrap();
        (links, stream, echo)
    }

    /// Sends a byte; true if the next one comes back before `wait` is over.
    async fn is_answered(stream: &mut TcpStream, byte: u8, wait: Duration) -> bool {
        stream.write_u8(byte).await.is_ok() && comes(stream, byte + 1, wait).await
    }

    async fn comes(stream: &mut TcpStream, byte: u8, wait: Duration) -> bool {
        matches!(Runtime::tokio().timeout(wait, stream.read_u8()).await, Ok(Ok(got)) if got == byte)
    }

    #[tokio::test]
    async fn bytes_pass_in_both_directions_and_nothing_is_disturbed() {
        let (links, mut stream, _echo) = linked().await;
        assert!(is_answered(&mut stream, 1, LATE).await);
        assert!(is_answered(&mut stream, 7, LATE).await);
        assert_eq!(links.disturbed(), 0);
        assert_eq!(links.address(1, 1), None);
    }

    #[tokio::test]
    async fn either_held_direction_stops_answers_and_healing_lets_them_come() {
        for held in [(1, 2), (2, 1)] {
            let (links, mut stream, _echo) = linked().await;
            assert!(is_answered(&mut stream, 1, LATE).await);
            links.set_traffic(held.0, held.1, Traffic::Held);
            assert!(!is_answered(&mut stream, 3, SOON).await, "held {held:?}");
            assert!(links.disturbed() > 0);
            links.heal();
            assert!(comes(&mut stream, 4, LATE).await, "held {held:?}");
        }
    }

    #[tokio::test]
    async fn a_frozen_link_accepts_and_passes_nothing_until_it_is_healed() {
        let (links, mut stream, _echo) = linked().await;
        assert!(is_answered(&mut stream, 1, LATE).await);
        links.set_door(1, 2, Door::Frozen);
        let mut second = TcpStream::connect(links.address(1, 2).unwrap()).await.unwrap();
        assert!(!is_answered(&mut stream, 3, SOON).await);
        assert!(!is_answered(&mut second, 5, SOON).await);
        links.heal();
        assert!(comes(&mut stream, 4, LATE).await && comes(&mut second, 6, LATE).await);
    }

    #[tokio::test]
    async fn a_closed_link_ends_connections_and_a_healed_one_takes_new_ones() {
        let (links, mut stream, _echo) = linked().await;
        assert!(is_answered(&mut stream, 1, LATE).await);
        links.set_door(1, 2, Door::Closed);
        assert!(stream.read_u8().await.is_err());
        let mut second = TcpStream::connect(links.address(1, 2).unwrap()).await.unwrap();
        assert!(second.read_u8().await.is_err());
        links.heal();
        let mut third = TcpStream::connect(links.address(1, 2).unwrap()).await.unwrap();
        assert!(is_answered(&mut third, 1, LATE).await);
    }

    #[tokio::test]
    async fn a_link_to_a_replica_without_a_process_refuses_as_its_kernel_would() {
        let (links, mut stream, _echo) = linked().await;
        assert!(is_answered(&mut stream, 1, LATE).await);
        let address = links.address(1, 2).unwrap();
        links.set_gone(2, true);
        let refused = async {
            while !matches!(TcpStream::connect(address).await, Err(error) if error.kind() == io::ErrorKind::ConnectionRefused)
            {
                Runtime::tokio().sleep(Duration::from_millis(5)).await;
            }
        };
        Runtime::tokio().timeout(LATE, refused).await.unwrap();
        // Where nothing passes, nobody can say that nobody listens.
        links.set_traffic(1, 2, Traffic::Held);
        let accepted = async {
            while TcpStream::connect(address).await.is_err() {
                Runtime::tokio().sleep(Duration::from_millis(5)).await;
            }
        };
        Runtime::tokio().timeout(LATE, accepted).await.unwrap();
        links.heal();
        links.set_gone(2, false);
        let again = async {
            loop {
                if let Ok(mut stream) = TcpStream::connect(address).await
                    && is_answered(&mut stream, 7, SOON).await
                {
                    return;
                }
                Runtime::tokio().sleep(Duration::from_millis(5)).await;
            }
        };
        Runtime::tokio().timeout(LATE, again).await.unwrap();
    }

    #[tokio::test]
    async fn what_is_lost_comes_later_and_what_is_damaged_ends_the_connection() {
        let (links, mut stream, _echo) = linked().await;
        links.set_traffic(1, 2, Traffic::Lossy(100));
        let begun = Runtime::tokio().now();
        assert!(is_answered(&mut stream, 1, LATE).await);
        assert!(Runtime::tokio().now() - begun >= RESENT_AFTER);
        links.set_traffic(1, 2, Traffic::Corrupting);
        let (mut damaged, mut sent) = (0, 0);
        while damaged == 0 && sent < 10_000 {
            let mut stream = TcpStream::connect(links.address(1, 2).unwrap()).await.unwrap();
            sent += 1;
            stream.write_u8(10).await.unwrap();
            match Runtime::tokio().timeout(LATE, stream.read_u8()).await.unwrap() {
                Ok(11) => {}
                Ok(_) => {
                    damaged += 1;
                    assert!(stream.read_u8().await.is_err(), "nothing comes after a damaged piece");
                }
                Err(error) => panic!("an undamaged piece arrives: {error}"),
            }
        }
        assert_eq!(damaged, 1);
        assert!(links.disturbed() > 0);
    }

    #[tokio::test]
    async fn a_slow_path_delays_and_keeps_the_order() {
        let (links, mut stream, _echo) = linked().await;
        links.set_traffic(1, 2, Traffic::Delayed(SOON));
        let begun = Runtime::tokio().now();
        assert!(is_answered(&mut stream, 1, LATE).await);
        assert!(Runtime::tokio().now() - begun >= SOON);
        stream.write_all(&[10, 20, 30]).await.unwrap();
        links.heal();
        for byte in [11, 21, 31] {
            assert!(comes(&mut stream, byte, LATE).await);
        }
    }
}
