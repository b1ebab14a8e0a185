//! Registers: a setting of a topic, and where an idle group stands in a queue. Each write gives a value of its own; reads and
//! writes go to any replica, each of them once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flotilla_checkers::{EventKind, Task};
use flotilla_message::TopicName;
use flotilla_proto::client::CallError;
use flotilla_proto::status::Code;
use flotilla_proto::{admin, v2};

use super::pace::Pace;
use super::ways::{outcome, resource};
use super::{BOOKMARKS, SETTINGS, Shared};
use crate::rng::Rng;

/// Those who write and read.
pub(super) const CLERKS: u64 = 6;
/// The first value of a setting, ms, less one: a time for which a topic keeps messages.
const SETTING_MIN: u64 = 3_600_000;

/// Where a register is.
enum Place {
    /// The time for which a topic keeps messages.
    Setting(&'static str),
    /// Where the idle group stands in a queue of the load's topic.
    Bookmark { topic: TopicName, queue: u32, end: AtomicU64 },
}

/// One of them.
struct Register {
    name: String,
    place: Place,
    next: AtomicU64,
}

/// All of them.
pub(super) struct Registers {
    all: Vec<Register>,
}

impl Registers {
    /// Two of each kind; `topic` is the load's.
    pub(super) fn new(topic: &TopicName) -> Registers {
        let settings = SETTINGS.iter().map(|name| Register {
            name: format!("setting of {name}"),
            place: Place::Setting(name),
            next: AtomicU64::new(1),
        });
        let bookmarks = (0..2).map(|queue| Register {
            name: format!("bookmark in {topic}/{queue}"),
            place: Place::Bookmark { topic: topic.clone(), queue, end: AtomicU64::new(0) },
            next: AtomicU64::new(1),
        });
        Registers { all: settings.chain(bookmarks).collect() }
    }
}

/// Writes and reads until the load is over.
pub(super) async fn keep(shared: Arc<Shared>, pace: Arc<Pace>, registers: Arc<Registers>, number: u64) {
    let (process, mut rng) = (format!("clerk-{number}"), shared.rng(4, number));
    while pace.turn(&shared).await.is_some() {
        let register = &registers.all[rng.below(registers.all.len() as u64) as usize];
        let value = if rng.coin() { register.next_value(&shared, &mut rng).await } else { None };
        let task = |read| match value {
            Some(value) => Task::SetRegister { register: register.name.clone(), value },
            None => Task::ReadRegister { register: register.name.clone(), value: read },
        };
        shared.deed(&process, EventKind::Invoke, task(None));
        let (kind, read) = match value {
            Some(value) => (register.write(&shared, &mut rng, value).await, None),
            None => register.read(&shared, &mut rng).await,
        };
        shared.deed(&process, kind, task(read));
    }
}

impl Register {
    /// A value that was never written; none if a group cannot stand that far yet.
    async fn next_value(&self, shared: &Shared, rng: &mut Rng) -> Option<u64> {
        if let Place::Bookmark { topic, queue, end } = &self.place
            && end.load(Ordering::Relaxed) <= self.next.load(Ordering::Relaxed) + CLERKS
        {
            let request = v2::QueryOffsetRequest {
                message_queue: Some(queue_of(topic, *queue)),
                query_offset_policy: v2::QueryOffsetPolicy::End.into(),
                timestamp: None,
            };
            let answer = shared.ways.ask(rng, |replica, _, options| replica.query_offset(options, request)).await;
            let known = answer.ok().filter(|reply| is(reply.body.status.as_ref(), Code::Ok));
            end.fetch_max(known.and_then(|reply| u64::try_from(reply.body.offset).ok())?, Ordering::Relaxed);
            if end.load(Ordering::Relaxed) <= self.next.load(Ordering::Relaxed) + CLERKS {
                return None;
            }
        }
        Some(self.next.fetch_add(1, Ordering::Relaxed))
    }

    async fn write(&self, shared: &Shared, rng: &mut Rng, value: u64) -> EventKind {
        match &self.place {
            Place::Setting(topic) => {
                let request = admin::UpdateTopicRequest {
                    name: (*topic).to_owned(),
                    retention_ms: Some(SETTING_MIN + value),
                    ..Default::default()
                };
                let answer = shared.ways.ask(rng, |_, replica, options| replica.update_topic(options, request)).await;
                outcome(answer.as_ref().map(|reply| reply.status.as_ref()))
            }
            // An operator moves the group, or a consumer says where it is.
            Place::Bookmark { topic, queue, .. } if rng.coin() => {
                let request = admin::ResetGroupRequest {
                    group: BOOKMARKS.to_owned(),
                    topic: topic.to_string(),
                    queue: Some(*queue),
                    to: Some(admin::reset_group_request::To::Offset(value)),
                };
                let answer = shared.ways.ask(rng, |_, replica, options| replica.reset_group(options, request)).await;
                outcome(answer.as_ref().map(|reply| reply.status.as_ref()))
            }
            Place::Bookmark { topic, queue, .. } => {
                let request = v2::UpdateOffsetRequest {
                    group: Some(resource(BOOKMARKS)),
                    message_queue: Some(queue_of(topic, *queue)),
                    offset: i64::try_from(value).unwrap_or(i64::MAX),
                };
                let answer = shared.ways.ask(rng, |replica, _, options| replica.update_offset(options, request)).await;
                outcome(answer.as_ref().map(|reply| reply.body.status.as_ref()))
            }
        }
    }

    /// How it ended, and what was read; none there: nothing was written yet.
    async fn read(&self, shared: &Shared, rng: &mut Rng) -> (EventKind, Option<u64>) {
        match &self.place {
            Place::Setting(topic) => {
                let request = admin::DescribeTopicRequest { name: (*topic).to_owned() };
                let answer = shared.ways.ask(rng, |_, replica, options| replica.describe_topic(options, request)).await;
                let kind = read_of(answer.as_ref().map(|reply| reply.status.as_ref()), Code::Ok);
                let own = answer.ok().filter(|reply| reply.retention_is_own);
                (kind, own.map(|reply| reply.retention_ms.saturating_sub(SETTING_MIN)))
            }
            Place::Bookmark { topic, queue, .. } => {
                let request = v2::GetOffsetRequest {
                    group: Some(resource(BOOKMARKS)),
                    message_queue: Some(queue_of(topic, *queue)),
                };
                let answer = shared.ways.ask(rng, |replica, _, options| replica.get_offset(options, request)).await;
                let status = answer.as_ref().map(|reply| reply.body.status.as_ref());
                let kind = read_of(status, Code::OffsetNotFound);
                let known = answer.ok().filter(|reply| is(reply.body.status.as_ref(), Code::Ok));
                (kind, known.and_then(|reply| u64::try_from(reply.body.offset).ok()))
            }
        }
    }
}

/// A read that brought nothing is none; `nothing` says that there is nothing.
fn read_of(status: Result<Option<&v2::Status>, &CallError>, nothing: Code) -> EventKind {
    let is_read = status.is_ok_and(|status| is(status, Code::Ok) || is(status, nothing));
    if is_read { EventKind::Ok } else { EventKind::Fail }
}

fn is(status: Option<&v2::Status>, code: Code) -> bool {
    status.is_some_and(|status| status.code == code as i32)
}

fn queue_of(topic: &TopicName, queue: u32) -> v2::MessageQueue {
    let id = i32::try_from(queue).unwrap_or(i32::MAX);
    v2::MessageQueue { topic: Some(resource(topic.as_str())), id, ..Default::default() }
}
