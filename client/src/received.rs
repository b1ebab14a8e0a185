//! A message as a consumer gets it, with the handle by which this delivery is acknowledged.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use flotilla_message::{MessageId, TopicName};

use crate::replicas::Replicas;

/// One delivery of a message. Clones speak of the same delivery.
#[derive(Debug, Clone)]
pub struct ReceivedMessage {
    delivery: Arc<Delivery>,
    /// Changes with every change of the invisible time; the clones must see that.
    receipt_handle: Arc<Mutex<String>>,
    pub(crate) replicas: Arc<Replicas>,
}

/// What a delivery says; read through [`ReceivedMessage`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// The topic the message was sent to.
    pub topic: TopicName,
    /// The id its producer gave it.
    pub id: MessageId,
    /// The body.
    pub body: Bytes,
    /// The tag, if it has one.
    pub tag: Option<String>,
    /// The keys.
    pub keys: Vec<String>,
    /// The message group, if it has one.
    pub message_group: Option<String>,
    /// The producer's own properties.
    pub properties: BTreeMap<String, String>,
    /// The queue it lies in.
    pub queue: u32,
    /// Its offset in the queue.
    pub offset: u64,
    /// Number of this delivery to the group; the first is 1.
    pub attempt: u32,
    /// When its producer made it, by that one's clock, milliseconds since the Unix epoch.
    pub born_at_ms: u64,
    /// When the broker stored it, milliseconds since the Unix epoch, if it says so.
    pub stored_at_ms: Option<u64>,
    /// The producer's trace context.
    pub trace_context: Option<String>,
    /// The broker group it came from.
    pub broker_group: String,
}

impl ReceivedMessage {
    pub(crate) fn new(delivery: Delivery, receipt_handle: String, replicas: Arc<Replicas>) -> ReceivedMessage {
        ReceivedMessage { delivery: Arc::new(delivery), receipt_handle: Arc::new(Mutex::new(receipt_handle)), replicas }
    }

    fn handle(&self) -> MutexGuard<'_, String> {
        self.receipt_handle.lock().expect("handle lock is never poisoned: no code panics while holding it")
    }

    /// The opaque name of this delivery as it is now.
    pub fn receipt_handle(&self) -> String {
        self.handle().clone()
    }

    pub(crate) fn set_receipt_handle(&self, handle: String) {
        *self.handle() = handle;
    }
}

impl std::ops::Deref for ReceivedMessage {
    type Target = Delivery;

    fn deref(&self) -> &Delivery {
        &self.delivery
    }
}
