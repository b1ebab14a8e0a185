//! A group of processes whose majority is gone for good, as an operator goes on with it.

use serde_json::Value;

use crate::group::{Group, PATIENCE, lines};
use crate::support::{Server, eventually, run_with_input};

#[test]
fn an_operator_goes_on_with_the_last_replica_and_those_that_come_back_do_not_count() {
    let group = Group::new();
    let all = [1, 2, 3];
    let [one, two, three] = all.map(|node| group.start(node, &all, &[]));
    group.await_leader(1);
    let endpoint = group.client(1);
    group.admin(1, &["topic", "create", "orders"]).ok();
    run_with_input(&["send", "--topic", "orders", "--endpoint", &endpoint], lines(0, 200).as_bytes()).ok();

    // With a majority there is nothing to recover.
    let is_refused = || {
        let refused = group.admin(1, &["group", "unsafe-recover"]);
        refused.stderr.contains("which is a majority: the group can go on by itself")
    };
    eventually("it is refused, once the group has recorded its members", PATIENCE, is_refused);

    two.kill();
    three.kill();
    let text = group.admin(1, &["group", "unsafe-recover"]).ok();
    for part in
        ["can go on with replica 1", "Nothing was changed", "--confirm", "not known to be committed", "in epoch 1"]
    {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
    let plan: Value = serde_json::from_str(&group.admin(1, &["group", "unsafe-recover", "--json"]).ok()).unwrap();
    assert_eq!((&plan["node"], &plan["epoch"], &plan["ordered"]), (&1.into(), &1.into(), &false.into()), "{plan}");
    assert_eq!(plan["given_up"].as_array().unwrap().len(), 2, "{plan}");
    assert!(plan["committed_index"].as_u64() <= plan["last_index"].as_u64(), "{plan}");
    let name = plan["group"].as_str().unwrap();

    // Another one than meant.
    group.admin(1, &["group", "unsafe-recover", "--confirm", &format!("{name}/2")]).failed(1, &["names", "/2", "/1"]);
    group.admin(1, &["group", "unsafe-recover", "--confirm", "2"]).failed(2, &["GROUP/NODE"]);

    let done = group.admin(1, &["group", "unsafe-recover", "--confirm", &format!("{name}/1")]).ok();
    assert!(done.contains("Ordered. Replica 1 stops now"), "{done}");
    assert_eq!(one.wait(), 70, "it stops by itself");
    let _one = group.start(1, &all, &[]);
    group.await_leader(1);
    run_with_input(&["send", "--topic", "orders", "--endpoint", &endpoint], lines(200, 300).as_bytes()).ok();

    // The two are a majority of what they know, and learn that they are none.
    let old = [2, 3].map(|node| group.start(node, &all, &[]));
    for node in [2, 3] {
        eventually("it says that it was given up", PATIENCE, || {
            group.status(node).is_some_and(|status| status["trouble"].to_string().contains("was given up"))
        });
        let status = group.status(node).unwrap();
        assert_eq!(status["can_write"], false, "{status}");
    }
    assert_eq!(group.status(1).unwrap()["can_write"], true);
    old.into_iter().for_each(Server::kill);

    // With empty directories they are added again.
    let mut added = Vec::new();
    for node in [2, 3] {
        std::fs::remove_dir_all(group.data(node)).unwrap();
        added.push(group.start(node, &[1, node], &["--join"]));
        group.admin(1, &["replica", "add", &node.to_string(), "--address", &group.peer(node)]).ok();
    }
    let listed: Value = serde_json::from_str(&group.admin(1, &["replica", "list", "--json"]).ok()).unwrap();
    let voters = listed["replicas"].as_array().unwrap().iter().filter(|row| row["role"] != "learner").count();
    assert_eq!(voters, 3, "{listed}");
    let received = group.receive(1, 300, "10s");
    let mut seen: Vec<u32> =
        received.lines().filter_map(|line| line.rsplit(' ').next()?.trim_end_matches('"').parse().ok()).collect();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen, (0..300).collect::<Vec<_>>(), "{}", received.lines().next().unwrap_or_default());
}
