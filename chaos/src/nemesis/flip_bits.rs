//! Bits rot: something on a replica's disk is not what was written.

use std::os::unix::fs::FileExt;

use serde::{Deserialize, Serialize};

use super::field::SavedBytes;
use super::power_loss::{files_of, log_files, tail_of};
use super::{About, Field, FieldError, Nemesis, Victim};
use crate::rng::Rng;

pub(super) const SEALED: About = About {
    what: "one bit changes in a log file that is no longer written to, of a replica that runs or is down meanwhile",
    heals: "the bit is put back where it still stands; a replica that ended or refused to start is started",
};
pub(super) const ACTIVE: About = About {
    what: "one bit changes in the log file that is written to, of a replica that runs or is down meanwhile",
    heals: "the bit is put back where it still stands; a replica that ended or refused to start is started",
};

pub(super) const CHECKPOINT: About = About {
    what: "one bit changes in the newest checkpoint of a replica that is down meanwhile",
    heals: "the bit is put back where it still stands; a replica that ended or refused to start is started",
};

/// Which file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FilePart {
    /// A log file before the last one.
    Sealed,
    /// The last one.
    Active,
    /// Vote and marks.
    Vote,
    /// The newest checkpoint.
    Checkpoint,
}

/// A changed bit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlipBits {
    /// Whose.
    #[serde(flatten)]
    pub victim: Victim,
    /// In what.
    pub part: FilePart,
    /// Where: in thousandths of the file's written length.
    pub at_permille: u64,
    /// The replica is down meanwhile, and reads its files anew.
    pub is_down: bool,
}

impl FlipBits {
    pub(super) fn draw(rng: &mut Rng, replicas: u64, part: FilePart) -> FlipBits {
        let victim = Victim::Follower { pick: rng.below(replicas) };
        FlipBits { victim, part, at_permille: rng.below(1_000), is_down: rng.coin() }
    }

    fn flip(&self, field: &mut Field, node: u64) -> Result<(), FieldError> {
        let mut files = log_files(field, node)?;
        let path = match self.part {
            FilePart::Active => files.pop(),
            FilePart::Sealed => {
                files.pop();
                let count = files.len();
                files.into_iter().nth(self.at_permille as usize * 7 % count.max(1))
            }
            FilePart::Checkpoint => files_of(field, node, "ckp")?.pop(),
            FilePart::Vote => Some(field.cluster.data(node).join("log/vote-and-marks")),
        };
        let Some(path) = path else {
            return Err(FieldError::Nothing(format!("broker {node} has no such file yet")));
        };
        let error = |source| FieldError::Io { path: path.clone(), source };
        let file = std::fs::File::options().read(true).write(true).open(&path).map_err(error)?;
        let at = tail_of(&file).map_err(error)?.saturating_sub(1) * self.at_permille / 1_000;
        let mut before = [0];
        file.read_exact_at(&mut before, at).map_err(error)?;
        let after = [before[0] ^ (1 << (self.at_permille % 8))];
        file.write_all_at(&after, at).and_then(|()| file.sync_data()).map_err(error)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        field
            .notes
            .push(format!("broker {node}: byte {at} of {name} is {:#04x} instead of {:#04x}", after[0], before[0]));
        field.saved.push(SavedBytes { node, path, at, before: before.to_vec(), after: after.to_vec() });
        Ok(())
    }
}

impl Nemesis for FlipBits {
    async fn hurt(&self, field: &mut Field) -> Result<Vec<u64>, FieldError> {
        let nodes = self.victim.nodes(field).await?;
        for node in &nodes {
            if self.is_down {
                field.cluster.kill(*node).await?;
            }
            self.flip(field, *node)?;
            if self.is_down
                && let Err(error) = field.cluster.restart(*node).await
            {
                // As it should: what is damaged must not be served.
                field.notes.push(super::field::short(&error.to_string()));
            }
        }
        Ok(nodes)
    }

    async fn heal(&self, field: &mut Field, targets: &[u64]) -> Result<(), FieldError> {
        field.put_back(targets)?;
        field.mend(targets).await
    }
}
