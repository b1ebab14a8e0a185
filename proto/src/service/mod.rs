//! The services as traits over messages, free of any transport.
//!
//! Contract of every implementation:
//! - a returned future may be dropped at any await (the caller went away or its time is over);
//! - streams are bounded: a full one must slow the producer down, not grow;
//! - errors are told in the response's status, never by panicking.

mod admin;
mod messaging;
mod namesrv;
mod peer;

pub use admin::Admin;
pub use messaging::Messaging;
pub use namesrv::Namesrv;
pub use peer::{Peer, PeerError, PeerLink};

use tokio::sync::mpsc;

use crate::Replies;

/// A stream of exactly one element.
fn single<T>(element: T) -> Replies<T> {
    let (sender, replies) = mpsc::channel(1);
    // Cannot fail: the channel is new, empty and its receiver is alive.
    let _ = sender.try_send(element);
    replies
}
