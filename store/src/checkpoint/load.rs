//! The state as a checkpoint has it, put together from its head and its part files.

use std::collections::BTreeMap;
use std::path::Path;

use bincode::Decode;
use bytes::Bytes;
use flotilla_planted_bugs::{Bug, is_planted};
use flotilla_raft_log::Disk;

use super::head::{Head, WindowMark};
use super::image::{
    EndedImage, GroupImage, ProgressImage, RestoredTopic, SeenImage, SlotRun, TopicImage, WindowPart, ended_of,
    group_of, placement_of, progress_of, seen_of, topic_of,
};
use super::{BODY_BYTES_MAX, PartFile, PartId, Table, head};
use crate::Slot;
use crate::dedup::DedupWindow;
use crate::ended::EndedWindow;
use crate::limits::DEDUP_ENTRIES_RANGE;
use crate::state::{SavedMarks, State};

/// A checkpoint read back.
#[derive(Debug)]
pub(crate) struct Restored {
    pub head: Head,
    /// The runs of its queues are not there yet.
    pub state: State,
}

/// Reads a checkpoint back, with the part files in `dir` that it names. `Err` tells what is wrong.
pub(crate) fn load(disk: &dyn Disk, dir: &Path, checkpoint: &[u8]) -> Result<Restored, String> {
    let (head, feature_level) = head::decode(checkpoint)?;
    let mut parts: BTreeMap<PartId, Bytes> = BTreeMap::new();
    for named in &head.part_files {
        let name = named.file_name();
        let wrong = |what: String| format!("it relies on part file {name}: {what}");
        let file = PartFile::open(disk, &dir.join(&name)).map_err(wrong)?;
        if file.id != *named {
            return Err(wrong("it is another one than its name says".to_owned()));
        }
        for (id, content) in file.parts {
            match content {
                Some(content) => drop(parts.insert(id, content)),
                None => drop(parts.remove(&id)),
            }
        }
    }
    let mut state = state_of(&head, &parts)?;
    state.feature_level = feature_level;
    Ok(Restored { head, state })
}

fn state_of(head: &Head, parts: &BTreeMap<PartId, Bytes>) -> Result<State, String> {
    let mut state = State::new();
    state.applied = head.applied;
    state.log_time_ms = head.log_time_ms;
    state.last_uid = head.last_uid;
    state.last_seq = head.last_seq;
    state.trimmed_below = head.trimmed_below;
    state.trimmed_before_ms = head.trimmed_before_ms;
    state.expired = head.expired;
    let (mut dedup, mut ended) = (Window::new(head.dedup), Window::new(head.ended));
    let mut open = Open::new();
    // Topics come first: what belongs to one looks for it.
    for (id, bytes) in parts {
        let restored = match id.table {
            Table::Topics => topics(&mut state, bytes),
            Table::Groups => groups(&mut state, bytes),
            Table::Progress if is_planted(Bug::ProgressInMemory) => Ok(()),
            Table::Progress => progress(&mut state, bytes),
            // Of earlier segments: they are in index files by now.
            Table::Slots if id.key.0 != head.open_index => Ok(()),
            Table::Slots => slots(&mut open, bytes),
            Table::Dedup => rows(bytes).and_then(|part: WindowPart<SeenImage>| dedup.push(part)),
            Table::Ended => rows(bytes).and_then(|part: WindowPart<EndedImage>| ended.push(part)),
            Table::Timers => {
                let names = &state.topic_names;
                state.timers.restore(id.key.0, bytes, |uid| names.contains_key(&uid))
            }
            Table::Halves => {
                let names = &state.topic_names;
                state.halves.restore(id.key.0, bytes, |uid| names.contains_key(&uid))
            }
            Table::AtHome => state.references.restore_home(id.key.0, bytes),
            Table::Placement => rows(bytes).and_then(|image| {
                state.placement = placement_of(image)?;
                Ok(())
            }),
            Table::Carried => state.references.restore_carried(id.key.0, bytes),
        };
        restored.map_err(|what| format!("its part {:?} of {:?}: {what}", id.key, id.table))?;
    }
    let seen = dedup.finish()?.into_iter().map(seen_of).collect();
    let entries_max = usize::try_from(head.dedup_entries_max).unwrap_or(usize::MAX);
    if !DEDUP_ENTRIES_RANGE.contains(&entries_max) {
        return Err(format!("its dedup window is to keep {entries_max} ids, {DEDUP_ENTRIES_RANGE:?} are allowed"));
    }
    let WindowMark { first_serial, hash, .. } = head.dedup;
    state.dedup = DedupWindow::restored(first_serial, hash, head.dedup_now_ms, entries_max, seen);
    if is_planted(Bug::DuplicatesForgotten) {
        let end = head.dedup.end_serial;
        state.dedup = DedupWindow::restored(end, hash, head.dedup_now_ms, entries_max, Default::default());
    }
    let endings = ended.finish()?.iter().map(ended_of).collect::<Result<_, _>>()?;
    state.ended = EndedWindow::restored(head.ended.first_serial, head.ended.hash, endings);
    for topic in state.topics.values_mut_untracked() {
        for (id, queue) in topic.queues.iter_mut().enumerate() {
            if let Some((first, slots)) = open.remove(&(topic.uid, id as u32)) {
                queue.set_open(first, slots)?;
            }
        }
    }
    // All of it is in the checkpoint.
    state.topics.changes();
    state.groups.changes();
    state.progress.changes();
    state.saved = SavedMarks { dedup: head.dedup.end_serial, ended: head.ended.end_serial };
    Ok(state)
}

