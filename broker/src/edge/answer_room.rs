//! Room for the answer of a poll, wherever it is made.
//!
//! ```text
//!  client ─▶ replica, counts ──── grant: so much ────▶ leader: makes an answer within it
//!                  ▲                                      │
//!                  └───────── wants: so much more ◀───────┘ nothing was done
//! ```
//!
//! Bytes are counted where the client's connection is. A poll that is passed on takes along what it may bring: little while
//! it waits, so that many can; once the leader says how much there is, so much, to be taken at once or not at all.

use std::fmt;
use std::future::Future;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use flotilla_proto::status::{Code, status};
use flotilla_proto::v2;

use super::unread::{Full, UnreadAnswer};

/// What an answer adds to a message as it is kept, at most: receipt handle, names, the structure in memory.
pub const MESSAGE_EXTRA_BYTES: u64 = 4 << 10;

/// How a grant to be used at once ends.
const AT_ONCE: &str = " at once";

tokio::task_local! {
    /// Room for the answer that this call makes.
    static ROOM: AnswerRoom;
}

/// Room for the messages of one answer.
#[derive(Debug, Clone)]
pub enum AnswerRoom {
    /// The client's connection is here.
    Here(Arc<UnreadAnswer>),
    /// Another replica has passed the poll on.
    Granted(Arc<GrantedAnswer>),
}

/// What a poll that is passed on may bring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// Bytes of messages, as they are counted.
    pub bytes: u64,
    /// The poll must not wait, and brings what fits; else it may wait, and brings all or says how much there is.
    pub is_at_once: bool,
}

/// An answer that is made for another replica.
#[derive(Debug)]
pub struct GrantedAnswer {
    grant: Grant,
    /// Bytes of the messages chosen.
    taken: AtomicU64,
    /// Bytes of the messages that did not fit.
    missing: AtomicU64,
    /// What the poll would take instead, if it ended for that.
    wanted: OnceLock<u64>,
}

impl AnswerRoom {
    /// That of the call which is being executed, if its answer is counted.
    pub fn current() -> Option<AnswerRoom> {
        ROOM.try_with(AnswerRoom::clone).ok()
    }

    /// The answer of the call which is being executed, if its client's connection is here.
    pub fn current_here() -> Option<Arc<UnreadAnswer>> {
        match AnswerRoom::current()? {
            AnswerRoom::Here(answer) => Some(answer),
            AnswerRoom::Granted(_) => None,
        }
    }

    /// Executes a call with this room.
    pub async fn of<F: Future>(self, call: F) -> F::Output {
        ROOM.scope(self, call).await
    }

    /// Takes room for messages of these bytes as they are kept, for all of them or none, before they are handed out.
    ///
    /// # Errors
    /// The limit that they would pass.
    pub fn take(&self, messages: impl IntoIterator<Item = u32>) -> Result<(), Full> {
        let bytes: u64 = messages.into_iter().map(|bytes| u64::from(bytes) + MESSAGE_EXTRA_BYTES).sum();
        match self {
            AnswerRoom::Here(answer) => answer.grow(bytes),
            AnswerRoom::Granted(answer) => answer.grow(bytes),
        }
    }

    /// Whether more was taken than may be brought: nothing must be handed out then. One that is to be used at once gives no
    /// more room than there is.
    pub fn exceeded(&self) -> Option<Full> {
        match self {
            AnswerRoom::Here(_) => None,
            AnswerRoom::Granted(answer) => {
                (answer.taken.load(Ordering::Relaxed) > answer.grant.bytes).then_some(Full::Replica)
            }
        }
    }

    /// Gives back what was taken: the poll looks again.
    pub fn clear(&self) {
        match self {
            AnswerRoom::Here(answer) => answer.settle(0),
            AnswerRoom::Granted(answer) => answer.taken.store(0, Ordering::Relaxed),
        }
    }

    /// Asks whether the poll may wait for messages.
    ///
    /// # Errors
    /// What to answer if not.
    pub fn wait(&self) -> Result<(), v2::Status> {
        match self {
            AnswerRoom::Granted(answer) if answer.grant.is_at_once => Err(answer.end_wanting(0)),
            AnswerRoom::Here(_) | AnswerRoom::Granted(_) => Ok(()),
        }
    }

