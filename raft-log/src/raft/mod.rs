//! openraft's side of the crate: every type of openraft's lives in here, behind [`crate::ReplicatedLog`].

mod append_stream;
mod async_runtime;
mod core_config;
mod gone_watch;
mod log_store;
mod machine;
mod membership;
mod network;
mod responder;
#[cfg(test)]
mod suite_test;
mod type_config;
mod vote_hold;
#[cfg(test)]
mod vote_hold_test;
mod watch;
mod wire;
#[cfg(test)]
mod wire_test;

pub(crate) use append_stream::serve_append;
pub(crate) use core_config::core_config;
pub(crate) use gone_watch::GoneWatch;
pub(crate) use log_store::LogStore;
pub(crate) use machine::Machine;
pub(crate) use membership::decode_membership;
#[cfg(test)]
pub(crate) use membership::{Members, encode_membership};
pub(crate) use network::NetworkFactory;
pub(crate) use responder::ReplyTo;
#[cfg(test)]
pub(crate) use type_config::{Entry, LogId, Vote};
pub(crate) use type_config::{LogRaft, Proposal, TypeConfig};
#[cfg(test)]
pub(crate) use vote_hold::HoldAnswer;
pub(crate) use vote_hold::{Recovery, VoteHold};
pub(crate) use watch::{FifoWatch, FifoWatchReceiver, FifoWatchSender};
#[cfg(test)]
pub(crate) use wire::DurableMark;
pub(crate) use wire::{PeerMessage, decode, encode};
