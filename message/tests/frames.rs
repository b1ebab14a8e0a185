//! The stored frame: what goes in comes out, and damage is an error, never a panic.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};
use flotilla_message::{
    BodyEncoding, FrameError, FrameHead, FrameView, Message, MessageError, MessageId, MessageType, StoredFrame,
    TopicName, limits, tag_hash,
};
use proptest::prelude::*;

fn message() -> Message {
    Message {
        topic: TopicName::try_from("orders").unwrap(),
        message_type: MessageType::Normal,
        id: MessageId::try_from("id-1").unwrap(),
        tag: None,
        keys: Vec::new(),
        group: None,
        properties: BTreeMap::new(),
        body: Bytes::from_static(b"hello"),
        body_encoding: BodyEncoding::Identity,
        born_at_ms: 1,
        born_host: String::new(),
        trace_context: None,
        delivery_at_ms: None,
    }
}

fn messages() -> impl Strategy<Value = Message> {
    let word = "[a-zA-Z\u{e9}\u{4e2d} ]{0,12}[a-z]";
    let names =
        ("[a-zA-Z0-9_%|-]{1,127}", "[!-~]{1,255}", proptest::sample::select(MessageType::ALL.to_vec()), any::<bool>());
    let texts = (
        proptest::option::of(word),
        proptest::collection::vec(word, 0..5),
        proptest::option::of(word),
        proptest::collection::btree_map("[a-z.]{1,20}", ".{0,0}|[ -~]{0,40}", 0..10),
        "[a-z0-9.:-]{0,40}",
        proptest::option::of("[!-~]{0,60}"),
    );
    let rest = (proptest::collection::vec(any::<u8>(), 1..2000), any::<u64>(), proptest::option::of(any::<u64>()));
    (names, texts, rest).prop_map(|(names, texts, rest)| {
        let (topic, id, message_type, gzip) = names;
        let (tag, keys, group, properties, born_host, trace_context) = texts;
        let (body, born_at_ms, delivery_at_ms) = rest;
        Message {
            topic: TopicName::try_from(topic).unwrap(),
            message_type,
            id: MessageId::try_from(id).unwrap(),
            tag,
            keys,
            group: group.or((message_type == MessageType::Fifo).then(|| "g".to_owned())),
            properties,
            body: Bytes::from(body),
            body_encoding: if gzip { BodyEncoding::Gzip } else { BodyEncoding::Identity },
            born_at_ms,
            born_host,
            trace_context,
            delivery_at_ms: delivery_at_ms.or((message_type == MessageType::Delay).then_some(5)),
        }
    })
}

