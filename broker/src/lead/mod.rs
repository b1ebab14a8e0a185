//! Finding the leader, getting a call to it, and its way into the log.

pub mod auto_create;
pub mod budget;
pub mod fitness;
pub mod forwarder;
pub mod hand_over;
pub mod leader_call;
pub mod leadership;
pub mod log_clock;
pub mod pending_entry;
pub mod proposer;
pub mod read_mark;
