//! A replica falls behind, and its leader must say so.

use std::time::Duration;

use flotilla_proto::admin::FollowerMarks;
use serde::{Deserialize, Serialize};

use super::{About, Field, FieldError, Nemesis};

pub(super) const ABOUT: About = About {
    what: "a follower stands still, and the leader's status must tell in time that it lags and does not keep up",
    heals: "it goes on, and the status must tell in time that it keeps up again",
};

const LOOK: Duration = Duration::from_millis(50);

/// A lag that is seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LagShown {
    /// Which of the followers: counted from 0 by number, round and round.
    pub pick: u64,
    /// How long the leader may take to tell.
    pub within_ms: u64,
}

impl LagShown {
    /// Waits until the leader says of that follower what is asked for.
    async fn await_word(
        &self,
        field: &Field,
        node: u64,
        what: &str,
        is_so: impl Fn(&FollowerMarks) -> bool,
    ) -> Result<Duration, FieldError> {
        let begun = field.runtime.now();
        loop {
            let statuses = field.view.statuses().await;
            let leader = statuses.iter().filter_map(|(_, status)| status.as_ref().ok()).find(|status| status.can_write);
            let marks = leader.and_then(|status| status.followers.iter().find(|marks| marks.node == node));
            let took = field.runtime.now() - begun;
            if marks.is_some_and(&is_so) {
                return Ok(took);
            }
            if took > Duration::from_millis(self.within_ms) {
                return Err(FieldError::Wrong(format!(
                    "the leader does not tell within {} ms that replica {node} {what}; it says {marks:?}",
                    self.within_ms
                )));
            }
            field.runtime.sleep(LOOK).await;
        }
    }
}

impl Nemesis for LagShown {
    async fn hurt(&self, field: &mut Field) -> Result<Vec<u64>, FieldError> {
        let node = field.follower(self.pick).await?;
        field.cluster.pause(node)?;
        let lags = |marks: &FollowerMarks| !marks.in_sync && marks.lag_entries > 0 && marks.lag_ms > 0;
        let took = self.await_word(field, node, "lags", lags).await?;
        field.notes.push(format!("told after {} ms that replica {node} lags", took.as_millis()));
        Ok(vec![node])
    }

    async fn heal(&self, field: &mut Field, targets: &[u64]) -> Result<(), FieldError> {
        for node in targets {
            field.cluster.resume(*node)?;
            let took = self.await_word(field, *node, "keeps up again", |marks| marks.in_sync).await?;
            field.notes.push(format!("told after {} ms that replica {node} keeps up again", took.as_millis()));
        }
        Ok(())
    }
}
