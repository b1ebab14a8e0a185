//! A command of the state machine on one line: what it does and to what, never a message's body.

use flotilla_message::StoredFrame;
use flotilla_store::{Command, TopicShare};

/// The line.
pub fn describe(command: &Command) -> String {
    match command {
        Command::CreateTopic { name, message_type, queue_count, permission } => {
            format!("create topic {name}, {message_type:?}, {queue_count} queues, {permission:?}")
        }
        Command::DeleteTopic { name } => format!("delete topic {name}"),
        Command::CreateGroup { name, order, max_deliveries, start } => {
            let order = if *order { "ordered" } else { "concurrent" };
            format!("create group {name}, {order}, {max_deliveries} deliveries, start {start:?}")
        }
        Command::DeleteGroup { name } => format!("delete group {name}"),
        Command::Produce { topic, queue, frames } => format!("produce to {topic}/{}: {}", queue.0, ids(frames)),
        Command::Prepare { topic, queue, check_after_ms, frames } => {
            format!("prepare in {topic}/{}, check after {check_after_ms} ms: {}", queue.0, ids(frames))
        }
        Command::DeliverDue { until_ms, count } => format!("deliver what is due at {until_ms}, at most {count}"),
        Command::Recall { topic, due_ms, message } => {
            format!("recall {}.{} of {topic}, due at {due_ms}", message.index, message.ordinal)
        }
        Command::EndTransaction { topic, message, commit } => {
            let ending = if *commit { "commit" } else { "roll back" };
            format!("{ending} {}.{} of {topic}", message.index, message.ordinal)
        }
        Command::CheckTransactions { count, next_after_ms, checks_max } => {
            format!("check at most {count} transactions, again after {next_after_ms} ms, {checks_max} times")
        }
        Command::Trim { below, before_ms } => {
            format!("trim: entries before {below} go, and all that was stored before {before_ms}")
        }
        Command::Carry { messages, frames } => {
            let ends = messages.first().zip(messages.last()).map_or_else(String::new, |(first, last)| {
                format!(" ({}.{} to {}.{})", first.index, first.ordinal, last.index, last.ordinal)
            });
            format!("carry {}{ends}", ids(frames))
        }
        Command::Touch { group, topic } => format!("touch {topic} for {group}"),
        Command::Deliver { group, topic, queue, invisible_until_ms, offsets, skip, .. } => {
            let ends = offsets.first().zip(offsets.last()).map_or_else(
                || "nothing".to_owned(),
                |(first, last)| format!("{} offsets from {} to {}", offsets.len(), first.0, last.0),
            );
            let skipped =
                skip.map_or_else(String::new, |skip| format!(", looked through {} to {}", skip.from.0, skip.to.0));
            format!("deliver {topic}/{} to {group}: {ends}, until {invisible_until_ms}{skipped}", queue.0)
        }
        Command::Ack { group, topic, queue, receipts } => {
            format!("ack {} deliveries of {topic}/{} to {group}", receipts.len(), queue.0)
        }
        Command::ChangeInvisible { group, topic, queue, offset, invisible_until_ms, .. } => {
            format!("keep {topic}/{} offset {} from {group} until {invisible_until_ms}", queue.0, offset.0)
        }
        Command::SetOffset { group, topic, queue, to } => {
            format!("move {group} in {topic}/{} to {to:?}", queue.0)
        }
        Command::UpdateGroup { name, change } => format!("change group {name}: {change:?}"),
        Command::UpdateTopic { name, queue_count, permission } => {
            let queues = queue_count.map_or_else(String::new, |count| format!(" {count} queues"));
            let permission = permission.map_or_else(String::new, |permission| format!(" {permission:?}"));
            format!("change topic {name}:{queues}{permission}")
        }
        Command::Redeliver { group, topic, queue, offset, .. } => {
            format!("make {topic}/{} offset {} due again for {group}", queue.0, offset.0)
        }
        Command::Renew { group, topic, queue, deliveries, invisible_until_ms, .. } => {
            let count = deliveries.len();
            format!("prolong {count} deliveries of {topic}/{} to {group} until {invisible_until_ms}", queue.0)
        }
        Command::DropDrained { name, uid } => format!("drop drained queues of topic {name}, its life number {uid}"),
        Command::RaiseLevel { level } => format!("raise level {level}"),
        Command::SetDedupWindow { entries_max } => format!("keep {entries_max} message ids to find repeated sends"),
        Command::DropTopic { name, uid } => format!("delete topic {name}, its life number {uid}"),
        Command::DeadLetter { group, topic, queue, offset, .. } => {
            format!("make a dead letter of {topic}/{} offset {} of {group}", queue.0, offset.0)
        }
        Command::SetTopicLevel { name, level } => {
            let ack = level.ack.map_or_else(|| "the group's".to_owned(), |ack| ack.to_string());
            let flush = level.flush.map_or_else(|| "the group's".to_owned(), |flush| flush.to_string());
            format!("answer sends to {name} at ack {ack}, flush {flush}")
        }
        Command::SetTopicRetention { name, retention_ms } => {
            let time = retention_ms.map_or_else(|| "as long as the log".to_owned(), |ms| format!("for {ms} ms"));
            format!("keep messages of {name} {time}")
        }
        Command::SetWritePermission { is_writable } => {
            let word = if *is_writable { "add" } else { "wipe" };
            format!("{word} the write permission of the broker group")
        }
        Command::SetTopicShares { name, shares } => {
            let one = |share: &TopicShare| format!("{} queues in {}", share.queue_count, share.broker_group);
            let places: Vec<String> = shares.shares.iter().map(one).collect();
            let word = if shares.is_moving { "is to be" } else { "is" };
            format!("topic {name} {word} in (version {}): {}", shares.version, places.join(", "))
        }
        Command::TrimTopic { name, uid, before_ms } => {
            format!("let messages of {name}, its life number {uid}, go that are older than {before_ms}")
        }
        Command::AnsweredEarly { commands } => {
            let numbers: Vec<String> = commands.iter().map(u32::to_string).collect();
            format!("note: answered before the commit: commands {}", numbers.join(", "))
        }
    }
}

fn ids(frames: &[StoredFrame]) -> String {
    const SHOWN: usize = 3;
    let shown: Vec<String> = frames.iter().take(SHOWN).map(|frame| frame.view().id().to_owned()).collect();
    let more = frames.len().saturating_sub(SHOWN);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{} message(s) {}{rest}", frames.len(), shown.join(", "))
}
