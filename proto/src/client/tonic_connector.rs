//! The [`Connector`] of real processes.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use flotilla_runtime::Runtime;
use flotilla_tls::{Link, TlsLinks};

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

/// Connects over gRPC, with TLS on the links that have it. What is handed out for one address shares one connection for as
/// long as somebody holds it; a peer has three of its own, which all groups of a process share.
///
/// A connection is made by the first call, with a limit of 1 s, and by the next call after it broke;
/// there is no pause between tries.
pub struct TonicConnector {
    runtime: Runtime,
    tls: TlsLinks,
    links: Mutex<BTreeMap<(Link, String), Weak<TonicLink>>>,
    peers: Mutex<BTreeMap<String, Weak<TonicPeer>>>,
}

impl TonicConnector {
    /// Without TLS. Its methods must be called inside a tokio runtime.
    pub fn new(runtime: Runtime) -> TonicConnector {
        TonicConnector::with_tls(runtime, TlsLinks::plain())
    }

    /// With TLS on these links. Its methods must be called inside a tokio runtime.
    pub fn with_tls(runtime: Runtime, tls: TlsLinks) -> TonicConnector {
        TonicConnector { runtime, tls, links: Mutex::default(), peers: Mutex::default() }
    }

    fn link(&self, kind: Link, address: &str) -> Arc<TonicLink> {
        // A panic while holding it leaves the map whole.
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (kind, address.to_owned());
        if let Some(link) = links.get(&key).and_then(Weak::upgrade) {
            return link;
        }
        links.retain(|_, link| link.strong_count() > 0);
        let link = Arc::new(self.new_link(kind, address, CLIENT_KEEPALIVE));
        links.insert(key, Arc::downgrade(&link));
        link
    }

    fn new_link(&self, kind: Link, address: &str, keepalive: Keepalive) -> TonicLink {
        TonicLink::new(address, keepalive, self.tls.outgoing(kind), self.runtime.clone())
    }
}

impl fmt::Debug for TonicConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TonicConnector")
    }
}

impl Connector for TonicConnector {
    fn messaging(&self, address: &str) -> Arc<dyn MessagingCalls> {
        self.link(Link::Client, address)
    }

    fn admin(&self, address: &str) -> Arc<dyn AdminCalls> {
        self.link(Link::Client, address)
    }

    fn namesrv(&self, address: &str) -> Arc<dyn NamesrvCalls> {
        self.link(Link::Namesrv, address)
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
            control: self.new_link(Link::Peers, address, CONTROL_KEEPALIVE),
            data: self.new_link(Link::Peers, address, DATA_KEEPALIVE),
            polls: self.new_link(Link::Peers, address, POLL_KEEPALIVE),
        });
        peers.insert(address.to_owned(), Arc::downgrade(&peer));
        peer
    }

    fn own_problem(&self) -> Option<String> {
        self.tls.own_problem()
    }
}
