//! Carries out a plan: each fault at its time, healed after its hold, with a record of what really happened.

use std::sync::Arc;
use std::time::Duration;

use flotilla_checkers::{EventKind, Operation};
use flotilla_runtime::Instant;
use serde::{Deserialize, Serialize};

use crate::history_file::HistoryFile;
use crate::incidents::Incidents;
use crate::nemesis::{FaultKind, Field, FieldError};
use crate::plan::{Plan, QUIET_END_MS, Step};

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
    /// How often traffic between replicas met it, for faults of the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disturbed: Option<u64>,
    /// Why it could not be done, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Carries out the plan of a load that began at `begun`.
pub(crate) async fn conduct(
    plan: &Plan,
    begun: Instant,
    field: &mut Field,
    history: &Arc<HistoryFile>,
    incidents: &Incidents,
) -> Vec<FaultRecord> {
    let last_start = begun + Duration::from_millis(plan.duration_ms.saturating_sub(QUIET_END_MS));
    let mut records = Vec::new();
    for step in &plan.steps {
        field.runtime.sleep_until(begun + Duration::from_millis(step.at_ms)).await;
        if field.runtime.now() > last_start {
            eprintln!(
                "chaos: {} faults are left out: healing took longer than planned",
                plan.steps.len() - records.len()
            );
            break;
        }
        revive_fallen(field, incidents).await;
        let record = strike(step, field, history, incidents).await;
        eprintln!("chaos: {}", text_of(step, &record));
        records.push(record);
        if let Err(error) = field.view.await_leader(0, crate::nemesis::LEADER_TIMEOUT).await {
            incidents.add(format!("after fault {} ({}) was healed: {error}", step.number, step.kind));
        }
        revive_fallen(field, incidents).await;
    }
    records
}

async fn strike(step: &Step, field: &mut Field, history: &Arc<HistoryFile>, incidents: &Incidents) -> FaultRecord {
    let event = |kind, name: String, targets: &[u64]| {
        history.record(NEMESIS, kind, Operation::Fault { name, targets: targets.to_vec() })
    };
    let disturbed_before = field.cluster.links().map(crate::cluster::Links::disturbed);
    let started_ns = event(EventKind::Invoke, step.kind.to_string(), &[]);
    let (targets, problem) = match step.fault.hurt(field).await {
        Ok(targets) => (targets, None),
        Err(error) => (Vec::new(), Some(error)),
    };
    let outcome = if problem.is_none() { EventKind::Ok } else { EventKind::Unknown };
    let struck_ns = event(outcome, step.kind.to_string(), &targets);
    let healing = if let Some(error) = &problem {
        // An operator's call that was refused breaks no promise; a process or a group that misbehaves does.
        if !matches!(error, FieldError::Admin(_)) {
            incidents.add(format!("fault {} ({}): {error}", step.number, step.kind));
        }
        field.heal_all().await
    } else {
        field.runtime.sleep(Duration::from_millis(step.hold_ms)).await;
        let healing = step.fault.heal(field, &targets).await;
        if healing.is_ok() { healing } else { healing.and(field.heal_all().await) }
    };
    if let Err(error) = healing {
        incidents.add(format!("fault {} ({}) cannot be healed: {error}", step.number, step.kind));
    }
    let healed_ns = event(EventKind::Ok, format!("heal {}", step.kind), &targets);
    let disturbed = step.kind.needs_links().then(|| {
        let now = field.cluster.links().map_or(0, crate::cluster::Links::disturbed);
        now - disturbed_before.unwrap_or(0)
    });
    let problem = problem.map(|error| error.to_string());
    FaultRecord { number: step.number, kind: step.kind, targets, started_ns, struck_ns, healed_ns, disturbed, problem }
}

/// A replica that ended by itself is a finding; it is started again, so that the run can go on.
pub(crate) async fn revive_fallen(field: &mut Field, incidents: &Incidents) {
    let fallen = field.cluster.take_fallen();
    if fallen.is_empty() {
        return;
    }
    for (_, error) in &fallen {
        incidents.add(error.to_string());
    }
    let nodes: Vec<u64> = fallen.into_iter().map(|(node, _)| node).collect();
    if let Err(error) = field.cluster.restart_all(&nodes).await {
        incidents.add(format!("a replica that had ended by itself does not start again: {error}"));
    }
}

fn text_of(step: &Step, record: &FaultRecord) -> String {
    let seconds = |ns: u64| ns as f64 / 1e9;
    let what = match &record.problem {
        Some(problem) => format!("not done: {problem}"),
        None => format!("on {:?}", record.targets),
    };
    format!(
        "{:>3}. {} at {:.1} s {what}, healed at {:.1} s",
        step.number,
        step.kind,
        seconds(record.started_ns),
        seconds(record.healed_ns)
    )
}
