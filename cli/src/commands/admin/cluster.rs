//! `flotilla admin cluster`.

use clap::Subcommand;
use flotilla_chaos::cluster::{index_text, role_text};
use flotilla_client::{AdminClient, FromReplica};
use flotilla_proto::admin::{ClusterStatusReply, Integrity};
use serde::Serialize;

use super::{print, while_doing};
use crate::failure::Failure;
use crate::table::Table;

#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Show each replica as it sees itself: who leads, and how far each is
    Status,
}

#[derive(Serialize)]
struct ReplicaView {
    address: String,
    #[serde(flatten)]
    state: Option<StateView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Serialize)]
struct StateView {
    cluster: String,
    group: String,
    node: u64,
    role: &'static str,
    term: u64,
    leader: u64,
    can_write: bool,
    last_index: Option<u64>,
    committed_index: Option<u64>,
    applied_index: Option<u64>,
    ack: String,
    flush: String,
    raft_durability: String,
    in_sync: Vec<u64>,
    lost_messages: u64,
    /// What entries mean in its group, and the most that its program supports.
    feature_level: u32,
    feature_level_max: u32,
    /// The life of its data directory.
    incarnation: String,
    /// Its broker group takes no messages.
    write_wiped: bool,
    /// What is wrong with its copy of the log, its state or its clock; none: nothing that it knows of.
    trouble: Vec<String>,
}

/// Told after the table, so that scripts see it in the exit code.
#[derive(Debug, thiserror::Error)]
#[error("{}", match .0 {
    None => "no replica takes writes now".to_owned(),
    Some(group) => format!("no replica of broker group {group} takes writes now"),
})]
struct NoLeader(Option<String>);

pub async fn run(command: ClusterCommand, admin: &AdminClient, json: bool) -> Result<(), Failure> {
    let ClusterCommand::Status = command;
    let answers = admin.cluster_status().await.map_err(while_doing("the cluster's status is not known"))?;
    let replicas: Vec<ReplicaView> = answers.into_iter().map(view_of).collect();
    print(json, &replicas, || table_of(&replicas))?;
    let states = || replicas.iter().filter_map(|replica| replica.state.as_ref());
    if !states().any(|state| state.can_write) {
        return Err(NoLeader(None).into());
    }
    let is_led = |group: &str| states().any(|state| state.group == group && state.can_write);
    match states().find(|state| !is_led(&state.group)) {
        Some(state) => Err(NoLeader(Some(state.group.clone())).into()),
        None => Ok(()),
    }
}

fn view_of(answer: FromReplica<ClusterStatusReply>) -> ReplicaView {
    let (state, error) = match answer.answer {
        Ok(status) => (Some(state_of(status)), None),
        Err(error) => (None, Some(error.to_string())),
    };
    ReplicaView { address: answer.address, state, error }
}

fn state_of(status: ClusterStatusReply) -> StateView {
    let mut trouble = status.integrity.as_ref().map(trouble_of).unwrap_or_default();
    if !status.no_member.is_empty() {
        trouble.insert(0, status.no_member);
    }
    StateView {
        role: role_text(status.role),
        cluster: status.cluster,
        group: status.group,
        node: status.node,
        term: status.term,
        leader: status.leader,
        can_write: status.can_write,
        last_index: status.last_index,
        committed_index: status.committed_index,
        applied_index: status.applied_index,
        ack: status.ack,
        flush: status.flush,
        raft_durability: status.raft_durability,
        in_sync: status.in_sync,
        lost_messages: status.lost_messages,
        feature_level: status.feature_level,
        feature_level_max: status.feature_level_max,
        incarnation: status.incarnation,
        write_wiped: status.write_wiped,
        trouble,
    }
}

fn note_of(state: &StateView) -> String {
    let mut notes = Vec::new();
    if state.write_wiped {
        notes.push("write permission wiped".to_owned());
    }
    if state.can_write {
        let in_sync: Vec<String> = state.in_sync.iter().map(u64::to_string).collect();
        notes.push(format!("takes writes, answers at {} with {} flush", state.ack, state.flush));
        notes.push(format!("keep up: {}", in_sync.join(" ")));
    }
    if state.raft_durability == "os" {
        notes.push("confirms before its disk".to_owned());
    }
    if state.feature_level != state.feature_level_max {
        notes.push(format!("feature level {}, its program supports {}", state.feature_level, state.feature_level_max));
    }
    if state.lost_messages > 0 {
        notes.push(format!("async tail lost: {} messages", state.lost_messages));
    }
    notes.extend(state.trouble.iter().cloned());
    notes.join("; ")
}

fn trouble_of(integrity: &Integrity) -> Vec<String> {
    let mut trouble = Vec::new();
    if integrity.damaged_segments > 0 {
        let first = integrity.damaged_first.map(|first| format!(" from {first} on")).unwrap_or_default();
        trouble.push(format!(
            "{} entries in {} segments damaged{first}",
            integrity.damaged_entries, integrity.damaged_segments
        ));
    }
    if integrity.clock_off {
        trouble.push("wall clock contradicted by most replicas".to_owned());
    }
    if !integrity.state_alarm.is_empty() {
        trouble.push(integrity.state_alarm.clone());
    }
    let unreached = integrity.unreached.iter();
    trouble.extend(unreached.map(|peer| format!("does not reach replica {}: {}", peer.node, peer.reason)));
    trouble
}

fn table_of(replicas: &[ReplicaView]) -> String {
    let mut table = Table::new(["GROUP", "NODE", "ADDRESS", "ROLE", "TERM", "LAST", "COMMITTED", "APPLIED", "NOTE"]);
    for replica in replicas {
        let address = replica.address.clone();
        match &replica.state {
            Some(state) => {
                let [last, committed, applied] =
                    [state.last_index, state.committed_index, state.applied_index].map(index_text);
                let note = note_of(state);
                let (group, node, term) = (state.group.clone(), state.node.to_string(), state.term.to_string());
                table.row([group, node, address, state.role.to_owned(), term, last, committed, applied, note]);
            }
            None => {
                let dash = || "-".to_owned();
                let error = replica.error.clone().unwrap_or_default();
                table.row([dash(), dash(), address, "unreachable".to_owned(), dash(), dash(), dash(), dash(), error]);
            }
        }
    }
    table.to_string()
}
