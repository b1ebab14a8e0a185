//! The table against a naive model that keeps a list and searches it, and its promises one by one.

use std::time::Duration;

use flotilla_message::{MessageType, Permission, TopicName};
use flotilla_runtime::Instant;
use proptest::prelude::*;

use crate::routes::{ConnectionId, Expired, Registered, Routes, RowRefused};
use crate::row::{Freshness, Member, Row, RowKey, RowRole, TopicEntry};

const EXPIRY: Duration = Duration::from_millis(120);

fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

fn key(group: &str, replica: u64) -> RowKey {
    RowKey { cluster: "c".to_owned(), group: group.to_owned(), replica }
}

fn freshness(incarnation: &str, term: u64, version: u64) -> Freshness {
    Freshness { incarnation: incarnation.to_owned(), term, version }
}

fn topic(name: &str) -> TopicEntry {
    TopicEntry {
        name: TopicName::try_from(name).unwrap(),
        queue_count: 4,
        permission: Permission::ReadWrite,
        message_type: MessageType::Normal,
    }
}

fn row(key: RowKey, freshness: Freshness, role: RowRole, topics: &[&str]) -> Row {
    let members = (1..=3).map(|n| Member { replica: n, client_address: format!("host-{n}:8081") }).collect();
    Row {
        client_address: format!("host-{}:8081", key.replica),
        peer_address: format!("host-{}:10912", key.replica),
        key,
        freshness,
        role,
        members,
        advertise_name: String::new(),
        read_from_any: false,
        heartbeat_interval_ms: 30,
        topics: topics.iter().map(|name| topic(name)).collect(),
    }
}

fn name(text: &str) -> TopicName {
    TopicName::try_from(text).unwrap()
}

const ONE: ConnectionId = ConnectionId(1);
const TWO: ConnectionId = ConnectionId(2);

#[test]
fn a_lower_freshness_is_refused_and_leaves_the_row_and_its_age_alone() {
    let mut routes = Routes::new(10);
    let fresh = row(key("g", 1), freshness("b", 5, 7), RowRole::Leader, &["t"]);
    assert_eq!(routes.register(fresh.clone(), ONE, at(0)), Ok(Registered::Added));
    for stale in [freshness("a", 9, 9), freshness("b", 4, 9), freshness("b", 5, 6)] {
        let refused = routes.register(row(key("g", 1), stale.clone(), RowRole::Follower, &[]), TWO, at(100));
        assert!(matches!(refused, Err(RowRefused::Stale { offered, .. }) if *offered == stale));
        assert_eq!(routes.row(&key("g", 1)), Some(&fresh));
    }
    // The stale calls were no heartbeats: the row goes when its own time is over.
    assert_eq!(routes.expire(at(120), EXPIRY), [Expired { key: key("g", 1), connection: ONE }]);
}

#[test]
fn a_late_goodbye_does_not_remove_what_the_successor_registered() {
    let mut routes = Routes::new(10);
    routes.register(row(key("g", 1), freshness("a", 5, 2), RowRole::Follower, &["t"]), ONE, at(0)).unwrap();
    routes.register(row(key("g", 2), freshness("a", 5, 1), RowRole::Leader, &["t"]), TWO, at(0)).unwrap();
    assert!(matches!(routes.unregister(&key("g", 1), &freshness("a", 5, 1)), Err(RowRefused::Stale { .. })));
    assert_eq!(routes.unregister(&key("g", 1), &freshness("a", 5, 2)), Ok(true));
    assert_eq!(routes.unregister(&key("g", 1), &freshness("a", 5, 2)), Ok(false));
    assert_eq!(routes.row(&key("g", 2)).unwrap().role, RowRole::Leader, "the other replica's row stays");
}

#[test]
fn a_group_lives_without_a_leader_and_names_all_its_members() {
    let mut routes = Routes::new(10);
    routes.register(row(key("g", 1), freshness("a", 5, 1), RowRole::Leader, &["t"]), ONE, at(0)).unwrap();
    routes.register(row(key("g", 2), freshness("a", 5, 1), RowRole::Follower, &["t"]), TWO, at(60)).unwrap();
    let route = routes.topic_route(None, &name("t"));
    assert_eq!((route[0].group.leader, route[0].group.members.len()), (Some(1), 3));

    // The leader falls silent; the group stays, with all its members.
    assert_eq!(routes.expire(at(120), EXPIRY).len(), 1);
    let route = routes.topic_route(Some("c"), &name("t"));
    assert_eq!((route[0].group.leader, route[0].group.members.len()), (None, 3));
    assert!(routes.topic_route(Some("other"), &name("t")).is_empty());

    // With the last row the group goes, and its topics.
    assert_eq!(routes.expire(at(180), EXPIRY).len(), 1);
    assert!(routes.groups(None).is_empty() && routes.topics(None).is_empty());
}

