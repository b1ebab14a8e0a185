//! `flotilla admin group`.

use std::str::FromStr;

use clap::Subcommand;
use flotilla_client::{AdminClient, AdminError, GroupSpec, GroupStart};
use flotilla_message::{GroupName, TopicName};
use flotilla_proto::admin;
use flotilla_proto::status::Code;
use serde::Serialize;

use super::topic::queue_text;
use super::{group_change, print, unsafe_recover, while_doing};
use crate::connect_options::{group_name, topic_name};
use crate::failure::Failure;
use crate::table::Table;

#[derive(Debug, Subcommand)]
pub enum GroupCommand {
    /// Create a consumer group
    Create {
        /// Letters, digits, '%', '|', '_' and '-'
        #[arg(value_name = "NAME", value_parser = group_name)]
        name: GroupName,
        /// Deliver the messages of a queue in order, one after the other
        #[arg(long)]
        order: bool,
        /// After so many deliveries a message goes to the group's dead letter topic [default: as the broker says, 17]
        #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1_000))]
        max_deliveries: Option<u32>,
        /// Where it begins: first, last, or a time in ms since 1970
        #[arg(long, value_name = "WHERE", default_value = "first")]
        start: Start,
    },
    /// List all consumer groups
    List,
    /// Show a group and how far it has come
    Describe {
        #[arg(value_name = "NAME", value_parser = group_name)]
        name: GroupName,
    },
    /// Show how far a group is behind, queue by queue
    Progress {
        #[arg(value_name = "NAME", value_parser = group_name)]
        name: GroupName,
        /// Only in this topic
        #[arg(long, value_name = "TOPIC", value_parser = topic_name)]
        topic: Option<TopicName>,
    },
    /// Move a group to another place in a topic, back or forward, whether it is online or not
    Reset(group_change::ResetArguments),
    /// Change settings of a group; what is not named stays
    Update(group_change::UpdateArguments),
    /// Deliver nothing to a group until it is resumed
    Pause {
        #[arg(value_name = "NAME", value_parser = group_name)]
        name: GroupName,
    },
    /// Go on with a paused group
    Resume {
        #[arg(value_name = "NAME", value_parser = group_name)]
        name: GroupName,
    },
    /// Delete a group and its progress
    Delete {
        #[arg(value_name = "NAME", value_parser = group_name)]
        name: GroupName,
    },
    /// Have the broker group go on with one replica, when its majority is gone for good; without --confirm only tells what
    /// that would cost
    ///
    /// Of the replicas that answer the one with the longest log goes on, alone. All others are given up: what they held that this one
    /// does not is lost, and they neither vote nor count when they come back. Ask without --confirm first. The replica stops on
    /// the order and carries it out when it is started again; then add others, with empty directories: `flotilla admin
    /// replica add`.
    UnsafeRecover(unsafe_recover::Arguments),
}

/// `--start`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start(GroupStart);

/// A place to begin at that is none.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not a place to begin at: first, last, or a time in ms since 1970, such as 1767225600000")]
pub struct StartError(String);

impl FromStr for Start {
    type Err = StartError;

    fn from_str(text: &str) -> Result<Start, StartError> {
        match text {
            "first" => Ok(Start(GroupStart::First)),
            "last" => Ok(Start(GroupStart::Last)),
            text => match text.parse() {
                Ok(at_ms) => Ok(Start(GroupStart::TimestampMs(at_ms))),
                Err(_) => Err(StartError(text.to_owned())),
            },
        }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct GroupView {
    name: String,
    order: bool,
    max_deliveries: u32,
    start: String,
    paused: bool,
    retry_pauses_ms: Vec<u32>,
}

#[derive(Serialize)]
struct CreatedView {
    name: String,
    existed: bool,
}

#[derive(Serialize)]
struct ProgressView {
    topic: String,
    /// There if there are several.
    #[serde(skip_serializing_if = "String::is_empty")]
    broker_group: String,
    queue: u32,
    committed_offset: u64,
    next_offset: u64,
    in_flight: u64,
    min_offset: u64,
    max_offset: u64,
    lag: u64,
    /// None if it is not known.
    lag_ms: Option<u64>,
}

#[derive(Serialize)]
struct MemberView {
    client_id: String,
    topic: String,
    filter: String,
    idle_ms: u64,
}

#[derive(Serialize)]
struct DescribedView {
    #[serde(flatten)]
    group: GroupView,
    progress: Vec<ProgressView>,
    members: Vec<MemberView>,
    differing_topics: Vec<String>,
}

#[derive(Serialize)]
struct DeletedView<'a> {
    deleted: &'a str,
}

/// A group that cannot be found, and where to look.
#[derive(Debug, thiserror::Error)]
#[error("there is no group {name}; see what there is with: flotilla admin group list")]
struct NoGroup {
    name: GroupName,
}

/// A group of that name in another shape.
#[derive(Debug, thiserror::Error)]
#[error(
    "group {} exists with other settings: {}; delete it first with: flotilla admin group delete {}",
    .existing.name, .existing.settings(), .existing.name
)]
struct GroupDiffers {
    existing: GroupView,
}

