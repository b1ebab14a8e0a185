//! One replica and the other replicas hear each other, and no client reaches it.

use serde::{Deserialize, Serialize};

use super::{About, Field, FieldError, Nemesis, Style, Victim};
use crate::cluster::links::Door;

pub(super) const ABOUT: About = About {
    what: "no client reaches the leader or one follower, while the replicas hear each other (namespaces)",
    heals: "clients reach it again",
};

/// All clients, the harness among them, lose one replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CutClients {
    /// Which one.
    #[serde(flatten)]
    pub victim: Victim,
    /// What their packets meet.
    pub style: Style,
}

impl Nemesis for CutClients {
    async fn hurt(&self, field: &mut Field) -> Result<Vec<u64>, FieldError> {
        let nodes = self.victim.nodes(field).await?;
        let namespaces = field.namespaces()?;
        let door = match self.style {
            Style::Silent => Door::Frozen,
            Style::Reset => Door::Closed,
        };
        nodes.iter().for_each(|node| namespaces.set_clients(*node, door));
        Ok(nodes)
    }

    async fn heal(&self, field: &mut Field, targets: &[u64]) -> Result<(), FieldError> {
        let namespaces = field.namespaces()?;
        targets.iter().for_each(|node| namespaces.set_clients(*node, Door::Open));
        Ok(())
    }
}
