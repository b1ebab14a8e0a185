//! Holds a stored run against what the cluster promises. Looks at nothing but the files, so it can be asked again.

use std::collections::{BTreeMap, BTreeSet};

use flotilla_checkers::{
    Delivery, Dump, Event, Finding, History, HistoryError, Operation, Property, QueueDump, QueueKey, Report as Counts,
    Send, SlotDump, check, dead_letters_complete, early_ack, never_early, no_lost_ack, one_holder,
    order_per_message_group, replicas_agree,
};

use crate::availability::{by_kind, outages};
use crate::drain::DRAIN_PROCESS;
use crate::errands::{DEAD_LETTERS, DOOMED, DOOMED_DELIVERIES_MAX};
use crate::levels::takes_what_was_written;
use crate::nemesis::Class;
use crate::parts::{self, Parts};
use crate::report::{Conclusion, Report};
use crate::run_record::RunRecord;
use crate::scenario::Seen;
use crate::workload::INVISIBLE;

/// Brokers pull log time towards the wall clock by so much.
const LOG_TIME_FASTER_PERMILLE: u64 = 50;

/// Judges a run. Fails only if the history contradicts itself.
///
/// # Errors
/// [`HistoryError`] if events cannot be paired.
pub fn judge(events: &[Event], record: &RunRecord) -> Result<Report, HistoryError> {
    let mut history = History::from_events(events)?;
    let replicas = std::mem::take(&mut history.dumps);
    // Dead letters are messages that stand a second time, as they should.
    let (dead, deliveries): (Vec<Delivery>, Vec<Delivery>) = std::mem::take(&mut history.deliveries)
        .into_iter()
        .partition(|seen| seen.queue.topic.starts_with(DEAD_LETTERS));
    let dead: BTreeSet<String> = dead.into_iter().map(|letter| letter.message_id).collect();
    history.deliveries = deliveries;
    let is_doomed = |send: &Send| send.ack().is_some_and(|ack| ack.queue.topic == DOOMED);
    // Of the load: how little of it proves nothing is known of that only.
    let of_load = history.sends.iter().filter(|send| send.ack().is_some() && !is_doomed(send));
    let mut acked_ns: Vec<u64> = of_load.map(|send| send.completed_ns).collect();
    acked_ns.sort_unstable();
    let (mut drained, consumed): (Vec<Delivery>, Vec<Delivery>) =
        history.deliveries.iter().cloned().partition(|delivery| delivery.consumer.starts_with(DRAIN_PROCESS));
    let was_read = !drained.is_empty();
    // What was let go on purpose stands where a consumer saw it before. What nobody saw is lost all the same.
    let begins: BTreeMap<&QueueKey, u64> = history.begins.iter().map(|begin| (&begin.queue, begin.offset)).collect();
    let is_let_go = |seen: &&Delivery| begins.get(&seen.queue).is_some_and(|begin| seen.offset < *begin);
    drained.extend(consumed.iter().filter(is_let_go).cloned());
    let parts = Parts::of(&history, dead.len() as u64);
    let placed_later = parts::placed_later(&history.tasks);
    let is_load = |message_id: &str| !placed_later.contains(message_id);
    let sends: Vec<Send> = history.sends.iter().filter(|send| is_load(&send.message_id)).cloned().collect();
    let came: Vec<Delivery> = consumed.iter().filter(|seen| is_load(&seen.message_id)).cloned().collect();
    let counts = Counts::of(&sends, &came);
    let answered_early = history.sends.iter().filter(|send| send.ack().is_some_and(|ack| ack.early)).count() as u64;

    // Replicas tell their digests, which cover every queue's content; the content itself was read once, from the group.
    let was_drained = was_read || counts.acked == 0;
    let mut early_lost = 0;
    if was_drained {
        let stands = drained.iter().chain(&consumed).map(|delivery| delivery.message_id.as_str());
        early_lost = early_ack::set_aside(&mut history.sends, stands).len() as u64;
        history.dumps = vec![content_of(&drained)];
    }
    let mut findings = check(&history).findings;
    let mut add = |property, details: Vec<String>| {
        findings.extend(details.into_iter().map(|detail| Finding { property, detail }));
    };
    let disorders = order_per_message_group::find(&history.sends, &consumed);
    add(Property::OrderPerMessageGroup, texts(disorders));
    let held_ns = one_holder::held_ns(INVISIBLE, LOG_TIME_FASTER_PERMILLE);
    let held: Vec<Delivery> = consumed.iter().filter(|seen| seen.queue.topic != DOOMED).cloned().collect();
    add(Property::OneHolder, texts(one_holder::find(&history.sends, &held, held_ns)));
    let stored: BTreeSet<&str> = drained.iter().map(|seen| seen.message_id.as_str()).collect();
    let stored = was_drained.then_some(&stored);
    let untimely = never_early::find(&history.tasks, &consumed, clocks_wrong_ns(record), stored);
    add(Property::NeverEarly, texts(untimely));
    if was_drained {
        let History { sends, tasks, .. } = &history;
        let misplaced = dead_letters_complete::find(DOOMED, DOOMED_DELIVERIES_MAX, sends, tasks, &consumed, &dead);
        add(Property::DeadLettersComplete, texts(misplaced));
    }
    add(Property::ReplicasAgree, texts(replicas_agree::find(&replicas, true)));
    let has_ended = replicas.len() as u64 == record.settings.replicas;
    if was_drained {
        // Every consumer group gets every message, not only the one of the last look; but for what a group gave up after
        // answers that got lost.
        let sends: Vec<Send> = history.sends.iter().filter(|send| !is_doomed(send)).cloned().collect();
        add(Property::NoLostAck, texts(no_lost_ack::among_deliveries(&sends, &consumed)));
    }

    let mut incidents = record.incidents.clone();
    if !has_ended {
        incidents.push(format!(
            "only {} of {} replicas tell their state at the end: what they hold cannot be compared",
            replicas.len(),
            record.settings.replicas
        ));
    }
    if !was_drained {
        incidents.push("nothing was read at the end: what is lost cannot be said".to_owned());
    }

    let is_counted = !record.faults.iter().any(|fault| takes_what_was_written(fault.kind));
    if let Some(kept_aside) = record.kept_aside.filter(|kept| is_counted && early_lost > *kept) {
        incidents.push(format!(
            "{early_lost} messages that were acknowledged early are gone, the replicas know of {kept_aside}"
        ));
    }
    let outages = outages(&acked_ns, &record.faults, record.load_ended_ns);
    let terms: Vec<u64> = history.leaders.iter().map(|seen| seen.term).collect();
    let elections = terms.iter().max().zip(terms.iter().min()).map_or(0, |(max, min)| max - min);
    let under_load = elections_by(events, record.load_ended_ns);
    let gap_ms = outages.iter().map(|outage| outage.gap_ms).max().unwrap_or_default();
    let after_heal_ms = outages.iter().filter_map(|outage| outage.after_heal_ms).max().unwrap_or_default();
    let notes = record.faults.iter().flat_map(|fault| &fault.notes);
    let ends = notes.filter(|note| note.contains("ended by itself")).count() as u64;
    let lead_moves_ms = lead_moves_ms(events, record);
    let data_bytes = record.data_bytes;
    let seen = Seen { gap_ms, after_heal_ms, elections: under_load, ends, lead_moves_ms, data_bytes };
    incidents.extend(record.settings.limits.passed(&seen));
    let mut void = void_reasons(&acked_ns, record);
    void.extend(parts::void_reasons(&history.tasks));
    let conclusion = match (findings.is_empty() && incidents.is_empty(), void.is_empty()) {
        (false, _) => Conclusion::Broken,
        (true, false) => Conclusion::Void,
        (true, true) => Conclusion::Good,
    };
    Ok(Report {
        conclusion,
        settings: record.settings.clone(),
        sent: counts.sent,
        acked: counts.acked,
        answered_early,
        early_lost,
        kept_aside: record.kept_aside,
        unknown: counts.unknown,
        unknown_stored: counts.recovered,
        not_stored: counts.refused,
        received: counts.received,
        redelivered: counts.redelivered,
        calls: record.calls.clone(),
        parts,
        elections,
        availability: by_kind(&outages),
        outages,
        faults: record.faults.clone(),
        skipped: record.skipped.clone(),
        applied_index: replicas.first().map_or(0, |dump| dump.applied_index),
        digest: replicas.first().map(|dump| dump.digest.clone()).unwrap_or_default(),
        findings,
        incidents,
        void,
        load_started_ns: record.load_started_ns,
        load_ms: record.load_ended_ns.saturating_sub(record.load_started_ns) / 1_000_000,
        total_ms: record.total_ms,
        command: record.settings.command(),
    })
}

