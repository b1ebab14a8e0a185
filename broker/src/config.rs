//! The settings of one replica: plain data read from TOML, and one check that names every problem at once.

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use flotilla_message::{AckLevel, FlushLevel, limits};
use flotilla_raft_log::{FlushMode, LogConfig, NodeId, RaftTiming};
use flotilla_store::limits as store_limits;
use flotilla_store::limits::{GROUPS_MAX, TOPICS_MAX};
use flotilla_tls::TlsConfig;
use serde::{Deserialize, Serialize};

use crate::edge::unread::UNREAD_BYTES_MIN;
use crate::peer::book::Contact;

/// Settings of one replica of a broker group. All have defaults; a key that is not known is refused.
///
/// All of them exist since 0.1.0 and are read once, at start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BrokerConfig {
    /// Name of the cluster; replicas and data directories of another one are refused. Default `flotilla`; 1 to 255 bytes
    /// of letters, digits, `-`, `_` and `.`.
    pub cluster: String,
    /// Name of the broker group, which official clients see as the broker's name. Default `group-a`; as `cluster`.
    pub group: String,
    /// Which life of the group this is: raise it when a group is founded anew under a name that namesrvs still know.
    /// Default `1`; 1 to 64 bytes, alphabet as `cluster`.
    pub group_incarnation: String,
    /// This replica's number within its group. Default 1; at least 1. Never give it to a replica with another disk.
    pub node: u64,
    /// Where log, index and checkpoints live. Default `flotilla-data`; created if absent.
    pub data_dir: PathBuf,
    /// Where clients are served (gRPC, admin included). Default `0.0.0.0:8081`; port 0 lets the system choose.
    pub client_listen: SocketAddr,
    /// The folder that `flotilla admin backup create` makes backups in, on this machine. On another file system than `data_dir` they
    /// are whole copies; on the same one they share what does not change any more. Not in `data_dir`. Default: none, backups are
    /// refused.
    pub backup_dir: Option<PathBuf>,
    /// Bytes a second that a backup reads, unless who asks for it says otherwise. Default 64 MiB; at least 1 MiB.
    pub backup_bytes_per_s: u64,
    /// A backup that takes longer is given up, ms. Default 6 hours; at least 1,000.
    pub backup_ms_max: u64,
    /// The `host:port` that clients are told for this replica. Default: this replica's `client` in `replicas`, else the
    /// address really bound (with 127.0.0.1 for a wildcard).
    pub client_advertise: Option<String>,
    /// Where the other replicas of the group are served. Default `0.0.0.0:10912`; port 0 lets the system choose.
    pub peer_listen: SocketAddr,
    /// All voters of the group, this one included. Default: empty, which means this replica alone.
    pub replicas: Vec<ReplicaConfig>,
    /// Whether this replica comes to a group that is there already: it founds none, and waits until `flotilla admin replica
    /// add` takes it in. `replicas` then need not name any other. Of no effect on a data directory that is in use. Default
    /// false.
    pub join: bool,
    /// The `host:port` of every namesrv; each is told of every change. Default: none.
    pub namesrv: Vec<String>,
    /// One DNS name with a port (`host:port`) that resolves to all replicas: routes then name it alone, the one form with
    /// which every official client fails over without an error. Default: none.
    pub advertise_name: Option<String>,

    /// Bytes of one segment file of the log. Default 1 GiB; 64 KiB to 4 GiB.
    pub segment_bytes: u64,
    /// Quota for the segment files, bytes: sends are refused, with a clear status, before it is passed. Default: none;
    /// at least three segments.
    pub data_bytes_max: Option<u64>,
    /// Sends are refused, with a clear status, while the file system has fewer free bytes. Default 64 MiB.
    pub disk_free_bytes_min: u64,
    /// So they are from this use of the file system on, in percent, while less than `disk_refuse_free_bytes` are free. Default
    /// 90; 50 to 100, which is never.
    pub disk_refuse_percent: u8,
    /// See `disk_refuse_percent`. Default 10 GiB.
    pub disk_refuse_free_bytes: u64,
    /// Messages are kept for so long, ms of log time, then they go with the log file they are in. Default 72 h; at least 1.
    pub retention_ms: u64,
    /// Once the log files hold more bytes, the oldest go, whatever their age. Default: none; at least two segments. The same
    /// on all replicas, because the leader's counts.
    pub retention_bytes: Option<u64>,
    /// The hour (UTC, 0 to 23) in which expired messages go. Default: none, which means at any time.
    pub retention_hour_utc: Option<u8>,
    /// From this use of the file system on, in percent, expired messages go at any hour, while less than
    /// `disk_expire_free_bytes` are free. Default 75; 1 to 100.
    pub disk_expire_percent: u8,
    /// See `disk_expire_percent`. Default 40 GiB.
    pub disk_expire_free_bytes: u64,
    /// From this use of the file system on, in percent, the oldest messages go whatever their age, while less than
    /// `disk_delete_free_bytes` are free. Default 85; 1 to 100.
    pub disk_delete_percent: u8,
    /// See `disk_delete_percent`. Default 20 GiB.
    pub disk_delete_free_bytes: u64,
    /// So long, ms, messages that are let go stay on the leader's disk for a replica that does not have them yet; then it
    /// gets a snapshot. Default 3,600,000.
    pub slow_replica_hold_ms: u64,
    /// At most so many bytes of log files stay for that. Default 16 GiB.
    pub slow_replica_hold_bytes: u64,
    /// Bytes of recent entries kept in memory. Default 64 MiB; at least 1 MiB.
    pub tail_cache_bytes: u64,
    /// Leader's sign of life to its followers, ms. Default 100; at least 1.
    pub heartbeat_ms: u64,
    /// Lower bound of the random part of the election timeout, ms. Default 200; at least 1.8 `heartbeat_ms`.
    pub election_timeout_ms_min: u64,
    /// Upper bound of it, and how long a leader without a quorum goes on, ms. Default 400; above the lower bound.
    pub election_timeout_ms_max: u64,
    /// Whether a leader whose process is surely gone (its machine refuses connections, by the word of a quorum of the
    /// replicas) is replaced at once, without waiting for the election timeout. Default true.
    pub elect_on_peer_gone: bool,
    /// Bytes a second of sealed log segments that are read against their checksums in the background; 0 turns it off.
    /// Default 8 MiB.
    pub scrub_bytes_per_s: u64,
    /// From the beginning of one such pass over everything to that of the next, ms, at the least. Default 24 hours.
    pub scrub_interval_ms: u64,
    /// The feature level that this replica goes along with, at most: an older program's, in tests of mixed versions. Not a
    /// setting of the file. Default: what this program supports.
    #[serde(skip, default = "feature_level_max")]
    pub feature_level_max: u8,

    /// How many replicas have a message when its send is answered, in topics that do not say otherwise: `async` (the
    /// leader), `majority`, or `sync` (every replica that keeps up, never fewer than a quorum nor two). Default `majority`.
    pub ack_level: AckLevel,
    /// Whether they have it on disk, `sync` or `async`, in topics that do not say otherwise. Default `sync`.
    pub flush_level: FlushLevel,
    /// When a replica confirms an entry: `fsync`, once it is on disk, or `os`, once the operating system has it, which
    /// survives the process and not the machine. The same for all replicas of a group. Default `fsync`.
    pub raft_durability: RaftDurability,
    /// With `raft_durability = "os"`: a sync begins at most so long after an append, ms. Default 500; 1 to 60,000.
    pub flush_interval_ms: u64,
    /// With `raft_durability = "os"`: a sync begins once so many bytes wait for it. Default 4 MiB; 64 KiB to 1 GiB.
    pub flush_bytes: u64,
    /// A replica that lacks an entry for so long does not keep up: sends at level `sync` wait for it no more, until it has
    /// caught up, ms. Default 1,000; 100 to 600,000.
    pub in_sync_lag_ms_max: u64,
    /// So does one that lacks more bytes. Default 256 MiB; at least 1 MiB.
    pub in_sync_lag_bytes_max: u64,

    /// Largest body of a message, bytes. Default 4 MiB; 1 to 4 MiB.
    pub body_bytes_max: u64,
    /// Whether a topic that does not exist is created (NORMAL, `auto_create_queues`) when a client asks for its route or
    /// sends to it, as RocketMQ's `autoCreateTopicEnable`. Default true.
    pub auto_create_topics: bool,
    /// None is created that way once there are so many topics, dead letters among them. Default 5,000; 1 to the limit of a
    /// group of brokers.
    pub auto_create_topics_max: u64,
    /// Queues of a topic created that way. Default 4; 1 to the limit of a topic.
    pub auto_create_queues: u32,
    /// Whether a consumer group that does not exist is created (not ordered, from the first message on) at its first
    /// receive, as RocketMQ's `autoCreateSubscriptionGroup`. Default true.
    pub auto_create_groups: bool,
    /// None is created that way once there are so many groups. Default 10,000; 1 to the limit of a group of brokers.
    pub auto_create_groups_max: u64,
    /// Deliveries of a message to a group, before it goes to the group's dead letter topic, in groups created that way or
    /// without a number of their own. Default 17 (the first and 16 retries); 1 to 1000.
    pub max_deliveries: u32,
    /// Whether a consumer is refused whose filter is not that of the members of its group that were there before; else
    /// it is served, and told of in the log and by `admin group describe`. Default false.
    pub refuse_differing_subscriptions: bool,
    /// How far in the future the delivery time of a delayed message may be, ms. Default 3 days; 1,000 to 10 years.
    pub delay_ms_max: u64,
    /// When the producer of a half message is first asked, where that does not say, ms. Default 6,000; 100 to 3,600,000.
    pub transaction_check_after_ms: u64,
    /// Time until it is asked again, ms. Default 30,000; 100 to 3,600,000.
    pub transaction_check_interval_ms: u64,
    /// Questions about one message before it is parked. Default 15; 1 to 1000.
    pub transaction_checks_max: u32,
    /// How many message ids the group keeps to find repeated sends, besides the ten minutes that it keeps them for. The leader's
    /// setting counts, so it should be the same on all replicas. Some 90 bytes of memory each. Default 200,000; 1,000 to 5,000,000.
    pub dedup_entries_max: u32,
    /// Who answers pulls, at which this replica is asked: the `leader`, or `any` replica that keeps up, from its own log. Routes
    /// tell clients, and ours spread their pulls over all replicas then. The same on all replicas. What is handed out
    /// (`ReceiveMessage`) comes from the leader in any case. Default `leader`.
    pub read_from: ReadFrom,
    /// With `read_from = "any"`: a replica says that a queue has no more messages only if it has all that was committed so
    /// long ago, ms; else the leader is asked. Default 1,000; 100 to 600,000.
    pub read_lag_ms_max: u64,
    /// Longest time a receive call waits for messages, ms. Default 30,000; 1,000 to 300,000.
    pub long_polling_max_ms: u64,
    /// How long a received message stays invisible when the call does not say, as push consumers leave it, ms. Default
    /// 60,000; 1,000 to 43,200,000 (12 h).
    pub invisible_default_ms: u64,
    /// Calls other than polls that may wait for a leader at the same time. Default 10,000; at least 1.
    pub parked_calls_max: u64,
    /// Polls that may wait for a leader at the same time. Default 10,000; at least 1.
    pub parked_polls_max: u64,
    /// Bytes of requests that may wait for a leader at the same time. Default 256 MiB; at least 32 MiB.
    pub parked_bytes_max: u64,
    /// Calls other than polls that may be with the leader, passed on by this replica, at the same time. Default 8,000, about
    /// what one connection carries; at least 1.
    pub forwarded_calls_max: u64,
    /// The same of polls, which have a connection of their own. Default 8,000; at least 1.
    pub forwarded_polls_max: u64,
    /// Sends and polls of one client (of one connection, where no client id is told) that may be under way at this replica
    /// at the same time. Default 10,000; at least 1.
    pub client_calls_max: u64,
    /// Sends to one topic that may be under way at this replica at the same time. Default 20,000; at least 1.
    pub topic_sends_max: u64,
    /// Polls of one group that may be under way at this replica at the same time. Default 10,000; at least 1.
    pub group_polls_max: u64,
    /// Bytes of messages in answers that clients have asked this replica for and not read yet, with what polls that it has
    /// passed on to the leader may bring; one client (one connection, where no client id is told) may have an eighth of them,
    /// and 32 MiB in any case. Default 256 MiB; at least 32 MiB.
    pub unread_answer_bytes_max: u64,
    /// Commands that may wait for a place in a log entry. Default 50,000; at least 1.
    pub queued_commands_max: u64,
    /// Proposals in flight at the same time; what arrives meanwhile shares the next entry. Default 3; 1 to 64.
    pub proposals_in_flight_max: u64,
    /// Clients known to this replica at the same time; further ones are served but not remembered. Default 100,000.
    pub clients_max: u64,
    /// A client that was silent for so long is forgotten, ms. Default 120,000; at least 60,000 (some beat every 30 s).
    pub client_expiry_ms: u64,
    /// A sync of the log that takes longer counts as slow, ms. Default 500; 10 to 60,000.
    pub slow_sync_ms: u64,
    /// A replica whose disk spends half of so much time in slow syncs, or most of whose syncs in it are slow, is not fit to
    /// lead, ms. Default 5,000; 1,000 to 600,000.
    pub slow_sync_window_ms: u64,
    /// A replica that applies entries later than this is not fit to lead, ms. Default 10,000; at least 1,000.
    pub apply_lag_ms_max: u64,
    /// Whether a leader that is not fit, or whose disk is full, hands over to a follower that is, and an unfit follower
    /// leaves elections to the others. Default true.
    pub hand_over_when_unfit: bool,
    /// So long without a symptom makes an unfit replica fit again, ms; doubled by each relapse, up to 16 times. Default
    /// 30,000; at least 1,000.
    pub fit_again_ms: u64,
    /// There is an alarm when so much of the file system, or of the quota, is used, percent. Default: 85; 1 to 100.
    pub disk_alarm_percent: u64,
    /// Where monitoring is served: `/metrics`, `/live`, `/ready` over HTTP, without TLS and without a password, so keep it
    /// off public networks. Default: none, nothing is served; the usual port is 5557.
    pub metrics_listen: Option<SocketAddr>,
    /// Topics, and pairs of consumer group and topic, that metrics tell one by one; the others are added up as `other`.
    /// Default 1,000; 1 to 100,000.
    pub metrics_labels_max: u64,
    /// Committed entries that a replica may have to apply and still be ready. Default 100,000; at least 1.
    pub ready_lag_entries_max: u64,
    /// How often the row at each namesrv is renewed, ms. Default 30,000; 100 to 60,000.
    pub namesrv_heartbeat_ms: u64,
    /// TLS of each link. The files are read at start, and again when they change. Default: none.
    pub tls: TlsConfig,
}

