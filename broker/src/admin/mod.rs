//! The operator calls: topics, groups, and the state of the broker group.

pub mod backup;
pub mod cluster;
pub mod dead_letters;
pub mod groups;
pub mod key_indexer;
pub mod levels;
pub mod messages;
pub mod placement;
pub mod positions;
pub mod recovery;
pub mod replicas;
mod retention;
pub mod service;
pub mod topics;
pub mod transactions;
