//! What a namesrv's word is worth: it adds to what is known, and what it lacks is asked of the brokers.

use std::sync::Arc;
use std::time::Duration;

use flotilla_proto::status::Code;
use flotilla_runtime::Runtime;

use crate::scripted::{Act, Scripted};
use crate::virtual_time::run;
use crate::{
    Client, ClientConfig, ConsumeResult, OutgoingMessage, Producer, ProducerConfig, PushConsumerConfig, ReceiveError,
    RouteError, SendError, SimpleConsumerConfig,
};

fn client(runtime: &Runtime, cluster: &Scripted) -> Client {
    Client::connect(ClientConfig::of_namesrv(["n:1", "n:2"]), runtime.clone(), Arc::new(cluster.clone())).unwrap()
}

fn producer(runtime: &Runtime, cluster: &Scripted) -> Producer {
    client(runtime, cluster).producer(ProducerConfig::default()).unwrap()
}

fn message() -> OutgoingMessage {
    to("t")
}

fn to(topic: &str) -> OutgoingMessage {
    OutgoingMessage::new(topic.try_into().unwrap(), "body")
}

fn all_replicas(cluster: &Scripted, act: Act) {
    for address in ["a:1", "b:1", "c:1"] {
        cluster.always(address, act);
    }
}

fn forget(cluster: &Scripted, group: &str) {
    cluster.state().unregistered.insert(group.to_owned());
}

/// Two groups with one replica each: `g` at `a:1` and `h` at `h:1`.
fn two_groups(cluster: &Scripted) {
    let mut state = cluster.state();
    state.members.truncate(1);
    state.second_group = Some(("h".to_owned(), "h:1".to_owned()));
}

/// The broker group that each of these message groups is sent to.
async fn placed(producer: &Producer) -> Vec<String> {
    let mut groups = Vec::new();
    for number in 0..8 {
        let sent = producer.send(message().with_message_group(format!("order-{number}"))).await;
        groups.push(sent.unwrap().broker_group);
    }
    groups
}

#[test]
fn a_namesrv_that_has_forgotten_everything_takes_no_known_route_away() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        let producer = producer(&runtime, &cluster);
        producer.send(message()).await.unwrap();
        forget(&cluster, "g");
        // Through several renewals.
        runtime.sleep(Duration::from_secs(100)).await;
        producer.send(message()).await.unwrap();

        // Neither while the replicas restart, when every failure asks for a newer route.
        all_replicas(&cluster, Act::Refuse);
        let sent = producer.send_async(message()).await;
        runtime.sleep(Duration::from_secs(5)).await;
        let late = producer.send_async(message()).await;
        runtime.sleep(Duration::from_secs(1)).await;
        all_replicas(&cluster, Act::Serve);
        sent.await.unwrap();
        late.await.unwrap();
    });
}

#[test]
fn a_namesrv_that_knows_only_some_broker_groups_moves_no_message_group() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        two_groups(&cluster);
        let producer = producer(&runtime, &cluster);
        let before = placed(&producer).await;
        assert!(before.iter().any(|group| group == "g") && before.iter().any(|group| group == "h"), "{before:?}");
        for lost in ["g", "h"] {
            cluster.state().unregistered = [lost.to_owned()].into();
            runtime.sleep(Duration::from_secs(40)).await;
            assert_eq!(placed(&producer).await, before, "{lost} is not registered");
        }
    });
}

#[test]
fn a_broker_group_that_joins_later_is_taken_in() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        two_groups(&cluster);
        forget(&cluster, "h");
        let producer = producer(&runtime, &cluster);
        assert!(placed(&producer).await.iter().all(|group| group == "g"));
        cluster.state().unregistered.clear();
        runtime.sleep(Duration::from_secs(40)).await;
        assert!(placed(&producer).await.contains(&"h".to_owned()));
    });
}

#[test]
fn a_broker_group_is_forgotten_when_it_denies_the_topic_itself() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        two_groups(&cluster);
        let producer = producer(&runtime, &cluster);
        placed(&producer).await;
        // The topic was removed from `h`, whose row says so.
        forget(&cluster, "h");
        cluster.always("h:1", Act::Answer(Code::TopicNotFound));
        let mut denied = 0;
        for _ in 0..8 {
            match producer.send(message()).await {
                Ok(receipt) => assert_eq!(receipt.broker_group, "g"),
                Err(error) => {
                    assert!(matches!(error, SendError::Rejected { code: 40_402, .. }), "{error}");
                    denied += 1;
                }
            }
        }
        assert_eq!(denied, 1, "its own word ends one send and is heeded by the next");
    });
}

