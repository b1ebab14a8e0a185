//! `flotilla admin message`.

use clap::{Args, Subcommand};
use flotilla_client::AdminClient;
use flotilla_message::TopicName;
use flotilla_proto::{admin, v2};
use serde::Serialize;

use super::{print, while_doing};
use crate::connect_options::topic_name;
use crate::failure::Failure;
use crate::output;
use crate::table::Table;

/// Messages shown at most by one command.
const SHOWN_MAX: usize = 1_000;

#[derive(Debug, Subcommand)]
pub enum MessageCommand {
    /// Find messages by key or id, within a time
    Query {
        #[arg(value_name = "TOPIC", value_parser = topic_name)]
        topic: TopicName,
        /// Only messages with this key
        #[arg(long, value_name = "KEY")]
        key: Option<String>,
        /// Only the message with this id
        #[arg(long, value_name = "ID")]
        id: Option<String>,
        /// Only messages stored at this time or later, ms since 1970
        #[arg(long, value_name = "MS", default_value_t = 0)]
        from: u64,
        /// Only messages stored before this time, ms since 1970; 0 for no bound
        #[arg(long, value_name = "MS", default_value_t = 0)]
        to: u64,
        /// Stop after so many
        #[arg(long, value_name = "COUNT", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=SHOWN_MAX as i64))]
        count: u32,
    },
    /// Show one message with its body, by its id or by queue and offset
    View {
        #[arg(value_name = "TOPIC", value_parser = topic_name)]
        topic: TopicName,
        #[command(flatten)]
        place: Place,
    },
    /// List messages of a queue from an offset on
    ByOffset {
        #[arg(value_name = "TOPIC", value_parser = topic_name)]
        topic: TopicName,
        #[arg(long, value_name = "QUEUE")]
        queue: u32,
        #[arg(long, value_name = "OFFSET")]
        offset: u64,
        #[arg(long, value_name = "COUNT", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=256))]
        count: u32,
    },
    /// List messages of all queues from a time on
    ByTime {
        #[arg(value_name = "TOPIC", value_parser = topic_name)]
        topic: TopicName,
        /// ms since 1970
        #[arg(long, value_name = "MS")]
        from: u64,
        /// ms since 1970; 0 for no bound
        #[arg(long, value_name = "MS", default_value_t = 0)]
        to: u64,
        #[arg(long, value_name = "COUNT", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=SHOWN_MAX as i64))]
        count: u32,
    },
    /// Show what became of a message in each group
    Trace {
        #[arg(value_name = "TOPIC", value_parser = topic_name)]
        topic: TopicName,
        #[command(flatten)]
        place: Place,
    },
}

/// Which message is meant.
#[derive(Debug, Args)]
pub struct Place {
    /// The message with this id
    #[arg(long, value_name = "ID", required_unless_present = "queue")]
    id: Option<String>,
    /// The message in this queue, at --offset
    #[arg(long, value_name = "QUEUE", requires = "offset", conflicts_with = "id")]
    queue: Option<u32>,
    #[arg(long, value_name = "OFFSET", requires = "queue", conflicts_with = "id")]
    offset: Option<u64>,
}

/// A message as it is shown.
#[derive(Debug, Serialize)]
pub(super) struct MessageView {
    topic: String,
    queue: u32,
    offset: u64,
    id: String,
    tag: Option<String>,
    keys: Vec<String>,
    stored_at_ms: u64,
    properties: std::collections::BTreeMap<String, String>,
    body_bytes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sent_to: Option<String>,
}

#[derive(Serialize)]
struct TraceView {
    group: String,
    state: &'static str,
    attempts: u32,
    invisible_until_ms: u64,
    dead_letter_offset: Option<u64>,
}

/// No message is where one was looked for.
#[derive(Debug, thiserror::Error)]
#[error("there is no message at offset {offset} of queue {queue} of topic {topic}")]
struct NoMessage {
    topic: TopicName,
    queue: u32,
    offset: u64,
}

/// There is no message with an id, or more than one.
#[derive(Debug, thiserror::Error)]
enum IdError {
    #[error("there is no message with id {id} in topic {topic}; {looked_at} were looked at")]
    None { topic: TopicName, id: String, looked_at: u64 },
    #[error(
        "there are several messages with id {id} in topic {topic}: choose one by --queue and --offset\n{}",
        table_of(found)
    )]
    Several { topic: TopicName, id: String, found: Vec<MessageView> },
}

