//! Where a client command finds the cluster.

use std::path::PathBuf;

use clap::Args;
use flotilla_client::{Client, ClientConfig, Credentials, Identity, Pem};
use flotilla_message::{GroupName, NameError, TopicName};

/// Options of every client command.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Where the cluster is")]
pub struct ConnectOptions {
    /// Namesrvs that know the brokers; any that answers will do
    #[arg(
        long,
        global = true,
        env = "FLOTILLA_NAMESRV",
        value_name = "HOST:PORT",
        value_delimiter = ',',
        default_value = "127.0.0.1:9876"
    )]
    pub namesrv: Vec<String>,
    /// Brokers to ask instead of a namesrv
    #[arg(long, global = true, value_name = "HOST:PORT", value_delimiter = ',')]
    pub endpoint: Vec<String>,
    #[command(flatten)]
    pub tls: TlsOptions,
}

/// How a client command speaks TLS.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "TLS")]
pub struct TlsOptions {
    /// Speak TLS with all servers, and believe those whose certificates one of these CA certificates (PEM) vouches for; their
    /// certificates must be for the hosts under which they are called
    #[arg(long, global = true, env = "FLOTILLA_TLS_CA", value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,
    /// The certificate (PEM) to show to servers that want one
    #[arg(long, global = true, env = "FLOTILLA_TLS_CERT", value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// The private key (PEM) of that certificate
    #[arg(long, global = true, env = "FLOTILLA_TLS_KEY", value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
}

/// Options of TLS that do not go together.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Half of what belongs together.
    #[error("--tls-cert and --tls-key belong together, and need --tls-ca (or FLOTILLA_TLS_CERT, _KEY, _CA)")]
    HalfATls,
    /// Addresses, certificates or keys.
    #[error(transparent)]
    Config(#[from] flotilla_client::ConfigErrors),
}

impl TlsOptions {
    /// What a client's settings say of TLS.
    pub fn credentials(&self) -> Result<Option<Credentials>, ConnectError> {
        let identity = match (&self.tls_cert, &self.tls_key) {
            (None, None) => None,
            (Some(cert), Some(key)) => Some(Identity { cert: Pem::File(cert.clone()), key: Pem::File(key.clone()) }),
            _ => return Err(ConnectError::HalfATls),
        };
        match &self.tls_ca {
            Some(ca) => Ok(Some(Credentials { ca: Pem::File(ca.clone()), identity })),
            None if identity.is_some() => Err(ConnectError::HalfATls),
            None => Ok(None),
        }
    }
}

impl ConnectOptions {
    /// A client's settings; endpoints win over namesrvs.
    pub fn config(&self) -> Result<ClientConfig, ConnectError> {
        let config = if self.endpoint.is_empty() {
            ClientConfig::of_namesrv(self.namesrv.iter().cloned())
        } else {
            ClientConfig::of_endpoints(self.endpoint.iter().cloned())
        };
        Ok(ClientConfig { tls: self.tls.credentials()?, ..config })
    }

    /// A client; it connects when it is first used.
    pub fn client(&self) -> Result<Client, ConnectError> {
        Ok(Client::tonic(self.config()?)?)
    }
}

/// For clap: a topic's name.
pub fn topic_name(text: &str) -> Result<TopicName, NameError> {
    TopicName::try_from(text)
}

/// For clap: a consumer group's name.
pub fn group_name(text: &str) -> Result<GroupName, NameError> {
    GroupName::try_from(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_needs_its_key_and_a_ca() {
        let path = |name: &str| Some(PathBuf::from(name));
        let of = |ca, cert, key| TlsOptions { tls_ca: ca, tls_cert: cert, tls_key: key }.credentials();
        assert_eq!(of(None, None, None).unwrap(), None);
        assert_eq!(of(path("ca"), None, None).unwrap().unwrap().identity, None);
        assert!(of(path("ca"), path("c"), path("k")).unwrap().unwrap().identity.is_some());
        for half in [of(path("ca"), path("c"), None), of(path("ca"), None, path("k")), of(None, path("c"), path("k"))] {
            assert!(half.unwrap_err().to_string().contains("--tls-ca"));
        }
    }
}
