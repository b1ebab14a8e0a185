//! Passes a client's call on to the replica that leads, and takes such calls in.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use flotilla_proto::client::{CallError, PeerCalls};
use flotilla_proto::status::{Code, status};
use flotilla_proto::{CallContext, Metadata, Reply, metadata, peer, v2};
use flotilla_raft_log::NodeId;
use flotilla_runtime::{Instant, Runtime};
use prost::Message as _;

use super::budget::Budget;
use super::leader_call::{ANSWER_MARGIN, Attempt, LeaderCall, REFUSED_PAUSE, Tried, execute_until, patience_ends};
use super::leadership::Place;
use crate::edge::answer_room::{AnswerRoom, GrantedAnswer};
use crate::peer::book::PeerBook;
use crate::replica::Replica;

/// A call is passed on once: the replica asked executes it or says that it does not lead.
const HOPS_MAX: u32 = 1;
/// What the way back to the caller may take of its time.
const WAY_BACK: Duration = Duration::from_millis(30);
/// Metadata of an answer: the call may or may not have been executed.
const UNKNOWN: &str = "x-flotilla-unknown";
/// Metadata of a call that may have been executed before.
const REPEATED: &str = "x-flotilla-repeated";
/// Metadata of a poll: the room for its messages, a [`crate::edge::answer_room::Grant`].
const ROOM: &str = "x-flotilla-answer-room";
/// Metadata of an answer: the poll was not executed for want of room, and wants so many bytes; 0 if it wants to wait.
const WANTED: &str = "x-flotilla-answer-wants";
/// The client's metadata that services look at.
const PASSED_ON: [&str; 6] = [
    metadata::CLIENT_ID,
    metadata::LANGUAGE,
    metadata::CLIENT_VERSION,
    metadata::NAMESPACE,
    metadata::USER_AGENT,
    metadata::FROM_GROUP,
];

/// Told of a replica whose connection broke.
pub type Suspect = Box<dyn Fn(NodeId) + Send + Sync>;

/// The sending side.
pub struct Forwarder {
    runtime: Runtime,
    peers: Arc<PeerBook>,
    under_way: Arc<Budget>,
    /// Polls apart: those that wait for messages are many, and nothing waits for them.
    polls_under_way: Arc<Budget>,
    /// Told of every replica that refused or broke a connection.
    suspect: Suspect,
    /// A replica that refused a connection is left alone by all calls for a moment.
    refused: Mutex<BTreeMap<NodeId, Instant>>,
}

impl Forwarder {
    /// A forwarder to the replicas of the book.
    pub fn new(runtime: Runtime, peers: Arc<PeerBook>, calls_max: u64, polls_max: u64, suspect: Suspect) -> Forwarder {
        Forwarder {
            runtime,
            peers,
            under_way: Budget::new(calls_max, u64::MAX),
            polls_under_way: Budget::new(polls_max, u64::MAX),
            suspect,
            refused: Mutex::default(),
        }
    }

    /// The calling sides of all other replicas, in the order of their numbers.
    pub fn peers(&self) -> Vec<Arc<dyn PeerCalls>> {
        self.peers.others()
    }

    /// The calling side of one of them.
    pub fn peer(&self, node: NodeId) -> Option<Arc<dyn PeerCalls>> {
        self.peers.peer(node)
    }

    /// Polls that are with the leader at this moment.
    pub fn polls_under_way(&self) -> &Budget {
        &self.polls_under_way
    }

    /// What else is with the leader at this moment.
    pub fn under_way(&self) -> &Budget {
        &self.under_way
    }

