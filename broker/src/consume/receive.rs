//! ReceiveMessage: hands out messages of a topic to one consumer of a group, waiting for some if there are none.

use std::sync::Arc;
use std::time::Duration;

use flotilla_message::{GroupName, TopicName};
use flotilla_proto::status::{Code, ok, status};
use flotilla_proto::{CallContext, peer, v2};
use flotilla_runtime::{Instant, Runtime, select};
use v2::receive_message_response::Content;

use super::delivery::{ms_of, timestamp, wire_duration};
use super::filter::Filter;
use super::members::Difference;
use super::renewal::holder_of;
use super::round::{Round, Take};
use super::sql::SqlCache;
use crate::config::INVISIBLE_MS_MAX;
use crate::edge::answer_room::AnswerRoom;
use crate::edge::names;
use crate::edge::settings::{LONG_POLLING, RECEIVE_BATCH};
use crate::lead::leader_call::{ANSWER_MARGIN, Attempt, LeaderCall, Tried, patience_ends};
use crate::lead::leadership::Place;
use crate::replica::Replica;

/// What a poll gets at least, however short it is, so that it looks once.
pub(super) const POLL_MIN: Duration = Duration::from_secs(1);
/// A poll ends so long before its call would be given up.
pub(super) const END_MARGIN: Duration = Duration::from_millis(20);
/// Pause of a poll for which something is due that it may not have: another poll has it, or the filter leaves it.
const BLOCKED_PAUSE: Duration = Duration::from_millis(200);
/// Looks in a row that found something but got nothing, before a poll waits for news.
const FRUITLESS_MAX: u32 = 3;
/// Longest attempt id, bytes.
const ATTEMPT_ID_BYTES_MAX: usize = flotilla_store::limits::ATTEMPT_ID_BYTES_MAX;

/// The call.
pub struct ReceiveMessage;

impl LeaderCall for ReceiveMessage {
    type Request = v2::ReceiveMessageRequest;
    type Answer = peer::ForwardedReceive;
    const METHOD: &'static str = "ReceiveMessage";
    const IS_POLL: bool = true;

    /// Under an attempt id the store answers the same messages again.
    fn is_idempotent(_: &v2::ReceiveMessageRequest) -> bool {
        true
    }

    async fn execute(
        replica: &Arc<Replica>,
        context: &CallContext,
        request: &v2::ReceiveMessageRequest,
        attempt: Attempt,
    ) -> Tried<peer::ForwardedReceive> {
        let poll = match Poll::read(replica, context, request, attempt) {
            Ok(poll) => poll,
            Err(refusal) => return Tried::answer(only(refusal)),
        };
        if let Err(refusal) = poll.note_member(replica, context, request) {
            return Tried::answer(only(refusal));
        }
        match replica.group_or_made(context, &poll.take.group, attempt.term).await {
            Ok(Ok(_)) => match replica.dead_letters_or_made(&poll.take.topic, attempt.term).await {
                Ok(()) => poll.run(replica, attempt).await,
                Err(error) => Tried::from_submit(error, only),
            },
            Ok(Err(refusal)) => Tried::answer(only(refusal)),
            Err(error) => Tried::from_submit(error, only),
        }
    }

    /// Nothing waits beyond its poll's time, whatever the call's deadline and however often it starts anew; only a poll that
    /// may have been given messages goes on until it has them.
    fn ends(replica: &Replica, _: &CallContext, request: &v2::ReceiveMessageRequest, now: Instant) -> Instant {
        now + wait_of(replica, request).max(POLL_MIN) + ANSWER_MARGIN
    }

    fn repeat(request: &mut v2::ReceiveMessageRequest, left: Duration) {
        let left = left.saturating_sub(ANSWER_MARGIN);
        let asked = request.long_polling_timeout.as_ref().and_then(ms_of).map(Duration::from_millis);
        let wait = asked.unwrap_or(LONG_POLLING).min(left);
        request.long_polling_timeout = Some(wire_duration(wait));
    }

