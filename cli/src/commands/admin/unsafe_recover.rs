//! `flotilla admin group unsafe-recover`: goes on with one replica of a broker group whose majority is gone for good.

use std::str::FromStr;

use clap::Args;
use flotilla_chaos::cluster::index_text;
use flotilla_client::{AdminClient, FromReplica};
use flotilla_proto::admin::{GivenUpReplica, RecoverGroupReply};
use serde::Serialize;

use super::{print, while_doing};
use crate::failure::Failure;
use crate::table::Table;

#[derive(Debug, Args)]
pub struct Arguments {
    /// Do it: the group and the replica that goes on, as the command without this flag names them
    #[arg(long, value_name = "GROUP/NODE")]
    confirm: Option<Survivor>,
}

/// A replica of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Survivor {
    group: String,
    node: u64,
}

/// It names no replica.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` names no replica of a group: GROUP/NODE is needed, such as broker-a/2")]
pub struct SurvivorError(String);

impl FromStr for Survivor {
    type Err = SurvivorError;

    fn from_str(text: &str) -> Result<Survivor, SurvivorError> {
        let parts = text.rsplit_once('/').filter(|(group, _)| !group.is_empty());
        let node = parts.and_then(|(_, node)| node.parse().ok()).filter(|node| *node > 0);
        match (parts, node) {
            (Some((group, _)), Some(node)) => Ok(Survivor { group: group.to_owned(), node }),
            _ => Err(SurvivorError(text.to_owned())),
        }
    }
}

#[derive(Serialize)]
struct PlanView {
    group: String,
    node: u64,
    address: String,
    incarnation: String,
    epoch: u32,
    last_term: u64,
    last_index: Option<u64>,
    durable_index: Option<u64>,
    committed_index: Option<u64>,
    /// Entries of this replica that are not known to be committed: they count from then on.
    unconfirmed_entries: u64,
    given_up: Vec<GivenUpView>,
    ordered: bool,
}

#[derive(Serialize)]
struct GivenUpView {
    node: u64,
    incarnation: String,
    voter: bool,
    client_address: String,
    answers: bool,
    durable_index: Option<u64>,
}

/// Why there is no going on with one replica.
#[derive(Debug, thiserror::Error)]
enum RecoverError {
    #[error("no replica can say what would come of it: {0}")]
    NoneAnswers(String),
    #[error("replica {node} of group {group} cannot go on alone: {refusal}")]
    Refused { group: String, node: u64, refusal: String },
    #[error("--confirm names {}/{}, the replica that goes on is {group}/{node}", asked.group, asked.node)]
    AnotherOne { asked: Survivor, group: String, node: u64 },
}

pub async fn run(arguments: Arguments, admin: &AdminClient, json: bool) -> Result<(), Failure> {
    let answers = admin.plan_recoveries().await.map_err(while_doing("no replica is known"))?;
    let (mut plans, mut silent) = (Vec::new(), Vec::new());
    for FromReplica { address, answer } in answers {
        match answer {
            Ok(plan) => plans.push((address, plan)),
            Err(error) => silent.push(format!("{address}: {error}")),
        }
    }
    // Those that were given up before have nothing to say here.
    let longest = plans.into_iter().max_by_key(|(_, plan)| (plan.refusal.is_empty(), plan.last_term, plan.last_index));
    let Some((address, plan)) = longest else { return Err(RecoverError::NoneAnswers(silent.join("; ")).into()) };
    let (group, node) = (plan.group.clone(), plan.node);
    if !plan.refusal.is_empty() {
        return Err(RecoverError::Refused { group, node, refusal: plan.refusal }.into());
    }
    let Some(asked) = arguments.confirm else {
        let view = view_of(address, plan);
        return print(json, &view, || text_of(&view));
    };
    if (asked.group.as_str(), asked.node) != (group.as_str(), node) {
        return Err(RecoverError::AnotherOne { asked, group, node }.into());
    }
    let ordered = admin.recover_group(&address, &group, node).await;
    let view = view_of(address, ordered.map_err(while_doing("the group does not go on with that replica"))?);
    print(json, &view, || text_of(&view))
}

fn view_of(address: String, plan: RecoverGroupReply) -> PlanView {
    let given_up = |replica: GivenUpReplica| GivenUpView {
        node: replica.node,
        incarnation: replica.incarnation,
        voter: replica.voter,
        client_address: replica.client_address,
        answers: replica.answers,
        durable_index: replica.durable_index,
    };
    let count = |index: Option<u64>| index.map_or(0, |index| index + 1);
    PlanView {
        unconfirmed_entries: count(plan.last_index).saturating_sub(count(plan.committed_index)),
        group: plan.group,
        node: plan.node,
        address,
        incarnation: plan.incarnation,
        epoch: plan.epoch,
        last_term: plan.last_term,
        last_index: plan.last_index,
        durable_index: plan.durable_index,
        committed_index: plan.committed_index,
        given_up: plan.given_up.into_iter().map(given_up).collect(),
        ordered: plan.ordered,
    }
}

fn text_of(view: &PlanView) -> String {
    let mut table = Table::new(["GIVEN UP", "VOTES", "ADDRESS", "DIRECTORY", "ANSWERS", "ON ITS DISK"]);
    for replica in &view.given_up {
        let yes = |is: bool| (if is { "yes" } else { "no" }).to_owned();
        let durable = if replica.answers { index_text(replica.durable_index) } else { "not known".to_owned() };
        let (node, address) = (replica.node.to_string(), replica.client_address.clone());
        table.row([node, yes(replica.voter), address, replica.incarnation.clone(), yes(replica.answers), durable]);
    }
    let PlanView { group, node, address, epoch, unconfirmed_entries, .. } = view;
    let [last, durable, committed] = [view.last_index, view.durable_index, view.committed_index].map(index_text);
    let table = table.to_string();
    let table = table.trim_end();
    let next = if view.ordered {
        format!(
            "Ordered. Replica {node} stops now: start it again, and it leads alone, in epoch {epoch}. Then start others with empty \
             directories and `--join`, and `flotilla admin replica add` each."
        )
    } else {
        format!(
            "Nothing was changed. If the others are gone for good, and stopped: flotilla admin group unsafe-recover --confirm \
             {group}/{node}"
        )
    };
    format!(
        "Group {group} can go on with replica {node} ({address}) alone, in epoch {epoch}.\n\
         Its log ends at entry {last}; on its disk up to {durable}; known to be committed up to {committed}.\n\
         Lost: whatever the others acknowledged behind entry {last}. Kept: {unconfirmed_entries} entries of this replica that are \
         not known to be committed; their senders may have been told otherwise.\n\n{table}\n\n{next}"
    )
}
