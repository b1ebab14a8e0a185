//! Holds a cell's run against what the cell claims.

use std::collections::BTreeSet;
use std::fmt;

use flotilla_checkers::{Event, History, HistoryError, Property, Send, SendOutcome};
use serde::Serialize;

use super::{COLUMNS, Cell, Claim, Durability};
use crate::conductor::FaultRecord;
use crate::drain::DRAIN_PROCESS;
use crate::levels::Level;
use crate::report::{Conclusion, Report};
use crate::run_record::RunRecord;

/// A leader that nobody hears may acknowledge at level async until its lease is over, and its answer takes a moment.
const LEASE_IS_OVER_NS: u64 = 1_500_000_000;
/// Lost messages that are told one by one.
const TOLD_MAX: usize = 3;

/// What came of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// What the cell claims was seen, and nothing else.
    Holds,
    /// Something is lost, or was done, that the cell says is not.
    Broken,
    /// Nothing was lost where something had to be: the run shows nothing.
    NotShown,
    /// This machine cannot do it.
    Skipped,
}

/// One level of one run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ColumnSeen {
    /// Which.
    pub level: Level,
    /// What the cell claims.
    pub claim: Claim,
    /// Sends that were acknowledged.
    pub acked: u64,
    /// Of these, whose messages are gone.
    pub lost: u64,
    /// Sends whose callers were told that nothing is stored.
    pub not_stored: u64,
    /// Sends whose callers were told that it is not known.
    pub unknown: u64,
}

/// What was seen of a cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CellAccount {
    /// Its name.
    pub cell: String,
    /// What happens in it.
    pub cause: &'static str,
    /// Size of the group.
    pub replicas: u64,
    /// When its replicas confirm.
    pub durability: Durability,
    /// What all the rest comes to.
    pub outcome: Outcome,
    /// Level by level.
    pub columns: Vec<ColumnSeen>,
    /// Messages that replicas had acknowledged early and kept aside, by their own count.
    pub kept_aside: Option<u64>,
    /// The longest time without an acknowledgement.
    pub gap_ms: u64,
    /// Runs until then.
    pub tries: u64,
    /// What is wrong, or what was not shown, or why nothing was done.
    pub reasons: Vec<String>,
}

impl Cell {
    /// Judges its run.
    ///
    /// # Errors
    /// [`HistoryError`] if events cannot be paired.
    pub fn account(&self, events: &[Event], record: &RunRecord, report: &Report) -> Result<CellAccount, HistoryError> {
        let history = History::from_events(events)?;
        let stands: BTreeSet<&str> = history
            .deliveries
            .iter()
            .filter(|delivery| delivery.consumer.starts_with(DRAIN_PROCESS))
            .map(|delivery| delivery.message_id.as_str())
            .collect();
        let run = Run { cell: self, record, report, sends: &history.sends, stands };
        let columns: Vec<ColumnSeen> = COLUMNS.iter().map(|level| run.column(*level)).collect();
        let mut reasons = run.wrong(&columns);
        let mut outcome = Outcome::Broken;
        if reasons.is_empty() {
            reasons = self.not_shown(&columns);
            outcome = if reasons.is_empty() { Outcome::Holds } else { Outcome::NotShown };
        }
        let gap_ms = report.outages.iter().map(|outage| outage.gap_ms).max().unwrap_or_default();
        let kept_aside = record.kept_aside;
        Ok(CellAccount { outcome, columns, kept_aside, gap_ms, reasons, ..self.untried() })
    }

    /// An account of nothing: this machine cannot do it.
    pub fn skipped(&self, why: String) -> CellAccount {
        CellAccount { reasons: vec![why], ..self.untried() }
    }

    fn untried(&self) -> CellAccount {
        CellAccount {
            cell: self.name.clone(),
            cause: self.cause,
            replicas: self.replicas,
            durability: self.durability,
            outcome: Outcome::Skipped,
            columns: Vec::new(),
            kept_aside: None,
            gap_ms: 0,
            tries: 0,
            reasons: Vec::new(),
        }
    }

    fn not_shown(&self, columns: &[ColumnSeen]) -> Vec<String> {
        let missing = columns.iter().filter(|column| column.lost == 0 && self.must_lose.contains(&column.level));
        missing.map(|column| format!("not shown: nothing was lost at {}", column.level)).collect()
    }
}

struct Run<'a> {
    cell: &'a Cell,
    record: &'a RunRecord,
    report: &'a Report,
    sends: &'a [Send],
    /// Ids of what was read at the end.
    stands: BTreeSet<&'a str>,
}

