//! What an operator may set of a namesrv, with defaults, units and one check that names every problem.

use std::net::{Ipv4Addr, SocketAddr};

use flotilla_tls::TlsConfig;
use serde::{Deserialize, Serialize};

/// Settings of one namesrv. Missing keys take their defaults; unknown keys are refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NamesrvConfig {
    /// Address and port to listen on. Default `0.0.0.0:9876`. Port 0 takes any free port.
    pub listen: SocketAddr,
    /// How often brokers are expected to repeat their row, milliseconds. Default 30,000; 10 to 600,000.
    /// Brokers choose their own interval; this one is what the two settings below are checked against.
    pub heartbeat_interval_ms: u64,
    /// How often the table is searched for rows that have gone silent, milliseconds. Default 10,000; 10 to 600,000.
    /// A row may outlive its expiry by this much.
    pub scan_interval_ms: u64,
    /// How long a row stays without a heartbeat, milliseconds. Default 120,000; above the heartbeat
    /// interval, at most 86,400,000. After it the row goes and its connection is closed.
    pub expiry_ms: u64,
    /// Most replicas that may be registered at once. Default 10,000; 1 to 1,000,000. A further one is refused.
    pub rows_max: usize,
    /// Where monitoring is served: `/metrics`, `/live`, `/ready` over HTTP, without TLS and without a password. Default:
    /// none, nothing is served; the usual port is 5558 beside a broker, else 5557.
    pub metrics_listen: Option<SocketAddr>,
    /// Most registration connections at once. Default 20,000; 1 to 1,000,000. A further one is refused.
    pub connections_max: usize,
    /// TLS of this namesrv's port: what the table says of `namesrv`, the rest is for brokers. Default: none.
    pub tls: TlsConfig,
}

/// The default port, the one RocketMQ's users know.
pub const DEFAULT_PORT: u16 = 9876;

impl Default for NamesrvConfig {
    fn default() -> NamesrvConfig {
        NamesrvConfig {
            listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, DEFAULT_PORT)),
            heartbeat_interval_ms: 30_000,
            scan_interval_ms: 10_000,
            expiry_ms: 120_000,
            rows_max: 10_000,
            metrics_listen: None,
            connections_max: 20_000,
            tls: TlsConfig::default(),
        }
    }
}

/// Everything that is wrong with a [`NamesrvConfig`], one sentence each.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .problems.join("; "))]
pub struct ConfigErrors {
    /// Each problem with its key, value and what is allowed.
    pub problems: Vec<String>,
}

/// Why a configuration file's text was not taken.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Not TOML, an unknown key, or a value of the wrong type.
    #[error("the configuration cannot be read: {0}")]
    Syntax(#[from] toml::de::Error),
    /// Readable, but some values contradict each other or their ranges.
    #[error("the configuration is not valid: {0}")]
    Invalid(#[from] ConfigErrors),
}

impl NamesrvConfig {
    /// Reads and checks the text of a TOML file.
    ///
    /// # Errors
    /// [`ConfigError`], with the line of a syntax error or with all invalid values.
    pub fn from_toml(text: &str) -> Result<NamesrvConfig, ConfigError> {
        let config: NamesrvConfig = toml::from_str(text)?;
        config.validate()?;
        Ok(config)
    }

    /// Checks every value and how they fit each other.
    ///
    /// # Errors
    /// [`ConfigErrors`] with all the problems at once.
    pub fn validate(&self) -> Result<(), ConfigErrors> {
        let mut problems = Vec::new();
        let mut within = |key: &str, value: u64, least: u64, most: u64| {
            if !(least..=most).contains(&value) {
                problems.push(format!("{key} is {value}, allowed is {least} to {most}"));
            }
        };
        within("heartbeat_interval_ms", self.heartbeat_interval_ms, 10, 600_000);
        within("scan_interval_ms", self.scan_interval_ms, 10, 600_000);
        within("expiry_ms", self.expiry_ms, 20, 86_400_000);
        within("rows_max", self.rows_max as u64, 1, 1_000_000);
        within("connections_max", self.connections_max as u64, 1, 1_000_000);
        if self.expiry_ms <= self.heartbeat_interval_ms {
            problems.push(format!(
                "expiry_ms is {}, it must be above heartbeat_interval_ms, which is {}",
                self.expiry_ms, self.heartbeat_interval_ms
            ));
        }
        problems.extend(self.tls.problems());
        if problems.is_empty() { Ok(()) } else { Err(ConfigErrors { problems }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_file_gives_the_documented_defaults() {
        let config = NamesrvConfig::from_toml("").unwrap();
        assert_eq!(config, NamesrvConfig::default());
        assert_eq!(config.listen.to_string(), "0.0.0.0:9876");
        assert_eq!(
            (config.heartbeat_interval_ms, config.scan_interval_ms, config.expiry_ms),
            (30_000, 10_000, 120_000)
        );
    }

    #[test]
    fn an_unknown_key_is_named() {
        let error = NamesrvConfig::from_toml("expiry = 5").unwrap_err().to_string();
        assert!(error.contains("expiry"), "{error}");
        assert!(error.contains("expiry_ms"), "the allowed keys are listed: {error}");
    }

    #[test]
    fn every_problem_is_named_at_once() {
        let error = NamesrvConfig::from_toml("scan_interval_ms = 1\nexpiry_ms = 30000\nrows_max = 0").unwrap_err();
        let text = error.to_string();
        for part in ["scan_interval_ms is 1, allowed is 10 to 600000", "expiry_ms is 30000", "rows_max is 0"] {
            assert!(text.contains(part), "{part} is missing in: {text}");
        }
    }
}
