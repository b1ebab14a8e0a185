//! What consumers do: receive under one attempt id, acknowledge until it is known, bound their listeners.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use flotilla_proto::status::Code;
use flotilla_runtime::Runtime;

use crate::scripted::{Act, Scripted};
use crate::virtual_time::run;
use crate::{
    Client, ClientConfig, ConsumeResult, DeliveryError, PushConsumerConfig, ReceiveError, SimpleConsumer,
    SimpleConsumerConfig,
};

const MINUTE: Duration = Duration::from_secs(60);

fn client(runtime: &Runtime, cluster: &Scripted) -> Client {
    Client::connect(ClientConfig::of_namesrv(["n:1"]), runtime.clone(), Arc::new(cluster.clone())).unwrap()
}

fn simple(runtime: &Runtime, cluster: &Scripted) -> SimpleConsumer {
    let config = SimpleConsumerConfig::new("g1".try_into().unwrap(), "t".try_into().unwrap());
    client(runtime, cluster).simple_consumer(config).unwrap()
}

fn push(concurrency: usize) -> PushConsumerConfig {
    PushConsumerConfig { concurrency, ..PushConsumerConfig::new("g1".try_into().unwrap(), "t".try_into().unwrap()) }
}

#[test]
fn a_receive_whose_answer_was_lost_is_repeated_with_its_attempt_id_and_brings_the_same_messages() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        let consumer = simple(&runtime, &cluster);
        cluster.put("m1", None);
        cluster.put("m2", None);
        cluster.next("a:1", &[Act::BreakAfter]);
        let messages = consumer.receive(2, MINUTE).await.unwrap();
        assert_eq!(messages.iter().map(|message| message.id.as_str()).collect::<Vec<_>>(), ["m1", "m2"]);
        let heard = cluster.heard("receive");
        assert_eq!(heard.len(), 2);
        assert_eq!(heard[0].key, heard[1].key, "the same attempt id");
        assert_eq!((heard[0].key.len(), &heard[0].key[14..15]), (36, "4"));
        assert_ne!(heard[0].address, heard[1].address);
    });
}

#[test]
fn an_empty_topic_is_polled_in_slices_until_the_await_time_is_over() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        let consumer = simple(&runtime, &cluster);
        let began = runtime.now();
        assert!(consumer.receive(1, MINUTE).await.unwrap().is_empty());
        let took = runtime.now() - began;
        assert!((Duration::from_secs(20)..Duration::from_millis(20_100)).contains(&took), "{took:?}");
        let heard = cluster.heard("receive");
        assert!((4..=5).contains(&heard.len()), "{}", heard.len());
        assert_ne!(heard[0].key, heard[1].key, "an answered attempt is not repeated");
    });
}

#[test]
fn a_replica_that_freezes_during_a_poll_costs_one_slice() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        let consumer = simple(&runtime, &cluster);
        cluster.put("m1", None);
        cluster.always("a:1", Act::Freeze);
        let began = runtime.now();
        assert_eq!(consumer.receive(1, MINUTE).await.unwrap().len(), 1);
        assert!(runtime.now() - began < Duration::from_secs(7));
    });
}

#[test]
fn refusals_and_bad_arguments_are_told_with_the_value() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        let consumer = simple(&runtime, &cluster);
        let error = consumer.receive(33, MINUTE).await.unwrap_err();
        assert_eq!(error.to_string(), "max is 33, allowed is 1 to 32");
        let error = consumer.receive(1, Duration::ZERO).await.unwrap_err();
        assert_eq!(error.to_string(), "invisible is 0ns, allowed is above 0s up to 43200s");
        cluster.put("m1", None);
        cluster.next("a:1", &[Act::Answer(Code::ConsumerGroupNotFound)]);
        let error = consumer.receive(1, MINUTE).await.unwrap_err();
        assert!(matches!(error, ReceiveError::Rejected { code: 40_403, .. }), "{error}");
    });
}

