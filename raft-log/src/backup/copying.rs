//! The making of a copy: reads what nobody changes any more, piece by piece, and writes nothing of the replica's own.

use std::io;
use std::path::Path;
use std::sync::Arc;

use flotilla_runtime::Runtime;

use super::pace::Pace;
use super::plan::{Places, Plan, Whole};
use super::taking::{Original, Taking};
use super::writing::Writing;
use super::{BackupError, BackupFile, BackupProgress, BackupReport, io_at};
use crate::LogIndex;
use crate::checkpoint_store::CheckpointStore;
use crate::disk::read_file;
use crate::identity::{IDENTITY_FILE, Identity};
use crate::ids::{EntryId, next_index};
use crate::limits::SEGMENT_BYTES_MIN;
use crate::log_view::read_error_to_io;
use crate::segment::{SEGMENT_HEADER_BYTES, SegmentHeader, encode_record};
use crate::vote_and_marks::{MARKS_FILE, TailFloor, VoteAndMarks};

/// Entries are read, and files of its own written, so many bytes at a time.
const PIECE_BYTES: usize = 1 << 20;

pub(super) struct Copying {
    pub(super) places: Arc<Places>,
    pub(super) checkpoints: CheckpointStore,
    pub(super) epoch: u16,
    pub(super) pace: Pace,
    pub(super) progress: BackupProgress,
    pub(super) runtime: Runtime,
}

impl Copying {
    pub(super) async fn run(mut self) -> Result<BackupReport, BackupError> {
        let (checkpoints, progress) = (self.checkpoints.clone(), self.progress.clone());
        let planned = self.step(move |places| {
            let plan = Plan::make(places, &checkpoints)?;
            plan.weigh(places, &progress)?;
            for dir in ["log", "store"].map(|part| places.request.into.join(part)) {
                places.disk.create_dir_all(&dir).map_err(io_at(&dir))?;
            }
            Ok(plan)
        });
        let mut plan = planned.await?;
        let first = plan.whole.first().map_or(plan.cut.header.first, |whole| whole.header.first);
        let mut files = Vec::new();
        for whole in std::mem::take(&mut plan.whole) {
            self.take_segment(whole, &mut files).await?;
        }
        let (floor, cut) = self.write_cut(&plan).await?;
        files.push(cut);
        for (name, bytes) in std::mem::take(&mut plan.checkpoints) {
            files.push(self.write(format!("log/{name}"), bytes.into()).await?);
        }
        for name in &plan.sides {
            let from = Original { path: self.places.request.side_dir.join(name), held: None, records: None };
            files.push(self.take(from, format!("store/{name}")).await?);
        }
        let purged = plan.purged;
        files.push(self.step(move |places| write_marks(places, purged, floor)).await?);
        let identity = self.step(identity).await?;
        files.push(self.write(format!("log/{IDENTITY_FILE}"), identity).await?);
        let sync = |places: &Places| {
            let into = &places.request.into;
            for dir in [&into.join("log"), &into.join("store"), into] {
                places.disk.sync_dir(dir).map_err(io_at(dir))?;
            }
            Ok(())
        };
        self.step(sync).await?;
        let last = self.places.last;
        let first = first.max(next_index(purged));
        Ok(BackupReport { last: (last.term, last.index), first, epoch: self.epoch, files })
    }