#[test]
fn a_topic_that_all_its_brokers_deny_is_asked_for_anew() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        let producer = producer(&runtime, &cluster);
        producer.send(message()).await.unwrap();
        let asked = cluster.heard("route").len();
        cluster.next("a:1", &[Act::Answer(Code::TopicNotFound)]);
        let error = producer.send(message()).await.unwrap_err();
        assert!(matches!(error, SendError::Rejected { code: 40_402, .. }), "{error}");
        producer.send(message()).await.unwrap();
        assert_eq!(cluster.heard("route").len(), asked + 1);

        let config = SimpleConsumerConfig::new("g1".try_into().unwrap(), "t".try_into().unwrap());
        let consumer = client(&runtime, &cluster).simple_consumer(config).unwrap();
        cluster.put("m1", None);
        cluster.next("a:1", &[Act::Answer(Code::TopicNotFound)]);
        let error = consumer.receive(1, Duration::from_secs(60)).await.unwrap_err();
        assert!(matches!(error, ReceiveError::Rejected { code: 40_402, .. }), "{error}");
        let asked = cluster.heard("route").len();
        assert_eq!(consumer.receive(1, Duration::from_secs(60)).await.unwrap().len(), 1);
        assert_eq!(cluster.heard("route").len(), asked + 1);
    });
}

#[test]
fn a_new_client_finds_a_topic_that_only_the_brokers_know() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        cluster.state().unlisted.insert("t".to_owned());
        cluster.always("a:1", Act::Freeze);
        let began = runtime.now();
        let sent = producer(&runtime, &cluster).send_async(message()).await;
        runtime.sleep(Duration::from_millis(200)).await;
        assert_eq!(cluster.asked("list brokers"), ["n:1", "n:2"]);
        runtime.sleep(Duration::from_millis(200)).await;
        cluster.always("a:1", Act::Serve);
        sent.await.unwrap();
        let took = runtime.now() - began;
        assert!(took < Duration::from_millis(450), "a frozen replica is passed by: {took:?}");
    });
}

#[test]
fn a_new_client_bridges_the_time_until_brokers_register_with_a_new_namesrv() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        forget(&cluster, "g");
        let producer = producer(&runtime, &cluster);
        let sent = producer.send_async(message()).await;
        runtime.sleep(Duration::from_millis(1_200)).await;
        cluster.state().unregistered.clear();
        sent.await.unwrap();
    });
}

#[test]
fn a_mistyped_topic_is_rejected_within_two_seconds_whoever_can_be_asked() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        let rejected = async |least: u64, most: u64| {
            let began = runtime.now();
            let error = producer(&runtime, &cluster).send(to("u")).await.unwrap_err();
            let took = runtime.now() - began;
            assert!(error.is_surely_not_stored(), "{error}");
            let text = error.to_string();
            assert!(text.contains("rejected (40402 TOPIC_NOT_FOUND): topic 'u' does not exist: "), "{text}");
            assert!((Duration::from_millis(least)..Duration::from_millis(most)).contains(&took), "{took:?}");
            text
        };
        // The brokers say so.
        rejected(600, 800).await;
        // They cannot be asked, but their rows are there.
        all_replicas(&cluster, Act::Freeze);
        assert!(rejected(1_400, 2_000).await.contains("broker group g does not answer"));
        all_replicas(&cluster, Act::Refuse);
        rejected(1_400, 1_600).await;
        // Nobody is known.
        forget(&cluster, "g");
        assert!(rejected(1_400, 1_600).await.contains("no broker is registered"));

        let config = SimpleConsumerConfig::new("g1".try_into().unwrap(), "u".try_into().unwrap());
        let consumer = client(&runtime, &cluster).simple_consumer(config).unwrap();
        let error = consumer.receive(1, Duration::from_secs(60)).await.unwrap_err();
        assert!(matches!(error, ReceiveError::Route(RouteError::TopicNotFound { .. })), "{error}");
    });
}

#[test]
fn nobody_says_no_for_a_known_broker_group_that_is_away_and_in_no_table() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        cluster.state().topics.push("u".to_owned());
        let producer = producer(&runtime, &cluster);
        producer.send(message()).await.unwrap();
        forget(&cluster, "g");
        all_replicas(&cluster, Act::Refuse);
        let sent = producer.send_async(to("u")).await;
        runtime.sleep(Duration::from_secs(5)).await;
        // It is back, and asked before it has registered.
        all_replicas(&cluster, Act::Serve);
        sent.await.unwrap();

        all_replicas(&cluster, Act::Refuse);
        let error = producer.send(to("v")).await.unwrap_err();
        assert!(matches!(&error, SendError::NotStored { reason, .. } if reason.contains("group g")), "{error}");
    });
}

