//! Carries out a plan: each fault at its time, healed after its hold, with a record of what really happened.

use std::sync::Arc;
use std::time::Duration;

use flotilla_checkers::{EventKind, Operation};
use flotilla_runtime::Instant;
use serde::{Deserialize, Serialize};

use crate::history_file::HistoryFile;
use crate::incidents::Incidents;
use crate::nemesis::{Class, FaultKind, Field};
use crate::plan::{Plan, QUIET_END_MS, Step};
use crate::unhealed::Unhealed;

const NEMESIS: &str = "nemesis";

/// A fault as it happened. Times are nanoseconds on the history's clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultRecord {
    /// Of its step in the plan.
    pub number: u64,
    /// Its name.
    pub kind: FaultKind,
    /// Whom it struck.
    pub targets: Vec<u64>,
    /// When it began to work, when it worked in full, when it was healed.
    pub started_ns: u64,
    /// See `started_ns`.
    pub struck_ns: u64,
    /// See `started_ns`.
    pub healed_ns: u64,
    /// How often traffic, files or clocks met it, for faults of which that can be counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disturbed: Option<u64>,
    /// Why it could not be done, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// What else was seen that is no wrong: replicas that refused to start on damaged data, or ended as they should.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The last entry of the replica with which the group went on alone, by an operator's order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_up_to: Option<u64>,
}

/// A fault that holds.
struct Holding<'a> {
    step: &'a Step,
    targets: Vec<u64>,
    problem: Option<String>,
    notes: Vec<String>,
    started_ns: u64,
    struck_ns: u64,
    heal_at: Instant,
    met_before: u64,
}

/// A process whose disk failed it may still be ending, so long after that was healed: a busy machine has other things to do.
const LATE_END: Duration = Duration::from_secs(10);

/// How long a replica whose healing failed may take to be whole all the same, once everything was healed.
const AFTER_ALL: Duration = Duration::from_secs(10);

/// Carries out the plan of a load that began at `begun`. Work is done one after the other; only the holds overlap.
pub(crate) async fn conduct(
    plan: &Plan,
    begun: Instant,
    field: &mut Field,
    history: &Arc<HistoryFile>,
    incidents: &Incidents,
) -> Vec<FaultRecord> {
    let last_start = begun + Duration::from_millis(plan.duration_ms.saturating_sub(QUIET_END_MS));
    let mut records = Vec::new();
    let mut holding: Vec<Holding<'_>> = Vec::new();
    let mut healed: Vec<(Instant, Vec<u64>)> = Vec::new();
    let mut unhealed = Unhealed::default();
    let mut steps = plan.steps.iter().peekable();
    loop {
        let strike_at = steps.peek().map(|step| begun + Duration::from_millis(step.at_ms));
        let next_heal = holding.iter().enumerate().min_by_key(|(_, fault)| fault.heal_at);
        let next_heal = next_heal.map(|(at, fault)| (at, fault.heal_at));
        let may_strike = steps.peek().is_some_and(|step| {
            let may_join = || holding.iter().all(|other| step.kind.may_join(other.step.kind));
            holding.is_empty() || (plan.overlaps && (plan.meets_as_written || may_join()))
        });
        match (strike_at, next_heal) {
            (None, None) => break,
            (Some(at), heal) if may_strike && heal.is_none_or(|(_, heal_at)| at <= heal_at) => {
                field.runtime.sleep_until(at).await;
                let step = steps.next().expect("it was looked at");
                if field.runtime.now() > last_start {
                    let left = 1 + steps.by_ref().count();
                    eprintln!("chaos: {left} faults are left out: healing took longer than planned");
                    continue;
                }
                healed.retain(|(until, _)| *until > field.runtime.now());
                revive_fallen(field, &excused(&holding, &healed), incidents).await;
                unhealed.look_again(field).await;
                if let Some(why) = unhealed.why_not(step.kind) {
                    let record = left_out(step, why, history.ns_of(field.runtime.now()));
                    eprintln!("chaos: {}", text_of(&record));
                    records.push(record);
                    continue;
                }
                holding.push(strike(step, field, history, incidents).await);
            }
            (_, Some((at, heal_at))) => {
                field.runtime.sleep_until(heal_at).await;
                let fault = holding.remove(at);
                if is_of_disks(&fault) {
                    healed.push((field.runtime.now() + LATE_END, fault.targets.clone()));
                }
                let record = heal(fault, field, history, incidents, &mut unhealed).await;
                eprintln!("chaos: {}", text_of(&record));
                let (number, kind) = (record.number, record.kind);
                records.push(record);
                if holding.is_empty()
                    && let Err(error) = field.view.await_leader(0, field.leader_timeout).await
                {
                    incidents.add(format!("after fault {number} ({kind}) was healed: {error}"));
                }
                revive_fallen(field, &excused(&holding, &healed), incidents).await;
            }
            (Some(_), None) => unreachable!("where nothing holds, the next fault may strike"),
        }
    }
    records.sort_by_key(|record: &FaultRecord| record.number);
    records
}

