//! Copies this replica's data while it serves: one backup at a time, into the folder that its settings name.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use flotilla_proto::status::{Code, ok, status};
use flotilla_proto::{CallContext, admin};
use flotilla_raft_log::{BackupProgress, BackupReport, BackupRequest, LogIndex};
use flotilla_runtime::{Runtime, Task};

use crate::backup::{BackupManifest, FORMAT};
use crate::config::BACKUP_BYTES_PER_S_MIN;
use crate::lead::leader_call::lead;
use crate::lead::read_mark::ReadMark;
use crate::replica::Replica;

/// Longest name of a backup, bytes.
const NAME_BYTES_MAX: usize = 128;
/// What is not finished is in a folder with this ending.
const UNFINISHED: &str = ".unfinished";

/// The backups of a replica since it started.
#[derive(Debug, Default)]
pub struct Backups {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The newest that was asked for.
    newest: Option<Newest>,
    /// Who makes it.
    task: Option<Making>,
    /// The replica stops.
    is_closed: bool,
}

#[derive(Debug, Clone)]
struct Newest {
    name: String,
    progress: BackupProgress,
    /// `None` while it is made.
    end: Option<Result<Finished, String>>,
}

#[derive(Debug, Clone, Copy)]
struct Finished {
    last_index: u64,
    files: u64,
}

/// The task.
struct Making(Task<()>);

impl std::fmt::Debug for Making {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Making")
    }
}

/// The right to make the one backup of this time. Whatever becomes of who has it, the next one may be made then.
struct Turn {
    replica: Arc<Replica>,
    progress: BackupProgress,
}

impl Turn {
    /// `Err` tells why not now.
    fn take(replica: &Arc<Replica>, name: String) -> Result<Turn, String> {
        let progress = BackupProgress::default();
        let mut state = replica.backups.state();
        if state.is_closed {
            return Err("the replica stops".to_owned());
        }
        if let Some(other) = state.newest.as_ref().filter(|newest| newest.end.is_none()) {
            return Err(format!("backup {} is being made, one at a time", other.name));
        }
        state.newest = Some(Newest { name, progress: progress.clone(), end: None });
        drop(state);
        Ok(Turn { replica: replica.clone(), progress })
    }

    fn end(&self, end: Result<Finished, String>) {
        let mut state = self.replica.backups.state();
        if let Some(newest) = state.newest.as_mut().filter(|newest| newest.end.is_none()) {
            newest.end = Some(end);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // Has an effect only if there was no end before.
        self.end(Err("it was given up".to_owned()));
    }
}

impl Backups {
    /// Gives up the one that is being made, waits until what was made of it is removed, `timeout` at most, and lets none begin.
    pub async fn stop(&self, runtime: &Runtime, timeout: Duration) {
        let Some(Making(task)) = self.close() else { return };
        if runtime.timeout(timeout, task.join()).await.is_err() {
            tracing::warn!("a backup did not end in time, what was made of it is removed when the next one is made");
        }
    }

    /// Ends the one that is being made at once, and lets none begin.
    pub fn abandon(&self) {
        // Not under the lock, which who makes it takes for a last word.
        drop(self.close());
    }

    fn close(&self) -> Option<Making> {
        let mut state = self.state();
        state.is_closed = true;
        if let Some(newest) = &state.newest {
            newest.progress.cancel();
        }
        state.task.take()
    }

