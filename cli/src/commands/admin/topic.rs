//! `flotilla admin topic`.

use std::time::Duration;

use clap::Subcommand;
use flotilla_client::{AdminClient, AdminError, Spread, TopicDescription, TopicSpec};
use flotilla_message::{AckLevel, FlushLevel, MessageType, Permission, TopicName, limits};
use flotilla_proto::admin;
use flotilla_proto::status::Code;
use serde::Serialize;

use super::{print, while_doing};
use crate::connect_options::topic_name;
use crate::failure::Failure;
use crate::quantity::{QuantityError, format_count, format_duration, parse_duration};
use crate::table::Table;

#[derive(Debug, Subcommand)]
pub enum TopicCommand {
    /// Create a topic
    Create {
        /// Letters, digits, '%', '|', '_' and '-', at most 127 bytes
        #[arg(value_name = "NAME", value_parser = topic_name)]
        name: TopicName,
        /// What kind of messages it takes: NORMAL, FIFO (ordered within a message group), DELAY, TRANSACTION
        #[arg(long = "type", value_name = "TYPE", default_value_t = MessageType::Normal, ignore_case = true)]
        message_type: MessageType,
        /// How many queues its messages are spread over
        #[arg(long, value_name = "COUNT", default_value_t = limits::QUEUES_PER_TOPIC_DEFAULT, value_parser = clap::value_parser!(u32).range(1..=i64::from(limits::QUEUES_PER_TOPIC_MAX)))]
        queues: u32,
        /// How many replicas have a message when its send is answered: async (the leader), majority, sync (all that keep
        /// up, two at least). Default: as the group of brokers has it. Given again, it changes the topic's level
        #[arg(long, value_name = "LEVEL", ignore_case = true)]
        ack: Option<AckLevel>,
        /// Whether they have it on disk by then: sync or async. Default: as the group of brokers has it
        #[arg(long, value_name = "LEVEL", ignore_case = true)]
        flush: Option<FlushLevel>,
        /// How long its messages are kept, such as 90m or 24h; as long as the log by default. The log is one for all topics,
        /// so it cannot be longer than the brokers keep (retention_ms): messages vanish then, and their bytes go with the log
        #[arg(long, value_name = "TIME", value_parser = parse_duration)]
        retention: Option<Duration>,
        /// The broker groups that have it, each with so many queues [default: all of the cluster]
        #[arg(long = "over", value_name = "BROKER_GROUP", value_delimiter = ',')]
        over: Vec<String>,
    },
    /// Have a topic be in these broker groups; those that it leaves keep what they have, for reading
    ///
    /// A topic without order is there at once. An ordered one takes no messages until all that it has is consumed: repeat the
    /// command until it is done.
    Spread {
        #[arg(value_name = "NAME", value_parser = topic_name)]
        name: TopicName,
        /// The broker groups [default: all of the cluster]
        #[arg(long = "over", value_name = "BROKER_GROUP", value_delimiter = ',')]
        over: Vec<String>,
        /// How long to wait for the messages to be consumed, such as 30s
        #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "10s")]
        wait: Duration,
    },
    /// List all topics
    List {
        /// Also those that brokers made by themselves, such as dead letters
        #[arg(long)]
        system: bool,
    },
    /// Show a topic and the bounds of its queues
    Describe {
        #[arg(value_name = "NAME", value_parser = topic_name)]
        name: TopicName,
    },
    /// Change a topic while it is in use; what is not named stays
    Update {
        #[arg(value_name = "NAME", value_parser = topic_name)]
        name: TopicName,
        /// More queues are there at once; fewer take no messages from now on and go when all groups have consumed them:
        /// repeat the command until they are gone
        #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=i64::from(limits::QUEUES_PER_TOPIC_MAX)))]
        queues: Option<u32>,
        /// What clients may do: READ_WRITE, READ, WRITE, NONE
        #[arg(long, value_name = "PERMISSION", ignore_case = true)]
        permission: Option<Permission>,
        /// How long its messages are kept, such as 90m or 24h; 'log' for as long as the log does. The log is one for all topics,
        /// so it cannot be longer than the brokers keep (retention_ms): messages vanish then, and their bytes go with the log
        #[arg(long, value_name = "TIME", value_parser = kept_for)]
        retention: Option<u64>,
    },
    /// Delete a topic with all its messages
    Delete {
        #[arg(value_name = "NAME", value_parser = topic_name)]
        name: TopicName,
    },
}

#[derive(Debug, Serialize)]
struct TopicView {
    name: String,
    #[serde(rename = "type")]
    message_type: String,
    queues: u32,
    permission: String,
}

#[derive(Serialize)]
struct CreatedView {
    #[serde(flatten)]
    topic: TopicView,
    existed: bool,
}