fn is_of_disks(fault: &Holding<'_>) -> bool {
    matches!(fault.step.kind.card().class, Class::Disk | Class::Control | Class::Drill)
}

/// Replicas that may end by themselves: their disks are hurt, or were until a moment ago.
fn excused(holding: &[Holding<'_>], healed: &[(Instant, Vec<u64>)]) -> Vec<u64> {
    let held = holding.iter().filter(|fault| is_of_disks(fault)).flat_map(|fault| &fault.targets);
    held.chain(healed.iter().flat_map(|(_, targets)| targets)).copied().collect()
}

/// How often anything met the faults of this kind until now.
async fn met(kind: FaultKind, field: &Field, incidents: &Incidents) -> Option<u64> {
    let card = kind.card();
    if card.class == Class::Network {
        let Some(network) = field.cluster.network() else { return Some(0) };
        return match network.disturbed().await {
            Ok(count) => Some(count),
            Err(error) => {
                incidents.add(format!("what meets {kind} cannot be counted: {error}"));
                None
            }
        };
    }
    card.needs_shim.then(|| field.cluster.shims_obeyed())
}

async fn strike<'a>(
    step: &'a Step,
    field: &mut Field,
    history: &Arc<HistoryFile>,
    incidents: &Incidents,
) -> Holding<'a> {
    let event = |kind, targets: &[u64]| {
        let operation = Operation::Fault { name: step.kind.to_string(), targets: targets.to_vec() };
        history.record(NEMESIS, kind, operation)
    };
    field.notes.clear();
    let met_before = met(step.kind, field, incidents).await.unwrap_or(0);
    let started_ns = event(EventKind::Invoke, &[]);
    let (targets, problem) = match step.fault.hurt(field).await {
        Ok(targets) => (targets, None),
        Err(error) => {
            // A call that was refused breaks no promise; a process or a group that misbehaves does.
            if !error.is_harmless() {
                incidents.add(format!("fault {} ({}): {error}", step.number, step.kind));
            }
            (Vec::new(), Some(error.to_string()))
        }
    };
    let outcome = if problem.is_none() { EventKind::Ok } else { EventKind::Unknown };
    let struck_ns = event(outcome, &targets);
    let hold = if problem.is_none() { Duration::from_millis(step.hold_ms) } else { Duration::ZERO };
    let heal_at = field.runtime.now() + hold;
    let notes = std::mem::take(&mut field.notes);
    Holding { step, targets, problem, notes, started_ns, struck_ns, heal_at, met_before }
}

async fn heal(
    fault: Holding<'_>,
    field: &mut Field,
    history: &Arc<HistoryFile>,
    incidents: &Incidents,
    unhealed: &mut Unhealed,
) -> FaultRecord {
    let Holding { step, targets, problem, mut notes, started_ns, struck_ns, met_before, .. } = fault;
    // Counted before it is healed: what waited may move on afterwards.
    let disturbed = met(step.kind, field, incidents).await.map(|now| now.saturating_sub(met_before));
    field.notes.clear();
    let healing = match &problem {
        None => match step.fault.heal(field, &targets).await {
            Ok(()) => Ok(()),
            Err(error) => {
                field.notes.push(format!("healing: {error}"));
                let whole = match field.heal_all().await {
                    Ok(()) => are_whole(field, &targets).await,
                    Err(_) => false,
                };
                if whole { Ok(()) } else { Err(error) }
            }
        },
        Some(_) => field.heal_all().await,
    };
    if let Err(error) = healing {
        incidents.add(format!("fault {} ({}) cannot be healed: {error}", step.number, step.kind));
        unhealed.add(step.number, step.kind, &[targets.clone(), field.cluster.dead_nodes()].concat());
    }
    notes.append(&mut field.notes);
    let operation = Operation::Fault { name: format!("heal {}", step.kind), targets: targets.clone() };
    let healed_ns = history.record(NEMESIS, EventKind::Ok, operation);
    let (number, kind, kept_up_to) = (step.number, step.kind, field.kept_up_to.take());
    FaultRecord { number, kind, targets, started_ns, struck_ns, healed_ns, disturbed, problem, notes, kept_up_to }
}

