//! One replica of a broker group: the services that clients call, over a replicated log and its store.
//!
//! What this crate promises:
//! - any replica answers any call: what only the leader can do is passed on to it, and waits while there is none;
//! - an answer of success means committed by a quorum and applied; a failure says whether nothing was done
//!   (`HA_NOT_AVAILABLE`) or nobody knows (`PROXY_TIMEOUT`);
//! - every queue, wait and table has a limit that a setting or a constant names;
//! - nothing of a message is kept outside log and store: a replica that dies loses no acknowledged one.
//!
//! The parts: `edge` speaks the clients' language (names, routes, settings), `produce` stores, `consume` hands out,
//! `lead` finds the leader and the way into the log, `cluster` knows the other broker groups, `duty` is what a leader does unasked, `peer` connects the replicas, `admin` serves operators,
//! `metrics` is what monitoring is told. A process
//! runs a [`Broker`], or a [`Host`] with replicas of several groups; a simulation runs [`Node`]s.

mod admin;
pub mod backup;
mod broker;
mod cluster;
pub mod config;
mod consume;
mod duty;
mod edge;
mod failure;
mod host;
mod lead;
mod metrics;
mod node;
mod peer;
mod produce;
mod registration;
mod replica;
mod start_error;

pub use broker::Broker;
pub use config::{BrokerConfig, ConfigError, ConfigErrors, RaftDurability, ReadFrom, ReplicaConfig};
pub use consume::receipt_handle::{HandleError, ReceiptHandle};
pub use edge::clients::{Client, Clients, StreamId};
pub use host::{HOSTED_GROUPS_MAX, Host, check_groups, groups_from_file, groups_from_toml};
pub use lead::proposer::Log;
pub use metrics::{DiskSource, ReplicaSource};
pub use node::Node;
pub use peer::transport::PeerTransport;
pub use start_error::StartError;
