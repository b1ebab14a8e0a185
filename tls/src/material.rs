//! What handshakes are made with: read, checked, and put into the shape that rustls takes.

use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ClientConfig, Error, RootCertStore, ServerConfig};

use crate::credentials::{Credentials, Pem};
use crate::der_dates::validity;
use crate::error::TlsError;

/// What gRPC runs over.
const ALPN: &[u8] = b"h2";
/// A file of certificates or a key is no longer than this.
const FILE_BYTES_MAX: usize = 4 << 20;

/// The bytes as they were read.
#[derive(PartialEq, Eq)]
pub(crate) struct Raw {
    ca: Vec<u8>,
    /// Certificate and key.
    identity: Option<(Vec<u8>, Vec<u8>)>,
}

/// What new connections use.
pub(crate) struct Material {
    pub(crate) raw: Raw,
    /// For ports. A process without a certificate has none.
    pub(crate) serving: Option<Arc<ServerConfig>>,
    /// For ports that ask for a certificate.
    pub(crate) serving_asked: Option<Arc<ServerConfig>>,
    pub(crate) connecting: Arc<ClientConfig>,
    /// The last second of our own certificate, or of the first in its chain to expire.
    pub(crate) not_after_s: Option<u64>,
}

impl Raw {
    /// Reads what there is now.
    pub(crate) fn read(credentials: &Credentials) -> Result<Raw, TlsError> {
        let ca = bytes_of("CA", &credentials.ca)?;
        let identity = match &credentials.identity {
            Some(identity) => Some((bytes_of("certificate", &identity.cert)?, bytes_of("key", &identity.key)?)),
            None => None,
        };
        Ok(Raw { ca, identity })
    }
}

fn bytes_of(what: &'static str, pem: &Pem) -> Result<Vec<u8>, TlsError> {
    let bytes = match pem {
        Pem::Text(text) => text.clone().into_bytes(),
        Pem::File(path) => std::fs::read(path).map_err(|source| TlsError::Unreadable {
            what,
            from: path.display().to_string(),
            source,
        })?,
    };
    if bytes.len() > FILE_BYTES_MAX {
        let reason = format!("it has {} bytes, at most {FILE_BYTES_MAX} are allowed", bytes.len());
        return Err(TlsError::Unusable { what, from: pem.to_string(), reason });
    }
    Ok(bytes)
}

impl Material {
    /// Checks what was read. `now_s` is this machine's time.
    pub(crate) fn of(raw: Raw, credentials: &Credentials, now_s: u64) -> Result<Material, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let roots = Arc::new(roots_of(&raw.ca, &credentials.ca)?);
        let builder = ClientConfig::builder_with_provider(provider.clone());
        let builder =
            builder.with_safe_default_protocol_versions().expect(VERSIONS).with_root_certificates(roots.clone());
        let (mut serving, mut serving_asked, mut not_after_s) = (None, None, None);
        let mut connecting = match (&raw.identity, &credentials.identity) {
            (Some((cert, key)), Some(identity)) => {
                let chain = certificates(cert, "certificate", &identity.cert)?;
                not_after_s = Some(check_dates(&chain, &identity.cert, now_s)?);
                let parsed = PrivateKeyDer::from_pem_slice(key);
                let key = parsed.map_err(|error| no_pem("key", &identity.key, "private key", &error.to_string()))?;
                let refused = |error: Error| match error {
                    Error::InconsistentKeys(_) => {
                        TlsError::KeyMismatch { cert: identity.cert.to_string(), key: identity.key.to_string() }
                    }
                    other => unusable("key", &identity.key, &other.to_string()),
                };
                serving = Some(Arc::new(server_of(&provider, None, &chain, &key).map_err(refused)?));
                serving_asked = Some(Arc::new(server_of(&provider, Some(&roots), &chain, &key).map_err(refused)?));
                builder.with_client_auth_cert(chain, key).map_err(refused)?
            }
            _ => builder.with_no_client_auth(),
        };
        connecting.alpn_protocols = vec![ALPN.to_vec()];
        // A resumed session shows no certificate: whoever connects would go on with one that has expired or is not believed any
        // more. Connections are few and long; a whole handshake for each is cheap.
        connecting.resumption = Resumption::disabled();
        Ok(Material { raw, serving, serving_asked, connecting: Arc::new(connecting), not_after_s })
    }
}

const VERSIONS: &str = "the provider has suites for the default versions";

fn server_of(
    provider: &Arc<CryptoProvider>,
    asked: Option<&Arc<RootCertStore>>,
    chain: &[CertificateDer<'static>],
    key: &PrivateKeyDer<'static>,
) -> Result<ServerConfig, Error> {
    let builder = ServerConfig::builder_with_provider(provider.clone());
    let builder = builder.with_safe_default_protocol_versions().expect(VERSIONS);
    let builder = match asked {
        None => builder.with_no_client_auth(),
        Some(roots) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone()).build();
            builder.with_client_cert_verifier(verifier.map_err(|error| Error::General(error.to_string()))?)
        }
    };
    let mut config = builder.with_single_cert(chain.to_vec(), key.clone_key())?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

fn roots_of(bytes: &[u8], from: &Pem) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(bytes, "CA", from)? {
        roots.add(certificate).map_err(|error| unusable("CA", from, &error.to_string()))?;
    }
    Ok(roots)
}

/// At least one.
fn certificates(bytes: &[u8], what: &'static str, from: &Pem) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(bytes).collect();
    let read = read.map_err(|error| no_pem(what, from, "certificate", &error.to_string()))?;
    if read.is_empty() {
        return Err(no_pem(what, from, "certificate", "there is no BEGIN CERTIFICATE"));
    }
    Ok(read)
}

/// Checks that all of a chain are valid now; the last second at which they still are.
fn check_dates(chain: &[CertificateDer<'static>], from: &Pem, now_s: u64) -> Result<u64, TlsError> {
    let mut last = u64::MAX;
    for certificate in chain {
        let read = validity(certificate).ok_or_else(|| unusable("certificate", from, "it has no dates"))?;
        if now_s > read.not_after_s {
            return Err(TlsError::Expired { from: from.to_string(), not_after_s: read.not_after_s, now_s });
        }
        if now_s < read.not_before_s {
            return Err(TlsError::NotYetValid { from: from.to_string(), not_before_s: read.not_before_s, now_s });
        }
        last = last.min(read.not_after_s);
    }
    Ok(last)
}

fn unusable(what: &'static str, from: &Pem, reason: &str) -> TlsError {
    TlsError::Unusable { what, from: from.to_string(), reason: reason.to_owned() }
}

fn no_pem(what: &'static str, from: &Pem, wanted: &'static str, reason: &str) -> TlsError {
    TlsError::NoPem { what, from: from.to_string(), wanted, reason: reason.to_owned() }
}
