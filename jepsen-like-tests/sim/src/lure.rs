//! Where a planted bug shows soonest: the faults and speeds that it needs. Its seeds stay as random as all others.

use flotilla_planted_bugs::Bug;

use crate::options::{FaultClasses, Machine, Options};

/// The machine in which the bug is looked for; `None` if no simulation reaches it, with the reason.
pub fn machine_for(bug: Bug) -> Result<Machine, &'static str> {
    match bug {
        Bug::HalfVisible
        | Bug::TransactionEndsTwice
        | Bug::DelayTooShort
        | Bug::DeadLetterDropped
        | Bug::ReadsWithoutLease
        | Bug::LowerTermRegistered
        | Bug::ProgressInMemory => Ok(Machine::Broker),
        Bug::LearnerCounted => {
            Err("one more that must confirm: nothing is lost by it, sends at level `sync` only wait longer")
        }
        _ => Ok(Machine::Store),
    }
}

/// Makes a run one in which the bug may show.
pub(crate) fn lure(bug: Bug, options: &mut Options) {
    let classes = &mut options.classes;
    match bug {
        Bug::AckBeforeSync | Bug::VoteNotDurable => {
            classes.power_losses = true;
            options.kept_permille = 0;
        }
        Bug::CheckpointAheadOfLog => {
            // A sync of the log that takes long, a checkpoint that does not, and then no power.
            *classes = FaultClasses { power_losses: true, ..FaultClasses::default() };
            options.kept_permille = 0;
            options.stall_permille = 200;
            options.stall_us = (50_000, 400_000);
            options.sync_us = (50, 1_000);
            options.fault_interval_ms = (50, 500);
            options.down_ms = vec![1, 30, 200];
            options.think_ms = (0, 5);
        }
        Bug::LeaderRestored => {
            // Back before anybody votes, without the tail that others have: a slow disk, and peers that learn nothing.
            *classes = FaultClasses { power_losses: true, ..FaultClasses::default() };
            options.down_ms = vec![1];
            options.kept_permille = 0;
            options.sync_us = (2_000, 15_000);
            options.elect_on_peer_gone = false;
            options.fault_interval_ms = (100, 700);
            options.think_ms = (0, 5);
            options.wall_offset_ms_max = 0;
        }
        Bug::SuffixNotTruncated | Bug::CacheNotTruncated | Bug::StaleLeaderObeyed | Bug::ReadsUncommitted => {
            classes.partitions = true;
            classes.one_way = true;
            options.fault_interval_ms = (50, 700);
            options.think_ms = (0, 5);
        }
        Bug::SyncErrorIgnored => classes.sync_errors = true,
        Bug::TailNotChecked => {
            classes.power_losses = true;
            options.kept_permille = 300;
            options.think_ms = (0, 5);
        }
        Bug::CheckpointLacksEntry | Bug::DuplicatesForgotten | Bug::ProgressInMemory => {
            classes.kills = true;
            options.body_bytes_max = 3_000;
            options.think_ms = (0, 5);
            options.consumer_count = options.consumer_count.max(1);
        }
        Bug::ReadsWithoutLease => {
            // Long enough for another leader, and for clients to find it.
            *classes = FaultClasses { partitions: true, ..FaultClasses::default() };
            options.cut_ms = vec![2_500, 4_000];
            options.fault_interval_ms = (2_500, 4_500);
            options.think_ms = (0, 5);
        }
        Bug::OrderNotFenced => {
            // Answers that get lost leave messages in flight, and others ask meanwhile.
            options.is_ordered = true;
            options.queue_count = 1;
            options.consumer_count = 3;
            options.links.response_lost_permille = options.links.response_lost_permille.max(40);
        }
        Bug::VotesBeforeRecovery => {
            // One follower is behind, another one has lost its tail, and the leader goes.
            options.confirm_early();
            options.classes = FaultClasses {
                kills: true,
                power_losses: true,
                partitions: true,
                one_way: true,
                ..FaultClasses::default()
            };
            options.replica_count = 3;
            options.kept_permille = 0;
            options.fault_interval_ms = (5, 120);
            options.down_ms = vec![1, 400];
            options.cut_ms = vec![100, 400];
            options.think_ms = (0, 5);
        }
        Bug::LowerTermRegistered => {
            // A replica that is back knows of fewer entries than its row did.
            options.classes.power_losses = true;
            options.classes.kills = true;
            options.down_ms = vec![1, 30];
            options.think_ms = (0, 5);
        }
        Bug::DelayTooShort => options.wall_offset_ms_max = 0,
        _ => {}
    }
}
