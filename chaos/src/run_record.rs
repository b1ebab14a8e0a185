//! What a run remembers beside its plan and its history, in `run.json`: enough to judge it again.

use serde::{Deserialize, Serialize};

use crate::conductor::FaultRecord;
use crate::levels::Levels;
use crate::nemesis::FaultKind;
use crate::network_mode::NetworkMode;
use crate::plan::Plan;
use crate::scenario::Limits;
use crate::workload::CallCounts;

/// How a run is made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// What the plan is made from.
    pub seed: u64,
    /// Which faults it may have.
    pub faults: Vec<FaultKind>,
    /// Length of the load.
    pub duration_ms: u64,
    /// Messages a second.
    pub rate: u64,
    /// Size of the cluster.
    pub replicas: u64,
    /// Faults may overlap.
    #[serde(default)]
    pub overlaps: bool,
    /// The file whose plan was carried out, else it was made from the seed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan_file: Option<String>,
    /// The scenario whose plan was carried out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scenario: Option<String>,
    /// At which levels its sends are answered.
    #[serde(default)]
    pub levels: Levels,
    /// What must hold beside the promises.
    #[serde(default)]
    pub limits: Limits,
    /// Lines of the brokers' settings files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub broker: Vec<String>,
    /// How its replicas reach each other: as asked for until it is decided.
    #[serde(default = "NetworkMode::of_old_runs")]
    pub network: NetworkMode,
}

/// A fault that was asked for and left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// Its name.
    pub kind: FaultKind,
    /// What it needs and does not have.
    pub why: String,
}

impl Settings {
    /// What a plan says of itself.
    pub fn follow(&mut self, plan: &Plan) {
        (self.seed, self.replicas, self.overlaps) = (plan.seed, plan.replicas, plan.overlaps);
        (self.duration_ms, self.faults) = (plan.duration_ms, plan.kinds());
    }

    /// The command that makes the same run again.
    pub fn command(&self) -> String {
        const PROGRAM: &str = "cargo run --release -p flotilla-chaos --";
        let network = self.network.option();
        if let Some(scenario) = &self.scenario {
            return format!("{PROGRAM} scenario {scenario}{network}");
        }
        let broker: String = self.broker.iter().map(|line| format!(" --broker '{line}'")).collect();
        if let Some(file) = &self.plan_file {
            return format!(
                "{PROGRAM} run --plan {file} --rate {}{}{network}{broker}",
                self.rate,
                self.levels.options()
            );
        }
        let overlap = if self.overlaps { " --overlap" } else { "" };
        let faults: Vec<String> = self.faults.iter().map(ToString::to_string).collect();
        let faults = if faults.is_empty() { "none".to_owned() } else { faults.join(",") };
        let duration = match self.duration_ms {
            ms if ms % 1_000 == 0 => format!("{}s", ms / 1_000),
            ms => format!("{ms}ms"),
        };
        format!(
            "{PROGRAM} run --seed {} --faults {faults} --duration {duration} --rate {} --replicas {}{network}{overlap}{}{broker}",
            self.seed,
            self.rate,
            self.replicas,
            self.levels.options()
        )
    }
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRecord {
    /// How it was made.
    pub settings: Settings,
    /// Each fault that was begun.
    pub faults: Vec<FaultRecord>,
    /// Faults that were asked for and left out.
    #[serde(default)]
    pub skipped: Vec<Skipped>,
    /// What went wrong and stands in no history.
    pub incidents: Vec<String>,
    /// What the clients' calls came to.
    pub calls: CallCounts,
    /// Messages that replicas had acknowledged before the commit and kept aside when another leader overrode them, by their
    /// own count; absent if they did not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_aside: Option<u64>,
    /// What the largest of the replicas' data folders held at the end.
    #[serde(default)]
    pub data_bytes: u64,
    /// Nanoseconds on the history's clock.
    pub load_started_ns: u64,
    /// When no new send was begun any more.
    pub load_ended_ns: u64,
    /// From the first process to the last look.
    pub total_ms: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_names_everything_that_a_plan_depends_on() {
        let mut settings = Settings {
            seed: 7,
            faults: vec![FaultKind::KillLeader, FaultKind::OneWay],
            duration_ms: 60_000,
            rate: 500,
            replicas: 3,
            overlaps: false,
            plan_file: None,
            scenario: None,
            levels: Levels::default(),
            limits: Limits::default(),
            broker: Vec::new(),
            network: NetworkMode::Namespaces,
        };
        let options =
            "run --seed 7 --faults kill-leader,one-way --duration 60s --rate 500 --replicas 3 --network namespaces";
        assert!(settings.command().ends_with(options), "{}", settings.command());
        settings.overlaps = true;
        assert!(settings.command().ends_with(&format!("{options} --overlap")), "{}", settings.command());
        settings.broker.push("raft_durability = \"os\"".to_owned());
        let with_line = format!("{options} --overlap --broker 'raft_durability = \"os\"'");
        assert!(settings.command().ends_with(&with_line), "{}", settings.command());
        settings.network = NetworkMode::Auto;
        assert!(!settings.command().contains("--network"), "nothing need be said of the default");
        (settings.faults, settings.duration_ms) = (Vec::new(), 1_500);
        assert!(settings.command().contains("--faults none --duration 1500ms"), "{}", settings.command());
    }
}