proptest! {
    #[test]
    fn an_encoded_message_reads_back_equal(message in messages()) {
        let frame = message.encode().unwrap();
        let view = FrameView::parse(frame.as_bytes().clone()).unwrap();
        prop_assert_eq!(&view.to_message(), &message);
        prop_assert_eq!(&frame.view(), &view);
        prop_assert_eq!(view.body().as_ptr(), frame.as_bytes()[frame.byte_len() - message.body.len()..].as_ptr());
        let head = FrameView::parse_header(frame.as_bytes()).unwrap();
        prop_assert_eq!(head.id_in(frame.as_bytes()), message.id.as_str().as_bytes());
        prop_assert_eq!(head.topic_in(frame.as_bytes()), message.topic.as_str().as_bytes());
        prop_assert_eq!(head.tag_hash(), message.tag().map_or(0, tag_hash));
        prop_assert_eq!(head.frame_bytes() as usize, frame.byte_len());
        // One message, one encoding.
        prop_assert_eq!(view.to_message().encode().unwrap(), frame);
    }

    #[test]
    fn a_frame_cut_anywhere_is_refused(message in messages(), cut in any::<prop::sample::Index>()) {
        let frame = message.encode().unwrap();
        let len = cut.index(frame.byte_len());
        prop_assert!(FrameView::parse(frame.as_bytes().slice(..len)).is_err());
        prop_assert!(FrameHead::parse(&frame.as_bytes()[..len]).is_err());
    }

    #[test]
    fn a_flipped_bit_anywhere_is_found(message in messages(), at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let frame = message.encode().unwrap();
        let mut bytes = BytesMut::from(&frame.as_bytes()[..]);
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        prop_assert!(FrameView::parse(bytes.freeze()).is_err(), "bit {} of byte {}", bit, at);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = FrameHead::parse(&bytes);
        prop_assert!(FrameView::parse(Bytes::from(bytes)).is_err());
    }

    #[test]
    fn arbitrary_heads_with_a_right_checksum_never_panic(
        message in messages(),
        changes in proptest::collection::vec((4usize..80, any::<u8>()), 1..6),
    ) {
        let frame = message.encode().unwrap();
        let mut bytes = BytesMut::from(&frame.as_bytes()[..]);
        for (at, value) in changes {
            if at < bytes.len() && !(20..24).contains(&at) {
                bytes[at] = value;
            }
        }
        let head_bytes = u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize;
        if (64..=bytes.len()).contains(&head_bytes) {
            let crc = crc32c::crc32c(&bytes[..20]);
            let crc = crc32c::crc32c_append(crc, &bytes[24..head_bytes]);
            bytes[20..24].copy_from_slice(&crc.to_le_bytes());
        }
        if let Ok(view) = FrameView::parse(bytes.freeze()) {
            let _ = view.to_message();
        }
    }
}

#[test]
fn the_layout_is_the_drawn_one() {
    let mut message = message();
    message.tag = Some("T".to_owned());
    message.keys = vec!["k1".to_owned()];
    message.properties.insert("p".to_owned(), "v".to_owned());
    let frame = message.encode().unwrap();
    let mut head = BytesMut::new();
    head.put_slice(b"FLMF");
    head.put_slice(&[1, 1, 1, 1]);
    head.put_u32_le(64 + 4 + 6 + 1 + 4 + 6 + 5);
    head.put_u32_le(64 + 4 + 6 + 1 + 4 + 6);
    head.put_u32_le(crc32c::crc32c(b"hello"));
    let first = head.clone();
    let mut rest = BytesMut::new();
    rest.put_u32_le(tag_hash("T"));
    rest.put_u16_le(4);
    rest.put_u16_le(6);
    rest.put_u64_le(1);
    rest.put_u64_le(0);
    for length in [1, 0, 0, 0, 1, 1] {
        rest.put_u16_le(length);
    }
    rest.put_u32_le(64 + 4 + 6 + 1 + 4);
    rest.put_slice(b"id-1ordersT\x02\x00k1\x01\x00\x01\x00pv");
    head.put_u32_le(crc32c::crc32c_append(crc32c::crc32c(&first), &rest));
    head.put_slice(&rest);
    head.put_slice(b"hello");
    assert_eq!(frame.as_bytes(), &head.freeze());
}

#[test]
fn bytes_after_a_frame_are_fine_for_its_head_only() {
    let frame = message().encode().unwrap();
    let mut longer = BytesMut::from(&frame.as_bytes()[..]);
    longer.put_slice(b"next");
    assert!(FrameHead::parse(&longer).is_ok());
    assert!(matches!(FrameView::parse(longer.freeze()), Err(FrameError::TrailingBytes { .. })));
    assert_eq!(StoredFrame::from_bytes(frame.as_bytes().clone()).unwrap(), frame);
}