#[test]
fn a_leader_of_an_older_term_is_no_longer_called_leader() {
    let mut routes = Routes::new(10);
    routes.register(row(key("g", 1), freshness("a", 5, 1), RowRole::Leader, &["t"]), ONE, at(0)).unwrap();
    routes.register(row(key("g", 2), freshness("a", 6, 1), RowRole::Follower, &["t"]), TWO, at(0)).unwrap();
    assert_eq!(routes.groups(None)[0].leader, None);
    routes.register(row(key("g", 2), freshness("a", 6, 1), RowRole::Leader, &["t"]), TWO, at(0)).unwrap();
    assert_eq!(routes.groups(None)[0].leader, Some(2));
}

#[test]
fn a_leader_whose_connection_has_ended_is_not_named_until_it_says_so_again() {
    let mut routes = Routes::new(10);
    let leads = || row(key("g", 1), freshness("a", 5, 1), RowRole::Leader, &["t"]);
    routes.register(leads(), ONE, at(0)).unwrap();
    routes.disconnected(TWO);
    assert_eq!(routes.groups(None)[0].leader, Some(1), "it is another connection that ended");
    routes.disconnected(ONE);
    assert_eq!(routes.groups(None)[0].leader, None);
    assert_eq!(routes.topic_route(None, &name("t")).len(), 1, "its row stays");
    // It is back before the end of its old connection is noticed.
    assert_eq!(routes.register(leads(), TWO, at(1)), Ok(Registered::Changed));
    routes.disconnected(ONE);
    assert_eq!(routes.groups(None)[0].leader, Some(1));
}

#[test]
fn a_group_made_anew_hides_the_rows_of_the_old_one() {
    let mut routes = Routes::new(10);
    routes.register(row(key("g", 1), freshness("a", 9, 9), RowRole::Leader, &["old"]), ONE, at(0)).unwrap();
    routes.register(row(key("g", 2), freshness("b", 1, 1), RowRole::Leader, &["new"]), TWO, at(0)).unwrap();
    assert!(routes.topic_route(None, &name("old")).is_empty());
    assert_eq!(routes.topic_route(None, &name("new"))[0].group.leader, Some(2));
}

#[test]
fn a_full_table_refuses_a_further_row_but_not_a_heartbeat() {
    let mut routes = Routes::new(1);
    let first = row(key("g", 1), freshness("a", 1, 1), RowRole::Leader, &[]);
    routes.register(first.clone(), ONE, at(0)).unwrap();
    let second = row(key("g", 2), freshness("a", 1, 1), RowRole::Follower, &[]);
    let refused = routes.register(second, TWO, at(0)).unwrap_err();
    assert_eq!(refused.to_string(), "replica 2 of group g in cluster c would be row 2 of at most 1");
    assert_eq!(routes.register(first, ONE, at(1)), Ok(Registered::Repeated));
}

/// What may be called on the table.
#[derive(Debug, Clone)]
enum Step {
    Register(Row, ConnectionId),
    Unregister(RowKey, Freshness),
    Wait(u64),
}

fn any_key() -> impl Strategy<Value = RowKey> {
    ("[cd]", "[gh]", 1..4u64).prop_map(|(cluster, group, replica)| RowKey { cluster, group, replica })
}

fn any_freshness() -> impl Strategy<Value = Freshness> {
    ("[ab]", 0..3u64, 0..3u64).prop_map(|(incarnation, term, version)| Freshness { incarnation, term, version })
}

fn any_step() -> impl Strategy<Value = Step> {
    let role = prop_oneof![Just(RowRole::Leader), Just(RowRole::Follower)];
    let topics = prop::sample::subsequence(vec!["t", "u", "v"], 0..=3);
    prop_oneof![
        6 => (any_key(), any_freshness(), role, topics, 0..4u64)
            .prop_map(|(key, fresh, role, topics, connection)| Step::Register(row(key, fresh, role, &topics), ConnectionId(connection))),
        2 => (any_key(), any_freshness()).prop_map(|(key, freshness)| Step::Unregister(key, freshness)),
        3 => (1..80u64).prop_map(Step::Wait),
    ]
}

/// The same promises, kept by searching a list.
#[derive(Default)]
struct Model {
    rows: Vec<(Row, ConnectionId, u64)>,
}

impl Model {
    fn place(&self, key: &RowKey) -> Option<usize> {
        self.rows.iter().position(|(row, ..)| row.key == *key)
    }

