//! The commands that change positions and settings, in a log entry: writing and reading.

use bytes::{BufMut, BytesMut};
use flotilla_message::{Permission, QueueId, QueueOffset};

use crate::entry::{layout, put_message, put_text, text};
use crate::entry_view::MalformedEntry;
use crate::entry_walk::Operands;
use crate::{Command, GroupChange, OffsetTarget, TopicShare, TopicShares};

/// Codes of [`OffsetTarget`].
mod target {
    pub const FIRST: u8 = 0;
    pub const LAST: u8 = 1;
    pub const TIMESTAMP: u8 = 2;
    pub const OFFSET: u8 = 3;
}

/// Which fields of a change are there.
mod changed {
    pub const ORDER: u8 = 1;
    pub const MAX_DELIVERIES: u8 = 2;
    pub const PAUSED: u8 = 4;
    pub const RETRY_PAUSES: u8 = 8;
    pub const GROUP: u8 = ORDER | MAX_DELIVERIES | PAUSED | RETRY_PAUSES;

    pub const QUEUE_COUNT: u8 = 1;
    pub const PERMISSION: u8 = 2;
    pub const TOPIC: u8 = QUEUE_COUNT | PERMISSION;
}

/// How many bytes the operands take.
pub(crate) fn operand_bytes(command: &Command) -> usize {
    match command {
        Command::SetOffset { group, topic, .. } => text(group.as_str()) + text(topic.as_str()) + 13,
        Command::UpdateGroup { name, change } => {
            let GroupChange { order, max_deliveries, is_paused, retry_pauses_ms } = change;
            let flags = order.map_or(0, |_| 1) + is_paused.map_or(0, |_| 1);
            let pauses = retry_pauses_ms.as_ref().map_or(0, |pauses| 4 + 4 * pauses.len());
            text(name.as_str()) + 1 + flags + max_deliveries.map_or(0, |_| 4) + pauses
        }
        Command::UpdateTopic { name, queue_count, permission } => {
            text(name.as_str()) + 1 + queue_count.map_or(0, |_| 4) + permission.map_or(0, |_| 1)
        }
        Command::Redeliver { group, topic, .. } => text(group.as_str()) + text(topic.as_str()) + 24,
        Command::Renew { group, topic, deliveries, .. } => {
            text(group.as_str()) + text(topic.as_str()) + 24 + 12 * deliveries.len()
        }
        Command::DropTopic { name, .. } | Command::DropDrained { name, .. } => text(name.as_str()) + 8,
        Command::SetDedupWindow { .. } => 4,
        Command::RaiseLevel { .. } => 1,
        Command::DeadLetter { group, topic, .. } => text(group.as_str()) + text(topic.as_str()) + 16,
        Command::SetTopicRetention { name, .. } => text(name.as_str()) + 8,
        Command::TrimTopic { name, .. } => text(name.as_str()) + 16,
        Command::SetWritePermission { .. } => 1,
        Command::SetTopicShares { name, shares } => {
            let rows: usize = shares.shares.iter().map(|share| text(&share.broker_group) + 4).sum();
            text(name.as_str()) + 13 + rows
        }
        other => unreachable!("{other:?} is written where its kind is"),
    }
}

