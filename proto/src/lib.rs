//! What crosses a socket: messages, the services over them, and the adapters that carry them.
//!
//! - [`v2`] holds the messages of `apache.rocketmq.v2`; [`peer`], [`namesrv`] and [`admin`] those of
//!   our own services. All are generated from the `.proto` files beside this crate's sources.
//! - [`Messaging`], [`Peer`], [`Namesrv`] and [`Admin`] are the services as plain traits over
//!   messages: a simulation calls them directly, [`server::serve`] puts them on a socket.
//! - [`client`] has the calling side behind traits of the same kind ([`client::Connector`]).
//! - [`status`] is the one table of result codes.
//!
//! Promises: bodies are [`bytes::Bytes`] all the way and never copied after they were read from the
//! socket; a service never sees a transport's types; every stream is a bounded channel; a call that
//! surely was not executed is told apart from one that may have been
//! ([`client::CallError::Refused`]).

mod context;
#[cfg(test)]
mod descriptor_test;
pub mod metadata;
mod reply;
pub mod row_change;
mod rpcs;
pub mod seal;
mod service;

pub mod client;
pub mod server;
pub mod status;

#[allow(clippy::all, clippy::pedantic, rustdoc::all, missing_docs)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/generated.rs"));
}

pub use generated::apache::rocketmq::v2;
pub use generated::flotilla::admin::v1 as admin;
pub use generated::flotilla::namesrv::v1 as namesrv;
pub use generated::flotilla::peer::v1 as peer;

pub use context::{CallContext, UNARY_TIMEOUT, parse_grpc_timeout};
pub use metadata::{AckPlace, Metadata};
pub use reply::{MessageReplies, Replies, Reply, STREAM_DEPTH};
pub use service::{Admin, Messaging, Namesrv, Peer, PeerError, PeerLink};

/// Largest message that either side reads or writes, bytes.
pub const MESSAGE_BYTES_MAX: usize = 32 << 20;

/// Bytes that may be under way in one stream before the receiver has read them.
const STREAM_WINDOW_BYTES: u32 = 4 << 20;
/// Bytes that may be under way in one connection before the receiver has read them.
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;
/// The same on a peer port, where replicas of up to fifteen groups share a connection: one that reads nothing holds up nobody.
const PEER_CONNECTION_WINDOW_BYTES: u32 = 64 << 20;
