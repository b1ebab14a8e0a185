//! The limits of a message and of the names around it; each is checked in exactly one place.

/// Largest body, bytes. RocketMQ's default of 4 MiB.
pub const BODY_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Largest sum of the UTF-8 bytes of all property keys and values, the tag and the keys.
pub const PROPERTIES_BYTES_MAX: usize = 32 * 1024;

/// Most user properties of one message.
pub const PROPERTIES_PER_MESSAGE_MAX: usize = 128;

/// Most keys of one message.
pub const KEYS_PER_MESSAGE_MAX: usize = 64;

/// Longest key, bytes.
pub const KEY_BYTES_MAX: usize = 1024;

/// Longest tag, bytes.
pub const TAG_BYTES_MAX: usize = 1024;

/// Longest message group, bytes (RocketMQ refuses 64 and more).
pub const MESSAGE_GROUP_BYTES_MAX: usize = 63;

/// Longest trace context, bytes.
pub const TRACE_CONTEXT_BYTES_MAX: usize = 1024;

/// Longest name of the host a message was born on, bytes.
pub const BORN_HOST_BYTES_MAX: usize = 255;

/// Longest topic name, bytes.
pub const TOPIC_NAME_BYTES_MAX: usize = 127;

/// Longest group name, bytes: a topic derived from it (`%DLQ%group`, `%RETRY%group`) must be a
/// legal topic name itself.
pub const GROUP_NAME_BYTES_MAX: usize = 120;

/// Longest message id, bytes.
pub const MESSAGE_ID_BYTES_MAX: usize = 255;

/// Longest client id, bytes.
pub const CLIENT_ID_BYTES_MAX: usize = 255;

/// Most queues of one topic in one broker group.
pub const QUEUES_PER_TOPIC_MAX: u32 = 1024;

/// Queues of a topic whose creator names no count.
pub const QUEUES_PER_TOPIC_DEFAULT: u32 = 4;

/// Most messages of one atomic batch.
pub const BATCH_MESSAGES_MAX: usize = 1024;

/// Largest atomic batch, bytes of all its frames.
pub const BATCH_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Largest log entry, bytes.
pub const ENTRY_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Largest head of a stored frame, bytes (everything but the body).
pub const FRAME_HEAD_BYTES_MAX: usize = 64 * 1024;

/// Deliveries of one message to a group that names no other number: the first and 16 retries.
pub const MAX_DELIVERIES_DEFAULT: u32 = 17;

/// Most deliveries a group may ask for (RocketMQ's "for ever" of orderly consumers).
pub const MAX_DELIVERIES_MAX: u32 = i32::MAX as u32;

const _: () = assert!("%RETRY%".len() + GROUP_NAME_BYTES_MAX <= TOPIC_NAME_BYTES_MAX);
const _: () = assert!(BODY_BYTES_MAX + FRAME_HEAD_BYTES_MAX <= BATCH_BYTES_MAX);
const _: () = assert!(BATCH_BYTES_MAX * 2 <= ENTRY_BYTES_MAX);
// The head holds the properties with two length fields each, and every other text once.
const _: () = assert!(
    64 + PROPERTIES_BYTES_MAX
        + 4 * PROPERTIES_PER_MESSAGE_MAX
        + 2 * KEYS_PER_MESSAGE_MAX
        + TOPIC_NAME_BYTES_MAX
        + MESSAGE_ID_BYTES_MAX
        + MESSAGE_GROUP_BYTES_MAX
        + TRACE_CONTEXT_BYTES_MAX
        + BORN_HOST_BYTES_MAX
        <= FRAME_HEAD_BYTES_MAX
);
