//! What is wrong with the network between namespaces, and the routing rules that make it so: no system calls.
//!
//! Packets get lost where they arrive: no rule leads them to their target, and their sender notices nothing but that nobody
//! answers. Connections are refused where they are opened: no rule leads out, and the kernel says so at once. Kernels count
//! both.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use super::links::{Door, Traffic};
use super::packet_loss::Losses;

/// Where replicas serve their peers and their clients, each at its own address.
pub(super) const PEER_PORT: u16 = 8_082;
pub(super) const CLIENT_PORT: u16 = 8_081;

/// Where packets are sent and received.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    /// Where all clients are, with them the harness.
    Clients,
    /// A replica's namespace.
    Replica(u64),
}

/// Everything that is wrong; what is not named is whole.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Damage {
    pub(super) traffic: BTreeMap<(u64, u64), Traffic>,
    pub(super) doors: BTreeMap<(u64, u64), Door>,
    /// Between all clients and a replica.
    pub(super) clients: BTreeMap<u64, Door>,
    /// Cables that are pulled.
    pub(super) unplugged: BTreeSet<u64>,
}

/// Who has which address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Addresses {
    pub(super) replicas: BTreeMap<u64, Ipv4Addr>,
    pub(super) clients: Ipv4Addr,
}

impl Addresses {
    fn of(&self, place: Place) -> Option<Ipv4Addr> {
        match place {
            Place::Clients => Some(self.clients),
            Place::Replica(node) => self.replicas.get(&node).copied(),
        }
    }
}

impl Damage {
    /// All rules that stand in a namespace, as `ip rule add` takes them.
    pub(super) fn rules(&self, place: Place, addresses: &Addresses) -> BTreeSet<String> {
        let mut rules = BTreeSet::new();
        let mut add = |stands_at: Place, direction: &str, other: Place, what: &str| {
            if stands_at == place
                && let Some(address) = addresses.of(other)
            {
                rules.insert(format!("{direction} {address} ipproto tcp {what}"));
            }
        };
        for ((from, to), traffic) in &self.traffic {
            match traffic {
                Traffic::Held => add(Place::Replica(*to), "from", Place::Replica(*from), "blackhole"),
                // Rules know neither time nor chance nor bytes: proxies do these, and `losses`.
                Traffic::Flows | Traffic::Delayed(_) | Traffic::Lossy(_) | Traffic::Corrupting => (),
            }
        }
        for ((from, to), door) in &self.doors {
            let (from, to) = (Place::Replica(*from), Place::Replica(*to));
            match door {
                Door::Open => (),
                // The packets of connections that `from` opens to `to`, there and back.
                Door::Frozen => {
                    add(to, "from", from, &format!("dport {PEER_PORT} blackhole"));
                    add(from, "from", to, &format!("sport {PEER_PORT} blackhole"));
                }
                Door::Closed => add(from, "to", to, &format!("dport {PEER_PORT} unreachable")),
            }
        }
        for (node, door) in &self.clients {
            match door {
                Door::Open => (),
                Door::Frozen => add(Place::Replica(*node), "from", Place::Clients, "blackhole"),
                Door::Closed => add(Place::Clients, "to", Place::Replica(*node), "unreachable"),
            }
        }
        rules
    }

    /// Whose packets get lost by chance where they arrive.
    pub(super) fn losses(&self, place: Place, addresses: &Addresses) -> Losses {
        let lossy = self.traffic.iter().filter_map(|((from, to), traffic)| match traffic {
            Traffic::Lossy(percent) if place == Place::Replica(*to) => {
                Some((addresses.of(Place::Replica(*from))?, *percent))
            }
            _ => None,
        });
        lossy.collect()
    }

