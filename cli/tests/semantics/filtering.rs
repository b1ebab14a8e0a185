//! Filters: what is wanted comes, and what is not counts as consumed, whoever leads.

use flotilla_proto::admin;
use flotilla_proto::v2::{self, FilterExpression, FilterType, MessageType};

use crate::calls::{Client, id_of, message};
use crate::cluster::{Cluster, LONG, NOTHING_THERE, OK, SHORT, admin_call, consume, numbered, sorted};

const COUNT: usize = 40;

async fn wanted(client: &Client, group: &str, kind: FilterType, expression: &str, count: usize) -> Vec<String> {
    let filter = |request: &mut v2::ReceiveMessageRequest| {
        request.filter_expression = Some(FilterExpression { r#type: kind.into(), expression: expression.to_owned() });
    };
    let mut ids = Vec::new();
    while ids.len() < count {
        let received = client.receive_with(group, "orders", LONG, LONG, filter).await;
        assert_eq!(received.code, OK, "so far {ids:?}");
        assert_eq!(client.ack(group, "orders", &received.messages).await, OK);
        ids.extend(received.messages.iter().map(|message| id_of(message).to_owned()));
    }
    assert_eq!(client.receive_with(group, "orders", SHORT, LONG, filter).await.code, NOTHING_THERE);
    sorted(ids)
}

async fn send_half(client: &Client, numbers: std::ops::Range<usize>) {
    for number in numbers {
        let mut order = message("orders", &format!("m-{number}"), |system| {
            system.tag = Some(["red", "green", "blue", "redder"][number % 4].to_owned());
        });
        order.user_properties.insert("n".to_owned(), number.to_string());
        order.user_properties.insert("city".to_owned(), ["hangzhou", "oslo"][number % 2].to_owned());
        assert_eq!(client.send(order).await.code, OK);
    }
}

fn ids(wanted: impl Fn(usize) -> bool, numbers: std::ops::Range<usize>) -> Vec<String> {
    sorted(numbers.filter(|number| wanted(*number)).map(|number| format!("m-{number}")).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn tags_and_conditions_choose_the_same_before_and_after_the_leader_s_death() {
    let mut cluster = Cluster::start().await;
    let [client, other] = cluster.followers().await;
    client.create_topic("orders", MessageType::Normal, 2).await;
    for group in ["tags", "sql", "all"] {
        client.create_group(group, false, 9).await;
    }
    let by_tag = |number: usize| matches!(number % 4, 0 | 2);
    let by_sql = |number: usize| (4..=30).contains(&number) && number.is_multiple_of(2);
    let condition = "n BETWEEN 4 AND 30 AND city LIKE 'hang%'";
    let halves = [0..COUNT / 2, COUNT / 2..COUNT];
    for (round, half) in halves.into_iter().enumerate() {
        let client = if round == 0 { &client } else { &other };
        if round == 1 {
            cluster.kill_leader().await;
        }
        send_half(client, half.clone()).await;
        let expected = ids(by_tag, half.clone());
        assert_eq!(wanted(client, "tags", FilterType::Tag, "red || blue", expected.len()).await, expected);
        let expected = ids(by_sql, half.clone());
        assert_eq!(wanted(client, "sql", FilterType::Sql, condition, expected.len()).await, expected);
        for group in ["tags", "sql"] {
            let told = admin_call!(client, describe_group, admin::DescribeGroupRequest { name: group.to_owned() });
            let lag: u64 = told.progress.iter().map(|row| row.lag_messages).sum();
            assert_eq!(lag, 0, "what {group} does not want is consumed");
        }
    }
    assert_eq!(sorted(consume(&client, "all", "orders", COUNT).await), numbered("m", COUNT));
    cluster.agree().await;
}
