//! Bytes of answers with messages that are made and that their clients' connections have not taken yet: bounded in all,
//! and of one client, so that who asks and does not read fills neither the memory nor the place of the others.
//!
//! An answer is counted where its client's connection is, from the moment that its messages are chosen until its stream
//! has been read to its end or is dropped. A poll that is passed on to the leader holds here what it may bring at most, see
//! [`super::answer_room`].

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flotilla_proto::status::{Code, status};
use flotilla_proto::{CallContext, v2};
use flotilla_runtime::{Instant, Runtime};
use tokio::sync::Notify;

use super::answer_room::Grant;
use super::quotas::client_name;
use crate::metrics::{Counters, Refused};

/// The smallest limit, of the replica and of a client: the largest answer and its largest message fit in any case, bytes.
pub const UNREAD_BYTES_MIN: u64 = 32 << 20;
/// One client may hold this part of the whole.
const CLIENTS_FULL: u64 = 8;
/// What a poll that waits at the leader may bring without asking for more: an ordinary batch.
const WAITING_BYTES: u64 = 256 << 10;
/// Polls that wait get this only within one part of so many of either limit: the rest is for messages that are there.
const WAITERS_PART: u64 = 4;

/// What a replica holds.
#[derive(Debug)]
pub struct UnreadAnswers {
    held: Mutex<Held>,
    bytes_max: u64,
    client_bytes_max: u64,
    /// Told whenever an answer holds less.
    freed: Notify,
    counters: Arc<Counters>,
}

#[derive(Debug, Default)]
struct Held {
    bytes: u64,
    /// Of clients that hold any.
    clients: BTreeMap<String, u64>,
}

/// Which limit is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// The client's.
    Client,
    /// That of the replica.
    Replica,
}

/// The bytes of one answer, given back when dropped.
#[derive(Debug)]
pub struct UnreadAnswer {
    answers: Arc<UnreadAnswers>,
    /// None inside of a process: counted in the whole alone.
    client: Option<String>,
    bytes: AtomicU64,
}

impl UnreadAnswers {
    /// Holds nothing yet; `bytes_max` is at least [`UNREAD_BYTES_MIN`].
    pub fn new(bytes_max: u64, counters: Arc<Counters>) -> Arc<UnreadAnswers> {
        let client_bytes_max = (bytes_max / CLIENTS_FULL).max(UNREAD_BYTES_MIN);
        Arc::new(UnreadAnswers { held: Mutex::default(), bytes_max, client_bytes_max, freed: Notify::new(), counters })
    }

    /// Begins the answer of a poll.
    ///
    /// # Errors
    /// The status to answer, TOO_MANY_REQUESTS, if there is no room for anything: nothing was looked up.
    pub fn open(self: &Arc<UnreadAnswers>, context: &CallContext) -> Result<Arc<UnreadAnswer>, v2::Status> {
        let client = client_name(context).map(str::to_owned);
        let answer = UnreadAnswer { answers: self.clone(), client, bytes: AtomicU64::new(0) };
        match answer.grow(1) {
            Ok(()) => {
                answer.settle(0);
                Ok(Arc::new(answer))
            }
            Err(full) => Err(answer.refusal(full)),
        }
    }

    /// Bytes held now.
    pub fn bytes(&self) -> u64 {
        self.lock().bytes
    }