impl Run<'_> {
    fn is_lost(&self, send: &Send) -> bool {
        send.ack().is_some() && !self.stands.contains(send.message_id.as_str())
    }

    fn level(&self, send: &Send) -> Option<Level> {
        self.record.settings.levels.of_process(&send.process)
    }

    fn column(&self, level: Level) -> ColumnSeen {
        let (mut acked, mut lost, mut not_stored, mut unknown) = (0, 0, 0, 0);
        for send in self.sends.iter().filter(|send| self.level(send) == Some(level)) {
            match send.outcome {
                SendOutcome::Acked(_) => acked += 1,
                SendOutcome::Refused => not_stored += 1,
                SendOutcome::Unknown => unknown += 1,
            }
            lost += u64::from(self.is_lost(send));
        }
        ColumnSeen { level, claim: self.cell.claim(level), acked, lost, not_stored, unknown }
    }

    fn wrong(&self, columns: &[ColumnSeen]) -> Vec<String> {
        let mut wrong = self.wrong_of_judges(columns);
        let done = self.record.faults.iter().filter(|fault| fault.problem.is_none()).count();
        if done != self.cell.plan.steps.len() {
            wrong.push(format!("{done} of {} faults were done", self.cell.plan.steps.len()));
        }
        for ColumnSeen { level, claim, acked, lost, .. } in columns {
            match claim {
                Claim::Nothing if *lost > 0 => {
                    wrong.push(format!("{level} promises that nothing is lost, and {lost} messages are"));
                }
                Claim::Refused if *acked > 0 => {
                    wrong.push(format!("{level} is refused in such a group, and {acked} sends were acknowledged"));
                }
                Claim::Nothing | Claim::Counted | Claim::Uncounted | Claim::Lacked | Claim::All if *acked == 0 => {
                    wrong.push(format!("nothing was acknowledged at {level}"));
                }
                _ => {}
            }
        }
        let of_counted = columns.iter().filter(|column| column.claim == Claim::Counted);
        let lost: u64 = of_counted.map(|column| column.lost).sum();
        if let Some(kept) = self.record.kept_aside.filter(|kept| lost > *kept) {
            wrong.push(format!("{lost} messages are gone where tails are counted, the replicas know of {kept}"));
        } else if lost > 0 && self.record.kept_aside.is_none() {
            wrong.push(format!(
                "{lost} messages are gone where tails are counted, and not all replicas tell their count"
            ));
        }
        if self.cell.waits {
            wrong.extend(self.acked_in_waits());
        }
        for fault in &self.record.faults {
            wrong.extend(self.wrong_around(fault));
        }
        wrong
    }

    /// What the run's own judges say, but for what follows from a loss that the cell allows.
    fn wrong_of_judges(&self, columns: &[ColumnSeen]) -> Vec<String> {
        let Report { findings, incidents, void, conclusion, .. } = self.report;
        let mut wrong: Vec<String> = void.iter().map(|reason| format!("the run proves nothing: {reason}")).collect();
        if !self.cell.loses_what_was_committed() {
            wrong.extend(findings.iter().map(ToString::to_string));
            wrong.extend(incidents.iter().cloned());
            return wrong;
        }
        let findings = findings.iter().filter(|finding| !follows_from_a_loss(finding.property));
        wrong.extend(findings.map(ToString::to_string));
        wrong.extend(incidents.iter().filter(|incident| !tells_of_a_loss(incident)).cloned());
        let lost_promises: u64 = columns
            .iter()
            .filter(|column| column.claim != Claim::Counted && column.level.ack != ASYNC)
            .map(|column| column.lost)
            .sum();
        if lost_promises > 0 && *conclusion != Conclusion::Broken {
            wrong.push(format!("{lost_promises} messages are lost by right, and the run does not say so"));
        }
        wrong
    }

    /// What was acknowledged though nothing may be.
    fn acked_in_waits(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        for (fault, step) in self.record.faults.iter().zip(&self.cell.plan.steps) {
            let (from, to) = (fault.struck_ns + LEASE_IS_OVER_NS, fault.struck_ns + step.hold_ms * 1_000_000);
            let acked = self.sends.iter().filter(|send| send.ack().is_some());
            let count = acked.filter(|send| (from..to).contains(&send.completed_ns)).count();
            if count > 0 {
                wrong.push(format!("{count} sends were acknowledged while {} held, and none may be", fault.kind));
            }
        }
        wrong
    }

    /// Where everything is lost, or what a survivor lacks, that must be exactly what is gone.
    fn wrong_around(&self, fault: &FaultRecord) -> Vec<String> {
        let claims_all = self.cell.claims.contains(&Claim::All);
        if !claims_all && !self.cell.claims.contains(&Claim::Lacked) {
            return Vec::new();
        }
        let Some(kept_up_to) = (if claims_all { Some(0) } else { fault.kept_up_to }) else {
            return vec![format!("fault {} ({}): no replica was ordered to go on", fault.number, fault.kind)];
        };
        let mut wrong = Vec::new();
        for send in self.sends {
            let Some(ack) = send.ack() else { continue };
            let Some(index) = ack.log_index else {
                wrong.push(format!("message {}: its acknowledgement names no entry", send.message_id));
                continue;
            };
            // What is acknowledged once it has struck is the survivor's own.
            let is_old = send.completed_ns <= fault.struck_ns;
            let must_be_lost = is_old && (claims_all || index > kept_up_to);
            let is_lost = self.is_lost(send);
            if is_lost && !must_be_lost {
                wrong.push(format!("message {} (entry {index}) is lost, and the survivor had it", send.message_id));
            } else if must_be_lost && !is_lost {
                wrong.push(format!("message {} (entry {index}) is there, and nobody had it", send.message_id));
            }
        }
        let more = wrong.len().saturating_sub(TOLD_MAX);
        wrong.truncate(TOLD_MAX);
        if more > 0 {
            wrong.push(format!("and {more} more"));
        }
        wrong
    }
}

