//! What can be wrong with certificates, and with a connection.

use std::io;

use crate::counters::Cause;
use crate::der_dates::date_text;

/// Why certificates or keys cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("TLS: {what} {from} cannot be read: {source}")]
    Unreadable {
        /// `certificate`, `key` or `CA`.
        what: &'static str,
        /// Which file.
        from: String,
        /// The system's answer.
        source: io::Error,
    },
    /// Nothing of the kind is in it.
    #[error("TLS: {what} {from} holds no {wanted} in PEM: {reason}")]
    NoPem {
        /// `certificate`, `key` or `CA`.
        what: &'static str,
        /// Which file.
        from: String,
        /// What should be in it.
        wanted: &'static str,
        /// What is there instead.
        reason: String,
    },
    /// Certificate and key are not made for each other.
    #[error("TLS: key {key} does not belong to certificate {cert}")]
    KeyMismatch {
        /// The certificate.
        cert: String,
        /// The key.
        key: String,
    },
    /// The certificate's time is over.
    #[error("TLS: certificate {from} expired at {}, now it is {}", date_text(*.not_after_s), date_text(*.now_s))]
    Expired {
        /// Which file.
        from: String,
        /// Its last second, since the Unix epoch.
        not_after_s: u64,
        /// This machine's time.
        now_s: u64,
    },
    /// The certificate's time has not begun.
    #[error("TLS: certificate {from} is valid from {} on, now it is {}", date_text(*.not_before_s), date_text(*.now_s))]
    NotYetValid {
        /// Which file.
        from: String,
        /// Its first second, since the Unix epoch.
        not_before_s: u64,
        /// This machine's time.
        now_s: u64,
    },
    /// Anything else.
    #[error("TLS: {what} {from} is not usable: {reason}")]
    Unusable {
        /// `certificate`, `key` or `CA`.
        what: &'static str,
        /// Which file.
        from: String,
        /// Why.
        reason: String,
    },
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No TCP connection.
    #[error("{0}")]
    Tcp(#[from] io::Error),
    /// A TCP connection, but no TLS over it.
    #[error("no TLS with {address}: {reason}")]
    Handshake {
        /// The other end.
        address: String,
        /// What kind of reason.
        cause: Cause,
        /// The reason, a whole sentence.
        reason: String,
    },
}
