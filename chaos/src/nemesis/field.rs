//! What a nemesis works on: the processes, the network between them, and the operator's calls.

use std::time::Duration;

use flotilla_client::{AdminClient, AdminError};
use flotilla_runtime::Runtime;

use crate::cluster::{ClusterView, ClusterViewError, Links, LocalCluster, LocalClusterError};

/// How long a group that is not hurt may be without a leader.
pub(crate) const LEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a restarted replica may take to have what is committed.
pub(crate) const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(60);

/// The cluster as a nemesis sees it.
pub struct Field {
    /// The processes.
    pub cluster: LocalCluster,
    /// What each replica says of itself.
    pub view: ClusterView,
    /// The operator's calls.
    pub admin: AdminClient,
    /// Time.
    pub runtime: Runtime,
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
    /// The cluster was started without links.
    #[error("the replicas reach each other directly: there are no links to hurt")]
    NoLinks,
}

impl Field {
    /// Who leads now.
    pub(super) async fn leader(&self) -> Result<u64, FieldError> {
        Ok(self.view.await_leader(0, LEADER_TIMEOUT).await?.node)
    }

    /// A replica that does not lead now.
    pub(super) async fn follower(&self, pick: u64) -> Result<u64, FieldError> {
        let leader = self.leader().await?;
        let followers = self.others(leader);
        Ok(followers[pick as usize % followers.len()])
    }

    /// All replicas but one.
    pub(super) fn others(&self, node: u64) -> Vec<u64> {
        self.cluster.nodes().into_iter().filter(|other| *other != node).collect()
    }

    pub(super) fn links(&self) -> Result<&Links, FieldError> {
        self.cluster.links().ok_or(FieldError::NoLinks)
    }

    /// Makes everything whole, whatever was done: what flows, flows; what stands, goes on; what is dead, lives.
    ///
    /// # Errors
    /// If a replica does not start; the rest is healed nevertheless.
    pub async fn heal_all(&mut self) -> Result<(), FieldError> {
        if let Some(links) = self.cluster.links() {
            links.heal();
        }
        for node in self.cluster.paused_nodes() {
            self.cluster.resume(node)?;
        }
        let dead = self.cluster.dead_nodes();
        Ok(self.cluster.restart_all(&dead).await?)
    }
}