/// Writes the operands; answers the kind.
pub(crate) fn put_operands(out: &mut BytesMut, command: &Command) -> u8 {
    match command {
        Command::SetOffset { group, topic, queue, to } => {
            put_text(out, group.as_str());
            put_text(out, topic.as_str());
            out.put_u32_le(queue.0);
            let (kind, value) = match to {
                OffsetTarget::First => (target::FIRST, 0),
                OffsetTarget::Last => (target::LAST, 0),
                OffsetTarget::TimestampMs(at_ms) => (target::TIMESTAMP, *at_ms),
                OffsetTarget::Offset(offset) => (target::OFFSET, offset.0),
            };
            out.put_u8(kind);
            out.put_u64_le(value);
            layout::SET_OFFSET
        }
        Command::UpdateGroup { name, change } => {
            put_text(out, name.as_str());
            put_group_change(out, change);
            layout::UPDATE_GROUP
        }
        Command::UpdateTopic { name, queue_count, permission } => {
            put_text(out, name.as_str());
            let queues = queue_count.map_or(0, |_| changed::QUEUE_COUNT);
            out.put_u8(queues | permission.map_or(0, |_| changed::PERMISSION));
            queue_count.iter().for_each(|count| out.put_u32_le(*count));
            permission.iter().for_each(|permission| out.put_u8(permission.code()));
            layout::UPDATE_TOPIC
        }
        Command::Redeliver { group, topic, queue, offset, message } => {
            put_text(out, group.as_str());
            put_text(out, topic.as_str());
            out.put_u32_le(queue.0);
            out.put_u64_le(offset.0);
            put_message(out, *message);
            layout::REDELIVER
        }
        Command::Renew { group, topic, queue, deliveries, holder, invisible_until_ms } => {
            put_text(out, group.as_str());
            put_text(out, topic.as_str());
            out.put_u32_le(queue.0);
            out.put_u64_le(*holder);
            out.put_u64_le(*invisible_until_ms);
            out.put_u32_le(deliveries.len() as u32);
            for (offset, seq) in deliveries {
                out.put_u64_le(offset.0);
                out.put_u32_le(*seq);
            }
            layout::RENEW
        }
        Command::DropTopic { name, uid } => {
            put_text(out, name.as_str());
            out.put_u64_le(*uid);
            layout::DROP_TOPIC
        }
        Command::DropDrained { name, uid } => {
            put_text(out, name.as_str());
            out.put_u64_le(*uid);
            layout::DROP_DRAINED
        }
        Command::SetDedupWindow { entries_max } => {
            out.put_u32_le(*entries_max);
            layout::SET_DEDUP_WINDOW
        }
        Command::RaiseLevel { level } => {
            out.put_u8(*level);
            layout::RAISE_LEVEL
        }
        Command::DeadLetter { group, topic, queue, offset, seq } => {
            put_text(out, group.as_str());
            put_text(out, topic.as_str());
            out.put_u32_le(queue.0);
            out.put_u64_le(offset.0);
            out.put_u32_le(*seq);
            layout::DEAD_LETTER
        }
        Command::SetTopicRetention { name, retention_ms } => {
            put_text(out, name.as_str());
            out.put_u64_le(retention_ms.unwrap_or(0));
            layout::SET_TOPIC_RETENTION
        }
        Command::TrimTopic { name, uid, before_ms } => {
            put_text(out, name.as_str());
            out.put_u64_le(*uid);
            out.put_u64_le(*before_ms);
            layout::TRIM_TOPIC
        }
        Command::SetWritePermission { is_writable } => {
            out.put_u8(u8::from(*is_writable));
            layout::SET_WRITE_PERMISSION
        }
        Command::SetTopicShares { name, shares } => {
            put_text(out, name.as_str());
            out.put_u64_le(shares.version);
            out.put_u8(u8::from(shares.is_moving));
            out.put_u32_le(shares.shares.len() as u32);
            for share in &shares.shares {
                put_text(out, &share.broker_group);
                out.put_u32_le(share.queue_count);
            }
            layout::SET_TOPIC_SHARES
        }
        other => unreachable!("{other:?} is written where its kind is"),
    }
}

fn put_group_change(out: &mut BytesMut, change: &GroupChange) {
    let GroupChange { order, max_deliveries, is_paused, retry_pauses_ms } = change;
    let flags = [
        order.map_or(0, |_| changed::ORDER),
        max_deliveries.map_or(0, |_| changed::MAX_DELIVERIES),
        is_paused.map_or(0, |_| changed::PAUSED),
        retry_pauses_ms.as_ref().map_or(0, |_| changed::RETRY_PAUSES),
    ];
    out.put_u8(flags.iter().sum());
    order.iter().for_each(|order| out.put_u8(u8::from(*order)));
    max_deliveries.iter().for_each(|count| out.put_u32_le(*count));
    is_paused.iter().for_each(|is_paused| out.put_u8(u8::from(*is_paused)));
    if let Some(pauses) = retry_pauses_ms {
        out.put_u32_le(pauses.len() as u32);
        pauses.iter().for_each(|pause| out.put_u32_le(*pause));
    }
}

