//! What becomes of damage: it is told, closed off, mended from a peer, and meanwhile its replica does not lead.
//!
//! ```text
//! a read or the scrub ─▶ suspect ─▶ examined ─ sound ─▶ forgotten
//!                                      │ damaged
//!                                      ▼
//!                        quarantined (marker file) ─▶ entries fetched from a peer ─▶ new file, checked ─▶ renamed over
//! ```
//!
//! From the suspicion to the end of it the replica hands leadership over and does not campaign; readers of the damaged
//! entries get an error, the log's own readers wait.

mod damages;
mod fetch;
mod lead_guard;
mod mend;
mod passing;
mod quarantine;
#[cfg(test)]
mod repair_test;
mod steward;

pub(crate) use damages::{Damages, Sealer};
pub(crate) use fetch::{FetchAnswer, FetchRequest, serve_fetch};
pub(crate) use lead_guard::LeadGuard;
pub(crate) use passing::{scan_around, scan_around_to};
pub(crate) use quarantine::close_off_found;
pub(crate) use steward::Steward;
