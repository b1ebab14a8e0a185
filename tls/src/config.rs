//! What an operator may set: one table for the files of brokers and namesrvs alike.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::credentials::{Credentials, Identity, Pem};

/// TLS of one process: the `[tls]` table of its settings. All links are plain by default.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TlsConfig {
    /// This process' certificate, PEM, with those between it and the CA behind it. Needed once a link is not `off`.
    pub cert_file: Option<PathBuf>,
    /// Its private key, PEM. Needed once a link is not `off`.
    pub key_file: Option<PathBuf>,
    /// The certificates, PEM, that vouch for the other processes. Needed once a link is not `off`.
    pub ca_file: Option<PathBuf>,
    /// The client port, and calls to the client ports of other broker groups. Default `off`.
    pub client: TlsMode,
    /// The peer port, and connections to those of the other replicas. Default `off`.
    pub peers: TlsMode,
    /// Connections to namesrvs; in a namesrv's file its port. Default `off`.
    pub namesrv: TlsMode,
    /// Whether clients must show a certificate that `ca_file` vouches for. Default `none`.
    pub client_auth: LinkAuth,
    /// Whether other replicas must. Default `none`.
    pub peers_auth: LinkAuth,
    /// Whether those who call a namesrv must; only a namesrv asks. Default `none`.
    pub namesrv_auth: LinkAuth,
    /// How often the files are looked at for news, ms. Default 10,000; 100 to 3,600,000.
    pub reload_interval_ms: u64,
}

/// How a link is spoken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TlsMode {
    /// Without TLS.
    #[default]
    Off,
    /// A port takes both; connections are made with TLS, and without it where that fails. A step on the way, no protection.
    Optional,
    /// With TLS alone.
    Required,
}

/// Whether who connects must show a certificate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkAuth {
    /// No certificate is asked for.
    #[default]
    None,
    /// Nobody is let in without one.
    Required,
}

impl Default for TlsConfig {
    fn default() -> TlsConfig {
        TlsConfig {
            cert_file: None,
            key_file: None,
            ca_file: None,
            client: TlsMode::Off,
            peers: TlsMode::Off,
            namesrv: TlsMode::Off,
            client_auth: LinkAuth::None,
            peers_auth: LinkAuth::None,
            namesrv_auth: LinkAuth::None,
            reload_interval_ms: 10_000,
        }
    }
}

impl TlsConfig {
    /// Whether any link may have TLS.
    pub fn is_on(&self) -> bool {
        [self.client, self.peers, self.namesrv].iter().any(|mode| *mode != TlsMode::Off)
    }

    /// What is wrong with the settings, each a whole sentence. The files themselves are judged when they are read.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let files = [("cert_file", &self.cert_file), ("key_file", &self.key_file), ("ca_file", &self.ca_file)];
        for (key, file) in files {
            if self.is_on() && file.is_none() {
                problems.push(format!("tls.{key} is not set, it is needed for links that are not \"off\""));
            }
        }
        let links = [
            ("client", self.client, "client_auth", self.client_auth),
            ("peers", self.peers, "peers_auth", self.peers_auth),
            ("namesrv", self.namesrv, "namesrv_auth", self.namesrv_auth),
        ];
        for (link, mode, auth_key, auth) in links {
            if auth == LinkAuth::Required && mode != TlsMode::Required {
                problems.push(format!("tls.{auth_key} is \"required\", which needs tls.{link} = \"required\""));
            }
        }
        if !(100..=3_600_000).contains(&self.reload_interval_ms) {
            let value = self.reload_interval_ms;
            problems.push(format!("tls.reload_interval_ms is {value}, allowed are 100 to 3600000"));
        }
        problems
    }

    /// The files, if all are named.
    pub(crate) fn credentials(&self) -> Option<Credentials> {
        let file = |path: &Option<PathBuf>| path.clone().map(Pem::File);
        let identity = Identity { cert: file(&self.cert_file)?, key: file(&self.key_file)? };
        Some(Credentials { ca: file(&self.ca_file)?, identity: Some(identity) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_table_every_link_is_plain() {
        let config: TlsConfig = toml::from_str("").unwrap();
        assert_eq!(config, TlsConfig::default());
        assert!(!config.is_on() && config.problems().is_empty());
    }

    #[test]
    fn every_problem_is_named_at_once() {
        let text = "cert_file = \"c.pem\"\nclient = \"optional\"\nclient_auth = \"required\"\nreload_interval_ms = 5";
        let problems = toml::from_str::<TlsConfig>(text).unwrap().problems();
        assert_eq!(
            problems,
            [
                "tls.key_file is not set, it is needed for links that are not \"off\"",
                "tls.ca_file is not set, it is needed for links that are not \"off\"",
                "tls.client_auth is \"required\", which needs tls.client = \"required\"",
                "tls.reload_interval_ms is 5, allowed are 100 to 3600000",
            ]
        );
    }

    #[test]
    fn an_unknown_mode_or_key_is_named() {
        let error = toml::from_str::<TlsConfig>("client = \"on\"").unwrap_err().to_string();
        assert!(error.contains("`on`") && error.contains("optional"), "{error}");
        let error = toml::from_str::<TlsConfig>("certfile = \"on\"").unwrap_err().to_string();
        assert!(error.contains("certfile") && error.contains("cert_file"), "{error}");
    }
}
