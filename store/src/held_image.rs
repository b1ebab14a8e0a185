//! The part of a checkpoint that holds what stands outside of queues.

use bincode::{Decode, Encode};
use flotilla_message::MessageRef;

use crate::ended::EndedWindow;
use crate::halves::Half;
use crate::held::Held;
use crate::image::BODY_BYTES_MAX;
use crate::outcome::Ending;
use crate::state::State;

#[derive(Encode, Decode)]
pub(crate) struct HeldPart {
    timers: Vec<TimerImage>,
    halves: Vec<HalfImage>,
    ended_hash: u128,
    ended: Vec<EndedImage>,
}

/// A million of these must be small: numbers are written short if they are small, so the due time
/// is told as the difference to the one before.
#[derive(Encode, Decode)]
struct TimerImage {
    due_after_ms: u64,
    index: u64,
    ordinal: u32,
    held: HeldImage,
}

#[derive(Encode, Decode)]
struct HalfImage {
    index: u64,
    ordinal: u32,
    held: HeldImage,
    checks: u32,
    check_at_ms: Option<u64>,
    prepared_at_ms: u64,
}

#[derive(Encode, Decode)]
struct HeldImage {
    topic_uid: u64,
    queue: u32,
    position: u32,
    length: u32,
    tag_hash: u32,
    checksum: u32,
}

#[derive(Encode, Decode)]
struct EndedImage {
    index: u64,
    ordinal: u32,
    ending: u8,
}

/// What the part says now.
pub(crate) fn part_of(state: &State) -> HeldPart {
    let mut before_ms = 0;
    let timers = state.timers.iter().map(|(due_ms, message, held)| {
        let due_after_ms = due_ms - before_ms;
        before_ms = due_ms;
        TimerImage { due_after_ms, index: message.index, ordinal: message.ordinal, held: held_image(held) }
    });
    HeldPart {
        timers: timers.collect(),
        halves: state
            .halves
            .iter()
            .map(|(message, half)| HalfImage {
                index: message.index,
                ordinal: message.ordinal,
                held: held_image(&half.held),
                checks: half.checks,
                check_at_ms: half.check_at_ms,
                prepared_at_ms: half.prepared_at_ms,
            })
            .collect(),
        ended_hash: state.ended.hash(),
        ended: state
            .ended
            .iter()
            .map(|(message, ending)| EndedImage {
                index: message.index,
                ordinal: message.ordinal,
                ending: ending.code(),
            })
            .collect(),
    }
}

/// Reads the part back into a state that has its topics; answers how many bytes it has.
pub(crate) fn decode(state: &mut State, bytes: &[u8]) -> Result<usize, String> {
    let config = bincode::config::standard().with_limit::<BODY_BYTES_MAX>();
    let (part, used) = bincode::decode_from_slice::<HeldPart, _>(bytes, config)
        .map_err(|error| format!("its part of what stands outside of queues: {error}"))?;
    let mut due_ms = 0u64;
    for image in part.timers {
        due_ms = due_ms.checked_add(image.due_after_ms).ok_or("a due time is too large")?;
        let held = held_of(state, &image.held)?;
        state.timers.insert(due_ms, MessageRef { index: image.index, ordinal: image.ordinal }, held);
    }
    for image in part.halves {
        let half = Half {
            held: held_of(state, &image.held)?,
            checks: image.checks,
            check_at_ms: image.check_at_ms,
            prepared_at_ms: image.prepared_at_ms,
        };
        state.halves.put(MessageRef { index: image.index, ordinal: image.ordinal }, half);
    }
    let mut ended = Vec::with_capacity(part.ended.len());
    for image in part.ended {
        let ending = Ending::from_code(image.ending).ok_or("an ending is unknown")?;
        ended.push((MessageRef { index: image.index, ordinal: image.ordinal }, ending));
    }
    state.ended = EndedWindow::restored(part.ended_hash, ended.into_iter());
    Ok(used)
}

fn held_image(held: &Held) -> HeldImage {
    HeldImage {
        topic_uid: held.topic_uid,
        queue: held.queue,
        position: held.position,
        length: held.length,
        tag_hash: held.tag_hash,
        checksum: held.checksum,
    }
}

fn held_of(state: &State, image: &HeldImage) -> Result<Held, String> {
    if !state.topic_names.contains_key(&image.topic_uid) {
        return Err(format!("a message outside of queues is of topic number {}, which is not there", image.topic_uid));
    }
    Ok(Held {
        topic_uid: image.topic_uid,
        queue: image.queue,
        position: image.position,
        length: image.length,
        tag_hash: image.tag_hash,
        checksum: image.checksum,
    })
}
