//! A network namespace for each process, all on one bridge, whose packets can be told to get lost: by rules of routing and by
//! pulling cables, which every kernel can that has namespaces.
//!
//! ```text
//!   this process's own namespace:      bridge 10.77.N.254, where clients and the harness are
//!        │ veth          │ veth            │ veth
//!   replica 1: 10.77.N.1   replica 2: .2     namesrv: .100     each a namespace, no way out
//! ```
//!
//! The namespaces are held by mounts in this process's own mount namespace: when the last process in there ends, however
//! it ends, the kernel takes mounts, namespaces and cables away.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use flotilla_runtime::{Runtime, Task};
use futures::future::{join_all, try_join_all};
use tokio::sync::{mpsc, oneshot};

use super::links::{Door, Traffic};
use super::packet_loss::{self, Losses};
use super::packet_rules::{Addresses, Damage, Place};
use super::tool::{ToolError, call};

const NAMESRV_LAST: u8 = 100;
const BRIDGE_LAST: u8 = 254;
/// Orders that wait while others are carried out; there are as many as faults under way at most.
const ORDERS_MAX: usize = 64;
/// Kernels were seen to lose a new cable's end once in a great while; the next network then has all of its own.
const BUILDS_MAX: usize = 3;
/// What makes packets get lost is asked before everything else.
const RULE: &str = "rule add pref 10";
const NO_RULE: &str = "rule del pref 10";
/// A namespace's own address is asked for after that: the kernel's own place for it is before all rules. Packets for others
/// are counted as wrong only where none are passed on.
const LISTEN_TO_RULES: &str = "echo 0 > /proc/sys/net/ipv4/ip_forward && ip -batch -";
const LOCAL_LATER: &str = "rule add pref 100 lookup local\nrule del pref 0\n";
/// What the kernel counts of a namespace's packets.
const COUNTS_FILE: &str = "/proc/net/snmp";

/// Clusters of this process, so that one after the other finds free names and addresses.
static CLUSTERS: AtomicU64 = AtomicU64::new(0);

/// Why the network does not do what it should.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// A system's tool failed or is not there.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// A file that holds a namespace cannot be made.
    #[error("{path}: {source}", path = .path.display())]
    Io {
        /// Which one.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// This would change the machine's own network.
    #[error("this process has no network namespace of its own: a bridge would be the machine's")]
    NotApart,
    /// The kernel did not say what it counted.
    #[error("`{file}` has no count of IP packets that can be read: {0}", file = COUNTS_FILE)]
    Count(String),
    /// Traffic control did not say what it dropped.
    #[error("`tc` has no count of packets that were dropped: {0}")]
    Dropped(String),
    /// Nobody works on it any more.
    #[error("the network was closed")]
    Closed,
}

/// The namespaces of one cluster.
pub struct Namespaces {
    hosts: Arc<Vec<Host>>,
    bridge: String,
    addresses: Arc<Addresses>,
    damage: Arc<Mutex<Damage>>,
    tally: Arc<Mutex<Tally>>,
    orders: mpsc::Sender<oneshot::Sender<Result<(), NetworkError>>>,
    runtime: Runtime,
    _task: Task<()>,
}

/// One namespace.
struct Host {
    /// None: the namesrv.
    node: Option<u64>,
    address: Ipv4Addr,
    /// A file that the namespace is mounted on.
    path: PathBuf,
    /// The bridge's end of its cable.
    cable: String,
}

/// What no kernel counts: packets that replicas send without a cable, and connections that are cut.
#[derive(Debug, Default)]
struct Tally {
    /// What each replica without a cable had sent when it was pulled.
    sent_before: BTreeMap<u64, u64>,
    /// Sent by those whose cables are back.
    lost: u64,
    /// Ends of connections.
    cut: u64,
    /// Replicas on whose way packets got lost by chance at some time.
    lossy: BTreeSet<u64>,
}

/// Of one namespace, since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Counts {
    /// Packets that arrived and that no rule led to their target, and packets that no rule led out.
    met: u64,
    /// Packets that its processes sent.
    sent: u64,
}

