//! What a producer does about replicas that refuse, break, freeze and cannot serve.

use std::sync::Arc;
use std::time::Duration;

use flotilla_proto::status::Code;
use flotilla_runtime::Runtime;

use crate::scripted::{Act, Scripted};
use crate::virtual_time::run;
use crate::{Client, ClientConfig, OutgoingMessage, Producer, ProducerConfig, SendError};

fn client(runtime: &Runtime, cluster: &Scripted) -> Client {
    let config = ClientConfig::of_namesrv(["n:1", "n:2"]);
    Client::connect(config, runtime.clone(), Arc::new(cluster.clone())).unwrap()
}

fn producer(runtime: &Runtime, cluster: &Scripted) -> Producer {
    client(runtime, cluster).producer(ProducerConfig::default()).unwrap()
}

fn message() -> OutgoingMessage {
    OutgoingMessage::new("t".try_into().unwrap(), "body")
}

fn all_replicas(cluster: &Scripted, act: Act) {
    for address in ["a:1", "b:1", "c:1"] {
        cluster.always(address, act);
    }
}

/// All sends heard carry one id; returns it.
fn the_one_id(cluster: &Scripted) -> String {
    let mut ids: Vec<String> = cluster.heard("send").into_iter().map(|heard| heard.key).collect();
    ids.dedup();
    assert_eq!(ids.len(), 1, "one id for all attempts: {ids:?}");
    ids.remove(0)
}

#[test]
fn a_refused_connection_leads_to_the_next_replica_at_once() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        let producer = producer(&runtime, &cluster);
        cluster.always("a:1", Act::Refuse);
        cluster.always("b:1", Act::Refuse);
        let receipt = producer.send(message()).await.unwrap();
        assert_eq!((receipt.attempts, receipt.offset), (3, 0));
        assert_eq!(cluster.asked("send"), ["a:1", "b:1", "c:1"]);
        let heard = cluster.heard("send");
        assert_eq!(heard[0].at, heard[2].at, "no time is lost between the attempts");
        assert_eq!(the_one_id(&cluster), receipt.message_id.as_str());

        // The one that answered is asked first from now on.
        producer.send(message()).await.unwrap();
        assert_eq!(cluster.asked("send").last().unwrap(), "c:1");
    });
}

#[test]
fn when_all_refuse_there_are_short_pauses_until_the_deadline_and_the_message_is_surely_not_stored() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        let producer = producer(&runtime, &cluster);
        all_replicas(&cluster, Act::Refuse);
        let began = runtime.now();
        let error = producer.send(message()).await.unwrap_err();
        assert!(error.is_surely_not_stored() && matches!(error, SendError::NotStored { .. }), "{error}");
        let took = runtime.now() - began;
        assert!((Duration::from_millis(9_900)..=Duration::from_secs(10)).contains(&took), "{took:?}");
        let heard = cluster.heard("send");
        the_one_id(&cluster);
        for round in heard.chunks(3).collect::<Vec<_>>().windows(2) {
            let pause = round[1][0].at - round[0][0].at;
            let longest = Duration::from_millis(25).max((round[0][0].at - began) / 15).min(Duration::from_millis(105));
            assert!((Duration::from_millis(10)..=longest).contains(&pause), "{pause:?}, at most {longest:?}");
        }
        assert!(heard.len() < 450, "{} attempts", heard.len());
    });
}

#[test]
fn a_send_goes_through_when_the_cluster_comes_back_within_the_deadline() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        let producer = producer(&runtime, &cluster);
        all_replicas(&cluster, Act::Refuse);
        let sent = producer.send_async(message()).await;
        runtime.sleep(Duration::from_secs(3)).await;
        cluster.always("b:1", Act::Serve);
        let back = runtime.now();
        sent.await.unwrap();
        let took = runtime.now() - back;
        assert!(took < Duration::from_millis(110), "{took:?}: later than the longest pause");
    });
}

