//! openraft's log storage over our segment files.

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, Range, RangeBounds, RangeInclusive};
use std::sync::{Arc, Weak};

use flotilla_planted_bugs::{Bug, is_planted};
use futures::Stream;
use openraft::storage::{IOFlushed, LogState, RaftLogStorage};
use openraft::{EntryPayload, OptionalSend, RaftLogReader};
use tokio::sync::Mutex;

use super::type_config::{
    Entry, LogId, TypeConfig, Vote, to_entry, to_entry_id, to_log_id, to_record, to_saved_vote, to_vote,
};
use crate::ack::AckTracker;
use crate::log_files::LogFiles;
use crate::log_view::LogView;
use crate::lost_tail::TailKeeper;
use crate::repair::Sealer;
use crate::segment::Record;
use crate::{FlushMode, LogIndex, NodeId, Term};

/// Payload bytes of one replication request (at least one entry goes, whatever its size).
const REQUEST_BYTES_MAX: usize = 1 << 20;
/// Payload bytes read ahead for apply.
const APPLY_BYTES_MAX: usize = 4 << 20;
/// Entries read ahead for apply.
const APPLY_ENTRIES_MAX: u64 = 1024;

/// The log as openraft's core writes it.
pub(crate) struct LogStore {
    /// Shared with whoever mends damage in the file that is written to: he has it sealed when nothing is written. The core
    /// never waits for him longer than that takes.
    files: Arc<Mutex<LogFiles>>,
    view: LogView,
    acks: AckTracker,
    keeper: TailKeeper,
}

impl LogStore {
    pub(crate) fn new(files: LogFiles, acks: AckTracker, keeper: TailKeeper) -> LogStore {
        let view = files.view();
        let files = Arc::new(Mutex::new(files));
        view.shared.damages.set_sealer(sealer(Arc::downgrade(&files)));
        LogStore { files, view, acks, keeper }
    }
}

fn sealer(files: Weak<Mutex<LogFiles>>) -> Sealer {
    Box::new(move || {
        let files = files.upgrade();
        Box::pin(async move {
            match files {
                Some(files) => files.lock().await.seal_if_wanted(0).await,
                None => Err(io::Error::other("log is closed")),
            }
        })
    })
}

fn index_range(range: impl RangeBounds<u64>) -> Range<LogIndex> {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(start) => start.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(end) => end.saturating_add(1),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => u64::MAX,
    };
    LogIndex(start)..LogIndex(end)
}

