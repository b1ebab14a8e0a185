//! Reading a log entry: all of it is checked before any of it is applied.

use bytes::Bytes;
use flotilla_message::{
    FrameHead, GroupName, MessageRef, MessageType, Permission, QueueId, QueueOffset, StoredFrame, TopicName, limits,
};

use crate::entry::{crc_without, layout};
use crate::entry_walk::{Frames, Operands, malformed, u32_at, u64_at};
use crate::limits::COMMANDS_PER_ENTRY_MAX;
use crate::{Command, SkipRange, StartPolicy, TopicLevel, entry_levels, entry_rare};

/// Why a payload is not a log entry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} at byte {at}")]
pub struct MalformedEntry {
    /// What is wrong.
    pub what: String,
    /// Where, bytes from the start of the payload.
    pub at: usize,
}

/// An entry read whole, for tools and tests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The leader's time stamp, milliseconds since the Unix epoch.
    pub log_time_ms: u64,
    /// The proposer's term.
    pub term: u64,
    /// The commands, in order.
    pub commands: Vec<Command>,
}

impl Entry {
    /// Reads a payload whole, and checks the bodies of its messages too.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(payload: &Bytes) -> Result<Entry, MalformedEntry> {
        let view = EntryView::parse(payload)?;
        let commands =
            view.commands.into_iter().map(|command| command.to_command(payload)).collect::<Result<_, _>>()?;
        Ok(Entry { log_time_ms: view.log_time_ms, term: view.term, commands })
    }
}

/// An entry read in place: names are borrowed, frames are known by their heads.
#[derive(Debug)]
pub(crate) struct EntryView<'a> {
    pub log_time_ms: u64,
    pub term: u64,
    pub commands: Vec<CommandView<'a>>,
}

/// A command read in place.
#[derive(Debug)]
pub(crate) enum CommandView<'a> {
    CreateTopic {
        name: TopicName,
        message_type: MessageType,
        queue_count: u32,
        permission: Permission,
    },
    DeleteTopic {
        name: &'a str,
    },
    CreateGroup {
        name: GroupName,
        order: bool,
        max_deliveries: u32,
        start: StartPolicy,
    },
    DeleteGroup {
        name: &'a str,
    },
    Produce {
        topic: &'a str,
        queue: QueueId,
        frames: Vec<FramePlace>,
    },
    Touch {
        group: &'a str,
        topic: &'a str,
    },
    Deliver(DeliverView<'a>),
    Ack {
        group: &'a str,
        topic: &'a str,
        queue: QueueId,
        receipts: Vec<(QueueOffset, u32)>,
    },
    ChangeInvisible {
        group: &'a str,
        topic: &'a str,
        queue: QueueId,
        offset: QueueOffset,
        seq: u32,
        invisible_until_ms: u64,
    },
    DeliverDue {
        until_ms: u64,
        count: u32,
    },
    Recall {
        topic: &'a str,
        due_ms: u64,
        message: MessageRef,
    },
    Prepare {
        topic: &'a str,
        queue: QueueId,
        check_after_ms: u64,
        frames: Vec<FramePlace>,
    },
    EndTransaction {
        topic: &'a str,
        message: MessageRef,
        commit: bool,
    },
    CheckTransactions {
        count: u32,
        next_after_ms: u64,
        checks_max: u32,
    },
    Trim {
        below: u64,
        before_ms: u64,
    },
    Carry {
        messages: Vec<MessageRef>,
        frames: Vec<FramePlace>,
    },
    /// One of those that are too rare to be worth reading in place.
    Rare(Command),
    SetTopicLevel {
        name: &'a str,
        level: TopicLevel,
    },
    AnsweredEarly {
        commands: Vec<u32>,
    },
}

/// The operands of a `Deliver`.
#[derive(Debug)]
pub(crate) struct DeliverView<'a> {
    pub group: &'a str,
    pub topic: &'a str,
    pub queue: QueueId,
    pub attempt_id: Option<&'a str>,
    pub invisible_until_ms: u64,
    pub offsets: Vec<QueueOffset>,
    pub skip: Option<SkipRange>,
}

/// A frame of the entry: where it is, and its head.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FramePlace {
    /// Where it begins in the payload, bytes.
    pub position: u32,
    /// Its place among all frames of the entry.
    pub ordinal: u32,
    pub head: FrameHead,
}

