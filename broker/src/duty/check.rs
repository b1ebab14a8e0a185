//! The duty that asks producers what became of their transactions.
//!
//! The question goes over a telemetry stream of any producer of the topic, on whichever replica it is open: this one, else
//! the others are asked to pass it on. The log counts the question before it is asked, so a lost one (no stream, a dead
//! one, a leader that dies in between) costs one round of its interval, never the message. The answer is an EndTransaction.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flotilla_message::TopicName;
use flotilla_proto::client::{CallOptions, PeerCalls};
use flotilla_proto::status::{Code, is_ok, ok, status};
use flotilla_proto::{admin, peer, v2};
use flotilla_store::{Command, HalfMessage, Outcome};
use futures::future::join_all;
use prost::Message as _;

use super::news::{DutyNews, LONG, REFUSED_PAUSE, led_here, wait};
use crate::consume::delivery::stored_properties;
use crate::consume::frames::Frames;
use crate::produce::held_handle::HeldHandle;
use crate::replica::Replica;

/// Half messages that one command counts and whose producers are asked at the same time.
const CHECKS_MAX: u32 = 32;
/// How long another replica may take to pass a question on.
const ASK_TIMEOUT: Duration = Duration::from_secs(1);
/// How long all replicas of other broker groups together may take.
const ABROAD_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a question waits for room on a stream; less than another replica may take.
const ROOM_TIMEOUT: Duration = Duration::from_millis(500);
/// The name of the call by which replicas hand on a question.
pub const METHOD: &str = "AskProducer";
/// Its metadata: the how-manieth question about the message it is.
const TURN: &str = "x-flotilla-turn";

/// Runs as long as the replica.
pub async fn check_transactions(replica: Arc<Replica>, news: Arc<DutyNews>) {
    loop {
        let (term, generation) = led_here(&replica).await;
        let now = replica.runtime.now();
        let Some(check_at_ms) = replica.store.next_check_ms() else {
            wait(&replica, &news.checks, generation, now + LONG).await;
            continue;
        };
        let left_ms = check_at_ms.saturating_sub(replica.clock.now_ms(term, &replica.store));
        if left_ms > 0 {
            wait(&replica, &news.checks, generation, now + Duration::from_millis(left_ms)).await;
            continue;
        }
        let command = Command::CheckTransactions {
            count: CHECKS_MAX,
            next_after_ms: replica.config.transaction_check_interval_ms,
            checks_max: replica.config.transaction_checks_max,
        };
        match replica.proposer.submit(term, command).await.map(|settled| settled.outcome) {
            Ok(Outcome::TransactionsChecked { halves }) => {
                replica.counters.checked(halves.iter().filter(|half| !half.is_parked).count() as u64);
                join_all(halves.iter().map(|half| ask(&replica, half))).await;
            }
            Ok(other) => {
                tracing::debug!(?other, "transactions not checked");
                replica.runtime.sleep(REFUSED_PAUSE).await;
            }
            Err(error) => {
                tracing::debug!(%error, "transactions not checked");
                replica.runtime.sleep(REFUSED_PAUSE).await;
            }
        }
    }
}

/// Asks one producer; failing to is logged, and no trouble for the others.
async fn ask(replica: &Replica, half: &HalfMessage) {
    let (topic, message) = (&half.topic, half.slot.message);
    if half.is_parked {
        tracing::warn!(%topic, %message, checks = half.checks, "half message parked: no producer ended its transaction");
        return;
    }
    let command = match question(replica, half).await {
        Ok(command) => command,
        Err(reason) => {
            tracing::error!(%topic, %message, reason, "half message cannot be read, its producer is not asked");
            return;
        }
    };
    // This replica first, and another one first the next time: a stream may be dead without anybody knowing.
    let mut places: Vec<_> = std::iter::once(None).chain(replica.forwarder.peers().into_iter().map(Some)).collect();
    let first = half.checks.saturating_sub(1) as usize % places.len();
    places.rotate_left(first);
    for place in places {
        let is_asked = match place {
            None => tell_producer(replica, topic.as_str(), half.checks, &command).await,
            Some(peer) => pass_on(&peer, half.checks, &command).await,
        };
        if is_asked {
            return;
        }
    }
    // A producer that sent it by way of another group may listen there alone.
    let abroad = ask_abroad(replica, topic, half.checks, &command);
    if !replica.runtime.timeout(ABROAD_TIMEOUT, abroad).await.unwrap_or(false) {
        tracing::info!(%topic, %message, checks = half.checks, "no producer of the topic listens on any replica");
    }
}