/// When a replica confirms an entry to the leader.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RaftDurability {
    /// Once it is on disk.
    #[default]
    Fsync,
    /// Once the operating system has it.
    Os,
}

impl fmt::Display for RaftDurability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            RaftDurability::Fsync => "fsync",
            RaftDurability::Os => "os",
        })
    }
}

/// Who answers pulls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReadFrom {
    /// The leader.
    #[default]
    Leader,
    /// Any replica that keeps up.
    Any,
}

/// One voter of the group, as this and all other replicas reach it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplicaConfig {
    /// Its number.
    pub node: u64,
    /// The `host:port` that clients are told for it.
    pub client: String,
    /// The `host:port` where it serves its peers.
    pub peer: String,
}

impl Default for BrokerConfig {
    fn default() -> BrokerConfig {
        BrokerConfig {
            cluster: "flotilla".to_owned(),
            group: "group-a".to_owned(),
            group_incarnation: "1".to_owned(),
            node: 1,
            data_dir: PathBuf::from("flotilla-data"),
            client_listen: SocketAddr::from(([0, 0, 0, 0], 8081)),
            backup_dir: None,
            backup_bytes_per_s: 64 << 20,
            backup_ms_max: 6 * 3_600_000,
            client_advertise: None,
            peer_listen: SocketAddr::from(([0, 0, 0, 0], 10912)),
            replicas: Vec::new(),
            join: false,
            namesrv: Vec::new(),
            advertise_name: None,
            segment_bytes: 1 << 30,
            data_bytes_max: None,
            disk_free_bytes_min: 64 << 20,
            disk_refuse_percent: 90,
            disk_refuse_free_bytes: 10 << 30,
            retention_ms: 72 * 3_600_000,
            retention_bytes: None,
            retention_hour_utc: None,
            disk_expire_percent: 75,
            disk_expire_free_bytes: 40 << 30,
            disk_delete_percent: 85,
            disk_delete_free_bytes: 20 << 30,
            slow_replica_hold_ms: 3_600_000,
            slow_replica_hold_bytes: 16 << 30,
            tail_cache_bytes: 64 << 20,
            heartbeat_ms: 100,
            election_timeout_ms_min: 200,
            election_timeout_ms_max: 400,
            elect_on_peer_gone: true,
            scrub_bytes_per_s: 8 << 20,
            scrub_interval_ms: 24 * 3_600_000,
            feature_level_max: feature_level_max(),
            ack_level: AckLevel::default(),
            flush_level: FlushLevel::default(),
            raft_durability: RaftDurability::default(),
            flush_interval_ms: 500,
            flush_bytes: 4 << 20,
            in_sync_lag_ms_max: 1_000,
            in_sync_lag_bytes_max: 256 << 20,
            body_bytes_max: limits::BODY_BYTES_MAX as u64,
            auto_create_topics: true,
            auto_create_topics_max: 5_000,
            auto_create_queues: 4,
            auto_create_groups: true,
            auto_create_groups_max: 10_000,
            max_deliveries: 17,
            refuse_differing_subscriptions: false,
            delay_ms_max: 3 * 24 * 3600 * 1000,
            transaction_check_after_ms: 6_000,
            transaction_check_interval_ms: 30_000,
            transaction_checks_max: 15,
            dedup_entries_max: store_limits::DEDUP_ENTRIES_MAX as u32,
            read_from: ReadFrom::default(),
            read_lag_ms_max: 1_000,
            long_polling_max_ms: 30_000,
            invisible_default_ms: 60_000,
            parked_calls_max: 10_000,
            parked_polls_max: 10_000,
            parked_bytes_max: 256 << 20,
            forwarded_calls_max: 8_000,
            forwarded_polls_max: 8_000,
            client_calls_max: 10_000,
            topic_sends_max: 20_000,
            group_polls_max: 10_000,
            unread_answer_bytes_max: 256 << 20,
            queued_commands_max: 50_000,
            proposals_in_flight_max: 3,
            clients_max: 100_000,
            client_expiry_ms: 120_000,
            slow_sync_ms: 500,
            slow_sync_window_ms: 5_000,
            apply_lag_ms_max: 10_000,
            hand_over_when_unfit: true,
            fit_again_ms: 30_000,
            disk_alarm_percent: 85,
            metrics_listen: None,
            metrics_labels_max: 1_000,
            ready_lag_entries_max: 100_000,
            namesrv_heartbeat_ms: 30_000,
            tls: TlsConfig::default(),
        }
    }
}

