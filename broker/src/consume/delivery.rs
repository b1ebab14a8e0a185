//! From a granted slot to the message that a consumer gets: everything that official clients look for is in it.

use std::time::Duration;

use flotilla_message::{BodyEncoding, FrameView, GroupName, MessageType, QueueId, TopicName};
use flotilla_proto::v2;
use flotilla_store::{Granted, Slot};
use md5::{Digest as _, Md5};

use super::receipt_handle::ReceiptHandle;

/// What all messages of one delivery share.
#[derive(Debug)]
pub struct Delivery<'a> {
    /// The group that receives.
    pub group: &'a GroupName,
    /// This broker group, if there are others that a receipt could be shown to.
    pub broker_group: Option<&'a str>,
    /// The topic received from.
    pub topic: &'a TopicName,
    /// The topic as the client wrote it, echoed in each message.
    pub topic_resource: &'a v2::Resource,
    /// The queue received from.
    pub queue: QueueId,
    /// How long nobody else gets them, ms.
    pub invisible_ms: u64,
    /// `host:port` of the replica that delivers.
    pub store_host: &'a str,
}

impl Delivery<'_> {
    /// One message.
    pub fn message(&self, granted: &Granted, frame: &FrameView) -> v2::Message {
        let handle = ReceiptHandle {
            broker_group: self.broker_group.map(str::to_owned),
            group: self.group.clone(),
            topic: self.topic.clone(),
            queue: self.queue,
            offset: granted.offset,
            message: granted.slot.message,
            sequence: granted.seq,
        };
        let dead_letter_queue = self
            .topic
            .is_dead_letter()
            .then(|| v2::DeadLetterQueue { topic: frame.topic().to_owned(), message_id: frame.id().to_owned() });
        let system = v2::SystemProperties {
            receipt_handle: Some(handle.to_text()),
            queue_offset: Some(i64::try_from(granted.offset.0).unwrap_or(i64::MAX)),
            invisible_duration: Some(wire_duration(Duration::from_millis(self.invisible_ms))),
            delivery_attempt: Some(i32::try_from(granted.attempt).unwrap_or(i32::MAX)),
            dead_letter_queue,
            ..stored_properties(frame, &granted.slot, self.queue, self.store_host)
        };
        v2::Message {
            topic: Some(self.topic_resource.clone()),
            user_properties: frame.properties().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
            system_properties: Some(system),
            body: frame.body(),
        }
    }
}

