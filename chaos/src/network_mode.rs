//! How replicas reach each other in a run: by a network of their own each, or by proxies on loopback.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::nemesis::FaultKind;

/// What the network between the replicas is made of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum NetworkMode {
    /// Namespaces where these can be made, else proxies
    #[default]
    Auto,
    /// Each process in a network namespace of its own, on one bridge: packets are hurt (root)
    Namespaces,
    /// All processes on loopback, a proxy per directed link: connections and their bytes are hurt
    Proxies,
}

impl NetworkMode {
    /// What is done where this is asked for: never [`NetworkMode::Auto`], and why it is not namespaces where these were
    /// wanted. `namespaces` says why there can be none.
    ///
    /// # Errors
    /// If namespaces are asked for by name and there can be none.
    pub fn decide(
        self,
        kinds: &[FaultKind],
        namespaces: &Result<(), String>,
    ) -> Result<(NetworkMode, Option<String>), String> {
        let only = |mode| kinds.iter().find(|kind| kind.card().only_in == Some(mode));
        match (self, namespaces) {
            (NetworkMode::Namespaces, Err(why)) => Err(format!("there are no network namespaces here: {why}")),
            (NetworkMode::Namespaces, Ok(())) => Ok((NetworkMode::Namespaces, None)),
            (NetworkMode::Proxies, _) => Ok((NetworkMode::Proxies, None)),
            (NetworkMode::Auto, Err(why)) => Ok((NetworkMode::Proxies, Some(why.clone()))),
            (NetworkMode::Auto, Ok(())) => match (only(NetworkMode::Proxies), only(NetworkMode::Namespaces)) {
                (Some(kind), None) => Ok((NetworkMode::Proxies, Some(format!("{kind} is done by a proxy")))),
                _ => Ok((NetworkMode::Namespaces, None)),
            },
        }
    }

    /// What it was before anything was said of it.
    pub(crate) fn of_old_runs() -> NetworkMode {
        NetworkMode::Proxies
    }

    /// What has to be asked for: nothing for the default.
    pub(crate) fn option(self) -> String {
        if self == NetworkMode::default() { String::new() } else { format!(" --network {self}") }
    }
}

impl fmt::Display for NetworkMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value().expect("no mode is hidden");
        f.pad(value.get_name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_are_taken_where_they_can_be_made_and_the_faults_do_not_need_proxies() {
        let (can, cannot) = (Ok(()), Err("no root".to_owned()));
        let decide = |mode: NetworkMode, kinds: &[FaultKind], namespaces| mode.decide(kinds, namespaces);
        let (auto, some) = (NetworkMode::Auto, [FaultKind::OneWay]);
        assert_eq!(decide(auto, &some, &can), Ok((NetworkMode::Namespaces, None)));
        assert_eq!(decide(auto, &some, &cannot), Ok((NetworkMode::Proxies, Some("no root".to_owned()))));
        let (mode, why) = decide(auto, &[FaultKind::CorruptLink, FaultKind::KillLeader], &can).unwrap();
        assert_eq!(mode, NetworkMode::Proxies);
        assert!(why.unwrap().starts_with("corrupt-link"));
        assert_eq!(decide(auto, &FaultKind::all(), &can), Ok((NetworkMode::Namespaces, None)));
        assert_eq!(decide(NetworkMode::Proxies, &FaultKind::all(), &can), Ok((NetworkMode::Proxies, None)));
        assert_eq!(decide(auto, &[FaultKind::SlowLink], &can).unwrap().0, NetworkMode::Proxies);
        assert_eq!(decide(auto, &[FaultKind::LossyLink], &can).unwrap().0, NetworkMode::Namespaces);
        assert!(decide(NetworkMode::Namespaces, &some, &cannot).unwrap_err().contains("no root"));
    }

    #[test]
    fn a_mode_is_written_as_it_is_asked_for() {
        for mode in NetworkMode::value_variants() {
            assert_eq!(serde_json::to_string(mode).unwrap(), format!("\"{mode}\""));
        }
    }
}
