//! The calling side: traits over messages, and the adapter that carries them over gRPC.

mod calls;
mod error;
mod tonic_calls;
mod tonic_classify;
mod tonic_connector;
mod tonic_dial;
mod tonic_link;
mod tonic_peer;

pub use calls::{
    AdminCalls, AppendLink, CallOptions, Connector, MessagingCalls, NamesrvCalls, PeerCalls, Presence, ReplyStream,
    reply_stream,
};
pub use error::CallError;
pub use tonic_connector::TonicConnector;
