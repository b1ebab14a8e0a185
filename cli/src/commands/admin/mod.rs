//! `flotilla admin`: topics, groups, messages, and the cluster itself.

mod backup;
mod broker_group;
mod cluster;
mod dlq;
mod group;
mod group_change;
mod leader;
mod lost_tail;
mod message;
mod replica;
mod topic;
mod transaction;
mod unsafe_recover;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use flotilla_client::AdminError;
use flotilla_runtime::Runtime;
use serde::Serialize;

use crate::connect_options::ConnectOptions;
use crate::failure::Failure;
use crate::output;

/// Create, list, change and delete topics and groups; move groups, resend dead letters, find messages; see who leads.
///
/// Any replica takes these calls and passes on to the leader what changes something. Creating what exists already in the
/// same shape is fine.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  flotilla admin topic create orders --queues 16
  flotilla admin topic create steps --type FIFO
  flotilla admin topic list
  flotilla admin group create billing --start last --max-deliveries 5
  flotilla admin group describe billing
  flotilla admin group progress billing
  flotilla admin group reset billing --topic orders --to 1767225600000
  flotilla admin dlq resend billing --all
  flotilla admin message query orders --key order-17
  flotilla admin cluster status
  flotilla admin broker-group wipe-write-perm group-b
  flotilla admin message --broker-group group-a query orders --key order-17
  flotilla admin leader transfer --to 2
  flotilla admin replica list
  flotilla admin replica add 4 --address 10.0.0.4:10912
  flotilla admin replica replace 3 4 --address 10.0.0.4:10912
  flotilla admin backup create daily-1 --replica 10.0.0.2:8081   then: flotilla backup verify /backups/daily-1, there
  flotilla admin group unsafe-recover                     a majority is gone for good: what going on would cost
  flotilla admin --endpoint 10.0.0.1:8081 topic list      ask a broker instead of a namesrv")]
pub struct AdminArguments {
    #[command(subcommand)]
    command: AdminCommand,
    /// Print JSON instead of tables
    #[arg(long, global = true)]
    json: bool,
    /// Only this broker group [default: all of the cluster; needed where there are several and one must be meant]
    #[arg(long, global = true, value_name = "NAME")]
    broker_group: Option<String>,
    #[command(flatten)]
    connect: ConnectOptions,
}

#[derive(Debug, Subcommand)]
enum AdminCommand {
    /// Topics: where messages go
    #[command(subcommand)]
    Topic(topic::TopicCommand),
    /// Consumer groups: who has received what
    #[command(subcommand)]
    Group(group::GroupCommand),
    /// Dead letters: what a group could not consume
    #[command(subcommand)]
    Dlq(dlq::DlqCommand),
    /// Messages: find them, and see what became of one
    #[command(subcommand)]
    Message(message::MessageCommand),
    /// Open transactions
    #[command(subcommand)]
    Transaction(transaction::TransactionCommand),
    /// The broker groups of the cluster: take one out of writing, and back
    #[command(subcommand)]
    BrokerGroup(broker_group::BrokerGroupCommand),
    /// The replicas of all broker groups
    #[command(subcommand)]
    Cluster(cluster::ClusterCommand),
    /// The broker group's members: take replicas in and out while it runs
    #[command(subcommand)]
    Replica(replica::ReplicaCommand),
    /// Backups of a broker group, made while it serves
    #[command(subcommand)]
    Backup(backup::BackupCommand),
    /// The broker group's leader
    #[command(subcommand)]
    Leader(leader::LeaderCommand),
    /// Messages that a replica had acknowledged at level async and that another leader overrode
    LostTail {
        /// The replica's data folder, or the log folder in it; nothing is changed
        dir: PathBuf,
    },
}

/// What was asked for and why it was not done.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}")]
struct AdminCommandError {
    what: String,
    source: AdminError,
}

/// For `map_err`: adds what was asked for.
fn while_doing(what: impl Into<String>) -> impl FnOnce(AdminError) -> AdminCommandError {
    let what = what.into();
    move |source| AdminCommandError { what, source }
}

pub async fn run(arguments: AdminArguments, runtime: Runtime) -> Result<(), Failure> {
    if let AdminCommand::LostTail { dir } = &arguments.command {
        return lost_tail::run(dir, arguments.json);
    }
    let mut admin = arguments.connect.client().map_err(Failure::usage)?.admin();
    if let Some(name) = &arguments.broker_group {
        admin = admin.in_group(name);
    }
    match arguments.command {
        AdminCommand::Topic(command) => topic::run(command, &admin, arguments.json).await,
        AdminCommand::Group(command) => group::run(command, &admin, arguments.json).await,
        AdminCommand::Dlq(command) => dlq::run(command, &admin, arguments.json).await,
        AdminCommand::Message(command) => message::run(command, &admin, arguments.json).await,
        AdminCommand::Transaction(command) => transaction::run(command, &admin, arguments.json).await,
        AdminCommand::BrokerGroup(command) => broker_group::run(command, &admin, arguments.json).await,
        AdminCommand::Cluster(command) => cluster::run(command, &admin, arguments.json).await,
        AdminCommand::Replica(command) => replica::run(command, &admin, arguments.json, runtime).await,
        AdminCommand::Backup(command) => backup::run(command, &admin, arguments.json, runtime).await,
        AdminCommand::Leader(command) => leader::run(command, &admin, arguments.json).await,
        AdminCommand::LostTail { .. } => unreachable!("needs no cluster and was answered above"),
    }
}

/// The answer on stdout, as asked for.
fn print(json: bool, value: &impl Serialize, text: impl FnOnce() -> String) -> Result<(), Failure> {
    if json {
        output::line(serde_json::to_string_pretty(value)?);
    } else {
        output::line(text().trim_end());
    }
    Ok(())
}