#[test]
fn ack_and_change_of_the_invisible_time_are_repeated_until_they_are_known_to_be_done() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        let consumer = simple(&runtime, &cluster);
        cluster.put("m1", None);
        let message = consumer.receive(1, MINUTE).await.unwrap().remove(0);
        cluster.next("a:1", &[Act::BreakAfter]);
        consumer.change_invisible(&message, Duration::from_secs(5)).await.unwrap();
        assert_eq!(message.receipt_handle(), "m1/1");
        assert_eq!(cluster.state().hidden, [("m1/0".to_owned(), 5_000), ("m1/0".to_owned(), 5_000)]);
        cluster.next("b:1", &[Act::BreakBefore]);
        consumer.ack(&message).await.unwrap();
        assert_eq!(cluster.state().acked, ["m1/1"], "the ack uses the new handle");

        for address in ["a:1", "b:1", "c:1"] {
            cluster.always(address, Act::Answer(Code::InvalidReceiptHandle));
        }
        let error = consumer.ack(&message).await.unwrap_err();
        assert!(matches!(error, DeliveryError::Over { .. }), "{error}");
        for address in ["a:1", "b:1", "c:1"] {
            cluster.always(address, Act::Refuse);
        }
        let error = consumer.ack(&message).await.unwrap_err();
        assert!(matches!(error, DeliveryError::Unknown { .. }), "{error}");
    });
}

#[test]
fn many_acks_go_in_one_call_and_only_those_that_are_open_go_again() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        let consumer = simple(&runtime, &cluster);
        ["m1", "m2", "m3"].iter().for_each(|id| cluster.put(id, None));
        let messages = consumer.receive(3, MINUTE).await.unwrap();
        let answers = [("m2/0", Code::InvalidReceiptHandle), ("m3/0", Code::InternalServerError)];
        let answers = answers.map(|(handle, code)| (handle.to_owned(), [code].into()));
        cluster.state().ack_answers.extend(answers);
        let results = consumer.ack_all(&messages).await;
        assert_eq!((results[0].clone(), results[2].clone()), (Ok(()), Ok(())));
        assert!(matches!(results[1], Err(DeliveryError::Over { .. })), "{results:?}");
        let heard: Vec<String> = cluster.heard("ack").into_iter().map(|heard| heard.key).collect();
        assert_eq!(heard, ["m1/0 m2/0 m3/0", "m3/0"]);
        assert_eq!(cluster.state().acked, ["m1/0", "m3/0"]);
        assert_eq!(consumer.ack_all(&[]).await, []);

        // A call that was refused as a whole is the end of each; one that nobody serves leaves each open.
        for (act, is_over) in [(Act::Answer(Code::InvalidReceiptHandle), true), (Act::Refuse, false)] {
            ["a:1", "b:1", "c:1"].iter().for_each(|address| cluster.always(address, act));
            let results = consumer.ack_all(&messages).await;
            assert_eq!(results.len(), 3);
            for result in results {
                assert_eq!(matches!(result, Err(DeliveryError::Over { .. })), is_over, "{result:?}");
                assert_eq!(matches!(result, Err(DeliveryError::Unknown { .. })), !is_over, "{result:?}");
            }
        }
    });
}

#[test]
fn no_more_listeners_run_than_allowed_and_nothing_is_fetched_without_a_free_one() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        for number in 0..20 {
            cluster.put(&format!("m{number}"), None);
        }
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (now, seen, time) = (running.clone(), most.clone(), runtime.clone());
        let consumer = client(&runtime, &cluster).push_consumer(push(3), move |_| {
            let (now, seen, time) = (now.clone(), seen.clone(), time.clone());
            async move {
                seen.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                time.sleep(Duration::from_millis(100)).await;
                now.fetch_sub(1, Ordering::SeqCst);
                ConsumeResult::Success
            }
        });
        let consumer = consumer.unwrap();
        runtime.sleep(Duration::from_millis(50)).await;
        assert_eq!(cluster.state().waiting.len(), 17, "the rest is left for others");
        runtime.sleep(Duration::from_secs(3)).await;
        assert_eq!(cluster.state().acked.len(), 20);
        assert_eq!(most.load(Ordering::SeqCst), 3);
        assert_eq!(consumer.shutdown(MINUTE).await, 0);
    });
}

#[test]
fn a_failed_message_is_hidden_for_its_retry_delay_and_a_panic_counts_as_failure() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        cluster.put("bad", None);
        cluster.put("panic", None);
        cluster.put("good", None);
        let consumer = client(&runtime, &cluster)
            .push_consumer(push(5), |message| async move {
                match message.id.as_str() {
                    "good" => ConsumeResult::Success,
                    "bad" => ConsumeResult::Failure,
                    _ => std::panic::resume_unwind(Box::new("as scripted")),
                }
            })
            .unwrap();
        runtime.sleep(Duration::from_secs(1)).await;
        assert_eq!(cluster.state().acked, ["good/0"]);
        let mut hidden = cluster.state().hidden.clone();
        hidden.sort();
        assert_eq!(hidden, [("bad/0".to_owned(), 1_000), ("panic/0".to_owned(), 1_000)]);
        assert_eq!(consumer.shutdown(MINUTE).await, 0);
    });
}

