//! The state held fast: what a checkpoint is to write, copied or shared while entries wait.

use std::collections::BTreeSet;
use std::sync::Arc;

use flotilla_message::TopicName;

use super::head::{Head, WindowMark, put};
use super::image::{
    EndedImage, GroupImage, PlacementImage, ProgressImage, SeenImage, SlotRun, TopicImage, WindowPart, ended_image,
    group_image, placement_image, progress_image, seen_image, topic_image,
};
use super::pack::PartFileBuilder;
use super::{PartId, SERIALS_PER_PART, TOPICS_PER_PART, Table, progress_part, topic_part};
use crate::index_file::IndexFileId;
use crate::packed::ChunkContent;
use crate::state::{SavedMarks, State, Topic};
use crate::tracked::PartKey;

/// What a part is made of; making bytes of it needs the state no more.
enum Content {
    Gone,
    Chunk(Arc<Vec<u8>>),
    Topics(Vec<TopicImage>),
    Groups(Vec<GroupImage>),
    Progress(Vec<ProgressImage>),
    Slots(Vec<SlotRun>),
    Dedup(WindowPart<SeenImage>),
    Ended(WindowPart<EndedImage>),
    Placement(PlacementImage),
}

/// The parts that changed since the last checkpoint was held fast, or all.
pub(crate) struct FrozenState {
    /// All but the names of part files.
    pub(super) head: Head,
    pub(super) feature_level: u8,
    parts: Vec<(PartId, Content)>,
}

impl FrozenState {
    /// `number` counts the checkpoints of this node. Whatever changes from now on is in the next one.
    pub fn of(
        state: &mut State,
        all: bool,
        number: u64,
        open_index: u64,
        index_files: Vec<IndexFileId>,
    ) -> FrozenState {
        let mut parts = Vec::new();
        let topics = topic_parts(state, all);
        slots(state, all, &topics, (open_index, number), &mut parts);
        for part in topics {
            parts.push((PartId { table: Table::Topics, key: part }, topics_content(state, part)));
        }
        if !state.groups.changes().is_empty() || all {
            let groups = state.groups.iter().map(|(name, group)| group_image(name, group)).collect();
            parts.push((PartId { table: Table::Groups, key: (0, 0) }, Content::Groups(groups)));
        }
        let mut progress = state.progress.changes();
        if all {
            progress = state.progress.keys().map(|(group, topic, _)| progress_part(*group, *topic)).collect();
        }
        for part in progress {
            parts.push((PartId { table: Table::Progress, key: part }, progress_content(state, part)));
        }
        windows(state, all, &mut parts);
        let (at_home, carried) = state.references.changes(all);
        let packed = [
            (Table::Timers, state.timers.changes(all)),
            (Table::Halves, state.halves.changes(all)),
            (Table::AtHome, at_home),
            (Table::Carried, carried),
        ];
        for (table, chunks) in packed {
            parts.extend(chunks.into_iter().map(|chunk| chunk_part(table, chunk)));
        }
        let is_moved = state.placement.take_change();
        if is_moved || all && !state.placement.is_empty() {
            let content = Content::Placement(placement_image(&state.placement));
            parts.push((PartId { table: Table::Placement, key: (0, 0) }, content));
        }
        let feature_level = state.feature_level;
        FrozenState { head: head_of(state, number, open_index, index_files), feature_level, parts }
    }

    /// Makes bytes of the parts. Takes its time.
    pub(super) fn encode(&self) -> PartFileBuilder {
        let mut builder = PartFileBuilder::default();
        let mut bytes = Vec::new();
        for (id, content) in &self.parts {
            bytes.clear();
            match content {
                Content::Gone => {
                    builder.push(*id, None);
                    continue;
                }
                Content::Chunk(chunk) => {
                    builder.push(*id, Some(chunk));
                    continue;
                }
                Content::Topics(rows) => put(rows, &mut bytes),
                Content::Groups(rows) => put(rows, &mut bytes),
                Content::Progress(rows) => put(rows, &mut bytes),
                Content::Slots(runs) => put(runs, &mut bytes),
                Content::Dedup(rows) => put(rows, &mut bytes),
                Content::Ended(rows) => put(rows, &mut bytes),
                Content::Placement(row) => put(row, &mut bytes),
            }
            builder.push(*id, Some(&bytes));
        }
        builder
    }
}