/// Has a replica of another broker group ask that has the topic too; whether one did. Another group first each time.
async fn ask_abroad(replica: &Replica, topic: &TopicName, turn: u32, command: &v2::TelemetryCommand) -> bool {
    let mut groups = replica.cluster.topic(topic).await;
    if groups.is_empty() {
        return false;
    }
    let first = turn as usize % groups.len();
    groups.rotate_left(first);
    let request = admin::AskProducerRequest { turn, question: command.encode_to_vec().into() };
    for there in groups {
        for calls in replica.cluster.admins_of(&there.group) {
            let asked = calls.ask_producer(CallOptions::within(ASK_TIMEOUT), request.clone()).await;
            if asked.is_ok_and(|reply| is_ok(reply.status.as_ref())) {
                return true;
            }
        }
    }
    false
}

/// Has another replica ask; whether it did.
async fn pass_on(peer: &Arc<dyn PeerCalls>, turn: u32, command: &v2::TelemetryCommand) -> bool {
    let request = peer::ForwardRequest {
        method: METHOD.to_owned(),
        metadata: BTreeMap::from([(TURN.to_owned(), turn.to_string())]),
        timeout_ms: u64::try_from(ASK_TIMEOUT.as_millis()).unwrap_or(u64::MAX),
        body: Bytes::from(command.encode_to_vec()),
        ..Default::default()
    };
    peer.forward(request, ASK_TIMEOUT).await.is_ok_and(|response| is_ok(response.status.as_ref()))
}

/// Takes in a question that the leader could not ask over a stream of its own.
pub async fn take_in(replica: &Replica, request: peer::ForwardRequest) -> peer::ForwardResponse {
    let turn = request.metadata.get(TURN).and_then(|turn| turn.parse().ok()).unwrap_or(0);
    let told = hear(replica, turn, request.body).await;
    peer::ForwardResponse { status: Some(told), ..Default::default() }
}

/// Puts an encoded question to a producer that listens on this replica; OK if there is one.
pub async fn hear(replica: &Replica, turn: u32, question: Bytes) -> v2::Status {
    let command = match v2::TelemetryCommand::decode(question) {
        Ok(command) => command,
        Err(error) => return status(Code::BadRequest, format!("{METHOD} is not understood: {error}")),
    };
    let topic = match &command.command {
        Some(v2::telemetry_command::Command::RecoverOrphanedTransactionCommand(recover)) => {
            recover.message.as_ref().and_then(|message| message.topic.as_ref()).map(|topic| topic.name.clone())
        }
        _ => None,
    };
    match topic {
        Some(topic) => match tell_producer(replica, &topic, turn, &command).await {
            true => ok(),
            false => status(Code::NotFound, format!("no producer of topic '{topic}' listens here")),
        },
        None => status(Code::BadRequest, format!("{METHOD} names no topic")),
    }
}

/// Puts the question on the stream of some producer of the topic, another one each time. Streams that are full for the
/// moment are no absent producers: then it waits for room.
async fn tell_producer(replica: &Replica, topic: &str, turn: u32, command: &v2::TelemetryCommand) -> bool {
    let mut streams = replica.clients.producers_of(topic);
    if streams.is_empty() {
        return false;
    }
    let first = turn as usize % streams.len();
    streams.rotate_left(first);
    if streams.iter().any(|stream| stream.try_send(command.clone()).is_ok()) {
        return true;
    }
    let sent = replica.runtime.timeout(ROOM_TIMEOUT, streams[0].send(command.clone())).await;
    sent.is_ok_and(|sent| sent.is_ok())
}

async fn question(replica: &Replica, half: &HalfMessage) -> Result<v2::TelemetryCommand, String> {
    let frame = Frames::new(replica).frame(&half.slot).await.map_err(|error| error.to_string())?;
    let handle = HeldHandle::of_half(&replica.config.group, half, frame.message_id());
    let message = v2::Message {
        topic: Some(v2::Resource { name: half.topic.to_string(), ..Default::default() }),
        user_properties: frame.properties().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        system_properties: Some(stored_properties(&frame, &half.slot, half.queue, &replica.client_address)),
        body: frame.body(),
    };
    let recover = v2::RecoverOrphanedTransactionCommand { message: Some(message), transaction_id: handle.to_text() };
    Ok(v2::TelemetryCommand {
        status: Some(ok()),
        command: Some(v2::telemetry_command::Command::RecoverOrphanedTransactionCommand(recover)),
    })
}
