//! The namesrv is gone: who knows the replicas already goes on with them.

use serde::{Deserialize, Serialize};

use super::{About, Field, FieldError, Nemesis};

pub(super) const ABOUT: About = About {
    what: "SIGKILL to the namesrv; clients must live from the routes they know",
    heals: "it is started again after the hold, remembers nothing, and learns all from the replicas",
};

/// No namesrv.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamesrvLoss {}

impl Nemesis for NamesrvLoss {
    async fn hurt(&self, field: &mut Field) -> Result<Vec<u64>, FieldError> {
        field.cluster.kill_namesrv().await?;
        Ok(Vec::new())
    }

    async fn heal(&self, field: &mut Field, _: &[u64]) -> Result<(), FieldError> {
        Ok(field.cluster.restart_namesrv().await?)
    }
}