impl GroupView {
    pub(super) fn settings(&self) -> String {
        let order = if self.order { "in order" } else { "without order" };
        let paused = if self.paused { ", paused" } else { "" };
        let pauses: Vec<String> = self.retry_pauses_ms.iter().map(u32::to_string).collect();
        let pauses = if pauses.is_empty() { String::new() } else { format!(", retries after {} ms", pauses.join(" ")) };
        format!("{order}, at most {} deliveries, begins at {}{pauses}{paused}", self.max_deliveries, self.start)
    }
}

pub async fn run(command: GroupCommand, admin: &AdminClient, json: bool) -> Result<(), Failure> {
    match command {
        GroupCommand::Create { name, order, max_deliveries, start } => {
            let max_deliveries = max_deliveries.unwrap_or(0);
            let spec = GroupSpec { name: name.clone(), order, max_deliveries, start: start.0 };
            let existed = match admin.create_group(&spec).await {
                Ok(existed) => existed,
                Err(error) => return Err(not_created(&spec, error, admin).await),
            };
            let created = if existed { "existed already" } else { "is created" };
            print(json, &CreatedView { name: name.to_string(), existed }, || format!("group {name} {created}"))
        }
        GroupCommand::List => {
            let groups = admin.list_groups().await.map_err(while_doing("groups cannot be listed"))?;
            let views: Vec<GroupView> = groups.iter().map(view_of).collect();
            print(json, &views, || table_of(&views))
        }
        GroupCommand::Describe { name } => {
            let described = admin.describe_group(&name).await.map_err(|error| not_done("described", &name, error))?;
            let progress = described.progress.iter().map(progress_view_of).collect();
            let members = described.members.into_iter().map(|member| MemberView {
                client_id: member.client_id,
                topic: member.topic,
                filter: member.filter,
                idle_ms: member.idle_ms,
            });
            let view = DescribedView {
                group: view_of(&described.group),
                progress,
                members: members.collect(),
                differing_topics: described.differing_topics,
            };
            print(json, &view, || text_of(&view))
        }
        GroupCommand::Progress { name, topic } => {
            let described = admin.describe_group(&name).await.map_err(|error| not_done("described", &name, error))?;
            let is_asked = |at: &&admin::GroupProgress| topic.as_ref().is_none_or(|topic| at.topic == topic.as_str());
            let views: Vec<ProgressView> = described.progress.iter().filter(is_asked).map(progress_view_of).collect();
            print(json, &views, || progress_text(&views))
        }
        GroupCommand::Reset(arguments) => group_change::reset(arguments, admin, json).await,
        GroupCommand::Update(arguments) => group_change::update(arguments, admin, json).await,
        GroupCommand::Pause { name } => group_change::pause(&name, true, admin, json).await,
        GroupCommand::Resume { name } => group_change::pause(&name, false, admin, json).await,
        GroupCommand::UnsafeRecover(arguments) => unsafe_recover::run(arguments, admin, json).await,
        GroupCommand::Delete { name } => {
            admin.delete_group(&name).await.map_err(|error| not_done("deleted", &name, error))?;
            print(json, &DeletedView { deleted: name.as_str() }, || format!("group {name} is deleted"))
        }
    }
}

/// If the group exists in another shape, says in which.
async fn not_created(spec: &GroupSpec, error: AdminError, admin: &AdminClient) -> Failure {
    if matches!(error, AdminError::Rejected { .. })
        && let Ok(existing) = admin.describe_group(&spec.name).await
    {
        return Failure::from(GroupDiffers { existing: view_of(&existing.group) });
    }
    Failure::from(while_doing(format!("group {} is not created", spec.name))(error))
}

