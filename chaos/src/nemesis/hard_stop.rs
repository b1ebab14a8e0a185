//! A process that is asked to end and then has its patience cut short, as by a supervisor in a hurry.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{About, Field, FieldError, Nemesis, Victim};

pub(super) const ABOUT: About = About {
    what: "SIGTERM to one replica under load, and SIGKILL 20 ms later, in the middle of its graceful stop",
    heals: "it is started again on its data after the hold",
};

const PATIENCE: Duration = Duration::from_millis(20);

/// A stop that is not waited for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HardStop {
    /// Whom.
    #[serde(flatten)]
    pub victim: Victim,
}

impl Nemesis for HardStop {
    async fn hurt(&self, field: &mut Field) -> Result<Vec<u64>, FieldError> {
        let nodes = self.victim.nodes(field).await?;
        for node in &nodes {
            let was_graceful = field.cluster.stop(*node, PATIENCE).await?;
            field.notes.push(format!("broker {node} {}", if was_graceful { "ended in time" } else { "was killed" }));
        }
        Ok(nodes)
    }

    async fn heal(&self, field: &mut Field, targets: &[u64]) -> Result<(), FieldError> {
        Ok(field.cluster.restart_all(targets).await?)
    }
}