#[derive(Serialize)]
struct QueueView {
    /// There if the topic is in several.
    #[serde(skip_serializing_if = "String::is_empty")]
    broker_group: String,
    queue: u32,
    first_offset: u64,
    next_offset: u64,
}

#[derive(Serialize)]
struct DescribedView {
    #[serde(flatten)]
    topic: TopicView,
    ack: String,
    flush: String,
    level_is_own: bool,
    retention_ms: u64,
    retention_is_own: bool,
    messages: u64,
    bounds: Vec<QueueView>,
}

#[derive(Serialize)]
struct DeletedView<'a> {
    deleted: &'a str,
}

/// A topic that cannot be found, and where to look.
#[derive(Debug, thiserror::Error)]
#[error("there is no topic {name}; see what there is with: flotilla admin topic list")]
struct NoTopic {
    name: TopicName,
}

/// A topic of that name in another shape.
#[derive(Debug, thiserror::Error)]
#[error(
    "topic {} exists with type {} and {} queues, asked for were type {message_type} and {queues} queues; \
     delete it first with: flotilla admin topic delete {}",
    .existing.name, .existing.message_type, .existing.queues, .existing.name
)]
struct TopicDiffers {
    existing: TopicView,
    message_type: String,
    queues: u32,
}

pub async fn run(command: TopicCommand, admin: &AdminClient, json: bool) -> Result<(), Failure> {
    match command {
        TopicCommand::Create { name, message_type, queues, ack, flush, retention, over } => {
            let retention_ms = retention.map(ms_of);
            let spec = TopicSpec { message_type, ack, flush, retention_ms, ..TopicSpec::new(name.clone(), queues) };
            let created = match over.is_empty() {
                true => admin.create_topic(&spec).await,
                false => admin.create_topic_in(&spec, &over).await,
            };
            let existed = match created {
                Ok(existed) => existed,
                Err(error) => return Err(not_created(&spec, error, admin).await),
            };
            let topic = TopicView {
                name: name.to_string(),
                message_type: message_type.to_string(),
                queues,
                permission: Permission::ReadWrite.to_string(),
            };
            let created = if existed { "existed already" } else { "is created" };
            let text = format!("topic {name} {created}: type {message_type}, {queues} queues");
            print(json, &CreatedView { topic, existed }, || text)
        }
        TopicCommand::Spread { name, over, wait } => spread(&name, over, wait, admin, json).await,
        TopicCommand::List { system } => {
            let topics = admin.list_topics(system).await.map_err(while_doing("topics cannot be listed"))?;
            let views: Vec<TopicView> = topics.iter().map(view_of).collect();
            print(json, &views, || table_of(&views))
        }
        TopicCommand::Describe { name } => {
            let described = admin.describe_topic(&name).await.map_err(|error| not_done("described", &name, error))?;
            let bounds: Vec<QueueView> = described.queues.iter().map(queue_view_of).collect();
            let messages = bounds.iter().map(|queue| queue.next_offset - queue.first_offset).sum();
            let topic = view_of(&described.topic);
            let TopicDescription { ack, flush, level_is_own, retention_ms, retention_is_own, .. } = described;
            let view =
                DescribedView { topic, ack, flush, level_is_own, retention_ms, retention_is_own, messages, bounds };
            print(json, &view, || text_of(&view))
        }
        TopicCommand::Update { name, queues, permission, retention } => {
            let request = admin::UpdateTopicRequest {
                name: name.to_string(),
                queue_count: queues,
                permission: permission.map(|permission| i32::from(permission.code())),
                retention_ms: retention,
            };
            let reply = admin.update_topic(request).await.map_err(|error| not_done("changed", &name, error))?;
            let topic = reply.topic.unwrap_or_default();
            let view = view_of(&topic);
            print(json, &view, || {
                let leaving = topic.queue_count - topic.writable_queues.min(topic.queue_count);
                let text = format!("topic {name} has {} queues, permission {}", topic.writable_queues, view.permission);
                match leaving {
                    0 => text,
                    more => format!("{text}; {more} more take no messages and go when they are consumed: repeat this"),
                }
            })
        }
        TopicCommand::Delete { name } => {
            admin.delete_topic(&name).await.map_err(|error| not_done("deleted", &name, error))?;
            print(json, &DeletedView { deleted: name.as_str() }, || format!("topic {name} is deleted"))
        }
    }
}

/// Messages must be consumed before an ordered topic takes new ones in its new place.
#[derive(Debug, thiserror::Error)]
#[error("topic {name} is not moved yet and takes no messages until it is: {reason}; repeat the command")]
struct NotMoved {
    name: TopicName,
    reason: String,
}

#[derive(Serialize)]
struct SpreadView<'a> {
    name: &'a str,
    broker_groups: Vec<String>,
}

