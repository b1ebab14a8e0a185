//! A call that only the leader can execute: executed here, passed on, or parked until somebody leads.
//!
//! ```text
//!            ┌────────────── not executed, for sure ◀──────────────┐
//!            ▼                                                      │
//!  call ─▶ who leads? ─ this replica ─▶ execute ────────────────────┤─▶ answer
//!            │  │                                                   │
//!            │  └────── another one ──▶ forward (one hop) ──────────┘
//!            └───────── nobody ───────▶ park, until news or the end of the caller's patience
//! ```
//!
//! An execution whose outcome nobody knows is repeated only if repeating it has the effect of doing it once; else the
//! caller is told that the outcome is unknown.

use std::sync::Arc;
use std::time::Duration;

use flotilla_proto::status::{Code, status};
use flotilla_proto::{CallContext, Reply, v2};
use flotilla_raft_log::{NodeId, ProposeError, Term};
use flotilla_runtime::{Elapsed, Instant};

use super::budget::Share;
use super::leadership::Place;
use super::proposer::SubmitError;
use crate::metrics::Refused;
use crate::replica::Replica;

/// What is kept back of a caller's time, so that the answer reaches it: at most this, at most a quarter of it.
pub const ANSWER_MARGIN: Duration = Duration::from_millis(200);
/// What a call may take longer than planned to find out whether an earlier try was executed.
const REPEAT_EXTRA: Duration = Duration::from_secs(5);
/// Pause before a replica that refused is asked again, if no news comes before.
pub const REFUSED_PAUSE: Duration = Duration::from_millis(20);

/// How long a call waits for a leader of this group that another group may do as well, and no longer than half of its patience:
/// an election is over sooner.
const GIVE_WAY_AFTER: Duration = Duration::from_millis(1_500);

/// How long a quorum may take to confirm who leads; then the call is tried again.
pub const CONFIRM_MAX: Duration = Duration::from_secs(1);

/// What one try of executing a call came to.
#[derive(Debug)]
pub enum Tried<A> {
    /// The caller's answer.
    Answer(Reply<A>),
    /// Surely not executed by this try, for a reason that another replica would not help.
    Refused {
        /// The caller's answer, if no earlier try may have been executed.
        reply: Reply<A>,
        /// Why.
        reason: String,
    },
    /// Surely not executed; somebody else may.
    NotExecuted {
        /// Who leads, if that is known.
        leader: Option<NodeId>,
    },
    /// May or may not have been executed.
    Unknown(String),
}

/// One try's circumstances.
#[derive(Debug, Clone, Copy)]
pub struct Attempt {
    /// The term in which this replica leads.
    pub term: Term,
    /// An earlier try may have been executed already.
    pub is_repeated: bool,
}

/// A call of a client that the leader executes.
pub trait LeaderCall: Send + Sync + 'static {
    /// The request message.
    type Request: prost::Message + Default + 'static;
    /// The answer message.
    type Answer: prost::Message + Default + 'static;
    /// Its name between replicas.
    const METHOD: &'static str;

    /// Whether it waits on purpose: idle polls must not take the places of what somebody waits for.
    const IS_POLL: bool = false;

    /// Whether it changes nothing and must be answered by who leads at that moment: a quorum confirms it first. A lease would
    /// not do, for a leader that has handed over, or whose process was taken for gone, is replaced before its lease ends.
    const IS_FRESH_READ: bool = false;

    /// Whether executing the request twice has the effect of executing it once, also if others are executed between the two: what
    /// sets something is not, where the second time would undo what somebody else has set meanwhile.
    fn is_idempotent(request: &Self::Request) -> bool;

    /// Executes the request on the leader. May be dropped at any await.
    fn execute(
        replica: &Arc<Replica>,
        context: &CallContext,
        request: &Self::Request,
        attempt: Attempt,
    ) -> impl Future<Output = Tried<Self::Answer>> + Send;

    /// The answer that says why there is none.
    fn refusal(request: &Self::Request, status: v2::Status) -> Self::Answer;

    /// What an answer says that claims that nothing was done. It is true of the last try only: after an earlier one that
    /// may have been executed the caller must not hear it.
    fn denial(_answer: &Self::Answer) -> Option<String> {
        None
    }

    /// Whether a call that nobody has tried yet gives up waiting for a leader of this group: another group may do it.
    fn gives_way(_replica: &Replica, _context: &CallContext, _request: &Self::Request) -> bool {
        false
    }

    /// When to stop trying. A call that may have been executed by then gets [`REPEAT_EXTRA`] to find out, as far as its
    /// caller has the patience.
    fn ends(_replica: &Replica, context: &CallContext, _request: &Self::Request, now: Instant) -> Instant {
        patience_ends(context, now)
    }

    /// Prepares the request to be repeated after a try of unknown outcome, with so much time left until
    /// [`LeaderCall::ends`].
    fn repeat(_request: &mut Self::Request, _left: Duration) {}
}

