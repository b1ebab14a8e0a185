//! Holds ordered sends back while the number of their topic's queues changes.
//!
//! That number decides which queue a message group has. A message whose queue was chosen by the old number must not come
//! behind the change in the log: the next one of its group would stand in another queue and could pass it. So choosing a
//! queue and handing the message to the proposer are one step, which no change comes between, and whoever finds a change
//! under way waits until it is applied here.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use flotilla_message::TopicName;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// The changes under way.
#[derive(Debug, Default)]
pub struct QueueMoves {
    /// How many, by topic.
    under_way: RwLock<BTreeMap<TopicName, u32>>,
    over: Notify,
}

/// A change, until dropped.
#[derive(Debug)]
pub struct QueueMove {
    moves: Arc<QueueMoves>,
    topic: TopicName,
}

// Nobody panics while holding the lock, but for what `unless_moving` is given: that changes nothing in here.
impl QueueMoves {
    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<TopicName, u32>> {
        self.under_way.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<TopicName, u32>> {
        self.under_way.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a change: what was chosen before is handed in already.
    pub fn begin(self: &Arc<QueueMoves>, topic: &TopicName) -> QueueMove {
        *self.write().entry(topic.clone()).or_default() += 1;
        QueueMove { moves: self.clone(), topic: topic.clone() }
    }

    /// Chooses and hands in, unless a change of the topic is under way. `choose` must not wait.
    pub fn unless_moving<T>(&self, topic: &TopicName, choose: impl FnOnce() -> T) -> Option<T> {
        let under_way = self.read();
        (!under_way.contains_key(topic)).then(choose)
    }

    /// Resolves when the next change is over. Enlist it before looking.
    pub fn over(&self) -> Notified<'_> {
        self.over.notified()
    }
}

impl Drop for QueueMove {
    fn drop(&mut self) {
        {
            let mut under_way = self.moves.write();
            match under_way.get_mut(&self.topic) {
                Some(count) if *count > 1 => *count -= 1,
                _ => drop(under_way.remove(&self.topic)),
            }
        }
        self.moves.over.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_ordered_waits_for_every_change_of_its_topic_and_for_no_other() {
        let moves = Arc::new(QueueMoves::default());
        let topic = |name: &str| TopicName::try_from(name).expect("a name");
        let (first, second) = (moves.begin(&topic("a")), moves.begin(&topic("a")));
        assert_eq!(moves.unless_moving(&topic("b"), || 7), Some(7));
        drop(first);
        let mut over = std::pin::pin!(moves.over());
        over.as_mut().enable();
        assert_eq!(moves.unless_moving(&topic("a"), || 7), None);
        drop(second);
        over.await;
        assert_eq!(moves.unless_moving(&topic("a"), || 7), Some(7));
    }
}
