//! What monitoring is told of a replica: counters kept while it works, and everything else looked up when asked for.

mod counters;
mod disk_source;
mod health_numbers;
mod label_table;
mod lag_track;
mod log_numbers;
mod message_numbers;
mod source;

pub use counters::{Counters, HandOverCause, Made, Refused, ReplicaRead};
pub use disk_source::DiskSource;
pub use lag_track::LagTrack;
pub use source::ReplicaSource;
