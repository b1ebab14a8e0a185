//! The network between replicas, whichever it is made of: what faults hurt.

use super::links::{Door, Links, Traffic};
use super::namespaces::{Namespaces, NetworkError};

/// Proxies on loopback, or namespaces.
pub enum Network {
    /// Connections and their bytes can be hurt; a change works at once.
    Proxies(Links),
    /// Packets can be hurt; changes work from the next [`Network::settle`] on.
    Namespaces(Namespaces),
}

impl Network {
    /// Changes what becomes of what `from` sends to `to`.
    pub fn set_traffic(&self, from: u64, to: u64, traffic: Traffic) {
        match self {
            Network::Proxies(links) => links.set_traffic(from, to, traffic),
            Network::Namespaces(namespaces) => namespaces.set_traffic(from, to, traffic),
        }
    }

    /// Changes what becomes of connections that `from` opens to `to`.
    pub fn set_door(&self, from: u64, to: u64, door: Door) {
        match self {
            Network::Proxies(links) => links.set_door(from, to, door),
            Network::Namespaces(namespaces) => namespaces.set_door(from, to, door),
        }
    }

    /// Makes all changes work.
    ///
    /// # Errors
    /// [`NetworkError`] if the system refuses.
    pub async fn settle(&self) -> Result<(), NetworkError> {
        match self {
            Network::Proxies(_) => Ok(()),
            Network::Namespaces(namespaces) => namespaces.settle().await,
        }
    }

    /// Everything flows again.
    ///
    /// # Errors
    /// [`NetworkError`] if the system refuses.
    pub async fn heal(&self) -> Result<(), NetworkError> {
        match self {
            Network::Proxies(links) => links.heal(),
            Network::Namespaces(namespaces) => namespaces.make_whole(),
        }
        self.settle().await
    }

    /// Whether nothing is wrong.
    pub fn is_whole(&self) -> bool {
        match self {
            Network::Proxies(links) => links.is_whole(),
            Network::Namespaces(namespaces) => namespaces.is_whole(),
        }
    }

    /// How often anything met what is wrong until now.
    ///
    /// # Errors
    /// [`NetworkError`] if the system does not tell.
    pub async fn disturbed(&self) -> Result<u64, NetworkError> {
        match self {
            Network::Proxies(links) => Ok(links.disturbed()),
            Network::Namespaces(namespaces) => namespaces.disturbed().await,
        }
    }

    /// The namespaces, if it is made of these.
    pub fn namespaces(&self) -> Option<&Namespaces> {
        match self {
            Network::Proxies(_) => None,
            Network::Namespaces(namespaces) => Some(namespaces),
        }
    }

    /// Tells proxies whether a replica has no process; namespaces have kernels that know.
    pub(super) fn set_gone(&self, node: u64, is_gone: bool) {
        if let Network::Proxies(links) = self {
            links.set_gone(node, is_gone);
        }
    }

    pub(super) async fn close(&self) {
        if let Network::Namespaces(namespaces) = self {
            namespaces.close().await;
        }
    }
}
