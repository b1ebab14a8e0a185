//! The real binary, driven from outside: what users type, what they see, and how it ends.
#![allow(
    clippy::disallowed_methods,
    reason = "tests wait for real processes, with the machine's clock and threads of their own"
)]

mod backup;
mod bad_input;
mod cluster;
mod copies;
mod demo;
mod dev;
mod docs;
mod draining;
mod frozen_target;
mod group;
mod log_tools;
mod metrics;
mod namesrv_cases;
mod namesrv_restart;
mod recovery;
mod support;
mod upgrade;
