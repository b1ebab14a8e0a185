//! `flotilla backup`: check a backup, and make a data folder of it.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use flotilla_broker::backup::{BackupManifest, RestoreError, RestoreOptions, restore};
use flotilla_raft_log::OsDisk;
use flotilla_raft_log::tools::{Depth, OfflineDisk};
use flotilla_runtime::Runtime;
use serde::Serialize;

use super::log::Directory;
use crate::failure::Failure;
use crate::output;
use crate::progress::Progress;
use crate::quantity::format_bytes;

/// Check a backup that `flotilla admin backup create` made, or found the broker group anew from it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  flotilla backup verify /backups/daily-1
  flotilla backup restore /backups/daily-1 --data-dir data/replica-1 --node 1
  flotilla broker --group group-a --node 1 --data-dir data/replica-1 --namesrv …    it leads alone
  flotilla broker --group group-a --node 2 --join …                                then the others, with empty folders
  flotilla admin replica add 2 --address 10.0.0.2:10912

Exit codes: 0 done, 1 damage found or it failed, 2 no finished backup in that folder")]
pub struct BackupArguments {
    #[command(subcommand)]
    command: BackupCommand,
}

#[derive(Debug, Subcommand)]
enum BackupCommand {
    /// Read every byte of a backup against its checksums, and look at the log in it as `flotilla log verify` does
    Verify {
        /// The backup's folder
        dir: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Make a new data folder of a backup: its replica founds the broker group anew, alone, as of the backup
    ///
    /// Every file is checked against the backup's checksums; where one does not match nothing is made. All replicas of the group as it
    /// was must be stopped for good: what they took after the backup is given up, and they are not let in again but with empty
    /// folders.
    Restore {
        /// The backup's folder, which stays as it is
        dir: PathBuf,
        /// The data folder to make; must not be there, or be empty
        #[arg(long, value_name = "DIR")]
        data_dir: PathBuf,
        /// The replica's number in the new group [default: that of the one that was copied]
        #[arg(long, value_name = "NODE", value_parser = clap::value_parser!(u64).range(1..))]
        node: Option<u64>,
        /// The epoch of the new group, which must be later than any that the group has had [default: the one after the backup's]
        #[arg(long, value_name = "NUMBER")]
        epoch: Option<u16>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// Told after the verdict, so that scripts see it in the exit code.
#[derive(Debug, thiserror::Error)]
#[error("{0} damage(s) found")]
struct Damaged(usize);

#[derive(Serialize)]
struct Verdict {
    is_clean: bool,
    cluster: String,
    group: String,
    node: u64,
    made_at_ms: u64,
    first_index: u64,
    last_index: u64,
    files: usize,
    bytes: u64,
    damages: Vec<String>,
}

#[derive(Serialize)]
struct RestoredView {
    data_dir: PathBuf,
    cluster: String,
    group: String,
    node: u64,
    incarnation: String,
    epoch: u16,
    last_index: u64,
    bytes: u64,
}

pub async fn run(arguments: BackupArguments, runtime: Runtime) -> Result<(), Failure> {
    let work = runtime.clone();
    work.blocking(move || match arguments.command {
        BackupCommand::Verify { dir, json } => verify(&dir, json, &runtime),
        BackupCommand::Restore { dir, data_dir, node, epoch, json } => {
            make(&dir, data_dir, node, epoch, json, &runtime)
        }
    })
    .await
}

fn manifest_in(dir: &Path) -> Result<BackupManifest, Failure> {
    BackupManifest::read(&OfflineDisk, dir).map_err(|error| match error {
        flotilla_broker::backup::ManifestError::NoBackup { .. } => Failure::usage(error),
        error => error.into(),
    })
}

fn verify(dir: &Path, json: bool, runtime: &Runtime) -> Result<(), Failure> {
    let manifest = manifest_in(dir)?;
    let mut progress = Progress::on_terminal("bytes", Some(manifest.bytes()), runtime);
    let (mut damages, mut done) = (Vec::new(), 0);
    for file in &manifest.files {
        let read = BackupManifest::read_through(&OfflineDisk, dir, file, |_, bytes| {
            done += bytes.len() as u64;
            progress.update(done, &file.name);
            Ok(())
        });
        damages.extend(read.err().map(|error| error.to_string()));
    }
    let findings = Directory::open(dir, false)?.examine(Depth::Checksums)?;
    damages.extend(findings.log.damages.iter().map(|damage| format!("{}: {}", damage.file, damage.what)));
    let verdict = Verdict {
        is_clean: damages.is_empty(),
        files: manifest.files.len(),
        bytes: manifest.bytes(),
        cluster: manifest.cluster,
        group: manifest.group,
        node: manifest.node,
        made_at_ms: manifest.made_at_ms,
        first_index: manifest.first_index,
        last_index: manifest.last_index,
        damages,
    };
    if json {
        output::line(serde_json::to_string_pretty(&verdict)?);
    } else {
        let said = if verdict.is_clean { "clean".to_owned() } else { verdict.damages.join("\n") };
        output::line(format_args!(
            "{said}\nbackup of replica {} of group {} (cluster {}), entries {} to {}: {} files, {}",
            verdict.node,
            verdict.group,
            verdict.cluster,
            verdict.first_index,
            verdict.last_index,
            verdict.files,
            format_bytes(verdict.bytes)
        ));
    }
    if verdict.is_clean { Ok(()) } else { Err(Damaged(verdict.damages.len()).into()) }
}

fn make(
    dir: &Path,
    data_dir: PathBuf,
    node: Option<u64>,
    epoch: Option<u16>,
    json: bool,
    runtime: &Runtime,
) -> Result<(), Failure> {
    let manifest = manifest_in(dir)?;
    let mut progress = Progress::on_terminal("bytes", Some(manifest.bytes()), runtime);
    let mut done = 0;
    let options = RestoreOptions { data_dir, node: node.unwrap_or(manifest.node), epoch };
    let restored = restore(&OfflineDisk, &OsDisk, dir, &options, runtime, |bytes| {
        done += bytes;
        progress.update(done, "");
    });
    let restored = restored.map_err(|error| match error {
        RestoreError::Taken { .. } | RestoreError::InTheWay { .. } | RestoreError::Epoch { .. } => {
            Failure::usage(error)
        }
        error => error.into(),
    })?;
    let view = RestoredView {
        data_dir: options.data_dir,
        bytes: restored.manifest.bytes(),
        cluster: restored.manifest.cluster,
        group: restored.manifest.group,
        node: restored.founded.node.0,
        incarnation: restored.founded.incarnation.to_string(),
        epoch: restored.founded.epoch,
        last_index: restored.manifest.last_index,
    };
    if json {
        output::line(serde_json::to_string_pretty(&view)?);
    } else {
        output::line(format_args!(
            "{} is the data folder of replica {} of group {} (cluster {}), as of entry {}. Started, it leads alone, in epoch {}. Then \
             start others with empty folders and `--join`, and `flotilla admin replica add` each. Where namesrvs still know the old \
             group, raise group_incarnation.",
            view.data_dir.display(),
            view.node,
            view.group,
            view.cluster,
            view.last_index,
            view.epoch
        ));
    }
    Ok(())
}
