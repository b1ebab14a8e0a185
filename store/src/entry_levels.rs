//! The commands about acknowledgements, as bytes of an entry.

use bytes::{BufMut, BytesMut};

use crate::entry::{layout, put_text};
use crate::entry_view::{CommandView, EntryView, MalformedEntry};
use crate::entry_walk::Operands;
use crate::levels::{TopicLevel, ack_code, flush_code, level_of};

pub(crate) fn put_set_topic_level(out: &mut BytesMut, name: &str, level: TopicLevel) -> u8 {
    put_text(out, name);
    out.put_u8(ack_code(level.ack));
    out.put_u8(flush_code(level.flush));
    layout::SET_TOPIC_LEVEL
}

pub(crate) fn put_answered_early(out: &mut BytesMut, commands: &[u32]) -> u8 {
    out.put_u32_le(commands.len() as u32);
    commands.iter().for_each(|command| out.put_u32_le(*command));
    layout::ANSWERED_EARLY
}

pub(crate) fn set_topic_level<'a>(operands: &mut Operands<'a>) -> Result<CommandView<'a>, MalformedEntry> {
    let name = operands.text()?;
    let (ack, flush) = (operands.u8()?, operands.u8()?);
    let level = level_of(ack, flush).ok_or_else(|| operands.wrong("level is unknown"))?;
    Ok(CommandView::SetTopicLevel { name, level })
}

pub(crate) fn answered_early<'a>(operands: &mut Operands<'a>) -> Result<CommandView<'a>, MalformedEntry> {
    let count = operands.count(4)?;
    let mut commands = Vec::with_capacity(count);
    for _ in 0..count {
        commands.push(operands.u32()?);
    }
    Ok(CommandView::AnsweredEarly { commands })
}

/// How many messages of an entry were acknowledged before the entry was committed, as its proposer noted in it; 0 for
/// bytes that are no entry.
pub fn messages_answered_early(payload: &[u8]) -> u64 {
    let Ok(entry) = EntryView::parse(payload) else { return 0 };
    let noted = entry.commands.iter().filter_map(|command| match command {
        CommandView::AnsweredEarly { commands } => Some(commands),
        _ => None,
    });
    let frames = |number: &u32| match entry.commands.get(*number as usize) {
        Some(CommandView::Produce { frames, .. } | CommandView::Prepare { frames, .. }) => frames.len() as u64,
        _ => 0,
    };
    noted.flatten().map(frames).sum()
}
