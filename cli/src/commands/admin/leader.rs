//! `flotilla admin leader`.

use std::time::Duration;

use clap::Subcommand;
use flotilla_client::AdminClient;
use serde::Serialize;

use super::{print, while_doing};
use crate::failure::Failure;
use crate::quantity::parse_duration;

#[derive(Debug, Subcommand)]
pub enum LeaderCommand {
    /// Hand leadership to another replica, before the present leader is stopped for maintenance
    Transfer {
        /// The number of the replica that should lead [default: the one that is furthest ahead]
        #[arg(long, value_name = "NODE", value_parser = clap::value_parser!(u64).range(1..))]
        to: Option<u64>,
        /// How long to wait for the new leader
        #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_duration)]
        timeout: Duration,
    },
}

#[derive(Serialize)]
struct LeaderView {
    leader: u64,
}

pub async fn run(command: LeaderCommand, admin: &AdminClient, json: bool) -> Result<(), Failure> {
    let LeaderCommand::Transfer { to, timeout } = command;
    let target = to.map_or_else(|| "another replica".to_owned(), |node| format!("replica {node}"));
    let leader = admin
        .transfer_leader(to, timeout)
        .await
        .map_err(while_doing(format!("leadership is not handed to {target}")))?;
    print(json, &LeaderView { leader }, || format!("replica {leader} leads"))
}