fn rows<T: Decode<()>>(bytes: &[u8]) -> Result<T, String> {
    let config = bincode::config::standard().with_limit::<BODY_BYTES_MAX>();
    let (rows, used) = bincode::decode_from_slice(bytes, config).map_err(|error| error.to_string())?;
    match used == bytes.len() {
        true => Ok(rows),
        false => Err(format!("it has {} bytes, {used} of them are used", bytes.len())),
    }
}

fn topics(state: &mut State, bytes: &[u8]) -> Result<(), String> {
    for image in rows::<Vec<TopicImage>>(bytes)? {
        let RestoredTopic { name, topic, level, retention_ms } = topic_of(image)?;
        state.levels.set(topic.uid, level);
        state.topic_retentions.set(topic.uid, retention_ms);
        state.topic_names.insert(topic.uid, name.clone());
        state.topics.insert(name, topic);
    }
    Ok(())
}

fn groups(state: &mut State, bytes: &[u8]) -> Result<(), String> {
    for image in rows::<Vec<GroupImage>>(bytes)? {
        let (name, group) = group_of(image)?;
        state.groups.insert(name, group);
    }
    Ok(())
}

fn progress(state: &mut State, bytes: &[u8]) -> Result<(), String> {
    for image in rows::<Vec<ProgressImage>>(bytes)? {
        let (key, progress) = progress_of(image);
        state.progress.insert(key, progress);
    }
    Ok(())
}

/// By topic number and queue: the offset of the first one, and the slots.
type Open = BTreeMap<(u64, u32), (u64, Vec<Slot>)>;

fn slots(open: &mut Open, bytes: &[u8]) -> Result<(), String> {
    for run in rows::<Vec<SlotRun>>(bytes)? {
        let (first, slots) = open.entry((run.topic_uid, run.queue)).or_default();
        if *first + slots.len() as u64 != run.first_offset {
            // What is between was trimmed, and so is all before.
            (*first, *slots) = (run.first_offset, Vec::new());
        }
        slots.extend(run.slots());
    }
    Ok(())
}

/// Collects the rows of a window from its parts, which come in order.
struct Window<T> {
    mark: WindowMark,
    rows: Vec<T>,
}

impl<T> Window<T> {
    fn new(mark: WindowMark) -> Window<T> {
        Window { mark, rows: Vec::new() }
    }

    fn push(&mut self, part: WindowPart<T>) -> Result<(), String> {
        let WindowMark { first_serial, end_serial, .. } = self.mark;
        let next = first_serial.saturating_add(self.rows.len() as u64);
        let end = part.first_serial.checked_add(part.rows.len() as u64).filter(|end| *end <= end_serial);
        let end = end.ok_or_else(|| format!("it ends behind row {end_serial}"))?;
        if end <= first_serial {
            // Forgotten since.
            return Ok(());
        }
        let known = next.checked_sub(part.first_serial).filter(|_| end >= next);
        let known = known.ok_or_else(|| format!("rows {next} to {} are missing", part.first_serial))?;
        self.rows.extend(part.rows.into_iter().skip(known as usize));
        Ok(())
    }

    fn finish(self) -> Result<Vec<T>, String> {
        let WindowMark { first_serial, end_serial, .. } = self.mark;
        match first_serial.checked_add(self.rows.len() as u64) == Some(end_serial) {
            true => Ok(self.rows),
            false => Err(format!("it has {} of the rows {first_serial} to {end_serial} of a window", self.rows.len())),
        }
    }
}
