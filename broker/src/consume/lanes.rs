//! What the leader remembers of each group in each topic while it serves polls: whose turn it is, which queues are being
//! taken from, how far a filter has looked, and who waits for news; and the filters it has compiled for them.
//!
//! All of it is a cache in front of the replicated state and starts anew with each term; losing it costs a little work,
//! never a message.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use flotilla_message::{GroupName, QueueId, QueueOffset, TopicName};
use flotilla_proto::admin;
use flotilla_raft_log::Term;
use flotilla_runtime::Instant;
use tokio::sync::Notify;

use super::filter::Filter;
use super::members::{Difference, Members};
use super::sql::SqlCache;

/// Lanes kept before those in no use are dropped.
const LANES_MAX: usize = 65_536;

/// All lanes, by topic so that an arrival finds those it concerns.
#[derive(Debug, Default)]
pub struct Lanes {
    lanes: Mutex<Table>,
    compiled: SqlCache,
}

#[derive(Debug, Default)]
struct Table {
    by_topic: BTreeMap<TopicName, BTreeMap<GroupName, Arc<Lane>>>,
    count: usize,
}

/// One group in one topic.
#[derive(Debug, Default)]
pub struct Lane {
    news: Notify,
    state: Mutex<LaneState>,
    members: Mutex<Members>,
}

#[derive(Debug, Default)]
struct LaneState {
    term: Option<Term>,
    turn: u32,
    taken: BTreeSet<QueueId>,
    /// Taken queues that another poll has asked for meanwhile.
    missed: BTreeSet<QueueId>,
    looked: BTreeMap<QueueId, Looked>,
}

/// How far a filter has found nothing, from a group's next offset on.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Looked {
    /// The incarnation: a topic that is deleted and made again under its name begins anew.
    topic_uid: u64,
    filter: Filter,
    from: QueueOffset,
    to: QueueOffset,
}

/// The right to deliver from one queue to one group; given back when dropped.
#[derive(Debug)]
pub struct Hold {
    lane: Arc<Lane>,
    term: Term,
    queue: QueueId,
}

impl Lanes {
    /// The filters compiled for polls.
    pub fn compiled(&self) -> &SqlCache {
        &self.compiled
    }

    /// The lane of a group in a topic, made if there is none.
    pub fn lane(&self, group: &GroupName, topic: &TopicName) -> Arc<Lane> {
        let mut table = self.lanes.lock().expect(LOCK);
        if let Some(lane) = table.by_topic.get(topic).and_then(|lanes| lanes.get(group)) {
            return lane.clone();
        }
        if table.count >= LANES_MAX {
            table.drop_unused();
        }
        let lane = Arc::new(Lane::default());
        table.by_topic.entry(topic.clone()).or_default().insert(group.clone(), lane.clone());
        table.count += 1;
        lane
    }

    /// Wakes every poll on the topic: there are new messages.
    pub fn topic_news(&self, topic: &TopicName) {
        let table = self.lanes.lock().expect(LOCK);
        for lane in table.by_topic.get(topic).into_iter().flat_map(BTreeMap::values) {
            lane.news.notify_waiters();
        }
    }

    /// A member has left its group.
    pub fn gone(&self, client_id: &str, group: &GroupName) {
        for (_, lane) in self.lanes_of(group) {
            lane.members.lock().expect(LOCK).gone(client_id);
        }
    }

    /// Who polls for a group, in which topics.
    pub fn members(&self, group: &GroupName, now: Instant) -> Vec<admin::GroupMember> {
        let mut rows = Vec::new();
        for (topic, lane) in self.lanes_of(group) {
            let members = lane.members.lock().expect(LOCK);
            rows.extend(members.live(now).map(|(client_id, filter, member)| admin::GroupMember {
                client_id: client_id.to_owned(),
                topic: topic.to_string(),
                filter: filter.to_owned(),
                idle_ms: u64::try_from((now - member.seen_at).as_millis()).unwrap_or(u64::MAX),
            }));
        }
        rows
    }

    /// Topics in which members of a group want different messages.
    pub fn differing_topics(&self, group: &GroupName, now: Instant) -> Vec<String> {
        let lanes = self.lanes_of(group).into_iter();
        let differing = lanes.filter(|(_, lane)| lane.members.lock().expect(LOCK).differ(now));
        differing.map(|(topic, _)| topic.to_string()).collect()
    }

