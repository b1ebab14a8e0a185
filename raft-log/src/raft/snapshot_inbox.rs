//! Where a snapshot arrives, piece by piece; what came before a link broke is kept.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;

use super::parcel::{Parcel, ParcelId};
use crate::disk::{Disk, DiskFile};
use crate::ids::EntryId;
use crate::log_view::LogView;

/// The file that pieces are written to. One that is found at start is of no use.
pub(crate) const INCOMING_FILE: &str = "incoming.snapshot";

/// The snapshot that is on its way here, if one is. There is one at a time: another one takes its place.
#[derive(Clone)]
pub(crate) struct SnapshotInbox {
    inner: Arc<Inner>,
}

struct Inner {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    view: LogView,
    incoming: Mutex<Slot>,
}

enum Slot {
    Free(Option<Incoming>),
    /// A piece is being written, or the whole is being installed.
    Busy,
}

struct Incoming {
    last: EntryId,
    id: ParcelId,
    file: Arc<dyn DiskFile>,
    received: u64,
}

/// What a piece led to.
pub(crate) enum Received {
    /// The sender goes on here.
    Next(u64),
    /// All of it is here.
    Whole(Parcel),
}

impl SnapshotInbox {
    pub(crate) fn new(disk: Arc<dyn Disk>, dir: PathBuf, view: LogView) -> SnapshotInbox {
        SnapshotInbox { inner: Arc::new(Inner { disk, dir, view, incoming: Mutex::new(Slot::Free(None)) }) }
    }

    /// Takes in a piece. One that does not follow what is here changes nothing; the answer says where to go on. An empty
    /// piece asks for that.
    pub(crate) async fn receive(&self, last: EntryId, id: ParcelId, offset: u64, bytes: Bytes) -> io::Result<Received> {
        let known = match std::mem::replace(&mut *self.inner.slot(), Slot::Busy) {
            Slot::Free(known) => known,
            Slot::Busy => return Err(io::Error::new(io::ErrorKind::WouldBlock, "another piece is being written")),
        };
        let inner = self.inner.clone();
        let work = self.inner.view.shared.write_blocking(move || inner.write(known, last, id, offset, &bytes));
        match work.await {
            Ok((incoming, None)) => {
                let next = incoming.received;
                *self.inner.slot() = Slot::Free(Some(incoming));
                Ok(Received::Next(next))
            }
            Ok((incoming, Some(parcel))) => {
                *self.inner.slot() = Slot::Free(Some(incoming));
                Ok(Received::Whole(parcel))
            }
            Err(error) => {
                *self.inner.slot() = Slot::Free(None);
                Err(error)
            }
        }
    }

    /// Forgets what came: it is installed, or of no use.
    pub(crate) async fn clear(&self) {
        *self.inner.slot() = Slot::Free(None);
        let inner = self.inner.clone();
        let removed = self.inner.view.shared.write_blocking(move || inner.disk.remove(&inner.dir.join(INCOMING_FILE)));
        if let Err(error) = removed.await {
            tracing::warn!(%error, "file of an arrived snapshot could not be removed");
        }
    }
}

impl Inner {
    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.incoming.lock().expect("inbox lock is never poisoned: no code panics while holding it")
    }

    fn write(
        &self,
        known: Option<Incoming>,
        last: EntryId,
        id: ParcelId,
        offset: u64,
        bytes: &[u8],
    ) -> io::Result<(Incoming, Option<Parcel>)> {
        let mut incoming = match known.filter(|known| (known.last, known.id) == (last, id)) {
            Some(known) => known,
            None => {
                tracing::info!(%last, bytes = id.bytes, "a snapshot begins to arrive");
                let file = self.disk.create(&self.dir.join(INCOMING_FILE), id.bytes)?;
                Incoming { last, id, file, received: 0 }
            }
        };
        if offset == incoming.received && !bytes.is_empty() {
            incoming.file.write_at(offset, bytes)?;
            incoming.received += bytes.len() as u64;
        }
        if incoming.received < id.bytes {
            return Ok((incoming, None));
        }
        let parcel = Parcel::read(id, &incoming.file);
        let parcel = parcel.map_err(|what| io::Error::new(io::ErrorKind::InvalidData, what))?;
        Ok((incoming, Some(parcel)))
    }
}