impl Namespaces {
    /// Makes namespaces for the namesrv and these replicas, held by files in `dir`, which must not be there yet.
    ///
    /// # Errors
    /// [`NetworkError`] if this process shares the machine's network, or the system refuses.
    pub async fn open(dir: &Path, nodes: &[u64], runtime: &Runtime) -> Result<Namespaces, NetworkError> {
        if !crate::own_namespace::is_apart() {
            return Err(NetworkError::NotApart);
        }
        let io = |source| NetworkError::Io { path: dir.to_owned(), source };
        std::fs::create_dir_all(dir).map_err(io)?;
        let dir = dir.canonicalize().map_err(io)?;
        let mut tries = 1;
        let (hosts, bridge, addresses) = loop {
            let (hosts, bridge, addresses) = draft(&dir, nodes);
            match build(&hosts, &bridge, &addresses, runtime).await {
                Ok(()) => break (Arc::new(hosts), bridge, Arc::new(addresses)),
                Err(error) => {
                    take_away(&hosts, &bridge, runtime).await;
                    if tries == BUILDS_MAX {
                        return Err(error);
                    }
                    tracing::warn!(%error, tries, "the replicas' network is made once more");
                    tries += 1;
                }
            }
        };
        let damage = Arc::new(Mutex::new(Damage::default()));
        let tally = Arc::new(Mutex::new(Tally::default()));
        let (orders, taken) = mpsc::channel(ORDERS_MAX);
        let replicas = nodes.iter().map(|node| Place::Replica(*node));
        let keeper = Keeper {
            hosts: hosts.clone(),
            addresses: addresses.clone(),
            damage: damage.clone(),
            tally: tally.clone(),
            applied: Damage::default(),
            standing: replicas.chain([Place::Clients]).map(|place| (place, Standing::default())).collect(),
            runtime: runtime.clone(),
        };
        let task = runtime.spawn("namespaces", keeper.work(taken));
        Ok(Namespaces { hosts, bridge, addresses, damage, tally, orders, runtime: runtime.clone(), _task: task })
    }

    /// Where a replica is.
    pub fn address(&self, node: u64) -> Ipv4Addr {
        self.addresses.replicas[&node]
    }

    /// Where the namesrv is.
    pub fn namesrv_address(&self) -> Ipv4Addr {
        self.hosts[0].address
    }

    /// How a program is started in a replica's namespace, or in the namesrv's: a program and its first arguments.
    pub(super) fn entrance(&self, node: Option<u64>) -> (PathBuf, Vec<String>) {
        let host = self.hosts.iter().find(|host| host.node == node).expect("only nodes of this cluster are started");
        (PathBuf::from("nsenter"), vec![host.option(), "--".to_owned()])
    }

    /// As [`super::Links::set_traffic`], from the next [`Namespaces::settle`] on.
    pub fn set_traffic(&self, from: u64, to: u64, traffic: Traffic) {
        let mut damage = self.damage();
        match traffic {
            Traffic::Flows => drop(damage.traffic.remove(&(from, to))),
            hurt => drop(damage.traffic.insert((from, to), hurt)),
        }
    }

    /// As [`super::Links::set_door`], from the next [`Namespaces::settle`] on.
    pub fn set_door(&self, from: u64, to: u64, door: Door) {
        let mut damage = self.damage();
        match door {
            Door::Open => drop(damage.doors.remove(&(from, to))),
            hurt => drop(damage.doors.insert((from, to), hurt)),
        }
    }

    /// What becomes of packets from all clients to a replica, from the next [`Namespaces::settle`] on. The harness is one
    /// of them.
    pub fn set_clients(&self, node: u64, door: Door) {
        let mut damage = self.damage();
        match door {
            Door::Open => drop(damage.clients.remove(&node)),
            hurt => drop(damage.clients.insert(node, hurt)),
        }
    }

    /// Whether a replica's cable is pulled, from the next [`Namespaces::settle`] on.
    pub fn set_unplugged(&self, node: u64, is_unplugged: bool) {
        let mut damage = self.damage();
        let _ = if is_unplugged { damage.unplugged.insert(node) } else { damage.unplugged.remove(&node) };
    }

    /// Everything is whole from the next [`Namespaces::settle`] on.
    pub fn make_whole(&self) {
        *self.damage() = Damage::default();
    }

    /// Whether nothing is wrong, or will be from the next [`Namespaces::settle`] on.
    pub fn is_whole(&self) -> bool {
        *self.damage() == Damage::default()
    }

    /// Makes it so. One order after the other is carried out to its end, also if nobody waits for it any more, and each
    /// makes what is wanted then.
    ///
    /// # Errors
    /// [`NetworkError`] if the system refuses; the next order tries again.
    pub async fn settle(&self) -> Result<(), NetworkError> {
        let (reply, done) = oneshot::channel();
        self.orders.send(reply).await.map_err(|_| NetworkError::Closed)?;
        done.await.map_err(|_| NetworkError::Closed)?
    }