#[test]
fn a_push_consumer_keeps_to_its_brokers_while_namesrvs_know_none() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        let config = PushConsumerConfig::new("g1".try_into().unwrap(), "t".try_into().unwrap());
        let consumer = client(&runtime, &cluster).push_consumer(config, async |_| ConsumeResult::Success).unwrap();
        runtime.sleep(Duration::from_secs(1)).await;
        forget(&cluster, "g");
        runtime.sleep(Duration::from_secs(100)).await;
        cluster.put("m1", None);
        runtime.sleep(Duration::from_secs(1)).await;
        assert_eq!(cluster.state().acked, ["m1/0"]);
        assert_eq!(consumer.shutdown(Duration::from_secs(1)).await, 0);
    });
}

#[test]
fn sends_leave_a_broker_group_that_does_not_serve_and_find_it_when_it_is_back() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        two_groups(&cluster);
        let producer = producer(&runtime, &cluster);
        producer.send(message()).await.unwrap();
        cluster.always("a:1", Act::Answer(Code::HaNotAvailable));
        let began = runtime.now();
        let mut slow = 0;
        for _ in 0..20 {
            let before = runtime.now();
            let receipt = producer.send(message()).await.unwrap();
            assert_eq!((receipt.broker_group.as_str(), receipt.maybe_also_in), ("h", None), "surely not in g");
            slow += usize::from(runtime.now() - before > Duration::from_secs(1));
        }
        assert_eq!(slow, 1, "only the first one waits");
        assert!(runtime.now() - began < Duration::from_secs(3));
        // One send in a while finds out.
        runtime.sleep(Duration::from_secs(6)).await;
        cluster.always("a:1", Act::Serve);
        let mut groups = Vec::new();
        for _ in 0..4 {
            groups.push(producer.send(message()).await.unwrap().broker_group);
        }
        assert!(groups.contains(&"g".to_owned()), "{groups:?}");
    });
}

#[test]
fn a_message_with_order_is_no_judgement_on_the_group_that_could_not_pass_it_on() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        two_groups(&cluster);
        let producer = producer(&runtime, &cluster);
        for address in ["a:1", "h:1"] {
            cluster.next(address, &[Act::Answer(Code::HaNotAvailable); 500]);
        }
        let error = producer.send(message().with_message_group("order-1")).await.unwrap_err();
        assert!(matches!(error, SendError::NotStored { .. }), "{error}");
        for address in ["a:1", "h:1"] {
            cluster.next(address, &[]);
            cluster.state().next.remove(address);
        }
        let mut groups = Vec::new();
        for _ in 0..4 {
            groups.push(producer.send(message()).await.unwrap().broker_group);
        }
        groups.sort();
        assert_eq!(groups, ["g", "g", "h", "h"], "in turn, as before");
    });
}

#[test]
fn topics_that_are_sent_to_in_turn_each_take_all_broker_groups_in_turn() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        two_groups(&cluster);
        cluster.state().topics.push("u".to_owned());
        let producer = producer(&runtime, &cluster);
        let mut groups = [Vec::new(), Vec::new()];
        for number in 0..8 {
            for (topic, groups) in ["t", "u"].into_iter().zip(&mut groups) {
                groups.push(producer.send(to(topic)).await.unwrap().broker_group);
            }
            if number == 3 {
                // A newer route goes on where the last one was.
                runtime.sleep(Duration::from_secs(40)).await;
            }
        }
        for groups in groups {
            assert!(groups.windows(2).all(|two| two[0] != two[1]), "{groups:?}");
        }
    });
}

#[test]
fn a_send_of_unknown_outcome_goes_elsewhere_and_says_so_or_stays() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        two_groups(&cluster);
        let producer = producer(&runtime, &cluster);
        producer.send(message()).await.unwrap();
        cluster.always("a:1", Act::BreakAfter);
        let mut told = Vec::new();
        for _ in 0..2 {
            let receipt = producer.send(message()).await.unwrap();
            assert_eq!(receipt.broker_group, "h");
            told.extend(receipt.maybe_also_in);
        }
        assert_eq!(told, ["g"], "the one that tried it");

        let config = ProducerConfig { repeats_elsewhere: false, ..ProducerConfig::default() };
        let careful = client(&runtime, &cluster).producer(config).unwrap();
        let mut unknown = 0;
        for _ in 0..2 {
            match careful.send(message()).await {
                Ok(receipt) => assert_eq!((receipt.broker_group.as_str(), receipt.maybe_also_in), ("h", None)),
                Err(error) => {
                    assert!(matches!(error, SendError::Unknown { .. }), "{error}");
                    unknown += 1;
                }
            }
        }
        assert_eq!(unknown, 1);
    });
}
