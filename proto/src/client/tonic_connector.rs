//! The [`Connector`] of real processes.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use flotilla_runtime::Runtime;

use super::tonic_link::{Keepalive, TonicLink};
use super::tonic_peer::TonicPeer;
use super::{AdminCalls, Connector, MessagingCalls, NamesrvCalls, PeerCalls};

/// For clients: pings only while calls are open; forgives a pause of the machine of a second, and
/// still finds out within two seconds that a replica is cut off.
const CLIENT_KEEPALIVE: Keepalive =
    Keepalive { interval: Duration::from_millis(500), timeout: Duration::from_millis(1200), while_idle: false };
/// For a peer's control connection, which must be fresh when an election needs it.
const CONTROL_KEEPALIVE: Keepalive =
    Keepalive { interval: Duration::from_secs(1), timeout: Duration::from_secs(1), while_idle: true };
/// For a peer's data connection.
const DATA_KEEPALIVE: Keepalive =
    Keepalive { interval: Duration::from_secs(1), timeout: Duration::from_secs(1), while_idle: true };

/// For the connection of waiting polls.
const POLL_KEEPALIVE: Keepalive =
    Keepalive { interval: Duration::from_secs(1), timeout: Duration::from_secs(1), while_idle: false };

/// Connects over gRPC without TLS. What is handed out for one address shares one connection for as
/// long as somebody holds it; a peer has three of its own, which all groups of a process share.
///
/// A connection is made by the first call, with a limit of 1 s, and by the next call after it broke;
/// there is no pause between tries.
pub struct TonicConnector {
    runtime: Runtime,
    links: Mutex<BTreeMap<String, Weak<TonicLink>>>,
    peers: Mutex<BTreeMap<String, Weak<TonicPeer>>>,
}

impl TonicConnector {
    /// Its methods must be called inside a tokio runtime.
    pub fn new(runtime: Runtime) -> TonicConnector {
        TonicConnector { runtime, links: Mutex::default(), peers: Mutex::default() }
    }

    fn link(&self, address: &str) -> Arc<TonicLink> {
        // A panic while holding it leaves the map whole.
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(link) = links.get(address).and_then(Weak::upgrade) {
            return link;
        }
        links.retain(|_, link| link.strong_count() > 0);
        let link = Arc::new(TonicLink::new(address, CLIENT_KEEPALIVE, self.runtime.clone()));
        links.insert(address.to_owned(), Arc::downgrade(&link));
        link
    }
}

impl fmt::Debug for TonicConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TonicConnector")
    }
}

impl Connector for TonicConnector {
    fn messaging(&self, address: &str) -> Arc<dyn MessagingCalls> {
        self.link(address)
    }

    fn admin(&self, address: &str) -> Arc<dyn AdminCalls> {
        self.link(address)
    }

    fn namesrv(&self, address: &str) -> Arc<dyn NamesrvCalls> {
        self.link(address)
    }

    fn peer(&self, address: &str) -> Arc<dyn PeerCalls> {
        // A panic while holding it leaves the map whole.
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(peer) = peers.get(address).and_then(Weak::upgrade) {
            return peer;
        }
        peers.retain(|_, peer| peer.strong_count() > 0);
        let peer = Arc::new(TonicPeer {
            address: address.to_owned(),
            control: TonicLink::new(address, CONTROL_KEEPALIVE, self.runtime.clone()),
            data: TonicLink::new(address, DATA_KEEPALIVE, self.runtime.clone()),
            polls: TonicLink::new(address, POLL_KEEPALIVE, self.runtime.clone()),
        });
        peers.insert(address.to_owned(), Arc::downgrade(&peer));
        peer
    }
}