    /// How many packets and connections met what is wrong until now.
    ///
    /// # Errors
    /// [`NetworkError`] if the system does not tell.
    pub async fn disturbed(&self) -> Result<u64, NetworkError> {
        let replicas = self.hosts.iter().filter(|host| host.node.is_some());
        let counts = try_join_all(
            replicas.map(|host| async move { Ok::<_, NetworkError>((host.node, host.counts(&self.runtime).await?)) }),
        );
        let (counts, of_clients) = (counts.await?, clients_counts()?);
        let by_chance = self.lost_by_chance().await?;
        let tally = self.tally.lock().expect("see `Namespaces::damage`");
        let without_cable = counts.iter().filter_map(|(node, counts)| {
            let before = tally.sent_before.get(&(*node)?)?;
            Some(counts.sent.saturating_sub(*before))
        });
        let met = counts.iter().map(|(_, counts)| counts.met).chain([of_clients.met, tally.lost, tally.cut, by_chance]);
        Ok(met.chain(without_cable).sum())
    }

    async fn lost_by_chance(&self) -> Result<u64, NetworkError> {
        let lossy = self.tally.lock().expect("see `Namespaces::damage`").lossy.clone();
        let hosts = self.hosts.iter().filter(|host| host.node.is_some_and(|node| lossy.contains(&node)));
        let counts = try_join_all(hosts.map(|host| async move {
            let text = host.call(&packet_loss::COUNT, "", &self.runtime).await?;
            packet_loss::dropped(&text).ok_or(NetworkError::Dropped(text))
        }));
        Ok(counts.await?.into_iter().sum())
    }

    /// Takes the cables and the namespaces away; nothing that runs in there reaches anybody any more.
    pub async fn close(&self) {
        // The rules where clients are outlive the cables.
        self.make_whole();
        if let Err(error) = self.settle().await {
            tracing::warn!(%error, "rules of a network stay until this program ends");
        }
        take_away(&self.hosts, &self.bridge, &self.runtime).await;
    }

    fn damage(&self) -> MutexGuard<'_, Damage> {
        self.damage.lock().expect("the damage's lock is never poisoned: no code panics while holding it")
    }
}

/// What the next network is made of.
fn draft(dir: &Path, nodes: &[u64]) -> (Vec<Host>, String, Addresses) {
    let number = CLUSTERS.fetch_add(1, Ordering::Relaxed) % 256;
    let address = |last: u8| Ipv4Addr::new(10, 77, number as u8, last);
    let mut hosts = vec![Host {
        node: None,
        address: address(NAMESRV_LAST),
        path: dir.join("namesrv"),
        cable: format!("c{number}-namesrv"),
    }];
    for node in nodes {
        let last = u8::try_from(*node).ok().filter(|last| *last < NAMESRV_LAST);
        let address = address(last.expect("a group has at most five replicas"));
        let (path, cable) = (dir.join(format!("replica-{node}")), format!("c{number}-{node}"));
        hosts.push(Host { node: Some(*node), address, path, cable });
    }
    let replicas = hosts.iter().filter_map(|host| Some((host.node?, host.address))).collect();
    (hosts, format!("bridge{number}"), Addresses { replicas, clients: address(BRIDGE_LAST) })
}

/// Takes away what was made of it.
async fn take_away(hosts: &[Host], bridge: &str, runtime: &Runtime) {
    let cables = hosts.iter().map(|host| host.cable.as_str()).chain([bridge]);
    let commands: String = cables.map(|name| format!("link del {name}\n")).collect();
    if let Err(error) = call("ip", &["-force", "-batch", "-"], &commands, runtime).await {
        tracing::debug!(%error, "a cable stays until this program ends");
    }
    for host in hosts {
        if let Err(error) = call("umount", &[host.text()], "", runtime).await {
            tracing::warn!(%error, "a network namespace stays until this program ends");
        }
        // A file that a namespace is still mounted on stays.
        if let Err(error) = std::fs::remove_file(&host.path) {
            tracing::debug!(%error, path = %host.path.display(), "what held a network namespace stays");
        }
    }
}

