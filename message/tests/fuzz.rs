//! Damaged bytes for the decoders of a stored message.

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use flotilla_fuzz::{Target, set_crc};
use flotilla_message::{BodyEncoding, FrameHead, FrameView, Message, MessageId, MessageType, TopicName};

fn example(id: &str, tag: Option<&str>, keys: &[&str]) -> Vec<u8> {
    let message = Message {
        topic: TopicName::try_from("orders").unwrap(),
        message_type: MessageType::Fifo,
        id: MessageId::try_from(id).unwrap(),
        tag: tag.map(str::to_owned),
        keys: keys.iter().map(|key| (*key).to_owned()).collect(),
        group: Some("group".to_owned()),
        properties: BTreeMap::from([("colour".to_owned(), "blau".to_owned()), ("size".to_owned(), String::new())]),
        body: Bytes::from_static(b"hello, this is a body"),
        body_encoding: BodyEncoding::Identity,
        born_at_ms: 1,
        born_host: "host".to_owned(),
        trace_context: Some("trace".to_owned()),
        delivery_at_ms: None,
    };
    message.encode().unwrap().as_bytes().to_vec()
}

/// Length, body checksum and head checksum become right, as far as the head's length makes sense.
fn mend(bytes: &mut [u8]) {
    if bytes.len() < 64 {
        return;
    }
    let all = bytes.len() as u32;
    bytes[8..12].copy_from_slice(&all.to_le_bytes());
    let head = u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize;
    if (64..=bytes.len()).contains(&head) {
        let end = bytes.len();
        set_crc(bytes, 16, head..end);
        let mut covered = bytes[..20].to_vec();
        covered.extend_from_slice(&bytes[24..head]);
        let len = covered.len();
        covered.extend_from_slice(&[0; 4]);
        set_crc(&mut covered, len, 0..len);
        bytes[20..24].copy_from_slice(&covered[len..]);
    }
}

#[test]
fn stored_messages_of_any_bytes_are_answered() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz-corpus/stored-message");
    let examples = vec![("plain", example("id-1", None, &[])), ("full", example("id-2", Some("tag"), &["k1", "k2"]))];
    Target { name: "stored message", corpus: &corpus, examples, mend }.run(|bytes| {
        let head = FrameHead::parse(bytes);
        if let Ok(head) = &head {
            let _ = (head.id_in(bytes), head.topic_in(bytes));
            assert!(head.frame_bytes() as usize <= bytes.len(), "a frame ends within its bytes");
        }
        match FrameView::parse(Bytes::copy_from_slice(bytes)) {
            Ok(view) => {
                assert!(head.is_ok(), "a frame has a head");
                let _ = (view.to_message(), view.properties().count(), view.keys().count(), view.body());
                true
            }
            Err(_) => false,
        }
    });
}
