//! Log entries: a list of commands under one time stamp; written by [`EntryBuilder`].

use bytes::{BufMut, Bytes, BytesMut};
use flotilla_message::{MessageRef, QueueOffset, StoredFrame, limits};

use crate::{Command, SkipRange, StartPolicy, entry_levels, entry_rare};

/// The numbers of the entry format; `docs/formats/log-entry.md` draws it.
pub(crate) mod layout {
    pub const MAGIC: [u8; 4] = *b"FLEN";
    pub const VERSION: u8 = 3;
    /// The oldest version that is read: the same layout with fewer kinds of commands.
    pub const VERSION_MIN: u8 = 1;
    pub const VERSION_AT: usize = 4;
    pub const COMMAND_COUNT_AT: usize = 8;
    pub const ENTRY_BYTES_AT: usize = 12;
    pub const LOG_TIME_AT: usize = 16;
    pub const TERM_AT: usize = 24;
    pub const CRC_AT: usize = 32;
    pub const HEADER_BYTES: usize = 36;

    pub const COMMAND_BYTES_AT: usize = 4;
    pub const COMMAND_HEAD_BYTES_AT: usize = 8;
    pub const COMMAND_CRC_AT: usize = 12;
    pub const COMMAND_HEADER_BYTES: usize = 16;

    pub const CREATE_TOPIC: u8 = 1;
    pub const DELETE_TOPIC: u8 = 2;
    pub const CREATE_GROUP: u8 = 3;
    pub const DELETE_GROUP: u8 = 4;
    pub const PRODUCE: u8 = 16;
    pub const PREPARE: u8 = 17;
    pub const TOUCH: u8 = 32;
    pub const DELIVER: u8 = 33;
    pub const ACK: u8 = 34;
    pub const CHANGE_INVISIBLE: u8 = 35;
    pub const SET_OFFSET: u8 = 40;
    pub const UPDATE_GROUP: u8 = 41;
    pub const UPDATE_TOPIC: u8 = 42;
    pub const REDELIVER: u8 = 43;
    pub const RENEW: u8 = 44;
    pub const DROP_TOPIC: u8 = 45;
    pub const DEAD_LETTER: u8 = 46;
    pub const DROP_DRAINED: u8 = 47;
    pub const SET_DEDUP_WINDOW: u8 = 62;
    pub const SET_TOPIC_RETENTION: u8 = 63;
    pub const SET_WRITE_PERMISSION: u8 = 80;
    pub const SET_TOPIC_SHARES: u8 = 81;
    pub const RAISE_LEVEL: u8 = 82;
    pub const DELIVER_DUE: u8 = 48;
    pub const RECALL: u8 = 49;
    pub const END_TRANSACTION: u8 = 50;
    pub const CHECK_TRANSACTIONS: u8 = 51;
    pub const TRIM: u8 = 64;
    pub const CARRY: u8 = 65;
    pub const TRIM_TOPIC: u8 = 66;

    pub const SET_TOPIC_LEVEL: u8 = 60;
    pub const ANSWERED_EARLY: u8 = 61;

    pub const START_FIRST: u8 = 0;
    pub const START_LAST: u8 = 1;
    pub const START_TIMESTAMP: u8 = 2;

    pub const DELIVER_HAS_ATTEMPT: u8 = 1;
    pub const DELIVER_HAS_SKIP: u8 = 2;
}

/// Collects commands into the payload of one log entry; frames are copied once, into it.
#[derive(Debug)]
pub struct EntryBuilder {
    out: BytesMut,
    command_count: u32,
}

impl EntryBuilder {
    /// Begins an entry. `log_time_ms` is the leader's stamp, milliseconds since the Unix epoch;
    /// `term` is the proposer's.
    pub fn new(log_time_ms: u64, term: u64) -> EntryBuilder {
        let mut out = BytesMut::with_capacity(512);
        out.put_slice(&layout::MAGIC);
        out.put_slice(&[layout::VERSION, 0, 0, 0]);
        out.put_u64_le(0); // Counts are known at the end.
        out.put_u64_le(log_time_ms);
        out.put_u64_le(term);
        out.put_u32_le(0);
        debug_assert_eq!(out.len(), layout::HEADER_BYTES);
        EntryBuilder { out, command_count: 0 }
    }