/// Why a config file gave no settings.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It could not be read.
    #[error("config file {} cannot be read: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// It is not the TOML that a broker takes: a syntax error, an unknown key, a value of the wrong kind.
    #[error("config is not understood: {0}")]
    Malformed(String),
    /// The settings are understood but not usable.
    #[error(transparent)]
    Invalid(#[from] ConfigErrors),
}

/// Every problem of a config, each a whole sentence with the value and what is allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<String>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "config is not usable: {}", self.0.join("; "))
    }
}

impl std::error::Error for ConfigErrors {}

impl BrokerConfig {
    /// Reads settings from TOML text, without judging them: flags may still override some before [`BrokerConfig::validate`].
    pub fn from_toml(text: &str) -> Result<BrokerConfig, ConfigError> {
        toml::from_str(text).map_err(|error| ConfigError::Malformed(error.to_string()))
    }

    /// Reads settings from a TOML file; see [`BrokerConfig::from_toml`].
    pub fn from_file(path: &Path) -> Result<BrokerConfig, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Unreadable { path: path.to_owned(), source })?;
        toml::from_str(&text).map_err(|error| ConfigError::Malformed(format!("{}: {error}", path.display())))
    }

    /// Checks all settings, alone and against each other.
    pub fn validate(&self) -> Result<(), ConfigErrors> {
        let mut problems = Vec::new();
        check_name(&mut problems, "cluster", &self.cluster, 255);
        check_name(&mut problems, "group", &self.group, 255);
        check_name(&mut problems, "group_incarnation", &self.group_incarnation, 64);
        if self.data_dir.as_os_str().is_empty() {
            problems.push("data_dir is empty, a directory is needed".to_owned());
        }
        match &self.backup_dir {
            Some(dir) if dir.as_os_str().is_empty() => {
                problems.push("backup_dir is empty, a directory is needed".to_owned());
            }
            Some(dir) if dir.starts_with(&self.data_dir) => problems.push(format!(
                "backup_dir {} lies in data_dir {}: what takes the one would take the other",
                dir.display(),
                self.data_dir.display()
            )),
            _ => {}
        }
        self.check_addresses(&mut problems);
        self.check_replicas(&mut problems);
        self.check_numbers(&mut problems);
        problems.extend(self.tls.problems());
        if self.ack_level == AckLevel::Sync && !self.join && self.voters().len() < 2 {
            problems.push("ack_level is \"sync\", which needs at least two replicas, there is 1".to_owned());
        }
        for problem in self.log_config().problems() {
            // The log's own check repeats what is said above about names.
            if !problem.starts_with("cluster name") && !problem.starts_with("group name") && !problem.contains("voters")
            {
                problems.push(problem);
            }
        }
        if problems.is_empty() { Ok(()) } else { Err(ConfigErrors(problems)) }
    }

    fn check_addresses(&self, problems: &mut Vec<String>) {
        if self.client_listen == self.peer_listen && self.client_listen.port() != 0 {
            problems.push(format!(
                "client_listen and peer_listen are both {}, two different ports are needed",
                self.client_listen
            ));
        }
        let named = [("client_advertise", &self.client_advertise), ("advertise_name", &self.advertise_name)];
        for (key, address) in named {
            if let Some(problem) = address.as_deref().and_then(|address| host_port_problem(key, address)) {
                problems.push(problem);
            }
        }
        let mut seen = BTreeSet::new();
        for address in &self.namesrv {
            problems.extend(host_port_problem("namesrv", address));
            if !seen.insert(address) {
                problems.push(format!("namesrv {address:?} is listed twice"));
            }
        }
    }

    fn check_replicas(&self, problems: &mut Vec<String>) {
        if self.node == 0 {
            problems.push("node is 0, at least 1 is needed".to_owned());
        }
        let mut nodes = BTreeSet::new();
        let mut addresses = BTreeSet::new();
        for replica in &self.replicas {
            if replica.node == 0 {
                problems.push("a replica has node 0, at least 1 is needed".to_owned());
            }
            if !nodes.insert(replica.node) {
                problems.push(format!("replica {} is listed twice in replicas", replica.node));
            }
            for (key, address) in [("client", &replica.client), ("peer", &replica.peer)] {
                problems.extend(host_port_problem(&format!("{key} of replica {}", replica.node), address));
                if !addresses.insert(address) {
                    problems.push(format!("address {address:?} is given twice in replicas"));
                }
            }
        }
        if !self.replicas.is_empty() && !nodes.contains(&self.node) {
            problems.push(format!("node {} is not among the replicas {nodes:?}", self.node));
        }
        if self.replicas.len() > REPLICAS_MAX {
            problems.push(format!("{} replicas are listed, at most {REPLICAS_MAX} are allowed", self.replicas.len()));
        }
    }

    fn check_numbers(&self, problems: &mut Vec<String>) {
        let ranges: [(&str, u64, u64, u64); 43] = [
            ("backup_bytes_per_s", self.backup_bytes_per_s, BACKUP_BYTES_PER_S_MIN, u64::MAX),
            ("backup_ms_max", self.backup_ms_max, 1_000, u64::MAX),
            ("read_lag_ms_max", self.read_lag_ms_max, 100, 600_000),
            ("retention_ms", self.retention_ms, 1, u64::MAX),
            ("retention_hour_utc", self.retention_hour_utc.unwrap_or(0).into(), 0, 23),
            (
                "retention_bytes",
                self.retention_bytes.unwrap_or(u64::MAX),
                self.segment_bytes.saturating_mul(2),
                u64::MAX,
            ),
            ("disk_expire_percent", self.disk_expire_percent.into(), 1, 100),
            ("disk_delete_percent", self.disk_delete_percent.into(), 1, 100),
            ("disk_refuse_percent", self.disk_refuse_percent.into(), 50, 100),
            ("tail_cache_bytes", self.tail_cache_bytes, 1 << 20, u64::MAX),
            ("body_bytes_max", self.body_bytes_max, 1, limits::BODY_BYTES_MAX as u64),
            ("auto_create_queues", self.auto_create_queues.into(), 1, u64::from(limits::QUEUES_PER_TOPIC_MAX)),
            ("auto_create_topics_max", self.auto_create_topics_max, 1, TOPICS_MAX as u64),
            ("auto_create_groups_max", self.auto_create_groups_max, 1, GROUPS_MAX as u64),
            ("max_deliveries", self.max_deliveries.into(), 1, 1000),
            ("delay_ms_max", self.delay_ms_max, 1_000, 10 * 365 * 24 * 3600 * 1000),
            ("transaction_check_after_ms", self.transaction_check_after_ms, 100, 3_600_000),
            ("transaction_check_interval_ms", self.transaction_check_interval_ms, 100, 3_600_000),
            ("transaction_checks_max", self.transaction_checks_max.into(), 1, 1000),
            (
                "dedup_entries_max",
                self.dedup_entries_max.into(),
                *store_limits::DEDUP_ENTRIES_RANGE.start() as u64,
                *store_limits::DEDUP_ENTRIES_RANGE.end() as u64,
            ),
            ("long_polling_max_ms", self.long_polling_max_ms, 1_000, 300_000),
            ("invisible_default_ms", self.invisible_default_ms, 1_000, INVISIBLE_MS_MAX),
            ("parked_calls_max", self.parked_calls_max, 1, u64::MAX),
            ("parked_bytes_max", self.parked_bytes_max, 32 << 20, u64::MAX),
            ("forwarded_calls_max", self.forwarded_calls_max, 1, u64::MAX),
            ("forwarded_polls_max", self.forwarded_polls_max, 1, u64::MAX),
            ("parked_polls_max", self.parked_polls_max, 1, u64::MAX),
            ("client_calls_max", self.client_calls_max, 1, u64::MAX),
            ("topic_sends_max", self.topic_sends_max, 1, u64::MAX),
            ("group_polls_max", self.group_polls_max, 1, u64::MAX),
            ("unread_answer_bytes_max", self.unread_answer_bytes_max, UNREAD_BYTES_MIN, u64::MAX),
            ("queued_commands_max", self.queued_commands_max, 1, 10_000_000),
            ("proposals_in_flight_max", self.proposals_in_flight_max, 1, 64),
            ("clients_max", self.clients_max, 1, u64::MAX),
            ("client_expiry_ms", self.client_expiry_ms, 60_000, u64::MAX),
            ("slow_sync_ms", self.slow_sync_ms, 10, 60_000),
            ("slow_sync_window_ms", self.slow_sync_window_ms, 1_000, 600_000),
            ("apply_lag_ms_max", self.apply_lag_ms_max, 1_000, u64::MAX),
            ("fit_again_ms", self.fit_again_ms, 1_000, u64::MAX),
            ("disk_alarm_percent", self.disk_alarm_percent, 1, 100),
            ("metrics_labels_max", self.metrics_labels_max, 1, 100_000),
            ("ready_lag_entries_max", self.ready_lag_entries_max, 1, u64::MAX),
            ("namesrv_heartbeat_ms", self.namesrv_heartbeat_ms, 100, 60_000),
        ];
        for (key, value, min, max) in ranges {
            if value < min && max == u64::MAX {
                problems.push(format!("{key} is {value}, at least {min} is needed"));
            } else if value < min || value > max {
                problems.push(format!("{key} is {value}, allowed are {min} to {max}"));
            }
        }
    }

    /// All voters of a new group, this one included even if `replicas` is empty; none if it joins a group.
    pub fn voters(&self) -> BTreeSet<NodeId> {
        if self.join {
            return BTreeSet::new();
        }
        if self.replicas.is_empty() {
            return BTreeSet::from([NodeId(self.node)]);
        }
        self.replicas.iter().map(|replica| NodeId(replica.node)).collect()
    }

    /// This replica's entry in `replicas`, if there is one.
    pub fn own_replica(&self) -> Option<&ReplicaConfig> {
        self.replicas.iter().find(|replica| replica.node == self.node)
    }

    /// The `host:port` that clients are told for this replica.
    pub fn client_address(&self) -> String {
        self.client_advertise
            .clone()
            .or_else(|| self.own_replica().map(|replica| replica.client.clone()))
            .unwrap_or_else(|| reachable(self.client_listen))
    }

    /// The `host:port` where peers reach this replica.
    pub fn peer_address(&self) -> String {
        self.own_replica().map_or_else(|| reachable(self.peer_listen), |replica| replica.peer.clone())
    }

    /// Client addresses of all replicas in the order of their numbers: what routes name.
    pub fn client_addresses(&self) -> Vec<(u64, String)> {
        if self.replicas.is_empty() {
            return vec![(self.node, self.client_address())];
        }
        let mut addresses: Vec<(u64, String)> = self
            .replicas
            .iter()
            .map(|replica| {
                let own = replica.node == self.node;
                (replica.node, if own { self.client_address() } else { replica.client.clone() })
            })
            .collect();
        addresses.sort();
        addresses
    }

    /// The settings of the log below.
    pub fn log_config(&self) -> LogConfig {
        let mut log = LogConfig::new(
            self.data_dir.join("log"),
            self.cluster.clone(),
            self.group.clone(),
            NodeId(self.node),
            self.voters(),
        );
        log.contact = Contact { client: self.client_address(), peer: self.peer_address() }.encode();
        log.segment_bytes = self.segment_bytes;
        log.timing = RaftTiming {
            heartbeat_ms: self.heartbeat_ms,
            election_timeout_ms_min: self.election_timeout_ms_min,
            election_timeout_ms_max: self.election_timeout_ms_max,
        };
        log.tail_cache_bytes = usize::try_from(self.tail_cache_bytes).unwrap_or(usize::MAX);
        log.data_bytes_max = self.data_bytes_max;
        log.disk_free_bytes_min = self.disk_free_bytes_min;
        log.disk_free_percent_min = 100_u8.saturating_sub(self.disk_refuse_percent);
        log.disk_free_percent_bytes_max = self.disk_refuse_free_bytes;
        log.elect_on_peer_gone = self.elect_on_peer_gone;
        log.slow_sync_ms = self.slow_sync_ms;
        log.scrub_bytes_per_s = self.scrub_bytes_per_s;
        log.scrub_interval_ms = self.scrub_interval_ms;
        log.feature_level = self.feature_level_max;
        log.flush = match self.raft_durability {
            RaftDurability::Fsync => FlushMode::Sync,
            RaftDurability::Os => FlushMode::Async { interval_ms: self.flush_interval_ms, bytes: self.flush_bytes },
        };
        log.in_sync_lag_ms_max = self.in_sync_lag_ms_max;
        log.in_sync_lag_bytes_max = self.in_sync_lag_bytes_max;
        log
    }
}

