//! Deterministic simulation of a broker group: real replicas on a virtual network, disk and clock, all from one seed.
//!
//! One thread, virtual time, one seeded pick per step ([`Executor`]); a disk that forgets what was not
//! synced ([`SimDisk`]); links that delay, cut and lose ([`SimNet`]).

mod disk;
mod driver;
mod executor;
mod group;
mod log;
mod nemesis;
mod net;
#[cfg(test)]
mod net_test;
mod options;
mod panics;
mod plan;
mod replica;
mod rng;
mod run;
mod store;
mod toy;
mod trace;
mod wire;
mod witness;
mod workload;

pub use disk::{DiskFaults, Losses, SimDisk, Survival};
pub use executor::{Executor, Life, LifeOptions, START_NS, Step, ms};
pub use log::print_log;
pub use net::{Address, LinkOptions, NetError, PeerService, SimNet};
pub use options::{FaultClasses, Machine, Mutant, Options};
pub use plan::{Fault, Planned, Victim, plan};
pub use rng::{Rng, fnv};
pub use run::{Outcome, run};
pub use trace::Trace;
