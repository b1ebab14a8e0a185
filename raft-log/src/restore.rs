//! Which checkpoint a start begins from: the newest that the machine takes, else an older one, else none if the log still
//! holds everything.

use crate::checkpoint_file::Checkpoint;
use crate::checkpoint_store::CheckpointStore;
use crate::log_view::LogView;
use crate::recovery_report::SkippedCheckpoint;
use crate::{LogIndex, OpenError, RestoreError};

/// Takes a state whose last applied entry is the given one; what `StateMachine::restore` does.
pub(crate) type Restore<'a> = dyn FnMut(&[u8], LogIndex) -> Result<(), RestoreError> + 'a;

/// Hands `newest` to `restore` or, if that refuses it, an older one. Returns the one that it took; `None` means that the machine
/// is empty and the log is applied from its first entry on. Blocks.
pub(crate) fn restore_newest(
    restore: &mut Restore<'_>,
    log: &LogView,
    checkpoints: &CheckpointStore,
    newest: Option<Checkpoint>,
    check: impl Fn(&Checkpoint) -> Result<(), String>,
) -> Result<Option<Checkpoint>, OpenError> {
    let purged = log.ends().0.map(|purged| purged.index);
    let reaches_back = |checkpoint: &Checkpoint| Some(checkpoint.last.index) >= purged;
    let mut candidate = newest.filter(reaches_back);
    while let Some(checkpoint) = candidate {
        let last = checkpoint.last;
        let taken =
            check(&checkpoint).and_then(|()| restore(&checkpoint.state, last.index).map_err(|error| error.to_string()));
        match taken {
            Ok(()) => {
                log.note_recovery(|report| report.checkpoint = Some(last.index));
                return Ok(Some(checkpoint));
            }
            Err(why) => {
                tracing::warn!(%last, why, "checkpoint cannot be restored, an older one counts");
                log.note_recovery(|report| {
                    report.skipped_checkpoints.push(SkippedCheckpoint { last: last.index, why });
                });
                candidate = checkpoints.pass_over(last.index).filter(reaches_back);
            }
        }
    }
    let first = log.first();
    if purged.is_some() || first > LogIndex(0) {
        let tried = log.recovery().skipped_checkpoints;
        let tried: Vec<String> =
            tried.iter().map(|skipped| format!("checkpoint {}: {}", skipped.last, skipped.why)).collect();
        let dir = checkpoints.dir().to_owned();
        return Err(OpenError::NoCheckpoint { dir, first, tried });
    }
    tracing::info!("no checkpoint, the log is applied from its first entry on");
    Ok(None)
}
