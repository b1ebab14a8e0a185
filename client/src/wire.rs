//! Between an application's messages and those of the protocol.

use std::collections::BTreeMap;
use std::sync::Arc;

use flotilla_message::{BodyEncoding, Message, MessageId, MessageType, TopicName};
use flotilla_proto::v2;

use crate::config::Filter;
use crate::outgoing::OutgoingMessage;
use crate::received::ReceivedMessage;

/// A name without a namespace.
pub(crate) fn resource(name: &str) -> v2::Resource {
    v2::Resource { resource_namespace: String::new(), name: name.to_owned() }
}

/// A message as it will be judged and sent; its type follows from what is set.
pub(crate) fn message_of(outgoing: OutgoingMessage, id: MessageId, born_at_ms: u64) -> Message {
    let message_type = match (&outgoing.message_group, outgoing.delivery_at_ms) {
        (_, Some(_)) => MessageType::Delay,
        (Some(_), None) => MessageType::Fifo,
        (None, None) => MessageType::Normal,
    };
    Message {
        topic: outgoing.topic,
        message_type,
        id,
        tag: outgoing.tag,
        keys: outgoing.keys,
        group: outgoing.message_group,
        properties: outgoing.properties,
        body: outgoing.body,
        body_encoding: BodyEncoding::Identity,
        born_at_ms,
        born_host: String::new(),
        trace_context: outgoing.trace_context,
        delivery_at_ms: outgoing.delivery_at_ms,
    }
}

/// The request that sends one message.
pub(crate) fn send_request(message: Message) -> v2::SendMessageRequest {
    let system_properties = v2::SystemProperties {
        tag: message.tag,
        keys: message.keys,
        message_id: message.id.to_string(),
        body_encoding: i32::from(message.body_encoding.code()),
        message_type: i32::from(message.message_type.code()),
        born_timestamp: Some(timestamp(message.born_at_ms)),
        born_host: message.born_host,
        delivery_timestamp: message.delivery_at_ms.map(timestamp),
        message_group: message.group,
        trace_context: message.trace_context,
        ..v2::SystemProperties::default()
    };
    let message = v2::Message {
        topic: Some(resource(message.topic.as_str())),
        user_properties: message.properties.into_iter().collect(),
        system_properties: Some(system_properties),
        body: message.body,
    };
    v2::SendMessageRequest { messages: vec![message] }
}

/// The protocol's filter.
pub(crate) fn filter_expression(filter: &Filter) -> v2::FilterExpression {
    let (kind, expression) = match filter {
        Filter::All => (v2::FilterType::Tag, "*"),
        Filter::Tag(expression) => (v2::FilterType::Tag, expression.as_str()),
        Filter::Sql(expression) => (v2::FilterType::Sql, expression.as_str()),
    };
    v2::FilterExpression { r#type: kind.into(), expression: expression.to_owned() }
}

/// A delivered message; `None` if it lacks a legal topic, an id or a receipt handle.
pub(crate) fn received_of(
    message: v2::Message,
    broker_group: &Arc<crate::replicas::Replicas>,
) -> Option<ReceivedMessage> {
    let handle = message.system_properties.as_ref()?.receipt_handle.clone()?;
    Some(ReceivedMessage::new(delivery_of(message, broker_group)?, handle, broker_group.clone()))
}

/// What a message says; `None` if it lacks a legal topic or an id.
pub(crate) fn delivery_of(
    message: v2::Message,
    broker_group: &Arc<crate::replicas::Replicas>,
) -> Option<crate::received::Delivery> {
    let system = message.system_properties?;
    let properties: BTreeMap<String, String> = message.user_properties.into_iter().collect();
    Some(crate::received::Delivery {
        topic: TopicName::try_from(message.topic?.name).ok()?,
        id: MessageId::try_from(system.message_id).ok()?,
        body: message.body,
        tag: system.tag.filter(|tag| !tag.is_empty()),
        keys: system.keys,
        message_group: system.message_group.filter(|group| !group.is_empty()),
        properties,
        queue: u32::try_from(system.queue_id).unwrap_or(0),
        offset: system.queue_offset.and_then(|offset| u64::try_from(offset).ok()).unwrap_or(0),
        attempt: system.delivery_attempt.and_then(|attempt| u32::try_from(attempt).ok()).unwrap_or(1).max(1),
        born_at_ms: system.born_timestamp.as_ref().map_or(0, millis),
        stored_at_ms: system.store_timestamp.as_ref().map(millis),
        trace_context: system.trace_context,
        broker_group: broker_group.name().group.clone(),
    })
}

/// A time as the protocol has it, from ms since the Unix epoch.
pub(crate) fn timestamp_of(ms: u64) -> prost_types::Timestamp {
    timestamp(ms)
}

fn timestamp(ms: u64) -> prost_types::Timestamp {
    prost_types::Timestamp {
        seconds: i64::try_from(ms / 1_000).unwrap_or(i64::MAX),
        nanos: i32::try_from(ms % 1_000 * 1_000_000).expect("below a thousand million"),
    }
}

fn millis(at: &prost_types::Timestamp) -> u64 {
    let seconds = u64::try_from(at.seconds).unwrap_or(0);
    let nanos = u64::try_from(at.nanos).unwrap_or(0);
    seconds.saturating_mul(1_000).saturating_add(nanos / 1_000_000)
}

/// A length of time as the protocol has it.
pub(crate) fn duration(value: std::time::Duration) -> prost_types::Duration {
    prost_types::Duration {
        seconds: i64::try_from(value.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(value.subsec_nanos()).expect("below a thousand million"),
    }
}
