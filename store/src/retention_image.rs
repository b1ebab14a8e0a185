//! The part of a checkpoint that retention needs: what is trimmed, and what refers to what.

use bincode::{Decode, Encode};
use flotilla_message::MessageRef;

use crate::image::BODY_BYTES_MAX;
use crate::references::Place;
use crate::state::State;

#[derive(Encode, Decode)]
pub(crate) struct RetentionPart {
    trimmed_below: u64,
    trimmed_before_ms: u64,
    expired: u64,
    /// (topic number, queue, count) of the queues that hold references.
    queues: Vec<(u64, u32, u64)>,
    /// (index less that of the one before, ordinal, count) of the messages at home, rising.
    home: Vec<(u64, u32, u32)>,
    carried: Vec<CarriedImage>,
}

#[derive(Encode, Decode)]
struct CarriedImage {
    index: u64,
    ordinal: u32,
    count: u32,
    place_index: u64,
    position: u32,
    length: u32,
}

/// What the part says now.
pub(crate) fn part_of(state: &State) -> RetentionPart {
    let mut before = 0;
    let home = state.references.home().map(|(message, count)| {
        let after = message.index - before;
        before = message.index;
        (after, message.ordinal, count)
    });
    let queues = state.topics.values().flat_map(|topic| {
        let queues = topic.queues.iter().enumerate().filter(|(_, queue)| queue.references() > 0);
        queues.map(|(id, queue)| (topic.uid, id as u32, queue.references()))
    });
    RetentionPart {
        trimmed_below: state.trimmed_below,
        trimmed_before_ms: state.trimmed_before_ms,
        expired: state.expired,
        queues: queues.collect(),
        home: home.collect(),
        carried: state
            .references
            .carried()
            .map(|(message, carried)| CarriedImage {
                index: message.index,
                ordinal: message.ordinal,
                count: carried.count,
                place_index: carried.place.index,
                position: carried.place.position,
                length: carried.place.length,
            })
            .collect(),
    }
}

/// Reads the part back into a state that has its topics; answers how many bytes it has.
pub(crate) fn decode(state: &mut State, bytes: &[u8]) -> Result<usize, String> {
    let config = bincode::config::standard().with_limit::<BODY_BYTES_MAX>();
    let (part, used) = bincode::decode_from_slice::<RetentionPart, _>(bytes, config)
        .map_err(|error| format!("its part of what is trimmed and referred to: {error}"))?;
    state.trimmed_below = part.trimmed_below;
    state.trimmed_before_ms = part.trimmed_before_ms;
    state.expired = part.expired;
    for (uid, id, count) in part.queues {
        let name = state.topic_names.get(&uid);
        let topic = name.and_then(|name| state.topics.get_mut(name));
        let queue = topic.and_then(|topic| topic.queues.get_mut(id as usize));
        queue.ok_or("references are in a queue that is not there")?.set_references(count);
    }
    let mut index = 0u64;
    for (after, ordinal, count) in part.home {
        index = index.checked_add(after).ok_or("a message referred to has too large an index")?;
        state.references.restore(MessageRef { index, ordinal }, count, None);
    }
    for row in part.carried {
        let place = Place { index: row.place_index, position: row.position, length: row.length };
        state.references.restore(MessageRef { index: row.index, ordinal: row.ordinal }, row.count, Some(place));
    }
    Ok(used)
}
