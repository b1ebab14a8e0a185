//! `flotilla send`: lines become messages.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use flotilla_client::{OutgoingMessage, Producer, ProducerConfig, SendError, SendReceipt};
use flotilla_message::{TopicName, limits};
use flotilla_runtime::{Either, Runtime, select};
use futures::stream::{FuturesUnordered, StreamExt};
use serde::Serialize;
use tokio::sync::mpsc;

use crate::connect_options::{ConnectOptions, topic_name};
use crate::failure::Failure;
use crate::hints;
use crate::lines::{Line, LineError, read_lines};
use crate::output;
use crate::progress::Progress;
use crate::quantity::{format_count, format_duration, parse_duration};

/// How many failures are told one by one; the rest is counted.
const FAILURES_SHOWN: usize = 10;

/// Send each line of stdin or of a file as one message.
///
/// A send that fails is tried again for up to 10 seconds under the same message id, so that it is stored at most
/// once. At the first line that fails for good no further line is begun; each line that failed is told, and whether it
/// is stored.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  printf 'a\\nb\\nc\\n' | flotilla send --topic orders
  flotilla send --topic orders --file orders.txt --tag new --property source=import
  flotilla send --topic steps --group order-17 < steps.txt      a FIFO topic: lines keep their order
  flotilla send --topic reminders --delay 90s < reminders.txt   a DELAY topic: nobody sees them before
  flotilla send --topic orders --json < orders.txt | jq .offset  one receipt a line")]
pub struct SendArguments {
    /// The topic; where the brokers allow it, one that does not exist is made by its first message
    #[arg(long, short, value_name = "TOPIC", value_parser = topic_name)]
    topic: TopicName,
    /// Read lines from a file instead of stdin
    #[arg(long, short, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Tag of every message, by which consumers may filter
    #[arg(long)]
    tag: Option<String>,
    /// A key of every message, by which it may be looked for; may be repeated
    #[arg(long)]
    key: Vec<String>,
    /// Message group of every message, for FIFO topics; lines are then sent one after the other
    #[arg(long, value_name = "MESSAGE_GROUP")]
    group: Option<String>,
    /// Deliver each message so long after it is sent, for DELAY topics, such as 500ms, 90s or 2h
    #[arg(long, value_name = "TIME", value_parser = parse_duration, conflicts_with = "group")]
    delay: Option<Duration>,
    /// A property of every message; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = property)]
    property: Vec<(String, String)>,
    /// Most lines under way at once; with 1 they are stored in their order [default: 64, with --group 1]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    in_flight: Option<u32>,
    /// Print one JSON object per message stored
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectOptions,
}

/// Why the command did not do what it was asked to.
#[derive(Debug, thiserror::Error)]
enum SendCommandError {
    #[error("{} cannot be read: {source}", path.display())]
    Open { path: PathBuf, source: std::io::Error },
    #[error("{stored} lines are stored; {failures}")]
    Lines { stored: u64, failures: LineFailures },
}

/// A `--property` without a value.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not of the form KEY=VALUE")]
struct PropertyError(String);

fn property(text: &str) -> Result<(String, String), PropertyError> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(PropertyError(text.to_owned())),
    }
}

/// The lines that are not stored, or not known to be.
#[derive(Debug, Default)]
struct LineFailures {
    count: u64,
    shown: Vec<String>,
    /// What can be done, said once.
    hint: String,
}

impl LineFailures {
    fn add(&mut self, number: u64, text: String, hint: String) {
        self.count += 1;
        if self.hint.is_empty() {
            self.hint = hint;
        }
        if self.shown.len() < FAILURES_SHOWN {
            self.shown.push(format!("line {number}: {text}"));
        }
    }
}

impl fmt::Display for LineFailures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed:", self.count)?;
        for text in &self.shown {
            write!(f, "\n  {text}")?;
        }
        let more = self.count.saturating_sub(self.shown.len() as u64);
        if more > 0 {
            write!(f, "\n  and {more} more")?;
        }
        f.write_str(&self.hint)
    }
}

/// One `--json` line.
#[derive(Serialize)]
struct StoredLine<'a> {
    line: u64,
    message_id: &'a str,
    topic: &'a str,
    broker_group: &'a str,
    queue: Option<u32>,
    offset: u64,
}

