//! What went wrong in other brokers, tried on three replicas in one process: cut-off leaders, lost answers, batches under
//! failover, order, metadata, registrations.

mod batches;
mod changes;
mod cut_off;
mod links;
pub mod load;
mod ordered;
mod registering;