    /// Groups and topics in which members want different messages, by topic and group.
    pub fn differing(&self, now: Instant) -> Vec<(GroupName, TopicName)> {
        let lanes: Vec<_> = {
            let table = self.lanes.lock().expect(LOCK);
            let of_topic = |(topic, lanes): (&TopicName, &BTreeMap<GroupName, Arc<Lane>>)| {
                let topic = topic.clone();
                lanes.iter().map(move |(group, lane)| (group.clone(), topic.clone(), lane.clone())).collect::<Vec<_>>()
            };
            table.by_topic.iter().flat_map(of_topic).collect()
        };
        let differing = lanes.into_iter().filter(|(_, _, lane)| lane.members.lock().expect(LOCK).differ(now));
        differing.map(|(group, topic, _)| (group, topic)).collect()
    }

    fn lanes_of(&self, group: &GroupName) -> Vec<(TopicName, Arc<Lane>)> {
        let table = self.lanes.lock().expect(LOCK);
        let lanes = table.by_topic.iter();
        lanes.filter_map(|(topic, lanes)| Some((topic.clone(), lanes.get(group)?.clone()))).collect()
    }

    /// Wakes the group's polls on the topic: something may be deliverable again.
    pub fn group_news(&self, group: &GroupName, topic: &TopicName) {
        let table = self.lanes.lock().expect(LOCK);
        if let Some(lane) = table.by_topic.get(topic).and_then(|lanes| lanes.get(group)) {
            lane.news.notify_waiters();
        }
    }
}

impl Table {
    fn drop_unused(&mut self) {
        for lanes in self.by_topic.values_mut() {
            // A poll and a hold each keep a handle of their own.
            lanes.retain(|_, lane| Arc::strong_count(lane) > 1);
        }
        self.by_topic.retain(|_, lanes| !lanes.is_empty());
        self.count = self.by_topic.values().map(BTreeMap::len).sum();
    }
}

impl Lane {
    /// Resolves at the next news. Enlist it ([`tokio::sync::futures::Notified::enable`]) before looking for messages, so
    /// that news between the look and the wait are not missed.
    pub fn news(&self) -> tokio::sync::futures::Notified<'_> {
        self.news.notified()
    }

    /// Notes who polls, and with which filter; see [`Members::heard`].
    pub fn heard(&self, client_id: &str, filter: &str, now: Instant) -> Option<Difference> {
        self.members.lock().expect(LOCK).heard(client_id, filter, now)
    }

    /// All queues, beginning with another one each time.
    pub fn next_turn(&self, queue_count: u32) -> impl Iterator<Item = QueueId> + use<> {
        let turn = {
            let mut state = self.state.lock().expect(LOCK);
            let turn = state.turn;
            state.turn = turn.wrapping_add(1);
            turn
        };
        (0..queue_count).map(move |step| QueueId((turn % queue_count + step) % queue_count))
    }

    /// Takes a queue, unless another poll of the group has it. Who gets nothing is woken when it is given back.
    pub fn take(self: &Arc<Lane>, term: Term, queue: QueueId) -> Option<Hold> {
        let mut state = self.state.lock().expect(LOCK);
        if state.term != Some(term) {
            // Holds of an earlier term still out there are void: their proposals carry their term.
            *state = LaneState { term: Some(term), turn: state.turn, ..LaneState::default() };
        }
        if state.taken.insert(queue) {
            return Some(Hold { lane: self.clone(), term, queue });
        }
        state.missed.insert(queue);
        None
    }
}

impl Hold {
    /// The term in which it was taken.
    pub fn term(&self) -> Term {
        self.term
    }

    /// The queue.
    pub fn queue(&self) -> QueueId {
        self.queue
    }

    /// Where a filter has to begin looking, for a group whose next offset is `next`.
    pub fn look_from(&self, topic_uid: u64, filter: &Filter, next: QueueOffset) -> QueueOffset {
        let state = self.lane.state.lock().expect(LOCK);
        match state.looked.get(&self.queue) {
            Some(looked) if looked.topic_uid == topic_uid && looked.from == next && looked.filter == *filter => {
                looked.to
            }
            _ => next,
        }
    }

