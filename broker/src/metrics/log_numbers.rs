//! The replica's place in its group and its log, in numbers: looked up at each scrape.

use std::time::Duration;

use flotilla_metrics::{Buckets, Exposition};
use flotilla_raft_log::{LogIndex, LogStats, LogStatus, Role, Standing, SyncHistogram};

use super::counters::{HandOverCause, Refused, ReplicaRead};
use crate::replica::Replica;

const ROLES: [(Role, &str); 4] = [
    (Role::Leader, "leader"),
    (Role::Follower, "follower"),
    (Role::Candidate, "candidate"),
    (Role::Learner, "learner"),
];

/// Writes them down.
pub fn write(replica: &Replica, out: &mut Exposition) {
    let (seen, stats) = (replica.log.status(), replica.log.stats());
    write_place(replica, &seen, out);
    write_marks(replica, &seen, &stats, out);
    write_retention(replica, out);
    write_peers(replica, &seen, &stats, out);
    write_disk(replica, &seen, &stats, out);
    write_calls(replica, out);
}

fn index(index: Option<LogIndex>) -> u64 {
    index.map_or(0, |index| index.0)
}

fn flag(is_set: bool) -> u64 {
    u64::from(is_set)
}

fn write_place(replica: &Replica, seen: &LogStatus, out: &mut Exposition) {
    for (role, name) in ROLES {
        let help = "1 for the role that this replica has, 0 for the others.";
        out.gauge_whole("flotilla_raft_role", help, &[("role", name)], flag(seen.role == role));
    }
    out.gauge_whole("flotilla_raft_term", "Highest term that this replica knows.", &[], seen.term.0);
    let leader = seen.leader.map_or(0, |leader| leader.0);
    out.gauge_whole("flotilla_raft_leader", "Number of the leader that this replica knows, 0 if none.", &[], leader);
    let help = "1 if this replica leads, has heard a quorum within its lease and may write.";
    out.gauge_whole("flotilla_raft_can_write", help, &[], flag(seen.can_write));
    out.gauge_whole("flotilla_raft_voters", "Replicas with a vote.", &[], seen.members.len() as u64);
    let in_sync = if seen.role == Role::Leader { replica.log.replication().in_sync.len() as u64 } else { 0 };
    let help = "Replicas that keep up, the leader included: sends at level sync wait for them. 0 on a follower.";
    out.gauge_whole("flotilla_raft_in_sync_replicas", help, &[], in_sync);
    let lost = replica.log.lost_tail();
    let help = "Messages that this replica had acknowledged before their commit, and that another leader overrode.";
    out.gauge_whole("flotilla_async_tail_lost_messages", help, &[], lost.messages);
    let help = "1 while this replica may have lost entries that it had confirmed, and does not vote.";
    out.gauge_whole("flotilla_raft_holds_vote", help, &[], flag(replica.log.is_recovering()));
    let help = "1 while the group knows this replica in another directory: its disk was lost, and it neither votes nor counts.";
    let has_lost = matches!(replica.log.standing(), Standing::LostDisk { .. });
    out.gauge_whole("flotilla_raft_lost_disk", help, &[], flag(has_lost));
    let help = "1 once the group has gone on without this replica's directory, by an operator's order.";
    let is_given_up = matches!(replica.log.standing(), Standing::GivenUp { .. });
    out.gauge_whole("flotilla_raft_given_up", help, &[], flag(is_given_up));
    let help = "The group's epoch: how often it went on without its majority, by an operator's order.";
    out.gauge_whole("flotilla_raft_epoch", help, &[], replica.log.members().epoch.into());
    let help = "Feature level that this replica's state has come to.";
    out.gauge_whole("flotilla_feature_level", help, &[], replica.store.feature_level().into());
    let help = "Highest feature level that this replica's program supports.";
    out.gauge_whole("flotilla_feature_level_supported", help, &[], replica.config.feature_level_max.into());
    let (changes, won) = replica.counters.leader_changes();
    let help = "How often this replica saw the leader, its term or its right to write change.";
    out.counter("flotilla_raft_leader_changes_total", help, &[], changes);
    out.counter("flotilla_raft_elections_won_total", "How often this replica came to lead.", &[], won);
    for cause in HandOverCause::ALL {
        let (done, failed) = replica.counters.hand_overs(cause);
        write_hand_overs(cause.text(), done, failed, out);
    }
    let integrity = replica.log.integrity();
    write_hand_overs("unsound", integrity.hand_overs_done_total, integrity.hand_overs_failed_total, out);
}

fn write_hand_overs(cause: &str, done: u64, failed: u64, out: &mut Exposition) {
    for (result, count) in [("done", done), ("failed", failed)] {
        let help = "Hand-overs of leadership by this replica, by cause and result.";
        out.counter("flotilla_raft_hand_overs_total", help, &[("cause", cause), ("result", result)], count);
    }
}

