//! The other replicas of the group: what they ask of this one, and the way to them.

pub mod book;
pub mod service;
pub mod transport;
