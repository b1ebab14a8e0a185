//! A backup of a group in use, and the group founded anew from it: everything that is not a plain message comes back, too.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use flotilla_broker::BrokerConfig;
use flotilla_broker::backup::{BackupManifest, RestoreError, RestoreOptions, restore};
use flotilla_proto::v2::{MessageType, TransactionResolution};
use flotilla_proto::{admin, v2};
use flotilla_raft_log::{BackupFile, Disk as _, LOCK_FILE, OsDisk, WrapDisk, WrappingDisk};
use flotilla_runtime::Runtime;

use crate::support::{Client, Cluster, id_of, message};
use crate::transactions::{end, half};

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(1500);
const DELAY: Duration = Duration::from_secs(25);

/// A message that is due at that time, ms since 1970.
fn delayed(id: &str, due_ms: u64) -> v2::Message {
    message("later", id, |system| {
        system.message_type = MessageType::Delay.into();
        let (seconds, nanos) = ((due_ms / 1000) as i64, (due_ms % 1000) as i32 * 1_000_000);
        system.delivery_timestamp = Some(prost_types::Timestamp { seconds, nanos });
    })
}

async fn ask(client: &Client, request: admin::BackupRequest) -> admin::BackupReply {
    client.admin.backup(client.options(Duration::from_secs(10)), request).await.expect("an answer")
}

fn named(name: &str) -> admin::BackupRequest {
    admin::BackupRequest { name: name.to_owned(), ..Default::default() }
}

/// Why it was not begun.
async fn refused(client: &Client, request: admin::BackupRequest) -> String {
    let status = ask(client, request).await.status.expect("a status");
    assert_ne!(status.code, 20000);
    status.message
}

/// Waits for the end of the backup that is being made.
async fn made(runtime: &Runtime, client: &Client) -> admin::BackupReply {
    for _ in 0..1000 {
        let reply = ask(client, admin::BackupRequest::default()).await;
        if reply.state() != admin::BackupState::Running {
            return reply;
        }
        runtime.sleep(Duration::from_millis(20)).await;
    }
    panic!("the backup is not made within 20 s");
}

/// Its topics and groups, as they are set.
async fn catalog(client: &Client) -> (Vec<admin::Topic>, Vec<admin::Group>) {
    let options = || client.options(Duration::from_secs(5));
    let topics = client.admin.list_topics(options(), admin::ListTopicsRequest::default()).await.expect("an answer");
    let groups = client.admin.list_groups(options(), admin::ListGroupsRequest::default()).await.expect("an answer");
    (topics.topics, groups.groups)
}