impl<'a> EntryView<'a> {
    pub fn parse(payload: &'a [u8]) -> Result<EntryView<'a>, MalformedEntry> {
        let Some((header, _)) = payload.split_first_chunk::<{ layout::HEADER_BYTES }>() else {
            return Err(malformed(0, "entry header is cut off"));
        };
        if header[..4] != layout::MAGIC {
            return Err(malformed(0, "entry does not begin with its magic"));
        }
        let is_known = (layout::VERSION_MIN..=layout::VERSION).contains(&header[layout::VERSION_AT]);
        if !is_known || header[layout::VERSION_AT + 1..layout::COMMAND_COUNT_AT] != [0, 0, 0] {
            return Err(malformed(layout::VERSION_AT, "entry version or flags are unknown"));
        }
        if u32_at(header, layout::CRC_AT) != crc32c::crc32c(&header[..layout::CRC_AT]) {
            return Err(malformed(layout::CRC_AT, "entry header does not fit its checksum"));
        }
        let entry_bytes = u32_at(header, layout::ENTRY_BYTES_AT) as usize;
        if entry_bytes != payload.len() || entry_bytes > limits::ENTRY_BYTES_MAX {
            return Err(malformed(layout::ENTRY_BYTES_AT, "entry length is wrong"));
        }
        let command_count = u32_at(header, layout::COMMAND_COUNT_AT) as usize;
        if command_count > COMMANDS_PER_ENTRY_MAX {
            return Err(malformed(layout::COMMAND_COUNT_AT, "too many commands"));
        }

        let mut commands = Vec::with_capacity(command_count.min(payload.len() / layout::COMMAND_HEADER_BYTES));
        let mut at = layout::HEADER_BYTES;
        let mut frame_count = 0;
        for _ in 0..command_count {
            let command_bytes = CommandView::parse(payload, at, &mut frame_count, &mut commands)?;
            at += command_bytes;
        }
        if at != payload.len() {
            return Err(malformed(at, "bytes follow the last command"));
        }
        Ok(EntryView {
            log_time_ms: u64_at(header, layout::LOG_TIME_AT),
            term: u64_at(header, layout::TERM_AT),
            commands,
        })
    }
}

impl<'a> CommandView<'a> {
    /// Whether it lapses with its proposer's term.
    pub fn is_duty(&self) -> bool {
        matches!(
            self,
            CommandView::DeliverDue { .. }
                | CommandView::CheckTransactions { .. }
                | CommandView::Trim { .. }
                | CommandView::Carry { .. }
                | CommandView::Rare(
                    Command::Renew { .. }
                        | Command::DropDrained { .. }
                        | Command::SetDedupWindow { .. }
                        | Command::TrimTopic { .. }
                        | Command::RaiseLevel { .. }
                )
        )
    }

    fn frames(&self) -> &[FramePlace] {
        match self {
            CommandView::Produce { frames, .. }
            | CommandView::Prepare { frames, .. }
            | CommandView::Carry { frames, .. } => frames,
            _ => &[],
        }
    }

    /// Reads the command at `start`, and answers its length.
    fn parse(
        payload: &'a [u8],
        start: usize,
        frame_count: &mut u32,
        commands: &mut Vec<CommandView<'a>>,
    ) -> Result<usize, MalformedEntry> {
        let rest = &payload[start..];
        if rest.len() < layout::COMMAND_HEADER_BYTES {
            return Err(malformed(start, "command header is cut off"));
        }
        let command_bytes = u32_at(rest, layout::COMMAND_BYTES_AT) as usize;
        let head_bytes = u32_at(rest, layout::COMMAND_HEAD_BYTES_AT) as usize;
        if !(layout::COMMAND_HEADER_BYTES..=command_bytes).contains(&head_bytes) || command_bytes > rest.len() {
            return Err(malformed(start, "command lengths do not add up"));
        }
        if u32_at(rest, layout::COMMAND_CRC_AT) != crc_without(&rest[..head_bytes], layout::COMMAND_CRC_AT) {
            return Err(malformed(start, "command does not fit its checksum"));
        }
        if rest[1..layout::COMMAND_BYTES_AT] != [0, 0, 0] {
            return Err(malformed(start, "command flags are unknown"));
        }
        let mut operands = Operands { bytes: &rest[..head_bytes], at: layout::COMMAND_HEADER_BYTES, start };
        let mut tail = Frames { payload, at: start + head_bytes, end: start + command_bytes, count: frame_count };
        commands.push(Self::parse_operands(rest[0], &mut operands, &mut tail)?);
        if operands.at != head_bytes {
            return Err(operands.wrong("bytes follow the operands"));
        }
        if tail.at != tail.end {
            return Err(malformed(tail.at, "bytes follow the frames"));
        }
        Ok(command_bytes)
    }

