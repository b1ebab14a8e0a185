//! What replicas tell each other about their health: fitness to lead, wall clock, digests of the state at agreed entries.
//!
//! Each replica asks all the others every few seconds and judges *itself* by what most of them say: one whose digest a
//! quorum contradicts stops, one whose clock a quorum contradicts does not lead. Without a quorum against it there is only
//! an alarm. Who does not answer is told of in the log, again and again.

mod digests;
mod rounds;
mod silences;
mod watch;

pub(crate) use digests::{DIGEST_EVERY, StateDigest};
pub(crate) use rounds::{Rounds, ask_vitals};
pub use watch::Fitness;
pub(crate) use watch::{Vitals, VitalsAnswer};
