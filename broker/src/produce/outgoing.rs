//! From a client's send request to stored frames: every rule is checked here, once, at the edge.

use bytes::Bytes;
use flotilla_message::{BodyEncoding, Message, MessageId, MessageType, StoredFrame, TopicName, limits};
use flotilla_proto::status::{Code, Coded, status};
use flotilla_proto::{CallContext, v2};

use crate::config::BrokerConfig;
use crate::consume::delivery::ms_of;
use crate::edge::names::{self, known_code};
use crate::produce::delay_level::{DELAY_PROPERTY, delay_level_ms};

/// A send request that keeps every rule which needs no knowledge of topics.
#[derive(Debug)]
pub struct Outgoing {
    /// The one topic of all messages.
    pub topic: TopicName,
    /// The one type of all messages.
    pub message_type: MessageType,
    /// The one message group of all messages (ordered ones have one).
    pub message_group: Option<String>,
    /// Of half messages: after which time their producer is asked for the first time, ms.
    pub check_after_ms: Option<u64>,
    /// The encoded messages, in the order of the request; at least one.
    pub frames: Vec<StoredFrame>,
}

/// Longest time that a producer may ask to be left alone about a half message, ms: an hour, as in RocketMQ.
const RECOVERY_MS_MAX: u64 = 3_600_000;

/// The answer that refuses a send.
type Refusal = v2::Status;

impl Outgoing {
    /// Reads and checks a request.
    pub fn read(
        context: &CallContext,
        request: &v2::SendMessageRequest,
        config: &BrokerConfig,
        now_wall_ms: u64,
    ) -> Result<Outgoing, Refusal> {
        let refuse = |code, message: String| status(known_code(context, code), message);
        let Some(first) = request.messages.first() else {
            return Err(refuse(Code::MessageCorrupted, "request has no message, at least one is needed".to_owned()));
        };
        if request.messages.len() > limits::BATCH_MESSAGES_MAX {
            let (count, limit) = (request.messages.len(), limits::BATCH_MESSAGES_MAX);
            return Err(refuse(
                Code::PayloadTooLarge,
                format!("batch has {count} messages; at most {limit} are allowed"),
            ));
        }
        let topic = names::topic(context, first.topic.as_ref())?;
        if topic.is_dead_letter() || topic.is_retry() {
            return Err(refuse(Code::IllegalTopic, format!("topic '{topic}' is written by the broker alone")));
        }
        let mut outgoing: Option<(MessageType, Option<String>)> = None;
        let mut frames = Vec::with_capacity(request.messages.len());
        for message in &request.messages {
            if message.topic != first.topic {
                let (one, other) = (name_of(first), name_of(message));
                let text = format!("batch has messages of topics '{one}' and '{other}'; one topic is allowed");
                return Err(refuse(Code::MessageCorrupted, text));
            }
            let message = read_message(context, message, &topic, config, now_wall_ms)?;
            let kind = (message.message_type, message.group.clone());
            match &outgoing {
                None => outgoing = Some(kind),
                Some(first) if *first == kind => {}
                Some((message_type, group)) => {
                    let text = format!(
                        "batch has messages of type {message_type}, group {group:?} and of type {}, group {:?}; one \
                         type and one group are allowed",
                        kind.0, kind.1
                    );
                    return Err(refuse(Code::MessageCorrupted, text));
                }
            }
            frames.push(message.encode().map_err(|error| refuse(error.code(), error.to_string()))?);
        }
        let bytes: usize = frames.iter().map(StoredFrame::byte_len).sum();
        if bytes > limits::BATCH_BYTES_MAX {
            let limit = limits::BATCH_BYTES_MAX;
            return Err(refuse(Code::PayloadTooLarge, format!("batch has {bytes} bytes; at most {limit} are allowed")));
        }
        let (message_type, message_group) = outgoing.expect("there is at least one message");
        let check_after_ms = match message_type {
            MessageType::Transaction if frames.len() > 1 => {
                let text = format!("batch has {} messages of transactions; each has to be sent alone", frames.len());
                return Err(refuse(Code::MessageCorrupted, text));
            }
            MessageType::Transaction => {
                Some(check_after_ms(first, config).map_err(|text| refuse(Code::BadRequest, text))?)
            }
            MessageType::Normal | MessageType::Fifo | MessageType::Delay => None,
        };
        Ok(Outgoing { topic, message_type, message_group, check_after_ms, frames })
    }
}

fn name_of(message: &v2::Message) -> &str {
    message.topic.as_ref().map_or("", |topic| topic.name.as_str())
}

