//! The demo's account: figures for people and for scripts, and the verdict.

use std::fmt;
use std::time::Duration;

use flotilla_checkers::{Delivery, Dump, Report, Send, real_time_order};
use flotilla_runtime::Instant;
use serde::Serialize;

use super::faults::{Fault, FaultKind, whole_ms};
use super::gaps::{self, GapDistribution};
use super::workload::{Received, Sent};
use crate::quantity::format_count;

/// Findings that are told one by one; the rest is counted.
const FINDINGS_SHOWN: usize = 10;
/// Up to so many faults are told one by one.
const FAULTS_SHOWN: usize = 20;

/// All that a run showed, before it is judged.
pub struct Evidence {
    pub size: u64,
    pub sent: Vec<Sent>,
    pub received: Vec<Received>,
    pub idle_until: Vec<Instant>,
    pub faults: Vec<Fault>,
    /// Of the first leader.
    pub first_term: u64,
    pub last_term: u64,
    pub dumps: Vec<Dump>,
    pub disagreements: Vec<String>,
    pub sending: Duration,
    pub total: Duration,
}

/// The judged run. With `--json` this is the last line on stdout.
#[derive(Debug, Serialize)]
pub struct DemoReport {
    pub acked: u64,
    /// Acknowledged and not received where the acknowledgement said.
    pub lost: u64,
    /// Messages that stand at more than one place of the log.
    pub duplicates: u64,
    pub kills: u64,
    /// Longest time without an acknowledgement, one figure for each fault, in the order of `faults`.
    pub longest_gap_ms: Vec<u64>,
    /// The same as a distribution, one for each kind of fault.
    pub gaps: Vec<GapDistribution>,
    /// The longest that a send took.
    pub slowest_send_ms: u64,
    pub digests_equal: bool,
    pub sent: u64,
    /// Sends without a clear outcome: neither lost nor phantom.
    pub unknown: u64,
    /// Of these, how many turned out to be stored.
    pub unknown_stored: u64,
    /// Sends that surely are not stored.
    pub not_stored: u64,
    pub received: u64,
    /// Deliveries of a message that had been delivered before: allowed.
    pub redelivered: u64,
    /// Received though never sent.
    pub phantoms: u64,
    /// Messages of a queue that stand, or first came, in a wrong order.
    pub wrong_order: u64,
    /// Terms that followed the first leader's.
    pub elections: u64,
    pub size: u64,
    pub sending_ms: u64,
    pub total_ms: u64,
    pub messages_per_second: u64,
    /// Of all replicas at the end, if they agree.
    pub applied_index: u64,
    pub digest: String,
    pub receive_calls_failed: u64,
    pub ack_calls_failed: u64,
    pub faults: Vec<Fault>,
    /// What is wrong, a sentence each.
    pub findings: Vec<String>,
}