#[test]
fn a_send_whose_answer_was_lost_is_repeated_with_its_id_and_stored_once() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        let producer = producer(&runtime, &cluster);
        cluster.next("a:1", &[Act::BreakAfter]);
        let receipt = producer.send(message()).await.unwrap();
        assert_eq!(cluster.asked("send"), ["a:1", "b:1"]);
        let id = the_one_id(&cluster);
        assert_eq!(cluster.state().stored, [id]);
        assert_eq!(receipt.offset, 0, "the offset of the first storing");
    });
}

#[test]
fn after_an_attempt_that_may_have_been_executed_the_deadline_leaves_the_outcome_unknown() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        let producer = producer(&runtime, &cluster);
        all_replicas(&cluster, Act::Refuse);
        cluster.next("a:1", &[Act::BreakAfter]);
        let error = producer.send(message()).await.unwrap_err();
        assert!(matches!(error, SendError::Unknown { .. }) && !error.is_surely_not_stored(), "{error}");
        let id = the_one_id(&cluster);
        assert_eq!(cluster.state().stored, [id], "as it happens it is stored");

        // The same the other way round: nothing was stored, but nobody can know.
        cluster.next("b:1", &[Act::BreakBefore]);
        let error = producer.send(message()).await.unwrap_err();
        assert!(matches!(error, SendError::Unknown { .. }), "{error}");
        assert_eq!(cluster.state().stored.len(), 1);
    });
}

#[test]
fn a_replica_that_cannot_serve_now_is_asked_again_after_the_others() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        let producer = producer(&runtime, &cluster);
        for address in ["a:1", "b:1", "c:1"] {
            cluster.next(address, &[Act::Answer(Code::HaNotAvailable)]);
        }
        let began = runtime.now();
        let receipt = producer.send(message()).await.unwrap();
        assert_eq!(receipt.attempts, 4);
        assert_eq!(cluster.asked("send"), ["a:1", "b:1", "c:1", "a:1"]);
        assert!(runtime.now() - began < Duration::from_millis(120));
        the_one_id(&cluster);
    });
}

#[test]
fn a_broker_that_says_it_did_nothing_is_believed_and_one_that_does_not_know_too() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        let producer = producer(&runtime, &cluster);
        for code in [Code::HaNotAvailable, Code::TooManyRequests] {
            all_replicas(&cluster, Act::Answer(code));
            let error = producer.send(message()).await.unwrap_err();
            assert!(matches!(&error, SendError::NotStored { reason, .. } if reason.contains("as scripted")), "{error}");
        }
        all_replicas(&cluster, Act::Answer(Code::HaNotAvailable));
        cluster.next("a:1", &[Act::Answer(Code::ProxyTimeout)]);
        let error = producer.send(message()).await.unwrap_err();
        assert!(
            matches!(&error, SendError::Unknown { reason, .. } if reason.contains("50002 HA_NOT_AVAILABLE")),
            "{error}"
        );
    });
}

#[test]
fn a_rejection_is_told_at_once_with_code_and_text() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        let producer = producer(&runtime, &cluster);
        all_replicas(&cluster, Act::Answer(Code::MessagePropertyConflictWithType));
        let error = producer.send(message()).await.unwrap_err();
        assert!(matches!(error, SendError::Rejected { code: 40_014, .. }), "{error}");
        assert!(error.to_string().contains("40014 MESSAGE_PROPERTY_CONFLICT_WITH_TYPE): as scripted"), "{error}");
        assert_eq!(cluster.heard("send").len(), 1);
    });
}

#[test]
fn a_rejection_after_an_unknown_attempt_does_not_claim_that_nothing_was_stored() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        let producer = producer(&runtime, &cluster);
        cluster.next("a:1", &[Act::BreakAfter]);
        cluster.next("b:1", &[Act::Answer(Code::TopicNotFound)]);
        let error = producer.send(message()).await.unwrap_err();
        assert!(matches!(error, SendError::Unknown { attempts: 2, .. }), "{error}");
        assert_eq!(cluster.state().stored.len(), 1);
    });
}

