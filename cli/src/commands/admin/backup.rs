//! `flotilla admin backup`: has a replica copy its data while it serves, and shows how far it is.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use clap::Subcommand;
use flotilla_client::{AdminClient, FromReplica};
use flotilla_proto::admin::{BackupReply, BackupRequest, BackupState};
use flotilla_runtime::Runtime;
use serde::Serialize;

use super::{print, while_doing};
use crate::failure::Failure;
use crate::progress::Progress;
use crate::quantity::{format_bytes, parse_bytes};
use crate::table::Table;

/// How often the replica is asked how far it is.
const LOOK_PAUSE: Duration = Duration::from_millis(200);
/// So many times in a row it may not answer.
const SILENCE_MAX: u32 = 50;

#[derive(Debug, Subcommand)]
pub enum BackupCommand {
    /// Copy a replica's data into a new folder of its backup_dir, on its machine, and wait until that is done
    ///
    /// The replica goes on serving. All that was acknowledged by a majority before the command is in the backup. It has its name once all
    /// of it is on disk and was checked; before that, and for good if it fails, there is nothing of that name. Interrupted, the command
    /// ends and the backup does not: `list` shows how far it is, `cancel` ends it.
    Create {
        /// The folder's name: letters, digits, `-`, `_` and `.`
        name: String,
        /// Where the replica serves clients; a follower spares the leader the work [default: a follower that has a backup_dir]
        #[arg(long, value_name = "HOST:PORT")]
        replica: Option<String>,
        /// Bytes that it reads a second at most, such as 16MiB; at least 1MiB [default: the replica's backup_bytes_per_s]
        #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
        bytes_per_s: Option<u64>,
    },
    /// Give up a backup that is being made
    Cancel {
        /// Its name
        name: String,
        /// Where the replica that makes it serves clients [default: whichever makes one of that name]
        #[arg(long, value_name = "HOST:PORT")]
        replica: Option<String>,
    },
    /// Show the newest backup of each replica since it started, and how far it is
    List,
}

/// Why there is no backup.
#[derive(Debug, thiserror::Error)]
enum BackupError {
    #[error("{address} made no backup: {failure}")]
    Failed { address: String, failure: String },
    #[error("no replica of the broker group answers: {0}")]
    NoneAnswers(String),
    #[error("no replica that answers has a folder for backups: set backup_dir")]
    NoFolder,
    #[error("there are several broker groups, {}: name one with --broker-group, or a replica with --replica", .0.join(", "))]
    ManyGroups(Vec<String>),
    #[error(
        "{address} says nothing of it any more: it started again, or makes another one; look whether its folder is there"
    )]
    Forgotten { address: String },
    #[error("no replica that answers makes a backup {0}")]
    NotMade(String),
}

#[derive(Serialize)]
struct BackupView {
    address: String,
    group: String,
    node: u64,
    dir: String,
    name: String,
    state: &'static str,
    bytes_done: u64,
    bytes: u64,
    last_index: u64,
    files: u64,
    failure: String,
}

pub async fn run(command: BackupCommand, admin: &AdminClient, json: bool, runtime: Runtime) -> Result<(), Failure> {
    match command {
        BackupCommand::Create { name, replica, bytes_per_s } => {
            let request = BackupRequest { name, bytes_per_s: bytes_per_s.unwrap_or(0), cancel: false };
            create(admin, json, &runtime, request, replica).await
        }
        BackupCommand::Cancel { name, replica } => cancel(admin, json, name, replica).await,
        BackupCommand::List => list(admin, json).await,
    }
}

async fn create(
    admin: &AdminClient,
    json: bool,
    runtime: &Runtime,
    request: BackupRequest,
    replica: Option<String>,
) -> Result<(), Failure> {
    let name = request.name.clone();
    let address = match replica {
        Some(address) => address,
        None => any_follower(admin).await?,
    };
    let begun = admin.backup(&address, request).await;
    let mut reply = begun.map_err(while_doing(format!("{address} begins no backup {name}")))?;
    let mut progress = None;
    let mut silent = 0;
    while reply.state() == BackupState::Running && reply.name == name {
        if reply.bytes > 0 {
            let progress = progress.get_or_insert_with(|| Progress::on_terminal("bytes", Some(reply.bytes), runtime));
            progress.update(reply.bytes_done, "");
        }
        runtime.sleep(LOOK_PAUSE).await;
        match admin.backup(&address, BackupRequest::default()).await {
            Ok(next) => (reply, silent) = (next, 0),
            Err(error) if silent >= SILENCE_MAX => {
                return Err(while_doing(format!("{address} says no more how far backup {name} is"))(error).into());
            }
            Err(_) => silent += 1,
        }
    }
    if reply.name != name {
        return Err(BackupError::Forgotten { address }.into());
    }
    if reply.state() == BackupState::Failed {
        return Err(BackupError::Failed { address, failure: reply.failure }.into());
    }
    let view = view_of(address, reply);
    print(json, &view, || {
        format!(
            "Backup {} of group {} is in {}/{} on the machine of replica {} ({}): {} files, {}, up to entry {}.",
            view.name,
            view.group,
            view.dir,
            view.name,
            view.node,
            view.address,
            view.files,
            format_bytes(view.bytes),
            view.last_index
        )
    })
}

