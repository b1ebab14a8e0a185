//! `flotilla receive`: print messages and acknowledge them.

mod broadcast;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use flotilla_client::{
    Delivery, Filter, ReceiveError, ReceivedMessage, RouteError, SimpleConsumer, SimpleConsumerConfig,
};
use flotilla_message::{GroupName, TopicName};
use flotilla_runtime::{Either, Runtime, select};
use futures::future::{join, join_all};
use serde::Serialize;

use crate::base64;
use crate::connect_options::{ConnectOptions, group_name, topic_name};
use crate::failure::Failure;
use crate::hints;
use crate::output;
use crate::quantity::parse_duration;
use crate::stop_signal::StopSignals;

/// Most messages asked for in one call.
const BATCH_MAX: u64 = 32;
/// Pause of --follow after a call that failed.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// How long the end may take to tell the brokers of it.
const GOOD_BYE_MAX: Duration = Duration::from_millis(500);
/// Longest wait of one call; a longer --timeout is several calls.
const CALL_WAIT_MAX: Duration = Duration::from_secs(20);

/// Receive messages of a topic for a consumer group, print each on a line, and acknowledge it.
///
/// A group that does not exist is created by its first receive, from the topic's first message on, unless the brokers
/// are told otherwise. A message is acknowledged after it is printed: one that was printed when this command died comes
/// again. With --broadcast nothing is acknowledged: every such command gets every message.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  flotilla receive --topic orders --group billing                  until nothing came for 5 seconds
  flotilla receive --topic orders --group billing --follow         until Ctrl-C
  flotilla receive --topic orders --group billing --max 1 --no-ack  look, leave it for others
  flotilla receive --topic orders --group vip --filter 'gold || silver' --json | jq .body
  flotilla receive --topic orders --group dear --sql 'price > 100'
  flotilla receive --topic news --group caches --broadcast --follow  all that is sent from now on
  flotilla receive --topic news --group caches --broadcast --positions here.pos --start first")]
pub struct ReceiveArguments {
    /// The topic; where the brokers allow it, one that does not exist is made
    #[arg(long, short, value_name = "TOPIC", value_parser = topic_name)]
    topic: TopicName,
    /// The consumer group
    #[arg(long, short, value_name = "GROUP", value_parser = group_name)]
    group: GroupName,
    /// End after so many messages
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    max: Option<u64>,
    /// End when nothing came for so long
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_duration)]
    timeout: Duration,
    /// Go on until Ctrl-C
    #[arg(long, conflicts_with = "timeout")]
    follow: bool,
    /// Do not acknowledge: messages come again when their invisible time is over
    #[arg(long)]
    no_ack: bool,
    /// How long a message is hidden from the rest of the group
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    invisible: Duration,
    /// Only messages with one of these tags, such as `gold || silver`
    #[arg(long, value_name = "TAGS")]
    filter: Option<String>,
    /// Only messages whose properties meet this condition, such as `price > 10 AND city LIKE 'hang%'`
    #[arg(long, value_name = "CONDITION", conflicts_with = "filter")]
    sql: Option<String>,
    /// Broadcasting: get every message, whatever others of the group get; from the newest on, without --positions
    #[arg(long, conflicts_with_all = ["no_ack", "invisible"])]
    broadcast: bool,
    /// With --broadcast: keep positions in this file and go on there next time; one for each such command
    #[arg(long, value_name = "FILE", requires = "broadcast")]
    positions: Option<PathBuf>,
    /// With --positions: where to begin while there is no file: first, or last
    #[arg(long, value_name = "WHERE", requires = "positions", default_value = "last")]
    start: Start,
    /// Print one JSON object per message
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectOptions,
}

/// Where broadcasting begins.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Start {
    First,
    Last,
}

/// Why receiving ended badly.
#[derive(Debug, thiserror::Error)]
enum ReceiveCommandError {
    #[error("receiving from {topic} for {group} failed after {received} messages: {error}{hint}")]
    Receive { topic: TopicName, group: GroupName, received: u64, error: ReceiveError, hint: String },
    #[error("{count} of {received} messages are printed but not acknowledged and will come again; the first: {first}")]
    Ack { count: u64, received: u64, first: String },
}

/// One `--json` line.
#[derive(Serialize)]
struct MessageLine<'a> {
    message_id: &'a str,
    topic: &'a str,
    queue: u32,
    offset: u64,
    attempt: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Option<&'a str>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    keys: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    message_group: Option<&'a str>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    properties: &'a BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<&'a str>,
    /// Instead of `body` when it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    body_base64: Option<String>,
}