    /// Passes one call on to `leader` and waits for its answer, at most until `ends`.
    pub async fn forward<C: LeaderCall>(
        &self,
        leader: NodeId,
        context: &CallContext,
        request: &C::Request,
        is_repeated: bool,
        ends: Instant,
    ) -> Tried<C::Answer> {
        let now = self.runtime.now();
        let Some(peer) = self.peers.peer(leader) else {
            return Tried::NotExecuted { leader: None };
        };
        if self.is_refusing(leader, now) {
            return Tried::NotExecuted { leader: None };
        }
        let budget = if C::IS_POLL { &self.polls_under_way } else { &self.under_way };
        let _share = match budget.take(0) {
            Ok(share) => share,
            Err(full) => {
                let status = status(Code::HaNotAvailable, format!("not executed: {full}"));
                return Tried::answer(C::refusal(request, status));
            }
        };
        let mut metadata = passed_on(context);
        if is_repeated {
            metadata.insert(REPEATED.to_owned(), "true".to_owned());
        }
        let answer = AnswerRoom::current_here().filter(|_| C::IS_POLL);
        let mut grant = answer.as_ref().map(|answer| answer.grant_to_wait());
        let tried = loop {
            let timeout = ends - self.runtime.now();
            metadata.extend(grant.map(|grant| (ROOM.to_owned(), grant.to_string())));
            let forwarded = peer::ForwardRequest {
                method: C::METHOD.to_owned(),
                metadata: metadata.clone(),
                timeout_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
                body: Bytes::from(request.encode_to_vec()),
                hops: HOPS_MAX,
                seal: None,
            };
            let told = match C::IS_POLL {
                true => peer.forward_poll(forwarded, timeout),
                false => peer.forward(forwarded, timeout),
            };
            let response = match told.await {
                Ok(response) => response,
                Err(error) => break self.failed(leader, &error),
            };
            self.answered(leader);
            let (Some(wanted), Some(last), Some(answer)) = (wanted(&response), grant, &answer) else {
                break read_response::<C>(request, response);
            };
            if self.runtime.now() >= ends {
                break Tried::NotExecuted { leader: Some(leader) };
            }
            // What it is granted it must have the time to use.
            match answer.grant_until(&self.runtime, wanted, last, ends - ANSWER_MARGIN).await {
                Ok(next) => grant = Some(next),
                Err(full) => break Tried::answer(C::refusal(request, answer.refusal(full))),
            }
        };
        if let (Some(answer), Tried::NotExecuted { .. } | Tried::Unknown(_)) = (&answer, &tried) {
            answer.settle(0);
        }
        tried
    }

    /// What a call came to whose answer did not come.
    fn failed<A>(&self, leader: NodeId, error: &CallError) -> Tried<A> {
        if let CallError::Refused(_) = error {
            let until = self.runtime.now() + REFUSED_PAUSE;
            self.refused.lock().expect(LOCK).insert(leader, until);
        }
        if let CallError::Refused(_) | CallError::Broken(_) = error {
            (self.suspect)(leader);
        }
        match error {
            CallError::Refused(_) => Tried::NotExecuted { leader: None },
            error => Tried::Unknown(format!("replica {leader}: {error}")),
        }
    }

    fn is_refusing(&self, node: NodeId, now: Instant) -> bool {
        let mut refused = self.refused.lock().expect(LOCK);
        match refused.get_mut(&node) {
            Some(until) if now < *until => true,
            Some(until) => {
                // One call tries; the others go on waiting until it has got through.
                *until = now + REFUSED_PAUSE;
                false
            }
            None => false,
        }
    }

    fn answered(&self, node: NodeId) {
        self.refused.lock().expect(LOCK).remove(&node);
    }
}

const LOCK: &str = "refusal lock is never poisoned: no code panics while holding it";

fn passed_on(context: &CallContext) -> BTreeMap<String, String> {
    let value = |name: &&str| context.metadata.get(*name).map(|value| ((*name).to_owned(), value.clone()));
    PASSED_ON.iter().filter_map(value).collect()
}

/// What the poll wants that was not executed for want of room.
fn wanted(response: &peer::ForwardResponse) -> Option<u64> {
    response.metadata.get(WANTED)?.parse().ok()
}

fn read_response<C: LeaderCall>(request: &C::Request, response: peer::ForwardResponse) -> Tried<C::Answer> {
    if response.not_leader {
        let leader = (response.leader_hint != 0).then_some(NodeId(response.leader_hint));
        return Tried::NotExecuted { leader };
    }
    if let Some(status) = response.status {
        return match response.metadata.contains_key(UNKNOWN) {
            true => Tried::Unknown(status.message),
            false => Tried::answer(C::refusal(request, status)),
        };
    }
    match C::Answer::decode(response.body) {
        Ok(body) => {
            let metadata: Metadata =
                response.metadata.into_iter().flat_map(|(name, values)| lines(name, &values)).collect();
            Tried::Answer(Reply { body, metadata })
        }
        Err(error) => Tried::Unknown(format!("leader's answer to {} is not understood: {error}", C::METHOD)),
    }
}

