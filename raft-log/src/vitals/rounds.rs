//! The rounds of questions, and what follows from the answers.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flotilla_runtime::{Runtime, Task};

use super::digests::{Verdict, judge};
use super::watch::{Vitals, VitalsAnswer};
use crate::log_view::LogView;
use crate::raft::{PeerMessage, decode, encode};
use crate::status_watch::StatusWatch;
use crate::{NodeId, PeerCallKind, Transport};

/// From one round to the next.
const ROUND_PAUSE: Duration = Duration::from_millis(if cfg!(test) { 200 } else { 5_000 });
/// A peer may take so long to answer.
const ASK_TIMEOUT: Duration = Duration::from_millis(500);
/// Wall clocks may differ by so much, and by the time an answer takes.
const CLOCK_DIFFERENCE_MS_MAX: u64 = 5_000;
/// A clock that was contradicted in so many rounds, one after the other, is taken for wrong.
const CLOCK_ROUNDS: u32 = 2;

/// Asks one peer.
pub(crate) async fn ask_vitals(runtime: &Runtime, transport: &dyn Transport, peer: NodeId) -> Option<VitalsAnswer> {
    ask(runtime, transport, peer).await.ok()
}

/// Asks one peer; why it did not answer.
async fn ask(runtime: &Runtime, transport: &dyn Transport, peer: NodeId) -> Result<VitalsAnswer, String> {
    let body: Bytes = encode(PeerMessage::VitalsRequest);
    let call = transport.call(peer, PeerCallKind::Vitals, body, ASK_TIMEOUT);
    match runtime.timeout(ASK_TIMEOUT, call).await {
        Ok(Ok(body)) => match decode(body) {
            Ok(PeerMessage::VitalsAnswer(answer)) => Ok(answer),
            _ => Err("it answered nonsense".to_owned()),
        },
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {} ms", ASK_TIMEOUT.as_millis())),
    }
}

/// What the rounds need.
pub(crate) struct Rounds {
    pub(crate) node: NodeId,
    pub(crate) view: LogView,
    pub(crate) vitals: Arc<Vitals>,
    pub(crate) status: StatusWatch,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) runtime: Runtime,
}

impl Rounds {
    /// Begins; dropping the task ends it.
    pub(crate) fn start(self) -> Task<()> {
        let runtime = self.runtime.clone();
        runtime.spawn("vitals", async move { self.run().await })
    }

    async fn run(&self) {
        let mut contradicted = 0;
        while !self.view.shared.damages.is_closing() {
            self.runtime.sleep(ROUND_PAUSE).await;
            let voters = self.status.now().members;
            self.vitals.silences.keep(|node| voters.contains(&node));
            if voters.len() < 2 {
                continue;
            }
            let mut answers = BTreeMap::new();
            let mut clocks = Vec::new();
            for peer in voters.iter().copied().filter(|voter| *voter != self.node) {
                let asked_at = self.runtime.wall_ms();
                let began = self.runtime.now();
                let answer = ask(&self.runtime, &*self.transport, peer).await;
                self.note_silence(peer, answer.as_ref().err());
                if let Ok(answer) = answer {
                    let took_ms = u64::try_from((self.runtime.now() - began).as_millis()).unwrap_or(u64::MAX);
                    clocks.push(far(asked_at, took_ms, answer.wall_ms));
                    answers.insert(peer, answer.digests);
                }
            }
            contradicted = if is_contradicted(&clocks, voters.len()) { contradicted + 1 } else { 0 };
            self.judge_clock(contradicted >= CLOCK_ROUNDS);
            self.judge_state(&answers, voters.len());
        }
    }

    fn note_silence(&self, peer: NodeId, reason: Option<&String>) {
        let now = self.runtime.now();
        match reason {
            Some(reason) => {
                if let Some(silent) = self.vitals.silences.missed(peer, reason.clone(), now) {
                    let silent_s = silent.as_secs();
                    tracing::warn!(peer = peer.0, silent_s, reason, "replica cannot be reached from here");
                }
            }
            None => {
                if let Some(silent) = self.vitals.silences.heard(peer, now) {
                    tracing::info!(peer = peer.0, silent_s = silent.as_secs(), "replica is reached again");
                }
            }
        }
    }

    fn judge_clock(&self, is_off: bool) {
        if self.vitals.set_clock_off(is_off) {
            let difference_ms_max = CLOCK_DIFFERENCE_MS_MAX;
            if is_off {
                tracing::error!(
                    difference_ms_max,
                    "wall clock differs from those of most replicas: this one does not lead until it is set right"
                );
            } else {
                tracing::warn!("wall clock agrees with those of the other replicas again");
            }
        }
    }

    fn judge_state(&self, answers: &BTreeMap<NodeId, Vec<super::digests::StateDigest>>, voters: usize) {
        let own = self.vitals.digests.newest();
        let Verdict::Differs { index, own, others, is_own_side_wrong } = judge(&own, answers, voters) else {
            self.vitals.set_alarm(None);
            return;
        };
        let said: Vec<String> = others.iter().map(|(node, digest)| format!("node {node} {digest:032x}")).collect();
        let text = format!(
            "state differs between replicas behind entry {index}: this replica has {own:032x}, {}",
            said.join(", ")
        );
        if is_own_side_wrong {
            self.view.shared.failure.report(format!(
                "{text}: a quorum agrees on another state, so this replica is wrong and stops; keep its directory for \
                 the search of the cause, and let it come back with an empty directory under a new node id"
            ));
        } else if self.vitals.set_alarm(Some(text.clone())) {
            tracing::error!(
                reason = text,
                "replicas differ and no quorum contradicts this one: nothing is stopped here"
            );
        }
    }
}

/// Where a peer's clock is, read somewhere in the `took_ms` behind `asked_at_ms` of this one's: far behind it (`Less`),
/// far ahead (`Greater`), or near.
fn far(asked_at_ms: u64, took_ms: u64, peer_ms: u64) -> Ordering {
    let latest = asked_at_ms.saturating_add(took_ms).saturating_add(CLOCK_DIFFERENCE_MS_MAX);
    let earliest = asked_at_ms.saturating_sub(CLOCK_DIFFERENCE_MS_MAX);
    match peer_ms {
        behind if behind < earliest => Ordering::Less,
        ahead if ahead > latest => Ordering::Greater,
        _ => Ordering::Equal,
    }
}

/// A quorum of all replicas, without this one, is far on the same side.
fn is_contradicted(clocks: &[Ordering], voters: usize) -> bool {
    let quorum = voters / 2 + 1;
    [Ordering::Less, Ordering::Greater].iter().any(|side| clocks.iter().filter(|far| *far == side).count() >= quorum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_wrong_only_by_the_word_of_a_quorum() {
        let (behind, near, ahead) = (Ordering::Less, Ordering::Equal, Ordering::Greater);
        assert_eq!((far(100_000, 10, 104_000), far(100_000, 10, 96_000)), (near, near));
        assert_eq!((far(100_000, 10, 105_011), far(100_000, 10, 94_999)), (ahead, behind));
        assert_eq!(far(100_000, 900, 105_800), near, "a slow answer proves less");
        assert!(is_contradicted(&[ahead, ahead], 3));
        assert!(!is_contradicted(&[ahead, behind], 3), "this clock is in the middle");
        assert!(!is_contradicted(&[ahead, near], 3) && !is_contradicted(&[ahead], 3) && !is_contradicted(&[ahead], 2));
    }
}
