//! A replica's network cable is pulled: peers, clients and the namesrv are gone for it, and it for them. No kernel says so.

use serde::{Deserialize, Serialize};

use super::{About, Field, FieldError, Nemesis, Victim};

pub(super) const ABOUT: About = About {
    what: "the network cable of the leader or one follower is pulled: it hears nobody, and nobody is told (namespaces)",
    heals: "the cable is put back",
};

/// No network at all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unplug {
    /// Whose cable.
    #[serde(flatten)]
    pub victim: Victim,
}

impl Nemesis for Unplug {
    async fn hurt(&self, field: &mut Field) -> Result<Vec<u64>, FieldError> {
        let nodes = self.victim.nodes(field).await?;
        let namespaces = field.namespaces()?;
        nodes.iter().for_each(|node| namespaces.set_unplugged(*node, true));
        Ok(nodes)
    }

    async fn heal(&self, field: &mut Field, targets: &[u64]) -> Result<(), FieldError> {
        let namespaces = field.namespaces()?;
        targets.iter().for_each(|node| namespaces.set_unplugged(*node, false));
        Ok(())
    }
}
