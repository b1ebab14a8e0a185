//! Which feature levels the programs of a group's members support, as each says in the stamps of its frames.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::{NodeId, ReplicatedLog};

/// The word of a member that was silent for longer is old.
const HEARD_MAX: Duration = Duration::from_secs(3);

impl<O: Send + 'static> ReplicatedLog<O> {
    /// The feature level that each member's program supports; `None` where it was not heard yet.
    pub fn feature_levels(&self) -> BTreeMap<NodeId, Option<u8>> {
        self.inner.view.standings().levels()
    }

    /// The feature level that the programs of all members support, learners included; only a leader knows it, and only while
    /// it hears every one of them.
    pub fn common_feature_level(&self) -> Option<u8> {
        let inner = &*self.inner;
        let members = self.members();
        if !inner.status.now().can_write || members.is_joint || !members.is_committed {
            return None;
        }
        let contacts = inner.status.contacts();
        let is_heard = |node: &NodeId| {
            *node == inner.node
                || contacts
                    .peers
                    .iter()
                    .any(|peer| peer.node == *node && peer.silent_for.is_some_and(|silence| silence <= HEARD_MAX))
        };
        let levels = self.feature_levels();
        levels.iter().map(|(node, level)| level.filter(|_| is_heard(node))).min().flatten()
    }
}