    /// Adds a command. See to it that [`EntryBuilder::fits`]: a longer entry is malformed.
    pub fn push(&mut self, command: &Command) {
        self.out.reserve(command_bytes(command));
        let start = self.out.len();
        self.out.put_bytes(0, layout::COMMAND_HEADER_BYTES);
        let kind = put_operands(&mut self.out, command);
        let head_bytes = self.out.len() - start;
        if let Command::Produce { frames, .. } | Command::Prepare { frames, .. } | Command::Carry { frames, .. } =
            command
        {
            for frame in frames {
                self.out.put_slice(frame.as_bytes());
            }
        }
        let command_bytes = self.out.len() - start;
        let header = &mut self.out[start..];
        header[0] = kind;
        set_u32(header, layout::COMMAND_BYTES_AT, command_bytes);
        set_u32(header, layout::COMMAND_HEAD_BYTES_AT, head_bytes);
        let crc = crc_without(&header[..head_bytes], layout::COMMAND_CRC_AT);
        set_u32(header, layout::COMMAND_CRC_AT, crc as usize);
        self.command_count += 1;
    }

    /// Whether the entry stays within its limits if `command` is added.
    pub fn fits(&self, command: &Command) -> bool {
        self.byte_len() + command_bytes(command) <= limits::ENTRY_BYTES_MAX
            && self.command_count() < crate::limits::COMMANDS_PER_ENTRY_MAX
    }

    /// Length of the payload so far, bytes.
    pub fn byte_len(&self) -> usize {
        self.out.len()
    }

    /// How many commands there are so far.
    pub fn command_count(&self) -> usize {
        self.command_count as usize
    }

    /// Whether there is nothing to propose.
    pub fn is_empty(&self) -> bool {
        self.command_count == 0
    }

    /// The payload to propose.
    pub fn finish(mut self) -> Bytes {
        let entry_bytes = self.out.len();
        set_u32(&mut self.out, layout::COMMAND_COUNT_AT, self.command_count as usize);
        set_u32(&mut self.out, layout::ENTRY_BYTES_AT, entry_bytes);
        let crc = crc32c::crc32c(&self.out[..layout::CRC_AT]);
        set_u32(&mut self.out, layout::CRC_AT, crc as usize);
        self.out.freeze()
    }
}

/// How many bytes a command adds to an entry.
pub fn command_bytes(command: &Command) -> usize {
    let operands = match command {
        Command::CreateTopic { name, .. } => text(name.as_str()) + 6,
        Command::DeleteTopic { name } => text(name.as_str()),
        Command::CreateGroup { name, .. } => text(name.as_str()) + 14,
        Command::DeleteGroup { name } => text(name.as_str()),
        Command::Produce { topic, frames, .. } => {
            text(topic.as_str()) + 8 + frames.iter().map(StoredFrame::byte_len).sum::<usize>()
        }
        Command::Prepare { topic, frames, .. } => {
            text(topic.as_str()) + 16 + frames.iter().map(StoredFrame::byte_len).sum::<usize>()
        }
        Command::Touch { group, topic } => text(group.as_str()) + text(topic.as_str()),
        Command::Deliver { group, topic, attempt_id, offsets, skip, .. } => {
            text(group.as_str())
                + text(topic.as_str())
                + 17
                + 8 * offsets.len()
                + attempt_id.as_ref().map_or(0, |id| text(id))
                + skip.map_or(0, |_| 16)
        }
        Command::Ack { group, topic, receipts, .. } => {
            text(group.as_str()) + text(topic.as_str()) + 8 + 12 * receipts.len()
        }
        Command::ChangeInvisible { group, topic, .. } => text(group.as_str()) + text(topic.as_str()) + 24,
        Command::DeliverDue { .. } => 12,
        Command::Recall { topic, .. } => text(topic.as_str()) + 20,
        Command::EndTransaction { topic, .. } => text(topic.as_str()) + 13,
        Command::CheckTransactions { .. } => 16,
        Command::Trim { .. } => 16,
        Command::Carry { messages, frames } => {
            4 + 12 * messages.len() + frames.iter().map(StoredFrame::byte_len).sum::<usize>()
        }
        Command::SetOffset { .. }
        | Command::UpdateGroup { .. }
        | Command::UpdateTopic { .. }
        | Command::Redeliver { .. }
        | Command::Renew { .. }
        | Command::DropTopic { .. }
        | Command::DropDrained { .. }
        | Command::SetDedupWindow { .. }
        | Command::DeadLetter { .. }
        | Command::SetTopicRetention { .. }
        | Command::SetWritePermission { .. }
        | Command::SetTopicShares { .. }
        | Command::TrimTopic { .. }
        | Command::RaiseLevel { .. } => entry_rare::operand_bytes(command),
        Command::SetTopicLevel { name, .. } => text(name.as_str()) + 2,
        Command::AnsweredEarly { commands } => 4 + 4 * commands.len(),
    };
    layout::COMMAND_HEADER_BYTES + operands
}

