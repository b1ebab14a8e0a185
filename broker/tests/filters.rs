//! SQL filters end to end: what is wanted comes, the rest is passed over and stands in nobody's way.

use std::time::Duration;

use crate::support::{Cluster, id_of, message};
use bytes::Bytes;
use flotilla_proto::v2::{self, FilterExpression, FilterType, MessageType, ReceiveMessageRequest};

const SHORT: Duration = Duration::from_millis(600);
const LONG: Duration = Duration::from_secs(30);

fn sql(expression: &str) -> impl Fn(&mut ReceiveMessageRequest) + use<> {
    let filter = FilterExpression { r#type: FilterType::Sql.into(), expression: expression.to_owned() };
    move |request| request.filter_expression = Some(filter.clone())
}

fn with_property(id: &str, name: &str, value: &str) -> v2::Message {
    let mut message = message("orders", id, |_| ());
    message.user_properties.insert(name.to_owned(), value.to_owned());
    message
}

#[tokio::test(flavor = "multi_thread")]
async fn a_condition_is_kept_and_what_it_leaves_counts_as_consumed() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client(1);
    client.create_topic("orders", MessageType::Normal, 2).await;
    for number in 0..10 {
        client.send(with_property(&format!("m-{number}"), "a", &number.to_string())).await;
    }
    let filter = sql("a > 3 AND a <= 7 AND a <> 5");
    let mut received = Vec::new();
    while received.len() < 3 {
        let some = client.receive_with("g", "orders", LONG, LONG, &filter).await;
        assert_eq!(some.code, 20000);
        received.extend(some.messages);
    }
    let mut ids: Vec<_> = received.iter().map(id_of).collect();
    ids.sort_unstable();
    assert_eq!(ids, ["m-4", "m-6", "m-7"]);
    assert_eq!(client.ack("g", "orders", &received).await, 20000);
    assert_eq!(client.receive_with("g", "orders", SHORT, LONG, &filter).await.code, 40401);

    // A condition that is none is refused, and changes nothing.
    let refused = client.receive_with("g", "orders", SHORT, LONG, sql("a > ")).await;
    assert_eq!(refused.code, 40010);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_poll_gets_past_a_long_run_that_nobody_wants() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client(1);
    client.create_topic("orders", MessageType::Normal, 1).await;
    // Many small ones: more than a look goes through.
    for batch in 0..60 {
        let some = (0..100).map(|number| with_property(&format!("s-{batch}-{number}"), "a", "1")).collect();
        assert_eq!(client.send_all(some).await.body.status.expect("a status").code, 20000);
    }
    // Few large ones: more bytes than a look reads.
    for number in 0..40 {
        let mut large = with_property(&format!("l-{number}"), "a", "1");
        large.body = Bytes::from(vec![7; 1 << 20]);
        assert_eq!(client.send(large).await.code, 20000);
    }
    client.send(with_property("wanted", "a", "2")).await;

    let received = client.receive_with("g", "orders", Duration::from_secs(20), LONG, sql("a = 2")).await;
    assert_eq!(received.ids(), ["wanted"]);

    // All others count as consumed: a group's other filters do not see them again.
    let rest = client.receive_with("g", "orders", SHORT, LONG, sql("a = 1")).await;
    assert_eq!((rest.code, rest.messages.len()), (40401, 0));
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_handed_out_once_comes_again_whatever_the_filter_is_now() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client(1);
    client.create_topic("orders", MessageType::Normal, 1).await;
    client.create_group("in-order", true, 16).await;
    client.send(with_property("old", "a", "1")).await;

    // A consumer takes one message and is gone; its successor filters otherwise.
    let first = client.receive_with("in-order", "orders", LONG, Duration::from_millis(300), |request| {
        sql("a = 1")(request);
        request.batch_size = 1;
    });
    assert_eq!(first.await.ids(), ["old"]);
    client.send(with_property("new", "a", "2")).await;
    let again = client.receive_with("in-order", "orders", LONG, LONG, sql("a = 2")).await;
    assert_eq!(again.ids(), ["old"], "an ordered group would stand still for ever otherwise");
    assert_eq!(client.ack("in-order", "orders", &again.messages).await, 20000);
    assert_eq!(client.receive_with("in-order", "orders", LONG, LONG, sql("a = 2")).await.ids(), ["new"]);
    cluster.shutdown().await;
}
