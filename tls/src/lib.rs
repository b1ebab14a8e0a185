//! TLS for every link of a process: who may speak it, with which certificates, and what went wrong.
//!
//! What this crate promises:
//! - each link (clients, replicas, namesrvs) is plain, `optional` or `required` ([`TlsConfig`]); a port with `optional` takes both,
//!   told apart by the first byte, and whoever connects with `optional` goes on without TLS where it cannot be had;
//! - new files are used for new connections without a restart; files that are not usable leave the old ones in place, and say why;
//! - a connection that stands is never cut because a certificate expired meanwhile;
//! - whatever fails is counted by its cause, and logged with the address and a whole sentence ([`TlsLinks::source`]).
//!
//! Only this crate names rustls. It knows nothing of HTTP or of brokers.

mod config;
mod counters;
mod credentials;
mod der_dates;
mod error;
mod incoming;
mod links;
mod material;
mod outgoing;
mod pace;
mod tls;
mod wire;

pub use config::{LinkAuth, TlsConfig, TlsMode};
pub use counters::{Cause, Link, Side};
pub use credentials::{Credentials, Identity, Pem};
pub use error::{ConnectError, TlsError};
pub use incoming::{IncomingStream, Port};
pub use links::TlsLinks;
pub use outgoing::Outgoing;
pub use wire::Wire;
