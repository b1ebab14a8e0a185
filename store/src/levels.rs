//! The levels at which sends to a topic are answered, where a topic has some of its own.

use std::collections::BTreeMap;

use bincode::{Decode, Encode};
use flotilla_message::{AckLevel, FlushLevel, Hash128};

use crate::image::BODY_BYTES_MAX;
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

    fn set(&mut self, topic_uid: u64, level: TopicLevel) {
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
        let uid = self.topic(name)?.uid;
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

/// The part of a checkpoint that holds them.
#[derive(Encode, Decode)]
struct LevelsPart {
    levels: Vec<LevelImage>,
}

#[derive(Encode, Decode)]
struct LevelImage {
    topic_uid: u64,
    ack: u8,
    flush: u8,
}

/// Writes the part behind `body`.
pub(crate) fn encode(state: &State, body: &mut Vec<u8>) {
    let image = |(uid, level): (&u64, &TopicLevel)| LevelImage {
        topic_uid: *uid,
        ack: ack_code(level.ack),
        flush: flush_code(level.flush),
    };
    let part = LevelsPart { levels: state.levels.0.iter().map(image).collect() };
    let bytes = bincode::encode_to_vec(&part, bincode::config::standard())
        .expect("plain data encodes into memory without an error");
    body.extend_from_slice(&bytes);
}

/// Reads the part back into a state that has its topics; answers how many bytes it has.
pub(crate) fn decode(state: &mut State, bytes: &[u8]) -> Result<usize, String> {
    let config = bincode::config::standard().with_limit::<BODY_BYTES_MAX>();
    let (part, used) = bincode::decode_from_slice::<LevelsPart, _>(bytes, config)
        .map_err(|error| format!("its part of levels: {error}"))?;
    for image in part.levels {
        if !state.topic_names.contains_key(&image.topic_uid) {
            return Err(format!("a level is of topic number {}, which is not there", image.topic_uid));
        }
        let level = level_of(image.ack, image.flush).ok_or("a level of a topic is unknown")?;
        state.levels.set(image.topic_uid, level);
    }
    Ok(used)
}
