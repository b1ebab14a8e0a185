//! The serving side: puts services on a listening socket.

mod authority;
mod tonic_context;
mod tonic_dispatch;
mod tonic_handler;
mod tonic_serve;
mod tonic_socket;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use flotilla_runtime::Runtime;
use flotilla_tls::Port;

use crate::{Admin, Messaging, Namesrv, Peer};

pub(crate) use tonic_context::put_metadata;
pub use tonic_serve::serve;

/// Time that calls in flight get when the server stops; then their connections are closed.
pub const SHUTDOWN_GRACE: Duration = Duration::from_millis(500);

/// What one listening socket offers. Calls to a service that is absent answer UNIMPLEMENTED.
#[derive(Clone)]
pub struct Services {
    /// Time and tasks for the adapters.
    pub runtime: Runtime,
    /// `apache.rocketmq.v2.MessagingService`.
    pub messaging: Option<Arc<dyn Messaging>>,
    /// `flotilla.admin.v1.Admin`.
    pub admin: Option<Arc<dyn Admin>>,
    /// `flotilla.peer.v1.Peer`.
    pub peer: Option<Arc<dyn Peer>>,
    /// `flotilla.namesrv.v1.Namesrv`.
    pub namesrv: Option<Arc<dyn Namesrv>>,
    /// How TLS is spoken; without it every connection is plain.
    pub tls: Option<Port>,
}

impl Services {
    /// No service yet.
    pub fn new(runtime: Runtime) -> Services {
        Services { runtime, messaging: None, admin: None, peer: None, namesrv: None, tls: None }
    }

    /// Offers the messaging service as well.
    #[must_use]
    pub fn with_messaging(self, messaging: Arc<dyn Messaging>) -> Services {
        Services { messaging: Some(messaging), ..self }
    }

    /// Offers the operator calls as well.
    #[must_use]
    pub fn with_admin(self, admin: Arc<dyn Admin>) -> Services {
        Services { admin: Some(admin), ..self }
    }

    /// Offers the peer service as well.
    #[must_use]
    pub fn with_peer(self, peer: Arc<dyn Peer>) -> Services {
        Services { peer: Some(peer), ..self }
    }

    /// Offers the name service as well.
    #[must_use]
    pub fn with_namesrv(self, namesrv: Arc<dyn Namesrv>) -> Services {
        Services { namesrv: Some(namesrv), ..self }
    }

    /// Takes connections as this port does.
    #[must_use]
    pub fn with_tls(self, tls: Option<Port>) -> Services {
        Services { tls, ..self }
    }
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Services")
            .field("messaging", &self.messaging.is_some())
            .field("admin", &self.admin.is_some())
            .field("peer", &self.peer.is_some())
            .field("namesrv", &self.namesrv.is_some())
            .field("tls", &self.tls)
            .finish()
    }
}

/// Why serving ended other than by its shutdown signal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServeError {
    /// The transport gave up.
    #[error("serving failed: {0}")]
    Transport(String),
}
