//! Storing: from a send request to frames in a queue.

pub mod outgoing;
pub mod send;
