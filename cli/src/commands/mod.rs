//! One file (or folder) per command, each with its arguments and its `run`.

pub mod admin;
pub mod backup;
pub mod bench;
pub mod broker;
pub mod demo;
pub mod dev;
pub mod log;
pub mod namesrv;
pub mod receive;
pub mod send;
mod serve;