pub async fn run(arguments: ReceiveArguments, runtime: Runtime) -> Result<(), Failure> {
    let client = arguments.connect.client().map_err(Failure::usage)?;
    if arguments.broadcast {
        return broadcast::run(&arguments, &client, &runtime).await;
    }
    let consumer = client.simple_consumer(SimpleConsumerConfig {
        filter: arguments.wanted(),
        await_duration: if arguments.follow { CALL_WAIT_MAX } else { arguments.timeout.min(CALL_WAIT_MAX) },
        ..SimpleConsumerConfig::new(arguments.group.clone(), arguments.topic.clone())
    })?;
    let mut signals = StopSignals::listen(false, &runtime)?;
    let result = match select(receive_all(&arguments, &consumer, &runtime), signals.next()).await {
        Either::Left(result) => result,
        Either::Right(_) => Ok(()),
    };
    consumer.shutdown(GOOD_BYE_MAX).await;
    result.map_err(Failure::from)
}

impl ReceiveArguments {
    fn wanted(&self) -> Filter {
        match (self.filter.clone(), self.sql.clone()) {
            (Some(tags), _) => Filter::Tag(tags),
            (None, Some(condition)) => Filter::Sql(condition),
            (None, None) => Filter::All,
        }
    }
}

async fn receive_all(
    arguments: &ReceiveArguments,
    consumer: &SimpleConsumer,
    runtime: &Runtime,
) -> Result<(), ReceiveCommandError> {
    let (mut received, mut acks) = (0_u64, Acks::default());
    // Printed and not yet acknowledged: acknowledged while the next call is under way.
    let mut printed: Vec<ReceivedMessage> = Vec::new();
    let mut last_message = runtime.now();
    let ended = loop {
        if arguments.max.is_some_and(|max| received >= max) {
            break Ok(());
        }
        let left = arguments.max.map_or(BATCH_MAX, |max| (max - received).min(BATCH_MAX));
        let receive = consumer.receive(left as usize, arguments.invisible);
        let (batch, ()) = join(receive, acks.ack_all(consumer, std::mem::take(&mut printed))).await;
        let mut batch = match batch {
            Ok(batch) => batch,
            Err(error) if arguments.follow && is_passing(&error) => {
                tracing::warn!(%error, "receive failed, going on");
                runtime.sleep(RETRY_PAUSE).await;
                continue;
            }
            Err(error) => {
                let hint = hints::for_receive(&error, &arguments.topic, &arguments.group);
                let (topic, group) = (arguments.topic.clone(), arguments.group.clone());
                break Err(ReceiveCommandError::Receive { topic, group, received, error, hint });
            }
        };
        if batch.is_empty() {
            if !arguments.follow && runtime.now().saturating_since(last_message) >= arguments.timeout {
                break Ok(());
            }
            continue;
        }
        let received_count = batch.len();
        batch.truncate(batch.iter().take_while(|message| print(message, arguments.json)).count());
        received += batch.len() as u64;
        let is_read = batch.len() == received_count;
        if !arguments.no_ack {
            printed = batch;
        }
        if !is_read {
            // Nobody reads any more (`| head`): what was not printed comes again for others.
            break Ok(());
        }
        last_message = runtime.now();
    };
    acks.ack_all(consumer, printed).await;
    ended?;
    match acks.first_error {
        None => Ok(()),
        Some(first) => Err(ReceiveCommandError::Ack { count: acks.failed, received, first }),
    }
}

/// Acknowledgements that failed.
#[derive(Default)]
struct Acks {
    failed: u64,
    first_error: Option<String>,
}

impl Acks {
    async fn ack_all(&mut self, consumer: &SimpleConsumer, messages: Vec<ReceivedMessage>) {
        for result in join_all(messages.iter().map(|message| consumer.ack(message))).await {
            if let Err(error) = result {
                self.failed += 1;
                self.first_error.get_or_insert_with(|| error.to_string());
            }
        }
    }
}

/// Whether waiting may help.
fn is_passing(error: &ReceiveError) -> bool {
    match error {
        ReceiveError::Unavailable { .. } | ReceiveError::Route(RouteError::Unreachable { .. }) => true,
        ReceiveError::Argument { .. } | ReceiveError::Route(_) | ReceiveError::Rejected { .. } => false,
    }
}

/// False when nobody reads.
fn print(message: &Delivery, json: bool) -> bool {
    if !json {
        return output::bytes_line(&message.body);
    }
    let text = std::str::from_utf8(&message.body).ok();
    let line = MessageLine {
        message_id: message.id.as_str(),
        topic: message.topic.as_str(),
        queue: message.queue,
        offset: message.offset,
        attempt: message.attempt,
        tag: message.tag.as_deref(),
        keys: &message.keys,
        message_group: message.message_group.as_deref(),
        properties: &message.properties,
        body: text,
        body_base64: text.is_none().then(|| base64::encode(&message.body)),
    };
    output::bytes_line(&serde_json::to_vec(&line).expect("strings and numbers become JSON"))
}