impl Evidence {
    /// Judges the run.
    pub fn into_report(self) -> DemoReport {
        let acked_at: Vec<Instant> = self.sent.iter().flat_map(|sent| &sent.acked_at).copied().collect();
        let hit_at: Vec<Instant> = self.faults.iter().map(|fault| fault.at).collect();
        let gaps = gaps::longest_per_fault(&acked_at, &self.idle_until, &hit_at);
        let gaps: Vec<u64> = gaps.into_iter().map(whole_ms).collect();
        let sends: Vec<Send> = self.sent.into_iter().flat_map(|sent| sent.sends).collect();
        let slowest_ns = sends.iter().map(|send| send.completed_ns.saturating_sub(send.invoked_ns)).max().unwrap_or(0);
        let slowest_send_ms = whole_ms(Duration::from_nanos(slowest_ns));
        let (mut receive_calls_failed, mut ack_calls_failed) = (0, 0);
        let mut deliveries: Vec<Delivery> = Vec::new();
        for received in self.received {
            receive_calls_failed += received.failed_calls;
            ack_calls_failed += received.failed_acks;
            deliveries.extend(received.deliveries);
        }
        let report = Report::of(&sends, &deliveries);
        let reversed = real_time_order::find(&sends);
        let mut findings = Vec::new();
        told(&mut findings, "acknowledged and lost: message", &report.lost);
        told(&mut findings, "stored twice: message", &report.duplicates);
        told(&mut findings, "received and never sent: message", &report.phantoms);
        told(&mut findings, "delivered in a wrong order: message", &report.out_of_order);
        told(&mut findings, "stored in a wrong order:", &reversed);
        told(&mut findings, "replicas disagree:", &self.disagreements);
        let first = self.dumps.first();
        DemoReport {
            acked: report.acked,
            lost: report.lost.len() as u64,
            duplicates: report.duplicates.len() as u64,
            kills: self.faults.iter().filter(|fault| fault.kind == FaultKind::Kill).count() as u64,
            gaps: gaps::distributions(self.faults.iter().map(|fault| fault.kind).zip(gaps.iter().copied())),
            longest_gap_ms: gaps,
            slowest_send_ms,
            digests_equal: self.disagreements.is_empty(),
            sent: report.sent,
            unknown: report.unknown,
            unknown_stored: report.recovered,
            not_stored: report.refused,
            received: report.received,
            redelivered: report.redelivered,
            phantoms: report.phantoms.len() as u64,
            wrong_order: (report.out_of_order.len() + reversed.len()) as u64,
            elections: self.last_term.saturating_sub(self.first_term),
            size: self.size,
            sending_ms: whole_ms(self.sending),
            total_ms: whole_ms(self.total),
            messages_per_second: (report.acked as f64 / self.sending.as_secs_f64().max(0.001)) as u64,
            applied_index: first.map_or(0, |dump| dump.applied_index),
            digest: first.map(|dump| dump.digest.clone()).unwrap_or_default(),
            receive_calls_failed,
            ack_calls_failed,
            faults: self.faults,
            findings,
        }
    }
}

impl DemoReport {
    /// Nothing acknowledged was lost, nothing stands in the log twice or was made up, order held, and all replicas
    /// hold the same.
    pub fn is_good(&self) -> bool {
        self.findings.is_empty() && self.digests_equal && self.lost == 0
    }
}

fn told(findings: &mut Vec<String>, what: &str, found: &[impl fmt::Display]) {
    findings.extend(found.iter().take(FINDINGS_SHOWN).map(|found| format!("{what} {found}")));
    if let Some(more @ 1..) = found.len().checked_sub(FINDINGS_SHOWN) {
        findings.push(format!("{what} {more} more"));
    }
}

