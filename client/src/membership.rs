//! That a client consumes for a group, and its good-bye when the last of its consumers of that group has shut down.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flotilla_message::{GroupName, TopicName};
use flotilla_proto::v2;
use futures::future::join_all;

use crate::client::Shared;
use crate::failure::judge_status;
use crate::wire;

/// What a good-bye may take; whom it does not reach in that time learns of it by two minutes of silence.
const GOOD_BYE_MAX: Duration = Duration::from_secs(1);

/// How many consumers of each group one client has.
#[derive(Debug, Default)]
pub(crate) struct Memberships {
    counts: Mutex<BTreeMap<GroupName, usize>>,
}

/// One consumer's part in a group; ends when it leaves or is dropped.
pub(crate) struct Membership {
    shared: Arc<Shared>,
    group: GroupName,
    has_ended: AtomicBool,
}

impl Memberships {
    fn begin(&self, group: &GroupName) {
        *self.counts.lock().expect(LOCK).entry(group.clone()).or_default() += 1;
    }

    /// Whether it was the last one of the group.
    fn end(&self, group: &GroupName) -> bool {
        let mut counts = self.counts.lock().expect(LOCK);
        match counts.get_mut(group) {
            Some(count) if *count > 1 => {
                *count -= 1;
                false
            }
            _ => counts.remove(group).is_some(),
        }
    }
}

impl Membership {
    pub(crate) fn begin(shared: Arc<Shared>, group: GroupName) -> Membership {
        shared.memberships.begin(&group);
        Membership { shared, group, has_ended: AtomicBool::new(false) }
    }

    fn end(&self) -> bool {
        !self.has_ended.swap(true, Ordering::Relaxed) && self.shared.memberships.end(&self.group)
    }

    /// Ends it. If the client has no other consumer of the group, the broker groups of `topic` are told that it has left:
    /// whoever comes next may want other messages at once. Takes no longer than `timeout`, nor than a second.
    pub(crate) async fn leave(&self, topic: &TopicName, timeout: Duration) {
        if !self.end() {
            return;
        }
        let runtime = &self.shared.runtime;
        let until = runtime.now() + timeout.min(GOOD_BYE_MAX);
        let told = runtime.timeout_at(until, async {
            let Ok(route) = self.shared.route_until(topic, until).await else { return false };
            let good_byes = route.readable().map(|group| async {
                let want_route = || self.shared.want_route(topic);
                let failover = self.shared.failover(&group.replicas, until, Duration::ZERO, &want_route);
                let request = v2::NotifyClientTerminationRequest { group: Some(wire::resource(self.group.as_str())) };
                let said = failover.run(async |address: String, timeout: Duration| {
                    let calls = self.shared.connector.messaging(&address);
                    let told = calls.notify_client_termination(self.shared.options(timeout), request.clone()).await?;
                    Ok(judge_status(told.body.status.as_ref()))
                });
                said.await.is_ok()
            });
            join_all(good_byes).await.into_iter().all(|told| told)
        });
        if !matches!(told.await, Ok(true)) {
            tracing::debug!(group = %self.group, "not every broker group was told of a good-bye");
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.end();
    }
}

const LOCK: &str = "membership lock is never poisoned: no code panics while holding it";