pub async fn run(command: MessageCommand, admin: &AdminClient, json: bool) -> Result<(), Failure> {
    match command {
        MessageCommand::Query { topic, key, id, from, to, count } => {
            let request = admin::FindMessagesRequest {
                topic: topic.to_string(),
                from_ms: from,
                to_ms: to,
                key: key.unwrap_or_default(),
                message_id: id.unwrap_or_default(),
                ..Default::default()
            };
            list(request, count as usize, admin, json).await
        }
        MessageCommand::ByTime { topic, from, to, count } => {
            let request =
                admin::FindMessagesRequest { topic: topic.to_string(), from_ms: from, to_ms: to, ..Default::default() };
            list(request, count as usize, admin, json).await
        }
        MessageCommand::ByOffset { topic, queue, offset, count } => {
            let request = admin::FindMessagesRequest {
                topic: topic.to_string(),
                queue: Some(queue),
                from_offset: Some(offset),
                ..Default::default()
            };
            list(request, count as usize, admin, json).await
        }
        MessageCommand::View { topic, place } => {
            let (queue, offset) = place.find(&topic, admin).await?;
            let request = admin::FindMessagesRequest {
                topic: topic.to_string(),
                queue: Some(queue),
                from_offset: Some(offset),
                count: 1,
                ..Default::default()
            };
            let reply = admin.find_messages(request).await;
            let reply = reply.map_err(while_doing(format!("messages of topic {topic} cannot be read")))?;
            let found = reply.messages.into_iter().find(|found| found.offset == offset);
            let found = found.ok_or(NoMessage { topic, queue, offset })?;
            let view = MessageView { body: body_of(&found), ..view_of(&found) };
            print(json, &view, || text_of(&view))
        }
        MessageCommand::Trace { topic, place } => {
            let (queue, offset) = place.find(&topic, admin).await?;
            let request = admin::TraceMessageRequest { topic: topic.to_string(), queue, offset };
            let reply = admin.trace_message(request).await;
            let reply = reply.map_err(while_doing(format!(
                "message at offset {offset} of queue {queue} of {topic} cannot be traced"
            )))?;
            let views: Vec<TraceView> = reply.groups.iter().map(trace_view_of).collect();
            print(json, &views, || trace_text(&views))
        }
    }
}

impl Place {
    /// Queue and offset.
    async fn find(self, topic: &TopicName, admin: &AdminClient) -> Result<(u32, u64), Failure> {
        if let (Some(queue), Some(offset)) = (self.queue, self.offset) {
            return Ok((queue, offset));
        }
        let id = self.id.expect("clap asks for one of them");
        let request =
            admin::FindMessagesRequest { topic: topic.to_string(), message_id: id.clone(), ..Default::default() };
        let (found, looked_at) = find(request, 2, admin).await?;
        let topic = topic.clone();
        match &found[..] {
            [view] => Ok((view.queue, view.offset)),
            [] => Err(IdError::None { topic, id, looked_at }.into()),
            _ => Err(IdError::Several { topic, id, found }.into()),
        }
    }
}

/// Prints what is found.
async fn list(
    request: admin::FindMessagesRequest,
    count: usize,
    admin: &AdminClient,
    json: bool,
) -> Result<(), Failure> {
    let topic = request.topic.clone();
    let (views, looked_at) = find(request, count, admin).await?;
    if views.is_empty() && !json {
        output::line(format!("no such message in topic {topic}; {looked_at} were looked at"));
        return Ok(());
    }
    print(json, &views, || table_of(&views))
}

/// Asks on and on until there are enough or there is nothing more; says how far it is, as that may take a while.
async fn find(
    mut request: admin::FindMessagesRequest,
    count: usize,
    admin: &AdminClient,
) -> Result<(Vec<MessageView>, u64), Failure> {
    let topic = request.topic.clone();
    let (mut views, mut looked_at) = (Vec::new(), 0);
    let queues = match request.queue {
        Some(queue) => queue..queue + 1,
        None => {
            let name = TopicName::try_from(topic.as_str()).map_err(Failure::usage)?;
            let described = admin.describe_topic(&name).await;
            let described = described.map_err(while_doing(format!("topic {topic} cannot be read")))?;
            0..described.topic.queue_count
        }
    };
    'queues: for queue in queues {
        let first_offset = request.from_offset;
        request.queue = Some(queue);
        loop {
            request.count = u32::try_from(count - views.len()).unwrap_or(u32::MAX);
            let reply = admin.find_messages(request.clone()).await;
            let reply = reply.map_err(while_doing(format!("messages of topic {topic} cannot be read")))?;
            looked_at += reply.looked_at;
            views.extend(reply.messages.iter().map(view_of));
            if views.len() >= count {
                break 'queues;
            }
            match reply.next_offset {
                Some(next) => request.from_offset = Some(next),
                None => break,
            }
            tracing::info!(queue, looked_at, found = views.len(), "searching");
        }
        request.from_offset = first_offset;
    }
    Ok((views, looked_at))
}

