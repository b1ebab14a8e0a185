//! An operator hands leadership to another replica.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{About, Field, FieldError, Nemesis};

pub(super) const ABOUT: About = About {
    what: "leadership is handed to a follower by an operator's call, while messages flow",
    heals: "nothing is broken: over when the new one leads",
};

const TRANSFER_TIMEOUT: Duration = Duration::from_secs(5);

/// A transfer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransferLeader {
    /// To which of the followers: counted from 0 by number, round and round.
    pub pick: u64,
}

impl Nemesis for TransferLeader {
    async fn hurt(&self, field: &mut Field) -> Result<Vec<u64>, FieldError> {
        let target = field.follower(self.pick).await?;
        field.admin.transfer_leader(Some(target), TRANSFER_TIMEOUT).await?;
        Ok(vec![target])
    }

    async fn heal(&self, _: &mut Field, _: &[u64]) -> Result<(), FieldError> {
        Ok(())
    }
}
