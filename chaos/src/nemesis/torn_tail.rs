//! The last bytes of the log are not there after a crash, though they had been synced once: a disk that lied.

use std::os::unix::fs::FileExt;

use serde::{Deserialize, Serialize};

use super::field::SavedBytes;
use super::power_loss::{log_files, tail_of};
use super::{About, Field, FieldError, Nemesis, Victim};
use crate::rng::Rng;

pub(super) const ABOUT: About = About {
    what: "a follower is killed and the last 1 to 4,096 bytes of its log are zeroes when it starts",
    heals: "over when it has caught up; where it refused to start its log is put back",
};

/// A log without its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TornTail {
    /// Whose.
    #[serde(flatten)]
    pub victim: Victim,
    /// So much.
    pub bytes: u64,
}

impl TornTail {
    pub(super) fn draw(rng: &mut Rng, replicas: u64) -> TornTail {
        TornTail { victim: Victim::Follower { pick: rng.below(replicas) }, bytes: rng.magnitude(1, 4_096) }
    }
}

impl Nemesis for TornTail {
    async fn hurt(&self, field: &mut Field) -> Result<Vec<u64>, FieldError> {
        let nodes = self.victim.nodes(field).await?;
        field.cluster.kill_all(&nodes).await?;
        for node in &nodes {
            let Some(path) = log_files(field, *node)?.pop() else { continue };
            let error = |source| FieldError::Io { path: path.clone(), source };
            let file = std::fs::File::options().read(true).write(true).open(&path).map_err(error)?;
            let tail = tail_of(&file).map_err(error)?;
            let start = tail.saturating_sub(self.bytes);
            let mut before = vec![0; (tail - start) as usize];
            file.read_exact_at(&mut before, start).map_err(error)?;
            let after = vec![0; before.len()];
            file.write_all_at(&after, start).and_then(|()| file.sync_data()).map_err(error)?;
            field.saved.push(SavedBytes { node: *node, path, at: start, before, after });
        }
        if let Err(error) = field.cluster.restart_all(&nodes).await {
            field.notes.push(super::field::short(&error.to_string()));
        }
        Ok(nodes)
    }

    async fn heal(&self, field: &mut Field, targets: &[u64]) -> Result<(), FieldError> {
        let dead = field.cluster.dead_nodes();
        let (refused, taken): (Vec<u64>, Vec<u64>) = targets.iter().partition(|node| dead.contains(node));
        // Those that took it have written to that place since.
        field.saved.retain(|saved| !taken.contains(&saved.node));
        field.put_back(&refused)?;
        field.mend(targets).await?;
        field.await_caught_up(targets).await
    }
}
