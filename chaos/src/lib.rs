//! Hurts a cluster of real processes by a plan made from a seed, heals it, and judges what clients and replicas saw.
//!
//! - [`cluster`]: processes on this machine and the network between them, also for others who need a cluster;
//! - [`plan`] and [`nemesis`]: what is done to it, as data, and how each fault is done and undone;
//! - [`matrix`]: what docs/ha-levels.md claims, cell by cell, and the runs that show it;
//! - [`run()`] and [`rejudge`]: a whole run, and its verdict from the stored files alone.
//!
//! The verdict is the checkers' (`flotilla-checkers`), the same that judge the simulation and the demo. The program
//! `flotilla-chaos` is a thin shell around this.

pub mod abilities;
pub mod availability;
mod body;
pub mod cluster;
mod conductor;
mod drain;
mod errands;
pub mod export;
pub mod history_file;
mod html;
pub mod hurt;
mod incidents;
mod judge;
mod levels;
pub mod matrix;
pub mod nemesis;
mod network_mode;
mod observer;
pub mod own_namespace;
mod parts;
pub mod plan;
pub mod planted;
mod report;
mod rng;
mod run;
mod run_dir;
mod run_record;
pub mod scenario;
mod unhealed;
mod workload;

pub use abilities::Abilities;
pub use conductor::FaultRecord;
pub use judge::judge;
pub use levels::{Level, Levels};
pub use network_mode::NetworkMode;
pub use parts::Parts;
pub use report::{Conclusion, Report};
pub use run::{RunError, default_dir, rejudge, run};
pub use run_dir::{RunDir, RunDirError};
pub use run_record::{RunRecord, Settings, Skipped};
pub use workload::CallCounts;
