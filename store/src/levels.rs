//! The levels at which sends to a topic are answered, where a topic has some of its own.

use std::collections::BTreeMap;

use flotilla_message::{AckLevel, FlushLevel, Hash128};

use crate::state::{Changes, State};
use crate::{Outcome, Rejection};

/// What a topic says of the level of its sends; `None`: as the group of brokers has it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TopicLevel {
    /// How many copies there are when a send is answered.
    pub ack: Option<AckLevel>,
    /// Whether they are on disk.
    pub flush: Option<FlushLevel>,
}

/// By topic number; a topic without a word of its own has no row.
#[derive(Debug, Default)]
pub(crate) struct Levels(BTreeMap<u64, TopicLevel>);

impl Levels {
    pub fn of(&self, topic_uid: u64) -> TopicLevel {
        self.0.get(&topic_uid).copied().unwrap_or_default()
    }

    pub fn forget(&mut self, topic_uid: u64) {
        self.0.remove(&topic_uid);
    }

    pub fn set(&mut self, topic_uid: u64, level: TopicLevel) {
        if level == TopicLevel::default() {
            self.forget(topic_uid);
        } else {
            self.0.insert(topic_uid, level);
        }
    }

    pub fn write_digest(&self, hash: &mut Hash128) {
        hash.write_u64(self.0.len() as u64);
        for (uid, level) in &self.0 {
            hash.write_u64(*uid);
            hash.write_u64(u64::from(ack_code(level.ack)) << 8 | u64::from(flush_code(level.flush)));
        }
    }
}

impl State {
    pub fn set_topic_level(
        &mut self,
        name: &str,
        level: TopicLevel,
        changes: &mut Changes,
    ) -> Result<Outcome, Rejection> {
        let uid = self.topics.get_mut(name).ok_or(Rejection::TopicNotFound)?.uid;
        self.levels.set(uid, level);
        changes.catalog = true;
        Ok(Outcome::TopicLevelSet)
    }
}

/// 0 stands for none.
pub(crate) fn ack_code(ack: Option<AckLevel>) -> u8 {
    ack.map_or(0, AckLevel::code)
}

/// 0 stands for none.
pub(crate) fn flush_code(flush: Option<FlushLevel>) -> u8 {
    flush.map_or(0, FlushLevel::code)
}

/// The level of two numbers; `None` if one of them has no meaning.
pub(crate) fn level_of(ack: u8, flush: u8) -> Option<TopicLevel> {
    let ack = if ack == 0 { None } else { Some(AckLevel::from_code(ack)?) };
    let flush = if flush == 0 { None } else { Some(FlushLevel::from_code(flush)?) };
    Some(TopicLevel { ack, flush })
}