fn read_message(
    context: &CallContext,
    message: &v2::Message,
    topic: &TopicName,
    config: &BrokerConfig,
    now_wall_ms: u64,
) -> Result<Message, Refusal> {
    let refuse = |code, message: String| status(known_code(context, code), message);
    let empty = v2::SystemProperties::default();
    let system = message.system_properties.as_ref().unwrap_or(&empty);
    let body_bytes_max = config.body_bytes_max;
    if message.body.len() as u64 > body_bytes_max {
        let bytes = message.body.len();
        return Err(refuse(
            Code::MessageBodyTooLarge,
            format!("body has {bytes} bytes; at most {body_bytes_max} are allowed"),
        ));
    }
    let id = MessageId::try_from(system.message_id.as_str())
        .map_err(|error| refuse(Code::IllegalMessageId, error.to_string()))?;
    // A level stands for a time, above one that the message names as well; it is not delivered with the message.
    let mut properties = message.user_properties.clone();
    let level_ms = match properties.remove(DELAY_PROPERTY) {
        Some(level) => delay_level_ms(&level).map_err(|text| refuse(Code::IllegalDeliveryTime, text))?,
        None => None,
    };
    let is_delayed = level_ms.is_some() || system.delivery_timestamp.is_some();
    let message_type =
        type_of(system, is_delayed).map_err(|text| refuse(Code::MessagePropertyConflictWithType, text))?;
    let born_at_ms = system.born_timestamp.as_ref().and_then(timestamp_ms).unwrap_or(now_wall_ms);
    let body_encoding = match system.body_encoding() {
        v2::Encoding::Gzip => BodyEncoding::Gzip,
        v2::Encoding::Identity | v2::Encoding::Unspecified => BodyEncoding::Identity,
    };
    // Before 1970: at once. Beyond what can be told: too far.
    let named_ms = system.delivery_timestamp.as_ref().map(|timestamp| {
        let too_far = if timestamp.seconds < 0 { 0 } else { u64::MAX };
        timestamp_ms(timestamp).unwrap_or(too_far)
    });
    let delivery_at_ms = level_ms.map(|level_ms| now_wall_ms + level_ms).or(named_ms);
    let delay_ms = delivery_at_ms.map_or(0, |at_ms| at_ms.saturating_sub(now_wall_ms));
    if delay_ms > config.delay_ms_max {
        let limit = config.delay_ms_max;
        let text = format!("delivery time is {delay_ms} ms from now; at most {limit} ms are allowed");
        return Err(refuse(Code::IllegalDeliveryTime, text));
    }
    Ok(Message {
        topic: topic.clone(),
        message_type,
        id,
        tag: system.tag.clone().filter(|tag| !tag.is_empty()),
        keys: system.keys.clone(),
        group: system.message_group.clone().filter(|group| !group.is_empty()),
        properties,
        body: Bytes::clone(&message.body),
        body_encoding,
        born_at_ms,
        born_host: system.born_host.clone(),
        trace_context: system.trace_context.clone().filter(|trace| !trace.is_empty()),
        delivery_at_ms,
    })
}

/// When to ask the producer of a half message for the first time: as it wishes, else as the settings say.
fn check_after_ms(message: &v2::Message, config: &BrokerConfig) -> Result<u64, String> {
    let wished = message
        .system_properties
        .as_ref()
        .and_then(|system| system.orphaned_transaction_recovery_duration.as_ref())
        .and_then(ms_of)
        .filter(|ms| *ms > 0);
    match wished {
        Some(ms) if ms > RECOVERY_MS_MAX => {
            Err(format!("transaction recovery duration is {ms} ms; at most {RECOVERY_MS_MAX} ms are allowed"))
        }
        Some(ms) => Ok(ms),
        None => Ok(config.transaction_check_after_ms),
    }
}

/// The type that a message's properties make it: what it says of itself matters for transactions only.
fn type_of(system: &v2::SystemProperties, is_delayed: bool) -> Result<MessageType, String> {
    let is_ordered = system.message_group.as_ref().is_some_and(|group| !group.is_empty());
    if system.lite_topic.is_some() || system.priority.is_some() {
        return Err("messages with a lite topic or a priority are not supported".to_owned());
    }
    match (system.message_type() == v2::MessageType::Transaction, is_ordered, is_delayed) {
        (true, false, false) => Ok(MessageType::Transaction),
        (false, true, false) => Ok(MessageType::Fifo),
        (false, false, true) => Ok(MessageType::Delay),
        (false, false, false) => Ok(MessageType::Normal),
        _ => {
            Err("message has more than one of: a message group, a delivery time, a transaction; one is allowed"
                .to_owned())
        }
    }
}

