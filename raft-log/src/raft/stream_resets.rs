//! Breaking the append stream to a peer on purpose: so that a replica far behind lets go of entries that are to be purged.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use crate::NodeId;

/// One bell for each peer. Cheap handle.
#[derive(Clone, Default)]
pub(crate) struct StreamResets {
    bells: Arc<Mutex<BTreeMap<NodeId, Arc<Notify>>>>,
}

impl StreamResets {
    /// Rings when the stream to `target` is to break.
    pub(super) fn bell(&self, target: NodeId) -> Arc<Notify> {
        let mut bells = self.bells.lock().expect("bells lock is never poisoned: no code panics while holding it");
        bells.entry(target).or_default().clone()
    }

    /// Breaks the stream to `target`, if there is one.
    pub(crate) fn reset(&self, target: NodeId) {
        self.bell(target).notify_waiters();
    }
}