pub(super) fn view_of(found: &admin::FoundMessage) -> MessageView {
    let message = found.message.clone().unwrap_or_default();
    let system = message.system_properties.unwrap_or_default();
    let stored = system.store_timestamp.unwrap_or_default();
    let ms = stored.seconds.saturating_mul(1000).saturating_add(i64::from(stored.nanos / 1_000_000));
    MessageView {
        topic: found.topic.clone(),
        queue: found.queue,
        offset: found.offset,
        id: system.message_id,
        tag: system.tag,
        keys: system.keys,
        stored_at_ms: u64::try_from(ms).unwrap_or(0),
        properties: message.user_properties.into_iter().collect(),
        body_bytes: message.body.len(),
        body: None,
        sent_to: system.dead_letter_queue.map(|letter: v2::DeadLetterQueue| letter.topic),
    }
}

fn body_of(found: &admin::FoundMessage) -> Option<String> {
    found.message.as_ref().map(|message| String::from_utf8_lossy(&message.body).into_owned())
}

pub(super) fn table_of(views: &[MessageView]) -> String {
    let mut table = Table::new(["QUEUE", "OFFSET", "STORED AT MS", "ID", "TAG", "KEYS", "BYTES"]);
    for view in views {
        let tag = view.tag.clone().unwrap_or_default();
        let numbers = [view.queue.to_string(), view.offset.to_string(), view.stored_at_ms.to_string()];
        let [queue, offset, stored] = numbers;
        table.row([queue, offset, stored, view.id.clone(), tag, view.keys.join(" "), view.body_bytes.to_string()]);
    }
    table.to_string()
}

/// As [`table_of`], with the topic that each was sent to.
pub(super) fn letters_table_of(views: &[MessageView]) -> String {
    let mut table = Table::new(["OFFSET", "SENT TO", "DEAD SINCE MS", "ID", "TAG", "KEYS", "BYTES"]);
    for view in views {
        let (tag, sent_to) = (view.tag.clone().unwrap_or_default(), view.sent_to.clone().unwrap_or_default());
        let (offset, since, bytes) =
            (view.offset.to_string(), view.stored_at_ms.to_string(), view.body_bytes.to_string());
        table.row([offset, sent_to, since, view.id.clone(), tag, view.keys.join(" "), bytes]);
    }
    table.to_string()
}

fn text_of(view: &MessageView) -> String {
    let mut text = format!(
        "message {}\ntopic {}, queue {}, offset {}, stored at {} ms\n",
        view.id, view.topic, view.queue, view.offset, view.stored_at_ms
    );
    if let Some(tag) = &view.tag {
        text.push_str(&format!("tag {tag}\n"));
    }
    if !view.keys.is_empty() {
        text.push_str(&format!("keys {}\n", view.keys.join(" ")));
    }
    for (key, value) in &view.properties {
        text.push_str(&format!("property {key} = {value}\n"));
    }
    text.push_str(&format!("body, {} bytes:\n{}", view.body_bytes, view.body.as_deref().unwrap_or_default()));
    text
}

fn trace_view_of(trace: &admin::MessageTrace) -> TraceView {
    let state = match trace.state() {
        admin::message_trace::State::Unspecified => "unknown",
        admin::message_trace::State::Waiting => "waiting",
        admin::message_trace::State::InFlight => "in flight",
        admin::message_trace::State::Due => "due again",
        admin::message_trace::State::Consumed if trace.dead_letter_offset.is_some() => "dead letter",
        admin::message_trace::State::Consumed => "consumed",
    };
    TraceView {
        group: trace.group.clone(),
        state,
        attempts: trace.attempts,
        invisible_until_ms: trace.invisible_until_ms,
        dead_letter_offset: trace.dead_letter_offset,
    }
}

fn trace_text(views: &[TraceView]) -> String {
    if views.is_empty() {
        return "no group has received from this queue yet".to_owned();
    }
    let mut table = Table::new(["GROUP", "STATE", "DELIVERIES", "INVISIBLE UNTIL MS", "DEAD LETTER"]);
    for view in views {
        let known = |number: u64| if number == 0 { "-".to_owned() } else { number.to_string() };
        let letter = view.dead_letter_offset.map_or("-".to_owned(), |offset| offset.to_string());
        let (attempts, until) = (known(u64::from(view.attempts)), known(view.invisible_until_ms));
        table.row([view.group.clone(), view.state.to_owned(), attempts, until, letter]);
    }
    table.to_string()
}
