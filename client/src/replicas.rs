//! The replicas of one broker group as a client sees them: which to ask first, and which only at last.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use flotilla_runtime::Instant;

/// How long a replica that let a call time out is asked only when all others have been.
const SUSPECT_FOR: Duration = Duration::from_secs(5);

/// How long a group that did not serve is left alone, if there is another one: then one call tries it again.
const AVOIDED_FOR: Duration = Duration::from_secs(5);

/// Name of a broker group.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BrokerGroupName {
    pub(crate) cluster: String,
    pub(crate) group: String,
}

/// A broker group's replicas and what calls to them have taught. Shared by all calls to the group.
///
/// Order of asking: the leader if it is known, the replica that answered last, the rest in a stable
/// order; those that let a call time out lately come last.
#[derive(Debug)]
pub(crate) struct Replicas {
    name: BrokerGroupName,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    addresses: Vec<String>,
    /// Node ids of those addresses whose id is known.
    nodes: BTreeMap<u64, String>,
    /// The newest life of the group that a route spoke of; terms of an older one mean nothing.
    incarnation: String,
    /// The newest term that was told. It outlives the leader that failed: an older one teaches nothing afterwards, either.
    term: u64,
    /// Who leads in it, as far as is known.
    leader: Option<String>,
    preferred: Option<String>,
    suspected_until: BTreeMap<String, Instant>,
    /// The group did not serve; until then others are asked instead.
    avoided_until: Option<Instant>,
    /// The broker's rule: any replica answers pulls.
    reads_anywhere: bool,
    /// Replicas that could not answer a pull; until then others are asked first.
    unread_until: BTreeMap<String, Instant>,
}

impl Replicas {
    pub(crate) fn new(name: BrokerGroupName, addresses: Vec<String>) -> Replicas {
        let replicas = Replicas { name, state: Mutex::new(State::default()) };
        replicas.set_addresses(addresses);
        replicas
    }

    pub(crate) fn name(&self) -> &BrokerGroupName {
        &self.name
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("replica lock is never poisoned: no code panics while holding it")
    }

    /// Takes the addresses of a newer route; an empty list teaches nothing.
    pub(crate) fn set_addresses(&self, mut addresses: Vec<String>) {
        if addresses.is_empty() {
            return;
        }
        addresses.sort();
        addresses.dedup();
        let mut state = self.state();
        state.suspected_until.retain(|address, _| addresses.contains(address));
        state.unread_until.retain(|address, _| addresses.contains(address));
        state.preferred = state.preferred.take().filter(|address| addresses.contains(address));
        state.leader = state.leader.take().filter(|address| addresses.contains(address));
        state.nodes.retain(|_, address| addresses.contains(address));
        state.addresses = addresses;
    }

    /// Takes the members of a newer route: node ids and addresses. An empty list teaches nothing.
    pub(crate) fn set_members(&self, members: Vec<(u64, String)>) {
        if members.is_empty() {
            return;
        }
        self.set_addresses(members.iter().map(|(_, address)| address.clone()).collect());
        self.state().nodes = members.into_iter().collect();
    }

    /// How many replicas there are.
    pub(crate) fn count(&self) -> usize {
        self.state().addresses.len()
    }