fn entries(records: Vec<Record>) -> io::Result<Vec<Entry>> {
    let converted = records.into_iter().map(to_entry).collect::<Result<_, _>>();
    converted.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

impl RaftLogReader<TypeConfig> for LogView {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry>, io::Error> {
        entries(self.read_whole(index_range(range)).await?)
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        Ok(self.vote().map(to_vote))
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<Entry>, io::Error> {
        entries(self.read_when_whole(LogIndex(start)..LogIndex(end), REQUEST_BYTES_MAX).await?)
    }

    async fn entries_stream<RB>(&mut self, range: RB) -> impl Stream<Item = Result<Entry, io::Error>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let ahead = EntriesAhead { view: self.clone(), left: index_range(range), ready: Vec::new().into_iter() };
        // Boxed: a stream must not move, and openraft moves this one.
        Box::pin(futures::stream::unfold(ahead, |mut ahead| async move {
            let entry = ahead.next().await?;
            Some((entry, ahead))
        }))
    }

    async fn get_key_log_ids(&mut self, range: RangeInclusive<LogId>) -> Result<Vec<LogId>, io::Error> {
        let (first, last) = (LogIndex(range.start().index()), LogIndex(range.end().index()));
        Ok(self.last_of_each_term(first, last).into_iter().map(to_log_id).collect())
    }
}

/// Reads a range in pieces, so that applying a long backlog never holds all of it in memory.
struct EntriesAhead {
    view: LogView,
    left: Range<LogIndex>,
    ready: std::vec::IntoIter<Record>,
}

impl EntriesAhead {
    async fn read_ahead(&mut self) -> io::Result<()> {
        let end = self.left.end.min(LogIndex(self.left.start.0.saturating_add(APPLY_ENTRIES_MAX)));
        let records = self.view.read_when_whole(self.left.start..end, APPLY_BYTES_MAX).await?;
        self.left.start = match records.last() {
            Some(last) => last.id.index.next(),
            // Nothing (more) of the range is there.
            None => self.left.end,
        };
        self.ready = records.into_iter();
        Ok(())
    }

    async fn next(&mut self) -> Option<io::Result<Entry>> {
        if self.ready.len() == 0
            && self.left.start < self.left.end
            && let Err(error) = self.read_ahead().await
        {
            self.left.start = self.left.end;
            return Some(Err(error));
        }
        let record = self.ready.next()?;
        Some(to_entry(record).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error)))
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = LogView;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig>, io::Error> {
        let (purged, last) = self.view.ends();
        Ok(LogState { last_purged_log_id: purged.map(to_log_id), last_log_id: last.map(to_log_id) })
    }

    async fn get_log_reader(&mut self) -> LogView {
        self.view.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), io::Error> {
        self.files.lock().await.save_vote(to_saved_vote(vote)).await?;
        self.acks.enter(Term(vote.leader_id().term));
        Ok(())
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), io::Error> {
        self.view.save_committed(committed.as_ref().map(to_entry_id))?;
        if let Some(committed) = committed {
            self.acks.committed(LogIndex(committed.index()));
        }
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, io::Error> {
        Ok(self.view.committed().map(to_log_id))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut tickets = Vec::new();
        let mut voters = None;
        let mut bytes = 0;
        let records: Vec<Record> = entries
            .into_iter()
            .map(|entry| {
                let id = to_entry_id(&entry.log_id);
                match &entry.payload {
                    EntryPayload::Normal(proposal) => {
                        bytes += proposal.payload.len() as u64;
                        tickets.extend(proposal.ticket.take().map(|ticket| (id, ticket)));
                    }
                    EntryPayload::Membership(members) if is_planted(Bug::LearnerCounted) => {
                        voters = Some(members.nodes().map(|(node, _)| NodeId(*node)).collect());
                    }
                    EntryPayload::Membership(members) => voters = Some(members.voter_ids().map(NodeId).collect()),
                    EntryPayload::Blank => {}
                }
                to_record(entry)
            })
            .collect();
        let last = records.last().map(|record| record.id);
        let (acks, is_synced) = (self.acks.clone(), self.view.flush_mode() == FlushMode::Sync);
        let done = Box::new(move |flushed: io::Result<()>| {
            let is_durable = is_synced && flushed.is_ok();
            callback.io_completed(flushed);
            if is_durable {
                acks.synced_self(last.map(|last| last.index));
            }
        });
        self.files.lock().await.append(records, done).await?;
        if let Some(voters) = voters {
            self.acks.set_voters(voters);
        }
        if let Some(last) = last {
            self.acks.appended(last, bytes, tickets);
            if is_synced {
                // The sync may have been quicker than this: its word came before the entry was known.
                self.acks.synced_self(self.view.durable_index());
            }
        }
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> Result<(), io::Error> {
        let last = last.map(|last| LogIndex(last.index()));
        let view = self.view.clone();
        let first = last.map_or(LogIndex(0), LogIndex::next);
        let keeper = self.keeper.clone();
        let keeping = move || {
            // Damage must not stand in the way: nobody can give such an entry back, and the leader's takes its place.
            let (overridden, damaged) = view.read_around(first..LogIndex(u64::MAX))?;
            if !damaged.is_empty() {
                tracing::error!(
                    first = %damaged[0], entries = damaged.len(),
                    "entries that another leader overrides are damaged: what was acknowledged in them cannot be kept aside"
                );
            }
            keeper.keep(overridden)
        };
        let kept = self.keeper.when_there_is_room(&self.view.shared, keeping).await;
        kept.map_err(|error| self.view.failure().report_io("lost tail", error))?;
        self.files.lock().await.truncate_after(last).await?;
        self.acks.truncated(last);
        Ok(())
    }

    async fn purge(&mut self, upto: LogId) -> Result<(), io::Error> {
        self.files.lock().await.purge(to_entry_id(&upto)).await
    }
}
