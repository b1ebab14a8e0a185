//! What clients and operators meet at the brokers of a group, all in one process. One binary, because each links all of the broker.

mod administering;
mod backing_up;
mod bounds;
mod changing;
mod clients;
mod delayed;
mod disk_use;
mod field_cases;
mod filters;
mod group;
mod hosting;
mod levels;
mod lost_answers;
mod members;
mod metrics;
mod metrics_table;
mod namespaces;
mod pulling;
mod renewing;
mod retention;
mod self_watch;
mod single;
mod support;
mod transactions;
