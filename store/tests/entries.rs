//! Log entries: what is built reads back, and no bytes make the machine panic.

use crate::support::{Node, create_topic, entry, frame, group, produce, topic};
use bytes::Bytes;
use flotilla_message::{MessageRef, MessageType, Permission, QueueId, QueueOffset};
use flotilla_store::{Command, Entry, GroupChange, OffsetTarget, Outcome, Rejection, SkipRange, StartPolicy};
use proptest::prelude::*;

fn targets() -> impl Strategy<Value = OffsetTarget> {
    prop_oneof![
        Just(OffsetTarget::First),
        Just(OffsetTarget::Last),
        any::<u64>().prop_map(OffsetTarget::TimestampMs),
        any::<u64>().prop_map(|offset| OffsetTarget::Offset(QueueOffset(offset))),
    ]
}

fn changes() -> impl Strategy<Value = GroupChange> {
    let pauses = proptest::option::of(proptest::collection::vec(any::<u32>(), 0..20));
    (any::<Option<bool>>(), any::<Option<u32>>(), any::<Option<bool>>(), pauses).prop_map(
        |(order, max_deliveries, is_paused, retry_pauses_ms)| GroupChange {
            order,
            max_deliveries,
            is_paused,
            retry_pauses_ms,
        },
    )
}