fn head_of(state: &State, number: u64, open_index: u64, index_files: Vec<IndexFileId>) -> Head {
    let dedup = &state.dedup;
    let ended = &state.ended;
    Head {
        number,
        applied: state.applied,
        log_time_ms: state.log_time_ms,
        last_uid: state.last_uid,
        last_seq: state.last_seq,
        trimmed_below: state.trimmed_below,
        trimmed_before_ms: state.trimmed_before_ms,
        expired: state.expired,
        dedup: WindowMark { first_serial: dedup.first_serial(), end_serial: dedup.end_serial(), hash: dedup.hash() },
        dedup_now_ms: dedup.now_ms(),
        dedup_entries_max: dedup.entries_max() as u64,
        ended: WindowMark { first_serial: ended.first_serial(), end_serial: ended.end_serial(), hash: ended.hash() },
        open_index,
        index_files,
        part_files: Vec::new(),
    }
}

fn topic_parts(state: &mut State, all: bool) -> BTreeSet<PartKey> {
    let changed = state.topics.changes();
    if all { state.topic_names.keys().map(|uid| topic_part(*uid)).collect() } else { changed }
}

/// The names of a part's topics.
fn names_in(state: &State, part: PartKey) -> Vec<TopicName> {
    let first = part.0 * TOPICS_PER_PART;
    state.topic_names.range(first..first + TOPICS_PER_PART).map(|(_, name)| name.clone()).collect()
}

fn topics_content(state: &State, part: PartKey) -> Content {
    let names = names_in(state, part);
    let topics = names.iter().filter_map(|name| Some((name, state.topics.get(name)?)));
    let image = |(name, topic): (&TopicName, &Topic)| {
        topic_image(name, topic, state.levels.of(topic.uid), state.topic_retentions.of(topic.uid))
    };
    let images: Vec<_> = topics.map(image).collect();
    if images.is_empty() { Content::Gone } else { Content::Topics(images) }
}

/// The slots in memory that were added to the topics of `parts`.
fn slots(state: &mut State, all: bool, changed: &BTreeSet<PartKey>, key: PartKey, parts: &mut Vec<(PartId, Content)>) {
    let mut runs = Vec::new();
    let mut collect = |topic: &mut crate::state::Topic| {
        for (id, queue) in topic.queues.iter_mut().enumerate() {
            let (first, slots) = queue.unsaved(all);
            if !slots.is_empty() {
                runs.push(SlotRun::of(topic.uid, id as u32, first, slots));
            }
        }
    };
    if all {
        state.topics.values_mut_untracked().for_each(&mut collect);
    } else {
        for name in changed.iter().flat_map(|part| names_in(state, *part)).collect::<Vec<_>>() {
            if let Some(topic) = state.topics.get_mut_untracked(&name) {
                collect(topic);
            }
        }
    }
    if !runs.is_empty() {
        parts.push((PartId { table: Table::Slots, key }, Content::Slots(runs)));
    }
}

fn progress_content(state: &State, part: PartKey) -> Content {
    let (group, first) = (part.0, part.1 * TOPICS_PER_PART);
    let range = (group, first, 0)..(group, first + TOPICS_PER_PART, 0);
    let rows: Vec<_> = state.progress.range(range).map(|(key, progress)| progress_image(key, progress)).collect();
    if rows.is_empty() { Content::Gone } else { Content::Progress(rows) }
}

/// The parts of the windows that were added to since the last checkpoint.
fn windows(state: &mut State, all: bool, parts: &mut Vec<(PartId, Content)>) {
    let saved = if all { SavedMarks::default() } else { state.saved };
    let (dedup, ended) = (&state.dedup, &state.ended);
    for (number, first, end) in serial_parts(saved.dedup, dedup.first_serial(), dedup.end_serial()) {
        let rows = dedup.part(first, end).map(seen_image).collect();
        let content = Content::Dedup(WindowPart { first_serial: first, rows });
        parts.push((PartId { table: Table::Dedup, key: (number, 0) }, content));
    }
    for (number, first, end) in serial_parts(saved.ended, ended.first_serial(), ended.end_serial()) {
        let rows = ended.part(first, end).map(ended_image).collect();
        let content = Content::Ended(WindowPart { first_serial: first, rows });
        parts.push((PartId { table: Table::Ended, key: (number, 0) }, content));
    }
    state.saved = SavedMarks { dedup: dedup.end_serial(), ended: ended.end_serial() };
}

/// Number, first and end serial of each part with rows of `first..end` that has any from `saved` on.
fn serial_parts(saved: u64, first: u64, end: u64) -> impl Iterator<Item = (u64, u64, u64)> {
    let from = saved.max(first);
    let numbers = if from < end { from / SERIALS_PER_PART..end.div_ceil(SERIALS_PER_PART) } else { 0..0 };
    numbers.map(move |number| {
        let start = number * SERIALS_PER_PART;
        (number, start.max(first), (start + SERIALS_PER_PART).min(end))
    })
}

fn chunk_part(table: Table, (id, bytes): ChunkContent) -> (PartId, Content) {
    (PartId { table, key: (id, 0) }, bytes.map_or(Content::Gone, Content::Chunk))
}
