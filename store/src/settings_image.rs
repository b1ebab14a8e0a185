//! The part of a checkpoint that holds settings of topics and groups which were changed since they were made.

use bincode::{Decode, Encode};

use crate::image::BODY_BYTES_MAX;
use crate::state::{RetryPauses, State};

#[derive(Encode, Decode)]
pub(crate) struct SettingsPart {
    topics: Vec<TopicSettings>,
    groups: Vec<GroupSettings>,
    /// Group, topic, queue, offset, holder.
    holders: Vec<(u64, u64, u32, u64, u64)>,
}

#[derive(Encode, Decode)]
struct TopicSettings {
    uid: u64,
    writable_queues: u32,
    /// Queue and end.
    retired: Vec<(u32, u64)>,
}

#[derive(Encode, Decode)]
struct GroupSettings {
    uid: u64,
    is_paused: bool,
    retry_pauses_ms: Vec<u32>,
}

/// What the part says now: only what differs from a new topic or group.
pub(crate) fn part_of(state: &State) -> SettingsPart {
    let changed_topics = state
        .topics
        .values()
        .filter(|topic| topic.writable_queues as usize != topic.queues.len() || !topic.retired.is_empty());
    let changed_groups =
        state.groups.values().filter(|group| group.is_paused || !group.retry_pauses.as_slice().is_empty());
    let held = state.progress.iter().flat_map(|((group, topic, queue), progress)| {
        let held = progress.in_flight().iter().filter(|(_, flight)| flight.holder != 0);
        held.map(|(offset, flight)| (*group, *topic, *queue, *offset, flight.holder))
    });
    SettingsPart {
        topics: changed_topics
            .map(|topic| TopicSettings {
                uid: topic.uid,
                writable_queues: topic.writable_queues,
                retired: topic.retired.iter().map(|(queue, end)| (*queue, *end)).collect(),
            })
            .collect(),
        groups: changed_groups
            .map(|group| GroupSettings {
                uid: group.uid,
                is_paused: group.is_paused,
                retry_pauses_ms: group.retry_pauses.as_slice().to_vec(),
            })
            .collect(),
        holders: held.collect(),
    }
}

/// Reads the part back into a state that has its topics and groups; answers how many bytes it has.
pub(crate) fn decode(state: &mut State, bytes: &[u8]) -> Result<usize, String> {
    let config = bincode::config::standard().with_limit::<BODY_BYTES_MAX>();
    let (part, used) = bincode::decode_from_slice::<SettingsPart, _>(bytes, config)
        .map_err(|error| format!("its part of changed settings: {error}"))?;
    for image in part.topics {
        let name = state.topic_names.get(&image.uid);
        let topic = name.and_then(|name| state.topics.get_mut(name));
        let topic = topic.ok_or_else(|| format!("settings are of topic number {}, which is not there", image.uid))?;
        if image.writable_queues == 0 || image.writable_queues as usize > topic.queues.len() {
            return Err(format!("topic number {} takes messages in {} queues", image.uid, image.writable_queues));
        }
        topic.writable_queues = image.writable_queues;
        topic.retired = image.retired.into_iter().collect();
    }
    for image in part.groups {
        let group = state.groups.values_mut().find(|group| group.uid == image.uid);
        let group = group.ok_or_else(|| format!("settings are of group number {}, which is not there", image.uid))?;
        group.is_paused = image.is_paused;
        group.retry_pauses = RetryPauses::new(&image.retry_pauses_ms).ok_or("a retry table is out of range")?;
    }
    for (group, topic, queue, offset, holder) in part.holders {
        let progress = state.progress.get_mut(&(group, topic, queue));
        if !progress.is_some_and(|progress| progress.set_holder(offset, holder)) {
            return Err(format!("offset {offset} of queue {queue} is held and not in flight"));
        }
    }
    Ok(used)
}
