//! The duty that lets go of messages of topics that keep them for a shorter time than the log does.

use std::sync::Arc;
use std::time::Duration;

use flotilla_raft_log::Term;
use flotilla_store::{Command, ExpiredTopic, Outcome, Rejection};

use super::news::{REFUSED_PAUSE, led_here};
use crate::replica::Replica;

/// What may go is looked at this often.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Runs as long as the replica; rests while another one leads.
pub async fn retain_topics(replica: Arc<Replica>) {
    loop {
        let (term, generation) = led_here(&replica).await;
        let now_ms = replica.clock.now_ms(term, &replica.store);
        let store = replica.store.clone();
        match replica.runtime.blocking(move || store.expired_topics(now_ms)).await {
            Ok(topics) => {
                for topic in topics {
                    if let Err(reason) = let_go(&replica, term, &topic).await {
                        tracing::warn!(topic = %topic.name, reason, "old messages of a topic not let go");
                        replica.runtime.sleep(REFUSED_PAUSE).await;
                        break;
                    }
                }
            }
            // The store itself meets the damage when it reads for a consumer.
            Err(error) => tracing::warn!(%error, "age of topics' messages is not known"),
        }
        replica.leadership.changed_from(generation, replica.runtime.now() + LOOK_INTERVAL).await;
    }
}

async fn let_go(replica: &Replica, term: Term, topic: &ExpiredTopic) -> Result<(), String> {
    let ExpiredTopic { name, uid, before_ms } = topic.clone();
    let command = Command::TrimTopic { name, uid, before_ms };
    match replica.proposer.submit(term, command).await.map_err(|error| error.to_string())?.outcome {
        Outcome::TopicTrimmed { slots } => {
            tracing::info!(topic = %topic.name, slots, before_ms, "old messages of a topic let go");
            Ok(())
        }
        // Deleted meanwhile, or another replica leads.
        Outcome::Rejected(
            Rejection::TopicNotFound | Rejection::TopicReplaced { .. } | Rejection::TermPassed { .. },
        ) => Ok(()),
        other => Err(format!("{other:?}")),
    }
}
