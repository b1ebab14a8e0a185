//! What is counted, and the kinds of reasons for which there is no TLS.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use rustls::{AlertDescription, CertificateError, Error};

use crate::der_dates::date_text;

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Link {
    /// With a broker's client port.
    Client,
    /// Between replicas.
    Peers,
    /// With a namesrv.
    Namesrv,
}

/// Who opened a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// The other end.
    In,
    /// This process.
    Out,
}

/// Why there is no TLS on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// The other end's certificate is not valid any more.
    Expired,
    /// It is not valid yet.
    NotYetValid,
    /// No CA of ours vouches for it.
    UnknownCa,
    /// It is another host's.
    WrongName,
    /// It is wrong in another way.
    BadCertificate,
    /// The other end showed none.
    NoCertificate,
    /// The other end refused, usually our certificate.
    Rejected,
    /// The other end does not speak TLS.
    NotTls,
    /// Nothing in time.
    Timeout,
    /// The other end closed the connection.
    Closed,
    /// Anything else.
    Other,
}

impl Link {
    pub(crate) const ALL: [Link; 3] = [Link::Client, Link::Peers, Link::Namesrv];

    /// As monitoring names it.
    pub fn text(self) -> &'static str {
        match self {
            Link::Client => "client",
            Link::Peers => "peers",
            Link::Namesrv => "namesrv",
        }
    }
}

impl Side {
    pub(crate) const ALL: [Side; 2] = [Side::In, Side::Out];

    /// As monitoring names it.
    pub fn text(self) -> &'static str {
        match self {
            Side::In => "in",
            Side::Out => "out",
        }
    }
}

impl Cause {
    pub(crate) const ALL: [Cause; 11] = [
        Cause::Expired,
        Cause::NotYetValid,
        Cause::UnknownCa,
        Cause::WrongName,
        Cause::BadCertificate,
        Cause::NoCertificate,
        Cause::Rejected,
        Cause::NotTls,
        Cause::Timeout,
        Cause::Closed,
        Cause::Other,
    ];

    /// As monitoring names it.
    pub fn text(self) -> &'static str {
        match self {
            Cause::Expired => "expired",
            Cause::NotYetValid => "not_yet_valid",
            Cause::UnknownCa => "unknown_ca",
            Cause::WrongName => "wrong_name",
            Cause::BadCertificate => "bad_certificate",
            Cause::NoCertificate => "no_certificate",
            Cause::Rejected => "rejected",
            Cause::NotTls => "not_tls",
            Cause::Timeout => "timeout",
            Cause::Closed => "closed",
            Cause::Other => "other",
        }
    }

    /// The kind of a failed handshake, and a sentence about it.
    pub(crate) fn of(error: &io::Error) -> (Cause, String) {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
            Some(Error::InvalidCertificate(problem)) => of_certificate(problem),
            Some(Error::NoCertificatesPresented) => {
                (Cause::NoCertificate, "the other end showed no certificate".to_owned())
            }
            Some(Error::AlertReceived(alert)) => (Cause::Rejected, of_alert(*alert)),
            Some(Error::InvalidMessage(_)) => (Cause::NotTls, "the other end does not speak TLS".to_owned()),
            Some(other) => (Cause::Other, other.to_string()),
            None => match error.kind() {
                io::ErrorKind::UnexpectedEof
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::BrokenPipe => {
                    (Cause::Closed, "the other end closed the connection during the handshake".to_owned())
                }
                _ => (Cause::Other, error.to_string()),
            },
        }
    }
}

fn of_certificate(problem: &CertificateError) -> (Cause, String) {
    match problem {
        CertificateError::ExpiredContext { not_after, .. } => {
            (Cause::Expired, format!("its certificate expired at {}", date_text(not_after.as_secs())))
        }
        CertificateError::Expired => (Cause::Expired, "its certificate has expired".to_owned()),
        CertificateError::NotValidYetContext { not_before, .. } => {
            (Cause::NotYetValid, format!("its certificate is valid from {} on", date_text(not_before.as_secs())))
        }
        CertificateError::NotValidYet => (Cause::NotYetValid, "its certificate is not valid yet".to_owned()),
        CertificateError::UnknownIssuer => {
            (Cause::UnknownCa, "its certificate is signed by nobody that our ca_file vouches for".to_owned())
        }
        CertificateError::NotValidForNameContext { presented, .. } => {
            (Cause::WrongName, format!("its certificate is for other hosts: {}", presented.join(", ")))
        }
        CertificateError::NotValidForName => (Cause::WrongName, "its certificate is for other hosts".to_owned()),
        other => (Cause::BadCertificate, format!("its certificate is not usable: {other}")),
    }
}

fn of_alert(alert: AlertDescription) -> String {
    match alert {
        AlertDescription::CertificateExpired => "the other end says that our certificate has expired".to_owned(),
        AlertDescription::UnknownCA => "the other end knows no CA that vouches for our certificate".to_owned(),
        AlertDescription::CertificateRequired => "the other end wants a certificate and we showed none".to_owned(),
        other => format!("the other end refused: {other:?}"),
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.text())
    }
}

/// Counts of one link and side.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    /// With TLS.
    pub(crate) secured: AtomicU64,
    /// Without it, where that is allowed.
    pub(crate) plain: AtomicU64,
    pub(crate) failures: [AtomicU64; Cause::ALL.len()],
}

/// What one process counts.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    connections: [[Connections; Side::ALL.len()]; Link::ALL.len()],
    pub(crate) reloads: AtomicU64,
    pub(crate) reload_failures: AtomicU64,
}

impl Counters {
    pub(crate) fn of(&self, link: Link, side: Side) -> &Connections {
        &self.connections[link as usize][side as usize]
    }

    pub(crate) fn note_failure(&self, link: Link, side: Side, cause: Cause) {
        self.of(link, side).failures[cause as usize].fetch_add(1, Ordering::Relaxed);
    }
}