fn write_retention(replica: &Replica, out: &mut Exposition) {
    let retention = replica.store.retention();
    let help = "First entry that the group keeps: what is older may be purged on every replica.";
    out.gauge_whole("flotilla_retention_kept_from_index", help, &[], retention.trimmed_below);
    let help = "Messages that went before a group had consumed them, counted once for each group.";
    out.counter("flotilla_retention_expired_total", help, &[], retention.expired);
    let help = "Messages that wait outside of queues, or stand in a slot that refers to an earlier entry.";
    out.gauge_whole("flotilla_retention_references", help, &[], retention.references as u64);
    let help = "Longest time since the start that entries waited for a checkpoint.";
    let pause = replica.log.checkpoint_pause_max();
    out.gauge("flotilla_checkpoint_pause_max_seconds", help, &[], pause.as_secs_f64());
}

fn write_marks(replica: &Replica, seen: &LogStatus, stats: &LogStats, out: &mut Exposition) {
    let marks: [(&str, &str, u64); 8] = [
        ("flotilla_log_last_index", "Last entry of this replica's log.", index(seen.last)),
        ("flotilla_log_durable_index", "Last entry up to which this replica's log is on disk.", index(seen.durable)),
        ("flotilla_log_committed_index", "Last entry of its log that is known to be committed.", index(seen.committed)),
        ("flotilla_log_applied_index", "Last entry that this replica has applied.", index(seen.applied)),
        (
            "flotilla_raft_cluster_committed_index",
            "Last entry that the leader said to be committed, whether it is here or not.",
            index(stats.cluster_committed),
        ),
        ("flotilla_log_first_index", "Oldest entry that can be read; 0 if there is none.", index(stats.first)),
        ("flotilla_log_purged_index", "Last entry that was purged; 0 if none was.", index(stats.purged)),
        ("flotilla_log_snapshot_index", "Last entry that the newest snapshot covers.", index(stats.snapshot)),
    ];
    for (name, help, value) in marks {
        out.gauge_whole(name, help, &[], value);
    }
    let known = index(seen.committed.max(stats.cluster_committed));
    let lag = known.saturating_sub(index(seen.applied));
    out.gauge_whole("flotilla_apply_lag_entries", "Entries that are committed and not applied here.", &[], lag);
    let help = "For how long the log of this replica has held entries that are not applied here.";
    out.gauge("flotilla_apply_lag_seconds", help, &[], replica.seconds_behind(seen.applied).as_secs_f64());
    let help = "Bytes of the log that are not applied here, about.";
    out.gauge_whole("rocketmq_storage_dispatch_behind_bytes", help, &[], stats.unapplied_bytes);
    let help = "Bytes of the log that are not on disk, about.";
    out.gauge_whole("rocketmq_storage_flush_behind_bytes", help, &[], stats.undurable_bytes);
}

fn write_peers(replica: &Replica, seen: &LogStatus, stats: &LogStats, out: &mut Exposition) {
    if seen.role != Role::Leader {
        return;
    }
    if let Some(silent_for) = stats.quorum_silent_for {
        let help = "On the leader: how long ago a quorum was heard.";
        out.gauge("flotilla_raft_quorum_silence_seconds", help, &[], silent_for.as_secs_f64());
    }
    for peer in &stats.peers {
        let number = peer.node.to_string();
        let labels = [("peer", number.as_str())];
        let entries = index(seen.last).saturating_sub(index(peer.matched));
        let help = "On the leader: entries that the peer is not known to have.";
        out.gauge_whole("flotilla_raft_peer_lag_entries", help, &labels, entries);
        let help = "On the leader: bytes of the entries that the peer is not known to have, about.";
        out.gauge_whole("flotilla_raft_peer_lag_bytes", help, &labels, peer.lag_bytes);
        let behind = replica.seconds_behind(peer.matched).as_secs_f64();
        let help = "On the leader: for how long it has held entries that the peer is not known to have.";
        out.gauge("flotilla_raft_peer_lag_seconds", help, &labels, behind);
        let silence = peer.silent_for.map_or(f64::INFINITY, |silence| silence.as_secs_f64());
        let help = "On the leader: how long ago the peer was heard; +Inf if never in this term.";
        out.gauge("flotilla_raft_peer_silence_seconds", help, &labels, silence);
    }
}

