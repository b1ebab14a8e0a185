//! The duty that lets go of old messages: by age, by size, and when the disk fills up.
//!
//! ```text
//! what may go? ─▶ Carry what is still referred to, at a bounded rate ─▶ Trim ─▶ every replica purges its files
//! ```
//!
//! Thresholds are RocketMQ's: from 75 % of the disk on expired messages go at any hour, from 85 % on the oldest go
//! whatever their age. Each counts only while less than an absolute amount is free, so that a large disk is not
//! called full with terabytes to spare. From 90 % on, by the same rule, or from the log's own reserve on, sends are refused
//! (`raft-log/src/room.rs`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use flotilla_message::StoredFrame;
use flotilla_raft_log::{DiskUse, LogExtent, LogIndex, ProposalClass, Term};
use flotilla_runtime::Instant;
use flotilla_store::{Command, EntryBuilder, Outcome, Rejection, ToCarry, entry_log_time_ms, nth_frame};

use super::news::led_here;
use crate::BrokerConfig;
use crate::replica::Replica;

/// What may go is looked at this often.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Messages that one command carries, at most.
const CARRY_MESSAGES_MAX: usize = 256;
/// Bytes that one command carries, at most (one message may pass this alone).
const CARRY_BYTES_MAX: usize = 512 << 10;
/// Messages are carried at this rate, so that sends are not pushed aside.
const CARRY_BYTES_PER_SECOND: u64 = 8 << 20;
/// Entries that are looked at for the log time at a checkpoint: those of the log's own have none.
const TIME_ENTRIES_MAX: u64 = 64;
/// An alarm is repeated after this time.
const ALARM_INTERVAL: Duration = Duration::from_secs(60);
const MS_PER_HOUR: u64 = 3_600_000;

/// How full the disk is, by the settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DiskPressure {
    /// Nothing to do.
    None,
    /// Expired messages go now.
    Expire,
    /// The oldest messages go, whatever their age.
    Delete,
}

impl DiskPressure {
    /// As of now; none if the disk does not tell.
    pub fn of(replica: &Replica) -> DiskPressure {
        replica.log.disk_use().map_or(DiskPressure::None, |disk| DiskPressure::at(disk, &replica.config))
    }

    fn at(disk: DiskUse, config: &BrokerConfig) -> DiskPressure {
        let used_bytes = disk.total_bytes.saturating_sub(disk.free_bytes);
        let is_over = |percent: u8, free_bytes: u64| {
            u128::from(used_bytes) * 100 >= u128::from(disk.total_bytes) * u128::from(percent)
                && disk.free_bytes < free_bytes
        };
        if is_over(config.disk_delete_percent, config.disk_delete_free_bytes) {
            DiskPressure::Delete
        } else if is_over(config.disk_expire_percent, config.disk_expire_free_bytes) {
            DiskPressure::Expire
        } else {
            DiskPressure::None
        }
    }
}

/// Runs as long as the replica; rests while another one leads.
pub async fn retain(replica: Arc<Replica>) {
    let mut alarmed: Option<Instant> = None;
    let mut times = BTreeMap::new();
    loop {
        let (term, generation) = led_here(&replica).await;
        let now = replica.runtime.now();
        let pressure = DiskPressure::of(&replica);
        if pressure > DiskPressure::None && alarmed.is_none_or(|last| now.saturating_since(last) >= ALARM_INTERVAL) {
            tracing::warn!(?pressure, disk = ?replica.log.disk_use().ok(), "disk fills up");
            alarmed = Some(now);
        }
        if let Some(to) = what_may_go(&replica, term, pressure, &mut times).await
            && let Err(reason) = let_go(&replica, term, to).await
        {
            tracing::warn!(to = to.0, reason, "old entries not let go");
        }
        replica.leadership.changed_from(generation, replica.runtime.now() + LOOK_INTERVAL).await;
    }
}