/// Terms after the first one that were seen until then.
fn elections_by(events: &[Event], end_ns: u64) -> u64 {
    let terms = events.iter().filter(|event| event.time_ns <= end_ns).filter_map(|event| match &event.operation {
        Operation::Leader(seen) => Some(seen.term),
        _ => None,
    });
    let (min, max) = terms.fold((u64::MAX, 0), |(min, max), term| (min.min(term), max.max(term)));
    max.saturating_sub(min)
}

/// The longest time from a fault until a replica led that it had not struck; until the load's end if none did.
fn lead_moves_ms(events: &[Event], record: &RunRecord) -> u64 {
    let done = record.faults.iter().filter(|fault| fault.problem.is_none());
    let took_ms = done.map(|fault| {
        let moved = events.iter().find_map(|event| match &event.operation {
            Operation::Leader(seen) => {
                let is_other = event.time_ns > fault.started_ns && !fault.targets.contains(&seen.leader);
                is_other.then_some(event.time_ns)
            }
            _ => None,
        });
        moved.unwrap_or(record.load_ended_ns).saturating_sub(fault.started_ns) / 1_000_000
    });
    took_ms.max().unwrap_or_default()
}

/// Clocks of one machine, and what is lost in whole milliseconds.
const CLOCKS_WRONG_NS: u64 = 5_000_000;

