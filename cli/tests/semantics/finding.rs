//! Messages are found by key, id, place and time, and their fate is told, by whoever leads.

use flotilla_proto::admin;
use flotilla_proto::v2::MessageType;

use crate::calls::{id_of, message};
use crate::cluster::{Cluster, OK, admin_call, consume, sorted};

fn ids(reply: &admin::FindMessagesReply) -> Vec<String> {
    let found = reply.messages.iter().map(|found| id_of(found.message.as_ref().expect("it")).to_owned());
    sorted(found.collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_finds_the_same_messages_before_and_after_the_leader_s_death() {
    let mut cluster = Cluster::start().await;
    let [client, other] = cluster.followers().await;
    client.create_topic("orders", MessageType::Normal, 3).await;
    client.create_group("g", false, 9).await;
    for number in 0..60 {
        let sent = message("orders", &format!("m-{number}"), |system| {
            system.keys = vec![format!("customer-{}", number % 20), "all".to_owned()];
        });
        assert_eq!(client.send(sent).await.code, OK);
    }
    let by_key = |key: &str| admin::FindMessagesRequest {
        topic: "orders".to_owned(),
        key: key.to_owned(),
        count: 100,
        ..Default::default()
    };
    assert_eq!(ids(&admin_call!(client, find_messages, by_key("customer-7"))), ["m-27", "m-47", "m-7"]);
    assert_eq!(consume(&client, "g", "orders", 60).await.len(), 60);
    cluster.kill_leader().await;
    assert_eq!(ids(&admin_call!(other, find_messages, by_key("customer-7"))), ["m-27", "m-47", "m-7"]);
    assert_eq!(ids(&admin_call!(other, find_messages, by_key("all"))).len(), 60);
    assert!(ids(&admin_call!(other, find_messages, by_key("customer"))).is_empty(), "a part is not the key");
    let by_id =
        admin::FindMessagesRequest { topic: "orders".to_owned(), message_id: "m-12".to_owned(), ..Default::default() };
    let found = admin_call!(other, find_messages, by_id);
    assert_eq!(ids(&found), ["m-12"]);
    let place = &found.messages[0];
    let trace = admin::TraceMessageRequest { topic: "orders".to_owned(), queue: place.queue, offset: place.offset };
    let trace = admin_call!(other, trace_message, trace);
    let fate: Vec<_> = trace.groups.iter().map(|group| (group.group.as_str(), group.state())).collect();
    assert_eq!(fate, [("g", admin::message_trace::State::Consumed)]);
    cluster.agree().await;
}