impl<A> Tried<A> {
    /// Not executed, as this replica does not lead in the term of the attempt.
    pub fn not_led_here(place: Place) -> Tried<A> {
        Tried::NotExecuted { leader: place.other_leader() }
    }

    /// What a failed submission means for the call it was part of.
    pub fn from_submit(error: SubmitError, refusal: impl FnOnce(v2::Status) -> A) -> Tried<A> {
        let reason = error.to_string();
        let code = match error {
            SubmitError::NotStored { leader } => return Tried::NotExecuted { leader },
            SubmitError::Unknown(reason) => return Tried::Unknown(reason),
            SubmitError::Full(_) | SubmitError::Overloaded { .. } => Code::HaNotAvailable,
            SubmitError::TooLarge(_) => Code::PayloadTooLarge,
        };
        Tried::Refused { reply: Reply::new(refusal(status(code, reason.clone()))), reason }
    }

    /// What a failed submission means for a call of which another part is stored already.
    pub fn from_later_submit(error: SubmitError) -> Tried<A> {
        Tried::Unknown(format!("one part is stored; of the next one: {error}"))
    }

    /// What it means to the caller: a refusal says nothing of earlier tries that may have been executed.
    fn with_earlier(self, is_repeated: bool) -> Tried<A> {
        match self {
            Tried::Refused { reason, .. } if is_repeated => Tried::Unknown(reason),
            Tried::Refused { reply, .. } => Tried::Answer(reply),
            other => other,
        }
    }

    /// The same with another answer.
    pub fn map_answer<B>(self, map: impl FnOnce(A) -> B) -> Tried<B> {
        let mapped = |reply: Reply<A>| Reply { body: map(reply.body), metadata: reply.metadata };
        match self {
            Tried::Answer(reply) => Tried::Answer(mapped(reply)),
            Tried::Refused { reply, reason } => Tried::Refused { reply: mapped(reply), reason },
            Tried::NotExecuted { leader } => Tried::NotExecuted { leader },
            Tried::Unknown(reason) => Tried::Unknown(reason),
        }
    }

    /// An answer without metadata.
    pub fn answer(answer: A) -> Tried<A> {
        Tried::Answer(Reply::new(answer))
    }
}

/// When to stop trying for a caller.
pub fn patience_ends(context: &CallContext, now: Instant) -> Instant {
    let left = context.deadline - now;
    context.deadline - ANSWER_MARGIN.min(left / 4)
}

/// Executes a client's call wherever the leader is.
pub async fn lead<C: LeaderCall>(
    replica: &Arc<Replica>,
    context: CallContext,
    request: C::Request,
) -> Reply<C::Answer> {
    let began = replica.runtime.now();
    let reply = lead_somewhere::<C>(replica, context, request).await;
    replica.counters.call_took(C::METHOD, replica.runtime.now() - began);
    reply
}

