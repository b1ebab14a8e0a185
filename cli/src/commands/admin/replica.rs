//! `flotilla admin replica`: who is in the broker group.

use std::time::Duration;

use clap::Subcommand;
use flotilla_client::{AdminClient, AdminError};
use flotilla_proto::admin::{ListReplicasReply, ReplicaChange, ReplicaRow};
use flotilla_runtime::Runtime;
use serde::Serialize;

use super::{print, while_doing};
use crate::failure::Failure;
use crate::progress::Progress;
use crate::quantity::{format_bytes, parse_duration};
use crate::table::Table;

/// Pause between two looks at how far the group is.
const LOOK_PAUSE: Duration = Duration::from_millis(200);
/// Changes that cannot be asked for in a row, because nobody leads, before the command gives up.
const FAILURES_MAX: u32 = 20;

#[derive(Debug, Subcommand)]
pub enum ReplicaCommand {
    /// Show the group's members: who votes, who only follows, and how far behind each is
    List,
    /// Take in a new replica, fill it, and give it a vote
    ///
    /// Start the process first, with an empty data directory: `flotilla broker --join --node 4 --replica
    /// 4=CLIENT_HOST:PORT,PEER_HOST:PORT …`. It waits until this command names it. It gets the log without a vote, and votes once it
    /// has caught up; nothing stops meanwhile. Repeat the command after an interruption: it goes on where it was.
    Add {
        /// The new replica's number: one that the group does not have
        #[arg(value_name = "NODE", value_parser = clap::value_parser!(u64).range(1..))]
        node: u64,
        /// Where the new replica serves its peers
        #[arg(long, value_name = "HOST:PORT")]
        address: String,
        /// Leave it without a vote; `promote` gives it one later
        #[arg(long)]
        learner: bool,
        #[command(flatten)]
        patience: Patience,
    },
    /// Give a replica a vote, once it has caught up
    Promote {
        /// Its number
        #[arg(value_name = "NODE", value_parser = clap::value_parser!(u64).range(1..))]
        node: u64,
        #[command(flatten)]
        patience: Patience,
    },
    /// Take a replica out of the group; if it leads it hands over first
    ///
    /// Refused if too few of the others are there to go on without it. Stop its process afterwards. Its number is free again
    /// for a replica with an empty data directory.
    Remove {
        /// Its number
        #[arg(value_name = "NODE", value_parser = clap::value_parser!(u64).range(1..))]
        node: u64,
        #[command(flatten)]
        patience: Patience,
    },
    /// Put a new replica in the place of a dead one: `add` of the one, then `remove` of the other
    Replace {
        /// The number of the one that goes
        #[arg(value_name = "OLD", value_parser = clap::value_parser!(u64).range(1..))]
        old: u64,
        /// The number of the one that comes
        #[arg(value_name = "NEW", value_parser = clap::value_parser!(u64).range(1..))]
        new: u64,
        /// Where the new replica serves its peers
        #[arg(long, value_name = "HOST:PORT")]
        address: String,
        #[command(flatten)]
        patience: Patience,
    },
}

#[derive(Debug, clap::Args)]
pub struct Patience {
    /// How long to wait for it; the group goes on with it anyhow
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = parse_duration)]
    timeout: Duration,
}

#[derive(Serialize)]
struct GroupView {
    group: String,
    leader: u64,
    last_index: u64,
    changing: bool,
    replicas: Vec<RowView>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

#[derive(Serialize)]
struct RowView {
    node: u64,
    role: &'static str,
    client_address: String,
    peer_address: String,
    incarnation: String,
    matched_index: Option<u64>,
    lag_entries: u64,
    lag_bytes: u64,
    silent_ms: Option<u64>,
}

/// It is not done, and may be asked for again.
#[derive(Debug, thiserror::Error)]
#[error("{what} is not done after {} s{note}: repeat the command, it goes on where it was", timeout.as_secs())]
struct NotDone {
    what: String,
    timeout: Duration,
    note: String,
}

pub async fn run(command: ReplicaCommand, admin: &AdminClient, json: bool, runtime: Runtime) -> Result<(), Failure> {
    let steps = |patience: &Patience| Steps {
        admin,
        deadline: runtime.now() + patience.timeout,
        timeout: patience.timeout,
        runtime: &runtime,
    };
    match command {
        ReplicaCommand::List => {}
        ReplicaCommand::Add { node, address, learner, patience } => {
            let steps = steps(&patience);
            steps.ask(ReplicaChange::Add, node, &address).await?;
            if !learner {
                steps.promote(node).await?;
            }
        }
        ReplicaCommand::Promote { node, patience } => steps(&patience).promote(node).await?,
        ReplicaCommand::Remove { node, patience } => steps(&patience).ask(ReplicaChange::Remove, node, "").await?,
        ReplicaCommand::Replace { old, new, address, patience } => {
            let steps = steps(&patience);
            steps.ask(ReplicaChange::Add, new, &address).await?;
            steps.promote(new).await?;
            steps.ask(ReplicaChange::Remove, old, "").await?;
        }
    }
    let group = admin.list_replicas().await.map_err(while_doing("the group's members are not known"))?;
    let view = view_of(group);
    print(json, &view, || table_of(&view))
}

/// One command's steps.
struct Steps<'a> {
    admin: &'a AdminClient,
    deadline: flotilla_runtime::Instant,
    timeout: Duration,
    runtime: &'a Runtime,
}

