//! A machine that remembers everything it applied, for tests to look at.

use std::io;
use std::sync::{Arc, Mutex};

use bytes::{BufMut, Bytes};

use crate::fields::FieldReader;
use crate::{LogIndex, RestoreError, StateMachine, Term};

/// A payload that ends so is taken for one that was acknowledged before its commit.
pub(crate) const ACKNOWLEDGED: u8 = 0xEE;

/// The machine; clones look at the same state.
#[derive(Clone, Default)]
pub(crate) struct Ledger {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    applied: Vec<(LogIndex, Bytes)>,
    segments: Vec<LogIndex>,
    restored: Option<LogIndex>,
}

impl Ledger {
    /// Every proposal applied, in order.
    pub(crate) fn applied(&self) -> Vec<(LogIndex, Bytes)> {
        self.state.lock().unwrap().applied.clone()
    }

    /// The boundaries told since the machine was made.
    pub(crate) fn segments(&self) -> Vec<LogIndex> {
        self.state.lock().unwrap().segments.clone()
    }

    /// What the state was last restored to.
    pub(crate) fn restored(&self) -> Option<LogIndex> {
        self.state.lock().unwrap().restored
    }
}

impl StateMachine for Ledger {
    /// How many proposals were applied, with this one.
    type Output = usize;

    fn apply(&mut self, index: LogIndex, _term: Term, payload: Bytes) -> usize {
        let mut state = self.state.lock().unwrap();
        if let Some((last, _)) = state.applied.last() {
            assert!(*last < index, "entry {index} is applied after {last}");
        }
        state.applied.push((index, payload));
        state.applied.len()
    }

    fn acknowledged_early(payload: &[u8]) -> u64 {
        u64::from(payload.last() == Some(&ACKNOWLEDGED))
    }

    fn segment_started(&mut self, first: LogIndex) -> io::Result<()> {
        let mut state = self.state.lock().unwrap();
        assert!(
            state.applied.last().is_none_or(|(last, _)| *last < first),
            "all before {first} is applied, {first} is not"
        );
        state.segments.push(first);
        Ok(())
    }

    fn checkpoint(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (index, payload) in &self.state.lock().unwrap().applied {
            bytes.put_u64_le(index.0);
            bytes.put_u32_le(payload.len() as u32);
            bytes.put_slice(payload);
        }
        bytes
    }

    fn restore(&mut self, checkpoint: &[u8], applied: LogIndex) -> Result<(), RestoreError> {
        let mut reader = FieldReader::new(Bytes::copy_from_slice(checkpoint));
        let mut state = self.state.lock().unwrap();
        state.applied.clear();
        while reader.left() > 0 {
            let index = LogIndex(reader.u64().unwrap());
            let len = reader.u32().unwrap() as usize;
            assert!(index <= applied, "a checkpoint holds nothing behind its own mark");
            state.applied.push((index, reader.take(len).unwrap()));
        }
        state.restored = Some(applied);
        Ok(())
    }
}
