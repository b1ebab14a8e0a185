//! The duty that brings the replicated state in line with what was asked for before: queues that were to go and are drained
//! by now, and the leader's settings that are kept in the log.

use std::sync::Arc;
use std::time::Duration;

use flotilla_raft_log::Term;
use flotilla_store::{Command, Outcome};

use super::news::led_here;
use crate::replica::Replica;

/// How often it is looked whether there is something to do.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);
/// Topics that one look deals with.
const TOPICS_MAX: usize = 64;

/// Runs as long as the replica; rests while another one leads.
pub async fn tidy(replica: Arc<Replica>) {
    loop {
        let (term, generation) = led_here(&replica).await;
        let entries_max = replica.config.dedup_entries_max;
        if replica.store.dedup_status().entries_max != entries_max as usize {
            propose(&replica, term, Command::SetDedupWindow { entries_max }).await;
        }
        for (name, uid) in replica.store.drained_topics(TOPICS_MAX) {
            propose(&replica, term, Command::DropDrained { name, uid }).await;
        }
        replica.leadership.changed_from(generation, replica.runtime.now() + LOOK_INTERVAL).await;
    }
}

/// What fails is tried again at the next look.
async fn propose(replica: &Replica, term: Term, command: Command) {
    let told = format!("{command:?}");
    match replica.proposer.submit(term, command).await.map(|settled| settled.outcome) {
        Ok(Outcome::Rejected(rejection)) => tracing::debug!(told, %rejection, "not tidied up"),
        Ok(outcome) => tracing::info!(told, ?outcome, "tidied up"),
        Err(error) => tracing::debug!(told, %error, "not tidied up"),
    }
}