async fn are_whole(field: &Field, nodes: &[u64]) -> bool {
    for node in nodes {
        if !field.is_whole(*node, AFTER_ALL).await {
            return false;
        }
    }
    true
}

/// A fault that was not done, for that reason.
fn left_out(step: &Step, why: String, now_ns: u64) -> FaultRecord {
    FaultRecord {
        number: step.number,
        kind: step.kind,
        targets: Vec::new(),
        started_ns: now_ns,
        struck_ns: now_ns,
        healed_ns: now_ns,
        disturbed: None,
        problem: Some(why),
        notes: Vec::new(),
        kept_up_to: None,
    }
}

/// A replica that ended by itself is a finding, unless its disk is hurt; it is started again, so that the run can go on.
pub(crate) async fn revive_fallen(field: &mut Field, excused: &[u64], incidents: &Incidents) {
    let fallen = field.take_fallen(excused);
    if fallen.is_empty() {
        return;
    }
    for (_, error) in &fallen {
        incidents.add(error.clone());
    }
    let nodes: Vec<u64> = fallen.into_iter().map(|(node, _)| node).collect();
    if let Err(error) = field.cluster.restart_all(&nodes).await {
        incidents.add(format!("a replica that had ended by itself does not start again: {error}"));
    }
}

fn text_of(record: &FaultRecord) -> String {
    let seconds = |ns: u64| ns as f64 / 1e9;
    let what = match &record.problem {
        Some(problem) => format!("not done: {problem}"),
        None => format!("on {:?}", record.targets),
    };
    let notes: String = record.notes.iter().map(|note| format!("\n       {note}")).collect();
    format!(
        "{:>3}. {} at {:.1} s {what}, healed at {:.1} s{notes}",
        record.number,
        record.kind,
        seconds(record.started_ns),
        seconds(record.healed_ns)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nemesis::heal_test::{field, use_program};
    use crate::nemesis::{Border, Fault, Kill, Partition, Style, Victim};

    #[tokio::test]
    async fn where_a_healing_failed_no_second_replica_is_struck_and_the_run_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let mut field = field(dir.path()).await;
        // Nobody leads here, and nobody waits for it.
        field.leader_timeout = Duration::from_millis(20);
        let history = Arc::new(HistoryFile::create(&dir.path().join("history"), &field.runtime).unwrap());
        let incidents = Incidents::default();
        let kill = |nodes: &[u64]| Fault::Kill(Kill { victim: Victim::These { nodes: nodes.to_vec() } });
        let border = Border::Halves { minority: vec![1] };
        let cut = Fault::Partition(Partition { border, style: Style::Silent });
        let steps = [
            (FaultKind::KillFollower, kill(&[2])),
            (FaultKind::KillMajority, kill(&[1, 3])),
            (FaultKind::PartitionHalves, cut),
        ];
        let step = |(at, (kind, fault))| Step { number: at as u64 + 1, at_ms: 0, hold_ms: 0, kind, fault };
        let steps = steps.into_iter().enumerate().map(step).collect();
        let (seed, replicas, duration_ms) = (1, 3, 600_000);
        let (overlaps, meets_as_written, network) = (false, false, None);
        let plan = Plan { seed, replicas, duration_ms, overlaps, meets_as_written, network, steps };
        // Whoever dies from now on does not start again.
        use_program(dir.path(), "broken.sh");
        let records = conduct(&plan, field.runtime.now(), &mut field, &history, &incidents).await;
        let problems: Vec<Option<&str>> = records.iter().map(|record| record.problem.as_deref()).collect();
        let why = "left out: the healing of fault 1 (kill-follower) failed, and replica 2 is not whole since";
        assert_eq!(problems, [None, Some(why), None]);
        assert_eq!(field.cluster.dead_nodes(), [2], "the others were not struck");
        let incidents = incidents.take();
        assert!(incidents[0].starts_with("fault 1 (kill-follower) cannot be healed: "), "{incidents:?}");
        field.cluster.end().await.unwrap();
    }
}
