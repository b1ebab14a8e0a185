//! What the crate's own tests share: disks that crash, are slow or small, a runtime that replays, peers in memory, a machine that counts,
//! histories with a model beside them.

mod crash_disk;
mod history;
mod ledger;
mod memory_net;
mod slow_disk;
mod small_disk;
mod step_runtime;
mod weather;

pub(crate) use crash_disk::{CrashDisk, Loss, Op};
pub(crate) use history::{Model, Opened, Step, checkpoint_of, open_all, open_with, small_config};
pub(crate) use ledger::{ACKNOWLEDGED, Ledger};
pub(crate) use memory_net::MemoryNet;
pub(crate) use slow_disk::SlowDisk;
pub(crate) use small_disk::SmallDisk;
pub(crate) use step_runtime::StepRuntime;
pub(crate) use weather::{Link, Weather};
