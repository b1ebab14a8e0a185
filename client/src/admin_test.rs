//! What the operator's client does about replicas that fail.

use std::sync::Arc;

use flotilla_runtime::Runtime;

use crate::scripted::{Act, Scripted};
use crate::virtual_time::run;
use crate::{AdminClient, AdminError, Client, ClientConfig, TopicSpec};

fn admin(runtime: &Runtime, cluster: &Scripted, config: ClientConfig) -> AdminClient {
    Client::connect(config, runtime.clone(), Arc::new(cluster.clone())).unwrap().admin()
}

fn spec(name: &str) -> TopicSpec {
    TopicSpec::new(name.try_into().unwrap(), 4)
}

#[test]
fn a_topic_is_made_through_whichever_replica_serves() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        for config in [ClientConfig::of_namesrv(["n:1"]), ClientConfig::of_endpoints(["a:1", "b:1"])] {
            let admin = admin(&runtime, &cluster, config);
            cluster.always("a:1", Act::Refuse);
            assert_eq!(admin.create_topic(&spec("new")).await, Ok(cluster.heard("create topic").len() > 2));
        }
        assert_eq!(cluster.asked("create topic").last().unwrap(), "b:1");
    });
}

#[test]
fn a_removal_that_was_done_but_not_answered_counts_as_done() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        let admin = admin(&runtime, &cluster, ClientConfig::of_namesrv(["n:1"]));
        let name = "t".try_into().unwrap();
        cluster.next("a:1", &[Act::Serve, Act::BreakAfter]);
        assert_eq!(admin.delete_topic(&name).await, Ok(()));
        assert_eq!(cluster.heard("delete topic").len(), 2);
        let error = admin.delete_topic(&name).await.unwrap_err();
        assert!(matches!(error, AdminError::Rejected { code: 40_402, .. }), "{error}");
    });
}

#[test]
fn the_status_has_an_error_in_the_place_of_a_replica_that_cannot_be_asked() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        let admin = admin(&runtime, &cluster, ClientConfig::of_namesrv(["n:1"]));
        cluster.always("b:1", Act::Refuse);
        let replicas = admin.cluster_status().await.unwrap();
        let asked: Vec<(&str, bool)> =
            replicas.iter().map(|from| (from.address.as_str(), from.answer.is_ok())).collect();
        assert_eq!(asked, [("a:1", true), ("b:1", false), ("c:1", true)]);
        assert_eq!(admin.brokers().await.unwrap().len(), 3);
    });
}

#[test]
fn without_any_broker_the_error_names_who_was_asked() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        let admin = admin(&runtime, &cluster, ClientConfig::of_namesrv(["n:1"]));
        cluster.always("n:1", Act::Refuse);
        let error = admin.create_topic(&spec("new")).await.unwrap_err();
        assert!(matches!(&error, AdminError::Unavailable { reason } if reason.contains("n:1: not sent")), "{error}");
    });
}

#[test]
fn a_topic_is_made_in_every_broker_group_or_in_those_that_are_named() {
    run(|runtime| async move {
        let cluster = Scripted::new(&runtime);
        {
            let mut state = cluster.state();
            state.members.truncate(1);
            state.second_group = Some(("h".to_owned(), "h:1".to_owned()));
        }
        let admin = admin(&runtime, &cluster, ClientConfig::of_namesrv(["n:1"]));
        assert_eq!(admin.broker_groups().await.unwrap(), ["g", "h"]);
        admin.create_topic(&spec("everywhere")).await.unwrap();
        assert_eq!(cluster.asked("create topic"), ["a:1", "h:1"]);
        admin.create_topic_in(&spec("there"), &["h".to_owned()]).await.unwrap();
        admin.in_group("g").create_topic(&spec("here")).await.unwrap();
        assert_eq!(cluster.asked("create topic")[2..], ["h:1", "a:1"]);
        // What is about one group says so.
        let error = admin.transfer_leader(None, std::time::Duration::from_secs(1)).await.unwrap_err();
        assert!(matches!(&error, AdminError::Rejected { message, .. } if message.contains("g, h")), "{error}");
        let error = admin.in_group("x").create_topic(&spec("nowhere")).await.unwrap_err();
        assert!(error.to_string().contains("broker group 'x' is not known, there are: g, h"), "{error}");
    });
}
