//! The route service: replicas register their rows, clients ask where a topic is.
//!
//! What it promises:
//! - the table is soft state: no disk, no peers, rebuilt from what brokers say ([`Routes`]);
//! - a row is fenced by its freshness, so nothing late overwrites something newer;
//! - the end of a connection does not remove a row (a broker that reconnects keeps its place); only an
//!   unregistration or silence does, and silence closes the connection as well.

mod config;
mod metrics;
mod namesrv;
mod routes;
#[cfg(test)]
mod routes_test;
mod row;
mod service;
#[cfg(test)]
mod service_test;
mod wire;

pub use config::{ConfigError, ConfigErrors, DEFAULT_PORT, NamesrvConfig};
pub use namesrv::{Namesrv, StartError};
pub use routes::{ConnectionId, Expired, GroupTopic, GroupView, Registered, Routes, RowRefused, TopicRoute};
pub use row::{Freshness, Member, Row, RowKey, RowRole, TopicEntry};
pub use service::NamesrvService;
pub use wire::BadRow;
