//! The account of a run: for people as text, for scripts as JSON.

use std::fmt;

use flotilla_checkers::Finding;
use serde::{Deserialize, Serialize};

use crate::availability::{Availability, Outage};
use crate::conductor::FaultRecord;
use crate::network_mode::NetworkMode;
use crate::parts::Parts;
use crate::run_record::{Settings, Skipped};
use crate::workload::CallCounts;

/// Findings that are told one by one; the rest is counted.
const FINDINGS_SHOWN: usize = 20;

/// What a run says of the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Conclusion {
    /// Every promise was kept.
    Good,
    /// A promise was broken.
    Broken,
    /// Nothing was found, and nothing could have been.
    Void,
}

/// A judged run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// What all the rest comes to.
    pub conclusion: Conclusion,
    /// How the run was made.
    pub settings: Settings,
    /// Messages given to producers.
    pub sent: u64,
    /// Of these, acknowledged.
    pub acked: u64,
    /// Of these, before their commit.
    #[serde(default)]
    pub answered_early: u64,
    /// Of the early ones, gone with their leader: allowed.
    #[serde(default)]
    pub early_lost: u64,
    /// What the replicas kept aside of such, by their own count.
    #[serde(default)]
    pub kept_aside: Option<u64>,
    /// Of these, without a clear outcome.
    pub unknown: u64,
    /// Of the unknown, how many were received.
    pub unknown_stored: u64,
    /// Surely not stored.
    pub not_stored: u64,
    /// Different messages that the workload's consumers got.
    pub received: u64,
    /// Deliveries to them of what they had got before: allowed.
    pub redelivered: u64,
    /// What their calls came to.
    pub calls: CallCounts,
    /// What was done beside plain sends.
    #[serde(default)]
    pub parts: Parts,
    /// Terms that were seen after the first one.
    pub elections: u64,
    /// Kind by kind.
    pub availability: Vec<Availability>,
    /// Fault by fault.
    pub outages: Vec<Outage>,
    /// What was done.
    pub faults: Vec<FaultRecord>,
    /// Of the first replica at the end.
    pub applied_index: u64,
    /// Of the first replica at the end.
    pub digest: String,
    /// Faults that were asked for and left out.
    #[serde(default)]
    pub skipped: Vec<Skipped>,
    /// Broken promises.
    pub findings: Vec<Finding>,
    /// What else went wrong.
    pub incidents: Vec<String>,
    /// Why the run proves nothing, if so.
    pub void: Vec<String>,
    /// When the load began, on the history's clock.
    #[serde(default)]
    pub load_started_ns: u64,
    /// Length of the load.
    pub load_ms: u64,
    /// From the first process to the last look.
    pub total_ms: u64,
    /// Makes the same run again.
    pub command: String,
}

fn network_text(mode: NetworkMode) -> &'static str {
    match mode {
        NetworkMode::Namespaces => "namespaces: each process in one of its own, packets are hurt",
        NetworkMode::Proxies => "proxies: all on loopback, connections and their bytes are hurt",
        NetworkMode::Auto => "not decided",
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |label: &str, value: String| writeln!(f, "{label:<22}{value}");
        let Settings { seed, replicas, rate, .. } = &self.settings;
        line("run", format!("seed {seed}, {replicas} replicas, {rate} messages/s"))?;
        line("network", network_text(self.settings.network).to_owned())?;
        line(
            "took",
            format!("{:.1} s, {:.1} s of it under load", self.total_ms as f64 / 1e3, self.load_ms as f64 / 1e3),
        )?;
        line("sent", self.sent.to_string())?;
        line("acknowledged", self.acked.to_string())?;
        if self.answered_early > 0 {
            let kept = self.kept_aside.map_or_else(|| "unknown".to_owned(), |kept| kept.to_string());
            line(
                "of these, early",
                format!("{} (lost: {}, kept aside: {kept})", self.answered_early, self.early_lost),
            )?;
        }
        line("outcome unknown", format!("{} (stored after all: {})", self.unknown, self.unknown_stored))?;
        line("not stored", format!("{} (rejected: {})", self.not_stored, self.calls.rejected))?;
        line("received", format!("{} (again: {})", self.received, self.redelivered))?;
        line("failed calls", format!("{} receives, {} acks", self.calls.receive_failed, self.calls.acks_failed))?;
        if self.parts != Parts::default() {
            let Parts { halves, committed, rolled_back, delayed, doomed, dead, written, read } = self.parts;
            line("transactions", format!("{halves} (committed: {committed}, rolled back: {rolled_back})"))?;
            line("delayed", delayed.to_string())?;
            line("dead letters", format!("{dead} (of {doomed} sent)"))?;
            line("registers", format!("{written} writes, {read} reads"))?;
        }
        line("elections", self.elections.to_string())?;
        let digest = self.digest.get(..16).unwrap_or(&self.digest);
        line("replicas", format!("applied up to entry {}, digest {digest}", self.applied_index))?;
        if !self.availability.is_empty() {
            let header = ["fault", "done", "no ack p50", "max", "after heal p50", "max"];
            let [kind, count, gap, gap_max, heal, heal_max] = header;
            writeln!(f, "{kind:<18}{count:>5}{gap:>13}{gap_max:>11}{heal:>16}{heal_max:>11}")?;
        }
        for row in &self.availability {
            let ms = |ms: u64| format!("{ms} ms");
            writeln!(
                f,
                "{:<18}{:>5}{:>13}{:>11}{:>16}{:>11}",
                row.kind,
                row.count,
                ms(row.gap_ms_p50),
                ms(row.gap_ms_max),
                ms(row.after_heal_ms_p50),
                ms(row.after_heal_ms_max)
            )?;
        }
        for fault in &self.faults {
            if let Some(problem) = &fault.problem {
                writeln!(f, "NOT DONE: fault {} ({}): {problem}", fault.number, fault.kind)?;
            } else if fault.disturbed == Some(0) {
                writeln!(f, "WITHOUT EFFECT: fault {} ({}): nothing met it", fault.number, fault.kind)?;
            }
            for note in &fault.notes {
                writeln!(f, "seen in fault {} ({}): {note}", fault.number, fault.kind)?;
            }
        }
        for Skipped { kind, why } in &self.skipped {
            writeln!(f, "SKIPPED: {kind}: {why}")?;
        }
        for finding in self.findings.iter().take(FINDINGS_SHOWN) {
            writeln!(f, "BROKEN: {finding}")?;
        }
        if let Some(more @ 1..) = self.findings.len().checked_sub(FINDINGS_SHOWN) {
            writeln!(f, "BROKEN: {more} more findings")?;
        }
        for incident in &self.incidents {
            writeln!(f, "WRONG: {incident}")?;
        }
        for reason in &self.void {
            writeln!(f, "VOID: {reason}")?;
        }
        writeln!(
            f,
            "{}",
            match self.conclusion {
                Conclusion::Good => "GOOD: every promise was kept",
                Conclusion::Broken => "BROKEN: a promise was not kept",
                Conclusion::Void => "VOID: this run proves nothing",
            }
        )?;
        writeln!(f, "again: {}", self.command)
    }
}