async fn build(hosts: &[Host], bridge: &str, addresses: &Addresses, runtime: &Runtime) -> Result<(), NetworkError> {
    for host in hosts {
        let io = |source| NetworkError::Io { path: host.path.clone(), source };
        std::fs::File::create_new(&host.path).map_err(io)?;
    }
    // The program that made it ends at once; the file holds it.
    try_join_all(
        hosts
            .iter()
            .map(|host| async move { call("unshare", &[host.option().as_str(), "--", "true"], "", runtime).await }),
    )
    .await?;
    let mut commands = format!(
        "link add {bridge} type bridge\naddr add {}/24 dev {bridge}\nlink set {bridge} up\n",
        addresses.clients
    );
    for Host { path, cable, .. } in hosts {
        let path = path.display();
        commands += &format!("link add {cable} type veth peer name eth0 netns \"{path}\"\n");
        commands += &format!("link set {cable} master {bridge} up\n");
    }
    call("ip", &["-batch", "-"], &commands, runtime).await?;
    try_join_all(hosts.iter().map(|host| async move {
        let own = format!("link set lo up\naddr add {}/24 dev eth0\nlink set eth0 up\n{LOCAL_LATER}", host.address);
        host.call(&["sh", "-c", LISTEN_TO_RULES], &own, runtime).await
    }))
    .await?;
    Ok(())
}

impl Host {
    fn text(&self) -> &str {
        self.path.to_str().unwrap_or_default()
    }

    fn option(&self) -> String {
        format!("--net={}", self.text())
    }

    /// Runs a tool in the namespace.
    async fn call(&self, arguments: &[&str], input: &str, runtime: &Runtime) -> Result<String, ToolError> {
        let option = self.option();
        let arguments: Vec<&str> = [option.as_str(), "--"].into_iter().chain(arguments.iter().copied()).collect();
        call("nsenter", &arguments, input, runtime).await
    }

    async fn counts(&self, runtime: &Runtime) -> Result<Counts, NetworkError> {
        let text = self.call(&["cat", COUNTS_FILE], "", runtime).await?;
        counts_of(&text).ok_or(NetworkError::Count(text))
    }
}

/// Makes the kernel's rules what is wanted.
struct Keeper {
    hosts: Arc<Vec<Host>>,
    addresses: Arc<Addresses>,
    damage: Arc<Mutex<Damage>>,
    tally: Arc<Mutex<Tally>>,
    applied: Damage,
    standing: BTreeMap<Place, Standing>,
    runtime: Runtime,
}

/// The rules of a namespace as far as is known.
#[derive(Debug, Clone, Default)]
struct Standing {
    rules: BTreeSet<String>,
    losses: Losses,
    /// The last attempt failed: any of the rules and losses may stand or not, and the cable be pulled or not.
    is_unsure: bool,
}

impl Keeper {
    async fn work(mut self, mut orders: mpsc::Receiver<oneshot::Sender<Result<(), NetworkError>>>) {
        while let Some(reply) = orders.recv().await {
            let wanted = self.damage.lock().expect("see `Namespaces::damage`").clone();
            let _ = reply.send(self.apply(wanted).await);
        }
    }

    async fn apply(&mut self, wanted: Damage) -> Result<(), NetworkError> {
        let this = &*self;
        let work = this.standing.iter().map(|(place, standing)| {
            let rules = wanted.rules(*place, &this.addresses);
            let losses = wanted.losses(*place, &this.addresses);
            let is_unplugged = matches!(place, Place::Replica(node) if wanted.unplugged.contains(node));
            async move {
                let mut result = this.change(*place, standing, &rules, is_unplugged).await;
                if result.is_ok() {
                    result = this.lose(*place, standing, &losses).await;
                }
                // Whatever a failed attempt left may stand beside what stood.
                let (is_unsure, before) = (result.is_err(), standing.clone());
                let kept = if is_unsure { before } else { Standing::default() };
                let rules = rules.into_iter().chain(kept.rules).collect();
                let losses = losses.into_iter().chain(kept.losses).collect();
                (*place, Standing { rules, losses, is_unsure }, result)
            }
        });
        let done = join_all(work).await;
        let cuts = wanted.cuts_since(&self.applied, &self.addresses);
        // What is connected now learns at once; the rules turn away what comes later.
        let cut = join_all(cuts.into_iter().map(|(place, address)| async move {
            this.call(place, &["ss", "--no-header", "--tcp", "--kill", "dst", &address.to_string()], "").await
        }))
        .await;
        // It names those that it has cut, one a line.
        let ends: usize = cut.iter().flatten().map(|cut| cut.lines().count()).sum();
        self.tally.lock().expect("see `Namespaces::damage`").cut += ends as u64;
        self.applied = wanted;
        let mut results = Vec::new();
        for (place, standing, result) in done {
            self.standing.insert(place, standing);
            results.push(result);
        }
        results.extend(cut.into_iter().map(|result| result.map(drop).map_err(NetworkError::from)));
        results.into_iter().collect()
    }

