//! Where the other replicas are: as the settings say, else as the group's membership does.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use flotilla_proto::client::{AppendLink, CallError, Connector, PeerCalls, Presence};
use flotilla_proto::{PeerLink, metadata, peer};
use flotilla_raft_log::{GroupMembers, NodeId};
use flotilla_runtime::BoxFuture;

use crate::config::BrokerConfig;

/// How a replica is reached, as its own settings say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contact {
    /// `host:port` for clients.
    pub client: String,
    /// `host:port` for the other replicas.
    pub peer: String,
}

impl Contact {
    /// As the membership records it.
    pub fn encode(&self) -> String {
        format!("{},{}", self.client, self.peer)
    }

    fn decode(text: &str) -> Option<Contact> {
        let (client, peer) = text.split_once(',')?;
        Some(Contact { client: client.to_owned(), peer: peer.to_owned() })
    }
}

/// The address book of one replica.
pub struct PeerBook {
    own: NodeId,
    /// Of the settings; what they say of a replica wins over the membership.
    fixed: BTreeMap<NodeId, Contact>,
    connector: Arc<dyn Connector>,
    /// Of this group: they stand in each call, as a port may serve several.
    names: Arc<[(&'static str, String); 2]>,
    pages: Mutex<Pages>,
}

#[derive(Default)]
struct Pages {
    /// Of the membership.
    members: BTreeMap<NodeId, Option<Contact>>,
    /// Of a replica that is about to become a member: where it serves its peers.
    introduced: BTreeMap<NodeId, String>,
    calls: BTreeMap<NodeId, (String, Arc<dyn PeerCalls>)>,
}

impl PeerBook {
    /// A book of what the settings say. Nothing is connected yet.
    pub fn new(config: &BrokerConfig, connector: Arc<dyn Connector>) -> PeerBook {
        let contact = |replica: &crate::config::ReplicaConfig| Contact {
            client: replica.client.clone(),
            peer: replica.peer.clone(),
        };
        let fixed = config.replicas.iter().map(|replica| (NodeId(replica.node), contact(replica)));
        let mut fixed: BTreeMap<NodeId, Contact> = fixed.collect();
        let own = Contact { client: config.client_address(), peer: config.peer_address() };
        fixed.insert(NodeId(config.node), own);
        let names = [(metadata::LINK_CLUSTER, config.cluster.clone()), (metadata::LINK_GROUP, config.group.clone())];
        PeerBook { own: NodeId(config.node), fixed, connector, names: Arc::new(names), pages: Mutex::default() }
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().expect("address lock is never poisoned: no code panics while holding it")
    }

    /// The members are these from now on.
    pub fn update(&self, members: &GroupMembers) {
        let known = members.members.iter().map(|(node, member)| (*node, Contact::decode(&member.contact)));
        let mut pages = self.pages();
        pages.members = known.collect();
        let Pages { members, introduced, .. } = &mut *pages;
        introduced.retain(|node, _| !members.contains_key(node));
    }

    /// Where a replica serves its peers that is about to become a member.
    pub fn introduce(&self, node: NodeId, peer_address: &str) {
        self.pages().introduced.insert(node, peer_address.to_owned());
    }

    /// Why the others would refuse connections of this replica and to it, as far as it can tell.
    pub fn own_problem(&self) -> Option<String> {
        self.connector.own_problem()
    }

    /// How a replica is reached, if that is known.
    pub fn contact(&self, node: NodeId) -> Option<Contact> {
        self.fixed.get(&node).cloned().or_else(|| self.pages().members.get(&node).cloned().flatten())
    }

    /// The calling side of another replica.
    pub fn peer(&self, node: NodeId) -> Option<Arc<dyn PeerCalls>> {
        if node == self.own {
            return None;
        }
        let mut pages = self.pages();
        let fixed = self.fixed.get(&node).map(|contact| contact.peer.clone());
        let recorded = || pages.members.get(&node).cloned().flatten().map(|contact| contact.peer);
        let address = fixed.or_else(recorded).or_else(|| pages.introduced.get(&node).cloned())?;
        match pages.calls.get(&node) {
            Some((known, calls)) if *known == address => Some(calls.clone()),
            _ => {
                let calls: Arc<dyn PeerCalls> =
                    Arc::new(NamedPeer { calls: self.connector.peer(&address), names: self.names.clone() });
                pages.calls.insert(node, (address, calls.clone()));
                Some(calls)
            }
        }
    }

    /// The calling sides of all other members, in the order of their numbers; before the group is known, of the settings.
    pub fn others(&self) -> Vec<Arc<dyn PeerCalls>> {
        let members: Vec<NodeId> = self.pages().members.keys().copied().collect();
        let nodes = if members.is_empty() { self.fixed.keys().copied().collect() } else { members };
        nodes.into_iter().filter_map(|node| self.peer(node)).collect()
    }
}

/// The calling side of another replica; what is handed on says which group it belongs to.
struct NamedPeer {
    calls: Arc<dyn PeerCalls>,
    names: Arc<[(&'static str, String); 2]>,
}

impl NamedPeer {
    fn named(&self, mut request: peer::ForwardRequest) -> peer::ForwardRequest {
        request.metadata.extend(self.names.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        request
    }
}

impl PeerCalls for NamedPeer {
    fn call(&self, call: peer::PeerCall, timeout: Duration) -> BoxFuture<'static, Result<Bytes, CallError>> {
        self.calls.call(call, timeout)
    }

    fn open_append(&self, link: PeerLink, timeout: Duration) -> BoxFuture<'static, Result<AppendLink, CallError>> {
        self.calls.open_append(link, timeout)
    }

    fn forward(
        &self,
        request: peer::ForwardRequest,
        timeout: Duration,
    ) -> BoxFuture<'static, Result<peer::ForwardResponse, CallError>> {
        self.calls.forward(self.named(request), timeout)
    }

    fn forward_poll(
        &self,
        request: peer::ForwardRequest,
        timeout: Duration,
    ) -> BoxFuture<'static, Result<peer::ForwardResponse, CallError>> {
        self.calls.forward_poll(self.named(request), timeout)
    }

    fn probe(&self, timeout: Duration) -> BoxFuture<'static, Presence> {
        self.calls.probe(timeout)
    }
}