    fn parse_operands(
        kind: u8,
        operands: &mut Operands<'a>,
        frames: &mut Frames<'a, '_>,
    ) -> Result<CommandView<'a>, MalformedEntry> {
        match kind {
            layout::CREATE_TOPIC => Ok(CommandView::CreateTopic {
                name: operands.topic_name()?,
                message_type: MessageType::from_code(operands.u8()?)
                    .ok_or_else(|| operands.wrong("message type is unknown"))?,
                permission: Permission::from_code(operands.u8()?)
                    .ok_or_else(|| operands.wrong("permission is unknown"))?,
                queue_count: operands.u32()?,
            }),
            layout::DELETE_TOPIC => Ok(CommandView::DeleteTopic { name: operands.text()? }),
            layout::CREATE_GROUP => {
                let name = operands.group_name()?;
                let order = operands.flag("order")?;
                let policy = operands.u8()?;
                let max_deliveries = operands.u32()?;
                let start = match (policy, operands.u64()?) {
                    (layout::START_FIRST, 0) => StartPolicy::First,
                    (layout::START_LAST, 0) => StartPolicy::Last,
                    (layout::START_TIMESTAMP, at_ms) => StartPolicy::TimestampMs(at_ms),
                    _ => return Err(operands.wrong("start policy is unknown")),
                };
                Ok(CommandView::CreateGroup { name, order, max_deliveries, start })
            }
            layout::DELETE_GROUP => Ok(CommandView::DeleteGroup { name: operands.text()? }),
            layout::PRODUCE => Ok(CommandView::Produce {
                topic: operands.text()?,
                queue: QueueId(operands.u32()?),
                frames: {
                    let count = operands.u32()?;
                    frames.take(count)?
                },
            }),
            layout::TOUCH => Ok(CommandView::Touch { group: operands.text()?, topic: operands.text()? }),
            layout::DELIVER => Ok(CommandView::Deliver(operands.deliver()?)),
            layout::ACK => Ok(CommandView::Ack {
                group: operands.text()?,
                topic: operands.text()?,
                queue: QueueId(operands.u32()?),
                receipts: {
                    let count = operands.count(12)?;
                    let mut receipts = Vec::with_capacity(count);
                    for _ in 0..count {
                        receipts.push((QueueOffset(operands.u64()?), operands.u32()?));
                    }
                    receipts
                },
            }),
            layout::CHANGE_INVISIBLE => Ok(CommandView::ChangeInvisible {
                group: operands.text()?,
                topic: operands.text()?,
                queue: QueueId(operands.u32()?),
                offset: QueueOffset(operands.u64()?),
                seq: operands.u32()?,
                invisible_until_ms: operands.u64()?,
            }),
            layout::DELIVER_DUE => Ok(CommandView::DeliverDue { until_ms: operands.u64()?, count: operands.u32()? }),
            layout::RECALL => Ok(CommandView::Recall {
                topic: operands.text()?,
                due_ms: operands.u64()?,
                message: operands.message()?,
            }),
            layout::PREPARE => Ok(CommandView::Prepare {
                topic: operands.text()?,
                queue: QueueId(operands.u32()?),
                check_after_ms: operands.u64()?,
                frames: {
                    let count = operands.u32()?;
                    frames.take(count)?
                },
            }),
            layout::END_TRANSACTION => Ok(CommandView::EndTransaction {
                topic: operands.text()?,
                message: operands.message()?,
                commit: operands.flag("commit")?,
            }),
            layout::CHECK_TRANSACTIONS => Ok(CommandView::CheckTransactions {
                count: operands.u32()?,
                next_after_ms: operands.u64()?,
                checks_max: operands.u32()?,
            }),
            layout::SET_TOPIC_LEVEL => entry_levels::set_topic_level(operands),
            layout::ANSWERED_EARLY => entry_levels::answered_early(operands),
            layout::TRIM => Ok(CommandView::Trim { below: operands.u64()?, before_ms: operands.u64()? }),
            layout::CARRY => {
                let count = operands.count(12)?;
                let messages = (0..count).map(|_| operands.message()).collect::<Result<_, _>>()?;
                // As many frames as messages.
                Ok(CommandView::Carry { messages, frames: frames.take(count as u32)? })
            }
            rare => Ok(CommandView::Rare(entry_rare::parse(rare, operands)?)),
        }
    }

