//! What a nemesis works on: the processes, the network between them, their disks, and the operator's calls.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use flotilla_client::{AdminClient, AdminError, Client, GroupSpec, TopicSpec};
use flotilla_runtime::{Runtime, Task};

use super::partition::Style;
use crate::cluster::shim::{Place, Shim};
use crate::cluster::volume::VolumeError;
use crate::cluster::{
    ClusterView, ClusterViewError, LocalCluster, LocalClusterError, Namespaces, Network, NetworkError,
};

/// How long a group that is not hurt may be without a leader.
pub(crate) const LEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a fault waits for a leader to strike while others hold.
const LEADER_PATIENCE: Duration = Duration::from_secs(3);
/// How long a restarted replica may take to have what is committed.
pub(crate) const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(60);

/// How often it is looked whether a process has ended.
const END_LOOK: Duration = Duration::from_millis(20);

/// What goes on by itself while a fault holds; dropping it ends it.
pub type Background = Task<()>;

/// The cluster as a nemesis sees it.
pub struct Field {
    /// The processes.
    pub cluster: LocalCluster,
    /// What each replica says of itself.
    pub view: ClusterView,
    /// A client of its own, for faults that are done by clients.
    pub client: Client,
    /// The operator's calls.
    pub admin: AdminClient,
    /// Time.
    pub runtime: Runtime,
    /// What was seen and is no wrong: told with the fault.
    pub notes: Vec<String>,
    /// Work of faults that hold, by the fault's name.
    pub background: BTreeMap<&'static str, Background>,
    /// Bytes as they were before a fault changed them.
    pub saved: Vec<SavedBytes>,
    /// The replica that is left, and the last entry that it had when it was ordered to go on alone.
    pub survivor: Option<u64>,
    /// See `survivor`.
    pub kept_up_to: Option<u64>,
    /// What the load needs, and an operator makes anew where it is gone.
    pub needed: Needed,
    /// How long a group that is not hurt may be without a leader.
    pub leader_timeout: Duration,
}

/// Topics and groups of the load.
#[derive(Debug, Clone, Default)]
pub struct Needed {
    /// Each with its settings.
    pub topics: Vec<TopicSpec>,
    /// Each with its settings.
    pub groups: Vec<GroupSpec>,
}

impl Needed {
    /// Makes all of them.
    ///
    /// # Errors
    /// [`AdminError`] of the first that is refused.
    pub async fn make(&self, admin: &AdminClient) -> Result<(), AdminError> {
        for topic in &self.topics {
            admin.create_topic(topic).await?;
        }
        for group in &self.groups {
            admin.create_group(group).await?;
        }
        Ok(())
    }
}

/// An error that shows the end of a log: what happened, and the last word.
pub(super) fn short(error: &str) -> String {
    let mut lines = error.lines();
    match (lines.next(), lines.next_back()) {
        (Some(first), Some(last)) => format!("{}: {last}", first.split("; the end of its log").next().unwrap_or(first)),
        _ => error.to_owned(),
    }
}

/// Bytes of a file as they were before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedBytes {
    /// Whose.
    pub node: u64,
    /// In which file.
    pub path: PathBuf,
    /// Where in it.
    pub at: u64,
    /// What stood there.
    pub before: Vec<u8>,
    /// What stands there now.
    pub after: Vec<u8>,
}

