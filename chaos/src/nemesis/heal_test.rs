//! Each nemesis undoes what it does, on processes that stand in for brokers: they say that they are ready, and wait.

use std::path::Path;

use flotilla_client::{Client, ClientConfig};
use flotilla_proto::client::TonicConnector;
use flotilla_runtime::Runtime;

use super::*;
use crate::cluster::links::{Door, Traffic};
use crate::cluster::{ClusterView, LocalCluster, LocalClusterConfig, Rig};

/// Makes a script of `tests/stand-in` the program that is started from now on. Never written here: a file that any
/// process still holds open for writing cannot be run.
pub(crate) fn use_program(dir: &Path, script: &str) {
    let (program, link) = (Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stand-in").join(script), dir.join("next"));
    std::os::unix::fs::symlink(program, &link).unwrap();
    std::fs::rename(link, dir.join("flotilla")).unwrap();
}

/// Three stand-ins with proxies between them. Nobody leads, so only what needs no leader can strike by itself.
pub(crate) async fn field(dir: &Path) -> Field {
    field_on(dir, Rig::default()).await
}

async fn field_on(dir: &Path, rig: Rig) -> Field {
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
    let cluster = LocalCluster::start_rigged(config, &rig, runtime.clone()).await.unwrap();
    let view = ClusterView::new(&cluster.client_addresses(), &TonicConnector::new(runtime.clone()), &runtime);
    let client = Client::tonic(ClientConfig::of_namesrv([cluster.namesrv_address()])).unwrap();
    Field::new(cluster, view, client, runtime)
}

fn is_whole(field: &mut Field) -> bool {
    field.cluster.check_alive().is_ok()
        && field.cluster.dead_nodes().is_empty()
        && field.cluster.paused_nodes().is_empty()
        && field.cluster.network().unwrap().is_whole()
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
        field.cluster.network().unwrap().set_traffic(from, to, Traffic::Held);
        let one_way = Fault::OneWay(OneWay { from_leader, pick: None });
        one_way.heal(&mut field, &[1, 2, 3]).await.unwrap();
        assert!(is_whole(&mut field), "from leader: {from_leader}");
    }
    field.cluster.network().unwrap().set_door(1, 2, Door::Frozen);
    Fault::FreezeLink(FreezeLink { of_leader: true, pick: 0 }).heal(&mut field, &[1, 2]).await.unwrap();
    assert!(is_whole(&mut field));
    let delayed = Traffic::Delayed(std::time::Duration::from_millis(9));
    field.cluster.network().unwrap().set_traffic(1, 2, delayed);
    field.cluster.network().unwrap().set_traffic(2, 1, delayed);
    Fault::SlowLink(SlowLink { delay_ms: 9, pick: Some(0) }).heal(&mut field, &[1, 2]).await.unwrap();
    assert!(is_whole(&mut field));
    field.cluster.end().await.unwrap();
}

#[tokio::test]
async fn faults_on_network_namespaces_heal_what_they_hurt_also_twice() {
    let name = "nemesis::heal_test::faults_on_network_namespaces_heal_what_they_hurt_also_twice";
    if crate::own_namespace::is_started_apart(name) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut field = field_on(dir.path(), Rig { has_namespaces: true, ..Rig::default() }).await;
    assert!(is_whole(&mut field));
    let two = || Victim::These { nodes: vec![2] };
    for style in [Style::Silent, Style::Reset] {
        for fault in [
            Fault::Partition(Partition { border: Border::Halves { minority: vec![2] }, style }),
            Fault::Bridge(Bridge { order: vec![2, 1, 3], style }),
            Fault::CutClients(CutClients { victim: two(), style }),
            Fault::Unplug(Unplug { victim: two() }),
        ] {
            let targets = fault.hurt(&mut field).await.unwrap();
            assert!(!is_whole(&mut field), "{fault:?}");
            fault.heal(&mut field, &targets).await.unwrap();
            assert!(is_whole(&mut field), "{fault:?}");
            fault.heal(&mut field, &targets).await.unwrap();
            assert!(is_whole(&mut field), "{fault:?}");
            fault.hurt(&mut field).await.unwrap();
            field.cluster.kill(2).await.unwrap();
            field.heal_all().await.unwrap();
            assert!(is_whole(&mut field), "{fault:?}");
        }
    }
    field.cluster.end().await.unwrap();
}