    /// Does what blocks.
    async fn step<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Places) -> Result<T, BackupError> + Send + 'static,
    ) -> Result<T, BackupError> {
        self.pace.check()?;
        let places = self.places.clone();
        self.runtime.blocking(move || work(&places)).await
    }

    async fn take_segment(&mut self, whole: Whole, files: &mut Vec<BackupFile>) -> Result<(), BackupError> {
        let summary = whole.path.with_extension("sum");
        let from = Original { path: whole.path.to_path_buf(), held: Some(whole.file), records: Some(whole.records) };
        files.push(self.take(from, format!("log/{}", whole.header.file_name())).await?);
        // It spares the next start a look at all its records, and may be missing.
        let opening = summary.clone();
        let held = self.step(move |places| Ok(places.disk.open(&opening).ok())).await?;
        if let (Some(name), Some(held)) = (summary.file_name().and_then(|name| name.to_str()), held) {
            let name = format!("log/{name}");
            files.push(self.take(Original { path: summary, held: Some(held), records: None }, name).await?);
        }
        Ok(())
    }

    async fn take(&mut self, from: Original, name: String) -> Result<BackupFile, BackupError> {
        let mut taking = self.step(move |places| Taking::begin(places, from, name)).await?;
        loop {
            let step = self.step(move |places| {
                let bytes = taking.step(places)?;
                Ok((taking, bytes))
            });
            let bytes;
            (taking, bytes) = step.await?;
            if bytes == 0 {
                break;
            }
            self.pace.taken(bytes).await?;
        }
        self.step(move |places| taking.finish(places)).await
    }

    /// A file of the copy's own.
    async fn write(&mut self, name: String, content: Vec<u8>) -> Result<BackupFile, BackupError> {
        let (path, len) = (self.places.request.into.join(&name), content.len() as u64);
        let mut writing = self.step(move |places| Writing::begin(places, path, len)).await?;
        let content = Arc::new(content);
        for at in (0..content.len()).step_by(PIECE_BYTES) {
            let whole = content.clone();
            let piece = at..content.len().min(at + PIECE_BYTES);
            let bytes = piece.len() as u64;
            let step = self.step(move |_| {
                writing.push(&whole[piece])?;
                Ok(writing)
            });
            writing = step.await?;
            self.pace.taken(bytes).await?;
        }
        let (bytes, crc32c) = self.step(move |_| writing.finish()).await?;
        Ok(BackupFile { name, bytes, crc32c, is_linked: false })
    }

    /// The last segment, with the entries up to the mark and none behind.
    async fn write_cut(&mut self, plan: &Plan) -> Result<(TailFloor, BackupFile), BackupError> {
        let planned = plan.cut.header;
        // What was purged of it is not there any more: it begins behind that.
        let (first, previous) = match plan.purged {
            Some(purged) if purged.index >= planned.first => (purged.index.next(), Some(purged)),
            _ => (planned.first, planned.previous),
        };
        let end = plan.cut.position + SEGMENT_HEADER_BYTES;
        let segment_bytes = end.next_multiple_of(SEGMENT_HEADER_BYTES).max(SEGMENT_BYTES_MIN);
        let header = SegmentHeader { segment_bytes, first, previous, ..planned };
        let name = format!("log/{}", header.file_name());
        let path = self.places.request.into.join(&name);
        let begin = self.step(move |places| {
            let mut writing = Writing::begin(places, path, segment_bytes)?;
            writing.push(&header.encode())?;
            Ok(writing)
        });
        let mut writing = begin.await?;
        let mut next = first;
        while next <= self.places.last.index {
            let (from, own) = (plan.cut.path.clone(), writing.at());
            let step = self.step(move |places| {
                let behind = copy_entries(places, &from, next, header.sequence, &mut writing)?;
                Ok((writing, behind))
            });
            (writing, next) = step.await?;
            self.pace.taken(writing.at() - own).await?;
        }
        let floor = TailFloor { sequence: header.sequence, position: writing.at() };
        let (bytes, crc32c) = self.step(move |_| writing.finish()).await?;
        Ok((floor, BackupFile { name, bytes, crc32c, is_linked: false }))
    }
}

/// Writes some entries from `next` on, which are in the segment `from`, checked. The index behind them.
fn copy_entries(
    places: &Places,
    from: &Path,
    next: LogIndex,
    sequence: u64,
    writing: &mut Writing,
) -> Result<LogIndex, BackupError> {
    let read = places.view.read(next..places.last.index.next(), PIECE_BYTES);
    let records = read.map_err(read_error_to_io).map_err(io_at(from))?;
    let Some(last) = records.last().filter(|_| records[0].id.index == next) else {
        return Err(io_at(from)(io::Error::other(format!("entry {next} was purged meanwhile"))));
    };
    let mut buffer = Vec::new();
    records.iter().for_each(|record| encode_record(&mut buffer, record, sequence));
    writing.push(&buffer)?;
    Ok(last.id.index.next())
}

fn write_marks(places: &Places, purged: Option<EntryId>, floor: TailFloor) -> Result<BackupFile, BackupError> {
    let dir = places.request.into.join("log");
    let path = dir.join(MARKS_FILE);
    let unsound = |error: crate::OpenError| BackupError::Unsound { path: path.clone(), what: error.to_string() };
    let mut marks = VoteAndMarks::open(&*places.disk, &dir, false).map_err(unsound)?;
    let mut write = || {
        if let Some(purged) = purged {
            marks.save_purged(purged, floor)?;
        }
        marks.save_committed(Some(places.last), floor)?;
        places.disk.open(&path)?.sync_data()?;
        read_file(&*places.disk, &path)
    };
    let bytes = write().map_err(io_at(&path))?;
    let (name, crc32c) = (format!("log/{MARKS_FILE}"), crc32c::crc32c(&bytes));
    Ok(BackupFile { name, bytes: bytes.len() as u64, crc32c, is_linked: false })
}

/// The replica's own, but for the word that the group went on without it: started in its place the copy would forget what the
/// replica voted and confirmed since.
fn identity(places: &Places) -> Result<Vec<u8>, BackupError> {
    let path = places.dir.join(IDENTITY_FILE);
    let bytes = read_file(&*places.disk, &path).map_err(io_at(&path))?;
    let own = Identity::decode(bytes).map_err(|what| BackupError::Unsound { path, what })?;
    Ok(Identity { given_up: u16::MAX, ..own }.encode())
}