    fn older(left: &Freshness, right: &Freshness) -> bool {
        left.incarnation < right.incarnation
            || left.incarnation == right.incarnation
                && (left.term < right.term || left.term == right.term && left.version < right.version)
    }

    fn register(&mut self, row: Row, connection: ConnectionId, now_ms: u64) -> bool {
        if let Some(place) = self.place(&row.key) {
            if Model::older(&row.freshness, &self.rows[place].0.freshness) {
                return false;
            }
            self.rows.remove(place);
        }
        self.rows.push((row, connection, now_ms));
        true
    }

    fn unregister(&mut self, key: &RowKey, freshness: &Freshness) -> Option<bool> {
        let Some(place) = self.place(key) else { return Some(false) };
        if Model::older(freshness, &self.rows[place].0.freshness) {
            return None;
        }
        self.rows.remove(place);
        Some(true)
    }

    fn expire(&mut self, now_ms: u64) -> Vec<Expired> {
        let silent = |seen: u64| now_ms - seen >= 120;
        let mut gone: Vec<Expired> = self
            .rows
            .iter()
            .filter(|(_, _, seen)| silent(*seen))
            .map(|(row, connection, _)| Expired { key: row.key.clone(), connection: *connection })
            .collect();
        gone.sort_by(|left, right| left.key.cmp(&right.key));
        self.rows.retain(|(_, _, seen)| !silent(*seen));
        gone
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn the_table_does_what_the_naive_model_does(steps in prop::collection::vec(any_step(), 0..60)) {
        let (mut routes, mut model, mut now_ms) = (Routes::new(1_000), Model::default(), 0);
        for step in steps {
            match step {
                Step::Register(row, connection) => {
                    let taken = routes.register(row.clone(), connection, at(now_ms)).is_ok();
                    prop_assert_eq!(taken, model.register(row, connection, now_ms));
                }
                Step::Unregister(key, freshness) => {
                    prop_assert_eq!(routes.unregister(&key, &freshness).ok(), model.unregister(&key, &freshness));
                }
                Step::Wait(ms) => {
                    now_ms += ms;
                    prop_assert_eq!(routes.expire(at(now_ms), EXPIRY), model.expire(now_ms));
                }
            }
            let mut expected: Vec<Row> = model.rows.iter().map(|(row, ..)| row.clone()).collect();
            expected.sort_by(|left, right| left.key.cmp(&right.key));
            let held: Vec<Row> = routes.rows(None).map(|(row, _)| row.clone()).collect();
            prop_assert_eq!(&held, &expected);

            // A group is there exactly as long as any of its rows is.
            let mut groups: Vec<_> = expected.iter().map(|row| (row.key.cluster.clone(), row.key.group.clone())).collect();
            groups.dedup();
            let views = routes.groups(None);
            let named: Vec<_> = views.iter().map(|view| (view.cluster.clone(), view.group.clone())).collect();
            prop_assert_eq!(named, groups);

            for view in views {
                // Of the newest incarnation only: whoever leads in the newest term, and what the freshest row serves.
                let of_group: Vec<&Row> = expected
                    .iter()
                    .filter(|row| (&row.key.cluster, &row.key.group) == (&view.cluster, &view.group))
                    .collect();
                let newest = of_group.iter().map(|row| &row.freshness.incarnation).max().unwrap();
                let current: Vec<&&Row> = of_group.iter().filter(|row| row.freshness.incarnation == *newest).collect();
                let term = current.iter().map(|row| row.freshness.term).max().unwrap();
                prop_assert_eq!(view.term, term);
                match view.leader {
                    Some(leader) => prop_assert!(current
                        .iter()
                        .any(|row| row.key.replica == leader && row.role == RowRole::Leader && row.freshness.term == term)),
                    None => prop_assert!(!current
                        .iter()
                        .any(|row| row.role == RowRole::Leader && row.freshness.term == term)),
                }
                for topic in ["t", "u", "v"] {
                    let routed = routes
                        .topic_route(Some(&view.cluster), &name(topic))
                        .iter()
                        .any(|route| route.group.group == view.group);
                    let best = current.iter().map(|row| (&row.freshness, row.role == RowRole::Leader)).max().unwrap();
                    let candidates = current.iter().filter(|row| (&row.freshness, row.role == RowRole::Leader) == best);
                    let serve: Vec<bool> = candidates.map(|row| row.topics.iter().any(|entry| entry.name == name(topic))).collect();
                    prop_assert!(serve.contains(&routed), "{topic} routed: {routed}, equally fresh rows: {serve:?}");
                }
            }
        }
    }
}