impl Steps<'_> {
    /// Asks for a change until it is done.
    async fn ask(&self, change: ReplicaChange, node: u64, address: &str) -> Result<(), Failure> {
        let what = match change {
            ReplicaChange::Add => format!("taking in replica {node}"),
            ReplicaChange::Promote => format!("giving replica {node} a vote"),
            ReplicaChange::Remove | ReplicaChange::Unspecified => format!("taking out replica {node}"),
        };
        let (mut failures, mut note) = (0, String::new());
        while self.runtime.now() < self.deadline {
            match self.admin.change_replica(change, node, address).await {
                Ok(reply) if reply.done => {
                    if !reply.note.is_empty() {
                        eprintln!("{}", reply.note);
                    }
                    return Ok(());
                }
                Ok(reply) => note = if reply.note.is_empty() { note } else { format!(" ({})", reply.note) },
                // Nobody leads, or the leader ended in the middle: the next one goes on.
                Err(error) if !matches!(error, AdminError::Rejected { .. }) && failures < FAILURES_MAX => {
                    failures += 1;
                    note = format!(" ({error})");
                }
                Err(error) => return Err(while_doing(format!("{what} is refused"))(error).into()),
            }
            self.runtime.sleep(LOOK_PAUSE).await;
        }
        Err(NotDone { what, timeout: self.timeout, note }.into())
    }

    /// Has a replica become a voter, and shows how far it is.
    async fn promote(&self, node: u64) -> Result<(), Failure> {
        self.ask(ReplicaChange::Promote, node, "").await?;
        let mut progress: Option<Progress> = None;
        let mut note = String::new();
        while self.runtime.now() < self.deadline {
            if let Ok(group) = self.admin.list_replicas().await {
                let row = group.replicas.iter().find(|row| row.node == node);
                if row.is_some_and(|row| row.voter) && !group.changing {
                    return Ok(());
                }
                let bar =
                    progress.get_or_insert_with(|| Progress::start("filling", Some(group.last_index), self.runtime));
                if let Some(row) = row {
                    note = format!("{} entries, {} behind", row.lag_entries, format_bytes(row.lag_bytes));
                    bar.update(row.matched_index.unwrap_or(0), &note);
                }
            }
            self.runtime.sleep(LOOK_PAUSE).await;
        }
        let what = format!("giving replica {node} a vote");
        Err(NotDone { what, timeout: self.timeout, note: format!(" ({note})") }.into())
    }
}

fn role_of(row: &ReplicaRow) -> &'static str {
    match (row.leader, row.voter, row.voter_wanted) {
        (true, ..) => "leader",
        (false, true, _) => "voter",
        (false, false, true) => "filling",
        (false, false, false) => "learner",
    }
}

fn view_of(group: ListReplicasReply) -> GroupView {
    let voters = group.replicas.iter().filter(|row| row.voter).count();
    let mut warnings = Vec::new();
    if voters > 0 && voters % 2 == 0 {
        warnings.push(format!(
            "{voters} voters stand the loss of {}, as {} would: an odd number is better",
            (voters - 1) / 2,
            voters - 1
        ));
    }
    let rows = group.replicas.into_iter().map(|row| RowView {
        role: role_of(&row),
        node: row.node,
        client_address: row.client_address,
        peer_address: row.peer_address,
        incarnation: row.incarnation,
        matched_index: row.matched_index,
        lag_entries: row.lag_entries,
        lag_bytes: row.lag_bytes,
        silent_ms: row.silent_ms,
    });
    GroupView {
        group: group.group,
        leader: group.leader,
        last_index: group.last_index,
        changing: group.changing,
        replicas: rows.collect(),
        warnings,
    }
}

fn table_of(view: &GroupView) -> String {
    let mut table = Table::new(["NODE", "ROLE", "CLIENTS", "PEERS", "HAS", "BEHIND", "HEARD", "DIRECTORY"]);
    for row in &view.replicas {
        let heard = row.silent_ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms} ms ago"));
        table.row([
            row.node.to_string(),
            row.role.to_owned(),
            row.client_address.clone(),
            row.peer_address.clone(),
            row.matched_index.map_or_else(|| "-".to_owned(), |index| index.to_string()),
            format!("{} entries, {}", row.lag_entries, format_bytes(row.lag_bytes)),
            heard,
            row.incarnation.clone(),
        ]);
    }
    let mut text = table.to_string();
    if view.changing {
        text.push_str("\na change is under way\n");
    }
    for warning in &view.warnings {
        text.push_str(&format!("\n{warning}\n"));
    }
    text
}
