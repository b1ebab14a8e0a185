//! Peers that do not answer this replica: a wrong address, a name that does not resolve and a port that is taken by another
//! look like that, and nothing else may tell of them for months.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use flotilla_runtime::Instant;

use crate::NodeId;

/// A peer that goes on being silent is told of again after so long.
const TELL_AGAIN: Duration = Duration::from_secs(60);

/// Who does not answer, since when, and why.
#[derive(Default)]
pub(crate) struct Silences {
    silent: Mutex<BTreeMap<NodeId, Silence>>,
}

struct Silence {
    since: Instant,
    told: Instant,
    reason: String,
}

impl Silences {
    fn silent(&self) -> MutexGuard<'_, BTreeMap<NodeId, Silence>> {
        self.silent.lock().expect("silence lock is never poisoned: no code panics while holding it")
    }

    /// It answered. The time for which it had not, if it had been silent.
    pub(super) fn heard(&self, peer: NodeId, now: Instant) -> Option<Duration> {
        self.silent().remove(&peer).map(|silence| now - silence.since)
    }

    /// It did not answer. The time for which it has not, if that is to be told now.
    pub(super) fn missed(&self, peer: NodeId, reason: String, now: Instant) -> Option<Duration> {
        let mut silent = self.silent();
        let is_new = !silent.contains_key(&peer);
        let silence = silent.entry(peer).or_insert_with(|| Silence { since: now, told: now, reason: String::new() });
        silence.reason = reason;
        if !is_new && now - silence.told < TELL_AGAIN {
            return None;
        }
        silence.told = now;
        Some(now - silence.since)
    }

    /// Forgets all who are no peers any more.
    pub(super) fn keep(&self, is_peer: impl Fn(NodeId) -> bool) {
        self.silent().retain(|peer, _| is_peer(*peer));
    }

    /// Who did not answer the last question, and why.
    pub(crate) fn reasons(&self) -> BTreeMap<NodeId, String> {
        self.silent().iter().map(|(peer, silence)| (*peer, silence.reason.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_peer_is_told_of_at_once_then_every_minute_and_when_it_is_back() {
        let (silences, peer) = (Silences::default(), NodeId(3));
        let at = |seconds: u64| Instant::from_nanos(seconds * 1_000_000_000);
        let miss = |seconds| silences.missed(peer, format!("refused at {seconds}"), at(seconds));
        assert_eq!(silences.heard(peer, at(0)), None);
        assert_eq!(miss(5), Some(Duration::ZERO));
        assert_eq!((miss(10), miss(64)), (None, None));
        assert_eq!(silences.reasons(), BTreeMap::from([(peer, "refused at 64".to_owned())]));
        assert_eq!(miss(65), Some(Duration::from_secs(60)));
        assert_eq!(miss(70), None);
        assert_eq!(silences.heard(peer, at(75)), Some(Duration::from_secs(70)));
        assert!(silences.reasons().is_empty());
        assert_eq!(miss(80), Some(Duration::ZERO));
        silences.keep(|node| node != peer);
        assert!(silences.reasons().is_empty());
    }
}