    /// All addresses, in a stable order.
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.state().addresses.clone()
    }

    /// The replica to ask next, of those not in `tried`.
    pub(crate) fn next(&self, tried: &[String], now: Instant) -> Option<String> {
        let state = self.state();
        let leader = state.leader.as_ref();
        let rank = |address: &&String| {
            let suspected = state.suspected_until.get(*address).is_some_and(|until| now < *until);
            (suspected, leader != Some(*address), state.preferred.as_ref() != Some(*address))
        };
        state.addresses.iter().filter(|address| !tried.contains(address)).min_by_key(rank).cloned()
    }

    /// A route, or a replica, told the broker's rule for pulls.
    pub(crate) fn learn_read_rule(&self, anywhere: bool) {
        self.state().reads_anywhere = anywhere;
    }

    /// Whether any replica answers pulls.
    pub(crate) fn reads_anywhere(&self) -> bool {
        self.state().reads_anywhere
    }

    /// The replica to ask next for what any of them has: `turn` says which comes first, so that many readers are spread.
    pub(crate) fn next_reader(&self, tried: &[String], turn: u64, now: Instant) -> Option<String> {
        let state = self.state();
        let count = state.addresses.len();
        let first = usize::try_from(turn.checked_rem(count as u64)?).unwrap_or(0);
        let in_turn = (0..count).map(|step| &state.addresses[(first + step) % count]);
        let is_until =
            |known: &BTreeMap<String, Instant>, address: &str| known.get(address).is_some_and(|until| now < *until);
        let rank =
            |address: &&String| (is_until(&state.suspected_until, address), is_until(&state.unread_until, address));
        in_turn.filter(|address| !tried.contains(address)).min_by_key(rank).cloned()
    }

    /// A replica answered a pull.
    pub(crate) fn was_read(&self, address: &str) {
        let mut state = self.state();
        state.suspected_until.remove(address);
        state.unread_until.remove(address);
    }

    /// A replica could not answer a pull, or did not: others are asked first for a while.
    pub(crate) fn was_not_read(&self, address: &str, is_silent: bool, now: Instant) {
        let mut state = self.state();
        state.unread_until.insert(address.to_owned(), now + SUSPECT_FOR);
        if is_silent {
            state.suspected_until.insert(address.to_owned(), now + SUSPECT_FOR);
        }
    }

    /// A call had to leave the group: nobody serves there.
    pub(crate) fn gave_up(&self, now: Instant) {
        self.state().avoided_until = Some(now + AVOIDED_FOR);
    }

    /// Whether a call that may as well go to another group should come here. Of a group that did not serve, one call in a
    /// while is told so, and finds out whether it serves again.
    pub(crate) fn may_try(&self, now: Instant) -> bool {
        let mut state = self.state();
        match state.avoided_until {
            Some(until) if now < until => false,
            Some(_) => {
                state.avoided_until = Some(now + AVOIDED_FOR);
                true
            }
            None => true,
        }
    }

    /// A replica answered with sense: it is asked first from now on.
    pub(crate) fn answered(&self, address: &str) {
        let mut state = self.state();
        state.avoided_until = None;
        state.suspected_until.remove(address);
        if state.preferred.as_deref() != Some(address) && state.addresses.iter().any(|known| known == address) {
            state.preferred = Some(address.to_owned());
        }
    }

    /// A replica could not be reached, broke off or could not serve: others are asked first.
    pub(crate) fn failed(&self, address: &str) {
        let mut state = self.state();
        state.preferred = state.preferred.take().filter(|known| known != address);
        state.leader = state.leader.take().filter(|known| known != address);
    }

    /// A replica let a call time out: it is asked last for a while.
    pub(crate) fn timed_out(&self, address: &str, now: Instant) {
        self.failed(address);
        self.state().suspected_until.insert(address.to_owned(), now + SUSPECT_FOR);
    }

    /// An answer named the leader of `term`. Older terms and unknown nodes teach nothing.
    pub(crate) fn learn_leader(&self, term: u64, node: u64) {
        self.state().learn_leader(term, node);
    }

    /// A route named the leader of `term` in a life of the group. Older lives teach nothing; a newer one begins its terms
    /// anew.
    pub(crate) fn learn_routed_leader(&self, incarnation: &str, term: u64, node: u64) {
        let mut state = self.state();
        if incarnation < state.incarnation.as_str() {
            return;
        }
        if incarnation != state.incarnation {
            incarnation.clone_into(&mut state.incarnation);
            (state.term, state.leader) = (0, None);
        }
        state.learn_leader(term, node);
    }
}

