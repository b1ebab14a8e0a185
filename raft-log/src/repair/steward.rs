//! The task that follows up every suspicion: examine, close off, fetch, mend.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use flotilla_runtime::{Instant, Runtime, Task};

use super::damages::Suspect;
use super::fetch::fetch;
use super::mend::{Patient, mend, take_over};
use super::quarantine::{remove_marker, write_marker};
use crate::disk::Disk;
use crate::log_view::LogView;
use crate::room::Need;
use crate::segment::{DamagedRange, Examination};
use crate::segment_maker::disk_space;
use crate::status_watch::StatusWatch;
use crate::{LogIndex, NodeId, Transport};

/// Pause after the first attempt that brought nothing; it doubles with each further one.
const RETRY_FIRST: Duration = Duration::from_millis(200);
/// The longest pause. It goes on for as long as there is damage: a peer that has the entries may come back any time.
const RETRY_MAX: Duration = Duration::from_secs(30);
/// A suspect that turned out sound is not looked at again for so long.
const ACQUITTED_PAUSE: Duration = Duration::from_secs(1);

/// Owns the task; dropping it ends it.
pub(crate) struct Steward {
    inner: Arc<Inner>,
    _task: Task<()>,
}

struct Inner {
    node: NodeId,
    /// Asked until the members are known.
    voters: BTreeSet<NodeId>,
    view: LogView,
    disk: Arc<dyn Disk>,
    transport: Arc<dyn Transport>,
    runtime: Runtime,
    status: OnceLock<StatusWatch>,
}

#[derive(Default)]
struct Retry {
    attempts: u32,
    due: Option<Instant>,
}

impl Steward {
    /// Begins; the log may still be opening.
    pub(crate) fn start(
        node: NodeId,
        voters: BTreeSet<NodeId>,
        view: LogView,
        disk: Arc<dyn Disk>,
        transport: Arc<dyn Transport>,
        runtime: &Runtime,
    ) -> Steward {
        if voters.iter().all(|voter| *voter == node) {
            view.shared.damages.set_alone();
        }
        let inner =
            Arc::new(Inner { node, voters, view, disk, transport, runtime: runtime.clone(), status: OnceLock::new() });
        let working = inner.clone();
        let task = runtime.spawn("damage-steward", async move { working.run().await });
        Steward { inner, _task: task }
    }

    /// From now on the members are known.
    pub(crate) fn set_status(&self, status: StatusWatch) {
        // Set once, by the one who opens the log.
        let _ = self.inner.status.set(status);
    }
}

impl Inner {
    async fn run(&self) {
        let damages = &self.view.shared.damages;
        let mut retries: BTreeMap<u64, Retry> = BTreeMap::new();
        while !damages.is_closing() {
            let mut news = std::pin::pin!(damages.news());
            news.as_mut().enable();
            for (sequence, suspect) in damages.suspects() {
                self.examine(sequence, suspect).await;
            }
            let quarantined = damages.quarantined();
            retries.retain(|sequence, _| quarantined.contains_key(sequence));
            let now = self.runtime.now();
            for (sequence, ranges) in quarantined {
                let retry = retries.entry(sequence).or_default();
                if retry.due.is_some_and(|due| due > now) {
                    continue;
                }
                if let Err(why) = self.treat(sequence, ranges).await {
                    let pause = RETRY_FIRST.saturating_mul(1 << retry.attempts.min(16)).min(RETRY_MAX);
                    retry.attempts += 1;
                    retry.due = Some(self.runtime.now() + pause);
                    let pause_ms = pause.as_millis();
                    tracing::warn!(sequence, attempts = retry.attempts, pause_ms, why, "damage: not mended yet");
                }
            }
            match retries.values().filter_map(|retry| retry.due).min() {
                None if damages.any() => {}
                None => news.await,
                Some(due) => {
                    let _ = self.runtime.timeout_at(due, news).await;
                }
            }
        }
    }