/// The last entry that may go: that of a checkpoint, so that files go with it. `times` keeps the log times of checkpoints
/// from one look to the next.
async fn what_may_go(
    replica: &Replica,
    term: Term,
    pressure: DiskPressure,
    times: &mut BTreeMap<LogIndex, u64>,
) -> Option<LogIndex> {
    let extent = replica.log.extent();
    let trimmed_below = replica.store.retention().trimmed_below;
    // Entries of the last file are never let go.
    let last_file = extent.segments.last().map_or(LogIndex(0), |segment| segment.first);
    let is_candidate = |index: &LogIndex| index.0 >= trimmed_below.max(1) && *index < last_file;
    let candidates: Vec<LogIndex> = extent.checkpoints.iter().copied().filter(is_candidate).collect();
    let config = &replica.config;
    times.retain(|index, _| candidates.contains(index));

    let mut by_age = None;
    if is_hour(config.retention_hour_utc, replica.runtime.wall_ms()) || pressure >= DiskPressure::Expire {
        let now_ms = replica.clock.now_ms(term, &replica.store);
        for index in &candidates {
            // Times rise, so the first one that is not expired ends it.
            let at_ms = match times.get(index) {
                Some(known) => Some(*known),
                None => log_time_at(replica, *index).await,
            };
            times.extend(at_ms.map(|at_ms| (*index, at_ms)));
            match at_ms {
                Some(at_ms) if at_ms.saturating_add(config.retention_ms) <= now_ms => by_age = Some(*index),
                _ => break,
            }
        }
    }
    let kept_bytes = bytes_behind(&extent, LogIndex(trimmed_below.saturating_sub(1)));
    let by_size = config.retention_bytes.filter(|bytes_max| kept_bytes > *bytes_max).and_then(|bytes_max| {
        let fits = candidates.iter().copied().find(|index| bytes_behind(&extent, *index) <= bytes_max);
        fits.or(candidates.last().copied())
    });
    // One checkpoint after the other, until there is room.
    let by_pressure = candidates.first().copied().filter(|_| pressure >= DiskPressure::Delete);
    by_age.max(by_size).max(by_pressure)
}

/// Whether expired messages may go at that time, where nothing presses.
fn is_hour(wanted: Option<u8>, wall_ms: u64) -> bool {
    wanted.is_none_or(|hour| u64::from(hour) == wall_ms / MS_PER_HOUR % 24)
}

/// Bytes of the files that stay when everything up to `index` goes.
fn bytes_behind(extent: &LogExtent, index: LogIndex) -> u64 {
    let staying = extent.segments.iter().filter(|segment| segment.end > index.next());
    staying.map(|segment| segment.bytes).sum()
}

/// Log time when the entry at `index` was applied, ms: the latest stamp among the last entries up to it.
async fn log_time_at(replica: &Replica, index: LogIndex) -> Option<u64> {
    let mut latest = None;
    for index in (index.0.saturating_sub(TIME_ENTRIES_MAX)..=index.0).rev() {
        if let Ok(Some(entry)) = replica.log.read_soon(LogIndex(index)).await {
            latest = latest.max(entry_log_time_ms(&entry.payload));
        }
    }
    latest
}

/// Carries what is still referred to, then trims.
async fn let_go(replica: &Replica, term: Term, to: LogIndex) -> Result<(), String> {
    let before_ms = log_time_at(replica, to).await.ok_or("no log time is known there")?.saturating_add(1);
    let below = to.0 + 1;
    let bytes_max = CARRY_BYTES_MAX.min(replica.log.payload_bytes_max() / 2);
    loop {
        let store = replica.store.clone();
        let look = move || store.trim_plan(below, before_ms, CARRY_MESSAGES_MAX);
        let plan = replica.runtime.blocking(look).await.map_err(|error| error.to_string())?;
        if plan.to_carry.is_empty() {
            break;
        }
        let mut messages = Vec::new();
        let mut frames: Vec<StoredFrame> = Vec::new();
        let mut bytes = 0;
        for carry in &plan.to_carry {
            let frame = read_frame(replica, carry).await?;
            if bytes + frame.byte_len() > bytes_max && !frames.is_empty() {
                break;
            }
            bytes += frame.byte_len();
            messages.push(carry.message);
            frames.push(frame);
        }
        match propose(replica, term, &Command::Carry { messages, frames }).await? {
            Outcome::Carried { count } => tracing::debug!(count, bytes, "messages carried along"),
            other => return Err(format!("messages were not carried along: {other:?}")),
        }
        let pause_ms = bytes as u64 * 1000 / CARRY_BYTES_PER_SECOND;
        replica.runtime.sleep(Duration::from_millis(pause_ms)).await;
    }
    match propose(replica, term, &Command::Trim { below, before_ms }).await? {
        Outcome::Trimmed { below, slots } => {
            tracing::info!(below, slots, expired = replica.store.retention().expired, "old messages let go");
            Ok(())
        }
        // Something became a reference meanwhile: it is carried next time.
        Outcome::Rejected(Rejection::TrimPassesReference { .. }) => Ok(()),
        other => Err(format!("{other:?}")),
    }
}