fn feature_level_max() -> u8 {
    flotilla_store::FEATURE_LEVEL
}

/// Voters of one group, at most.
pub const REPLICAS_MAX: usize = 9;
/// The longest time a message may be invisible, ms: 12 hours, as RocketMQ has it.
pub const INVISIBLE_MS_MAX: u64 = 12 * 3600 * 1000;
/// Slowest pace of a backup, bytes a second.
pub const BACKUP_BYTES_PER_S_MIN: u64 = 1 << 20;

/// Host and port of a `host:port` text; an IPv6 host stands in brackets.
pub fn split_host_port(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let host = match host.strip_prefix('[') {
        Some(inner) => inner.strip_suffix(']')?,
        None if host.contains(':') => return None,
        None => host,
    };
    let fine = !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/' && byte != b',');
    let port: u16 = port.parse().ok()?;
    (fine && port != 0).then_some((host, port))
}

fn host_port_problem(key: &str, address: &str) -> Option<String> {
    match split_host_port(address) {
        Some(_) => None,
        None => Some(format!("{key} is {address:?}, host:port with a port from 1 to 65535 is needed")),
    }
}

fn check_name(problems: &mut Vec<String>, key: &str, name: &str, bytes_max: usize) {
    if name.is_empty() || name.len() > bytes_max {
        problems.push(format!("{key} has {} bytes, allowed are 1 to {bytes_max}", name.len()));
    } else if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)) {
        problems.push(format!("{key} is {name:?}, only letters, digits, '-', '_' and '.' are allowed"));
    }
}

