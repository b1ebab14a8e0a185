//! Whether a replica is fit to lead, as it says of itself, and the question that replicas put to each other.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use flotilla_proto::client::PeerCalls;
use flotilla_proto::status::{Code, is_ok, ok, status};
use flotilla_proto::peer;
use flotilla_raft_log::NodeId;
use futures::future::join_all;

use crate::replica::Replica;

/// The name of the question between replicas.
pub const METHOD: &str = "FitToLead";
/// A replica that does not answer within this time is not the one to hand over to.
const ASK_TIMEOUT_MS: u64 = 300;
const ASK_TIMEOUT: Duration = Duration::from_millis(ASK_TIMEOUT_MS);
/// A follower that was not heard for so long is not asked.
const SILENCE_MAX: Duration = Duration::from_secs(1);
/// A follower may lack so many entries when leadership is handed to it: about what is on its way under load.
const LAG_ENTRIES_MAX: u64 = 1_000;

/// Why a replica is not fit to lead, while it is not.
#[derive(Debug, Default)]
pub struct Fitness {
    illness: Mutex<Option<String>>,
}

impl Fitness {
    /// Notes an illness, or that there is none; true if that is news.
    pub fn set(&self, reason: Option<&str>) -> bool {
        let mut illness = self.illness.lock().expect(LOCK);
        let is_news = illness.is_some() != reason.is_some();
        *illness = reason.map(str::to_owned);
        is_news
    }

    /// Why it is not fit.
    pub fn illness(&self) -> Option<String> {
        self.illness.lock().expect(LOCK).clone()
    }
}

const LOCK: &str = "fitness lock is never poisoned: no code panics while holding it";

/// Answers another replica's question: whether this one should be given the lead.
pub fn take_in(replica: &Replica) -> peer::ForwardResponse {
    let answer = match unfit(replica) {
        None => ok(),
        Some(reason) => status(Code::PreconditionFailed, reason),
    };
    peer::ForwardResponse { status: Some(answer), ..Default::default() }
}

/// Why this replica should not be given the lead: it is ill, or its disk is full.
fn unfit(replica: &Replica) -> Option<String> {
    let full = || replica.log.status().disk.is_full.then(|| "there is no room for another segment".to_owned());
    replica.fitness.illness().or_else(full)
}

/// The follower to hand leadership to: one that was heard just now, lacks next to nothing, and says that it is fit; of
/// several the one with the longest log. `None` if there is none.
pub async fn fittest_follower(replica: &Replica) -> Option<NodeId> {
    let (seen, stats) = (replica.log.status(), replica.log.stats());
    let enough = seen.last.map_or(0, |last| last.0).saturating_sub(LAG_ENTRIES_MAX);
    let mut candidates: Vec<_> = stats
        .peers
        .into_iter()
        .filter(|peer| seen.members.contains(&peer.node))
        .filter(|peer| peer.silent_for.is_some_and(|silence| silence <= SILENCE_MAX))
        .filter(|peer| peer.matched.is_some_and(|matched| matched.0 >= enough))
        .collect();
    candidates.sort_by_key(|peer| (std::cmp::Reverse(peer.matched), peer.node));
    let asked = candidates.iter().map(|candidate| async {
        let peer = replica.forwarder.peer(candidate.node)?;
        is_fit(replica, peer).await.then_some(candidate.node)
    });
    join_all(asked).await.into_iter().flatten().next()
}

async fn is_fit(replica: &Replica, peer: &Arc<dyn PeerCalls>) -> bool {
    let question = peer::ForwardRequest { method: METHOD.to_owned(), timeout_ms: ASK_TIMEOUT_MS, ..Default::default() };
    match replica.runtime.timeout(ASK_TIMEOUT, peer.forward(question, ASK_TIMEOUT)).await {
        // One of an earlier version does not know the question, and is not taken.
        Ok(Ok(answer)) => is_ok(answer.status.as_ref()),
        Ok(Err(_)) | Err(_) => false,
    }
}