/// By how much log time may be ahead of the harness's clock. A replica that starts with a wrong wall clock, and has seen no
/// other's time, takes it for log time: then nothing can be said.
fn clocks_wrong_ns(record: &RunRecord) -> u64 {
    let mut done = record.faults.iter().filter(|fault| fault.problem.is_none());
    if done.any(|fault| fault.kind.card().class == Class::Clock) { u64::MAX } else { CLOCKS_WRONG_NS }
}

/// Fewer acknowledged messages than one in so many prove nothing.
const ACKED_ONE_IN: u64 = 20;

/// Why a run without findings proves nothing.
fn void_reasons(acked_ns: &[u64], record: &RunRecord) -> Vec<String> {
    let mut reasons = Vec::new();
    let acked = acked_ns.len() as u64;
    let asked = record.settings.rate * record.settings.duration_ms / 1_000;
    if acked == 0 {
        reasons.push("nothing was acknowledged".to_owned());
    } else if acked * ACKED_ONE_IN < asked {
        reasons.push(format!("only {acked} messages were acknowledged where {asked} should have been sent"));
    }
    let done = record.faults.iter().filter(|fault| fault.problem.is_none());
    let was_asked = !record.settings.faults.is_empty() || !record.skipped.is_empty();
    if was_asked && done.clone().count() == 0 {
        reasons.push("no fault was done".to_owned());
    } else if was_asked && done.clone().all(|fault| fault.disturbed == Some(0)) {
        reasons.push("no fault had any effect".to_owned());
    }
    if let Some(healed_ns) = done.map(|fault| fault.healed_ns).max()
        && acked_ns.last().is_none_or(|last| *last <= healed_ns)
    {
        reasons.push("nothing was acknowledged after the last fault was healed".to_owned());
    }
    reasons
}

/// What stands in the queues by the drain's word, or stood there before it was let go, as the dump of a replica 0 that stands
/// for the group. Where two things were seen at one offset the first stands here; the checkers hold the other against it.
fn content_of(drained: &[Delivery]) -> Dump {
    let mut queues: BTreeMap<&QueueKey, BTreeMap<u64, &str>> = BTreeMap::new();
    for delivery in drained {
        queues.entry(&delivery.queue).or_default().entry(delivery.offset).or_insert(&delivery.message_id);
    }
    let slot = |(offset, message_id): (u64, &str)| SlotDump {
        offset,
        message_id: message_id.to_owned(),
        log_index: 0,
        ordinal: 0,
    };
    let queues = queues.into_iter().map(|(queue, slots)| QueueDump {
        queue: queue.clone(),
        // What was let go counts as well, so a queue begins at 0.
        offset_min: 0,
        slots: slots.into_iter().map(slot).collect(),
    });
    Dump { replica: 0, applied_index: 0, digest: String::new(), queues: queues.collect() }
}

