//! Order by message group, through consumers and leaders that die.

use std::collections::BTreeMap;
use std::time::Duration;

use flotilla_proto::v2::MessageType;

use crate::calls::{id_of, message, system_of};
use crate::cluster::{Cluster, LONG, NOTHING_THERE, OK};

const GROUPS: usize = 6;
const LENGTH: usize = 6;
const INVISIBLE: Duration = Duration::from_millis(1_500);

#[tokio::test(flavor = "multi_thread")]
async fn no_message_of_a_message_group_passes_one_before_it() {
    let mut cluster = Cluster::start().await;
    let [client, other] = cluster.followers().await;
    client.create_topic("steps", MessageType::Fifo, 4).await;
    client.create_group("g", true, 20).await;
    let mut queues = BTreeMap::new();
    let send = async |client: &crate::calls::Client, group: usize, number: usize| {
        let step = message("steps", &format!("{group}-{number}"), |system| {
            system.message_group = Some(format!("account-{group}"));
        });
        assert_eq!(client.send(step).await.code, OK);
    };
    for number in 0..LENGTH / 2 {
        for group in 0..GROUPS {
            send(&client, group, number).await;
        }
    }

    // Number 1 of each group is received and never acknowledged the first time, as by a consumer that died.
    let mut next = [0; GROUPS];
    let mut abandoned = 0;
    let mut acknowledged = 0;
    while acknowledged < GROUPS * LENGTH {
        let one = |request: &mut flotilla_proto::v2::ReceiveMessageRequest| request.batch_size = 1;
        let received = client.receive_with("g", "steps", LONG, INVISIBLE, one).await;
        assert_eq!(received.code, OK, "so far {next:?}");
        let message = &received.messages[0];
        let (group, number) = id_of(message).split_once('-').unwrap();
        let (group, number): (usize, usize) = (group.parse().unwrap(), number.parse().unwrap());
        assert_eq!(number, next[group], "of group {group}");
        let queue = system_of(message).queue_id;
        assert_eq!(*queues.entry(group).or_insert(queue), queue, "group {group} has one queue");
        let attempt = system_of(message).delivery_attempt;
        if number == 1 && attempt == Some(1) {
            abandoned += 1;
            if abandoned == GROUPS / 2 {
                cluster.kill_leader().await;
                // The rest is sent under the next leader.
                for number in LENGTH / 2..LENGTH {
                    for group in 0..GROUPS {
                        send(&other, group, number).await;
                    }
                }
            }
            continue;
        }
        assert_eq!(attempt, Some(if number == 1 { 2 } else { 1 }), "{}", id_of(message));
        assert_eq!(client.ack("g", "steps", &received.messages).await, OK);
        next[group] += 1;
        acknowledged += 1;
    }
    assert_eq!((next, abandoned), ([LENGTH; GROUPS], GROUPS));
    assert_eq!(other.receive("g", "steps", Duration::from_millis(500), LONG).await.code, NOTHING_THERE);
    cluster.agree().await;
}