/// Why a fault could not be done or undone.
#[derive(Debug, thiserror::Error)]
pub enum FieldError {
    /// A process did not do what it should.
    #[error(transparent)]
    Cluster(#[from] LocalClusterError),
    /// The group did not do in time what it should.
    #[error(transparent)]
    View(#[from] ClusterViewError),
    /// The cluster refused an operator's call.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// A replica's file system did not do what it should.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// The cluster was started without a network to be hurt.
    #[error("the replicas reach each other directly: there is no network to hurt")]
    NoNetwork,
    /// The cluster was started without namespaces.
    #[error("the replicas have no network namespaces of their own")]
    NoNamespaces,
    /// The network could not be hurt or healed.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The cluster was started without the shim.
    #[error("the replicas run without the shim: build it with `cargo build --release -p flotilla-io-shim`")]
    NoShim,
    /// A replica has nothing that could be hurt so.
    #[error("there is nothing to strike: {0}")]
    Nothing(String),
    /// The cluster did what it must not.
    #[error("{0}")]
    Wrong(String),
    /// A file could not be read or changed.
    #[error("{path}: {source}", path = .path.display())]
    Io {
        /// Which one.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

impl FieldError {
    /// Whether the fault found nothing to strike, or was refused: no promise is broken by that.
    pub(crate) fn is_harmless(&self) -> bool {
        matches!(self, FieldError::Admin(_) | FieldError::Nothing(_))
    }
}

impl Field {
    /// Around a running cluster.
    pub fn new(cluster: LocalCluster, view: ClusterView, client: Client, runtime: Runtime) -> Field {
        let admin = client.admin();
        Field {
            cluster,
            view,
            client,
            admin,
            runtime,
            notes: Vec::new(),
            background: BTreeMap::new(),
            saved: Vec::new(),
            survivor: None,
            kept_up_to: None,
            needed: Needed::default(),
            leader_timeout: LEADER_TIMEOUT,
        }
    }

    /// Waits until each of these has what is committed.
    pub(super) async fn await_caught_up(&self, nodes: &[u64]) -> Result<(), FieldError> {
        for node in nodes {
            self.view.await_caught_up(*node, CATCH_UP_TIMEOUT).await?;
        }
        Ok(())
    }

    /// Whether a replica lives, votes, and has, within that time, what is committed.
    pub(crate) async fn is_whole(&self, node: u64, timeout: Duration) -> bool {
        !self.cluster.dead_nodes().contains(&node)
            && self.is_voter(node).await
            && self.view.await_caught_up(node, timeout).await.is_ok()
    }

    /// Removes all that these replicas have stored. They must not run.
    pub(super) fn empty_disks(&self, nodes: &[u64]) -> Result<(), FieldError> {
        for node in nodes {
            for name in ["log", "store"] {
                let path = self.cluster.data(*node).join(name);
                std::fs::remove_dir_all(&path).map_err(|source| FieldError::Io { path, source })?;
            }
        }
        Ok(())
    }

    /// Cuts these replicas off from all others, or lets all hear each other again.
    pub(super) async fn cut_off(&self, nodes: &[u64], is_hurt: bool) -> Result<(), FieldError> {
        let rest: Vec<u64> = self.cluster.nodes().into_iter().filter(|node| !nodes.contains(node)).collect();
        let pairs = nodes.iter().flat_map(|one| rest.iter().map(move |other| (*one, *other)));
        Style::Reset.apply_to(self.network()?, pairs, is_hurt);
        self.settle().await
    }

    /// Who leads now.
    pub(super) async fn leader(&self) -> Result<u64, FieldError> {
        match self.view.await_leader(0, LEADER_PATIENCE).await {
            Ok(leader) => Ok(leader.node),
            Err(error) => Err(FieldError::Nothing(error.to_string())),
        }
    }

    /// A replica that does not lead now.
    pub(super) async fn follower(&self, pick: u64) -> Result<u64, FieldError> {
        let leader = self.leader().await?;
        let followers = self.others(leader);
        if followers.is_empty() {
            return Err(FieldError::Nothing("a replica alone has no followers".to_owned()));
        }
        Ok(followers[pick as usize % followers.len()])
    }

    /// All replicas but one.
    pub(super) fn others(&self, node: u64) -> Vec<u64> {
        self.cluster.nodes().into_iter().filter(|other| *other != node).collect()
    }

    /// The network between the replicas. What is changed there works at the latest when the nemesis is done: see
    /// [`Field::settle`].
    pub(super) fn network(&self) -> Result<&Network, FieldError> {
        self.cluster.network().map(|network| &**network).ok_or(FieldError::NoNetwork)
    }

    /// The replicas' network namespaces.
    pub(super) fn namespaces(&self) -> Result<&Namespaces, FieldError> {
        self.network()?.namespaces().ok_or(FieldError::NoNamespaces)
    }

    /// Ends the work of a fault that holds, and waits for its end: what is healed then stays so.
    pub(super) async fn end_background(&mut self, name: &str) {
        if let Some(task) = self.background.remove(name) {
            task.abort();
            let _ = task.join().await;
        }
    }

    /// Makes all changes of the network work.
    pub(super) async fn settle(&self) -> Result<(), FieldError> {
        match self.cluster.network() {
            Some(network) => Ok(network.settle().await?),
            None => Ok(()),
        }
    }

    /// The orders to a replica's shim.
    pub(super) fn shim(&self, node: u64) -> Result<&Shim, FieldError> {
        self.cluster.shim(node).ok_or(FieldError::NoShim)
    }

    /// Gives the same orders to each of the replicas' shims.
    pub(super) fn order(&self, nodes: &[u64], give: impl Fn(&Shim) -> io::Result<()>) -> Result<(), FieldError> {
        for node in nodes {
            give(self.shim(*node)?).map_err(|source| FieldError::Cluster(LocalClusterError::Shim(source)))?;
        }
        Ok(())
    }

    /// Replicas that have ended by themselves although a fault of their disks allows it: noted, and dead from now on.
    /// Others that have ended are answered.
    pub(crate) fn take_fallen(&mut self, excused: &[u64]) -> Vec<(u64, String)> {
        let fallen = self.cluster.take_fallen();
        let (allowed, wrong): (Vec<_>, Vec<_>) = fallen.into_iter().partition(|(node, _)| excused.contains(node));
        self.notes.extend(allowed.into_iter().map(|(_, error)| short(&error.to_string())));
        wrong.into_iter().map(|(node, error)| (node, error.to_string())).collect()
    }

    /// Cuts the power of these replicas' disks: nothing gets there any more. The processes go on until they are killed.
    pub(super) fn cut_power(&mut self, nodes: &[u64]) -> Result<(), FieldError> {
        for node in nodes {
            self.cluster.volume(*node)?.cut_power()?;
        }
        Ok(())
    }

    /// Waits until those of the replicas have ended whose sync was made to fail, for so long.
    pub(super) async fn await_ends(&mut self, nodes: &[u64], patience: Duration) -> Result<(), FieldError> {
        let deadline = self.runtime.now() + patience;
        loop {
            for (node, error) in self.take_fallen(nodes) {
                self.notes.push(format!("and replica {node}: {error}"));
            }
            let dead = self.cluster.dead_nodes();
            let mut waits = false;
            for node in nodes.iter().filter(|node| !dead.contains(node)) {
                waits |= self.shim(*node)?.get(Place::SyncsFail) == 0;
            }
            if !waits || self.runtime.now() >= deadline {
                return Ok(());
            }
            self.runtime.sleep(END_LOOK).await;
        }
    }

    /// Makes these replicas' machines whole and starts those that are dead.
    pub(super) async fn mend(&mut self, nodes: &[u64]) -> Result<(), FieldError> {
        let wrong = self.take_fallen(nodes);
        for (_, error) in wrong {
            self.notes.push(format!("and {error}"));
        }
        for node in nodes {
            self.cluster.mend(*node).await?;
        }
        Ok(self.cluster.restart_all(nodes).await?)
    }

    /// Puts bytes back that a fault has changed and nobody else since. A replica that runs goes on.
    pub(super) fn put_back(&mut self, nodes: &[u64]) -> Result<(), FieldError> {
        use std::os::unix::fs::FileExt;
        let (ours, others) = std::mem::take(&mut self.saved).into_iter().partition(|saved| nodes.contains(&saved.node));
        self.saved = others;
        let ours: Vec<SavedBytes> = ours;
        for SavedBytes { path, at, before, after, .. } in ours {
            let error = |source| FieldError::Io { path: path.clone(), source };
            let file = match std::fs::File::options().read(true).write(true).open(&path) {
                Ok(file) => file,
                // The replica has thrown the file away.
                Err(gone) if gone.kind() == io::ErrorKind::NotFound => continue,
                Err(other) => return Err(error(other)),
            };
            let mut now = vec![0; after.len()];
            if file.read_exact_at(&mut now, at).is_ok() && now == after {
                file.write_all_at(&before, at).and_then(|()| file.sync_data()).map_err(error)?;
            }
        }
        Ok(())
    }

    /// Those that stand still go on.
    pub(super) fn resume_all(&mut self) -> Result<(), FieldError> {
        for node in self.cluster.paused_nodes() {
            self.cluster.resume(node)?;
        }
        Ok(())
    }

    /// Those that stand still go on, and those that are dead start.
    pub(super) async fn run_all(&mut self) -> Result<(), FieldError> {
        self.resume_all()?;
        let nodes = self.cluster.nodes();
        Ok(self.cluster.restart_all(&nodes).await?)
    }

    /// A replica stands still until it lags; then all are killed, `first` start, and the others so much later.
    pub(super) async fn restart_in_two(
        &mut self,
        laggard: u64,
        lag_ms: u64,
        first: &[u64],
        later_ms: u64,
    ) -> Result<(), FieldError> {
        self.cluster.pause(laggard)?;
        self.runtime.sleep(Duration::from_millis(lag_ms)).await;
        let nodes = self.cluster.nodes();
        self.cluster.kill_all(&nodes).await?;
        self.cluster.restart_all(first).await?;
        self.runtime.sleep(Duration::from_millis(later_ms)).await;
        Ok(self.cluster.restart_all(&nodes).await?)
    }

    /// Makes everything whole, whatever was done: what flows, flows; what stands, goes on; what is dead, lives.
    ///
    /// # Errors
    /// If a replica does not start; the rest is healed nevertheless.
    pub async fn heal_all(&mut self) -> Result<(), FieldError> {
        for name in self.background.keys().copied().collect::<Vec<_>>() {
            self.end_background(name).await;
        }
        // What is cut off may still have to be healed otherwise.
        let network = match self.cluster.network() {
            Some(network) => network.heal().await,
            None => Ok(()),
        };
        self.resume_all()?;
        let nodes = self.cluster.nodes();
        self.put_back(&nodes)?;
        for node in &nodes {
            self.cluster.mend(*node).await?;
        }
        self.cluster.restart_namesrv().await?;
        let dead = self.cluster.dead_nodes();
        self.cluster.restart_all(&dead).await?;
        Ok(network?)
    }
}
