//! Each nemesis undoes what it does, on processes that stand in for brokers: they say that they are ready, and wait.

use std::path::Path;

use flotilla_client::{Client, ClientConfig};
use flotilla_proto::client::TonicConnector;
use flotilla_runtime::Runtime;

use super::*;
use crate::cluster::links::{Door, Traffic};
use crate::cluster::{ClusterView, LocalCluster, LocalClusterConfig};

/// Makes a script of `tests/stand-in` the program that is started from now on. Never written here: a file that any
/// process still holds open for writing cannot be run.
fn use_program(dir: &Path, script: &str) {
    let (program, link) = (Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stand-in").join(script), dir.join("next"));
    std::os::unix::fs::symlink(program, &link).unwrap();
    std::fs::rename(link, dir.join("flotilla")).unwrap();
}

/// Three stand-ins with links between them. Nobody leads, so only what needs no leader can strike by itself.
async fn field(dir: &Path) -> Field {
    let (program, runtime) = (dir.join("flotilla"), Runtime::tokio());
    use_program(dir, "lives.sh");
    let config = LocalClusterConfig {
        program,
        cluster: "test",
        dir: dir.to_owned(),
        replicas: 3,
        segment_bytes: 1 << 20,
        data_quota_bytes: 1 << 30,
        log_level: "warn".to_owned(),
        has_links: true,
    };
    let cluster = LocalCluster::start(config, runtime.clone()).await.unwrap();
    let view = ClusterView::new(&cluster.client_addresses(), &TonicConnector::new(runtime.clone()), &runtime);
    let client = Client::tonic(ClientConfig::of_namesrv([cluster.namesrv_address()])).unwrap();
    Field::new(cluster, view, client, runtime)
}

fn is_whole(field: &mut Field) -> bool {
    field.cluster.check_alive().is_ok()
        && field.cluster.dead_nodes().is_empty()
        && field.cluster.paused_nodes().is_empty()
        && field.cluster.links().unwrap().is_whole()
}

#[tokio::test]
async fn faults_on_processes_strike_and_heal() {
    let dir = tempfile::tempdir().unwrap();
    let mut field = field(dir.path()).await;
    assert!(is_whole(&mut field));
    let all = Victim::All;

    let kill = Fault::Kill(Kill { victim: all.clone() });
    assert_eq!(kill.hurt(&mut field).await.unwrap(), [1, 2, 3]);
    assert_eq!(field.cluster.dead_nodes(), [1, 2, 3]);
    kill.heal(&mut field, &[1, 2, 3]).await.unwrap();
    assert!(is_whole(&mut field));

    let pause = Fault::Pause(Pause { victim: all });
    pause.hurt(&mut field).await.unwrap();
    assert_eq!(field.cluster.paused_nodes(), [1, 2, 3]);
    pause.heal(&mut field, &[1, 2, 3]).await.unwrap();
    assert!(is_whole(&mut field));

    let crash_loop = Fault::CrashLoop(CrashLoop { node: 2, lives_ms: vec![1, 30, 1] });
    assert_eq!(crash_loop.hurt(&mut field).await.unwrap(), [2]);
    assert_eq!(field.cluster.dead_nodes(), [2]);
    crash_loop.heal(&mut field, &[2]).await.unwrap();
    assert!(is_whole(&mut field));

    // A restart that stopped half-way: one is down, the others had or will have their turn.
    field.cluster.kill(3).await.unwrap();
    Fault::RollingRestart(RollingRestart { first: 1, replicas: 3 }).heal(&mut field, &[]).await.unwrap();
    assert!(is_whole(&mut field));
    field.cluster.end().await.unwrap();
}

#[tokio::test]
async fn faults_on_the_network_heal_what_they_hurt() {
    let dir = tempfile::tempdir().unwrap();
    let mut field = field(dir.path()).await;
    for style in [Style::Silent, Style::Reset] {
        let halves = Fault::Partition(Partition { border: Border::Halves { minority: vec![2] }, style });
        assert_eq!(halves.hurt(&mut field).await.unwrap(), [2]);
        assert!(!is_whole(&mut field), "{style:?}");
        halves.heal(&mut field, &[2]).await.unwrap();
        assert!(is_whole(&mut field), "{style:?}");
    }

    // These strike around the leader; here it is replica 1 by decree.
    for from_leader in [true, false] {
        let (from, to) = if from_leader { (1, 3) } else { (3, 1) };
        field.cluster.links().unwrap().set_traffic(from, to, Traffic::Held);
        let one_way = Fault::OneWay(OneWay { from_leader, pick: None });
        one_way.heal(&mut field, &[1, 2, 3]).await.unwrap();
        assert!(is_whole(&mut field), "from leader: {from_leader}");
    }
    field.cluster.links().unwrap().set_door(1, 2, Door::Frozen);
    Fault::FreezeLink(FreezeLink { of_leader: true, pick: 0 }).heal(&mut field, &[1, 2]).await.unwrap();
    assert!(is_whole(&mut field));
    let delayed = Traffic::Delayed(std::time::Duration::from_millis(9));
    field.cluster.links().unwrap().set_traffic(1, 2, delayed);
    field.cluster.links().unwrap().set_traffic(2, 1, delayed);
    Fault::SlowLink(SlowLink { delay_ms: 9, pick: Some(0) }).heal(&mut field, &[1, 2]).await.unwrap();
    assert!(is_whole(&mut field));
    field.cluster.end().await.unwrap();
}

#[tokio::test]
async fn the_final_heal_mends_any_mixture() {
    let dir = tempfile::tempdir().unwrap();
    let mut field = field(dir.path()).await;
    field.cluster.kill(1).await.unwrap();
    field.cluster.pause(2).unwrap();
    field.cluster.links().unwrap().set_door(3, 1, Door::Closed);
    field.cluster.links().unwrap().set_traffic(2, 3, Traffic::Held);
    field.heal_all().await.unwrap();
    assert!(is_whole(&mut field));
    field.cluster.end().await.unwrap();
}

#[tokio::test]
async fn a_replica_that_ends_by_itself_is_noticed_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut field = field(dir.path()).await;
    assert!(field.cluster.take_fallen().is_empty());
    use_program(dir.path(), "ends.sh");
    field.cluster.kill(2).await.unwrap();
    field.cluster.restart(2).await.unwrap();
    field.runtime.sleep(std::time::Duration::from_millis(300)).await;
    let fallen = field.cluster.take_fallen();
    assert_eq!(fallen.iter().map(|(node, _)| *node).collect::<Vec<_>>(), [2]);
    assert!(fallen[0].1.to_string().contains("70"), "{}", fallen[0].1);
    assert!(field.cluster.take_fallen().is_empty());
    assert_eq!(field.cluster.dead_nodes(), [2]);
    field.cluster.end().await.unwrap();
}
