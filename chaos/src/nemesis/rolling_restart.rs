//! An operator restarts replica after replica, as for a new version.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::field::CATCH_UP_TIMEOUT;
use super::{About, Field, FieldError, Nemesis};

pub(super) const ABOUT: About = About {
    what: "each replica in turn is stopped with SIGTERM, started, and has caught up before the next one's turn",
    heals: "over when the last one has caught up",
};

/// A graceful stop takes at most 10 s by a broker's own deadline.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);

/// All replicas, one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RollingRestart {
    /// The one to begin with.
    pub first: u64,
    /// How many there are.
    pub replicas: u64,
}

impl RollingRestart {
    fn order(&self) -> Vec<u64> {
        (0..self.replicas).map(|turn| (self.first - 1 + turn) % self.replicas + 1).collect()
    }
}

impl Nemesis for RollingRestart {
    async fn hurt(&self, field: &mut Field) -> Result<Vec<u64>, FieldError> {
        let order = self.order();
        for node in &order {
            field.cluster.stop(*node, STOP_TIMEOUT).await?;
            field.cluster.restart(*node).await?;
            field.view.await_caught_up(*node, CATCH_UP_TIMEOUT).await?;
        }
        Ok(order)
    }

    async fn heal(&self, field: &mut Field, _: &[u64]) -> Result<(), FieldError> {
        let dead = field.cluster.dead_nodes();
        Ok(field.cluster.restart_all(&dead).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_replica_has_its_turn() {
        assert_eq!(RollingRestart { first: 1, replicas: 3 }.order(), [1, 2, 3]);
        assert_eq!(RollingRestart { first: 3, replicas: 3 }.order(), [3, 1, 2]);
        assert_eq!(RollingRestart { first: 4, replicas: 5 }.order(), [4, 5, 1, 2, 3]);
    }
}
