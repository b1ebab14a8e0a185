//! What the pop commands do: deliver, acknowledge, change the invisible time, dead-letter.

use flotilla_message::{GroupName, MessageType, Permission, QueueId, QueueOffset, TopicName};
use flotilla_planted_bugs::{Bug, is_planted};

use crate::entry_view::DeliverView;
use crate::limits::IN_FLIGHT_PER_QUEUE_MAX;
use crate::progress::{QueueProgress, Redelivery, attempt_key};
use crate::queue::Queue;
use crate::state::{Changes, Group, Refusal, State};
use crate::{Granted, Outcome, Rejection, SkipRange, Slot, StoreError};

impl State {
    pub fn deliver(&mut self, command: &DeliverView<'_>, changes: &mut Changes) -> Result<Outcome, Refusal> {
        let (group_name, group) = self.groups.get_key_value(command.group).ok_or(Rejection::GroupNotFound)?;
        let (topic_name, topic) = self.topics.get_key_value(command.topic).ok_or(Rejection::TopicNotFound)?;
        let queue = topic.queue(command.queue)?;
        if !topic.permission.is_readable() {
            return Err(Rejection::TopicNotReadable.into());
        }
        if group.is_paused {
            return Err(Rejection::GroupPaused.into());
        }
        let key = (group.uid, topic.uid, command.queue.0);
        let unmet = || Ok::<_, StoreError>(QueueProgress::starting_at(group.first_offset(queue)?));
        let progress = self.progress.get_or_insert(key, unmet)?;

        let attempt = command.attempt_id.map(attempt_key);
        if let Some(attempt) = attempt {
            let granted = progress.granted_before(attempt, self.log_time_ms);
            if !granted.is_empty() {
                return Ok(Outcome::Delivered {
                    granted: self.references.resolve(granted),
                    next_offset: QueueOffset(progress.next_offset()),
                    repeated: true,
                });
            }
        }

        let mut delivery = Delivery {
            group: *group,
            queue,
            progress,
            now_ms: self.log_time_ms,
            invisible_until_ms: command.invisible_until_ms,
            last_seq: &mut self.last_seq,
            granted: Vec::new(),
            dead: Vec::new(),
        };
        delivery.run(&command.offsets, command.skip)?;
        let Delivery { granted, dead, .. } = delivery;
        if let Some(attempt) = attempt
            && granted.iter().any(|grant| !grant.dead_lettered)
        {
            progress.remember(attempt, &granted);
        }
        let next_offset = QueueOffset(progress.next_offset());
        if !dead.is_empty() {
            let (group_name, topic_name) = (group_name.clone(), topic_name.clone());
            self.dead_letter(&group_name, &topic_name, &dead, changes);
            changes.groups_changed.insert((group_name, topic_name));
        }
        Ok(Outcome::Delivered { granted: self.references.resolve(granted), next_offset, repeated: false })
    }

    /// Makes slots in the group's dead-letter topic, which is made if it is not there. They refer
    /// to the same messages; nothing is copied.
    ///
    /// Dead letters of the dead-letter topic itself stay where they are: they count as consumed.
    pub(crate) fn dead_letter(&mut self, group: &GroupName, source: &TopicName, dead: &[Slot], changes: &mut Changes) {
        let name = TopicName::dead_letter(group);
        if name == *source || is_planted(Bug::DeadLetterDropped) {
            return;
        }
        if !self.topics.contains_key(&name) {
            self.add_topic(&name, MessageType::Normal, 1, Permission::ReadWrite);
            changes.catalog = true;
        }
        let Some(queue) = self.topics.get_mut(&name).and_then(|topic| topic.queues.first_mut()) else {
            unreachable!("the topic was made above, and every topic has a queue");
        };
        for slot in dead {
            let slot = Slot { stored_at_ms: self.log_time_ms, is_reference: true, ..*slot };
            self.references.add(slot.message);
            queue.append(slot, slot.tag_hash ^ slot.length);
        }
        changes.queues_grown.insert((name, QueueId(0)));
    }

    pub fn ack(
        &mut self,
        group: &str,
        topic: &str,
        queue: QueueId,
        receipts: &[(QueueOffset, u32)],
        changes: &mut Changes,
    ) -> Result<Outcome, Refusal> {
        let (group_name, group) = self.groups.get_key_value(group).ok_or(Rejection::GroupNotFound)?;
        let (topic_name, topic) = self.topics.get_key_value(topic).ok_or(Rejection::TopicNotFound)?;
        topic.queue(queue)?;
        let mut nothing = QueueProgress::default();
        let progress = self.progress.get_mut(&(group.uid, topic.uid, queue.0)).unwrap_or(&mut nothing);
        let results = receipts.iter().map(|(offset, seq)| progress.ack(offset.0, *seq)).collect();
        changes.groups_changed.insert((group_name.clone(), topic_name.clone()));
        Ok(Outcome::Acked { results })
    }

