//! `flotilla log`: look at the files of a stopped replica, or at a copy of them.

mod commands_text;
mod directory;
mod dump;
mod stat;
mod verify;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use flotilla_raft_log::LogIndex;
use flotilla_runtime::Runtime;

pub use self::directory::Directory;
use crate::failure::Failure;

/// Look at the files of a stopped replica, or at a copy of them; nothing is changed.
///
/// DIR is a replica's data folder (with `log` and `store` in it) or the `log` folder alone.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  flotilla log stat data/replica-1                 what is there
  flotilla log verify data/replica-1               every checksum; exit code 1 if anything is damaged
  flotilla log dump data/replica-1 --from 1000 --limit 20 --commands
  flotilla log dump data/replica-1 --json | grep 'damage'

Exit codes: 0 clean, 1 damage found or not readable, 2 no such folder, no log in it, or in use")]
pub struct LogArguments {
    #[command(subcommand)]
    command: LogCommand,
}

#[derive(Debug, Subcommand)]
enum LogCommand {
    /// Show whose log it is, vote and marks, segments, checkpoints and index files, by their headers
    Stat(PlaceArguments),
    /// Check every byte that counts: records, headers, vote slots, checkpoints, index files, and that none is missing
    Verify(PlaceArguments),
    /// Print records, one a line
    Dump(DumpArguments),
}

#[derive(Debug, Args)]
struct PlaceArguments {
    /// A replica's data folder, or the log folder in it
    dir: PathBuf,
    /// Print JSON instead of tables
    #[arg(long)]
    json: bool,
    /// Read a folder that a running replica uses: what is found may be in the middle of a change
    #[arg(long)]
    force_read: bool,
}

#[derive(Debug, Args)]
struct DumpArguments {
    #[command(flatten)]
    place: PlaceArguments,
    /// The first index to print
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// The last index to print [default: the last one]
    #[arg(long)]
    to: Option<u64>,
    /// Print so many records at most
    #[arg(long)]
    limit: Option<u64>,
    /// Print the commands in each proposal too
    #[arg(long)]
    commands: bool,
}

pub async fn run(arguments: LogArguments, runtime: Runtime) -> Result<(), Failure> {
    runtime
        .blocking(move || match arguments.command {
            LogCommand::Stat(place) => stat::run(&Directory::open(&place.dir, place.force_read)?, place.json),
            LogCommand::Verify(place) => verify::run(&Directory::open(&place.dir, place.force_read)?, place.json),
            LogCommand::Dump(dump) => {
                let end = dump.to.map_or(u64::MAX, |to| to.saturating_add(1));
                let place = &dump.place;
                let directory = Directory::open(&place.dir, place.force_read)?;
                let limit = dump.limit.unwrap_or(u64::MAX);
                dump::run(&directory, LogIndex(dump.from)..LogIndex(end), limit, dump.commands, place.json)
            }
        })
        .await
}