#[test]
fn a_frozen_replica_costs_one_attempt_and_not_the_deadline() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        let producer = producer(&runtime, &cluster);
        cluster.always("a:1", Act::Freeze);
        let began = runtime.now();
        producer.send(message()).await.unwrap();
        let took = runtime.now() - began;
        assert!((Duration::from_millis(1_500)..Duration::from_millis(1_600)).contains(&took), "{took:?}");
        assert_eq!(cluster.asked("send"), ["a:1", "b:1"]);

        // Later sends do not pay again, also when the one that answers now goes away.
        cluster.next("b:1", &[Act::Refuse]);
        let began = runtime.now();
        producer.send(message()).await.unwrap();
        assert!(runtime.now() - began < Duration::from_millis(10));
        assert_eq!(cluster.asked("send")[2..], ["b:1", "c:1"]);
    });
}

#[test]
fn the_only_replica_gets_the_whole_request_timeout() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        cluster.state().members.truncate(1);
        let producer = producer(&runtime, &cluster);
        producer.send(message()).await.unwrap();
        assert_eq!(cluster.heard("send")[0].timeout, Duration::from_secs(3));
    });
}

#[test]
fn sends_go_to_the_leader_that_an_answer_named() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        cluster.state().leader = 2;
        let producer = producer(&runtime, &cluster);
        producer.send(message()).await.unwrap();
        assert_eq!(cluster.asked("send"), ["b:1"], "the namesrv named it");

        // It fails; another leads in a later term, which the next answer says.
        cluster.state().leader = 3;
        cluster.next("b:1", &[Act::Refuse]);
        let receipt = producer.send(message()).await.unwrap();
        assert_eq!(
            (receipt.leader, receipt.term, receipt.log_index, receipt.queue),
            (Some(3), Some(4), Some(101), Some(0))
        );
        producer.send(message()).await.unwrap();
        assert_eq!(cluster.asked("send")[1..], ["b:1", "a:1", "c:1"]);
    });
}

#[test]
fn a_message_that_no_broker_would_take_is_rejected_before_anything_is_sent() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        let producer = producer(&runtime, &cluster);
        let refused = |message| async { producer.send(message).await.unwrap_err().to_string() };
        let text = refused(OutgoingMessage::new("t".try_into().unwrap(), "")).await;
        assert!(text.contains("41302 MESSAGE_BODY_EMPTY") && text.contains("1 to 4194304 bytes"), "{text}");
        let text = refused(OutgoingMessage::new("t".try_into().unwrap(), vec![0; (4 << 20) + 1])).await;
        assert!(text.contains("4194305 bytes; at most 4194304"), "{text}");
        let text = refused(message().with_property("KEYS", "x")).await;
        assert!(text.contains("ILLEGAL_MESSAGE_PROPERTY_KEY") && text.contains("KEYS"), "{text}");
        assert!(cluster.state().heard.is_empty());
    });
}

#[test]
fn at_most_so_many_sends_are_under_way() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        let config = ProducerConfig { in_flight_max: 2, ..ProducerConfig::default() };
        let producer = client(&runtime, &cluster).producer(config).unwrap();
        all_replicas(&cluster, Act::Refuse);
        let first = producer.send_async(message()).await;
        let second = producer.send_async(message()).await;
        let third = runtime.timeout(Duration::from_secs(5), producer.send_async(message())).await;
        assert!(third.is_err(), "there is no place for a third");
        all_replicas(&cluster, Act::Serve);
        first.await.unwrap();
        second.await.unwrap();
        producer.send_async(message()).await.await.unwrap();

        // A send that finds no place until its deadline was never sent.
        all_replicas(&cluster, Act::Refuse);
        let handles = (producer.send_async(message()).await, producer.send_async(message()).await);
        let error = producer.send(message()).await.unwrap_err();
        assert!(matches!(error, SendError::NotStored { attempts: 0, .. }), "{error}");
        drop(handles);
    });
}

#[test]
fn a_dropped_handle_does_not_stop_its_send_and_flush_waits_for_it() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        let producer = producer(&runtime, &cluster);
        drop(producer.send_async(message()).await);
        producer.flush().await;
        assert_eq!(cluster.state().stored.len(), 1);
    });
}

