//! Storing: from a send request to frames in a queue, or outside of it until their time comes.

pub mod delay_level;
pub mod end_transaction;
pub mod held_handle;
pub mod level;
pub mod outgoing;
pub mod queue_moves;
pub mod recall;
pub mod send;