/// Damages each file of a backup in each way, and restores into `target`: nothing is there after it.
fn check_damage_is_refused(from: &Path, files: &[BackupFile], target: &Path, runtime: &Runtime) {
    let options = RestoreOptions { data_dir: target.to_owned(), node: 1, epoch: None };
    let refused = |parts: &[&str]| {
        let error = restore(&OsDisk, &OsDisk, from, &options, runtime, |_| ()).expect_err("damage").to_string();
        parts.iter().for_each(|part| assert!(error.contains(part), "{part:?} is missing in: {error}"));
        let beside = std::fs::read_dir(target.parent().expect("it has one")).expect("it is there");
        let left: Vec<_> = beside.map(|entry| entry.expect("readable").file_name()).collect();
        assert!(!left.iter().any(|name| name.to_string_lossy().starts_with("refused")), "{left:?}");
    };
    // Under a new inode each time: the replica's own file may be the same one.
    let replace = |path: &Path, bytes: &[u8]| {
        std::fs::remove_file(path).expect("it is there");
        std::fs::write(path, bytes).expect("it can be written");
    };
    for file in files {
        let path = from.join(&file.name);
        let sound = std::fs::read(&path).expect("it is there");
        for at in [0, sound.len() / 2, sound.len() - 1] {
            let mut flipped = sound.clone();
            flipped[at] ^= 1;
            replace(&path, &flipped);
            refused(&[file.name.as_str(), "does not match its checksum"]);
        }
        replace(&path, &sound[..sound.len() - 1]);
        refused(&[file.name.as_str(), "bytes, it had"]);
        std::fs::remove_file(&path).expect("it is there");
        refused(&[file.name.as_str(), "it is missing"]);
        std::fs::write(&path, &sound).expect("it can be written");
    }
    let path = from.join("backup.toml");
    let sound = std::fs::read(&path).expect("it is there");
    for len in [0, 10, 60, sound.len() / 2, sound.len() - 1] {
        replace(&path, &sound[..len]);
        refused(&["backup.toml"]);
    }
    std::fs::remove_file(&path).expect("it is there");
    refused(&["backup.toml is not there"]);
    std::fs::write(&path, &sound).expect("it can be written");
    // Somebody else's things stay where they are.
    let beside = target.with_file_name("refused.unfinished");
    for (dir, said) in [(target, "is there and not empty"), (beside.as_path(), "is in the way")] {
        std::fs::create_dir(dir).and_then(|()| std::fs::write(dir.join("x"), "x")).expect("it can be made");
        let error = restore(&OsDisk, &OsDisk, from, &options, runtime, |_| ()).expect_err("it is not empty");
        assert!(error.to_string().contains(said), "{error}");
        assert_eq!(std::fs::read(dir.join("x")).expect("it is there"), b"x");
        std::fs::remove_dir_all(dir).expect("it is there");
    }
    // What a restore left that was broken off goes; one that is under way is left alone.
    let log = beside.join("log");
    std::fs::create_dir_all(&log).and_then(|()| std::fs::write(log.join("left.seg"), "x")).expect("it can be made");
    let lock = OsDisk.lock(&log.join(LOCK_FILE)).expect("it is free");
    let busy = restore(&OsDisk, &OsDisk, from, &options, runtime, |_| ()).expect_err("it is locked");
    assert!(matches!(busy, RestoreError::Busy { .. }) && log.join("left.seg").exists(), "{busy}");
    drop(lock);
    restore(&OsDisk, &OsDisk, from, &options, runtime, |_| ()).expect("it is sound");
    assert!(!beside.exists() && !target.join("log/left.seg").exists() && target.join("store").is_dir());
}