    fn to_command(&self, payload: &Bytes) -> Result<Command, MalformedEntry> {
        let topic_of = |name: &str| TopicName::try_from(name).map_err(|e| malformed(0, &e.to_string()));
        let group_of = |name: &str| GroupName::try_from(name).map_err(|e| malformed(0, &e.to_string()));
        Ok(match self {
            CommandView::CreateTopic { name, message_type, queue_count, permission } => Command::CreateTopic {
                name: name.clone(),
                message_type: *message_type,
                queue_count: *queue_count,
                permission: *permission,
            },
            CommandView::DeleteTopic { name } => Command::DeleteTopic { name: topic_of(name)? },
            CommandView::CreateGroup { name, order, max_deliveries, start } => Command::CreateGroup {
                name: name.clone(),
                order: *order,
                max_deliveries: *max_deliveries,
                start: *start,
            },
            CommandView::DeleteGroup { name } => Command::DeleteGroup { name: group_of(name)? },
            CommandView::Produce { topic, queue, frames } => {
                Command::Produce { topic: topic_of(topic)?, queue: *queue, frames: stored(frames, payload)? }
            }
            CommandView::Touch { group, topic } => Command::Touch { group: group_of(group)?, topic: topic_of(topic)? },
            CommandView::Deliver(deliver) => Command::Deliver {
                group: group_of(deliver.group)?,
                topic: topic_of(deliver.topic)?,
                queue: deliver.queue,
                attempt_id: deliver.attempt_id.map(str::to_owned),
                invisible_until_ms: deliver.invisible_until_ms,
                offsets: deliver.offsets.clone(),
                skip: deliver.skip,
            },
            CommandView::Ack { group, topic, queue, receipts } => Command::Ack {
                group: group_of(group)?,
                topic: topic_of(topic)?,
                queue: *queue,
                receipts: receipts.clone(),
            },
            CommandView::ChangeInvisible { group, topic, queue, offset, seq, invisible_until_ms } => {
                Command::ChangeInvisible {
                    group: group_of(group)?,
                    topic: topic_of(topic)?,
                    queue: *queue,
                    offset: *offset,
                    seq: *seq,
                    invisible_until_ms: *invisible_until_ms,
                }
            }
            CommandView::DeliverDue { until_ms, count } => Command::DeliverDue { until_ms: *until_ms, count: *count },
            CommandView::Recall { topic, due_ms, message } => {
                Command::Recall { topic: topic_of(topic)?, due_ms: *due_ms, message: *message }
            }
            CommandView::Prepare { topic, queue, check_after_ms, frames } => Command::Prepare {
                topic: topic_of(topic)?,
                queue: *queue,
                check_after_ms: *check_after_ms,
                frames: stored(frames, payload)?,
            },
            CommandView::EndTransaction { topic, message, commit } => {
                Command::EndTransaction { topic: topic_of(topic)?, message: *message, commit: *commit }
            }
            CommandView::CheckTransactions { count, next_after_ms, checks_max } => {
                Command::CheckTransactions { count: *count, next_after_ms: *next_after_ms, checks_max: *checks_max }
            }
            CommandView::Trim { below, before_ms } => Command::Trim { below: *below, before_ms: *before_ms },
            CommandView::Carry { messages, frames } => {
                Command::Carry { messages: messages.clone(), frames: stored(frames, payload)? }
            }
            CommandView::Rare(command) => command.clone(),
            CommandView::SetTopicLevel { name, level } => {
                Command::SetTopicLevel { name: topic_of(name)?, level: *level }
            }
            CommandView::AnsweredEarly { commands } => Command::AnsweredEarly { commands: commands.clone() },
        })
    }
}

/// The stamp of an entry, milliseconds since the Unix epoch; `None` if the payload does not begin as an entry does.
pub fn entry_log_time_ms(payload: &[u8]) -> Option<u64> {
    let header = payload.first_chunk::<{ layout::HEADER_BYTES }>()?;
    let is_sound =
        header[..4] == layout::MAGIC && u32_at(header, layout::CRC_AT) == crc32c::crc32c(&header[..layout::CRC_AT]);
    is_sound.then(|| u64_at(header, layout::LOG_TIME_AT))
}

/// The frame with this place among all frames of an entry, whole and checked; `None` if there are fewer.
///
/// # Errors
/// If the payload is no entry, or the frame's body is damaged.
pub fn nth_frame(payload: &Bytes, ordinal: u32) -> Result<Option<StoredFrame>, MalformedEntry> {
    let view = EntryView::parse(payload)?;
    let found = view.commands.iter().flat_map(CommandView::frames).find(|place| place.ordinal == ordinal);
    match found {
        Some(place) => Ok(stored(std::slice::from_ref(place), payload)?.pop()),
        None => Ok(None),
    }
}

/// The frames themselves, bodies checked.
fn stored(frames: &[FramePlace], payload: &Bytes) -> Result<Vec<StoredFrame>, MalformedEntry> {
    let frame_at = |place: &FramePlace| {
        let start = place.position as usize;
        let frame = payload.slice(start..start + place.head.frame_bytes() as usize);
        StoredFrame::from_bytes(frame).map_err(|e| malformed(start, &e.to_string()))
    };
    frames.iter().map(frame_at).collect()
}