async fn lead_somewhere<C: LeaderCall>(
    replica: &Arc<Replica>,
    context: CallContext,
    mut request: C::Request,
) -> Reply<C::Answer> {
    let now = replica.runtime.now();
    let patience_ends = patience_ends(&context, now);
    let mut ends = C::ends(replica, &context, &request, now).min(patience_ends);
    let mut unknown: Option<String> = None;
    let mut parked: Option<Share> = None;
    let mut hint: Option<NodeId> = None;
    let gives_way = C::gives_way(replica, &context, &request);
    let gives_way_at = gives_way.then(|| now + GIVE_WAY_AFTER.min((ends - now) / 2));
    loop {
        let seen = replica.leadership.seen();
        let place = match hint.take() {
            Some(node) if node != replica.node && !matches!(seen.place, Place::Local(_)) => Place::Remote(node),
            _ => seen.place,
        };
        let executed = match place {
            Place::Local(term) => {
                let attempt = Attempt { term, is_repeated: unknown.is_some() };
                execute_until::<C>(replica, &context, &request, attempt, ends).await
            }
            Place::Remote(node) => {
                replica.forwarder.forward::<C>(node, &context, &request, unknown.is_some(), ends).await
            }
            Place::Nobody => Tried::NotExecuted { leader: None },
        };
        match executed {
            Tried::Answer(reply) | Tried::Refused { reply, .. } => {
                return believed::<C>(replica, &request, unknown, reply);
            }
            Tried::NotExecuted { leader } => {
                if let (Some(leader), Place::Remote(asked)) = (leader, place)
                    && leader != asked
                    && Place::Remote(asked) == seen.place
                {
                    // The one asked knows better; one step only, then it is this replica's own view again.
                    hint = Some(leader);
                    continue;
                }
            }
            Tried::Unknown(reason) if C::is_idempotent(&request) => {
                if unknown.is_none() {
                    C::repeat(&mut request, ends - replica.runtime.now());
                    ends = patience_ends.min(ends + REPEAT_EXTRA);
                }
                unknown = Some(reason);
            }
            Tried::Unknown(reason) => return unknown_outcome::<C>(replica, &request, &reason),
        }
        let waits_until = gives_way_at.filter(|_| unknown.is_none()).unwrap_or(ends);
        if replica.runtime.now() >= waits_until {
            break;
        }
        if parked.is_none() {
            let parking = if C::IS_POLL { &replica.poll_parking } else { &replica.parking };
            match parking.take(prost::Message::encoded_len(&request) as u64) {
                Ok(share) => parked = Some(share),
                Err(full) => return unavailable::<C>(replica, &request, unknown, &full.to_string()),
            }
        }
        // Nobody: only news helps. Somebody who refused: news, or simply a moment.
        let pause_ends = replica.runtime.now() + REFUSED_PAUSE;
        let retry_at = if place == Place::Nobody { waits_until } else { waits_until.min(pause_ends) };
        replica.leadership.changed_from(seen.generation, retry_at).await;
    }
    if unknown.is_none() {
        replica.counters.refused(Refused::NoLeader, 1);
    }
    unavailable::<C>(replica, &request, unknown, "broker group has no leader at the moment")
}

/// Executes a call on this replica, which leads, for at most so long.
pub async fn execute_until<C: LeaderCall>(
    replica: &Arc<Replica>,
    context: &CallContext,
    request: &C::Request,
    attempt: Attempt,
    ends: Instant,
) -> Tried<C::Answer> {
    if C::IS_FRESH_READ {
        let patience = ends.saturating_since(replica.runtime.now()).min(CONFIRM_MAX);
        if let Err(tried) = confirm_lead(replica, patience).await {
            return tried;
        }
    }
    match replica.runtime.timeout_at(ends, C::execute(replica, context, request, attempt)).await {
        Ok(executed) => executed.with_earlier(attempt.is_repeated),
        Err(Elapsed) => Tried::Unknown("no quorum confirmed it in time".to_owned()),
    }
}

/// Makes sure that this replica leads, by the word of a quorum; else nothing was executed.
pub async fn confirm_lead<A>(replica: &Replica, patience: Duration) -> Result<(), Tried<A>> {
    match replica.log.confirm_leadership(patience).await {
        Ok(_) => Ok(()),
        Err(ProposeError::NotLeader { leader }) => Err(Tried::NotExecuted { leader }),
        Err(_) => Err(Tried::NotExecuted { leader: None }),
    }
}