    pub fn change_invisible(
        &mut self,
        names: (&str, &str),
        queue: QueueId,
        offset: QueueOffset,
        seq: u32,
        invisible_until_ms: u64,
        changes: &mut Changes,
    ) -> Result<Outcome, Refusal> {
        let (group_name, group) = self.groups.get_key_value(names.0).ok_or(Rejection::GroupNotFound)?;
        let (topic_name, topic) = self.topics.get_key_value(names.1).ok_or(Rejection::TopicNotFound)?;
        topic.queue(queue)?;
        let progress = self.progress.get_mut(&(group.uid, topic.uid, queue.0)).ok_or(Rejection::DeliveryNotFound)?;
        let mut last_seq = self.last_seq;
        let new_seq = State::next_seq(&mut last_seq);
        let (flight, changed) = progress.change_invisible(offset.0, seq, new_seq, invisible_until_ms)?;
        if changed {
            self.last_seq = last_seq;
            changes.groups_changed.insert((group_name.clone(), topic_name.clone()));
        }
        Ok(Outcome::InvisibleChanged {
            seq: flight.seq,
            slot: flight.slot.resolved(&self.references),
            invisible_until_ms: flight.invisible_until_ms,
        })
    }
}

/// One `Deliver` at work.
struct Delivery<'a> {
    group: Group,
    queue: &'a Queue,
    progress: &'a mut QueueProgress,
    now_ms: u64,
    invisible_until_ms: u64,
    last_seq: &'a mut u32,
    granted: Vec<Granted>,
    dead: Vec<Slot>,
}

impl Delivery<'_> {
    fn run(&mut self, offsets: &[QueueOffset], skip: Option<SkipRange>) -> Result<(), StoreError> {
        let next_before = self.progress.next_offset();
        // In an ordered group what is in flight now keeps anything new back, even if this very
        // command hands it out again.
        let new_allowed = !self.group.order || is_planted(Bug::OrderNotFenced) || self.progress.in_flight().is_empty();
        let looked_until = skip
            .filter(|range| range.from.0 <= next_before)
            .map_or(next_before, |range| range.to.0.clamp(next_before, self.queue.max().max(next_before)));

        let mut last = None;
        let mut last_redelivered = None;
        let mut kept_back = None;
        for QueueOffset(offset) in offsets {
            if last.is_some_and(|last| *offset <= last) {
                continue;
            }
            last = Some(*offset);
            if *offset < next_before {
                if self.may_redeliver(*offset, last_redelivered) {
                    self.redeliver(*offset);
                    last_redelivered = Some(*offset);
                }
            } else if *offset <= self.progress.next_offset().max(looked_until)
                && (!new_allowed || !self.grant_new(*offset)?)
            {
                kept_back = Some(*offset);
                break;
            }
        }
        // What was wanted but not granted is not passed over.
        let skip_end = kept_back.map_or(looked_until, |offset| looked_until.min(offset));
        self.progress.skip_to(skip_end);
        Ok(())
    }

    fn may_redeliver(&self, offset: u64, last_redelivered: Option<u64>) -> bool {
        self.progress.is_due(offset, self.now_ms)
            && (!self.group.order || self.progress.lowest_in_flight(last_redelivered) == Some(offset))
    }

    fn redeliver(&mut self, offset: u64) {
        let seq = State::next_seq(self.last_seq);
        match self.progress.redeliver(offset, self.group.max_deliveries, seq, self.invisible_until_ms) {
            Some(Redelivery::Granted(grant)) => self.granted.push(grant),
            Some(Redelivery::Exhausted(grant)) => {
                self.dead.push(grant.slot);
                self.granted.push(grant);
            }
            None => {}
        }
    }

    /// Hands out a new message; false if there is no room or no such message yet.
    fn grant_new(&mut self, offset: u64) -> Result<bool, StoreError> {
        if self.progress.in_flight().len() >= IN_FLIGHT_PER_QUEUE_MAX {
            return Ok(false);
        }
        let Some(slot) = self.queue.slot(offset)? else {
            return Ok(false);
        };
        let seq = State::next_seq(self.last_seq);
        let grant = self.progress.grant_new(offset, slot, seq, self.invisible_until_ms);
        self.granted.push(grant);
        Ok(true)
    }
}