#[test]
fn each_broken_rule_has_its_own_error() {
    let broken = |change: fn(&mut Message)| {
        let mut message = message();
        change(&mut message);
        let error = message.validate().unwrap_err();
        assert_eq!(message.encode().unwrap_err(), error);
        error
    };
    assert_eq!(broken(|m| m.body = Bytes::new()), MessageError::BodyEmpty);
    assert_eq!(
        broken(|m| m.body = Bytes::from(vec![0; limits::BODY_BYTES_MAX + 1])).to_string(),
        "body has 4194305 bytes; at most 4194304 are allowed"
    );
    assert_eq!(
        broken(|m| drop(m.properties.insert("a".into(), "x".repeat(32 * 1024)))).to_string(),
        "properties, tag and keys have 32769 bytes; at most 32768 are allowed"
    );
    assert!(matches!(
        broken(|m| m.properties = (0..129).map(|i| (i.to_string(), String::new())).collect()),
        MessageError::TooManyProperties { count: 129, limit: 128 }
    ));
    assert_eq!(
        broken(|m| drop(m.properties.insert("UNIQ_KEY".into(), "x".into()))).to_string(),
        "property key \"UNIQ_KEY\" is reserved"
    );
    assert!(matches!(
        broken(|m| drop(m.properties.insert("a".into(), "x\u{1}".into()))),
        MessageError::IllegalPropertyValue { .. }
    ));
    assert!(matches!(broken(|m| m.tag = Some("a|b".into())), MessageError::IllegalTag { .. }));
    assert!(matches!(broken(|m| m.tag = Some("  ".into())), MessageError::IllegalTag { .. }));
    assert!(matches!(broken(|m| m.tag = Some("t".repeat(limits::TAG_BYTES_MAX + 1))), MessageError::TagTooLong { .. }));
    assert!(matches!(broken(|m| m.keys = vec![" ".into()]), MessageError::IllegalKey { .. }));
    assert!(matches!(
        broken(|m| m.keys = vec!["k".into(); limits::KEYS_PER_MESSAGE_MAX + 1]),
        MessageError::TooManyKeys { .. }
    ));
    assert!(matches!(
        broken(|m| m.keys = vec!["k".repeat(limits::KEY_BYTES_MAX + 1)]),
        MessageError::KeyTooLong { .. }
    ));
    assert!(matches!(
        broken(|m| m.group = Some("g".repeat(64))),
        MessageError::MessageGroupTooLong { bytes: 64, limit: 63 }
    ));
    assert!(matches!(broken(|m| m.group = Some("a\tb".into())), MessageError::IllegalMessageGroup { .. }));
    assert_eq!(broken(|m| m.message_type = MessageType::Fifo), MessageError::MessageGroupMissing);
    assert_eq!(broken(|m| m.message_type = MessageType::Delay), MessageError::DeliveryTimeMissing);
    assert!(matches!(broken(|m| m.trace_context = Some("x".repeat(1025))), MessageError::TraceContextTooLong { .. }));
    assert!(matches!(broken(|m| m.born_host = "x".repeat(256)), MessageError::BornHostTooLong { .. }));
}

#[test]
fn the_largest_message_fits() {
    let mut message = message();
    message.topic = TopicName::try_from("t".repeat(limits::TOPIC_NAME_BYTES_MAX)).unwrap();
    message.id = MessageId::try_from("i".repeat(limits::MESSAGE_ID_BYTES_MAX)).unwrap();
    message.body = Bytes::from(vec![7; limits::BODY_BYTES_MAX]);
    message.properties =
        (0..limits::PROPERTIES_PER_MESSAGE_MAX).map(|i| (format!("{i:03}"), "v".repeat(253))).collect();
    message.trace_context = Some("c".repeat(limits::TRACE_CONTEXT_BYTES_MAX));
    message.born_host = "h".repeat(limits::BORN_HOST_BYTES_MAX);
    message.group = Some("g".repeat(limits::MESSAGE_GROUP_BYTES_MAX));
    let frame = message.encode().unwrap();
    assert!(frame.byte_len() <= limits::BODY_BYTES_MAX + limits::FRAME_HEAD_BYTES_MAX);
    assert_eq!(frame.view().to_message(), message);
}

#[test]
fn an_empty_tag_counts_as_none() {
    let mut message = message();
    message.tag = Some(String::new());
    let view = message.encode().unwrap().view();
    assert_eq!((view.tag(), view.tag_hash()), (None, 0));
}
