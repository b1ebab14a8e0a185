//! The operator calls: topics, groups, and the state of the broker group.

pub mod cluster;
pub mod groups;
pub mod levels;
pub mod service;
pub mod topics;
