//! What went wrong in other brokers, tried on three replicas in one process: cut-off leaders, lost answers, batches under
//! failover, order, metadata, registrations, positions, reads at followers, open transactions, names, client ids.

mod batches;
mod changes;
mod cut_off;
mod equal_ids;
mod halves;
mod links;
pub mod load;
mod names;
mod ordered;
mod positions;
mod registering;
mod replica_reads;
