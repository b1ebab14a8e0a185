//! A cluster of real processes on this machine: start it, hurt it, ask it, end it.

mod child_server;
mod cluster_dir;
mod free_ports;
pub mod links;
mod local_cluster;
pub mod namespaces;
pub mod network;
pub(crate) mod packet_loss;
mod packet_rules;
pub mod power;
pub mod process_cpu;
pub mod shim;
mod signal;
pub(crate) mod tool;
mod view;
pub mod volume;

pub use child_server::{ChildServerError, READY_PREFIX};
pub use cluster_dir::ClusterDir;
pub use free_ports::free_ports;
pub use links::Links;
pub use local_cluster::{LocalCluster, LocalClusterConfig, LocalClusterError, Rig};
pub use namespaces::{Namespaces, NetworkError};
pub use network::Network;
pub use signal::Signal;
pub use tool::ToolError;
pub use view::{ClusterView, ClusterViewError, Leader, index_text, role_text};