#[test]
fn a_oneway_send_is_tried_once() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        let producer = producer(&runtime, &cluster);
        let id = producer.send_oneway(message()).await.unwrap();
        producer.flush().await;
        assert_eq!(cluster.state().stored, [id.to_string()]);
        all_replicas(&cluster, Act::Refuse);
        producer.send_oneway(message()).await.unwrap();
        producer.flush().await;
        assert_eq!(cluster.heard("send").len(), 2);
    });
}

#[test]
fn sends_at_the_same_time_ask_for_a_route_once_and_any_namesrv_will_do() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        let producer = producer(&runtime, &cluster);
        cluster.always("n:1", Act::Refuse);
        let mut handles = Vec::new();
        for _ in 0..10 {
            handles.push(producer.send_async(message()).await);
        }
        for handle in handles {
            handle.await.unwrap();
        }
        assert_eq!(cluster.asked("route"), ["n:1", "n:2"]);

        // Half a minute later it is asked for again, first where the answer came from.
        runtime.sleep(Duration::from_secs(31)).await;
        assert_eq!(cluster.asked("route")[2..], ["n:2"]);
    });
}

#[test]
fn a_failure_brings_a_newer_route_and_the_send_goes_on_with_it() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        let producer = producer(&runtime, &cluster);
        producer.send(message()).await.unwrap();
        all_replicas(&cluster, Act::Refuse);
        cluster.state().members = vec![(4, "d:1".to_owned())];
        let began = runtime.now();
        producer.send(message()).await.unwrap();
        assert_eq!(cluster.asked("send").last().unwrap(), "d:1");
        assert!(runtime.now() - began < Duration::from_millis(500));
        assert!(cluster.heard("route").len() <= 5, "failures do not flood the namesrv");
    });
}

#[test]
fn without_any_namesrv_a_known_route_lives_on_and_an_unknown_one_is_not_stored() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        let producer = producer(&runtime, &cluster);
        producer.send(message()).await.unwrap();
        cluster.always("n:1", Act::Refuse);
        cluster.always("n:2", Act::Freeze);
        runtime.sleep(Duration::from_secs(100)).await;
        producer.send(message()).await.unwrap();
        let error = producer.send(OutgoingMessage::new("u".try_into().unwrap(), "body")).await.unwrap_err();
        assert!(matches!(&error, SendError::NotStored { reason, .. } if reason.contains("n:1: not sent")), "{error}");
    });
}

#[test]
fn an_unknown_topic_is_rejected_soon_but_a_new_one_may_take_a_moment() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        let producer = producer(&runtime, &cluster);
        let began = runtime.now();
        let error = producer.send(OutgoingMessage::new("u".try_into().unwrap(), "body")).await.unwrap_err();
        assert!(matches!(error, SendError::Rejected { code: 40_402, .. }), "{error}");
        assert!(error.to_string().contains("'u'"), "{error}");
        assert!(runtime.now() - began < Duration::from_secs(1));
        let sent = producer.send_async(OutgoingMessage::new("u".try_into().unwrap(), "body")).await;
        runtime.sleep(Duration::from_millis(200)).await;
        cluster.state().topics.push("u".to_owned());
        sent.await.unwrap();
    });
}

#[test]
fn brokers_alone_are_enough_to_find_all_replicas() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        cluster.state().leader = 3;
        let config = ClientConfig::of_endpoints(["a:1", "b:1"]);
        let client = Client::connect(config, runtime.clone(), Arc::new(cluster.clone())).unwrap();
        let producer = client.producer(ProducerConfig::default()).unwrap();
        cluster.always("a:1", Act::Refuse);
        producer.send(message()).await.unwrap();
        assert_eq!(cluster.asked("route"), ["a:1", "b:1"]);
        assert_eq!(cluster.asked("send"), ["c:1"], "the broker named the leader");
        let error = producer.send(OutgoingMessage::new("u".try_into().unwrap(), "body")).await.unwrap_err();
        assert!(matches!(error, SendError::Rejected { code: 40_402, .. }), "{error}");
    });
}
