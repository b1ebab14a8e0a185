//! Where certificates and keys come from.

use std::fmt;
use std::path::PathBuf;

/// What a process shows, and whom it believes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The certificates that vouch for others.
    pub ca: Pem,
    /// What is shown to those who ask; a client may have none.
    pub identity: Option<Identity>,
}

/// A certificate and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The certificate, with those between it and the CA behind it.
    pub cert: Pem,
    /// Its private key.
    pub key: Pem,
}

/// PEM, from a file, which is looked at again and again for news, or as it is.
#[derive(Clone, PartialEq, Eq)]
pub enum Pem {
    /// In this file.
    File(PathBuf),
    /// The text itself.
    Text(String),
}

impl fmt::Display for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pem::File(path) => write!(f, "{}", path.display()),
            Pem::Text(_) => f.write_str("the text given"),
        }
    }
}

impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pem::File(path) => f.debug_tuple("File").field(path).finish(),
            // It may be a private key.
            Pem::Text(text) => write!(f, "Text({} bytes)", text.len()),
        }
    }
}
