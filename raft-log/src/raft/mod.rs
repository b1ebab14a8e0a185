//! openraft's side of the crate: every type of openraft's lives in here, behind [`crate::ReplicatedLog`].

mod acquaintance;
mod admission;
mod append_stream;
mod async_runtime;
mod core_config;
mod fence;
mod given_up;
mod gone_watch;
mod heartbeat;
#[cfg(test)]
mod install_test;
mod log_store;
mod machine;
mod membership;
mod network;
mod parcel;
mod planted;
mod remembrance;
mod responder;
mod snapshot_inbox;
mod stamp;
mod stream_resets;
#[cfg(test)]
mod suite_test;
#[cfg(test)]
mod truncation_test;
mod type_config;
mod vote_hold;
#[cfg(test)]
mod vote_hold_test;
mod votes_asked;
mod watch;
mod wire;
mod wire_body;
#[cfg(test)]
mod wire_test;

#[cfg(test)]
pub(crate) use acquaintance::Verdict;
pub(crate) use acquaintance::{AcquaintanceAnswer, Founding, ask_acquaintance, judge};
pub(crate) use admission::{Admission, change_members};
pub(crate) use append_stream::serve_append;
pub(crate) use core_config::core_config;
pub(crate) use fence::{Fence, counts};
pub(crate) use given_up::{LeftBehind, refusal};
pub(crate) use gone_watch::GoneWatch;
pub(crate) use heartbeat::serve_heartbeat;
pub(crate) use log_store::LogStore;
pub(crate) use machine::{ErasedMachine, Machine};
pub(crate) use membership::{Members, decode_membership, encode_membership, epoch_of, member_of};
pub(crate) use network::NetworkFactory;
#[cfg(test)]
pub(crate) use parcel::ParcelId;
pub(crate) use parcel::{Parcel, put_sides};
pub(crate) use remembrance::Remembrance;
pub(crate) use responder::ReplyTo;
pub(crate) use snapshot_inbox::{INCOMING_FILE, Received, SnapshotInbox};
#[cfg(test)]
pub(crate) use stamp::STAMP_BYTES;
pub(crate) use stamp::Stamp;
pub(crate) use stream_resets::StreamResets;
#[cfg(test)]
pub(crate) use type_config::{Entry, LogId, Vote};
pub(crate) use type_config::{LogRaft, Proposal, Reply, TypeConfig, to_entry_id};
#[cfg(test)]
pub(crate) use vote_hold::HoldAnswer;
pub(crate) use vote_hold::{Recovery, VoteHold};
pub(crate) use watch::{FifoWatch, FifoWatchReceiver, FifoWatchSender};
#[cfg(test)]
pub(crate) use wire::DurableMark;
pub(crate) use wire::{PeerMessage, SnapshotAnswer, SnapshotPiece, WireError, decode, encode};