fn commands() -> impl Strategy<Value = Command> {
    let topic_name = || "[a-zA-Z0-9_%|-]{1,20}".prop_map(|name| topic(&name));
    let group_name = || "[a-zA-Z0-9_%|-]{1,20}".prop_map(|name| group(&name));
    let queue = || any::<u32>().prop_map(QueueId);
    let offset = || any::<u64>().prop_map(QueueOffset);
    let message = || (any::<u64>(), any::<u32>()).prop_map(|(index, ordinal)| MessageRef { index, ordinal });
    let policies =
        prop_oneof![Just(StartPolicy::First), Just(StartPolicy::Last), any::<u64>().prop_map(StartPolicy::TimestampMs)];
    let types = proptest::sample::select(MessageType::ALL.to_vec());
    let permissions = proptest::sample::select(Permission::ALL.to_vec());
    prop_oneof![
        (topic_name(), types, any::<u32>(), permissions).prop_map(|(name, message_type, queue_count, permission)| {
            Command::CreateTopic { name, message_type, queue_count, permission }
        }),
        topic_name().prop_map(|name| Command::DeleteTopic { name }),
        (group_name(), any::<bool>(), any::<u32>(), policies).prop_map(|(name, order, max_deliveries, start)| {
            Command::CreateGroup { name, order, max_deliveries, start }
        }),
        group_name().prop_map(|name| Command::DeleteGroup { name }),
        (topic_name(), queue(), proptest::collection::vec("[!-~]{1,40}", 0..4)).prop_map(|(topic, queue, ids)| {
            Command::Produce { topic, queue, frames: ids.iter().map(|id| frame("t", id, Some("tag"))).collect() }
        }),
        (group_name(), topic_name()).prop_map(|(group, topic)| Command::Touch { group, topic }),
        (group_name(), topic_name(), queue(), targets()).prop_map(|(group, topic, queue, to)| Command::SetOffset {
            group,
            topic,
            queue,
            to
        }),
        (group_name(), changes()).prop_map(|(name, change)| Command::UpdateGroup { name, change }),
        (topic_name(), any::<Option<u32>>(), proptest::option::of(proptest::sample::select(Permission::ALL.to_vec())))
            .prop_map(|(name, queue_count, permission)| Command::UpdateTopic { name, queue_count, permission }),
        (group_name(), topic_name(), queue(), offset(), message()).prop_map(
            |(group, topic, queue, offset, message)| Command::Redeliver { group, topic, queue, offset, message }
        ),
        (
            group_name(),
            topic_name(),
            queue(),
            proptest::collection::vec((offset(), any::<u32>()), 0..5),
            any::<(u64, u64)>()
        )
            .prop_map(|(group, topic, queue, deliveries, (holder, invisible_until_ms))| Command::Renew {
                group,
                topic,
                queue,
                deliveries,
                holder,
                invisible_until_ms,
            }),
        (topic_name(), any::<u64>()).prop_map(|(name, uid)| Command::DropTopic { name, uid }),
        (topic_name(), any::<u64>()).prop_map(|(name, uid)| Command::DropDrained { name, uid }),
        any::<u32>().prop_map(|entries_max| Command::SetDedupWindow { entries_max }),
        (0..=flotilla_store::FEATURE_LEVEL).prop_map(|level| Command::RaiseLevel { level }),
        (group_name(), topic_name(), queue(), offset(), any::<u32>())
            .prop_map(|(group, topic, queue, offset, seq)| Command::DeadLetter { group, topic, queue, offset, seq }),
        (
            (group_name(), topic_name(), queue(), any::<u64>()),
            proptest::option::of(".{0,60}"),
            proptest::collection::vec(offset(), 0..5),
            proptest::option::of((offset(), offset())),
        )
            .prop_map(|((group, topic, queue, invisible_until_ms), attempt_id, offsets, skip)| {
                Command::Deliver {
                    group,
                    topic,
                    queue,
                    attempt_id,
                    invisible_until_ms,
                    offsets,
                    skip: skip.map(|(from, to)| SkipRange { from, to }),
                }
            }),
        (group_name(), topic_name(), queue(), proptest::collection::vec((offset(), any::<u32>()), 0..5))
            .prop_map(|(group, topic, queue, receipts)| Command::Ack { group, topic, queue, receipts }),
        (group_name(), topic_name(), queue(), offset(), any::<u32>(), any::<u64>()).prop_map(
            |(group, topic, queue, offset, seq, invisible_until_ms)| Command::ChangeInvisible {
                group,
                topic,
                queue,
                offset,
                seq,
                invisible_until_ms,
            }
        ),
        (any::<u64>(), any::<u32>()).prop_map(|(until_ms, count)| Command::DeliverDue { until_ms, count }),
        (topic_name(), any::<u64>(), message()).prop_map(|(topic, due_ms, message)| Command::Recall {
            topic,
            due_ms,
            message
        }),
        (topic_name(), queue(), any::<u64>(), proptest::collection::vec("[!-~]{1,40}", 0..3)).prop_map(
            |(topic, queue, check_after_ms, ids)| Command::Prepare {
                topic,
                queue,
                check_after_ms,
                frames: ids.iter().map(|id| frame("t", id, None)).collect()
            }
        ),
        (topic_name(), message(), any::<bool>()).prop_map(|(topic, message, commit)| Command::EndTransaction {
            topic,
            message,
            commit
        }),
        (any::<u32>(), any::<u64>(), any::<u32>()).prop_map(|(count, next_after_ms, checks_max)| {
            Command::CheckTransactions { count, next_after_ms, checks_max }
        }),
        (any::<u64>(), any::<u64>()).prop_map(|(below, before_ms)| Command::Trim { below, before_ms }),
        proptest::collection::vec((message(), "[!-~]{1,40}"), 0..4).prop_map(|carried| Command::Carry {
            messages: carried.iter().map(|(message, _)| *message).collect(),
            frames: carried.iter().map(|(_, id)| frame("t", id, None)).collect(),
        }),
    ]
}

fn is_malformed(outcomes: &[Outcome]) -> bool {
    matches!(outcomes, [Outcome::Rejected(Rejection::Malformed { .. })])
}