async fn spread(
    name: &TopicName,
    over: Vec<String>,
    wait: Duration,
    admin: &AdminClient,
    json: bool,
) -> Result<(), Failure> {
    let failed = || while_doing(format!("topic {name} is not moved"));
    let groups = if over.is_empty() { admin.broker_groups().await.map_err(failed())? } else { over };
    let broker_groups = match admin.spread_topic_within(name, &groups, wait).await.map_err(failed())? {
        Spread::Done { groups } => groups,
        Spread::Waits { reason } => return Err(NotMoved { name: name.clone(), reason }.into()),
    };
    let view = SpreadView { name: name.as_str(), broker_groups };
    print(json, &view, || format!("topic {name} is in {}", view.broker_groups.join(", ")))
}

/// If the topic exists in another shape, says in which.
async fn not_created(spec: &TopicSpec, error: AdminError, admin: &AdminClient) -> Failure {
    if matches!(error, AdminError::Rejected { .. })
        && let Ok(existing) = admin.describe_topic(&spec.name).await
    {
        let existing = view_of(&existing.topic);
        let (message_type, queues) = (spec.message_type.to_string(), spec.queue_count);
        return Failure::from(TopicDiffers { existing, message_type, queues });
    }
    Failure::from(while_doing(format!("topic {} is not created", spec.name))(error))
}

fn not_done(what: &str, name: &TopicName, error: AdminError) -> Failure {
    match error {
        AdminError::Rejected { code, .. } if code == Code::TopicNotFound as i32 => {
            Failure::from(NoTopic { name: name.clone() })
        }
        error => Failure::from(while_doing(format!("topic {name} is not {what}"))(error)),
    }
}

fn ms_of(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A time, or the word for the log's, which is 0.
fn kept_for(text: &str) -> Result<u64, QuantityError> {
    if text.eq_ignore_ascii_case("log") { Ok(0) } else { parse_duration(text).map(ms_of) }
}

fn view_of(topic: &admin::Topic) -> TopicView {
    let code = |value: i32| u8::try_from(value).ok();
    let message_type = code(topic.message_type).and_then(MessageType::from_code);
    let permission = code(topic.permission).and_then(Permission::from_code);
    TopicView {
        name: topic.name.clone(),
        message_type: message_type.map_or_else(|| topic.message_type.to_string(), |known| known.to_string()),
        queues: topic.queue_count,
        permission: permission.map_or_else(|| topic.permission.to_string(), |known| known.to_string()),
    }
}

fn queue_view_of(bounds: &admin::QueueBounds) -> QueueView {
    QueueView {
        broker_group: bounds.broker_group.clone(),
        queue: bounds.queue,
        first_offset: bounds.min_offset,
        // A queue that answers in the middle of a change must not make us subtract below zero.
        next_offset: bounds.max_offset.max(bounds.min_offset),
    }
}

fn table_of(topics: &[TopicView]) -> String {
    let mut table = Table::new(["TOPIC", "TYPE", "QUEUES", "PERMISSION"]);
    for topic in topics {
        let (message_type, permission) = (topic.message_type.clone(), topic.permission.clone());
        table.row([topic.name.clone(), message_type, topic.queues.to_string(), permission]);
    }
    if table.is_empty() {
        "no topics: create one with flotilla admin topic create NAME".to_owned()
    } else {
        table.to_string()
    }
}

fn text_of(view: &DescribedView) -> String {
    let DescribedView { topic, ack, flush, level_is_own, retention_ms, retention_is_own, messages, bounds } = view;
    let mut table = Table::new(["QUEUE", "FIRST OFFSET", "NEXT OFFSET", "MESSAGES"]);
    for queue in bounds {
        let count = queue.next_offset - queue.first_offset;
        let cells = [queue.first_offset, queue.next_offset, count].map(|number| number.to_string());
        let [first, next, count] = cells;
        table.row([queue_text(&queue.broker_group, queue.queue), first, next, count]);
    }
    let (name, kind, permission) = (&topic.name, &topic.message_type, &topic.permission);
    let whose = |is_own: bool| if is_own { "its own" } else { "the group's" };
    let kept = format_duration(Duration::from_millis(*retention_ms));
    let level = format!(
        "sends are answered at {ack} with {flush} flush ({} level); messages are kept for {kept} ({} time)",
        whose(*level_is_own),
        whose(*retention_is_own)
    );
    format!("topic {name}: type {kind}, {permission}, {} messages\n{level}\n{table}", format_count(*messages))
}

/// A queue as tables show it: with its broker group where there are several.
pub(super) fn queue_text(broker_group: &str, queue: u32) -> String {
    if broker_group.is_empty() { queue.to_string() } else { format!("{broker_group}/{queue}") }
}
