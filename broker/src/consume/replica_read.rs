//! Pulls at a follower, where the broker's rule is that any replica answers them.
//!
//! What is committed and applied never changes, so a follower hands out what it has, whoever leads. That there is nothing
//! more it says only while it keeps up; whoever would be stuck at one that lags is passed on to the leader, and whoever is
//! at one that reaches no leader is told to ask another replica.

use std::sync::Arc;
use std::time::Duration;

use flotilla_message::QueueOffset;
use flotilla_proto::status::{Code, status};
use flotilla_proto::{CallContext, peer, v2};
use flotilla_runtime::{Instant, select};

use super::delivery::wire_duration;
use super::offsets::wire_offset;
use super::pull::{Look, Pull, PullMessage, found, none_in_time, none_up_to, only};
use crate::config::ReadFrom;
use crate::edge::names;
use crate::lead::leader_call::{Attempt, LeaderCall, Tried, lead};
use crate::lead::leadership::Place;
use crate::metrics::ReplicaRead;
use crate::replica::Replica;

/// Answers a pull by the broker's rule: here, or by the leader.
pub async fn pull(
    replica: &Arc<Replica>,
    context: CallContext,
    mut request: v2::PullMessageRequest,
) -> peer::ForwardedPull {
    let is_led_here = || matches!(replica.leadership.seen().place, Place::Local(_));
    if replica.config.read_from == ReadFrom::Leader || is_led_here() {
        return lead::<PullMessage>(replica, context, request).await.body;
    }
    let began = replica.runtime.now();
    if let Some(answer) = pull_here(replica, &context, &mut request).await {
        replica.counters.replica_read(ReplicaRead::Served);
        replica.counters.call_took(PullMessage::METHOD, replica.runtime.now() - began);
        return answer;
    }
    replica.counters.replica_read(ReplicaRead::PassedOn);
    // Only our own library goes on to another replica; to others the lack of a leader is the lack of messages.
    if !names::is_ours(&context) {
        return lead::<PullMessage>(replica, context, request).await.body;
    }
    let lease = Duration::from_millis(replica.config.election_timeout_ms_max);
    if replica.leadership.seen().place == Place::Nobody || replica.log.leader_silence() > lease {
        let text = "this replica hears no leader, and has no more messages itself: ask another one";
        return PullOrElsewhere::refusal(&request, status(Code::HaNotAvailable, text));
    }
    lead::<PullOrElsewhere>(replica, context, request).await.body
}

/// A pull of somebody who asks another replica if this one cannot get at the leader.
struct PullOrElsewhere;

impl LeaderCall for PullOrElsewhere {
    type Request = v2::PullMessageRequest;
    type Answer = peer::ForwardedPull;
    const METHOD: &'static str = PullMessage::METHOD;
    const IS_POLL: bool = true;

    fn is_idempotent(request: &v2::PullMessageRequest) -> bool {
        PullMessage::is_idempotent(request)
    }

    async fn execute(
        replica: &Arc<Replica>,
        context: &CallContext,
        request: &v2::PullMessageRequest,
        attempt: Attempt,
    ) -> Tried<peer::ForwardedPull> {
        PullMessage::execute(replica, context, request, attempt).await
    }

    fn ends(replica: &Replica, context: &CallContext, request: &v2::PullMessageRequest, now: Instant) -> Instant {
        PullMessage::ends(replica, context, request, now)
    }

    fn refusal(_: &v2::PullMessageRequest, status: v2::Status) -> peer::ForwardedPull {
        only(status, None)
    }
}

/// What this replica can say by itself; `None` if the leader has to. The request is then the rest of it.
async fn pull_here(
    replica: &Arc<Replica>,
    context: &CallContext,
    request: &mut v2::PullMessageRequest,
) -> Option<peer::ForwardedPull> {
    // What is wrong with a request, and what there is not, is for the leader to say: it may be news here.
    let pull = Pull::read(replica, context, request).ok()?;
    let group = names::group(context, request.group.as_ref()).ok()?;
    let lane = replica.lanes.lane(&group, &pull.topic);
    let look_again = Duration::from_millis(replica.config.read_lag_ms_max / 2);
    let mut at = pull.from;
    loop {
        let seen = replica.leadership.seen();
        let mut news = std::pin::pin!(lane.news());
        // Enlisted before the look, so that what arrives between look and wait is not missed.
        news.as_mut().enable();
        let is_paused = replica.store.group(&group)?.is_paused;
        let look = if is_paused { Look::NothingUpTo(at) } else { pull.look(replica, context, request, at).await };
        match look {
            Look::Found(messages, next, bytes) => {
                replica.counters.pulled(&group, &pull.topic, messages.len() as u64, bytes as u64);
                return Some(found(messages, next));
            }
            Look::NoneUpTo(next) => return Some(none_up_to(next)),
            Look::NothingUpTo(next) => at = next,
            Look::Refused(status) => return Some(only(status, None)),
            Look::Answer(_) | Look::Damaged(_) => return None,
        }
        let now = replica.runtime.now();
        request.offset = wire_offset(at);
        request.long_polling_timeout = Some(wire_duration(pull.ends.saturating_since(now)));
        if matches!(seen.place, Place::Local(_)) || !replica.read_marks.keeps_up(replica).await {
            return None;
        }
        // Keeping up may have taken a while, in which messages came.
        let has_more = !is_paused && has_message(replica, &pull, request, at);
        if has_more {
            continue;
        }
        if replica.runtime.now() >= pull.ends {
            return Some(none_in_time(at));
        }
        let wake_at = pull.ends.min(replica.runtime.now() + look_again);
        // Which of them it was, and whether it was the time, shows at the next look.
        let _ = select(news, replica.leadership.changed_from(seen.generation, wake_at)).await;
    }
}

fn has_message(replica: &Replica, pull: &Pull, request: &v2::PullMessageRequest, at: QueueOffset) -> bool {
    let queue = request.message_queue.as_ref().and_then(|queue| u32::try_from(queue.id).ok());
    let bounds = queue.and_then(|queue| replica.store.queue_bounds(&pull.topic, flotilla_message::QueueId(queue)));
    bounds.is_some_and(|(_, max)| at < max)
}
