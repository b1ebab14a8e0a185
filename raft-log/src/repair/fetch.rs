//! Committed entries from one replica to another that cannot read its own copy of them.

use std::time::Duration;

use bytes::Bytes;
use flotilla_runtime::Runtime;

use crate::log_view::LogView;
use crate::raft::{PeerMessage, decode, encode};
use crate::segment::Record;
use crate::{LogIndex, NodeId, PeerCallKind, Transport};

/// Payload bytes of one answer (at least one entry goes, whatever its size).
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// Entries of one answer.
const ANSWER_ENTRIES_MAX: u64 = 1024;
/// The peer may read from a cold disk.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);

/// Which entries are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FetchRequest {
    pub(crate) first: LogIndex,
    /// The one after the last of them.
    pub(crate) end: LogIndex,
}

/// What the peer has of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FetchAnswer {
    /// The first of the wanted entries, dense, each checked against its checksum when it was read.
    Entries(Vec<Record>),
    /// Purged, or never there.
    Absent,
    /// There, but not known to be committed yet.
    NotCommitted,
    /// The peer's copy is damaged too.
    Damaged,
}

/// Answers a peer. Blocks.
pub(crate) fn serve_fetch(view: &LogView, committed: Option<LogIndex>, request: FetchRequest) -> FetchAnswer {
    if committed.is_none_or(|committed| committed < request.first) {
        return FetchAnswer::NotCommitted;
    }
    let end = committed.map_or(request.first, LogIndex::next).min(request.end);
    let end = end.min(LogIndex(request.first.0.saturating_add(ANSWER_ENTRIES_MAX)));
    match view.read(request.first..end, ANSWER_BYTES_MAX) {
        Ok(records) if records.first().is_some_and(|first| first.id.index == request.first) => {
            FetchAnswer::Entries(records)
        }
        Ok(_) => FetchAnswer::Absent,
        Err(_) => FetchAnswer::Damaged,
    }
}

/// Asks one peer for the entries `first..end`, in as many calls as it takes. Each must be the entry that this replica's
/// log has there: same index, same term. The error tells why there is nothing of use.
pub(super) async fn fetch(
    runtime: &Runtime,
    transport: &dyn Transport,
    view: &LogView,
    peer: NodeId,
    first: LogIndex,
    end: LogIndex,
) -> Result<Vec<Record>, String> {
    let mut fetched: Vec<Record> = Vec::new();
    let mut next = first;
    while next < end {
        let body: Bytes = encode(PeerMessage::FetchRequest(FetchRequest { first: next, end }));
        let call = transport.call(peer, PeerCallKind::Fetch, body, FETCH_TIMEOUT);
        let answer = match runtime.timeout(FETCH_TIMEOUT, call).await {
            Ok(Ok(body)) => decode(body).map_err(|error| error.to_string())?,
            Ok(Err(error)) => return Err(error.to_string()),
            Err(_) => return Err("no answer in time".to_owned()),
        };
        let records = match answer {
            PeerMessage::FetchAnswer(FetchAnswer::Entries(records)) if !records.is_empty() => records,
            PeerMessage::FetchAnswer(FetchAnswer::Absent) => return Err("it does not have them".to_owned()),
            PeerMessage::FetchAnswer(FetchAnswer::NotCommitted) => return Err("not committed there yet".to_owned()),
            PeerMessage::FetchAnswer(FetchAnswer::Damaged) => return Err("its copy is damaged too".to_owned()),
            _ => return Err("answer is not understood".to_owned()),
        };
        for record in records {
            if record.id.index != next || next >= end {
                return Err(format!("answer holds entry {} where {next} should be", record.id));
            }
            match view.id_at(next) {
                Some(own) if own == record.id => {}
                own => return Err(format!("answer holds entry {}, own log has {own:?}", record.id)),
            }
            next = next.next();
            fetched.push(record);
        }
    }
    Ok(fetched)
}