fn timestamp_ms(timestamp: &prost_types::Timestamp) -> Option<u64> {
    let seconds = u64::try_from(timestamp.seconds).ok()?;
    let nanos = u64::try_from(timestamp.nanos).ok()?;
    seconds.checked_mul(1000)?.checked_add(nanos / 1_000_000)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use flotilla_runtime::Instant;

    use super::*;

    fn context(language: &str) -> CallContext {
        let metadata = BTreeMap::from([("x-mq-language".to_owned(), language.to_owned())]);
        CallContext::new(Instant::from_nanos(0), String::new(), metadata)
    }

    fn message(change: impl FnOnce(&mut v2::Message, &mut v2::SystemProperties)) -> v2::Message {
        let mut system = v2::SystemProperties { message_id: "id-1".to_owned(), ..Default::default() };
        let mut message = v2::Message {
            topic: Some(v2::Resource { name: "orders".to_owned(), ..Default::default() }),
            body: Bytes::from_static(b"hello"),
            ..Default::default()
        };
        change(&mut message, &mut system);
        message.system_properties = Some(system);
        message
    }

    fn read(messages: Vec<v2::Message>) -> Result<Outgoing, (i32, String)> {
        read_as("PYTHON", messages)
    }

    fn read_as(language: &str, messages: Vec<v2::Message>) -> Result<Outgoing, (i32, String)> {
        let config = BrokerConfig::default();
        Outgoing::read(&context(language), &v2::SendMessageRequest { messages }, &config, 7)
            .map_err(|status| (status.code, status.message))
    }

    fn refused(change: impl FnOnce(&mut v2::Message, &mut v2::SystemProperties)) -> (i32, String) {
        read(vec![message(change)]).expect_err("refused")
    }

    #[test]
    fn a_plain_message_is_encoded_with_the_client_s_id() {
        let outgoing = read(vec![message(|_, system| system.tag = Some("TagA".to_owned()))]).expect("fine");
        assert_eq!((outgoing.topic.as_str(), outgoing.message_type), ("orders", MessageType::Normal));
        let view = outgoing.frames[0].view();
        assert_eq!((view.id(), view.tag(), view.born_at_ms()), ("id-1", Some("TagA"), 7));
        assert_eq!(view.body(), Bytes::from_static(b"hello"));
    }

    #[test]
    fn each_broken_rule_has_its_code_and_names_the_value() {
        assert_eq!(read(Vec::new()).expect_err("empty").0, 40016);
        assert_eq!(refused(|message, _| message.topic = None).0, 40002);
        assert_eq!(refused(|message, _| message.body = Bytes::new()).0, 41302);
        let (code, text) = refused(|message, _| message.body = Bytes::from(vec![0; (4 << 20) + 1]));
        assert_eq!(code, 41301);
        assert!(text.contains("4194305") && text.contains("4194304"), "{text}");
        let many = |message: &mut v2::Message, _: &mut v2::SystemProperties| {
            message.user_properties.insert("k".to_owned(), "v".repeat(33_000));
        };
        assert_eq!(refused(many).0, 43101);
        assert_eq!(refused(|_, system| system.tag = Some("a|b".to_owned())).0, 40004);
        assert_eq!(refused(|_, system| system.keys = vec![" ".to_owned()]).0, 40005);
        assert_eq!(refused(|_, system| system.message_group = Some("g".repeat(64))).0, 40006);
        assert_eq!(refused(|_, system| system.message_id = String::new()).0, 40009);
        assert_eq!(
            refused(|message, _| {
                message.user_properties.insert("KEYS".to_owned(), "v".to_owned());
            })
            .0,
            40007
        );
        let both = |_: &mut v2::Message, system: &mut v2::SystemProperties| {
            system.message_group = Some("g".to_owned());
            system.delivery_timestamp = Some(prost_types::Timestamp::default());
        };
        assert_eq!(refused(both).0, 40014);
        assert_eq!(refused(|message, _| message.topic.as_mut().expect("a topic").name = "%DLQ%g".to_owned()).0, 40002);
    }

    #[test]
    fn the_rust_client_gets_a_code_it_knows_for_an_empty_body() {
        let empty = message(|message, _| message.body = Bytes::new());
        assert_eq!(read_as("RUST", vec![empty]).expect_err("refused").0, 40016);
    }

    #[test]
    fn a_half_message_says_when_its_producer_may_be_asked() {
        let of = |seconds: Option<i64>| {
            let half = message(|_, system| {
                system.message_type = 4;
                system.orphaned_transaction_recovery_duration =
                    seconds.map(|seconds| prost_types::Duration { seconds, nanos: 0 });
            });
            read(vec![half])
        };
        let after = |seconds| of(seconds).expect("fine").check_after_ms;
        assert_eq!((after(None), after(Some(0)), after(Some(20))), (Some(6_000), Some(6_000), Some(20_000)));
        assert_eq!(of(Some(3_601)).expect_err("too long").0, 40000);
        assert_eq!(read(vec![message(|_, _| ())]).expect("fine").check_after_ms, None);
        let half = || message(|_, system| system.message_type = 4);
        assert_eq!(read(vec![half(), half()]).expect_err("a batch").0, 40016);
    }

    #[test]
    fn a_delivery_time_may_be_past_but_not_too_far() {
        let at = |seconds| {
            read(vec![message(|_, system| {
                system.delivery_timestamp = Some(prost_types::Timestamp { seconds, nanos: 0 });
            })])
        };
        let three_days = 3 * 24 * 3600;
        assert_eq!(at(three_days).expect("just allowed").frames[0].view().delivery_at_ms(), Some(259_200_000));
        assert_eq!(at(three_days + 1).expect_err("too far").0, 40012);
        assert_eq!(at(i64::MAX).expect_err("no time that this is").0, 40012);
        assert_eq!(at(-5).expect("at once").frames[0].view().delivery_at_ms(), Some(0));
    }

    #[test]
    fn a_delay_level_is_a_delivery_time_and_does_not_travel_on() {
        let of = |level: &str, seconds: Option<i64>| {
            read(vec![message(|message, system| {
                message.user_properties.insert("DELAY".to_owned(), level.to_owned());
                message.user_properties.insert("own".to_owned(), "kept".to_owned());
                system.delivery_timestamp = seconds.map(|seconds| prost_types::Timestamp { seconds, nanos: 0 });
            })])
        };
        let outgoing = of("3", None).expect("fine");
        assert_eq!(outgoing.message_type, MessageType::Delay);
        let view = outgoing.frames[0].view();
        assert_eq!(view.delivery_at_ms(), Some(10_007), "ten seconds from now");
        assert_eq!(view.properties().collect::<Vec<_>>(), [("own", "kept")]);
        let both = of("1", Some(50)).expect("fine");
        assert_eq!(both.frames[0].view().delivery_at_ms(), Some(1_007), "the level wins, as in RocketMQ");
        assert_eq!(of("0", None).expect("no delay").message_type, MessageType::Normal);
        assert_eq!(of("soon", None).expect_err("no level").0, 40012);
    }

    #[test]
    fn the_type_follows_from_the_properties() {
        let of = |change: fn(&mut v2::SystemProperties)| {
            read(vec![message(|_, system| change(system))]).expect("fine").message_type
        };
        assert_eq!(of(|_| ()), MessageType::Normal);
        assert_eq!(of(|system| system.message_group = Some("g".to_owned())), MessageType::Fifo);
        assert_eq!(
            of(|system| system.delivery_timestamp = Some(prost_types::Timestamp::default())),
            MessageType::Delay
        );
        assert_eq!(of(|system| system.message_type = 4), MessageType::Transaction);
    }

    #[test]
    fn a_batch_has_one_topic_one_type_and_one_group() {
        let plain = || message(|_, _| ());
        let other = |name: &str| message(|message, _| message.topic.as_mut().expect("a topic").name = name.to_owned());
        let grouped = |group: &str| message(|_, system| system.message_group = Some(group.to_owned()));
        assert_eq!(read(vec![plain(), plain()]).expect("fine").frames.len(), 2);
        assert_eq!(read(vec![plain(), other("b")]).expect_err("two topics").0, 40016);
        assert_eq!(read(vec![grouped("a"), grouped("b")]).expect_err("two groups").0, 40016);
        assert_eq!(read(vec![plain(), grouped("b")]).expect_err("two types").0, 40016);
    }

    #[test]
    fn a_batch_has_no_more_messages_and_bytes_than_allowed() {
        let plain = |count: usize| read((0..count).map(|_| message(|_, _| ())).collect());
        assert_eq!(plain(1024).expect("as many as allowed").frames.len(), 1024);
        let (code, text) = plain(1025).expect_err("one more");
        assert!(code == 41300 && text.contains("1025") && text.contains("1024"), "{code} {text}");
        let large = |bytes: usize| message(|message, _| message.body = Bytes::from(vec![7; bytes]));
        // Two of them with what stands before each body.
        assert_eq!(read(vec![large(4_000_000), large(4_000_000)]).expect("fits").frames.len(), 2);
        let (code, text) = read(vec![large(4 << 20), large(4 << 20)]).expect_err("more than 8 MiB with their heads");
        assert!(code == 41300 && text.contains("8388608"), "{code} {text}");
    }
}
