//! Why a replica did not start.

use std::net::SocketAddr;

use flotilla_raft_log::OpenError;

use crate::config::ConfigErrors;

/// Why a replica did not start; nothing of it is running.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The settings are not usable; every problem is named.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// An address cannot be listened on, usually because another process does.
    #[error("cannot listen on {address} for {purpose}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// `clients` or `peers`.
        purpose: &'static str,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The metrics port cannot be listened on.
    #[error(transparent)]
    Metrics(#[from] flotilla_metrics::EndpointError),
    /// Certificates or keys are not usable.
    #[error(transparent)]
    Tls(#[from] flotilla_tls::TlsError),
    /// The log did not open.
    #[error(transparent)]
    Log(#[from] OpenError),
    /// The store beside the log did not open.
    #[error("store in {dir} did not open: {reason}")]
    Store {
        /// Its directory.
        dir: String,
        /// What is wrong.
        reason: String,
    },
}