#[tokio::test]
async fn faults_on_groups_of_processes_and_the_namesrv_heal() {
    let dir = tempfile::tempdir().unwrap();
    let mut field = field(dir.path()).await;
    let majority = || Victim::These { nodes: vec![1, 3] };
    for fault in [
        Fault::Kill(Kill { victim: majority() }),
        Fault::Pause(Pause { victim: majority() }),
        Fault::HardStop(HardStop { victim: majority() }),
    ] {
        assert_eq!(fault.hurt(&mut field).await.unwrap(), [1, 3]);
        assert!(!field.cluster.dead_nodes().is_empty() || !field.cluster.paused_nodes().is_empty(), "{fault:?}");
        fault.heal(&mut field, &[1, 3]).await.unwrap();
        assert!(is_whole(&mut field), "{fault:?}");
    }
    let loss = Fault::NamesrvLoss(NamesrvLoss {});
    loss.hurt(&mut field).await.unwrap();
    loss.heal(&mut field, &[]).await.unwrap();
    assert!(is_whole(&mut field));

    let bridge = Fault::Bridge(Bridge { order: vec![2, 1, 3], style: Style::Reset });
    bridge.hurt(&mut field).await.unwrap();
    assert!(!is_whole(&mut field));
    bridge.heal(&mut field, &[]).await.unwrap();
    assert!(is_whole(&mut field));
    field.cluster.end().await.unwrap();
}

#[tokio::test]
async fn faults_on_files_are_undone_byte_for_byte() {
    let dir = tempfile::tempdir().unwrap();
    let mut field = field(dir.path()).await;
    let log = field.cluster.data(2).join("log");
    std::fs::create_dir_all(&log).unwrap();
    std::fs::create_dir_all(field.cluster.data(2).join("store")).unwrap();
    let write = |name: &str, text: &str| {
        let mut bytes = text.as_bytes().to_vec();
        bytes.resize(9_000, 0);
        std::fs::write(log.join(name), bytes).unwrap();
    };
    write("1.seg", "a sealed file");
    write("2.seg", "the active file");
    let read = |name: &str| std::fs::read(log.join(name)).unwrap();
    let (sealed, active) = (read("1.seg"), read("2.seg"));
    let two = || Victim::These { nodes: vec![2] };
    for (part, is_down) in [(FilePart::Sealed, false), (FilePart::Active, true)] {
        let flip = Fault::FlipBits(FlipBits { victim: two(), part, at_permille: 500, is_down });
        flip.hurt(&mut field).await.unwrap();
        assert!(read("1.seg") != sealed || read("2.seg") != active, "{part:?}");
        flip.heal(&mut field, &[2]).await.unwrap();
        assert_eq!((read("1.seg"), read("2.seg")), (sealed.clone(), active.clone()), "{part:?}");
        assert!(is_whole(&mut field));
    }
    let none =
        FlipBits { victim: Victim::These { nodes: vec![1] }, part: FilePart::Sealed, at_permille: 1, is_down: false };
    std::fs::create_dir_all(field.cluster.data(1).join("log")).unwrap();
    assert!(matches!(Fault::FlipBits(none).hurt(&mut field).await, Err(FieldError::Nothing(_))));

    // A replica that has written since keeps what it wrote.
    let flip = FlipBits { victim: two(), part: FilePart::Active, at_permille: 0, is_down: false };
    Fault::FlipBits(flip).hurt(&mut field).await.unwrap();
    write("2.seg", "something new");
    field.heal_all().await.unwrap();
    assert!(read("2.seg").starts_with(b"something new"));
    field.cluster.end().await.unwrap();
}