impl State {
    fn learn_leader(&mut self, term: u64, node: u64) {
        if term < self.term {
            return;
        }
        let Some(address) = self.nodes.get(&node) else { return };
        (self.term, self.leader) = (term, Some(address.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three() -> Replicas {
        let name = BrokerGroupName { cluster: "c".to_owned(), group: "g".to_owned() };
        let replicas = Replicas::new(name, Vec::new());
        replicas.set_members(vec![(2, "b:1".to_owned()), (1, "a:1".to_owned()), (3, "c:1".to_owned())]);
        replicas
    }

    fn order(replicas: &Replicas, now: Instant) -> Vec<String> {
        let mut tried = Vec::new();
        while let Some(address) = replicas.next(&tried, now) {
            tried.push(address);
        }
        tried
    }

    #[test]
    fn the_leader_comes_first_then_the_one_that_answered_last_and_suspects_at_last() {
        let (replicas, now) = (three(), Instant::from_nanos(1));
        assert_eq!(order(&replicas, now), ["a:1", "b:1", "c:1"]);
        replicas.answered("c:1");
        assert_eq!(order(&replicas, now), ["c:1", "a:1", "b:1"]);
        replicas.learn_leader(3, 2);
        assert_eq!(order(&replicas, now), ["b:1", "c:1", "a:1"]);
        replicas.learn_leader(2, 1);
        replicas.learn_leader(9, 7);
        assert_eq!(order(&replicas, now)[0], "b:1", "an older term or an unknown node teaches nothing");
        replicas.timed_out("b:1", now);
        assert_eq!(order(&replicas, now), ["c:1", "a:1", "b:1"]);
        replicas.timed_out("c:1", now);
        assert_eq!(order(&replicas, now), ["a:1", "b:1", "c:1"]);
        assert_eq!(order(&replicas, now + SUSPECT_FOR), ["a:1", "b:1", "c:1"]);
    }

    #[test]
    fn readers_are_spread_over_all_and_leave_whoever_cannot_answer_for_a_while() {
        let (replicas, now) = (three(), Instant::from_nanos(1));
        replicas.learn_leader(3, 2);
        let readers = |turn, now| {
            let mut tried = Vec::new();
            while let Some(address) = replicas.next_reader(&tried, turn, now) {
                tried.push(address);
            }
            tried
        };
        assert_eq!(readers(0, now), ["a:1", "b:1", "c:1"]);
        assert_eq!(readers(1, now), ["b:1", "c:1", "a:1"]);
        assert_eq!(readers(5, now), ["c:1", "a:1", "b:1"]);
        replicas.was_not_read("b:1", false, now);
        assert_eq!(readers(1, now), ["c:1", "a:1", "b:1"]);
        replicas.was_not_read("c:1", true, now);
        assert_eq!(readers(1, now), ["a:1", "b:1", "c:1"], "one that is silent costs more than one that says no");
        assert_eq!(order(&replicas, now)[0], "b:1", "sends still go to the leader first");
        assert_eq!(readers(1, now + SUSPECT_FOR), ["b:1", "c:1", "a:1"]);
        replicas.was_read("c:1");
        assert_eq!(readers(2, now)[0], "c:1");
    }

    #[test]
    fn a_leader_that_failed_is_not_followed_by_one_of_an_older_term() {
        let (replicas, now) = (three(), Instant::from_nanos(1));
        replicas.learn_routed_leader("1", 6, 2);
        replicas.failed("b:1");
        replicas.answered("c:1");
        replicas.learn_routed_leader("1", 5, 1);
        replicas.learn_leader(5, 1);
        assert_eq!(order(&replicas, now), ["c:1", "a:1", "b:1"]);
        replicas.learn_leader(6, 2);
        assert_eq!(order(&replicas, now)[0], "b:1", "it leads again, in the same term");
        // A group that was founded anew counts from the beginning, and the old one's terms are over.
        replicas.learn_routed_leader("2", 1, 1);
        replicas.learn_routed_leader("1", 9, 3);
        assert_eq!(order(&replicas, now)[0], "a:1");
    }

    #[test]
    fn a_new_route_forgets_what_is_no_longer_there() {
        let (replicas, now) = (three(), Instant::from_nanos(1));
        replicas.answered("c:1");
        replicas.set_addresses(vec!["a:1".to_owned(), "d:1".to_owned()]);
        assert_eq!(order(&replicas, now), ["a:1", "d:1"]);
        replicas.set_addresses(Vec::new());
        assert_eq!(replicas.count(), 2, "an empty route teaches nothing");
        replicas.answered("unknown:1");
        assert_eq!(order(&replicas, now), ["a:1", "d:1"]);
    }
}
