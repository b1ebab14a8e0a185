//! `flotilla admin broker-group`.

use clap::Subcommand;
use flotilla_client::{AdminClient, AdminError};
use flotilla_message::TopicName;
use serde::Serialize;

use super::{print, while_doing};
use crate::failure::Failure;
use crate::table::Table;

#[derive(Debug, Subcommand)]
pub enum BrokerGroupCommand {
    /// Show all broker groups of the cluster: their replicas, who leads, and whether they take messages
    List,
    /// Take the write permission of a broker group away: producers go to the others; what it has is consumed as before
    ///
    /// The group knows it itself and keeps to it through restarts. Message groups of ordered topics that belong to it are
    /// refused until their topic is moved: flotilla admin topic spread
    WipeWritePerm {
        /// The broker group, such as group-b
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Give a broker group its write permission back
    AddWritePerm {
        /// The broker group, such as group-b
        #[arg(value_name = "NAME")]
        name: String,
    },
}

#[derive(Serialize)]
struct BrokerGroupView {
    name: String,
    replicas: usize,
    reachable: usize,
    leader: Option<u64>,
    write_perm: Option<bool>,
}

#[derive(Serialize)]
struct WritePermView<'a> {
    name: &'a str,
    write_perm: bool,
    topics: u64,
    /// Ordered topics of which message groups belong to it.
    ordered_topics: Vec<String>,
}

/// Told after the table, so that scripts see it in the exit code.
#[derive(Debug, thiserror::Error)]
#[error("broker group {0} takes no writes now: nobody leads it")]
struct NoLeader(String);

pub async fn run(command: BrokerGroupCommand, admin: &AdminClient, json: bool) -> Result<(), Failure> {
    match command {
        BrokerGroupCommand::List => list(admin, json).await,
        BrokerGroupCommand::WipeWritePerm { name } => set(admin, &name, false, json).await,
        BrokerGroupCommand::AddWritePerm { name } => set(admin, &name, true, json).await,
    }
}

async fn list(admin: &AdminClient, json: bool) -> Result<(), Failure> {
    let failed = || while_doing("broker groups cannot be listed");
    let mut views = Vec::new();
    for name in admin.broker_groups().await.map_err(failed())? {
        let answers = admin.in_group(&name).cluster_status().await.map_err(failed())?;
        let replicas = answers.len();
        let told: Vec<_> = answers.into_iter().filter_map(|from| from.answer.ok()).collect();
        let leader = told.iter().find(|status| status.can_write);
        // The leader's word if there is one, else that of whoever has applied most.
        let newest = leader.or_else(|| told.iter().max_by_key(|status| status.applied_index));
        views.push(BrokerGroupView {
            name,
            replicas,
            reachable: told.len(),
            leader: leader.map(|status| status.node),
            write_perm: newest.map(|status| !status.write_wiped),
        });
    }
    print(json, &views, || table_of(&views))?;
    match views.into_iter().find(|view| view.leader.is_none()) {
        Some(view) => Err(NoLeader(view.name).into()),
        None => Ok(()),
    }
}

async fn set(admin: &AdminClient, name: &str, is_writable: bool, json: bool) -> Result<(), Failure> {
    let what = format!("the write permission of broker group {name} is not changed");
    let group = admin.in_group(name);
    let topics = group.set_write_permission(is_writable).await.map_err(while_doing(what.clone()))?;
    let ordered_topics = ordered_topics(&group, name).await.map_err(while_doing(what))?;
    let view = WritePermView { name, write_perm: is_writable, topics, ordered_topics };
    print(json, &view, || text_of(&view))
}

/// The ordered topics of which message groups belong to a broker group.
async fn ordered_topics(group: &AdminClient, name: &str) -> Result<Vec<String>, AdminError> {
    let mut ordered = Vec::new();
    for topic in group.list_topics(false).await? {
        let Ok(topic) = TopicName::try_from(topic.name.as_str()) else { continue };
        let shares = group.topic_shares(&topic).await?;
        if shares.is_some_and(|shares| shares.shares.iter().any(|share| share.broker_group == name)) {
            ordered.push(topic.to_string());
        }
    }
    Ok(ordered)
}

fn text_of(view: &WritePermView<'_>) -> String {
    let WritePermView { name, topics, ordered_topics, .. } = view;
    if view.write_perm {
        return format!("broker group {name} takes messages again, {topics} topics");
    }
    let mut text = format!("broker group {name} takes no messages any more, {topics} topics; what it has is consumed");
    if !ordered_topics.is_empty() {
        text.push_str(&format!(
            "\nmessage groups of {} belong to it and are refused; move them with: flotilla admin topic spread NAME --over OTHERS",
            ordered_topics.join(", ")
        ));
    }
    text
}

fn table_of(views: &[BrokerGroupView]) -> String {
    let mut table = Table::new(["BROKER GROUP", "REPLICAS", "REACHABLE", "LEADER", "WRITE PERM"]);
    for view in views {
        let leader = view.leader.map_or_else(|| "none".to_owned(), |leader| leader.to_string());
        let write_perm = match view.write_perm {
            Some(true) => "yes",
            Some(false) => "wiped",
            None => "?",
        };
        let counts = [view.replicas, view.reachable].map(|count| count.to_string());
        let [replicas, reachable] = counts;
        table.row([view.name.clone(), replicas, reachable, leader, write_perm.to_owned()]);
    }
    table.to_string()
}
