//! Deliveries that are prolonged while their consumer lives, whoever leads.

use std::time::Duration;

use crate::support::{Client, Cluster, message, resource};
use flotilla_proto::v2::{self, MessageType};

const LONG: Duration = Duration::from_secs(20);

async fn beat(client: &Client) {
    let request = v2::HeartbeatRequest { group: Some(resource("g")), client_type: v2::ClientType::PushConsumer.into() };
    client.messaging.heartbeat(client.options(LONG), request).await.expect("an answer");
}

async fn receive_renewed(client: &Client, wait: Duration) -> crate::support::Received {
    client
        .receive_with("g", "orders", wait, LONG, |request| {
            request.auto_renew = true;
            request.invisible_duration = None;
        })
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_listener_keeps_its_message_while_it_lives_and_loses_it_when_it_has_gone() {
    let mut cluster = Cluster::start_with(3, |config| config.invisible_default_ms = 3_000).await;
    let leader = cluster.leader().await;
    // It speaks to a follower alone: the leader has to ask who lives.
    let at = if leader == 1 { 2 } else { 1 };
    let client = cluster.client(at);
    client.create_topic("orders", MessageType::Normal, 1).await;
    client.create_group("g", false, 5).await;
    beat(&client).await;
    assert_eq!(client.send(message("orders", "m-0", |_| ())).await.code, 20000);
    let held = receive_renewed(&client, LONG).await;
    assert_eq!(held.ids(), ["m-0"]);
    let began = cluster.runtime.now();
    assert_eq!(receive_renewed(&client, Duration::from_secs(5)).await.code, 40401, "it is not due");
    cluster.kill(leader);
    assert_eq!(receive_renewed(&client, Duration::from_secs(7)).await.code, 40401, "not under the next leader either");
    assert!(cluster.runtime.now() - began > Duration::from_secs(9), "three times its invisible time");
    let other = message("orders", "m-1", |_| ());
    assert_eq!(client.send(other).await.code, 20000);
    let second = receive_renewed(&client, LONG).await;
    assert_eq!(second.ids(), ["m-1"]);
    assert_eq!(client.ack("g", "orders", &held.messages).await, 20000, "the receipt is as good as on the first day");

    let goodbye = v2::NotifyClientTerminationRequest { group: Some(resource("g")) };
    client.messaging.notify_client_termination(client.options(LONG), goodbye).await.expect("an answer");
    let began = cluster.runtime.now();
    let again = receive_renewed(&client, LONG).await;
    assert_eq!(again.ids(), ["m-1"], "of a consumer that has gone it comes again");
    assert!(cluster.runtime.now() - began < Duration::from_secs(8));
    cluster.shutdown().await;
}
