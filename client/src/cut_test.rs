//! Clients that are cut off and come back, and clients that are told of two leaders.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use flotilla_proto::status::Code;
use flotilla_runtime::Runtime;

use crate::scripted::{Act, Scripted};
use crate::virtual_time::run;
use crate::{Client, ClientConfig, ConsumeResult, OutgoingMessage, ProducerConfig, PushConsumerConfig};

const MINUTE: Duration = Duration::from_secs(60);
const EVERYBODY: [&str; 5] = ["a:1", "b:1", "c:1", "n:1", "m:1"];

fn client(runtime: &Runtime, cluster: &Scripted) -> Client {
    let config = ClientConfig::of_namesrv(["n:1", "m:1"]);
    Client::connect(config, runtime.clone(), Arc::new(cluster.clone())).unwrap()
}

/// C08: cut off from everybody for minutes, again and again, a push consumer goes on by itself each time, and tries no harder
/// in the fiftieth cut than in the first.
#[test]
fn a_consumer_goes_on_after_each_of_fifty_cuts() {
    for (act, cut, cycles) in
        [(Act::Freeze, 2 * MINUTE, 50), (Act::Refuse, 2 * MINUTE, 10), (Act::Freeze, 10 * MINUTE, 5)]
    {
        run(|runtime| async move {
            let cluster = Scripted::new(&runtime);
            let config = PushConsumerConfig {
                concurrency: 4,
                ..PushConsumerConfig::new("g1".try_into().unwrap(), "t".try_into().unwrap())
            };
            let consumer = client(&runtime, &cluster).push_consumer(config, async |_| ConsumeResult::Success).unwrap();
            let mut tries = Vec::new();
            for cycle in 0..cycles {
                let before = cluster.heard("receive").len();
                EVERYBODY.iter().for_each(|address| cluster.always(address, act));
                runtime.sleep(cut).await;
                tries.push(cluster.heard("receive").len() - before);
                EVERYBODY.iter().for_each(|address| cluster.always(address, Act::Serve));
                let healed = runtime.now();
                for number in 0..100 {
                    cluster.put(&format!("m{cycle}-{number}"), None);
                }
                while cluster.state().acked.len() < (cycle + 1) * 100 {
                    runtime.sleep(Duration::from_millis(100)).await;
                    let after = runtime.now() - healed;
                    assert!(after < Duration::from_secs(30), "{act:?}, cycle {cycle}: stands still {after:?} after");
                }
            }
            let (first, most) = (tries[1], tries.iter().copied().max().unwrap());
            assert!(most <= first * 2 + 10, "{act:?}: {first} tries in an early cut, {most} in a later one");
            // Three replicas, a poller or more.
            assert!(first < 40 * usize::try_from(cut.as_secs()).unwrap(), "{act:?}: {first} tries in {cut:?}");
            assert_eq!(consumer.shutdown(MINUTE).await, 0);
            let acked: BTreeSet<String> = cluster.state().acked.iter().cloned().collect();
            assert_eq!(acked.len(), cycles * 100);
        });
    }
}

/// C08: while every connection is refused, the pauses between tries grow: a consumer that waits for its brokers to come back is
/// no load, neither for them nor for its own machine.
#[test]
fn a_consumer_whose_connections_are_refused_is_no_load() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        let config = PushConsumerConfig::new("g1".try_into().unwrap(), "t".try_into().unwrap());
        let _consumer = client(&runtime, &cluster).push_consumer(config, async |_| ConsumeResult::Success).unwrap();
        runtime.sleep(MINUTE).await;
        EVERYBODY.iter().for_each(|address| cluster.always(address, Act::Refuse));
        let mut seconds = Vec::new();
        for _ in 0..10 * 60 {
            let before = cluster.heard("receive").len();
            runtime.sleep(Duration::from_secs(1)).await;
            seconds.push(cluster.heard("receive").len() - before);
        }
        // Three replicas each time. A poll gives up after 15 s, and the next one begins with short pauses.
        let average = seconds.iter().sum::<usize>() / seconds.len();
        seconds.sort_unstable();
        let (median, most) = (seconds[seconds.len() / 2], seconds[seconds.len() - 1]);
        assert!(average <= 36, "{average} tries a second");
        assert!(median <= 33, "{median} tries in half of all seconds");
        assert!(most <= 120, "{most} tries in the busiest second");
    });
}

/// B07: one namesrv hears only the leader of before, the other one the new leader: sends settle on the new one, and do not
/// go back when that fails for once.
#[test]
fn a_client_that_is_told_of_two_leaders_keeps_to_the_newer_one() {
    for told_first in [true, false] {
        run(|runtime| async move {
            let cluster = Scripted::new(&runtime);
            {
                let mut state = cluster.state();
                let (old, new) = if told_first { ("n:1", "m:1") } else { ("m:1", "n:1") };
                state.told.insert(old.to_owned(), (5, 1));
                state.told.insert(new.to_owned(), (6, 2));
                // What acknowledgements say.
                (state.term, state.leader) = (6, 2);
            }
            // Cut off from the others, it can do nothing, and says so.
            cluster.always("a:1", Act::Answer(Code::HaNotAvailable));
            let producer = client(&runtime, &cluster).producer(ProducerConfig::default()).unwrap();
            let began = runtime.now();
            for number in 0..300 {
                if number % 10 == 9 {
                    cluster.next("b:1", &[Act::BreakBefore]);
                }
                let sent = producer.send(OutgoingMessage::new("t".try_into().unwrap(), "body")).await;
                assert_eq!(sent.unwrap().leader, Some(2));
                runtime.sleep(Duration::from_secs(1)).await;
            }
            // Where each send went first.
            let mut firsts = cluster.heard("send");
            firsts.dedup_by_key(|heard| heard.key.clone());
            assert_eq!(firsts.len(), 300);
            firsts.retain(|heard| heard.at > began + Duration::from_secs(15) && heard.address == "a:1");
            assert_eq!(firsts, [], "sends went to the leader of an older term first");
        });
    }
}
