//! Watches who says that it leads, replica by replica, all through a run.

use std::sync::Arc;
use std::time::Duration;

use flotilla_checkers::{EventKind, Leadership, Operation};
use flotilla_proto::admin::{ClusterStatusRequest, Role};
use flotilla_proto::client::{CallOptions, Connector};
use flotilla_runtime::{Runtime, Task};

use crate::history_file::HistoryFile;

const INTERVAL: Duration = Duration::from_millis(50);
const CALL_TIMEOUT: Duration = Duration::from_millis(500);

/// One watcher for each replica. Dropping it ends them.
pub(crate) struct Observers {
    _tasks: Vec<Task<()>>,
}

impl Observers {
    /// Watches the replicas that serve clients at these `host:port`s.
    pub(crate) fn start(
        addresses: &[String],
        connector: &dyn Connector,
        history: &Arc<HistoryFile>,
        runtime: &Runtime,
    ) -> Observers {
        let watch = |address: &String| {
            let (replica, history, time) = (connector.admin(address), history.clone(), runtime.clone());
            runtime.spawn("observer", async move {
                let mut last: Option<Leadership> = None;
                loop {
                    time.sleep(INTERVAL).await;
                    let call =
                        replica.cluster_status(CallOptions::within(CALL_TIMEOUT), ClusterStatusRequest::default());
                    let Ok(Ok(status)) = time.timeout(CALL_TIMEOUT, call).await else { continue };
                    let seen = Leadership { term: status.term, leader: status.node };
                    if status.role == i32::from(Role::Leader) && last.as_ref() != Some(&seen) {
                        history.record("observer", EventKind::Ok, Operation::Leader(seen.clone()));
                        last = Some(seen);
                    }
                }
            })
        };
        Observers { _tasks: addresses.iter().map(watch).collect() }
    }
}
