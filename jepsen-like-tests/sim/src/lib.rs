//! Deterministic simulation of a broker group: real replicas on a virtual network, disk and clock, all from one seed.
//!
//! One thread, virtual time, one seeded pick per step ([`Executor`]); a disk that forgets what was not
//! synced ([`SimDisk`]); links that delay, cut and lose ([`SimNet`]).

mod broker_replica;
mod case;
mod connector;
mod disk;
mod driver;
mod errands;
mod executor;
mod group;
mod log;
mod lure;
mod memberships;
mod namesrvs;
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
mod sdk;
mod store;
mod toy;
mod trace;
mod wire;
mod witness;
mod workload;

pub use case::Case;
pub use disk::{DiskFaults, Losses, SimDisk, Survival};
pub use executor::{Executor, Life, LifeOptions, START_NS, Step, ms};
pub use log::print_log;
pub use lure::machine_for;
pub use net::{Address, LinkOptions, NetError, PeerService, SimNet};
pub use options::{FaultClasses, Machine, Mutant, Options, Size};
pub use plan::{Fault, Planned, Victim, plan};
pub use rng::{Rng, fnv};
pub use run::{Outcome, run, run_case};
pub use trace::Trace;