#[test]
fn messages_of_one_group_are_handed_over_in_order_and_a_failure_holds_the_rest_back() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        for (id, group) in [("a1", "a"), ("b1", "b"), ("a2", "a"), ("a3", "a"), ("b2", "b")] {
            cluster.put(id, Some(group));
        }
        let called = Arc::new(Mutex::new(Vec::new()));
        let (seen, time) = (called.clone(), runtime.clone());
        let consumer = client(&runtime, &cluster)
            .push_consumer(push(10), move |message| {
                let (seen, time) = (seen.clone(), time.clone());
                async move {
                    seen.lock().unwrap().push(message.id.to_string());
                    time.sleep(Duration::from_millis(10)).await;
                    if message.id.as_str() == "a2" { ConsumeResult::Failure } else { ConsumeResult::Success }
                }
            })
            .unwrap();
        runtime.sleep(Duration::from_secs(1)).await;
        assert_eq!(*called.lock().unwrap(), ["a1", "b1", "a2", "b2"], "a3 must not overtake a2");
        let mut acked = cluster.state().acked.clone();
        acked.sort();
        assert_eq!(acked, ["a1/0", "b1/0", "b2/0"]);
        assert_eq!(cluster.state().hidden, [("a2/0".to_owned(), 1_000), ("a3/0".to_owned(), 1_000)]);
        assert_eq!(consumer.shutdown(MINUTE).await, 0);
    });
}

#[test]
fn a_long_listener_keeps_its_message_hidden_and_acks_with_the_newest_handle() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        cluster.put("m1", None);
        let time = runtime.clone();
        let consumer = client(&runtime, &cluster)
            .push_consumer(push(1), move |_| {
                let time = time.clone();
                async move {
                    time.sleep(Duration::from_secs(75)).await;
                    ConsumeResult::Success
                }
            })
            .unwrap();
        runtime.sleep(Duration::from_secs(80)).await;
        assert_eq!(cluster.state().hidden, [("m1/0".to_owned(), 60_000), ("m1/1".to_owned(), 60_000)]);
        assert_eq!(cluster.state().acked, ["m1/2"]);
        assert_eq!(consumer.shutdown(MINUTE).await, 0);
    });
}

#[test]
fn a_listener_that_ends_during_a_renewal_settles_with_the_handle_that_the_renewal_gave() {
    run(|runtime| async move {
        for (result, settled) in [(ConsumeResult::Success, "acked"), (ConsumeResult::Failure, "hidden")] {
            let cluster = Scripted::new(&runtime);
            cluster.put("m1", None);
            let (time, script) = (runtime.clone(), cluster.clone());
            let consumer = client(&runtime, &cluster)
                .push_consumer(push(1), move |_| {
                    let (time, script) = (time.clone(), script.clone());
                    async move {
                        time.sleep(Duration::from_secs(29)).await;
                        for address in ["a:1", "b:1", "c:1"] {
                            script.always(address, Act::AnswerLate);
                        }
                        // The renewal is done after 30 s and answered after 31 s.
                        time.sleep(Duration::from_millis(1_500)).await;
                        result
                    }
                })
                .unwrap();
            runtime.sleep(Duration::from_secs(40)).await;
            assert_eq!(cluster.state().hidden[0], ("m1/0".to_owned(), 60_000));
            match settled {
                "acked" => assert_eq!(cluster.state().acked, ["m1/1"], "the handle before is stale"),
                _ => assert_eq!(cluster.state().hidden[1..], [("m1/1".to_owned(), 1_000)]),
            }
            assert_eq!(consumer.shutdown(MINUTE).await, 0);
        }
    });
}

#[test]
fn a_renewal_that_finds_no_broker_delays_the_ack_by_the_send_deadline_at_most() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        cluster.put("m1", None);
        let (time, script) = (runtime.clone(), cluster.clone());
        let consumer = client(&runtime, &cluster)
            .push_consumer(push(1), move |_| {
                let (time, script) = (time.clone(), script.clone());
                async move {
                    time.sleep(Duration::from_secs(29)).await;
                    for address in ["a:1", "b:1", "c:1"] {
                        script.always(address, Act::Refuse);
                    }
                    time.sleep(Duration::from_secs(2)).await;
                    ConsumeResult::Success
                }
            })
            .unwrap();
        runtime.sleep(Duration::from_millis(40_500)).await;
        for address in ["a:1", "b:1", "c:1"] {
            cluster.always(address, Act::Serve);
        }
        runtime.sleep(Duration::from_secs(1)).await;
        assert_eq!(cluster.state().acked, ["m1/0"]);
        assert_eq!(consumer.shutdown(MINUTE).await, 0);
    });
}

