//! The telemetry stream: the client speaks first, the broker answers its settings and keeps the stream for commands.

use std::sync::Arc;

use flotilla_message::GroupName;
use flotilla_proto::status::{Code, ok, status};
use flotilla_proto::{CallContext, Replies, v2};
use tokio::sync::mpsc;

use super::clients::Client;
use super::names;
use super::settings::{Terms, merged};
use crate::consume::receive::filter;
use crate::replica::Replica;

/// Commands that may wait on one stream.
const COMMANDS_MAX: usize = 16;

/// Opens a stream; returns at once.
pub fn open(
    replica: &Arc<Replica>,
    context: CallContext,
    commands: mpsc::Receiver<v2::TelemetryCommand>,
) -> Replies<v2::TelemetryCommand> {
    let (sender, replies) = mpsc::channel(COMMANDS_MAX);
    let Some(client_id) = context.client_id.clone() else {
        let text = "metadata x-mq-client-id is missing";
        let refusal = v2::TelemetryCommand { status: Some(status(Code::ClientIdRequired, text)), command: None };
        // Cannot fail: the channel is new.
        let _ = sender.try_send(refusal);
        return replies;
    };
    let (serving, answers) = (replica.clone(), sender.clone());
    replica.clients.open_stream(client_id, sender, move |id| {
        let runtime = serving.runtime.clone();
        runtime.spawn("telemetry", async move {
            serve(&serving, &context, commands, answers).await;
            serving.clients.close_stream(id);
        })
    });
    replies
}

async fn serve(
    replica: &Replica,
    context: &CallContext,
    mut commands: mpsc::Receiver<v2::TelemetryCommand>,
    answers: mpsc::Sender<v2::TelemetryCommand>,
) {
    while let Some(command) = commands.recv().await {
        let answer = match command.command {
            Some(v2::telemetry_command::Command::Settings(settings)) => settle(replica, context, settings),
            // Answers to commands of ours; nobody waits for one yet.
            Some(
                v2::telemetry_command::Command::ThreadStackTrace(_)
                | v2::telemetry_command::Command::VerifyMessageResult(_),
            )
            | None => continue,
            Some(_) => v2::TelemetryCommand {
                status: Some(status(Code::NotImplemented, "command is one that servers send to clients")),
                command: None,
            },
        };
        if answers.send(answer).await.is_err() {
            return;
        }
    }
}

/// Notes what the client says of itself and answers the settings it is to use.
fn settle(replica: &Replica, context: &CallContext, settings: v2::Settings) -> v2::TelemetryCommand {
    let subscription = match &settings.pub_sub {
        Some(v2::settings::PubSub::Subscription(subscription)) => Some(subscription),
        Some(v2::settings::PubSub::Publishing(_)) | None => None,
    };
    let group = subscription.and_then(|subscription| names::group(context, subscription.group.as_ref()).ok());
    if let Some(client_id) = &context.client_id {
        let topics = match &settings.pub_sub {
            Some(v2::settings::PubSub::Publishing(publishing)) => &publishing.topics[..],
            Some(v2::settings::PubSub::Subscription(_)) | None => &[],
        };
        let topics = topics.iter().filter_map(|topic| names::topic(context, Some(topic)).ok());
        let client = Client {
            language: context.language.clone(),
            client_type: settings.client_type(),
            group: group.as_ref().map(GroupName::to_string).unwrap_or_default(),
            topics: topics.map(|topic| topic.to_string()).collect(),
            seen_at: replica.runtime.now(),
        };
        replica.clients.heard(client_id, client);
    }
    // A filter that no receive would be served with is better known before the first of them.
    let subscriptions = subscription.map(|subscription| &subscription.subscriptions[..]).unwrap_or_default();
    let filters = subscriptions.iter().map(|entry| filter(entry.expression.as_ref(), replica.lanes.compiled()));
    if let Some(refusal) = filters.filter_map(Result::err).next() {
        return v2::TelemetryCommand { status: Some(refusal), command: None };
    }
    let terms = terms_for(replica, group.as_ref());
    let settings = merged(settings, terms);
    // The status must be there: one client ignores the whole answer without it.
    v2::TelemetryCommand { status: Some(ok()), command: Some(v2::telemetry_command::Command::Settings(settings)) }
}

fn terms_for(replica: &Replica, group: Option<&GroupName>) -> Terms {
    let known = group.and_then(|group| replica.store.group(group));
    Terms {
        body_bytes_max: replica.config.body_bytes_max,
        order: known.as_ref().is_some_and(|group| group.order),
        max_deliveries: known.as_ref().map_or(replica.config.max_deliveries, |group| group.max_deliveries),
        retry_pauses_ms: known.map(|group| group.retry_pauses_ms).unwrap_or_default(),
    }
}
