//! The duty that raises the group's feature level once every member runs a program that supports a higher one.

use std::sync::Arc;
use std::time::Duration;

use flotilla_store::{Command, Outcome};

use super::news::led_here;
use crate::replica::Replica;

/// How often it is looked whether all support more.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// All must have supported it for so many looks in a row: a replica that is just being replaced has been heard by then.
const LOOKS: u32 = 2;

/// Runs as long as the replica; rests while another one leads.
pub async fn raise(replica: Arc<Replica>) {
    let mut looks = 0;
    loop {
        let (term, generation) = led_here(&replica).await;
        let common = replica.log.common_feature_level();
        let higher = common.filter(|level| *level > replica.store.feature_level());
        looks = if higher.is_some() { looks + 1 } else { 0 };
        if let Some(level) = higher.filter(|_| looks >= LOOKS) {
            match replica.proposer.submit(term, Command::RaiseLevel { level }).await.map(|settled| settled.outcome) {
                Ok(Outcome::Noted) => {
                    tracing::info!(level, "all replicas support it: the group's feature level is raised")
                }
                // Tried again at the next look.
                Ok(outcome) => tracing::debug!(level, ?outcome, "feature level is not raised"),
                Err(error) => tracing::debug!(level, %error, "feature level is not raised"),
            }
        }
        replica.leadership.changed_from(generation, replica.runtime.now() + LOOK_INTERVAL).await;
    }
}