async fn cancel(admin: &AdminClient, json: bool, name: String, replica: Option<String>) -> Result<(), Failure> {
    let address = match replica {
        Some(address) => address,
        None => {
            let answers = admin.backups().await.map_err(while_doing("no replica is known"))?;
            let makes = |reply: &BackupReply| reply.name == name && reply.state() == BackupState::Running;
            let found = answers.into_iter().find(|from| from.answer.as_ref().is_ok_and(makes));
            found.ok_or_else(|| BackupError::NotMade(name.clone()))?.address
        }
    };
    let request = BackupRequest { name: name.clone(), cancel: true, ..BackupRequest::default() };
    let reply = admin.backup(&address, request).await;
    let reply = reply.map_err(while_doing(format!("{address} gives up no backup {name}")))?;
    let view = view_of(address, reply);
    print(json, &view, || format!("{} was told to give up backup {}.", view.address, view.name))
}

/// A replica with a folder for backups that does not lead; one that leads where there is no other.
async fn any_follower(admin: &AdminClient) -> Result<String, Failure> {
    let answers = admin.cluster_status().await.map_err(while_doing("no replica is known"))?;
    let (mut leads, mut silent) = (BTreeMap::new(), Vec::new());
    for FromReplica { address, answer } in answers {
        match answer {
            Ok(status) => drop(leads.insert(address, status.can_write)),
            Err(error) => silent.push(format!("{address}: {error}")),
        }
    }
    if leads.is_empty() {
        return Err(BackupError::NoneAnswers(silent.join("; ")).into());
    }
    let answers = admin.backups().await.map_err(while_doing("no replica is known"))?;
    let answered = answers.into_iter().filter_map(|FromReplica { address, answer }| Some((address, answer.ok()?)));
    let answered: Vec<(String, BackupReply)> = answered.collect();
    let groups: BTreeSet<&String> = answered.iter().map(|(_, reply)| &reply.group).collect();
    if groups.len() > 1 {
        return Err(BackupError::ManyGroups(groups.into_iter().cloned().collect()).into());
    }
    let able = answered.into_iter().filter(|(_, reply)| !reply.dir.is_empty()).map(|(address, _)| address);
    let able = able.map(|address| (leads.get(&address).copied().unwrap_or(true), address));
    Ok(able.min().ok_or(BackupError::NoFolder)?.1)
}

async fn list(admin: &AdminClient, json: bool) -> Result<(), Failure> {
    let answers = admin.backups().await.map_err(while_doing("no replica is known"))?;
    let answered = answers.into_iter().filter_map(|FromReplica { address, answer }| Some((address, answer.ok()?)));
    let views: Vec<BackupView> = answered.map(|(address, reply)| view_of(address, reply)).collect();
    print(json, &views, || {
        let mut table =
            Table::new(["REPLICA", "ADDRESS", "FOLDER", "NEWEST", "STATE", "BYTES", "LAST ENTRY", "FAILURE"]);
        for view in &views {
            table.row([
                format!("{}/{}", view.group, view.node),
                view.address.clone(),
                view.dir.clone(),
                view.name.clone(),
                view.state.to_owned(),
                format!("{} of {}", view.bytes_done, view.bytes),
                view.last_index.to_string(),
                view.failure.clone(),
            ]);
        }
        table.to_string()
    })
}

fn view_of(address: String, reply: BackupReply) -> BackupView {
    let state = match reply.state() {
        BackupState::Unspecified => "none",
        BackupState::Running => "running",
        BackupState::Done => "done",
        BackupState::Failed => "failed",
    };
    BackupView {
        address,
        state,
        group: reply.group,
        node: reply.node,
        dir: reply.dir,
        name: reply.name,
        bytes_done: reply.bytes_done,
        bytes: reply.bytes,
        last_index: reply.last_index,
        files: reply.files,
        failure: reply.failure,
    }
}