pub(super) fn not_done(what: &str, name: &GroupName, error: AdminError) -> Failure {
    match error {
        AdminError::Rejected { code, .. } if code == Code::ConsumerGroupNotFound as i32 => {
            Failure::from(NoGroup { name: name.clone() })
        }
        error => Failure::from(while_doing(format!("group {name} is not {what}"))(error)),
    }
}

pub(super) fn view_of(group: &admin::Group) -> GroupView {
    let start = match group.start() {
        admin::StartPolicy::Unspecified | admin::StartPolicy::First => "first".to_owned(),
        admin::StartPolicy::Last => "last".to_owned(),
        admin::StartPolicy::Timestamp => group.start_timestamp_ms.to_string(),
    };
    GroupView {
        name: group.name.clone(),
        order: group.order,
        max_deliveries: group.max_deliveries,
        start,
        paused: group.paused,
        retry_pauses_ms: group.retry_pauses_ms.clone(),
    }
}

fn progress_view_of(progress: &admin::GroupProgress) -> ProgressView {
    ProgressView {
        topic: progress.topic.clone(),
        broker_group: progress.broker_group.clone(),
        queue: progress.queue,
        committed_offset: progress.committed_offset,
        next_offset: progress.next_offset,
        in_flight: progress.inflight_count,
        min_offset: progress.min_offset,
        max_offset: progress.max_offset,
        lag: progress.lag_messages,
        lag_ms: progress.lag_ms,
    }
}

fn table_of(groups: &[GroupView]) -> String {
    let mut table = Table::new(["GROUP", "ORDER", "MAX DELIVERIES", "START", "PAUSED"]);
    let yes_or_no = |is_so: bool| if is_so { "yes" } else { "no" }.to_owned();
    for group in groups {
        let (order, paused) = (yes_or_no(group.order), yes_or_no(group.paused));
        table.row([group.name.clone(), order, group.max_deliveries.to_string(), group.start.clone(), paused]);
    }
    if table.is_empty() {
        "no groups: create one with flotilla admin group create NAME".to_owned()
    } else {
        table.to_string()
    }
}

fn text_of(view: &DescribedView) -> String {
    let DescribedView { group, progress, .. } = view;
    let head = format!("group {}: {}", group.name, group.settings());
    let mut text = head;
    for topic in &view.differing_topics {
        text.push_str(&format!("\nits members have different filters in topic {topic}: each of them misses messages"));
    }
    text.push('\n');
    text.push_str(&progress_text(progress));
    if !view.members.is_empty() {
        let mut table = Table::new(["CLIENT", "TOPIC", "FILTER", "IDLE MS"]);
        for member in &view.members {
            let MemberView { client_id, topic, filter, idle_ms } = member;
            table.row([client_id.clone(), topic.clone(), filter.clone(), idle_ms.to_string()]);
        }
        text.push_str(&format!("\n{table}"));
    }
    text
}

fn progress_text(progress: &[ProgressView]) -> String {
    if progress.is_empty() {
        return "it has received nothing yet".to_owned();
    }
    let mut table =
        Table::new(["TOPIC", "QUEUE", "MIN", "COMMITTED", "NEXT", "MAX", "IN FLIGHT", "LAG", "LAG SECONDS"]);
    for at in progress {
        let numbers = [at.min_offset, at.committed_offset, at.next_offset, at.max_offset, at.in_flight, at.lag];
        let [min, committed, next, max, in_flight, lag] = numbers.map(|number| number.to_string());
        // Unknown is not 0.
        let seconds = at.lag_ms.map_or("?".to_owned(), |ms| format!("{}.{}", ms / 1000, ms % 1000 / 100));
        table.row([
            at.topic.clone(),
            queue_text(&at.broker_group, at.queue),
            min,
            committed,
            next,
            max,
            in_flight,
            lag,
            seconds,
        ]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_to_begin_at_is_a_word_or_a_time() {
        assert_eq!("first".parse::<Start>().unwrap(), Start(GroupStart::First));
        assert_eq!("last".parse::<Start>().unwrap(), Start(GroupStart::Last));
        assert_eq!("1767225600000".parse::<Start>().unwrap(), Start(GroupStart::TimestampMs(1_767_225_600_000)));
        let text = "yesterday".parse::<Start>().unwrap_err().to_string();
        assert!(text.contains("`yesterday`") && text.contains("first, last"), "{text}");
    }
}