async fn read_frame(replica: &Replica, carry: &ToCarry) -> Result<StoredFrame, String> {
    let entry = replica.log.read_soon(LogIndex(carry.entry)).await.map_err(|error| error.to_string())?;
    let payload = entry.ok_or_else(|| format!("entry {} is gone", carry.entry))?.payload;
    match carry.bytes {
        None => nth_frame(&payload, carry.message.ordinal)
            .map_err(|error| error.to_string())?
            .ok_or_else(|| format!("message {} is not in its entry", carry.message)),
        Some((position, length)) => {
            let (from, to) = (position as usize, position as usize + length as usize);
            if to > payload.len() {
                return Err(format!("message {} is not where it was carried", carry.message));
            }
            StoredFrame::from_bytes(payload.slice(from..to)).map_err(|error| error.to_string())
        }
    }
}

/// Proposes one command by itself: what makes room may use space that sends may not.
async fn propose(replica: &Replica, term: Term, command: &Command) -> Result<Outcome, String> {
    let mut entry = EntryBuilder::new(replica.clock.now_ms(term, &replica.store), term.0);
    entry.push(command);
    let applied = replica.log.propose_as(ProposalClass::Retention, entry.finish(), Some(term)).await;
    let mut outcomes = applied.map_err(|error| error.to_string())?.output;
    outcomes.pop().ok_or_else(|| "no outcome".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn a_disk_presses_where_both_its_share_and_its_free_bytes_say_so() {
        let config = BrokerConfig::default();
        let at = |total_gib: u64, free_gib: u64| {
            let disk = DiskUse { free_bytes: free_gib * GIB, total_bytes: total_gib * GIB };
            DiskPressure::at(disk, &config)
        };
        // 100 GiB: the shares alone decide.
        assert_eq!([26, 25].map(|free| at(100, free)), [DiskPressure::None, DiskPressure::Expire], "75 %");
        assert_eq!([16, 15].map(|free| at(100, free)), [DiskPressure::Expire, DiskPressure::Delete], "85 %");
        // 1,000 GiB: 40 and 20 GiB to spare are enough, whatever share that is.
        assert_eq!([40, 39].map(|free| at(1000, free)), [DiskPressure::None, DiskPressure::Expire]);
        assert_eq!([20, 19].map(|free| at(1000, free)), [DiskPressure::Expire, DiskPressure::Delete]);
        // 20 GiB: less than 20 are always free, so the share is needed, too.
        assert_eq!(
            [6, 5, 3].map(|free| at(20, free)),
            [DiskPressure::None, DiskPressure::Expire, DiskPressure::Delete]
        );
    }

    #[test]
    fn expired_messages_go_in_their_hour_or_in_any() {
        let four = 4 * MS_PER_HOUR + 20_000 * 24 * MS_PER_HOUR;
        for (wall_ms, is_so) in
            [(four - 1, false), (four, true), (four + MS_PER_HOUR - 1, true), (four + MS_PER_HOUR, false)]
        {
            assert_eq!((is_hour(Some(4), wall_ms), is_hour(None, wall_ms)), (is_so, true), "{wall_ms}");
        }
    }
}
