//! The walkers that read a log entry: over the operands of a command, and over its frames.

use flotilla_message::{FrameHead, GroupName, MessageRef, QueueId, QueueOffset, TopicName};

use crate::SkipRange;
use crate::entry::layout;
use crate::entry_view::{DeliverView, FramePlace, MalformedEntry};
use crate::limits::ATTEMPT_ID_BYTES_MAX;

/// Walks the frames that follow a command's operands.
pub(crate) struct Frames<'a, 'b> {
    pub payload: &'a [u8],
    pub at: usize,
    pub end: usize,
    pub count: &'b mut u32,
}

impl Frames<'_, '_> {
    pub fn take(&mut self, count: u32) -> Result<Vec<FramePlace>, MalformedEntry> {
        // No frame is this short, so the count cannot ask for more memory than its bytes justify.
        const FRAME_BYTES_MIN: usize = 64;
        let mut frames = Vec::with_capacity((count as usize).min((self.end - self.at) / FRAME_BYTES_MIN));
        for _ in 0..count {
            let bytes = &self.payload[self.at..self.end];
            let head = FrameHead::parse(bytes).map_err(|e| malformed(self.at, &e.to_string()))?;
            frames.push(FramePlace { position: self.at as u32, ordinal: *self.count, head });
            self.at += head.frame_bytes() as usize;
            *self.count += 1;
        }
        Ok(frames)
    }
}

/// Walks a command's operands.
pub(crate) struct Operands<'a> {
    pub bytes: &'a [u8],
    pub at: usize,
    /// Where the command begins in the payload, for errors.
    pub start: usize,
}

impl<'a> Operands<'a> {
    pub fn wrong(&self, what: &str) -> MalformedEntry {
        malformed(self.start + self.at, what)
    }

    fn take(&mut self, bytes: usize) -> Result<&'a [u8], MalformedEntry> {
        let part = self.bytes[self.at..].get(..bytes).ok_or_else(|| self.wrong("operands are cut off"))?;
        self.at += bytes;
        Ok(part)
    }

    pub fn u8(&mut self) -> Result<u8, MalformedEntry> {
        Ok(self.take(1)?[0])
    }

    fn u16(&mut self) -> Result<u16, MalformedEntry> {
        let part = self.take(2)?;
        Ok(u16::from_le_bytes([part[0], part[1]]))
    }

    pub fn u32(&mut self) -> Result<u32, MalformedEntry> {
        Ok(u32_at(self.take(4)?, 0))
    }

    pub fn u64(&mut self) -> Result<u64, MalformedEntry> {
        Ok(u64_at(self.take(8)?, 0))
    }

    /// A count of things of `bytes` bytes each that must all be there.
    pub fn count(&mut self, bytes: usize) -> Result<usize, MalformedEntry> {
        let count = self.u32()? as usize;
        if count > (self.bytes.len() - self.at) / bytes {
            return Err(self.wrong("list is cut off"));
        }
        Ok(count)
    }

    pub fn text(&mut self) -> Result<&'a str, MalformedEntry> {
        let bytes = self.u16()? as usize;
        let part = self.take(bytes)?;
        std::str::from_utf8(part).map_err(|_| self.wrong("text is not UTF-8"))
    }

    pub fn topic_name(&mut self) -> Result<TopicName, MalformedEntry> {
        let text = self.text()?;
        TopicName::try_from(text).map_err(|e| self.wrong(&e.to_string()))
    }

    pub fn group_name(&mut self) -> Result<GroupName, MalformedEntry> {
        let text = self.text()?;
        GroupName::try_from(text).map_err(|e| self.wrong(&e.to_string()))
    }

    pub fn flag(&mut self, what: &str) -> Result<bool, MalformedEntry> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.wrong(&format!("{what} is neither 0 nor 1"))),
        }
    }

    pub fn message(&mut self) -> Result<MessageRef, MalformedEntry> {
        Ok(MessageRef { index: self.u64()?, ordinal: self.u32()? })
    }

    pub fn deliver(&mut self) -> Result<DeliverView<'a>, MalformedEntry> {
        let group = self.text()?;
        let topic = self.text()?;
        let queue = QueueId(self.u32()?);
        let invisible_until_ms = self.u64()?;
        let flags = self.u8()?;
        if flags & !(layout::DELIVER_HAS_ATTEMPT | layout::DELIVER_HAS_SKIP) != 0 {
            return Err(self.wrong("delivery flags are unknown"));
        }
        let mut attempt_id = None;
        if flags & layout::DELIVER_HAS_ATTEMPT != 0 {
            let id = self.text()?;
            if id.len() > ATTEMPT_ID_BYTES_MAX {
                return Err(self.wrong("attempt id is too long"));
            }
            attempt_id = Some(id);
        }
        let mut skip = None;
        if flags & layout::DELIVER_HAS_SKIP != 0 {
            skip = Some(SkipRange { from: QueueOffset(self.u64()?), to: QueueOffset(self.u64()?) });
        }
        let count = self.count(8)?;
        let mut offsets = Vec::with_capacity(count);
        for _ in 0..count {
            offsets.push(QueueOffset(self.u64()?));
        }
        Ok(DeliverView { group, topic, queue, attempt_id, invisible_until_ms, offsets, skip })
    }
}

pub(crate) fn malformed(at: usize, what: &str) -> MalformedEntry {
    MalformedEntry { what: what.to_owned(), at }
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | (u64::from(u32_at(bytes, at + 4)) << 32)
}
