//! Bytes of answers with messages that are made and that their clients' connections have not taken yet: bounded in all,
//! and of one client, so that who asks and does not read fills neither the memory nor the place of the others.
//!
//! An answer is counted where its client's connection is, from the moment that its messages are chosen until its stream
//! has been read to its end or is dropped. What the leader has made for a poll that another replica passed on is counted
//! there, when it comes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flotilla_proto::status::{Code, status};
use flotilla_proto::{CallContext, v2};

use super::quotas::client_name;
use crate::metrics::{Counters, Refused};

/// The smallest limit, of the replica and of a client: the largest answer and its largest message fit in any case, bytes.
pub const UNREAD_BYTES_MIN: u64 = 32 << 20;
/// One client may hold this part of the whole.
const CLIENTS_FULL: u64 = 8;
/// What an answer adds to a message as it is kept, at most: receipt handle, names, the structure in memory.
const MESSAGE_EXTRA_BYTES: u64 = 4 << 10;

tokio::task_local! {
    /// The answer that this call makes; none in calls that another replica passed on.
    static ANSWER: Arc<UnreadAnswer>;
}

/// What a replica holds.
#[derive(Debug)]
pub struct UnreadAnswers {
    held: Mutex<Held>,
    bytes_max: u64,
    client_bytes_max: u64,
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
        Arc::new(UnreadAnswers { held: Mutex::default(), bytes_max, client_bytes_max, counters })
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
    /// That of the call which is being executed, if its client's connection is here.
    pub fn current() -> Option<Arc<UnreadAnswer>> {
        ANSWER.try_with(Arc::clone).ok()
    }

    /// Executes a call whose answer this is.
    pub async fn of<F: Future>(self: &Arc<UnreadAnswer>, call: F) -> F::Output {
        ANSWER.scope(self.clone(), call).await
    }

    /// Takes room for a message of so many bytes as it is kept, before it is handed out.
    ///
    /// # Errors
    /// The limit that it would pass; nothing was taken.
    pub fn take(&self, message_bytes: u64) -> Result<(), Full> {
        self.grow(message_bytes + MESSAGE_EXTRA_BYTES)
    }

    fn grow(&self, bytes: u64) -> Result<(), Full> {
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

    fn of_client(&self, held: &Held) -> u64 {
        self.client.as_ref().and_then(|client| held.clients.get(client)).copied().unwrap_or(0)
    }

    fn set(&self, held: &mut Held, bytes: u64) {
        // Only under the lock.
        let before = self.bytes.swap(bytes, Ordering::Relaxed);
        held.bytes = held.bytes - before + bytes;
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
    use flotilla_runtime::Instant;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn open(answers: &Arc<UnreadAnswers>, remote: &str) -> Result<Arc<UnreadAnswer>, v2::Status> {
        answers.open(&CallContext::new(Instant::from_nanos(0), remote.to_owned(), BTreeMap::new()))
    }

    #[test]
    fn one_that_reads_nothing_has_its_part_and_the_others_have_theirs() {
        let answers = UnreadAnswers::new(512 * MIB, Arc::new(Counters::new(1)));
        let answer = open(&answers, "a").expect("room");
        answer.take(63 * MIB).expect("room");
        assert_eq!(answer.take(MIB), Err(Full::Client), "64 MiB, an eighth, with what a message brings along");
        let status = answer.refusal(Full::Client);
        assert_eq!(status.code, 42900);
        assert!(status.message.contains("client 'a' has answers of 66064384 bytes"), "{}", status.message);
        assert!(status.message.contains("67108864 are allowed"), "{}", status.message);
        open(&answers, "b").expect("another one").take(63 * MIB).expect("room");
        assert_eq!(answers.bytes(), 63 * MIB + MESSAGE_EXTRA_BYTES, "the other one's was dropped");
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
        first.take(31 * MIB).expect("at least the largest answer");
        let (second, nameless) = (open(&answers, "b").expect("room"), open(&answers, "").expect("room"));
        nameless.take(8 * MIB).expect("room");
        assert_eq!(second.take(MIB), Err(Full::Replica));
        assert!(second.refusal(Full::Replica).message.contains("41943040 are allowed"));
        nameless.settle(0);
        second.take(MIB).expect("room again");
        assert_eq!(answers.counters.refusals(Refused::UnreadFull), 1);
    }
}