    // Nobody panics while it is held.
    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl UnreadAnswer {
    /// Holds so many bytes more.
    ///
    /// # Errors
    /// The limit that they would pass; nothing was taken.
    pub fn grow(&self, bytes: u64) -> Result<(), Full> {
        let mut held = self.answers.lock();
        if self.of_client(&held) + bytes > self.answers.client_bytes_max {
            return Err(Full::Client);
        }
        if held.bytes + bytes > self.answers.bytes_max {
            return Err(Full::Replica);
        }
        self.set(&mut held, self.bytes.load(Ordering::Relaxed) + bytes);
        Ok(())
    }

    /// Holds what this poll takes along that may wait at the leader: little, and nothing when much is held already.
    pub fn grant_to_wait(&self) -> Grant {
        let mut held = self.answers.lock();
        let (client_bytes, bytes) = self.of_others(&held);
        let has_room = client_bytes + WAITING_BYTES <= self.answers.client_bytes_max / WAITERS_PART
            && bytes + WAITING_BYTES <= self.answers.bytes_max / WAITERS_PART;
        let bytes = if has_room { WAITING_BYTES } else { 0 };
        self.set(&mut held, bytes);
        Grant { bytes, is_at_once: false }
    }

    /// Holds what this poll takes along next that has come back and wants so much, 0 if it wants to wait. Waits for room until
    /// `ends`: many that waited for one message may want it at the same time, and all but one give the room back at once.
    ///
    /// # Errors
    /// The limit that leaves no room: none at all, or not for the one message that was too much the last time.
    pub async fn grant_until(&self, runtime: &Runtime, wanted: u64, last: Grant, ends: Instant) -> Result<Grant, Full> {
        loop {
            let mut freed = std::pin::pin!(self.answers.freed.notified());
            // Enlisted before the look, so that what is given back in between is not missed.
            freed.as_mut().enable();
            match self.grant(wanted, last) {
                Err(_) if runtime.now() < ends => {}
                granted => return granted,
            }
            let _ = runtime.timeout_at(ends, freed).await;
        }
    }

    fn grant(&self, wanted: u64, last: Grant) -> Result<Grant, Full> {
        if wanted == 0 {
            return Ok(self.grant_to_wait());
        }
        let mut held = self.answers.lock();
        let (client_bytes, bytes) = self.of_others(&held);
        let of_client = self.answers.client_bytes_max.saturating_sub(client_bytes);
        let of_all = self.answers.bytes_max.saturating_sub(bytes);
        let room = of_client.min(of_all);
        if room == 0 || (last.is_at_once && room < wanted) {
            self.set(&mut held, 0);
            return Err(if of_client <= of_all { Full::Client } else { Full::Replica });
        }
        let bytes = wanted.min(room);
        self.set(&mut held, bytes);
        Ok(Grant { bytes, is_at_once: true })
    }

    /// Holds so many bytes from now on: what the answer really is, be it more than there is room for.
    pub fn settle(&self, bytes: u64) {
        self.set(&mut self.answers.lock(), bytes);
    }

    /// What a poll is answered that found a limit reached and has nothing else to say.
    pub fn refusal(&self, full: Full) -> v2::Status {
        let advice = "read the answers that are there, then try again";
        let (cause, text) = match full {
            Full::Client => {
                let (client, max) = (self.client.as_deref().unwrap_or_default(), self.answers.client_bytes_max);
                let held = self.of_client(&self.answers.lock());
                let text = format!(
                    "client '{client}' has answers of {held} bytes here that it has not read, {max} are allowed (a part of \
                     unread_answer_bytes_max); {advice}"
                );
                (Refused::UnreadClientFull, text)
            }
            Full::Replica => {
                let (held, max) = (self.answers.bytes(), self.answers.bytes_max);
                let text = format!(
                    "this replica has answers of {held} bytes that clients have not read, {max} are allowed \
                     (unread_answer_bytes_max); {advice}"
                );
                (Refused::UnreadFull, text)
            }
        };
        self.answers.counters.refused(cause, 1);
        status(Code::TooManyRequests, text)
    }

    /// What other answers hold: those of the client, and all.
    fn of_others(&self, held: &Held) -> (u64, u64) {
        let own = self.bytes.load(Ordering::Relaxed);
        (self.of_client(held).saturating_sub(own), held.bytes - own)
    }

    fn of_client(&self, held: &Held) -> u64 {
        self.client.as_ref().and_then(|client| held.clients.get(client)).copied().unwrap_or(0)
    }

    fn set(&self, held: &mut Held, bytes: u64) {
        // Only under the lock.
        let before = self.bytes.swap(bytes, Ordering::Relaxed);
        held.bytes = held.bytes - before + bytes;
        if bytes < before {
            self.answers.freed.notify_waiters();
        }
        let Some(client) = &self.client else { return };
        match held.clients.get_mut(client) {
            Some(of_client) => *of_client = *of_client - before + bytes,
            None if bytes > 0 => drop(held.clients.insert(client.clone(), bytes)),
            None => {}
        }
        if held.clients.get(client) == Some(&0) {
            held.clients.remove(client);
        }
    }
}

impl Drop for UnreadAnswer {
    fn drop(&mut self) {
        self.settle(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn open(answers: &Arc<UnreadAnswers>, remote: &str) -> Result<Arc<UnreadAnswer>, v2::Status> {
        answers.open(&CallContext::new(Instant::from_nanos(0), remote.to_owned(), BTreeMap::new()))
    }

    #[test]
    fn one_that_reads_nothing_has_its_part_and_the_others_have_theirs() {
        let answers = UnreadAnswers::new(512 * MIB, Arc::new(Counters::new(1)));
        let answer = open(&answers, "a").expect("room");
        answer.grow(63 * MIB).expect("room");
        assert_eq!(answer.grow(MIB + 1), Err(Full::Client), "64 MiB, an eighth");
        let status = answer.refusal(Full::Client);
        assert_eq!(status.code, 42900);
        assert!(status.message.contains("client 'a' has answers of 66060288 bytes"), "{}", status.message);
        assert!(status.message.contains("67108864 are allowed"), "{}", status.message);
        open(&answers, "b").expect("another one").grow(63 * MIB).expect("room");
        assert_eq!(answers.bytes(), 63 * MIB, "the other one's was dropped");
        answer.settle(64 * MIB);
        assert_eq!(open(&answers, "a").expect_err("nothing fits").code, 42900);
        drop(answer);
        assert_eq!((answers.bytes(), answers.lock().clients.len()), (0, 0), "who holds nothing is forgotten");
        open(&answers, "a").expect("room again");
        assert_eq!(answers.counters.refusals(Refused::UnreadClientFull), 2);
    }

    #[test]
    fn all_together_have_a_limit_too() {
        let answers = UnreadAnswers::new(40 * MIB, Arc::new(Counters::new(1)));
        let first = open(&answers, "a").expect("room");
        first.grow(31 * MIB).expect("at least the largest answer");
        let (second, nameless) = (open(&answers, "b").expect("room"), open(&answers, "").expect("room"));
        nameless.grow(8 * MIB).expect("room");
        assert_eq!(second.grow(2 * MIB), Err(Full::Replica));
        assert!(second.refusal(Full::Replica).message.contains("41943040 are allowed"));
        nameless.settle(0);
        second.grow(2 * MIB).expect("room again");
        assert_eq!(answers.counters.refusals(Refused::UnreadFull), 1);
    }

    #[test]
    fn polls_that_wait_elsewhere_hold_a_part_of_the_room_and_what_is_there_gets_the_rest() {
        let answers = UnreadAnswers::new(512 * MIB, Arc::new(Counters::new(1)));
        let waiting: Vec<_> = (0..100).map(|_| open(&answers, "a").expect("room")).collect();
        let granted: u64 = waiting.iter().map(|answer| answer.grant_to_wait().bytes).sum();
        assert_eq!((granted, answers.bytes()), (16 * MIB, 16 * MIB), "a quarter of the client's 64");
        assert_eq!(waiting[0].grant_to_wait().bytes, WAITING_BYTES, "its own is not counted twice");
        assert_eq!(open(&answers, "b").expect("room").grant_to_wait().bytes, WAITING_BYTES);

        let last = Grant { bytes: 0, is_at_once: false };
        let first = waiting[99].grant(20 * MIB, last).expect("room");
        assert_eq!(first, Grant { bytes: 20 * MIB, is_at_once: true });
        let second = waiting[98].grant(40 * MIB, last).expect("room for a part");
        assert_eq!((second.bytes, answers.bytes()), (28 * MIB, 64 * MIB));
        assert_eq!(waiting[97].grant(1, last), Err(Full::Client));
        assert_eq!(waiting[98].grant(29 * MIB, second), Err(Full::Client), "one message that does not fit");
        assert_eq!(answers.bytes(), 36 * MIB, "who is refused holds nothing");
        assert_eq!(waiting[99].grant(0, first), Ok(last), "it waits, and others have taken what waiting ones may");
        assert_eq!(answers.bytes(), 16 * MIB);
        drop(waiting);
        assert_eq!(answers.bytes(), 0);
    }
}
