//! A CA for tests, and files that it signed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use flotilla_runtime::Runtime;
use flotilla_tls::{LinkAuth, TlsConfig, TlsMode};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, date_time_ymd,
};

/// A certificate authority with a directory of its own.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    dir: tempfile::TempDir,
}

/// What was issued.
#[derive(Debug, Clone)]
pub struct Issued {
    pub cert: PathBuf,
    pub key: PathBuf,
    pub ca: PathBuf,
}

impl Authority {
    pub fn new(name: &str) -> Authority {
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name.push(DnType::CommonName, name);
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(parameters, KeyPair::generate().unwrap()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ca.crt"), issuer.pem()).unwrap();
        Authority { issuer, dir }
    }

    pub fn ca(&self) -> PathBuf {
        self.dir.path().join("ca.crt")
    }

    pub fn ca_pem(&self) -> String {
        self.issuer.pem()
    }

    /// A certificate for these hosts, for years to come.
    pub fn issue(&self, name: &str, hosts: &[&str]) -> Issued {
        self.issue_for(name, hosts, Duration::from_secs(3 * 365 * 86_400))
    }

    /// One that is valid for so long from now on.
    pub fn issue_for(&self, name: &str, hosts: &[&str], valid: Duration) -> Issued {
        let end = Duration::from_millis(Runtime::tokio().wall_ms()) + valid;
        self.issue_until(name, hosts, end)
    }

    /// One that was valid until 2024-01-01.
    pub fn issue_expired(&self, name: &str, hosts: &[&str]) -> Issued {
        self.issue_until(name, hosts, Duration::from_secs(1_704_067_200))
    }

    fn issue_until(&self, name: &str, hosts: &[&str], end: Duration) -> Issued {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let mut parameters = CertificateParams::new(hosts).unwrap();
        parameters.distinguished_name.push(DnType::CommonName, name);
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        parameters.not_before = date_time_ymd(2023, 1, 1);
        parameters.not_after = date_time_ymd(1970, 1, 1) + Duration::from_secs(end.as_secs());
        let key = KeyPair::generate().unwrap();
        let certificate = parameters.signed_by(&key, &self.issuer).unwrap();
        let path = |kind: &str| self.dir.path().join(format!("{name}.{kind}"));
        replace(&path("key"), &key.serialize_pem());
        replace(&path("crt"), &certificate.pem());
        Issued { cert: path("crt"), key: path("key"), ca: self.ca() }
    }
}

/// As an operator should: nobody sees half of a file.
pub fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, path).unwrap();
}

impl Issued {
    /// Settings with these files: all links in this mode, nobody asked for a certificate, and quick to see new files.
    pub fn config(&self, mode: TlsMode) -> TlsConfig {
        TlsConfig {
            cert_file: Some(self.cert.clone()),
            key_file: Some(self.key.clone()),
            ca_file: Some(self.ca.clone()),
            client: mode,
            peers: mode,
            namesrv: mode,
            reload_interval_ms: 100,
            ..TlsConfig::default()
        }
    }

    /// The same, and everybody who connects is asked for a certificate.
    pub fn asking_config(&self) -> TlsConfig {
        TlsConfig {
            client_auth: LinkAuth::Required,
            peers_auth: LinkAuth::Required,
            namesrv_auth: LinkAuth::Required,
            ..self.config(TlsMode::Required)
        }
    }
}