    /// To a poll the lack of a leader is the lack of messages.
    fn refusal(_: &v2::ReceiveMessageRequest, refusal: v2::Status) -> peer::ForwardedReceive {
        match refusal.code() {
            Code::HaNotAvailable | Code::ProxyTimeout => only(status(Code::MessageNotFound, refusal.message)),
            _ => only(refusal),
        }
    }
}

/// How long a poll waits for messages.
fn wait_of(replica: &Replica, request: &v2::ReceiveMessageRequest) -> Duration {
    let asked = request.long_polling_timeout.as_ref().and_then(ms_of).map(Duration::from_millis);
    asked.unwrap_or(LONG_POLLING).min(Duration::from_millis(replica.config.long_polling_max_ms))
}

/// How the attempt ids that replicas give begin.
const OWN_ATTEMPT: &str = "flotilla-";

fn is_own_attempt(attempt_id: &str) -> bool {
    attempt_id.starts_with(OWN_ATTEMPT)
}

/// Gives a poll an attempt id if its client gave none, so that it can be repeated when its outcome is lost with a leader.
pub fn name_attempt(request: &mut v2::ReceiveMessageRequest, runtime: &Runtime) {
    if request.attempt_id.as_deref().is_none_or(str::is_empty) {
        let (high, low) = (runtime.random_u64(), runtime.random_u64());
        request.attempt_id = Some(format!("{OWN_ATTEMPT}{high:016x}{low:016x}"));
    }
}

/// An answer of one status and nothing else.
fn only(status: v2::Status) -> peer::ForwardedReceive {
    peer::ForwardedReceive { responses: vec![content(Content::Status(status))] }
}

/// Whether a piece of an answer is a message.
pub fn is_message(response: &v2::ReceiveMessageResponse) -> bool {
    matches!(response.content, Some(Content::Message(_)))
}

fn content(content: Content) -> v2::ReceiveMessageResponse {
    v2::ReceiveMessageResponse { content: Some(content) }
}

fn delivered(messages: Vec<v2::Message>, wall_ms: u64) -> peer::ForwardedReceive {
    let mut responses = Vec::with_capacity(messages.len() + 2);
    responses.push(content(Content::Status(ok())));
    responses.extend(messages.into_iter().map(|message| content(Content::Message(message))));
    responses.push(content(Content::DeliveryTimestamp(timestamp(wall_ms))));
    peer::ForwardedReceive { responses }
}

/// One poll as asked for.
#[derive(Debug)]
struct Poll {
    take: Take,
    ends: Instant,
}

impl Poll {
    fn read(
        replica: &Replica,
        context: &CallContext,
        request: &v2::ReceiveMessageRequest,
        attempt: Attempt,
    ) -> Result<Poll, v2::Status> {
        let group: GroupName = names::group(context, request.group.as_ref())?;
        // The queue's number is not looked at: some clients only ever name queue 0, others none.
        let resource = request.message_queue.as_ref().and_then(|queue| queue.topic.as_ref());
        let topic: TopicName = names::topic(context, resource)?;
        let attempt_id = request.attempt_id.clone().filter(|id| !id.is_empty());
        if let Some(bytes) = attempt_id.as_ref().map(String::len).filter(|bytes| *bytes > ATTEMPT_ID_BYTES_MAX) {
            let text = format!("attempt id has {bytes} bytes; at most {ATTEMPT_ID_BYTES_MAX} are allowed");
            return Err(status(Code::BadRequest, text));
        }
        let batch = match u32::try_from(request.batch_size) {
            // One client sends 0 and means the size it was told.
            Ok(0) => RECEIVE_BATCH,
            Ok(batch) => batch.min(RECEIVE_BATCH),
            Err(_) => {
                let text = format!("batch size is {}; 1 to {RECEIVE_BATCH} are allowed", request.batch_size);
                return Err(status(Code::BadRequest, text));
            }
        };
        let take = Take {
            group,
            topic,
            topic_resource: resource.cloned().unwrap_or_default(),
            filter: filter(request.filter_expression.as_ref(), replica.lanes.compiled())?,
            batch: batch as usize,
            invisible_ms: invisible_ms(request, replica.config.invisible_default_ms)?,
            holder: context.client_id.as_deref().filter(|_| request.auto_renew).map(holder_of),
            is_repeated: attempt.is_repeated || !attempt_id.as_deref().is_some_and(is_own_attempt),
            attempt_id,
            answer: AnswerRoom::current(),
        };
        let now = replica.runtime.now();
        let ends = (now + wait_of(replica, request)).min(patience_ends(context, now) - END_MARGIN);
        Ok(Poll { take, ends })
    }