#[test]
fn shutdown_fetches_no_more_and_waits_for_the_listeners_and_their_acks() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        cluster.put("m1", None);
        cluster.put("m2", None);
        let time = runtime.clone();
        let consumer = client(&runtime, &cluster)
            .push_consumer(push(2), move |_| {
                let time = time.clone();
                async move {
                    time.sleep(Duration::from_secs(2)).await;
                    ConsumeResult::Success
                }
            })
            .unwrap();
        runtime.sleep(Duration::from_secs(1)).await;
        cluster.put("m3", None);
        let stopping = runtime.now();
        assert_eq!(consumer.shutdown(Duration::from_secs(10)).await, 0);
        assert!(runtime.now() - stopping < Duration::from_millis(1_100));
        assert_eq!(cluster.state().acked.len(), 2);
        runtime.sleep(MINUTE).await;
        assert_eq!(cluster.state().waiting.len(), 1, "the third is left alone");
    });
}

#[test]
fn shutdown_cuts_off_a_listener_that_does_not_end_and_says_so() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        cluster.put("m1", None);
        let consumer = client(&runtime, &cluster).push_consumer(push(2), |_| std::future::pending()).unwrap();
        runtime.sleep(Duration::from_secs(1)).await;
        let stopping = runtime.now();
        assert_eq!(consumer.shutdown(Duration::from_secs(5)).await, 1);
        assert_eq!(runtime.now() - stopping, Duration::from_secs(5));
        runtime.sleep(MINUTE).await;
        assert!(cluster.state().acked.is_empty());
        assert!(cluster.state().hidden.is_empty(), "nobody renews it any more");
    });
}

#[test]
fn polling_goes_on_when_the_topic_is_made_later_and_when_brokers_come_back() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        cluster.state().topics.clear();
        let consumer = client(&runtime, &cluster).push_consumer(push(2), async |_| ConsumeResult::Success).unwrap();
        runtime.sleep(Duration::from_secs(3)).await;
        cluster.state().topics.push("t".to_owned());
        for address in ["a:1", "b:1", "c:1"] {
            cluster.always(address, Act::Refuse);
        }
        runtime.sleep(Duration::from_secs(30)).await;
        for address in ["a:1", "b:1", "c:1"] {
            cluster.always(address, Act::Serve);
        }
        cluster.put("m1", None);
        runtime.sleep(Duration::from_secs(3)).await;
        assert_eq!(cluster.state().acked, ["m1/0"]);
        assert_eq!(consumer.shutdown(MINUTE).await, 0);
    });
}

#[test]
fn the_last_consumer_of_a_group_says_good_bye_and_no_other_one_does() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        let client = client(&runtime, &cluster);
        let simple =
            || client.simple_consumer(SimpleConsumerConfig::new("g1".try_into().unwrap(), "t".try_into().unwrap()));
        let consumer = client.push_consumer(push(2), async |_| ConsumeResult::Success).unwrap();
        let (first, second) = (simple().unwrap(), simple().unwrap());
        runtime.sleep(Duration::from_secs(1)).await;
        drop(first);
        second.shutdown(MINUTE).await;
        assert!(cluster.heard("good-bye").is_empty(), "the push consumer goes on");
        cluster.next("a:1", &[Act::Refuse]);
        assert_eq!(consumer.shutdown(MINUTE).await, 0);
        let heard = cluster.heard("good-bye");
        assert_eq!(heard.iter().map(|call| call.key.as_str()).collect::<Vec<_>>(), ["g1"; 2], "one was refused");
        assert_ne!(heard[0].address, heard[1].address);
    });
}

#[test]
fn a_good_bye_that_nobody_hears_takes_a_second_at_most_and_never_more_than_allowed() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        for (timeout, most) in
            [(MINUTE, Duration::from_secs(1)), (Duration::from_millis(200), Duration::from_millis(200))]
        {
            let consumer = simple(&runtime, &cluster);
            // So that it knows the route.
            cluster.put("m", None);
            assert_eq!(consumer.receive(1, MINUTE).await.unwrap().len(), 1);
            for address in ["a:1", "b:1", "c:1"] {
                cluster.always(address, Act::Freeze);
            }
            let began = runtime.now();
            consumer.shutdown(timeout).await;
            assert!(runtime.now() - began <= most, "{:?}", runtime.now() - began);
            for address in ["a:1", "b:1", "c:1"] {
                cluster.always(address, Act::Serve);
            }
        }
    });
}