#[tokio::test(flavor = "multi_thread")]
async fn all_that_a_group_holds_comes_back_from_its_backup() {
    let outside = tempfile::tempdir().expect("a temporary directory");
    let backups = outside.path().join("backups");
    let mut cluster =
        Cluster::start_with(3, |config| config.backup_dir = Some(backups.join(config.node.to_string()))).await;
    cluster.founded().await;
    let leader = cluster.client(cluster.leader().await);
    leader.create_topic("plain", MessageType::Normal, 1).await;
    leader.create_topic("tx", MessageType::Transaction, 2).await;
    leader.create_topic("later", MessageType::Delay, 2).await;
    leader.create_group("g", false, 7).await;
    for number in 0..30 {
        assert_eq!(leader.send(message("plain", &format!("m{number}"), |_| ())).await.code, 20000);
    }
    let first = leader.send_for_entry(message("plain", "once", |_| ())).await;
    let some = |request: &mut v2::ReceiveMessageRequest| request.batch_size = 20;
    let received = leader.receive_with("g", "plain", LONG, Duration::from_secs(600), some).await;
    assert_eq!(received.messages.len(), 20, "{:?}", received.ids());
    let (done, under_way) = received.messages.split_at(10);
    assert_eq!(leader.ack("g", "plain", done).await, 20000);
    let (open, kept, dropped) = (
        leader.send_for_entry(half("open")).await,
        leader.send_for_entry(half("kept")).await,
        leader.send_for_entry(half("dropped")).await,
    );
    assert_eq!(end(&leader, "kept", &kept.transaction_id, TransactionResolution::Commit).await, 20000);
    assert_eq!(end(&leader, "dropped", &dropped.transaction_id, TransactionResolution::Rollback).await, 20000);
    let due = cluster.runtime.wall_ms() + DELAY.as_millis() as u64;
    let recalled = leader.send_for_entry(delayed("recalled", due)).await;
    assert_eq!(leader.send(delayed("due", due)).await.code, 20000);
    let before = catalog(&leader).await;

    let node = cluster.follower().await;
    let follower = cluster.client(node);
    let begun = ask(&follower, named("b")).await;
    assert_eq!(begun.status.as_ref().expect("a status").code, 20000, "{begun:?}");
    let done_at = made(&cluster.runtime, &follower).await;
    assert_eq!(done_at.state(), admin::BackupState::Done, "{done_at:?}");
    assert!(done_at.bytes_done > 0 && done_at.files >= 3, "{done_at:?}");
    assert_eq!(leader.send(message("plain", "after", |_| ())).await.code, 20000);

    // All are lost.
    for node in 1..=3 {
        cluster.kill(node);
    }
    let data_dir = outside.path().join("data");
    let options = RestoreOptions { data_dir: data_dir.clone(), node: 1, epoch: None };
    let from = backups.join(node.to_string()).join("b");
    let again = || restore(&OsDisk, &OsDisk, &from, &options, &cluster.runtime, |_| ());
    let restored = again().expect("it is sound");
    assert_eq!((restored.manifest.node, restored.founded.epoch, restored.founded.node.0), (node, 1, 1));
    assert!(matches!(again(), Err(RestoreError::Taken { .. })), "that is a replica's now");
    let config = &mut cluster.configs[0];
    *config = BrokerConfig { data_dir, replicas: config.replicas[..1].to_vec(), ..config.clone() };
    cluster.restart(1).await;
    assert_eq!(cluster.leader().await, 1);
    let alone = cluster.client(1);

    assert_eq!(catalog(&alone).await, before, "topics and groups");
    let again = alone.send_for_entry(message("plain", "once", |_| ())).await;
    assert_eq!(
        (again.offset, &again.message_id),
        (first.offset, &first.message_id),
        "it is known to be stored already"
    );
    let rest = alone.receive("g", "plain", LONG, LONG).await;
    let (mut ids, mut expected) = (rest.ids(), (0..30).map(|number| format!("m{number}")).collect::<Vec<_>>());
    expected.push("once".to_owned());
    expected.retain(|id| !received.messages.iter().any(|message| id_of(message) == *id));
    ids.sort_unstable();
    expected.sort_unstable();
    assert_eq!(ids, expected, "neither what was consumed nor what is under way, nor what came later");
    assert_eq!(alone.ack("g", "plain", under_way).await, 20000, "handles from before are good");

    assert_eq!(alone.receive("t", "tx", SHORT, LONG).await.ids(), ["kept"]);
    assert_eq!(end(&alone, "open", &open.transaction_id, TransactionResolution::Commit).await, 20000);
    assert_eq!(alone.receive("t", "tx", LONG, LONG).await.ids(), ["open"]);
    assert_eq!(end(&alone, "dropped", &dropped.transaction_id, TransactionResolution::Commit).await, 40008);

    let (code, id) = alone.recall("later", &recalled.recall_handle).await;
    assert_eq!((code, id.as_str()), (20000, "recalled"));
    assert_eq!(alone.receive("d", "later", DELAY, LONG).await.ids(), ["due"]);
    assert!(cluster.runtime.wall_ms() >= due, "not before its time");
    let manifest = BackupManifest::read(&OsDisk, &from).expect("it is there");
    check_damage_is_refused(&from, &manifest.files, &outside.path().join("refused"), &cluster.runtime);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_backup_at_a_time_can_be_given_up_and_ends_with_its_replica() {
    let outside = tempfile::tempdir().expect("a temporary directory");
    let backups = outside.path().join("backups");
    let mut cluster = Cluster::start_with(1, |config| {
        config.backup_dir = Some(backups.clone());
        config.segment_bytes = 1 << 20;
    })
    .await;
    cluster.leader().await;
    let client = cluster.client(1);
    client.create_topic("plain", MessageType::Normal, 1).await;
    for number in 0..24 {
        let large = v2::Message { body: vec![7; 256 << 10].into(), ..message("plain", &format!("m{number}"), |_| ()) };
        assert_eq!(client.send(large).await.code, 20000);
    }
    for (name, part) in [("..", "letters, digits"), ("a/b", "letters, digits"), ("x.unfinished", "letters, digits")] {
        assert!(refused(&client, named(name)).await.contains(part), "{name}");
    }
    // About six seconds long.
    let slow = |name: &str| admin::BackupRequest { bytes_per_s: 1 << 20, ..named(name) };
    assert!(refused(&client, admin::BackupRequest { bytes_per_s: 1000, ..named("x") }).await.contains("1048576"));
    assert_eq!(ask(&client, slow("first")).await.state(), admin::BackupState::Running);
    assert!(refused(&client, named("second")).await.contains("first is being made"));
    let cancel = |name: &str| admin::BackupRequest { cancel: true, ..named(name) };
    assert!(refused(&client, cancel("second")).await.contains("not being made"));
    assert_eq!(ask(&client, cancel("first")).await.status.expect("a status").code, 20000);
    let ended = made(&cluster.runtime, &client).await;
    assert!(ended.state() == admin::BackupState::Failed && ended.failure.contains("given up"), "{ended:?}");
    assert_eq!(std::fs::read_dir(&backups).expect("it was made").count(), 0, "nothing is left of it");

    let reply = ask(&client, slow("third")).await;
    assert_eq!(reply.state(), admin::BackupState::Running);
    let began = cluster.runtime.now();
    cluster.stop(1).await;
    assert!(cluster.runtime.now() - began < Duration::from_secs(5), "it is not waited for");
    assert_eq!(std::fs::read_dir(&backups).expect("it was made").count(), 0, "nothing is left of it");
    cluster.restart(1).await;
    cluster.leader().await;
    assert_eq!(ask(&client, admin::BackupRequest::default()).await.state(), admin::BackupState::Unspecified);
    ask(&client, named("first")).await;
    assert_eq!(made(&cluster.runtime, &client).await.state(), admin::BackupState::Done);
    assert!(refused(&client, named("first")).await.contains("is there already"));
    cluster.shutdown().await;
}

/// The machine's disk, but for a folder of backups that is nearly full.
struct FullBackups;

impl WrapDisk for FullBackups {
    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        if dir.ends_with("backups") { Ok(64 << 10) } else { OsDisk.free_bytes(dir) }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_that_would_leave_too_little_room_is_not_made() {
    let outside = tempfile::tempdir().expect("a temporary directory");
    let backups = outside.path().join("backups");
    let change = |config: &mut BrokerConfig| {
        config.backup_dir = Some(backups.clone());
        config.disk_free_bytes_min = 64 << 10;
    };
    let cluster = Cluster::start_over(1, change, |_| Arc::new(WrappingDisk(FullBackups))).await;
    cluster.leader().await;
    let client = cluster.client(1);
    // A group with nothing in it has no mark to copy up to.
    client.create_topic("plain", MessageType::Normal, 1).await;
    ask(&client, named("b")).await;
    let ended = made(&cluster.runtime, &client).await;
    assert_eq!(ended.state(), admin::BackupState::Failed, "{ended:?}");
    assert!(ended.failure.contains("65536 are to stay free") && ended.failure.contains("has 65536"), "{ended:?}");
    assert_eq!(std::fs::read_dir(&backups).expect("it was made").count(), 0, "nothing is left of it");
    cluster.shutdown().await;
}