fn write_disk(replica: &Replica, seen: &LogStatus, stats: &LogStats, out: &mut Exposition) {
    let help = "Times of the log's syncs (fdatasync).";
    out.histogram("flotilla_log_sync_seconds", help, &[], &buckets(&replica.log.sync_histogram()));
    let help = "Longest sync of the log in the last five to ten seconds, one under way included.";
    out.gauge("flotilla_log_sync_recent_max_seconds", help, &[], seen.disk.sync_max.as_secs_f64());
    let help = "1 if the longest recent sync took longer than the limit.";
    out.gauge_whole("flotilla_disk_slow", help, &[], flag(seen.disk.is_slow));
    let help = "1 if there is no room for another segment: sends are, or will soon be, refused.";
    out.gauge_whole("flotilla_disk_full", help, &[], flag(seen.disk.is_full));
    if let Some(bytes) = stats.disk_free_bytes {
        let help = "Bytes that may still be written to the file system of the log.";
        out.gauge_whole("flotilla_disk_free_bytes", help, &[], bytes);
    }
    if let Some(bytes) = stats.disk_total_bytes {
        out.gauge_whole("flotilla_disk_size_bytes", "Size of the file system of the log.", &[], bytes);
    }
    let help = "Free bytes below which sends are refused.";
    out.gauge_whole("flotilla_disk_free_min_bytes", help, &[], stats.disk_free_bytes_min);
    out.gauge_whole("rocketmq_storage_size", "Bytes of all segment files of the log.", &[], stats.files_bytes);
    if let Some(bytes) = replica.config.data_bytes_max {
        out.gauge_whole("flotilla_log_quota_bytes", "Quota for the segment files.", &[], bytes);
    }
    out.gauge_whole("flotilla_log_segments", "Segments that hold entries.", &[], stats.segments);
}

pub(super) fn buckets(histogram: &SyncHistogram) -> Buckets {
    let (last, within): (Vec<_>, Vec<_>) = histogram.buckets().partition(|(bound, _)| *bound == Duration::MAX);
    Buckets {
        within: within.into_iter().map(|(bound, count)| (bound.as_secs_f64(), count)).collect(),
        above: last.into_iter().map(|(_, count)| count).sum(),
        sum: None,
    }
}

fn write_calls(replica: &Replica, out: &mut Exposition) {
    let [(calls, bytes), (polls, poll_bytes)] = [replica.parking.used(), replica.poll_parking.used()];
    let (calls, bytes) = (calls + polls, bytes + poll_bytes);
    out.gauge_whole("flotilla_parked_calls", "Calls that wait for a leader.", &[], calls);
    out.gauge_whole("flotilla_parked_bytes", "Bytes of the calls that wait for a leader.", &[], bytes);
    let help = "Calls that this replica has passed on to the leader, not answered yet.";
    out.gauge_whole("flotilla_forwarded_calls", help, &[], replica.forwarder.under_way().used().0);
    let help = "Polls that this replica has passed on to the leader, not answered yet.";
    out.gauge_whole("flotilla_forwarded_polls", help, &[], replica.forwarder.polls_under_way().used().0);
    let help = "Commands that wait for a place in a log entry.";
    out.gauge_whole("flotilla_queued_commands", help, &[], replica.proposer.queued());
    let help = "Bytes of messages that clients have not read yet, or that the leader may bring for them.";
    out.gauge_whole("flotilla_unread_answer_bytes", help, &[], replica.unread.bytes());
    for cause in Refused::ALL {
        let count = match cause {
            Refused::ParkingFull => replica.parking.refusals() + replica.poll_parking.refusals(),
            Refused::ForwardingFull => {
                replica.forwarder.under_way().refusals() + replica.forwarder.polls_under_way().refusals()
            }
            cause => replica.counters.refusals(cause),
        };
        let help = "Calls and commands refused, surely without effect, by cause.";
        out.counter("flotilla_refused_total", help, &[("cause", cause.text())], count);
    }
    let help = "Calls whose callers were told that the outcome is unknown.";
    out.counter("flotilla_unknown_outcomes_total", help, &[], replica.counters.unknown_outcomes());
    let help = "Pulls at a follower that were answered from its log, or passed on to the leader.";
    for what in ReplicaRead::ALL {
        out.counter(
            "flotilla_replica_reads_total",
            help,
            &[("result", what.text())],
            replica.counters.replica_reads(what),
        );
    }
    for (name, times) in replica.counters.calls() {
        let is_poll = if matches!(name, "ReceiveMessage" | "PullMessage") { "true" } else { "false" };
        let labels = [("protocol_type", "grpc"), ("request_code", name), ("is_long_polling", is_poll)];
        let help = "Times of clients' calls at the replica that they came to, milliseconds.";
        out.histogram("rocketmq_rpc_latency", help, &labels, &times.buckets(1000.0));
    }
    let now = replica.runtime.now();
    for namesrv in &replica.config.namesrv {
        let age = replica.counters.unregistered_for(namesrv, now).map_or(f64::INFINITY, |age| age.as_secs_f64());
        let help = "How long ago this namesrv took the replica's row; +Inf if it never did.";
        out.gauge("flotilla_registration_age_seconds", help, &[("namesrv", namesrv)], age);
    }
    let (clients, streams) = replica.clients.counts();
    out.gauge_whole("flotilla_clients", "Clients known here.", &[], clients as u64);
    out.gauge_whole("flotilla_client_streams", "Open telemetry streams.", &[], streams as u64);
}