impl fmt::Display for DemoReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |label: &str, value: String| writeln!(f, "{label:<48}{value}");
        line("sent", format_count(self.sent))?;
        line("acknowledged", format_count(self.acked))?;
        if self.unknown + self.not_stored > 0 {
            let stored = format_count(self.unknown_stored);
            line("outcome unknown", format!("{} (stored after all: {stored})", format_count(self.unknown)))?;
            line("not stored", format_count(self.not_stored))?;
        }
        line("received", format!("{} (again: {})", format_count(self.received), format_count(self.redelivered)))?;
        line("lost", format_count(self.lost))?;
        line("duplicates", format_count(self.duplicates))?;
        line("wrong order within a queue", format_count(self.wrong_order))?;
        line("leaders' faults", format!("{} ({} killed)", self.faults.len(), self.kills))?;
        line("elections", self.elections.to_string())?;
        if self.faults.len() <= FAULTS_SHOWN {
            for (gap, fault) in self.longest_gap_ms.iter().zip(&self.faults) {
                line(&format!("  without an ack, broker {} {}", fault.node, fault.kind), format!("{gap} ms"))?;
            }
        }
        for gap in &self.gaps {
            let GapDistribution { kind, faults, p50_ms, p99_ms, max_ms } = gap;
            let figures = format!("p50 {p50_ms} ms, p99 {p99_ms} ms, longest {max_ms} ms");
            line(&format!("  {faults} × {kind}"), figures)?;
        }
        line("slowest send", format!("{} ms", self.slowest_send_ms))?;
        let rate = format_count(self.messages_per_second);
        line("sending took", format!("{:.1} s ({rate} messages/s)", self.sending_ms as f64 / 1e3))?;
        let digest = self.digest.get(..16).unwrap_or(&self.digest);
        let replicas = if self.digests_equal {
            format!("the same up to entry {} (digest {digest})", format_count(self.applied_index))
        } else {
            "DIFFERENT".to_owned()
        };
        line("replicas hold", replicas)?;
        for finding in &self.findings {
            writeln!(f, "WRONG: {finding}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use flotilla_checkers::{Ack, QueueKey, SendOutcome};

    use super::*;

    fn evidence() -> Evidence {
        let queue = QueueKey::new("t", 0);
        let send = |number: u64, ms: u64| {
            let outcome = SendOutcome::Acked(Ack::at(queue.clone(), number));
            Send::new(number.to_string(), outcome).timed(ms * 1_000_000, (ms + 1) * 1_000_000)
        };
        let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        let delivery = |number: u64| Delivery::new("r", queue.clone(), number, number.to_string());
        let dump = |replica| Dump { replica, applied_index: 7, digest: "abc".into(), queues: Vec::new() };
        Evidence {
            size: 16,
            sent: vec![Sent { sends: vec![send(0, 10), send(1, 300)], acked_at: vec![at(11), at(301)] }],
            received: vec![Received { deliveries: vec![delivery(0), delivery(1)], ..Received::default() }],
            idle_until: Vec::new(),
            faults: vec![Fault {
                kind: FaultKind::Kill,
                node: 1,
                term: 1,
                next_leader: 2,
                next_term: 3,
                leader_after_ms: 200,
                caught_up_after_ms: 50,
                at: at(20),
            }],
            first_term: 1,
            last_term: 3,
            dumps: vec![dump(1), dump(2), dump(3)],
            disagreements: Vec::new(),
            sending: Duration::from_secs(1),
            total: Duration::from_secs(2),
        }
    }

    #[test]
    fn a_good_run_has_the_promised_figures() {
        let report = evidence().into_report();
        assert!(report.is_good(), "{report}");
        let json: serde_json::Value = serde_json::to_value(&report).unwrap();
        assert_eq!(json["acked"], 2);
        assert_eq!(json["lost"], 0);
        assert_eq!(json["duplicates"], 0);
        assert_eq!(json["kills"], 1);
        assert_eq!(json["longest_gap_ms"], serde_json::json!([290]));
        assert_eq!(
            json["gaps"],
            serde_json::json!([{"kind": "kill", "faults": 1, "p50_ms": 290, "p99_ms": 290, "max_ms": 290}])
        );
        assert_eq!(json["slowest_send_ms"], 1);
        assert_eq!(json["digests_equal"], true);
        assert_eq!(json["elections"], 2);
    }

    #[test]
    fn a_lost_message_or_a_differing_replica_is_told_and_not_good() {
        let mut lossy = evidence();
        lossy.received[0].deliveries.pop();
        let report = lossy.into_report();
        assert_eq!(report.lost, 1);
        assert!(
            !report.is_good() && report.to_string().contains("WRONG: acknowledged and lost: message 1"),
            "{report}"
        );

        let mut split = evidence();
        split.disagreements.push("replicas 1 and 2 differ".to_owned());
        let report = split.into_report();
        assert!(!report.digests_equal && !report.is_good() && report.to_string().contains("DIFFERENT"), "{report}");
    }

    #[test]
    fn a_message_without_an_answer_is_neither_lost_nor_wrong() {
        let mut unsure = evidence();
        unsure.sent[0].sends[1].outcome = SendOutcome::Unknown;
        let report = unsure.into_report();
        assert!(report.is_good(), "{report}");
        assert_eq!((report.unknown, report.unknown_stored, report.lost), (1, 1, 0));
    }
}