    /// Looks at all of a suspect segment, and closes it off if it is damaged.
    async fn examine(&self, sequence: u64, suspect: Suspect) {
        let damages = &self.view.shared.damages;
        let Some(examination) = self.examination(sequence, Some(&suspect)) else {
            return damages.acquit(sequence);
        };
        let Some(working) = self.view.shared.background.begin() else { return };
        let examined = self.runtime.blocking(move || {
            let _working = working;
            examination.run()
        });
        let examined = examined.await;
        let ranges = examined.damaged.clone();
        let (path, is_tail) = {
            let mut state = self.view.shared.state_mut();
            let tail = state.segments.last().map(|segment| segment.header.sequence);
            let found = state.segments.iter_mut().find(|segment| segment.header.sequence == sequence);
            let Some(segment) = found.filter(|segment| Arc::ptr_eq(&segment.file, &suspect.file)) else {
                drop(state);
                return damages.acquit(sequence);
            };
            if !ranges.is_empty() && tail != Some(sequence) {
                // Readers find the sound entries behind a damaged one by these.
                segment.take_positions(examined);
            }
            (segment.path.to_path_buf(), tail == Some(sequence))
        };
        if ranges.is_empty() {
            tracing::error!(
                corruption = %suspect.corruption,
                "damage: the file reads well now; the memory of this machine or its disk is to be distrusted"
            );
            self.runtime.sleep(ACQUITTED_PAUSE).await;
            return damages.acquit(sequence);
        }
        for range in &ranges {
            tracing::error!(
                file = %path.display(), first = %range.first, end = %range.end, position = range.position,
                what = range.what, "damage: entries are closed off until a peer gives them back"
            );
        }
        let (disk, marked, lines) = (self.disk.clone(), path.clone(), ranges.clone());
        let written = self.view.shared.write_blocking(move || write_marker(&*disk, &marked, &lines)).await;
        if let Err(error) = written {
            // The damage is known in memory, and every start and read finds it again.
            tracing::warn!(file = %path.display(), %error, "damage: marker could not be written");
        }
        if is_tail {
            damages.want_sealed(sequence);
        }
        damages.quarantine(sequence, ranges);
    }

    /// An examination of the segment as it is now, if it is (still) there and (still) that file.
    fn examination(&self, sequence: u64, suspect: Option<&Suspect>) -> Option<Examination> {
        let state = self.view.shared.state();
        let segment = state.segments.iter().find(|segment| segment.header.sequence == sequence)?;
        let is_same = suspect.is_none_or(|suspect| Arc::ptr_eq(&segment.file, &suspect.file));
        is_same.then(|| Examination::of(segment))
    }

    fn is_tail(&self, sequence: u64) -> bool {
        let state = self.view.shared.state();
        state.segments.last().is_some_and(|tail| tail.header.sequence == sequence)
    }

    /// Mends a segment, or tells why not. Also done with when there is nothing left to mend.
    async fn treat(&self, sequence: u64, mut ranges: Vec<DamagedRange>) -> Result<(), String> {
        let damages = &self.view.shared.damages;
        if self.is_tail(sequence) {
            damages.want_sealed(sequence);
            damages.seal().await.map_err(|error| format!("its segment cannot be sealed: {error}"))?;
        }
        let (mut patient, start) = {
            let state = self.view.shared.state();
            let is_tail = state.segments.last().is_some_and(|tail| tail.header.sequence == sequence);
            let Some(segment) = state.segments.iter().find(|segment| segment.header.sequence == sequence) else {
                drop(state);
                damages.lift(sequence, false);
                return Ok(());
            };
            if is_tail {
                return Err("its segment is still written to".to_owned());
            }
            let patient = Patient {
                header: segment.header,
                path: segment.path.to_path_buf(),
                file: segment.file.clone(),
                end: segment.end,
                limit: segment.position,
                damaged: Vec::new(),
                healed: Vec::new(),
            };
            (patient, state.start())
        };
        if damages.take_wanted_sealed(sequence) {
            // It was closed off while it was written to: look again at all of it.
            let Some(examination) = self.examination(sequence, None) else { return Err("segment is gone".to_owned()) };
            let examined = self.runtime.blocking(move || examination.run()).await;
            ranges = examined.damaged.clone();
            let mut state = self.view.shared.state_mut();
            if let Some(segment) = state.segments.iter_mut().find(|segment| segment.header.sequence == sequence) {
                segment.take_positions(examined);
            }
        }
        // Truncated meanwhile: what no longer counts needs no mending.
        ranges.retain(|range| range.first < patient.end || range.first == range.end);
        let is_needed = ranges.iter().any(|range| range.end > start || range.first == range.end);
        if is_needed {
            patient.healed = self.heal(&ranges, start, patient.end).await?;
            patient.damaged = ranges;
            self.operate(patient).await?;
        } else {
            let (disk, path) = (self.disk.clone(), patient.path);
            let removed = self.view.shared.write_blocking(move || remove_marker(&*disk, &path)).await;
            removed.map_err(|error| error.to_string())?;
            damages.lift(sequence, false);
        }
        Ok(())
    }