#[tokio::test]
async fn what_the_cluster_was_not_given_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let mut field = field(dir.path()).await;
    let two = || Victim::These { nodes: vec![2] };
    let refused = Fault::PowerLoss(PowerLoss { victim: two(), survivors: 0 }).hurt(&mut field).await.unwrap_err();
    assert!(refused.to_string().contains("root"), "{refused}");
    let refused = Fault::SyncError(SyncError { victim: two(), pass: 0 }).hurt(&mut field).await.unwrap_err();
    assert!(refused.to_string().contains("flotilla-io-shim"), "{refused}");
    let refused = Fault::Unplug(Unplug { victim: two() }).hurt(&mut field).await.unwrap_err();
    assert!(refused.to_string().contains("network namespaces"), "{refused}");
    field.cluster.end().await.unwrap();
}

#[tokio::test]
async fn the_final_heal_mends_any_mixture() {
    let dir = tempfile::tempdir().unwrap();
    let mut field = field(dir.path()).await;
    field.cluster.kill(1).await.unwrap();
    field.cluster.pause(2).unwrap();
    field.cluster.network().unwrap().set_door(3, 1, Door::Closed);
    field.cluster.network().unwrap().set_traffic(2, 3, Traffic::Held);
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

#[tokio::test]
async fn drills_cut_off_set_back_and_empty_what_they_say_and_heal() {
    let dir = tempfile::tempdir().unwrap();
    let mut field = field(dir.path()).await;
    field.cut_off(&[1], true).await.unwrap();
    assert!(!is_whole(&mut field));
    field.cut_off(&[1], false).await.unwrap();
    assert!(is_whole(&mut field));

    let file = field.cluster.data(2).join("log/1.seg");
    for name in ["log", "store"] {
        std::fs::create_dir_all(field.cluster.data(2).join(name)).unwrap();
    }
    std::fs::write(&file, "old").unwrap();
    super::rewind::keep_copy(&field, 2).unwrap();
    std::fs::write(&file, "new").unwrap();
    super::rewind::set_back(&field, 2).unwrap();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "old");
    field.empty_disks(&[2]).unwrap();
    assert!(!file.exists() && field.empty_disks(&[2]).is_err(), "there is nothing any more");

    // Nobody was left alone: nobody is ordered to go on.
    field.cluster.kill(3).await.unwrap();
    let gone = MajorityGone { survivor: Victim::Leader, lacks_ms: 0, come_back_empty: false };
    Fault::MajorityGone(gone).heal(&mut field, &[3]).await.unwrap();
    assert!(is_whole(&mut field));
    field.cluster.end().await.unwrap();
}

#[tokio::test]
async fn drills_around_a_leader_leave_all_running_also_if_they_stopped_half_way() {
    let dir = tempfile::tempdir().unwrap();
    let mut field = field(dir.path()).await;
    let last = LeaderLast { pick: 1, lag_ms: 20, without_ms: 20 };
    // Nobody leads here; it is replica 2 by decree.
    assert_eq!(last.hurt_around(&mut field, 2).await.unwrap(), [2, 1, 3]);
    assert!(is_whole(&mut field));
    use_program(dir.path(), "broken.sh");
    assert!(last.hurt_around(&mut field, 2).await.is_err(), "a follower does not start");
    assert_eq!(field.cluster.dead_nodes(), [1, 2, 3]);
    use_program(dir.path(), "lives.sh");
    let last = Fault::LeaderLast(last);
    last.heal(&mut field, &[]).await.unwrap();
    assert!(is_whole(&mut field));
    let returns = Fault::LeaderReturns(LeaderReturns { sync_ms: 1, goes_on_ms: 1, alone_ms: 1 });
    for fault in [last, returns] {
        field.cluster.kill(2).await.unwrap();
        field.cluster.pause(1).unwrap();
        fault.heal(&mut field, &[2, 1, 3]).await.unwrap();
        assert!(is_whole(&mut field), "{fault:?}");
    }
    let fails = Fault::SyncsFailThenPower(SyncsFailThenPower { victim: Victim::All, works_ms: 1 });
    let refused = fails.hurt(&mut field).await.unwrap_err();
    assert!(refused.to_string().contains("flotilla-io-shim"), "{refused}");
    field.cluster.kill(3).await.unwrap();
    fails.heal(&mut field, &[1, 2, 3]).await.unwrap();
    assert!(is_whole(&mut field));
    field.cluster.end().await.unwrap();
}