/// What an answer with that status denies: all of it, unless it is done. See [`LeaderCall::denial`].
pub fn denied(status: Option<&v2::Status>) -> Option<String> {
    let status = status.filter(|status| status.code() != Code::Ok)?;
    Some(status.message.clone())
}

/// The answer of the last try, unless it denies what an earlier one may have done.
fn believed<C: LeaderCall>(
    replica: &Replica,
    request: &C::Request,
    unknown: Option<String>,
    reply: Reply<C::Answer>,
) -> Reply<C::Answer> {
    match denied_after_unknown::<C>(unknown, &reply) {
        Some(reason) => unknown_outcome::<C>(replica, request, &reason),
        None => reply,
    }
}

/// Why the outcome is unknown, although the last try was answered.
fn denied_after_unknown<C: LeaderCall>(unknown: Option<String>, reply: &Reply<C::Answer>) -> Option<String> {
    let (unknown, denial) = (unknown?, C::denial(&reply.body)?);
    Some(format!("{unknown}; when it was tried again: {denial}"))
}

fn unavailable<C: LeaderCall>(
    replica: &Replica,
    request: &C::Request,
    unknown: Option<String>,
    reason: &str,
) -> Reply<C::Answer> {
    match unknown {
        Some(unknown) => unknown_outcome::<C>(replica, request, &unknown),
        None => Reply::new(C::refusal(request, status(Code::HaNotAvailable, format!("not executed: {reason}")))),
    }
}

fn unknown_outcome<C: LeaderCall>(replica: &Replica, request: &C::Request, reason: &str) -> Reply<C::Answer> {
    replica.counters.outcome_unknown();
    told_unknown::<C>(request, reason)
}

fn told_unknown<C: LeaderCall>(request: &C::Request, reason: &str) -> Reply<C::Answer> {
    // HA_NOT_AVAILABLE would say that nothing was done.
    Reply::new(C::refusal(request, status(Code::ProxyTimeout, format!("outcome is unknown: {reason}"))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::produce::send::SendMessage;

    fn answered(code: Code, unknown: Option<&str>) -> v2::Status {
        let request = v2::SendMessageRequest::default();
        let reply = Reply::new(SendMessage::refusal(&request, status(code, "of the last try")));
        let reply = match denied_after_unknown::<SendMessage>(unknown.map(str::to_owned), &reply) {
            Some(reason) => told_unknown::<SendMessage>(&request, &reason),
            None => reply,
        };
        reply.body.status.expect("a status")
    }

    #[test]
    fn a_log_without_room_says_nothing_of_an_earlier_try() {
        let full = || SubmitError::Full("no room".to_owned());
        let overloaded = || SubmitError::Overloaded { queued_commands_max: 7 };
        let large = || SubmitError::TooLarge("5 MiB".to_owned());
        let tried = |error| Tried::from_submit(error, |status| status);
        let first = |error| match tried(error).with_earlier(false) {
            Tried::Answer(reply) => reply.body.code(),
            other => panic!("{other:?}"),
        };
        assert_eq!(
            [first(full()), first(overloaded()), first(large())],
            [Code::HaNotAvailable, Code::HaNotAvailable, Code::PayloadTooLarge]
        );
        for error in [full(), overloaded(), large()] {
            let text = error.to_string();
            assert!(matches!(tried(error).with_earlier(true), Tried::Unknown(reason) if reason == text));
        }
    }

    #[test]
    fn a_refusal_is_passed_on_only_if_nothing_can_have_been_done_before() {
        for code in [Code::HaNotAvailable, Code::TopicNotFound, Code::BadRequest, Code::PayloadTooLarge] {
            assert_eq!(answered(code, None).code, i32::from(code));
            let status = answered(code, Some("connection broke"));
            assert_eq!(status.code, i32::from(Code::ProxyTimeout));
            assert_eq!(
                status.message,
                "outcome is unknown: connection broke; when it was tried again: of the last try"
            );
        }
        assert_eq!(answered(Code::Ok, Some("connection broke")).code, i32::from(Code::Ok), "done is done");
    }
}