    /// Remembers that the filter found nothing between the group's next offset and `to`.
    pub fn found_nothing(&self, topic_uid: u64, filter: &Filter, next: QueueOffset, to: QueueOffset) {
        let mut state = self.lane.state.lock().expect(LOCK);
        if state.term == Some(self.term) {
            state.looked.insert(self.queue, Looked { topic_uid, filter: filter.clone(), from: next, to });
        }
    }
}

impl Hold {
    /// Gives the queue back and wakes all polls of the lane: when something becomes due has changed.
    pub fn release_with_news(self) {
        let lane = self.lane.clone();
        drop(self);
        lane.news.notify_waiters();
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        {
            let mut state = self.lane.state.lock().expect(LOCK);
            if state.term != Some(self.term) {
                return;
            }
            state.taken.remove(&self.queue);
            // Only for those who asked: idle polls that look in turn must not wake each other for ever.
            if !state.missed.remove(&self.queue) {
                return;
            }
        }
        self.lane.news.notify_waiters();
    }
}

const LOCK: &str = "lane lock is never poisoned: no code panics while holding it";

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> (GroupName, TopicName) {
        (GroupName::try_from("g").expect("a name"), TopicName::try_from("t").expect("a name"))
    }

    #[test]
    fn each_poll_begins_at_another_queue() {
        let lane = Lane::default();
        let turn = |_| lane.next_turn(3).map(|queue| queue.0).collect::<Vec<_>>();
        assert_eq!((0..4).map(turn).collect::<Vec<_>>(), [[0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 1, 2]]);
    }

    #[test]
    fn a_queue_is_taken_once_until_given_back() {
        let lane = Arc::new(Lane::default());
        let hold = lane.take(Term(1), QueueId(0)).expect("free");
        assert!(lane.take(Term(1), QueueId(0)).is_none());
        assert!(lane.take(Term(1), QueueId(1)).is_some());
        drop(hold);
        assert!(lane.take(Term(1), QueueId(0)).is_some());
    }

    #[test]
    fn holds_and_looks_of_an_earlier_term_are_void() {
        let lane = Arc::new(Lane::default());
        let filter = Filter::tags("a").expect("a filter");
        let old = lane.take(Term(1), QueueId(0)).expect("free");
        old.found_nothing(1, &filter, QueueOffset(0), QueueOffset(9));
        let new = lane.take(Term(2), QueueId(0)).expect("a new term starts free");
        assert_eq!(new.look_from(1, &filter, QueueOffset(0)), QueueOffset(0));
        drop(old);
        assert!(lane.take(Term(2), QueueId(0)).is_none(), "the old hold gives back nothing of the new term");
        drop(new);
    }

    #[test]
    fn a_filter_does_not_look_twice() {
        let lane = Arc::new(Lane::default());
        let hold = lane.take(Term(1), QueueId(0)).expect("free");
        let (a, b) = (Filter::tags("a").expect("a filter"), Filter::tags("b").expect("a filter"));
        hold.found_nothing(1, &a, QueueOffset(3), QueueOffset(9));
        assert_eq!(hold.look_from(1, &a, QueueOffset(3)), QueueOffset(9));
        assert_eq!(hold.look_from(1, &a, QueueOffset(4)), QueueOffset(4), "the group has moved");
        assert_eq!(hold.look_from(1, &b, QueueOffset(3)), QueueOffset(3), "another filter");
        assert_eq!(hold.look_from(2, &a, QueueOffset(3)), QueueOffset(3), "the topic was made again");
    }

    #[tokio::test]
    async fn news_between_look_and_wait_are_not_missed() {
        let (lanes, (group, topic)) = (Lanes::default(), names());
        let lane = lanes.lane(&group, &topic);
        let mut news = std::pin::pin!(lane.news());
        news.as_mut().enable();
        lanes.topic_news(&topic);
        news.await;
        let mut news = std::pin::pin!(lane.news());
        news.as_mut().enable();
        lanes.group_news(&group, &topic);
        news.await;
        assert!(Arc::ptr_eq(&lane, &lanes.lane(&group, &topic)));
    }
}
