//! The file engine on its own, without the core: for benches, which measure what a replica's disk path costs.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use flotilla_runtime::Runtime;
use futures::channel::oneshot;

use crate::disk::Disk;
use crate::failure::Failure;
use crate::ids::EntryId;
use crate::log_files::LogFiles;
use crate::recovery::open_log;
use crate::segment::{Record, RecordKind};
use crate::{LogConfig, LogIndex, OpenError, ReadError};

/// A log's files with one writer.
pub struct FileEngine {
    files: LogFiles,
    next: LogIndex,
}

impl FileEngine {
    /// Opens, and recovers, the log of `config.dir`. Blocks.
    pub fn open(config: &LogConfig, runtime: &Runtime, disk: Arc<dyn Disk>) -> Result<FileEngine, OpenError> {
        let files = open_log(config, disk, runtime, Failure::default())?;
        let next = files.view().ends().1.map_or(LogIndex(0), |last| last.index.next());
        Ok(FileEngine { files, next })
    }

    /// The index that the next entry gets.
    pub fn next_index(&self) -> LogIndex {
        self.next
    }

    /// Appends a batch. Returns once it is written; the receiver resolves once it counts by the flush mode.
    pub async fn append(&mut self, payloads: Vec<Bytes>) -> io::Result<oneshot::Receiver<io::Result<()>>> {
        let (done, flushed) = oneshot::channel();
        self.append_with(payloads, move |result| drop(done.send(result))).await?;
        Ok(flushed)
    }

    /// Appends a batch; `done` is told once it counts by the flush mode.
    pub async fn append_with(
        &mut self,
        payloads: Vec<Bytes>,
        done: impl FnOnce(io::Result<()>) + Send + 'static,
    ) -> io::Result<()> {
        let records = payloads.into_iter().map(|payload| {
            let id = EntryId::new(1, self.next.0);
            self.next = self.next.next();
            Record { id, kind: RecordKind::Normal, payload }
        });
        self.files.append(records.collect(), Box::new(done)).await
    }

    /// The payloads of `range`, as many as fit into `bytes_max`, one at least. Blocks.
    pub fn read(&self, range: Range<LogIndex>, bytes_max: usize) -> Result<Vec<Bytes>, ReadError> {
        let records = self.files.view().read(range, bytes_max)?;
        Ok(records.into_iter().map(|record| record.payload).collect())
    }

    /// Forgets everything up to the last entry.
    pub async fn purge_all(&mut self) -> io::Result<()> {
        match self.files.view().ends().1 {
            Some(last) => self.files.purge(last).await,
            None => Ok(()),
        }
    }

    /// Waits until nothing goes on in the background: files made ahead, zeroed, removed.
    pub async fn settled(&self) {
        self.files.view().shared.background.idle().await;
    }

    /// Syncs everything and lets the directory go.
    pub async fn close(self) -> io::Result<()> {
        let view = self.files.view();
        view.flush().await?;
        drop(self.files);
        view.close().await;
        Ok(())
    }
}