/// What a stored message says of itself, and of its place, whoever is to read it.
pub fn stored_properties(frame: &FrameView, slot: &Slot, queue: QueueId, store_host: &str) -> v2::SystemProperties {
    v2::SystemProperties {
        tag: frame.tag().map(str::to_owned),
        keys: frame.keys().map(str::to_owned).collect(),
        message_id: frame.id().to_owned(),
        // Upper-case MD5: the one form that every official client accepts; one of them throws without it.
        body_digest: Some(v2::Digest { r#type: v2::DigestType::Md5.into(), checksum: md5_hex(&frame.body()) }),
        body_encoding: encoding(frame.body_encoding()).into(),
        message_type: message_type(frame.message_type()).into(),
        born_timestamp: Some(timestamp(frame.born_at_ms())),
        born_host: frame.born_host().to_owned(),
        store_timestamp: Some(timestamp(slot.stored_at_ms)),
        store_host: store_host.to_owned(),
        delivery_timestamp: frame.delivery_at_ms().map(timestamp),
        queue_id: i32::try_from(queue.0).unwrap_or(i32::MAX),
        message_group: frame.group().map(str::to_owned),
        trace_context: frame.trace_context().map(str::to_owned),
        ..Default::default()
    }
}

/// The number of `apache.rocketmq.v2` for a type.
pub fn message_type(message_type: MessageType) -> v2::MessageType {
    match message_type {
        MessageType::Normal => v2::MessageType::Normal,
        MessageType::Fifo => v2::MessageType::Fifo,
        MessageType::Delay => v2::MessageType::Delay,
        MessageType::Transaction => v2::MessageType::Transaction,
    }
}

fn encoding(encoding: BodyEncoding) -> v2::Encoding {
    match encoding {
        BodyEncoding::Identity => v2::Encoding::Identity,
        BodyEncoding::Gzip => v2::Encoding::Gzip,
    }
}

fn md5_hex(body: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let digest = Md5::digest(body);
    let mut text = String::with_capacity(32);
    for byte in digest {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text
}

/// A time as protobuf has it, from ms since the Unix epoch.
pub fn timestamp(ms: u64) -> prost_types::Timestamp {
    prost_types::Timestamp {
        seconds: i64::try_from(ms / 1000).unwrap_or(i64::MAX),
        nanos: i32::try_from(ms % 1000).expect("below a thousand") * 1_000_000,
    }
}

/// A length of time as protobuf has it.
pub fn wire_duration(duration: Duration) -> prost_types::Duration {
    prost_types::Duration {
        seconds: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(duration.subsec_nanos()).expect("below a billion"),
    }
}

/// Milliseconds of a length of time, `None` if it is negative.
pub fn ms_of(duration: &prost_types::Duration) -> Option<u64> {
    let seconds = u64::try_from(duration.seconds).ok()?;
    let nanos = u64::try_from(duration.nanos).ok()?;
    seconds.checked_mul(1000)?.checked_add(nanos / 1_000_000)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use bytes::Bytes;
    use flotilla_message::{Message, MessageId, MessageRef, QueueOffset};

    #[test]
    fn a_consumer_finds_all_it_looks_for() {
        let topic = TopicName::try_from("orders").expect("a name");
        let frame = Message {
            topic: topic.clone(),
            message_type: MessageType::Normal,
            id: MessageId::try_from("id-1").expect("an id"),
            tag: Some("TagA".to_owned()),
            keys: vec!["k1".to_owned(), "k2".to_owned()],
            group: None,
            properties: BTreeMap::from([("colour".to_owned(), "blue".to_owned())]),
            body: Bytes::from_static(b"hello"),
            body_encoding: BodyEncoding::Identity,
            born_at_ms: 1_500,
            born_host: "producer".to_owned(),
            trace_context: None,
            delivery_at_ms: None,
        }
        .encode()
        .expect("a valid message")
        .view();
        let slot = Slot {
            message: MessageRef { index: 40, ordinal: 1 },
            entry: 40,
            position: 0,
            length: 0,
            tag_hash: 0,
            stored_at_ms: 2_750,
            is_reference: false,
        };
        let granted = Granted { offset: QueueOffset(9), slot, attempt: 1, seq: 77, dead_lettered: false };
        let group = GroupName::try_from("g").expect("a name");
        let resource = v2::Resource { name: "orders".to_owned(), resource_namespace: "ns".to_owned() };
        let delivery = Delivery {
            group: &group,
            broker_group: None,
            topic: &topic,
            topic_resource: &resource,
            queue: QueueId(2),
            invisible_ms: 30_250,
            store_host: "10.0.0.1:8081",
        };
        let message = delivery.message(&granted, &frame);
        assert_eq!(message.topic, Some(resource.clone()));
        assert_eq!(message.user_properties.get("colour").map(String::as_str), Some("blue"));
        let system = message.system_properties.expect("system properties");
        let digest = system.body_digest.clone().expect("a digest");
        assert_eq!((digest.r#type, digest.checksum.as_str()), (2, "5D41402ABC4B2A76B9719D911017C592"));
        assert_eq!((system.body_encoding, system.message_type), (1, 1));
        assert_eq!((system.queue_id, system.queue_offset, system.delivery_attempt), (2, Some(9), Some(1)));
        assert_eq!(system.born_timestamp, Some(prost_types::Timestamp { seconds: 1, nanos: 500_000_000 }));
        assert_eq!(system.store_timestamp, Some(prost_types::Timestamp { seconds: 2, nanos: 750_000_000 }));
        assert_eq!(system.invisible_duration.as_ref().and_then(ms_of), Some(30_250));
        let handle = ReceiptHandle::from_text(system.receipt_handle.as_deref().expect("a handle")).expect("readable");
        assert_eq!((handle.offset, handle.sequence, handle.group), (QueueOffset(9), 77, group));
    }
}