fn texts(found: Vec<impl ToString>) -> Vec<String> {
    found.iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use flotilla_checkers::{Ack, EventKind, Leadership, QueueBegin, Recorder};

    use super::*;
    use crate::conductor::FaultRecord;
    use crate::levels::Levels;
    use crate::nemesis::FaultKind;
    use crate::run_record::Settings;
    use crate::scenario::Limits;
    use crate::workload::CallCounts;

    fn queue() -> QueueKey {
        QueueKey::new("chaos", 0)
    }

    fn send(recorder: &mut Recorder, at: u64, id: &str, offset: u64) {
        let ack = Some(Ack { term: Some(1), leader: Some(1), ..Ack::at(queue(), offset) });
        recorder.record(at, "p", EventKind::Invoke, Operation::Send { message_id: id.into(), ack: None });
        recorder.record(at + 1, "p", EventKind::Ok, Operation::Send { message_id: id.into(), ack });
    }

    fn receive(recorder: &mut Recorder, process: &str, seen: &[(u64, &str)]) {
        let deliveries = seen.iter().map(|(offset, id)| Delivery::new(process, queue(), *offset, *id)).collect();
        recorder.record(1_000, process, EventKind::Ok, Operation::Receive { deliveries });
    }

    fn dump(recorder: &mut Recorder, replica: u64, digest: &str) {
        let dump = Dump { replica, applied_index: 9, digest: digest.into(), queues: Vec::new() };
        recorder.record(2_000, "harness", EventKind::Ok, Operation::Dump(dump));
    }

    fn good() -> Recorder {
        let mut recorder = Recorder::default();
        recorder.record(1, "observer", EventKind::Ok, Operation::Leader(Leadership { term: 1, leader: 1 }));
        send(&mut recorder, 10, "1-0", 0);
        send(&mut recorder, 500, "1-1", 1);
        receive(&mut recorder, "consumer-1", &[(0, "1-0"), (1, "1-1")]);
        receive(&mut recorder, "drain-1", &[(0, "1-0")]);
        receive(&mut recorder, "drain-2", &[(1, "1-1")]);
        (1..=3).for_each(|replica| dump(&mut recorder, replica, "d"));
        recorder
    }

    fn record() -> RunRecord {
        let fault = FaultRecord {
            number: 1,
            kind: FaultKind::KillLeader,
            targets: vec![1],
            started_ns: 20,
            struck_ns: 21,
            healed_ns: 40,
            disturbed: None,
            problem: None,
            notes: Vec::new(),
            kept_up_to: None,
        };
        let settings = Settings {
            seed: 1,
            faults: vec![FaultKind::KillLeader],
            duration_ms: 1,
            rate: 1,
            replicas: 3,
            overlaps: false,
            plan_file: None,
            scenario: None,
            levels: Levels::default(),
            limits: Limits::default(),
            broker: Vec::new(),
            network: crate::NetworkMode::Proxies,
        };
        RunRecord {
            settings,
            faults: vec![fault],
            skipped: Vec::new(),
            incidents: Vec::new(),
            calls: CallCounts::default(),
            kept_aside: None,
            data_bytes: 0,
            load_started_ns: 0,
            load_ended_ns: 600,
            total_ms: 1,
        }
    }

    fn properties(recorder: &Recorder) -> Vec<Property> {
        judge(recorder.events(), &record()).unwrap().findings.into_iter().map(|finding| finding.property).collect()
    }

    #[test]
    fn a_good_run_is_good() {
        let report = judge(good().events(), &record()).unwrap();
        assert_eq!((report.conclusion, report.acked, report.availability.len()), (Conclusion::Good, 2, 1), "{report}");
    }

    #[test]
    fn an_acked_message_that_the_drain_or_the_consumers_miss_is_lost() {
        let mut recorder = good();
        send(&mut recorder, 550, "1-2", 2);
        assert_eq!(properties(&recorder), [Property::NoLostAck, Property::NothingTakenBack, Property::NoLostAck]);
        receive(&mut recorder, "drain-1", &[(2, "1-2")]);
        assert_eq!(properties(&recorder), [Property::NoLostAck]);
        receive(&mut recorder, "consumer-1", &[(2, "1-2")]);
        assert_eq!(properties(&recorder), []);
    }

    #[test]
    fn what_was_let_go_counts_if_a_consumer_saw_it_before() {
        let begins_at = |offset: u64, seen: &[(u64, &str)]| {
            let mut recorder = good();
            send(&mut recorder, 550, "1-2", 2);
            send(&mut recorder, 560, "1-3", 3);
            receive(&mut recorder, "consumer-1", &[(2, "1-2")]);
            receive(&mut recorder, "consumer-1", seen);
            let queues = vec![QueueBegin { queue: queue(), offset }];
            recorder.record(1_500, "drain-chaos", EventKind::Ok, Operation::Begins { queues });
            recorder
        };
        assert_eq!(properties(&begins_at(4, &[(3, "1-3")])), []);
        assert_eq!(properties(&begins_at(3, &[(3, "1-3")])), [Property::NoLostAck, Property::NothingTakenBack]);
        let unseen = [Property::NoLostAck, Property::NothingTakenBack, Property::NoLostAck];
        assert_eq!(properties(&begins_at(4, &[])), unseen);
    }

    #[test]
    fn an_early_acknowledgement_excuses_a_loss_that_was_counted_and_only_that() {
        let early = |is_early: bool| {
            let mut recorder = good();
            let ack = Some(Ack { early: is_early, ..Ack::at(queue(), 2) });
            recorder.record(600, "q", EventKind::Invoke, Operation::Send { message_id: "1-2".into(), ack: None });
            recorder.record(601, "q", EventKind::Ok, Operation::Send { message_id: "1-2".into(), ack });
            recorder
        };
        let mut told = record();
        told.kept_aside = Some(1);
        let report = judge(early(true).events(), &told).unwrap();
        assert_eq!((report.conclusion, report.answered_early, report.early_lost), (Conclusion::Good, 1, 1), "{report}");
        assert_eq!(judge(early(false).events(), &told).unwrap().conclusion, Conclusion::Broken);
        told.kept_aside = Some(0);
        let silent = judge(early(true).events(), &told).unwrap();
        assert!(silent.incidents[0].contains("the replicas know of 0"), "{silent}");
        told.faults[0].kind = FaultKind::PowerLossLeader;
        assert_eq!(judge(early(true).events(), &told).unwrap().conclusion, Conclusion::Good, "nobody is left to count");
        let mut seen = early(true);
        receive(&mut seen, "consumer-1", &[(2, "1-2")]);
        assert_eq!(judge(seen.events(), &told).unwrap().conclusion, Conclusion::Broken, "a consumer had it");
    }

    #[test]
    fn a_differing_digest_and_a_missing_replica_are_found() {
        let mut recorder = good();
        dump(&mut recorder, 4, "other");
        assert!(properties(&recorder).contains(&Property::ReplicasAgree));
        let events: Vec<Event> = good().events().iter().take(9).cloned().collect();
        let report = judge(&events, &record()).unwrap();
        assert_eq!((report.conclusion, report.incidents.len()), (Conclusion::Broken, 1), "{report}");
    }

    #[test]
    fn a_second_leader_of_a_term_is_found_by_what_an_ack_says() {
        let mut recorder = good();
        recorder.record(3_000, "observer", EventKind::Ok, Operation::Leader(Leadership { term: 1, leader: 2 }));
        assert_eq!(properties(&recorder), [Property::OneLeaderPerTerm]);
    }

    #[test]
    fn the_time_until_another_replica_leads_is_held_against_its_limit() {
        let mut record = record();
        record.faults[0].started_ns = 1_000_000;
        record.load_ended_ns = 90_000_000;
        let led = |recorder: &mut Recorder, at_ns, term, leader| {
            recorder.record(at_ns, "observer", EventKind::Ok, Operation::Leader(Leadership { term, leader }));
        };
        let mut recorder = Recorder::default();
        led(&mut recorder, 500_000, 1, 2);
        led(&mut recorder, 2_000_000, 2, 1);
        assert_eq!(lead_moves_ms(recorder.events(), &record), 89, "replica 1 was struck, nobody else led since");
        led(&mut recorder, 41_000_000, 3, 3);
        assert_eq!(lead_moves_ms(recorder.events(), &record), 40);
        record.settings.limits.lead_moves_ms_max = Some(39);
        assert_eq!(record.settings.limits.passed(&Seen { lead_moves_ms: 40, ..Seen::default() }).len(), 1);
    }

    #[test]
    fn a_run_that_proves_nothing_is_void() {
        let mut late = record();
        late.faults[0].healed_ns = 10_000;
        let report = judge(good().events(), &late).unwrap();
        assert_eq!(report.conclusion, Conclusion::Void, "{report}");
        let mut undone = record();
        undone.faults[0].problem = Some("refused".into());
        assert_eq!(judge(good().events(), &undone).unwrap().void, ["no fault was done"]);
        let mut idle = record();
        idle.faults[0].disturbed = Some(0);
        assert_eq!(judge(good().events(), &idle).unwrap().void, ["no fault had any effect"]);
        let mut starved = record();
        (starved.settings.rate, starved.settings.duration_ms) = (100, 1_000);
        assert_eq!(judge(good().events(), &starved).unwrap().conclusion, Conclusion::Void);
        undone.settings.faults.clear();
        assert_eq!(judge(good().events(), &undone).unwrap().conclusion, Conclusion::Good, "a control has no faults");
    }

    #[test]
    fn an_incident_is_as_bad_as_a_finding() {
        let mut wrong = record();
        wrong.incidents.push("broker 2 ended by itself".into());
        assert_eq!(judge(good().events(), &wrong).unwrap().conclusion, Conclusion::Broken);
    }
}