    async fn change(
        &self,
        place: Place,
        standing: &Standing,
        rules: &BTreeSet<String>,
        is_unplugged: bool,
    ) -> Result<(), NetworkError> {
        let nothing = BTreeSet::new();
        let there = if standing.is_unsure {
            let gone: String = standing.rules.union(rules).map(|rule| format!("{NO_RULE} {rule}\n")).collect();
            // It complains of those that are not there.
            if let Err(error) = self.call(place, &["ip", "-force", "-batch", "-"], &gone).await {
                tracing::debug!(%error, ?place, "rules that may have stood are gone");
            }
            &nothing
        } else {
            &standing.rules
        };
        let come = rules.difference(there).map(|rule| format!("{RULE} {rule}\n"));
        let commands: String = come.chain(there.difference(rules).map(|rule| format!("{NO_RULE} {rule}\n"))).collect();
        if !commands.is_empty() {
            self.call(place, &["ip", "-batch", "-"], &commands).await?;
        }
        match place {
            Place::Replica(node) => self.plug(node, is_unplugged, standing.is_unsure).await,
            Place::Clients => Ok(()),
        }
    }

    /// Makes a replica lose these packets and no others by chance.
    async fn lose(&self, place: Place, standing: &Standing, losses: &Losses) -> Result<(), NetworkError> {
        let is_so = standing.losses == *losses && (!standing.is_unsure || losses.is_empty());
        let Place::Replica(node) = place else { return Ok(()) };
        if is_so {
            return Ok(());
        }
        self.call(place, &["tc", "-batch", "-"], &packet_loss::commands(losses)).await?;
        self.tally.lock().expect("see `Namespaces::damage`").lossy.insert(node);
        Ok(())
    }

    /// Pulls a replica's cable or puts it back, and remembers what was sent without.
    async fn plug(&self, node: u64, is_unplugged: bool, is_unsure: bool) -> Result<(), NetworkError> {
        if !is_unsure && is_unplugged == self.applied.unplugged.contains(&node) {
            return Ok(());
        }
        let host = self.host(node);
        let state = if is_unplugged { "down" } else { "up" };
        let sent = host.counts(&self.runtime).await?.sent;
        call("ip", &["link", "set", &host.cable, state], "", &self.runtime).await?;
        let mut tally = self.tally.lock().expect("see `Namespaces::damage`");
        if is_unplugged {
            tally.sent_before.entry(node).or_insert(sent);
        } else if let Some(before) = tally.sent_before.remove(&node) {
            tally.lost += sent.saturating_sub(before);
        }
        Ok(())
    }

    fn host(&self, node: u64) -> &Host {
        let host = self.hosts.iter().find(|host| host.node == Some(node));
        host.expect("places are made from the hosts' own nodes")
    }

    async fn call(&self, place: Place, arguments: &[&str], input: &str) -> Result<String, ToolError> {
        match place {
            Place::Replica(node) => self.host(node).call(arguments, input, &self.runtime).await,
            Place::Clients => call(arguments[0], &arguments[1..], input, &self.runtime).await,
        }
    }
}

fn clients_counts() -> Result<Counts, NetworkError> {
    let text = std::fs::read_to_string(COUNTS_FILE).map_err(|error| NetworkError::Count(error.to_string()))?;
    counts_of(&text).ok_or(NetworkError::Count(text))
}

/// As the kernel shows them: a line of names and a line of numbers.
fn counts_of(text: &str) -> Option<Counts> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Ip: "));
    let (names, numbers) = (lines.next()?, lines.next()?);
    let columns: BTreeMap<&str, &str> = names.split_ascii_whitespace().zip(numbers.split_ascii_whitespace()).collect();
    let column = |name: &str| columns.get(name)?.parse::<u64>().ok();
    Some(Counts { met: column("InAddrErrors")? + column("OutNoRoutes")?, sent: column("OutRequests")? })
}

#[cfg(test)]
#[path = "namespaces_test.rs"]
mod namespaces_test;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_as_kernels_show_them() {
        let text = "Ip: Forwarding InAddrErrors OutRequests OutNoRoutes\nIp: 2 17 140 3\nTcp: RtoMin\nTcp: 200\n";
        assert_eq!(counts_of(text), Some(Counts { met: 20, sent: 140 }));
        assert_eq!(counts_of("Ip: Forwarding InAddrErrors\nIp: 2 17\n"), None);
        assert_eq!(counts_of("Tcp: RtoMin\nTcp: 200\n"), None);
    }
}