proptest! {
    #[test]
    fn an_entry_reads_back_equal(commands in proptest::collection::vec(commands(), 0..6), time in any::<u64>()) {
        let payload = entry(time, &commands);
        let parsed = Entry::parse(&payload).unwrap();
        prop_assert_eq!((parsed.log_time_ms, parsed.term), (time, 1));
        prop_assert_eq!(&parsed.commands, &commands);
        // Whatever it asks for, it has as many outcomes as commands.
        let mut node = Node::new();
        prop_assert_eq!(node.apply(payload).len(), commands.len());
    }

    #[test]
    fn a_cut_or_longer_entry_is_malformed(commands in proptest::collection::vec(commands(), 1..4), cut in any::<prop::sample::Index>()) {
        let payload = entry(5, &commands);
        let mut node = Node::new();
        let before = node.reader.digest().digest;
        prop_assert!(is_malformed(&node.apply(payload.slice(..cut.index(payload.len())))));
        let mut longer = payload.to_vec();
        longer.push(0);
        prop_assert!(is_malformed(&node.apply(Bytes::from(longer))));
        prop_assert_eq!(node.reader.applied(), 2);
        prop_assert_ne!(node.reader.digest().digest, before, "the applied index is part of the digest");
        prop_assert!(node.reader.topics().is_empty() && node.reader.log_time_ms() == 0);
    }

    #[test]
    fn a_flipped_bit_is_malformed_or_in_a_body(
        commands in proptest::collection::vec(commands(), 1..4),
        at in any::<prop::sample::Index>(),
        bit in 0u8..8,
    ) {
        let payload = entry(5, &commands);
        let mut bytes = payload.to_vec();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let damaged = Bytes::from(bytes);
        let outcomes = Node::new().apply(damaged.clone());
        // Applying does not read bodies; reading the entry whole does.
        prop_assert!(is_malformed(&outcomes) || outcomes.len() == commands.len());
        prop_assert!(Entry::parse(&damaged).is_err());
    }

    #[test]
    fn arbitrary_bytes_are_malformed(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(is_malformed(&Node::new().apply(Bytes::from(bytes))));
    }

    #[test]
    fn arbitrary_operands_with_right_checksums_never_panic(
        kind in proptest::sample::select(vec![0u8, 1, 2, 3, 4, 16, 17, 32, 33, 34, 35, 48, 49, 50, 51, 200]),
        operands in proptest::collection::vec(prop_oneof![3 => 0u8..4, 1 => any::<u8>()], 0..80),
        frames in proptest::collection::vec(any::<u8>(), 0..20),
    ) {
        let mut command = vec![kind, 0, 0, 0];
        command.extend_from_slice(&(16 + operands.len() as u32 + frames.len() as u32).to_le_bytes());
        command.extend_from_slice(&(16 + operands.len() as u32).to_le_bytes());
        let crc = crc32c::crc32c_append(crc32c::crc32c(&command), &operands);
        command.extend_from_slice(&crc.to_le_bytes());
        command.extend_from_slice(&operands);
        command.extend_from_slice(&frames);
        let mut payload = b"FLEN\x02\0\0\0\x01\0\0\0".to_vec();
        payload.extend_from_slice(&(36 + command.len() as u32).to_le_bytes());
        payload.extend_from_slice(&[0; 16]);
        payload.extend_from_slice(&crc32c::crc32c(&payload).to_le_bytes());
        payload.extend_from_slice(&command);
        prop_assert_eq!(Node::new().apply(Bytes::from(payload)).len(), 1);
    }
}

#[test]
fn a_malformed_command_leaves_the_whole_entry_unapplied() {
    let mut node = Node::new();
    let good = entry(7, &[create_topic("t", 1), produce("t", 0, &["a"])]);
    let mut bytes = good.to_vec();
    let head_of_frame = bytes.len() - 30;
    bytes[head_of_frame] ^= 1;
    let outcomes = node.apply(Bytes::from(bytes));
    assert!(is_malformed(&outcomes), "{outcomes:?}");
    assert_eq!((node.reader.topics().len(), node.reader.applied()), (0, 1));
    assert_eq!(*node.listener.applied.lock().unwrap(), 1, "waiters for the index go on");
    assert_eq!(node.apply(good).len(), 2);
}

#[test]
fn entries_of_the_version_before_are_read_and_later_ones_are_not() {
    for (version, is_known) in [(0u8, false), (1, true), (2, true), (3, true), (4, false)] {
        let mut bytes = entry(7, &[create_topic("t", 1)]).to_vec();
        bytes[4] = version;
        let crc = crc32c::crc32c(&bytes[..32]);
        bytes[32..36].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(!is_malformed(&Node::new().apply(Bytes::from(bytes))), is_known, "version {version}");
    }
}
