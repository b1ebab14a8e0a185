//! What is to be in a copy, and whether there is room for it.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::{BackupError, BackupProgress, BackupRequest, io_at};
use crate::LogIndex;
use crate::checkpoint_file::{Checkpoint, checkpoint_name};
use crate::checkpoint_store::{CheckpointStore, Pinned};
use crate::disk::{Disk, DiskFile, read_file};
use crate::ids::EntryId;
use crate::log_view::LogView;
use crate::segment::{RecordStream, Segment, SegmentHeader};

/// A log that is purged faster than one looks so often is not copied.
const LOOKS_MAX: u32 = 3;

/// Where a copy comes from and goes to.
pub(super) struct Places {
    pub(super) disk: Arc<dyn Disk>,
    /// The log's own directory.
    pub(super) dir: PathBuf,
    pub(super) view: LogView,
    /// The entry behind which the copy ends.
    pub(super) last: EntryId,
    pub(super) request: BackupRequest,
}

/// A segment of which all counts.
pub(super) struct Whole {
    pub(super) path: Arc<Path>,
    /// It may lose its name meanwhile.
    pub(super) file: Arc<dyn DiskFile>,
    pub(super) header: SegmentHeader,
    pub(super) records: RecordStream,
}

/// The segment that the mark is in, or that begins behind it.
pub(super) struct Cut {
    pub(super) path: Arc<Path>,
    pub(super) header: SegmentHeader,
    /// Its records up to the mark are over there.
    pub(super) position: u64,
}

pub(super) struct Plan {
    pub(super) purged: Option<EntryId>,
    /// Oldest first.
    pub(super) whole: Vec<Whole>,
    pub(super) cut: Cut,
    /// Their names, and what is in them.
    pub(super) checkpoints: Vec<(String, Bytes)>,
    /// Names of the files that they rely on.
    pub(super) sides: BTreeSet<String>,
    /// As long as it is held, none of these goes.
    _pinned: Pinned,
}

impl Plan {
    /// Blocks.
    pub(super) fn make(places: &Places, kept: &CheckpointStore) -> Result<Plan, BackupError> {
        let mut looks = 0;
        let (pinned, purged, indexes) = loop {
            let pinned = kept.pin();
            let purged = places.view.ends().0;
            match chosen(pinned.indexes(), purged, places.last.index) {
                Some(indexes) => break (pinned, purged, indexes),
                // It was purged to one that came a moment ago.
                None if looks < LOOKS_MAX => looks += 1,
                None => {
                    let what = format!("no checkpoint behind entry {} is kept yet", places.last);
                    return Err(io_at(&places.dir)(io::Error::other(what)));
                }
            }
        };
        let (mut checkpoints, mut sides) = (Vec::new(), BTreeSet::new());
        for index in indexes {
            let path = places.dir.join(checkpoint_name(index));
            let unsound = |what| BackupError::Unsound { path: path.clone(), what };
            let bytes = read_file(&*places.disk, &path).map_err(io_at(&path))?;
            let checkpoint = Checkpoint::decode(bytes.clone()).map_err(unsound)?;
            sides.extend((places.request.side_names)(&checkpoint.state).map_err(unsound)?);
            checkpoints.push((checkpoint.file_name(), bytes));
        }
        let (whole, cut) = segments(places, purged)?;
        Ok(Plan { purged, whole, cut, checkpoints, sides, _pinned: pinned })
    }

    /// Notes how much there is to do, and refuses what would leave too little room. Blocks.
    pub(super) fn weigh(&self, places: &Places, progress: &BackupProgress) -> Result<(), BackupError> {
        let checkpoints: u64 = self.checkpoints.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        let mut linked: u64 = self.whole.iter().map(|whole| whole.file.len()).sum();
        for name in &self.sides {
            let path = places.request.side_dir.join(name);
            linked += places.disk.open(&path).map_err(io_at(&path))?.len();
        }
        let written = self.cut.position + checkpoints;
        progress.set_total(written + linked);
        let parent = places.parent();
        let device = |dir: &Path| places.disk.device(dir).map_err(io_at(dir));
        let (own, there) = (device(&places.dir)?, device(parent)?);
        // Links may fail all the same, as between two mounts: then each file is weighed when its turn comes.
        let may_link = own.is_some() && own == there;
        places.check_room(if may_link { written } else { written + linked })
    }
}

impl Places {
    fn parent(&self) -> &Path {
        self.request.into.parent().unwrap_or(Path::new("."))
    }

    /// Whether so many bytes may be written now.
    pub(super) fn check_room(&self, needed: u64) -> Result<(), BackupError> {
        let (parent, min) = (self.parent(), self.request.free_bytes_min);
        let free = self.disk.free_bytes(parent).map_err(io_at(parent))?;
        if free < needed.saturating_add(min) {
            return Err(BackupError::NoRoom { needed, min, free, dir: parent.to_owned() });
        }
        Ok(())
    }
}

/// The checkpoint that the log was purged to, which others get who have nothing, and the newest, for a quick start. `None`: the
/// first is not among these.
fn chosen(kept: &[LogIndex], purged: Option<EntryId>, last: LogIndex) -> Option<BTreeSet<LogIndex>> {
    let usable = kept.iter().copied().filter(|index| *index <= last);
    let mut chosen: BTreeSet<LogIndex> = usable.clone().max().into_iter().collect();
    if let Some(purged) = purged {
        chosen.insert(usable.filter(|index| *index >= purged.index).min()?);
    }
    Some(chosen)
}

/// All segments up to the mark. The last of them is copied by its records: the one that the mark is in, or, if that is full, the
/// one behind it.
fn segments(places: &Places, purged: Option<EntryId>) -> Result<(Vec<Whole>, Cut), BackupError> {
    let (last, gone) = (places.last.index, || {
        io_at(&places.dir)(io::Error::other(format!("entry {} was purged meanwhile", places.last)))
    });
    let state = places.view.shared.state();
    if state.purged != purged || purged.is_some_and(|purged| purged.index > last) {
        return Err(gone());
    }
    let wanted = state.segments.partition_point(|segment| segment.header.first <= last.next());
    let (cut, whole) = state.segments[..wanted].split_last().ok_or_else(gone)?;
    let whole = whole.iter().map(|segment: &Segment| Whole {
        path: segment.path.clone(),
        file: segment.file.clone(),
        header: segment.header,
        records: RecordStream::of(segment),
    });
    let cut =
        Cut { path: cut.path.clone(), header: cut.header, position: cut.position_behind(last.next().min(cut.end)) };
    Ok((whole.collect(), cut))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checkpoint_of_the_purge_and_the_newest_that_is_not_ahead_are_chosen() {
        let kept = [10, 20, 30, 40].map(LogIndex);
        let of = |purged: Option<u64>, last| {
            let purged = purged.map(|index| EntryId::new(1, index));
            chosen(&kept, purged, LogIndex(last)).map(|them| them.into_iter().map(|index| index.0).collect::<Vec<_>>())
        };
        assert_eq!(of(None, 5), Some(vec![]));
        assert_eq!(of(None, 35), Some(vec![30]));
        assert_eq!(of(Some(10), 35), Some(vec![10, 30]));
        assert_eq!(of(Some(30), 30), Some(vec![30]));
        assert_eq!(of(Some(31), 35), None, "the one that it was purged to is not there");
    }
}
