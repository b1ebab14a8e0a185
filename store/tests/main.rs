//! The state machine from outside, in one binary: what entries do to topics, queues, groups and messages.

mod changing;
mod checkpoints;
mod consumption;
mod delayed;
mod deliveries;
mod determinism;
mod entries;
mod feature_level;
mod index_files;
mod key_index;
mod placement;
mod pop_model;
mod producing;
mod retention;
mod shadow;
mod support;
mod transactions;