pub async fn run(arguments: SendArguments, runtime: Runtime) -> Result<(), Failure> {
    let client = arguments.connect.client().map_err(Failure::usage)?;
    let in_flight = arguments.in_flight.unwrap_or(if arguments.group.is_some() { 1 } else { 64 }) as usize;
    let producer = client.producer(ProducerConfig { in_flight_max: in_flight, ..ProducerConfig::default() })?;
    let source: Box<dyn Read + Send> = match &arguments.file {
        None => Box::new(std::io::stdin()),
        Some(path) => {
            let open = File::open(path).map_err(|source| SendCommandError::Open { path: path.clone(), source });
            Box::new(open.map_err(Failure::usage)?)
        }
    };
    let started = runtime.now();
    let mut progress = Progress::on_terminal("sent", None, &runtime);
    let lines = read_lines(source, limits::BODY_BYTES_MAX, &runtime);
    let message_of = |body| message_of(&arguments, &runtime, body);
    let (stored, failures) = send_all(&arguments, &producer, message_of, in_flight, lines, &mut progress).await;
    progress.finish();
    if failures.count > 0 {
        return Err(SendCommandError::Lines { stored, failures }.into());
    }
    let took = runtime.now() - started;
    eprintln!("{} messages stored in {}, took {}", format_count(stored), arguments.topic, format_duration(took));
    Ok(())
}

/// Sends until the lines end or one fails; returns how many are stored.
async fn send_all(
    arguments: &SendArguments,
    producer: &Producer,
    message_of: impl Fn(Bytes) -> OutgoingMessage,
    in_flight: usize,
    mut lines: mpsc::Receiver<Result<Line, LineError>>,
    progress: &mut Progress,
) -> (u64, LineFailures) {
    let mut under_way = FuturesUnordered::new();
    let mut failures = LineFailures::default();
    let (mut stored, mut more) = (0, true);
    loop {
        let may_begin = more && failures.count == 0 && under_way.len() < in_flight;
        if !may_begin && under_way.is_empty() {
            return (stored, failures);
        }
        let begin = async { if may_begin { lines.recv().await } else { std::future::pending().await } };
        let end = async { if under_way.is_empty() { std::future::pending().await } else { under_way.next().await } };
        match select(end, begin).await {
            Either::Left(ended) => {
                let (number, result): (u64, Result<SendReceipt, SendError>) =
                    ended.expect("the set was seen not to be empty");
                match result {
                    Ok(receipt) => {
                        stored += 1;
                        if arguments.json {
                            print_receipt(number, &receipt);
                        }
                    }
                    Err(error) => {
                        failures.add(number, text_of(&error), hints::for_send(&error, &arguments.topic));
                    }
                }
                progress.update(stored, "");
            }
            Either::Right(Some(Ok(line))) => {
                let send = producer.send(message_of(line.bytes));
                under_way.push(async move { (line.number, send.await) });
            }
            Either::Right(Some(Err(error))) => failures.add(error.number(), error.to_string(), String::new()),
            Either::Right(None) => more = false,
        }
    }
}

fn message_of(arguments: &SendArguments, runtime: &Runtime, body: Bytes) -> OutgoingMessage {
    let mut message = OutgoingMessage::new(arguments.topic.clone(), body);
    if let Some(delay) = arguments.delay {
        let delay_ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        message = message.with_delivery_at_ms(runtime.wall_ms().saturating_add(delay_ms));
    }
    if let Some(tag) = &arguments.tag {
        message = message.with_tag(tag.clone());
    }
    if let Some(group) = &arguments.group {
        message = message.with_message_group(group.clone());
    }
    for key in &arguments.key {
        message = message.with_key(key.clone());
    }
    for (key, value) in &arguments.property {
        message = message.with_property(key.clone(), value.clone());
    }
    message
}

/// The outcome and the broker's words.
fn text_of(error: &SendError) -> String {
    let outcome = if error.is_surely_not_stored() { "not stored" } else { "unknown whether stored" };
    format!("{outcome}: {error}")
}

fn print_receipt(line: u64, receipt: &SendReceipt) {
    let stored = StoredLine {
        line,
        message_id: receipt.message_id.as_str(),
        topic: receipt.topic.as_str(),
        broker_group: &receipt.broker_group,
        queue: receipt.queue,
        offset: receipt.offset,
    };
    output::line(serde_json::to_string(&stored).expect("strings and numbers become JSON"));
}