    /// Keeps who makes it, until the replica stops or another one is made.
    fn keep(&self, task: Task<()>) {
        let mut state = self.state();
        // One that stops meanwhile has told it to end.
        let before = state.task.replace(Making(task));
        drop(state);
        drop(before);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("backup lock is never poisoned: no code panics while holding it")
    }
}

/// Begins a backup, gives one up, or tells of the newest one. Answers for this replica; never forwarded.
pub async fn backup(replica: &Arc<Replica>, context: CallContext, request: admin::BackupRequest) -> admin::BackupReply {
    let done = match (request.name.is_empty(), request.cancel) {
        (true, _) => Ok(()),
        (false, true) => cancel(replica, &request.name),
        (false, false) => begin(replica, context, request).await,
    };
    match done {
        Ok(()) => tell(replica),
        Err((code, text)) => admin::BackupReply { status: Some(status(code, text)), ..Default::default() },
    }
}

fn cancel(replica: &Replica, name: &str) -> Result<(), (Code, String)> {
    let state = replica.backups.state();
    match &state.newest {
        Some(newest) if newest.name == name && newest.end.is_none() => {
            newest.progress.cancel();
            Ok(())
        }
        _ => Err((Code::NotFound, format!("backup {name} is not being made here"))),
    }
}

fn tell(replica: &Replica) -> admin::BackupReply {
    let config = &replica.config;
    let reply = admin::BackupReply {
        status: Some(ok()),
        group: config.group.clone(),
        node: config.node,
        dir: config.backup_dir.as_ref().map(|dir| dir.display().to_string()).unwrap_or_default(),
        ..Default::default()
    };
    let Some(newest) = replica.backups.state().newest.clone() else { return reply };
    let (bytes_done, bytes) = newest.progress.bytes();
    let reply = admin::BackupReply { name: newest.name, bytes_done, bytes, ..reply };
    match newest.end {
        None => admin::BackupReply { state: admin::BackupState::Running.into(), ..reply },
        Some(Ok(Finished { last_index, files })) => {
            admin::BackupReply { state: admin::BackupState::Done.into(), last_index, files, ..reply }
        }
        Some(Err(failure)) => admin::BackupReply { state: admin::BackupState::Failed.into(), failure, ..reply },
    }
}

fn is_name(name: &str) -> bool {
    let is_plain = |letter: u8| letter.is_ascii_alphanumeric() || b"-_.".contains(&letter);
    name.len() <= NAME_BYTES_MAX && name.bytes().all(is_plain) && !name.starts_with('.') && !name.ends_with(UNFINISHED)
}

async fn begin(
    replica: &Arc<Replica>,
    context: CallContext,
    request: admin::BackupRequest,
) -> Result<(), (Code, String)> {
    let admin::BackupRequest { name, bytes_per_s, .. } = request;
    if !is_name(&name) {
        let text = format!(
            "name of a backup is {name:?}: 1 to {NAME_BYTES_MAX} letters, digits, `-`, `_` and `.` are allowed, the first no `.`, and \
             no {UNFINISHED} at the end"
        );
        return Err((Code::BadRequest, text));
    }
    let bytes_per_s = if bytes_per_s == 0 { replica.config.backup_bytes_per_s } else { bytes_per_s };
    if bytes_per_s < BACKUP_BYTES_PER_S_MIN {
        let text =
            format!("pace of a backup is {bytes_per_s} bytes a second, at least {BACKUP_BYTES_PER_S_MIN} are needed");
        return Err((Code::BadRequest, text));
    }
    let Some(root) = replica.config.backup_dir.clone() else {
        let text = "this replica has no folder for backups: set backup_dir".to_owned();
        return Err((Code::PreconditionFailed, text));
    };
    let target = root.join(&name);
    if std::fs::symlink_metadata(&target).is_ok() {
        return Err((Code::PreconditionFailed, format!("{} is there already", target.display())));
    }
    let turn = Turn::take(replica, name).map_err(|why| (Code::PreconditionFailed, why))?;
    // By the word of a quorum: what was acknowledged before the call, by whomever, is to be in it.
    let mark = lead::<ReadMark>(replica, context, ()).await.body;
    if mark == 0 {
        let text = "no leader says up to where the group has committed, or nothing is committed yet: try again then";
        turn.end(Err(text.to_owned()));
        return Err((Code::HaNotAvailable, text.to_owned()));
    }
    let task = replica.runtime.spawn("backup", async move {
        let end = make(&turn, &root, &target, LogIndex(mark), bytes_per_s).await;
        match &end {
            Ok(done) => {
                tracing::info!(dir = %target.display(), last = done.last_index, files = done.files, "backup made")
            }
            Err(failure) => tracing::error!(dir = %target.display(), failure, "no backup was made"),
        }
        turn.end(end);
    });
    replica.backups.keep(task);
    Ok(())
}

async fn make(
    turn: &Turn,
    root: &Path,
    target: &Path,
    at_least: LogIndex,
    bytes_per_s: u64,
) -> Result<Finished, String> {
    let replica = &turn.replica;
    // Another replica may have the same folder for its backups.
    let ending = format!(".{}{UNFINISHED}", replica.log.incarnation());
    let mut unfinished = target.as_os_str().to_owned();
    unfinished.push(&ending);
    let unfinished = PathBuf::from(unfinished);
    let failed = |path: &Path| {
        let path = path.display().to_string();
        move |error: std::io::Error| format!("{path}: {error}")
    };
    prepare(replica, root, ending).await.map_err(failed(root))?;
    let request = BackupRequest {
        at_least,
        into: unfinished.clone(),
        side_dir: replica.config.data_dir.join("store"),
        side_names: flotilla_store::offline::side_file_names,
        free_bytes_min: replica.config.disk_free_bytes_min,
        bytes_per_s,
        time_max: Duration::from_millis(replica.config.backup_ms_max),
    };
    let report = match replica.log.back_up(request, turn.progress.clone()).await {
        Ok(report) => report,
        Err(error) => {
            remove(replica, &unfinished).await;
            return Err(error.to_string());
        }
    };
    let finished = Finished { last_index: report.last.1.0, files: report.files.len() as u64 };
    let (disk, manifest) = (replica.log.disk(), manifest_of(replica, report));
    let finish = {
        let (root, from, to) = (root.to_owned(), unfinished.clone(), target.to_owned());
        move || {
            manifest.write(&*disk, &from)?;
            // Fails if another replica with the same folder was quicker: that is not empty.
            disk.rename(&from, &to)?;
            disk.sync_dir(&root)
        }
    };
    if let Err(error) = replica.runtime.blocking(finish).await {
        remove(replica, &unfinished).await;
        return Err(failed(target)(error));
    }
    Ok(finished)
}

fn manifest_of(replica: &Replica, report: BackupReport) -> BackupManifest {
    let config = &replica.config;
    BackupManifest {
        format: FORMAT,
        cluster: config.cluster.clone(),
        group: config.group.clone(),
        node: config.node,
        made_at_ms: replica.runtime.wall_ms(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        first_index: report.first.0,
        last_index: report.last.1.0,
        last_term: report.last.0.0,
        epoch: report.epoch,
        files: report.files,
    }
}

/// The folder of backups, without what earlier processes of this replica left unfinished: their names have that ending.
async fn prepare(replica: &Replica, root: &Path, ending: String) -> std::io::Result<()> {
    let (disk, root) = (replica.log.disk(), root.to_owned());
    let prepare = move || {
        disk.create_dir_all(&root)?;
        remove_leftovers(&root, &ending)
    };
    replica.runtime.blocking(prepare).await
}

fn remove_leftovers(root: &Path, ending: &str) -> std::io::Result<()> {
    for entry in std::fs::read_dir(root)? {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(|name| name.ends_with(ending)) {
            tracing::warn!(dir = %entry.path().display(), "what an earlier process left of a backup is removed");
            std::fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

async fn remove(replica: &Replica, unfinished: &Path) {
    let unfinished = unfinished.to_owned();
    let removing = move || {
        if let Err(error) = crate::backup::remove(&unfinished) {
            tracing::warn!(dir = %unfinished.display(), %error, "what was made of a backup could not be removed");
        }
    };
    replica.runtime.blocking(removing).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_this_replica_left_unfinished_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let names = ["done", "a.0123.unfinished", "b.0123.unfinished", "b.4567.unfinished"];
        for name in names {
            std::fs::create_dir_all(root.path().join(name).join("log")).unwrap();
        }
        remove_leftovers(root.path(), ".0123.unfinished").unwrap();
        assert_eq!(names.map(|name| root.path().join(name).exists()), [true, false, false, true]);
    }

    #[test]
    fn a_name_stays_within_the_folder() {
        for name in ["daily-2026-11-30", "a", "a.b_c"] {
            assert!(is_name(name), "{name}");
        }
        for name in ["..", ".hidden", "a/b", "a b", "x.unfinished", &"n".repeat(129)] {
            assert!(!is_name(name), "{name}");
        }
    }
}