    /// Whose connections are to be cut, that were not before: at a place those with the address.
    pub(super) fn cuts_since(&self, before: &Damage, addresses: &Addresses) -> Vec<(Place, Ipv4Addr)> {
        let mut cuts = BTreeSet::new();
        let mut cut = |one: Place, other: Place| {
            cuts.extend(addresses.of(other).map(|address| (one, address)));
            cuts.extend(addresses.of(one).map(|address| (other, address)));
        };
        let is_new = |now: &Door, then: Option<&Door>| *now == Door::Closed && then != Some(now);
        for (pair, door) in &self.doors {
            if is_new(door, before.doors.get(pair)) {
                cut(Place::Replica(pair.0), Place::Replica(pair.1));
            }
        }
        for (node, door) in &self.clients {
            if is_new(door, before.clients.get(node)) {
                cut(Place::Replica(*node), Place::Clients);
            }
        }
        cuts.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses() -> Addresses {
        let address = |last| Ipv4Addr::new(10, 77, 0, last);
        Addresses { replicas: (1..=3).map(|node| (u64::from(node), address(node))).collect(), clients: address(254) }
    }

    fn rules(damage: &Damage, place: Place) -> Vec<String> {
        damage.rules(place, &addresses()).into_iter().collect()
    }

    #[test]
    fn a_whole_network_has_no_rules() {
        for place in [Place::Clients, Place::Replica(1), Place::Replica(3)] {
            assert_eq!(rules(&Damage::default(), place), [""; 0]);
        }
    }

    #[test]
    fn a_path_fails_where_its_packets_arrive_and_nowhere_else() {
        let mut damage = Damage::default();
        damage.traffic.insert((1, 2), Traffic::Held);
        assert_eq!(rules(&damage, Place::Replica(2)), ["from 10.77.0.1 ipproto tcp blackhole"]);
        assert_eq!(rules(&damage, Place::Replica(1)), [""; 0]);
        assert_eq!(rules(&damage, Place::Clients), [""; 0]);
        assert_eq!(damage.losses(Place::Replica(2), &addresses()), Losses::new());
        damage.traffic.insert((1, 2), Traffic::Lossy(7));
        assert_eq!(rules(&damage, Place::Replica(2)), [""; 0]);
        let losses = Losses::from([(Ipv4Addr::new(10, 77, 0, 1), 7)]);
        assert_eq!(damage.losses(Place::Replica(2), &addresses()), losses);
        assert_eq!(damage.losses(Place::Replica(1), &addresses()), Losses::new());
    }

    #[test]
    fn a_door_fails_for_the_connections_of_one_opener_there_and_back() {
        let mut damage = Damage::default();
        damage.doors.insert((1, 2), Door::Frozen);
        assert_eq!(rules(&damage, Place::Replica(2)), ["from 10.77.0.1 ipproto tcp dport 8082 blackhole"]);
        assert_eq!(rules(&damage, Place::Replica(1)), ["from 10.77.0.2 ipproto tcp sport 8082 blackhole"]);
        assert_eq!(rules(&damage, Place::Replica(3)), [""; 0]);
        damage.doors.insert((1, 2), Door::Closed);
        assert_eq!(rules(&damage, Place::Replica(2)), [""; 0]);
        assert_eq!(rules(&damage, Place::Replica(1)), ["to 10.77.0.2 ipproto tcp dport 8082 unreachable"]);
    }

    #[test]
    fn only_what_is_newly_closed_is_cut_and_on_both_sides() {
        let mut before = Damage::default();
        before.doors.insert((1, 3), Door::Closed);
        let mut now = before.clone();
        now.doors.insert((1, 2), Door::Closed);
        now.clients.insert(3, Door::Closed);
        let address = |last| Ipv4Addr::new(10, 77, 0, last);
        let cuts = now.cuts_since(&before, &addresses());
        let of = Place::Replica;
        let expected = [(Place::Clients, address(3)), (of(1), address(2)), (of(2), address(1)), (of(3), address(254))];
        assert_eq!(cuts, expected);
        assert_eq!(before.cuts_since(&now, &addresses()), []);
    }

    #[test]
    fn clients_are_cut_off_by_their_address_or_refused_where_they_are() {
        let mut damage = Damage::default();
        damage.clients.insert(2, Door::Frozen);
        assert_eq!(rules(&damage, Place::Replica(2)), ["from 10.77.0.254 ipproto tcp blackhole"]);
        damage.clients.insert(2, Door::Closed);
        assert_eq!(rules(&damage, Place::Replica(2)), [""; 0]);
        assert_eq!(rules(&damage, Place::Clients), ["to 10.77.0.2 ipproto tcp unreachable"]);
    }
}
