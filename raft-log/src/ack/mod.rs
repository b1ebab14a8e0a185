//! When a proposal may be answered: watermarks of this replica and of its followers, and who waits for them.

mod marks;
#[cfg(test)]
mod marks_test;
mod ticket;
mod tracker;
#[cfg(test)]
mod tracker_test;

pub use marks::{FollowerMarks, ReplicationStatus};
pub use ticket::{AckFailure, AckTicket, AckWatch, AckWhen};

pub(crate) use marks::LagLimits;
pub(crate) use ticket::TicketSlot;
pub(crate) use tracker::{AckTracker, ReplicaMarks};
