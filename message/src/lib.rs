//! What a message is: names and ids that exist only if valid, limits, and the stored frame.
//!
//! Promises of this crate:
//! - a [`TopicName`], [`GroupName`], [`MessageId`] or [`ClientId`] in hand is a legal one;
//! - a [`Message`] is encoded once into a [`StoredFrame`], and the same bytes are replicated,
//!   stored and served; a [`FrameView`] reads them in place;
//! - no bytes, however damaged, make a decoder panic: they are a [`FrameError`].
//!
//! Nothing here knows sockets, logs or replication. `docs/formats/stored-message.md` draws the frame.

mod ack_level;
mod frame;
mod frame_view;
mod hash;
pub mod limits;
mod message;
mod message_type;
mod names;
mod position;

pub use ack_level::{ACK_PROPERTY, AckLevel, FLUSH_PROPERTY, FlushLevel, SendLevel};
pub use frame::StoredFrame;
pub use frame_view::{FrameError, FrameHead, FrameView};
pub use hash::{Hash128, tag_hash};
pub use message::{BodyEncoding, Message, MessageError, RESERVED_PROPERTY_KEYS};
pub use message_type::{MessageType, Permission, UnknownValue};
pub use names::{ClientId, GroupName, MessageId, NameError, NameKind, TopicName};
pub use position::{MessageRef, QueueId, QueueOffset};