pub(crate) fn text(text: &str) -> usize {
    2 + text.len()
}

fn put_operands(out: &mut BytesMut, command: &Command) -> u8 {
    match command {
        Command::CreateTopic { name, message_type, queue_count, permission } => {
            put_text(out, name.as_str());
            out.put_u8(message_type.code());
            out.put_u8(permission.code());
            out.put_u32_le(*queue_count);
            layout::CREATE_TOPIC
        }
        Command::DeleteTopic { name } => {
            put_text(out, name.as_str());
            layout::DELETE_TOPIC
        }
        Command::CreateGroup { name, order, max_deliveries, start } => {
            put_text(out, name.as_str());
            let (policy, at_ms) = match start {
                StartPolicy::First => (layout::START_FIRST, 0),
                StartPolicy::Last => (layout::START_LAST, 0),
                StartPolicy::TimestampMs(at_ms) => (layout::START_TIMESTAMP, *at_ms),
            };
            out.put_u8(u8::from(*order));
            out.put_u8(policy);
            out.put_u32_le(*max_deliveries);
            out.put_u64_le(at_ms);
            layout::CREATE_GROUP
        }
        Command::DeleteGroup { name } => {
            put_text(out, name.as_str());
            layout::DELETE_GROUP
        }
        Command::Produce { topic, queue, frames } => {
            put_text(out, topic.as_str());
            out.put_u32_le(queue.0);
            out.put_u32_le(frames.len() as u32);
            layout::PRODUCE
        }
        Command::Touch { group, topic } => {
            put_text(out, group.as_str());
            put_text(out, topic.as_str());
            layout::TOUCH
        }
        Command::Deliver { group, topic, queue, attempt_id, invisible_until_ms, offsets, skip } => {
            put_text(out, group.as_str());
            put_text(out, topic.as_str());
            out.put_u32_le(queue.0);
            out.put_u64_le(*invisible_until_ms);
            let attempt_flag = attempt_id.as_ref().map_or(0, |_| layout::DELIVER_HAS_ATTEMPT);
            let skip_flag = skip.map_or(0, |_| layout::DELIVER_HAS_SKIP);
            out.put_u8(attempt_flag | skip_flag);
            if let Some(id) = attempt_id {
                put_text(out, id);
            }
            if let Some(SkipRange { from, to }) = skip {
                out.put_u64_le(from.0);
                out.put_u64_le(to.0);
            }
            out.put_u32_le(offsets.len() as u32);
            offsets.iter().for_each(|offset| out.put_u64_le(offset.0));
            layout::DELIVER
        }
        Command::Ack { group, topic, queue, receipts } => {
            put_text(out, group.as_str());
            put_text(out, topic.as_str());
            out.put_u32_le(queue.0);
            out.put_u32_le(receipts.len() as u32);
            for (QueueOffset(offset), seq) in receipts {
                out.put_u64_le(*offset);
                out.put_u32_le(*seq);
            }
            layout::ACK
        }
        Command::ChangeInvisible { group, topic, queue, offset, seq, invisible_until_ms } => {
            put_text(out, group.as_str());
            put_text(out, topic.as_str());
            out.put_u32_le(queue.0);
            out.put_u64_le(offset.0);
            out.put_u32_le(*seq);
            out.put_u64_le(*invisible_until_ms);
            layout::CHANGE_INVISIBLE
        }
        Command::DeliverDue { until_ms, count } => {
            out.put_u64_le(*until_ms);
            out.put_u32_le(*count);
            layout::DELIVER_DUE
        }
        Command::Recall { topic, due_ms, message } => {
            put_text(out, topic.as_str());
            out.put_u64_le(*due_ms);
            put_message(out, *message);
            layout::RECALL
        }
        Command::Prepare { topic, queue, check_after_ms, frames } => {
            put_text(out, topic.as_str());
            out.put_u32_le(queue.0);
            out.put_u64_le(*check_after_ms);
            out.put_u32_le(frames.len() as u32);
            layout::PREPARE
        }
        Command::EndTransaction { topic, message, commit } => {
            put_text(out, topic.as_str());
            put_message(out, *message);
            out.put_u8(u8::from(*commit));
            layout::END_TRANSACTION
        }
        Command::CheckTransactions { count, next_after_ms, checks_max } => {
            out.put_u32_le(*count);
            out.put_u64_le(*next_after_ms);
            out.put_u32_le(*checks_max);
            layout::CHECK_TRANSACTIONS
        }
        Command::Trim { below, before_ms } => {
            out.put_u64_le(*below);
            out.put_u64_le(*before_ms);
            layout::TRIM
        }
        Command::Carry { messages, .. } => {
            out.put_u32_le(messages.len() as u32);
            messages.iter().for_each(|message| put_message(out, *message));
            layout::CARRY
        }
        Command::SetOffset { .. }
        | Command::UpdateGroup { .. }
        | Command::UpdateTopic { .. }
        | Command::Redeliver { .. }
        | Command::Renew { .. }
        | Command::DropTopic { .. }
        | Command::DropDrained { .. }
        | Command::SetDedupWindow { .. }
        | Command::DeadLetter { .. }
        | Command::SetTopicRetention { .. }
        | Command::SetWritePermission { .. }
        | Command::SetTopicShares { .. }
        | Command::TrimTopic { .. }
        | Command::RaiseLevel { .. } => entry_rare::put_operands(out, command),
        Command::SetTopicLevel { name, level } => entry_levels::put_set_topic_level(out, name.as_str(), *level),
        Command::AnsweredEarly { commands } => entry_levels::put_answered_early(out, commands),
    }
}

pub(crate) fn put_message(out: &mut BytesMut, message: MessageRef) {
    out.put_u64_le(message.index);
    out.put_u32_le(message.ordinal);
}

/// Texts are names and attempt ids: what is longer than the 16 bits allow is cut at a character,
/// and then refused when the entry is read.
pub(crate) fn put_text(out: &mut BytesMut, text: &str) {
    let end = text.floor_char_boundary(usize::from(u16::MAX));
    out.put_u16_le(end as u16);
    out.put_slice(&text.as_bytes()[..end]);
}

/// CRC-32C of `bytes` without the 4 bytes at `crc_at`.
pub(crate) fn crc_without(bytes: &[u8], crc_at: usize) -> u32 {
    let crc = crc32c::crc32c(&bytes[..crc_at]);
    crc32c::crc32c_append(crc, &bytes[crc_at + 4..])
}

fn set_u32(bytes: &mut [u8], at: usize, value: usize) {
    bytes[at..at + 4].copy_from_slice(&(value as u32).to_le_bytes());
}
