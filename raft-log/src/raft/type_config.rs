//! The types with which this crate fills openraft's blanks.

use std::any::Any;
use std::fmt;
use std::sync::Mutex;

use bytes::Bytes;
use openraft::alias::{EntryOf, LogIdOf};
use openraft::impls::leader_id_std::LeaderId;
use openraft::{EntryPayload, Raft, RaftTypeConfig};

use super::async_runtime::FlotillaRuntime;
use super::machine::Machine;
use super::membership::{decode_membership, encode_membership};
use super::responder::ReplyTo;
use crate::ack::TicketSlot;
use crate::fields::FieldError;
use crate::ids::EntryId;
use crate::member::Member;
use crate::segment::{Record, RecordKind};
use crate::vote_and_marks::SavedVote;
use crate::{NodeId, Term};

/// openraft over our types: an entry's identity is (term, index), its payload is shared bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TypeConfig;

impl RaftTypeConfig for TypeConfig {
    type D = Proposal;
    type R = Reply;
    type NodeId = u64;
    type Node = Member;
    type Term = u64;
    type LeaderId = LeaderId<u64, u64>;
    type Vote = openraft::Vote<Self::LeaderId>;
    type Payload = EntryPayload<Proposal, u64, Member>;
    type Entry = openraft::Entry<<Self::LeaderId as openraft::vote::RaftLeaderId>::Committed, Self::Payload>;
    type AsyncRuntime = FlotillaRuntime;
    type Responder<T>
        = ReplyTo<T>
    where
        T: openraft::OptionalSend + 'static;
    type Batch<T>
        = openraft::impls::InlineBatch<T>
    where
        T: openraft::OptionalSend + 'static;
    type ErrorSource = openraft::impls::BoxedErrorSource;
}

/// A running core.
pub(crate) type LogRaft = Raft<TypeConfig, Machine>;
pub(crate) type LogId = LogIdOf<TypeConfig>;
pub(crate) type Entry = EntryOf<TypeConfig>;
pub(crate) type Vote = openraft::Vote<LeaderId<u64, u64>>;

/// A proposal's bytes; their content never shows in a log line.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Proposal {
    pub(crate) payload: Bytes,
    /// Who wants to be told; never written.
    pub(crate) ticket: TicketSlot,
}

impl Proposal {
    pub(crate) fn new(payload: Bytes, ticket: TicketSlot) -> Proposal {
        Proposal { payload, ticket }
    }

    /// One that nobody waits for.
    pub(crate) fn bare(payload: Bytes) -> Proposal {
        Proposal { payload, ticket: TicketSlot::default() }
    }
}

impl fmt::Debug for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.payload.len())
    }
}

impl fmt::Display for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A machine's output on its way back through openraft, which wants it `Sync` (hence the lock, never contended).
pub(crate) struct Reply(Mutex<Option<Box<dyn Any + Send>>>);

impl Reply {
    pub(crate) fn some(output: Box<dyn Any + Send>) -> Reply {
        Reply(Mutex::new(Some(output)))
    }

    /// For entries that are not proposals.
    pub(crate) fn none() -> Reply {
        Reply(Mutex::new(None))
    }

    /// The output, if it is there and of this type.
    pub(crate) fn into_output<O: 'static>(self) -> Option<O> {
        let output = self.0.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)?;
        output.downcast().ok().map(|output| *output)
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reply")
    }
}

pub(crate) fn to_log_id(id: EntryId) -> LogId {
    LogId::new_term_index(id.term.0, id.index.0)
}

pub(crate) fn to_entry_id(id: &LogId) -> EntryId {
    EntryId::new(id.committed_leader_id().term, id.index())
}

pub(crate) fn to_vote(saved: SavedVote) -> Vote {
    if saved.committed {
        Vote::new_committed(saved.term.0, saved.node.0)
    } else {
        Vote::new(saved.term.0, saved.node.0)
    }
}

pub(crate) fn to_saved_vote(vote: &Vote) -> SavedVote {
    let leader = vote.leader_id();
    SavedVote { term: Term(leader.term), node: NodeId(leader.voted_for), committed: vote.is_committed() }
}

/// An entry as the segments hold it.
pub(crate) fn to_record(entry: Entry) -> Record {
    let id = to_entry_id(&entry.log_id);
    match entry.payload {
        EntryPayload::Blank => Record { id, kind: RecordKind::Blank, payload: Bytes::new() },
        EntryPayload::Normal(Proposal { payload, .. }) => Record { id, kind: RecordKind::Normal, payload },
        EntryPayload::Membership(membership) => {
            Record { id, kind: RecordKind::Membership, payload: encode_membership(&membership) }
        }
    }
}

/// An entry as openraft wants it.
pub(crate) fn to_entry(record: Record) -> Result<Entry, FieldError> {
    let payload = match record.kind {
        RecordKind::Blank => EntryPayload::Blank,
        RecordKind::Normal => EntryPayload::Normal(Proposal::bare(record.payload)),
        RecordKind::Membership => EntryPayload::Membership(decode_membership(record.payload)?),
    };
    Ok(Entry { log_id: to_log_id(record.id), payload })
}
