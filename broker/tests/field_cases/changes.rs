//! B09: topics and groups are in the log: what was made is there whoever leads.

use std::time::Duration;

use flotilla_proto::admin;
use flotilla_proto::v2::{MessageType, Permission};

use crate::support::{Client, Cluster};

const LONG: Duration = Duration::from_secs(20);
const TOPICS: u32 = 500;

fn topic(number: u32) -> admin::Topic {
    let message_type = [MessageType::Normal, MessageType::Fifo, MessageType::Delay, MessageType::Transaction];
    let permission = [Permission::Read, Permission::Write, Permission::ReadWrite];
    admin::Topic {
        name: format!("topic-{number:03}"),
        message_type: message_type[number as usize % 4].into(),
        queue_count: 1 + number % 7,
        permission: permission[number as usize % 3].into(),
        ..Default::default()
    }
}

fn group(number: u32) -> admin::Group {
    admin::Group {
        name: format!("group-{number:02}"),
        order: number.is_multiple_of(2),
        max_deliveries: 3 + number,
        ..Default::default()
    }
}

async fn topics(client: &Client) -> Vec<admin::Topic> {
    let request = admin::ListTopicsRequest::default();
    let reply = client.admin.list_topics(client.options(LONG), request).await.expect("an answer");
    assert_eq!(reply.status.expect("a status").code, 20000);
    let told = |topic: admin::Topic| admin::Topic { writable_queues: 0, incarnation: 0, ..topic };
    let mut topics: Vec<_> = reply.topics.into_iter().map(told).collect();
    topics.sort_by(|one, other| one.name.cmp(&other.name));
    topics
}

async fn groups(client: &Client) -> usize {
    let request = admin::ListGroupsRequest::default();
    let reply = client.admin.list_groups(client.options(LONG), request).await.expect("an answer");
    assert_eq!(reply.status.expect("a status").code, 20000);
    reply.groups.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_and_groups_outlive_the_leader_that_made_them() {
    // Segments of this size make checkpoints while the topics are made.
    let mut cluster = Cluster::start_with(3, |config| config.segment_bytes = 64 << 10).await;
    let leader = cluster.leader().await;
    let client = cluster.client(leader);
    let mut making = Vec::new();
    for number in 0..20 {
        client.create_group_of(group(number)).await;
    }
    for part in 0..10 {
        let client = client.clone();
        making.push(cluster.runtime.spawn("make", async move {
            for number in (0..TOPICS).filter(|number| number % 10 == part) {
                let request = admin::CreateTopicRequest { topic: Some(topic(number)), ..Default::default() };
                let reply = client.admin.create_topic(client.options(LONG), request).await.expect("an answer");
                let status = reply.status.expect("a status");
                assert_eq!(status.code, 20000, "{}", status.message);
            }
        }));
    }
    for task in making {
        task.await.expect("all are made");
    }
    cluster.kill(leader);
    let wanted: Vec<_> = (0..TOPICS).map(topic).collect();
    let survivors: Vec<u64> = (1..=3).filter(|node| *node != leader).collect();
    cluster.leader().await;
    for node in &survivors {
        assert_eq!(topics(&cluster.client(*node)).await, wanted);
        assert_eq!(groups(&cluster.client(*node)).await, 20);
    }
    // Nobody tidies up what he does not know: also the one that comes back, and all after another start.
    cluster.restart(leader).await;
    cluster.digests().await;
    (1..=3).for_each(|node| cluster.kill(node));
    for node in 1..=3 {
        cluster.restart(node).await;
    }
    cluster.leader().await;
    let digests = cluster.digests().await;
    assert!(digests.iter().all(|digest| *digest == digests[0]), "{digests:?}");
    for node in 1..=3 {
        assert_eq!(topics(&cluster.client(node)).await, wanted);
    }
    cluster.shutdown().await;
}
