//! Reads messages out of the log.

use bytes::Bytes;
use flotilla_message::{FrameView, MessageRef};
use flotilla_raft_log::{LogIndex, ReadError};
use flotilla_store::{Slot, frame_in};

use crate::replica::Replica;

/// Why a message could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameReadError {
    /// This replica's copy is damaged; another one's may be whole.
    #[error("{0}")]
    Damaged(String),
    /// It went with the log's oldest entries since its slot was looked up.
    #[error("message {0} is trimmed")]
    Trimmed(MessageRef),
    /// The log does not hold it, or cannot be read.
    #[error("{0}")]
    Unreadable(String),
}

/// Reads frames out of log entries; neighbours are often in the same entry, so the last one is kept.
pub struct Frames<'a> {
    replica: &'a Replica,
    last: Option<(u64, Bytes)>,
    bytes_read: usize,
}

impl<'a> Frames<'a> {
    /// Has read nothing yet.
    pub fn new(replica: &'a Replica) -> Frames<'a> {
        Frames { replica, last: None, bytes_read: 0 }
    }

    /// Whose log it is.
    pub fn replica(&self) -> &'a Replica {
        self.replica
    }

    /// Bytes of entries and frames read so far.
    pub fn bytes_read(&self) -> usize {
        self.bytes_read
    }

    /// The same, and counts from nothing again.
    pub fn take_bytes_read(&mut self) -> usize {
        std::mem::take(&mut self.bytes_read)
    }

    /// The message of a slot.
    pub async fn frame(&mut self, slot: &Slot) -> Result<FrameView, FrameReadError> {
        match self.frame_at(slot).await {
            Err(FrameReadError::Trimmed(message)) => {
                let now = self.replica.store.resolved(*slot);
                // It was carried in between.
                if now.entry != slot.entry { self.frame_at(&now).await } else { Err(FrameReadError::Trimmed(message)) }
            }
            read => read,
        }
    }

    async fn frame_at(&mut self, slot: &Slot) -> Result<FrameView, FrameReadError> {
        let index = slot.entry;
        let payload = match &self.last {
            Some((last, payload)) if *last == index => payload.clone(),
            _ => {
                let entry = self.replica.log.read_soon(LogIndex(index)).await.map_err(|error| match error {
                    ReadError::Corrupt(_) => FrameReadError::Damaged(error.to_string()),
                    ReadError::Io { .. } => FrameReadError::Unreadable(error.to_string()),
                })?;
                let Some(entry) = entry else {
                    if index < self.replica.store.retention().trimmed_below {
                        return Err(FrameReadError::Trimmed(slot.message));
                    }
                    let text = format!("log has no entry {index}, which a queue refers to");
                    return Err(FrameReadError::Unreadable(text));
                };
                self.bytes_read += entry.payload.len();
                self.last = Some((index, entry.payload.clone()));
                entry.payload
            }
        };
        self.bytes_read += slot.length as usize;
        frame_in(&payload, slot).map_err(|error| FrameReadError::Unreadable(error.to_string()))
    }
}
