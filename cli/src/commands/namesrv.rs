//! `flotilla namesrv`: one route server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use flotilla_namesrv::{Namesrv, NamesrvConfig};
use flotilla_runtime::Runtime;

use super::serve::{Server, serve_until_stopped, start_unless_stopped};
use crate::failure::Failure;
use crate::ready_line;
use crate::stop_signal::StopSignals;

/// Run a namesrv: it tells clients and brokers which broker groups serve a topic.
///
/// It keeps nothing on disk: brokers tell it again when it comes back. Start two or more, unrelated to each
/// other, and name all of them to brokers and clients.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  flotilla namesrv
  flotilla namesrv --listen 10.0.0.5:9876
  flotilla namesrv --example-config > namesrv.toml && flotilla namesrv --config namesrv.toml")]
pub struct NamesrvArguments {
    /// Settings, as TOML; flags win over it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address and port to listen on [default: 0.0.0.0:9876]
    #[arg(long, value_name = "IP:PORT")]
    listen: Option<SocketAddr>,
    /// Where metrics and health are served (HTTP: /metrics, /live, /ready) [default: nowhere; the usual port is 5557]
    #[arg(long, value_name = "IP:PORT")]
    metrics_listen: Option<SocketAddr>,
    /// Print the effective settings as TOML and end
    #[arg(long)]
    print_config: bool,
    /// Print a settings file with every default explained and end
    #[arg(long, conflicts_with = "print_config")]
    example_config: bool,
    /// Stop when stdin ends, so that this process does not outlive the one that started it
    #[arg(long, hide = true)]
    stop_when_stdin_closes: bool,
}

const EXAMPLE_CONFIG: &str = include_str!("namesrv.example.toml");

/// Why the settings could not be used.
#[derive(Debug, thiserror::Error)]
enum NamesrvConfigError {
    #[error("config file {} cannot be read: {source}", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error("config file {} is not understood: {problem}", path.display())]
    Malformed { path: PathBuf, problem: String },
    #[error("config is not usable: {0}")]
    Invalid(#[from] flotilla_namesrv::ConfigErrors),
}

pub async fn run(arguments: NamesrvArguments, runtime: Runtime) -> Result<(), Failure> {
    if arguments.example_config {
        print!("{EXAMPLE_CONFIG}");
        return Ok(());
    }
    let config = arguments.config().map_err(Failure::usage)?;
    if arguments.print_config {
        print!("{}", toml::to_string(&config)?);
        return Ok(());
    }
    let mut signals = StopSignals::listen(arguments.stop_when_stdin_closes, &runtime)?;
    let Some(namesrv) = start_unless_stopped(&mut signals, Namesrv::start(config, runtime.clone())).await else {
        return Ok(());
    };
    let namesrv = namesrv?;
    ready_line::print(format_args!("namesrv on {}", namesrv.address()));
    serve_until_stopped(namesrv, &mut signals, &runtime).await
}

impl Server for Namesrv {
    async fn failed(&self) -> String {
        // It has no disk that could fail.
        std::future::pending().await
    }

    async fn shutdown(self, timeout: Duration) {
        Namesrv::shutdown(self, timeout).await;
    }
}

impl NamesrvArguments {
    fn config(&self) -> Result<NamesrvConfig, NamesrvConfigError> {
        let mut config = match &self.config {
            None => NamesrvConfig::default(),
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|source| NamesrvConfigError::Unreadable { path: path.clone(), source })?;
                toml::from_str(&text).map_err(|error| NamesrvConfigError::Malformed {
                    path: path.clone(),
                    problem: error.to_string().trim_end().to_owned(),
                })?
            }
        };
        if let Some(listen) = self.listen {
            config.listen = listen;
        }
        if self.metrics_listen.is_some() {
            config.metrics_listen = self.metrics_listen;
        }
        config.validate()?;
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_config_is_usable() {
        let sample = include_str!("../../../deploy/three-machines/namesrv.toml");
        let config = NamesrvConfig::from_toml(sample).unwrap();
        assert_eq!(config.metrics_listen.map(|address| address.port()), Some(5558));
    }

    #[test]
    fn the_example_config_says_the_defaults() {
        let example: NamesrvConfig = toml::from_str(EXAMPLE_CONFIG).unwrap();
        assert_eq!(example, NamesrvConfig::default());
        for key in toml::to_string(&NamesrvConfig::default()).unwrap().lines().filter_map(|line| line.split_once(" = "))
        {
            assert!(EXAMPLE_CONFIG.contains(&format!("\n{} = ", key.0)), "{} is not explained", key.0);
        }
    }
}
