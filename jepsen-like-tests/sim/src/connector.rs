//! The way from one simulated broker to its peers, over the simulated network.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flotilla_proto::client::{AdminCalls, AppendLink, CallError, Connector, MessagingCalls, NamesrvCalls, PeerCalls};
use flotilla_proto::{PeerLink, peer};
use flotilla_runtime::BoxFuture;

use crate::broker_replica::id_of;
use crate::net::{Address, NetError, SimNet};
use crate::replica::Replica;

/// What one replica calls others with.
pub(crate) struct SimConnector {
    from: Address,
    net: SimNet<dyn Replica>,
}

impl SimConnector {
    pub(crate) fn new(from: Address, net: SimNet<dyn Replica>) -> SimConnector {
        SimConnector { from, net }
    }
}

impl Connector for SimConnector {
    fn messaging(&self, address: &str) -> Arc<dyn MessagingCalls> {
        panic!("replicas do not call {address} as clients");
    }

    fn admin(&self, address: &str) -> Arc<dyn AdminCalls> {
        panic!("replicas do not call {address} as operators");
    }

    fn namesrv(&self, address: &str) -> Arc<dyn NamesrvCalls> {
        panic!("there is no namesrv at {address}: none is in the settings");
    }

    fn peer(&self, address: &str) -> Arc<dyn PeerCalls> {
        Arc::new(SimPeer { from: self.from, to: id_of(address), net: self.net.clone() })
    }
}

struct SimPeer {
    from: Address,
    to: Address,
    net: SimNet<dyn Replica>,
}

fn not_here() -> CallError {
    CallError::Refused("the log has a transport of its own".to_owned())
}

impl PeerCalls for SimPeer {
    fn call(&self, _call: peer::PeerCall, _timeout: Duration) -> BoxFuture<'static, Result<Bytes, CallError>> {
        Box::pin(std::future::ready(Err(not_here())))
    }

    fn open_append(&self, _link: PeerLink, _timeout: Duration) -> BoxFuture<'static, Result<AppendLink, CallError>> {
        Box::pin(std::future::ready(Err(not_here())))
    }

    fn forward(
        &self,
        request: peer::ForwardRequest,
        timeout: Duration,
    ) -> BoxFuture<'static, Result<peer::ForwardResponse, CallError>> {
        let runtime = self.net.runtime().clone();
        let exchange = self.net.exchange(self.from, self.to, move |replica: Arc<dyn Replica>| replica.forward(request));
        Box::pin(async move {
            match runtime.timeout(timeout, exchange).await {
                Ok(Ok(response)) => Ok(response),
                Ok(Err(NetError::Refused)) => Err(CallError::Refused("connection refused".to_owned())),
                Ok(Err(NetError::Broken)) => Err(CallError::Broken("connection reset".to_owned())),
                Err(_) => Err(CallError::Timeout(timeout)),
            }
        })
    }
}
