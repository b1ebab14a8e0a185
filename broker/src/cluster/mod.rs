//! The other broker groups of the cluster: where they are, what they have of a topic, and how a call gets to them.

pub mod pass_on;
pub mod placing;
pub mod view;