    /// What a poll is answered that found a limit reached and has nothing else to say.
    pub fn refusal(&self, full: Full) -> v2::Status {
        match self {
            AnswerRoom::Here(answer) => answer.refusal(full),
            AnswerRoom::Granted(answer) => {
                let (taken, missing) = (answer.taken.load(Ordering::Relaxed), answer.missing.load(Ordering::Relaxed));
                answer.end_wanting(taken.max(missing))
            }
        }
    }
}

impl GrantedAnswer {
    /// Nothing is chosen yet.
    pub fn new(grant: Grant) -> Arc<GrantedAnswer> {
        Arc::new(GrantedAnswer { grant, taken: AtomicU64::new(0), missing: AtomicU64::new(0), wanted: OnceLock::new() })
    }

    /// The bytes that the poll would take, 0 if it would wait, and does not as it may not: nothing was done then.
    pub fn wanted(&self) -> Option<u64> {
        self.wanted.get().copied()
    }

    fn grow(&self, bytes: u64) -> Result<(), Full> {
        let taken = self.taken.load(Ordering::Relaxed) + bytes;
        if self.grant.is_at_once && taken > self.grant.bytes {
            self.missing.store(bytes, Ordering::Relaxed);
            return Err(Full::Replica);
        }
        self.taken.store(taken, Ordering::Relaxed);
        Ok(())
    }

    /// The replica that passed the poll on never shows this status to anybody.
    fn end_wanting(&self, bytes: u64) -> v2::Status {
        self.wanted.get_or_init(|| bytes);
        status(Code::TooManyRequests, format!("the poll wants {bytes} bytes, {} were granted", self.grant))
    }
}

impl fmt::Display for Grant {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}{}", self.bytes, if self.is_at_once { AT_ONCE } else { "" })
    }
}

impl FromStr for Grant {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Grant, Self::Err> {
        let (bytes, is_at_once) = text.strip_suffix(AT_ONCE).map_or((text, false), |bytes| (bytes, true));
        Ok(Grant { bytes: bytes.parse()?, is_at_once })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granted(bytes: u64, is_at_once: bool) -> (AnswerRoom, Arc<GrantedAnswer>) {
        let answer = GrantedAnswer::new(Grant { bytes, is_at_once });
        (AnswerRoom::Granted(answer.clone()), answer)
    }

    #[test]
    fn a_grant_survives_the_way() {
        for grant in [Grant { bytes: 0, is_at_once: false }, Grant { bytes: u64::MAX, is_at_once: true }] {
            assert_eq!(grant.to_string().parse(), Ok(grant));
        }
        assert!("1 at last".parse::<Grant>().is_err() && "".parse::<Grant>().is_err());
    }

    #[test]
    fn a_poll_that_may_wait_says_how_much_there_is_if_that_is_more_than_it_may_bring() {
        let (room, answer) = granted(3 * MESSAGE_EXTRA_BYTES, false);
        assert_eq!((room.wait(), room.take([10, 10]), room.exceeded()), (Ok(()), Ok(()), None));
        room.clear();
        assert_eq!((room.take([10, 10, 10]), room.exceeded()), (Ok(()), Some(Full::Replica)));
        room.take([5]).expect("all is counted");
        assert_eq!(answer.wanted(), None);
        room.refusal(Full::Replica);
        assert_eq!(answer.wanted(), Some(4 * MESSAGE_EXTRA_BYTES + 35));
    }

    #[test]
    fn a_poll_at_once_brings_what_fits_or_says_what_the_first_message_takes() {
        let (room, answer) = granted(2 * MESSAGE_EXTRA_BYTES, true);
        room.take([0]).expect("room");
        assert_eq!((room.take([1]), room.exceeded(), answer.wanted()), (Err(Full::Replica), None, None));
        room.clear();
        assert_eq!(room.take([5000]), Err(Full::Replica));
        room.refusal(Full::Replica);
        assert_eq!(answer.wanted(), Some(MESSAGE_EXTRA_BYTES + 5000));

        let (room, answer) = granted(1 << 20, true);
        assert!(room.wait().is_err());
        assert_eq!(answer.wanted(), Some(0), "it would wait");
    }
}