    /// Notes who polls; members of one group that want different messages miss each other's, so the later one is told of
    /// in the log, or refused.
    fn note_member(
        &self,
        replica: &Replica,
        context: &CallContext,
        request: &v2::ReceiveMessageRequest,
    ) -> Result<(), v2::Status> {
        let Some(client_id) = &context.client_id else { return Ok(()) };
        let Take { group, topic, .. } = &self.take;
        let filter = filter_text(request.filter_expression.as_ref());
        let lane = replica.lanes.lane(group, topic);
        let Some(difference) = lane.heard(client_id, &filter, replica.runtime.now()) else { return Ok(()) };
        let Difference { first, first_filter, is_news } = difference;
        if is_news {
            tracing::warn!(%group, %topic, client_id, filter, first, first_filter, "subscriptions of a group differ");
        }
        if !replica.config.refuse_differing_subscriptions {
            return Ok(());
        }
        let whose = if first == *client_id { "another member under the same client id" } else { "client" };
        let text = format!(
            "filter '{filter}' is not that of group '{group}' in topic '{topic}': {whose} {first} has '{first_filter}'"
        );
        Err(status(Code::BadRequest, text))
    }

    async fn run(&self, replica: &Arc<Replica>, attempt: Attempt) -> Tried<peer::ForwardedReceive> {
        let Take { group, topic, .. } = &self.take;
        let lane = replica.lanes.lane(group, topic);
        let mut fruitless = 0;
        loop {
            let seen = replica.leadership.seen();
            if seen.place != Place::Local(attempt.term) {
                return Tried::not_led_here(seen.place);
            }
            let mut news = std::pin::pin!(lane.news());
            let mut is_blocked = false;
            // Enlisted before the look, so that what arrives between look and wait is not missed.
            news.as_mut().enable();
            let is_last = replica.runtime.now() >= self.ends;
            match self.take.round(replica, attempt.term, &lane, is_last).await {
                Round::Got(messages) => return Tried::answer(delivered(messages, replica.runtime.wall_ms())),
                Round::End(executed) => return executed,
                Round::Again if fruitless < FRUITLESS_MAX => {
                    fruitless += 1;
                    continue;
                }
                Round::MoreToLookAt if replica.runtime.now() < self.ends => continue,
                Round::Again | Round::MoreToLookAt => (fruitless, is_blocked) = (0, true),
                Round::Nothing => fruitless = 0,
            }
            let now = replica.runtime.now();
            if now >= self.ends {
                return Tried::answer(only(status(Code::MessageNotFound, "no message arrived in time")));
            }
            if let Some(Err(refusal)) = self.take.answer.as_ref().map(AnswerRoom::wait) {
                return Tried::answer(only(refusal));
            }
            let log_now_ms = replica.clock.now_ms(attempt.term, &replica.store);
            let wake_at = match replica.store.next_due_ms(group, topic) {
                _ if is_blocked => self.ends.min(now + BLOCKED_PAUSE),
                None => self.ends,
                Some(due_ms) if due_ms <= log_now_ms => self.ends.min(now + BLOCKED_PAUSE),
                Some(due_ms) => self.ends.min(now + Duration::from_millis(due_ms - log_now_ms)),
            };
            // Which of the two it was, and whether it was the time, shows at the next look.
            let _ = select(news, replica.leadership.changed_from(seen.generation, wake_at)).await;
        }
    }
}

/// A filter as members of a group are compared by it.
fn filter_text(expression: Option<&v2::FilterExpression>) -> String {
    match expression {
        Some(expression) if expression.r#type() == v2::FilterType::Sql => format!("sql: {}", expression.expression),
        Some(expression) if !expression.expression.trim().is_empty() => {
            let mut tags: Vec<&str> = expression.expression.split("||").map(str::trim).collect();
            tags.sort_unstable();
            tags.dedup();
            tags.join(" || ")
        }
        Some(_) | None => "*".to_owned(),
    }
}