/// Reads the operands of such a command.
pub(crate) fn parse(kind: u8, operands: &mut Operands<'_>) -> Result<Command, MalformedEntry> {
    match kind {
        layout::SET_OFFSET => {
            let (group, topic, queue) = (operands.group_name()?, operands.topic_name()?, QueueId(operands.u32()?));
            let to = match (operands.u8()?, operands.u64()?) {
                (target::FIRST, 0) => OffsetTarget::First,
                (target::LAST, 0) => OffsetTarget::Last,
                (target::TIMESTAMP, at_ms) => OffsetTarget::TimestampMs(at_ms),
                (target::OFFSET, offset) => OffsetTarget::Offset(QueueOffset(offset)),
                _ => return Err(operands.wrong("offset target is unknown")),
            };
            Ok(Command::SetOffset { group, topic, queue, to })
        }
        layout::UPDATE_GROUP => {
            Ok(Command::UpdateGroup { name: operands.group_name()?, change: parse_group_change(operands)? })
        }
        layout::UPDATE_TOPIC => {
            let name = operands.topic_name()?;
            let flags = operands.u8()?;
            if flags & !changed::TOPIC != 0 {
                return Err(operands.wrong("flags of a topic's change are unknown"));
            }
            let queue_count = if flags & changed::QUEUE_COUNT == 0 { None } else { Some(operands.u32()?) };
            let permission = match flags & changed::PERMISSION {
                0 => None,
                _ => {
                    Some(Permission::from_code(operands.u8()?).ok_or_else(|| operands.wrong("permission is unknown"))?)
                }
            };
            Ok(Command::UpdateTopic { name, queue_count, permission })
        }
        layout::REDELIVER => Ok(Command::Redeliver {
            group: operands.group_name()?,
            topic: operands.topic_name()?,
            queue: QueueId(operands.u32()?),
            offset: QueueOffset(operands.u64()?),
            message: operands.message()?,
        }),
        layout::RENEW => {
            let (group, topic, queue) = (operands.group_name()?, operands.topic_name()?, QueueId(operands.u32()?));
            let (holder, invisible_until_ms) = (operands.u64()?, operands.u64()?);
            let count = operands.count(12)?;
            let mut deliveries = Vec::with_capacity(count);
            for _ in 0..count {
                deliveries.push((QueueOffset(operands.u64()?), operands.u32()?));
            }
            Ok(Command::Renew { group, topic, queue, deliveries, holder, invisible_until_ms })
        }
        layout::DROP_TOPIC => Ok(Command::DropTopic { name: operands.topic_name()?, uid: operands.u64()? }),
        layout::DROP_DRAINED => Ok(Command::DropDrained { name: operands.topic_name()?, uid: operands.u64()? }),
        layout::SET_DEDUP_WINDOW => Ok(Command::SetDedupWindow { entries_max: operands.u32()? }),
        layout::RAISE_LEVEL => Ok(Command::RaiseLevel { level: operands.u8()? }),
        layout::DEAD_LETTER => Ok(Command::DeadLetter {
            group: operands.group_name()?,
            topic: operands.topic_name()?,
            queue: QueueId(operands.u32()?),
            offset: QueueOffset(operands.u64()?),
            seq: operands.u32()?,
        }),
        layout::SET_TOPIC_RETENTION => Ok(Command::SetTopicRetention {
            name: operands.topic_name()?,
            retention_ms: Some(operands.u64()?).filter(|ms| *ms > 0),
        }),
        layout::TRIM_TOPIC => {
            Ok(Command::TrimTopic { name: operands.topic_name()?, uid: operands.u64()?, before_ms: operands.u64()? })
        }
        layout::SET_WRITE_PERMISSION => {
            Ok(Command::SetWritePermission { is_writable: operands.flag("write permission")? })
        }
        layout::SET_TOPIC_SHARES => {
            let name = operands.topic_name()?;
            let (version, is_moving) = (operands.u64()?, operands.flag("move")?);
            // Name and count of one.
            let count = operands.count(6)?;
            let mut shares = Vec::with_capacity(count);
            for _ in 0..count {
                let broker_group = operands.text()?.to_owned();
                shares.push(TopicShare { broker_group, queue_count: operands.u32()? });
            }
            Ok(Command::SetTopicShares { name, shares: TopicShares { version, is_moving, shares } })
        }
        _ => Err(operands.wrong("command kind is unknown")),
    }
}

fn parse_group_change(operands: &mut Operands<'_>) -> Result<GroupChange, MalformedEntry> {
    let flags = operands.u8()?;
    if flags & !changed::GROUP != 0 {
        return Err(operands.wrong("flags of a group's change are unknown"));
    }
    let mut change = GroupChange::default();
    if flags & changed::ORDER != 0 {
        change.order = Some(operands.flag("order")?);
    }
    if flags & changed::MAX_DELIVERIES != 0 {
        change.max_deliveries = Some(operands.u32()?);
    }
    if flags & changed::PAUSED != 0 {
        change.is_paused = Some(operands.flag("pause")?);
    }
    if flags & changed::RETRY_PAUSES != 0 {
        let count = operands.count(4)?;
        let mut pauses = Vec::with_capacity(count);
        for _ in 0..count {
            pauses.push(operands.u32()?);
        }
        change.retry_pauses_ms = Some(pauses);
    }
    Ok(change)
}