const ASYNC: flotilla_message::AckLevel = flotilla_message::AckLevel::Async;

/// Properties that cannot hold where committed messages are gone: somebody had them, and their offsets are given out again.
fn follows_from_a_loss(property: Property) -> bool {
    matches!(
        property,
        Property::NoLostAck
            | Property::NothingTakenBack
            | Property::NoDuplicate
            | Property::RealTimeOrder
            | Property::OrderPerQueue
            | Property::OrderPerMessageGroup
            | Property::OneHolder
    )
}

/// As [`follows_from_a_loss`], in the words of the load: what is gone never comes, what was settled comes again.
fn tells_of_a_loss(incident: &str) -> bool {
    incident.contains("acknowledged messages have not come") || incident.starts_with("progress went back")
}

impl fmt::Display for CellAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outcome = match self.outcome {
            Outcome::Holds => "holds",
            Outcome::Broken => "BROKEN",
            Outcome::NotShown => "NOT SHOWN",
            Outcome::Skipped => "skipped",
        };
        write!(f, "{:<28}{outcome:<11}", self.cell)?;
        for ColumnSeen { claim, acked, lost, .. } in &self.columns {
            write!(f, "{:<16}", format!("{claim}: {lost}/{acked}"))?;
        }
        if !self.columns.is_empty() {
            let kept = self.kept_aside.map_or_else(|| "?".to_owned(), |kept| kept.to_string());
            let unknown: u64 = self.columns.iter().map(|column| column.unknown).sum();
            let not_stored: u64 = self.columns.iter().map(|column| column.not_stored).sum();
            let gap = self.gap_ms as f64 / 1e3;
            write!(f, "aside {kept}, told not stored {not_stored}, unknown {unknown}, no ack for {gap:.1} s")?;
        }
        for reason in &self.reasons {
            write!(f, "\n    {reason}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use flotilla_checkers::{Ack, Delivery, Dump, EventKind, Operation, QueueKey, Recorder};

    use super::*;
    use crate::judge::judge;
    use crate::workload::CallCounts;

    const S: u64 = 1_000_000_000;

    /// A story of one message for each column before the fault, and one after it; those named in `lost` are gone.
    fn story(cell: &Cell, lost: &[&str], kept_aside: u64, kept_up_to: Option<u64>) -> CellAccount {
        let (mut recorder, queue) = (Recorder::default(), QueueKey::new("chaos", 0));
        let mut offset = 0;
        let mut send = |recorder: &mut Recorder, at: u64, number: u64, id: String| {
            let level = cell.settings(1).levels.of_sender(number - 1);
            let early = level.ack == ASYNC;
            let ack = Ack {
                term: Some(1),
                leader: Some(1),
                log_index: Some(at / S),
                early,
                ..Ack::at(queue.clone(), offset)
            };
            let (process, operation) =
                (format!("producer-{number}"), |ack| Operation::Send { message_id: id.clone(), ack });
            recorder.record(at, &process, EventKind::Invoke, operation(None));
            recorder.record(at + 1, &process, EventKind::Ok, operation(Some(ack)));
            if lost.contains(&id.as_str()) {
                // Its place is given to the next one.
                return None;
            }
            offset += 1;
            Some(Delivery::new("drain-1", queue.clone(), offset - 1, id))
        };
        let mut seen = Vec::new();
        let columns = if cell.replicas == 1 { 4 } else { 6 };
        for number in 1..=columns {
            seen.extend(send(&mut recorder, number * S, number, format!("before-{number}")));
        }
        for number in 1..=columns {
            seen.extend(send(&mut recorder, (50 + number) * S, number, format!("after-{number}")));
        }
        let consumed = seen.iter().map(|delivery| Delivery { consumer: "consumer-1".into(), ..delivery.clone() });
        recorder.record(70 * S, "consumer-1", EventKind::Ok, Operation::Receive { deliveries: consumed.collect() });
        recorder.record(70 * S, "drain-1", EventKind::Ok, Operation::Receive { deliveries: seen });
        for replica in 1..=cell.replicas {
            let dump = Dump { replica, applied_index: 9, digest: "d".into(), queues: Vec::new() };
            recorder.record(80 * S, "harness", EventKind::Ok, Operation::Dump(dump));
        }
        let fault = |step: &crate::plan::Step| FaultRecord {
            number: step.number,
            kind: step.kind,
            targets: vec![1],
            started_ns: 19 * S,
            struck_ns: 20 * S,
            healed_ns: 40 * S,
            disturbed: None,
            problem: None,
            notes: Vec::new(),
            kept_up_to,
        };
        let mut settings = cell.settings(1);
        settings.duration_ms = 1;
        let record = RunRecord {
            settings,
            faults: cell.plan.steps.iter().map(fault).collect(),
            skipped: Vec::new(),
            incidents: Vec::new(),
            calls: CallCounts::default(),
            kept_aside: Some(kept_aside),
            data_bytes: 0,
            load_started_ns: 0,
            load_ended_ns: 60 * S,
            total_ms: 1,
        };
        let report = judge(recorder.events(), &record).unwrap();
        cell.account(recorder.events(), &record, &report).unwrap()
    }

    fn cell(name: &str) -> Cell {
        Cell::named(name).pop().unwrap()
    }

    #[test]
    fn a_tail_must_be_lost_where_the_plan_makes_one_and_counted_where_somebody_can() {
        // Senders 1 to 6 ask for async, majority, sync with flush async, then the same with flush sync.
        let killed = cell("leader-killed-3");
        assert_eq!(story(&killed, &["before-1", "before-4"], 2, None).outcome, Outcome::Holds);
        let silent = story(&killed, &[], 0, None);
        assert_eq!((silent.outcome, silent.reasons.len()), (Outcome::NotShown, 2), "{silent}");
        let uncounted = story(&killed, &["before-1", "before-4"], 1, None);
        assert_eq!(uncounted.outcome, Outcome::Broken, "{uncounted}");
        let gone = cell("leader-gone-3");
        assert_eq!(story(&gone, &["before-1", "before-4"], 0, None).outcome, Outcome::Holds, "nobody is left to count");
    }

    #[test]
    fn a_loss_where_a_promise_says_none_is_broken_whatever_else_is_lost_by_right() {
        for (name, lost) in [
            ("leader-gone-3", ["before-1", "before-4", "before-2"]),
            ("os-all-without-power-3", ["before-1", "before-2", "before-5"]),
            ("leader-without-power-1", ["before-1", "before-3", "before-1"]),
        ] {
            let account = story(&cell(name), &lost, 9, None);
            assert_eq!(account.outcome, Outcome::Broken, "{account}");
        }
        let by_right = story(&cell("os-all-without-power-3"), &["before-1", "before-2"], 0, None);
        assert_eq!(by_right.outcome, Outcome::Holds, "{by_right}");
    }

    #[test]
    fn a_survivor_loses_exactly_what_it_lacks() {
        let cell = Cell { must_lose: Vec::new(), ..cell("majority-gone-3") };
        let lost = ["before-4", "before-5", "before-6"];
        assert_eq!(story(&cell, &lost, 0, Some(3)).outcome, Outcome::Holds);
        let more = story(&cell, &lost, 0, Some(4));
        assert!(more.reasons.iter().any(|reason| reason.contains("the survivor had it")), "{more}");
        let fewer = story(&cell, &lost[1..], 0, Some(3));
        assert!(fewer.reasons.iter().any(|reason| reason.contains("nobody had it")), "{fewer}");
        let unordered = story(&cell, &lost, 0, None);
        assert_eq!(unordered.outcome, Outcome::Broken, "{unordered}");
    }

    #[test]
    fn where_everything_is_lost_everything_must_be_and_nothing_that_came_later() {
        let cell = cell("leader-gone-1");
        let all = ["before-1", "before-2", "before-3", "before-4"];
        let account = story(&cell, &all, 0, None);
        assert_eq!(account.outcome, Outcome::Holds, "{account}");
        assert_eq!(story(&cell, &all[1..], 0, None).outcome, Outcome::Broken);
        let too_much = [&all[..], &["after-1"]].concat();
        assert_eq!(story(&cell, &too_much, 0, None).outcome, Outcome::Broken);
    }

    #[test]
    fn an_acknowledgement_while_the_group_must_wait_is_broken() {
        let mut cell = cell("majority-away-3");
        assert_eq!(story(&cell, &[], 0, None).outcome, Outcome::Holds);
        cell.plan.steps[0].hold_ms = 40_000;
        let account = story(&cell, &[], 0, None);
        assert!(account.reasons[0].contains("6 sends were acknowledged while"), "{account}");
    }
}