    /// The entries of all ranges, from whichever peers have them.
    async fn heal(
        &self,
        ranges: &[DamagedRange],
        start: LogIndex,
        segment_end: LogIndex,
    ) -> Result<Vec<Option<Vec<crate::segment::Record>>>, String> {
        let mut healed = Vec::new();
        for range in ranges {
            if range.end <= start || range.first == range.end {
                healed.push(None);
                continue;
            }
            let end = range.end.min(segment_end);
            let mut refusals = Vec::new();
            let mut found = None;
            for peer in self.peers() {
                match fetch(&self.runtime, &*self.transport, &self.view, peer, range.first, end).await {
                    Ok(records) => {
                        tracing::info!(%peer, first = %range.first, %end, "damage: entries fetched");
                        found = Some(records);
                        break;
                    }
                    Err(why) => refusals.push(format!("node {peer}: {why}")),
                }
            }
            match found {
                Some(records) => healed.push(Some(records)),
                None if refusals.is_empty() => return Err("there is no other replica to ask".to_owned()),
                None => return Err(format!("no replica gave entries {}..{end}: {}", range.first, refusals.join("; "))),
            }
        }
        Ok(healed)
    }

    /// The leader first, then the others in their order.
    fn peers(&self) -> Vec<NodeId> {
        let status = self.status.get().map(StatusWatch::now);
        let (leader, members) = match status {
            Some(status) if !status.members.is_empty() => (status.leader, status.members),
            _ => (None, self.voters.clone()),
        };
        let mut peers: Vec<NodeId> = members.into_iter().filter(|member| *member != self.node).collect();
        peers.sort_by_key(|peer| Some(*peer) != leader);
        peers
    }

    async fn operate(&self, patient: Patient) -> Result<(), String> {
        let shared = self.view.shared.clone();
        let len = patient.file.len();
        let space = disk_space(&*self.disk, patient.path.parent().unwrap_or(Path::new("")));
        if let Err(reason) = shared.room.admits_file(len, space, Need::Settlement) {
            return Err(format!("no room for the new file: {reason}"));
        }
        shared.room.file_added(len);
        let Some(working) = shared.background.begin() else { return Err("log is closed".to_owned()) };
        let (disk, sequence, path) = (self.disk.clone(), patient.header.sequence, patient.path.clone());
        let done = {
            let shared = shared.clone();
            self.runtime.blocking(move || {
                let _working = working;
                let mended = mend(&*disk, &patient);
                // The new file or the old one, but never both for long.
                shared.room.file_removed(len);
                let is_there = take_over(&shared, &*disk, &patient, mended?)?;
                remove_marker(&*disk, &patient.path)?;
                Ok::<_, std::io::Error>(is_there)
            })
        };
        match done.await {
            Ok(is_there) => {
                shared.damages.lift(sequence, is_there);
                tracing::info!(file = %path.display(), "damage: segment is whole again");
                Ok(())
            }
            Err(error) => Err(error.to_string()),
        }
    }
}