/// A map holds a name once, metadata may hold it repeatedly: the values are joined by line feeds on the way.
fn lines(name: String, values: &str) -> Vec<(std::borrow::Cow<'static, str>, String)> {
    values.split('\n').map(|value| (name.clone().into(), value.to_owned())).collect()
}

fn joined(metadata: Metadata) -> BTreeMap<String, String> {
    let mut map: BTreeMap<String, String> = BTreeMap::new();
    for (name, value) in metadata {
        map.entry(name.into_owned())
            .and_modify(|values| {
                values.push('\n');
                values.push_str(&value);
            })
            .or_insert(value);
    }
    map
}

/// Executes a call that another replica passed on, if this one leads.
pub async fn take_in<C: LeaderCall>(replica: &Arc<Replica>, forwarded: peer::ForwardRequest) -> peer::ForwardResponse {
    if forwarded.hops > HOPS_MAX {
        let message = format!("call was passed on {} times, at most {HOPS_MAX} is allowed", forwarded.hops);
        return refused(status(Code::InternalError, message));
    }
    let request = match C::Request::decode(forwarded.body) {
        Ok(request) => request,
        Err(error) => return refused(status(Code::BadRequest, format!("{} is not understood: {error}", C::METHOD))),
    };
    let place = replica.leadership.seen().place;
    let Place::Local(term) = place else {
        return not_leader(place.other_leader());
    };
    let now = replica.runtime.now();
    let deadline = now + Duration::from_millis(forwarded.timeout_ms).saturating_sub(WAY_BACK);
    let context = CallContext::new(deadline, String::new(), forwarded.metadata);
    let attempt = Attempt { term, is_repeated: context.metadata.contains_key(REPEATED) };
    let ends = patience_ends(&context, now).max(now + WAY_BACK);
    let granted = match context.metadata.get(ROOM).map(|grant| grant.parse().map(GrantedAnswer::new)).transpose() {
        Ok(granted) => granted,
        Err(error) => return refused(status(Code::BadRequest, format!("{ROOM} is not understood: {error}"))),
    };
    let executing = execute_until::<C>(replica, &context, &request, attempt, ends);
    let tried = match &granted {
        Some(granted) => AnswerRoom::Granted(granted.clone()).of(executing).await,
        None => executing.await,
    };
    if let Some(wanted) = granted.and_then(|granted| granted.wanted()) {
        return peer::ForwardResponse {
            metadata: BTreeMap::from([(WANTED.to_owned(), wanted.to_string())]),
            ..Default::default()
        };
    }
    match tried {
        Tried::Answer(reply) | Tried::Refused { reply, .. } => peer::ForwardResponse {
            body: Bytes::from(reply.body.encode_to_vec()),
            metadata: joined(reply.metadata),
            ..Default::default()
        },
        Tried::NotExecuted { leader } => not_leader(leader),
        Tried::Unknown(reason) => unknown(reason),
    }
}

/// It may have been executed.
pub fn unknown(reason: String) -> peer::ForwardResponse {
    peer::ForwardResponse {
        metadata: BTreeMap::from([(UNKNOWN.to_owned(), "true".to_owned())]),
        ..refused(status(Code::ProxyTimeout, reason))
    }
}

fn refused(status: v2::Status) -> peer::ForwardResponse {
    peer::ForwardResponse { status: Some(status), ..Default::default() }
}

fn not_leader(leader: Option<NodeId>) -> peer::ForwardResponse {
    peer::ForwardResponse { not_leader: true, leader_hint: leader.map_or(0, |node| node.0), ..Default::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_metadata_survives_the_way() {
        let metadata: Metadata =
            vec![("x-a".into(), "1".to_owned()), ("x-a".into(), "2".to_owned()), ("x-b".into(), "3".to_owned())];
        let back: Metadata =
            joined(metadata.clone()).into_iter().flat_map(|(name, values)| lines(name, &values)).collect();
        assert_eq!(back, metadata);
    }
}