/// Compiles the filter of a request.
pub fn filter(expression: Option<&v2::FilterExpression>, compiled: &SqlCache) -> Result<Filter, v2::Status> {
    let Some(expression) = expression else { return Ok(Filter::All) };
    let filter = match expression.r#type() {
        v2::FilterType::Tag | v2::FilterType::Unspecified => Filter::tags(&expression.expression),
        v2::FilterType::Sql => Filter::sql(&expression.expression, compiled),
    };
    filter.map_err(|error| status(Code::IllegalFilterExpression, error.to_string()))
}

/// Push consumers name no time and expect the broker to prolong it (`auto_renew`): they get the default, and more of it as
/// long as they live; see [`super::renewal`].
fn invisible_ms(request: &v2::ReceiveMessageRequest, default_ms: u64) -> Result<u64, v2::Status> {
    let Some(duration) = &request.invisible_duration else { return Ok(default_ms) };
    match ms_of(duration) {
        Some(0) if request.auto_renew => Ok(default_ms),
        Some(ms) if (1..=INVISIBLE_MS_MAX).contains(&ms) => Ok(ms),
        _ => {
            let (seconds, hours) = (duration.seconds, INVISIBLE_MS_MAX / 3_600_000);
            let text = format!("invisible duration is about {seconds} s; 1 ms to {hours} hours are allowed");
            Err(status(Code::IllegalInvisibleTime, text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(answer: &peer::ForwardedReceive) -> i32 {
        match answer.responses.first().and_then(|response| response.content.as_ref()) {
            Some(Content::Status(status)) => status.code,
            other => panic!("an answer begins with its status, not with {other:?}"),
        }
    }

    #[test]
    fn a_poll_without_a_leader_is_an_empty_poll() {
        let request = v2::ReceiveMessageRequest::default();
        assert_eq!(code(&ReceiveMessage::refusal(&request, status(Code::HaNotAvailable, ""))), 40401);
        assert_eq!(code(&ReceiveMessage::refusal(&request, status(Code::BadRequest, ""))), 40000);
        let answer = delivered(vec![v2::Message::default()], 5);
        assert_eq!((code(&answer), answer.responses.len()), (20000, 3));
    }

    #[test]
    fn the_invisible_time_is_the_caller_s_or_the_default() {
        let of = |duration: Option<(i64, i32)>, auto_renew| {
            let invisible_duration = duration.map(|(seconds, nanos)| prost_types::Duration { seconds, nanos });
            let request = v2::ReceiveMessageRequest { invisible_duration, auto_renew, ..Default::default() };
            invisible_ms(&request, 60_000).map_err(|status| status.code)
        };
        assert_eq!(of(None, true), Ok(60_000));
        assert_eq!(of(Some((0, 0)), true), Ok(60_000));
        assert_eq!(of(Some((3, 500_000_000)), false), Ok(3_500));
        assert_eq!(of(Some((0, 0)), false), Err(40011));
        assert_eq!(of(Some((12 * 3600 + 1, 0)), false), Err(40011));
    }

    #[test]
    fn expressions_are_compiled_and_what_is_wrong_with_them_is_said() {
        let compiled = SqlCache::default();
        let filter = |kind: v2::FilterType, text: &str| {
            let expression = v2::FilterExpression { r#type: kind.into(), expression: text.to_owned() };
            filter(Some(&expression), &compiled).map_err(|status| (status.code, status.message))
        };
        assert_eq!(super::filter(None, &compiled), Ok(Filter::All));
        assert!(filter(v2::FilterType::Tag, "a || b").is_ok());
        assert_eq!(filter(v2::FilterType::Tag, "a ||").expect_err("a hole").0, 40010);
        assert!(filter(v2::FilterType::Sql, "a > 3").is_ok());
        let (code, text) = filter(v2::FilterType::Sql, "a > 3 AND").expect_err("half an expression");
        assert_eq!(code, 40010);
        assert!(text.starts_with("SQL filter at character 10: found the end, expected a property"), "{text}");
    }
}