/// The address under which a listener on this machine can be reached from this machine.
fn reachable(listen: SocketAddr) -> String {
    match listen {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => format!("127.0.0.1:{}", v4.port()),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => format!("127.0.0.1:{}", v6.port()),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three() -> BrokerConfig {
        let replica = |node: u64| ReplicaConfig {
            node,
            client: format!("10.0.0.{node}:8081"),
            peer: format!("10.0.0.{node}:10912"),
        };
        BrokerConfig { replicas: vec![replica(1), replica(2), replica(3)], node: 2, ..BrokerConfig::default() }
    }

    #[test]
    fn the_defaults_are_valid_and_stand_alone() {
        let config = BrokerConfig::default();
        config.validate().expect("the defaults are valid");
        assert_eq!(config.client_address(), "127.0.0.1:8081");
        assert_eq!(config.voters(), BTreeSet::from([NodeId(1)]));
        assert_eq!(BrokerConfig::from_toml("").expect("an empty file is fine"), config);
    }

    #[test]
    fn a_config_survives_being_written_and_read() {
        let config = three();
        config.validate().expect("valid");
        let text = toml::to_string(&config).expect("writes");
        assert_eq!(BrokerConfig::from_toml(&text).expect("reads"), config);
        assert_eq!(config.client_address(), "10.0.0.2:8081");
        assert_eq!(config.client_addresses().len(), 3);
    }

    #[test]
    fn an_unknown_key_is_named() {
        let error = BrokerConfig::from_toml("clustre = \"x\"").expect_err("typo").to_string();
        assert!(error.contains("clustre"), "{error}");
    }

    #[test]
    fn every_problem_is_named_at_once() {
        let mut config = three();
        config.cluster = String::new();
        config.group = "group a".to_owned();
        config.node = 4;
        config.replicas[1].node = 1;
        config.replicas[2].peer = "nowhere".to_owned();
        config.namesrv = vec!["ns:9876".to_owned(), "ns:9876".to_owned(), "ns:0".to_owned()];
        config.peer_listen = config.client_listen;
        config.segment_bytes = 1;
        config.election_timeout_ms_max = 10;
        config.body_bytes_max = 1 << 30;
        config.client_expiry_ms = 5;
        config.proposals_in_flight_max = 0;
        config.advertise_name = Some("a/b".to_owned());
        let problems = config.validate().expect_err("all wrong").0;
        let all = problems.join("\n");
        for part in [
            "cluster has 0 bytes",
            "group is \"group a\"",
            "node 4 is not among the replicas {1, 3}",
            "replica 1 is listed twice",
            "peer of replica 3 is \"nowhere\"",
            "namesrv \"ns:9876\" is listed twice",
            "namesrv is \"ns:0\"",
            "client_listen and peer_listen are both 0.0.0.0:8081",
            "segment_bytes is 1,",
            "election_timeout_ms_max is 10",
            "body_bytes_max is 1073741824, allowed are 1 to 4194304",
            "client_expiry_ms is 5, at least 60000 is needed",
            "proposals_in_flight_max is 0, allowed are 1 to 64",
            "advertise_name is \"a/b\"",
        ] {
            assert!(all.contains(part), "{part:?} is missing in:\n{all}");
        }
        assert_eq!(problems.len(), 14, "nothing is said twice:\n{all}");
    }

    #[test]
    fn one_replica_refuses_to_promise_two_copies() {
        let config = BrokerConfig { ack_level: AckLevel::Sync, ..BrokerConfig::default() };
        let problems = config.validate().expect_err("impossible").0;
        assert_eq!(problems, ["ack_level is \"sync\", which needs at least two replicas, there is 1"]);
        BrokerConfig { ack_level: AckLevel::Sync, ..three() }.validate().expect("three can");
        let config = BrokerConfig::from_toml("ack_level = \"async\"\nraft_durability = \"os\"").expect("words");
        assert_eq!((config.ack_level, config.raft_durability), (AckLevel::Async, RaftDurability::Os));
        assert!(matches!(config.log_config().flush, FlushMode::Async { interval_ms: 500, .. }));
    }

    #[test]
    fn host_and_port_are_told_apart() {
        assert_eq!(split_host_port("a.b:1"), Some(("a.b", 1)));
        assert_eq!(split_host_port("[::1]:9"), Some(("::1", 9)));
        for bad in ["", "a", "a:", ":1", "a:0", "a:65536", "::1:9", "a b:1", "[::1:9", "a,b:1"] {
            assert_eq!(split_host_port(bad), None, "{bad}");
        }
    }
}
