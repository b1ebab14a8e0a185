//! The one retry loop: asks a group's replicas in turn until one serves, the call is refused for good, or
//! the deadline passes; and keeps account of whether it may have been executed.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use flotilla_proto::client::CallError;
use flotilla_runtime::{Instant, Runtime};

use crate::failure::{Rejection, Setback, SetbackKind, Verdict, judge_error};
use crate::replicas::Replicas;

/// Shortest pause before all replicas are asked again, milliseconds, and how much is left to chance.
const PAUSE_MS_MIN: u64 = 10;
const PAUSE_SPREAD_MS: u64 = 15;
/// A pause grows with the time for which the call has failed, to this share of it: what comes back is found soon, and what
/// stays away is not stormed.
const PAUSE_SHARE: u32 = 16;
/// Longest pause.
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// An attempt is not begun with less time than this.
const ATTEMPT_MIN: Duration = Duration::from_millis(2);
/// How much longer than its time-out an attempt is waited for, should the transport not keep to it.
const TRANSPORT_SLACK: Duration = Duration::from_millis(50);

/// How one call is repeated.
pub(crate) struct Failover<'a> {
    pub(crate) runtime: &'a Runtime,
    pub(crate) replicas: &'a Replicas,
    /// When the caller gives up.
    pub(crate) deadline: Instant,
    /// Time of one attempt when there is no other replica to ask.
    pub(crate) request_timeout: Duration,
    /// Time of one attempt when there is.
    pub(crate) attempt_timeout: Duration,
    /// Called after a setback that a newer route might help with.
    pub(crate) want_route: &'a (dyn Fn() + Send + Sync),
    /// The call may be answered by any replica, and this says which is asked first.
    pub(crate) reads: Option<u64>,
}

/// What the last attempt at each address ended with: one replica says why nobody serves where the others are only silent.
#[derive(Default)]
struct Setbacks {
    by_address: BTreeMap<String, String>,
}

impl Setbacks {
    fn told(&self) -> String {
        if self.by_address.is_empty() {
            return "no replica is known".to_owned();
        }
        let told: Vec<String> =
            self.by_address.iter().map(|(address, reason)| format!("{address}: {reason}")).collect();
        told.join("; ")
    }
}

/// A call that came through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Served<T> {
    pub(crate) value: T,
    pub(crate) attempts: u32,
}

/// A call that did not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CallFailure {
    /// Refused for good, and no attempt before left it open whether it was executed.
    Rejected(Rejection),
    /// No attempt was executed.
    NotExecuted { attempts: u32, reason: String },
    /// Some attempt may have been executed. `rejection` is set if a later one was refused for good.
    Unknown { attempts: u32, reason: String, rejection: Option<Rejection> },
}

impl Failover<'_> {
    /// Runs `attempt(address, timeout)` until it is done.
    pub(crate) async fn run<T, F, Fut>(&self, mut attempt: F) -> Result<Served<T>, CallFailure>
    where
        F: FnMut(String, Duration) -> Fut,
        Fut: Future<Output = Result<Verdict<T>, CallError>>,
    {
        let (mut attempts, mut is_unknown) = (0u32, false);
        let mut setbacks = Setbacks::default();
        let mut tried = Vec::new();
        let began = self.runtime.now();
        loop {
            let now = self.runtime.now();
            if now + ATTEMPT_MIN > self.deadline {
                let reason = setbacks.told();
                return Err(if is_unknown {
                    CallFailure::Unknown { attempts, reason, rejection: None }
                } else {
                    CallFailure::NotExecuted { attempts, reason }
                });
            }
            let next = match self.reads {
                Some(turn) => self.replicas.next_reader(&tried, turn, now),
                None => self.replicas.next(&tried, now),
            };
            let Some(address) = next else {
                tried.clear();
                (self.want_route)();
                self.pause(began).await;
                continue;
            };
            tried.push(address.clone());
            let most = if self.replicas.count() > 1 { self.attempt_timeout } else { self.request_timeout };
            let timeout = most.min(self.deadline - now);
            attempts = attempts.saturating_add(1);
            let answer = self.runtime.timeout(timeout + TRANSPORT_SLACK, attempt(address.clone(), timeout)).await;
            let verdict = match answer {
                Ok(Ok(verdict)) => verdict,
                Ok(Err(error)) => judge_error(&error),
                Err(_) => judge_error(&CallError::Timeout(timeout)),
            };
            let setback = match verdict {
                Verdict::Done(value) => {
                    self.answered(&address);
                    return Ok(Served { value, attempts });
                }
                Verdict::Rejected(rejection) => {
                    self.answered(&address);
                    if is_unknown {
                        let reason = format!("{}; then rejected: {}", setbacks.told(), rejection.message);
                        return Err(CallFailure::Unknown { attempts, reason, rejection: Some(rejection) });
                    }
                    return Err(CallFailure::Rejected(rejection));
                }
                Verdict::Retry(setback) => setback,
            };
            let kind = setback.kind;
            is_unknown |= kind.is_unknown();
            setbacks.by_address.insert(address.clone(), setback.reason.clone());
            self.take_setback(&address, setback);
            if kind.wants_pause() {
                self.pause(began).await;
            }
        }
    }

    fn answered(&self, address: &str) {
        match self.reads {
            Some(_) => self.replicas.was_read(address),
            None => self.replicas.answered(address),
        }
    }

    fn take_setback(&self, address: &str, setback: Setback) {
        match setback.kind {
            kind if self.reads.is_some() => {
                self.replicas.was_not_read(address, kind == SetbackKind::TimedOut, self.runtime.now());
            }
            SetbackKind::TimedOut => self.replicas.timed_out(address, self.runtime.now()),
            SetbackKind::Refused | SetbackKind::Broken | SetbackKind::NotDone | SetbackKind::Unsure => {
                self.replicas.failed(address);
            }
        }
        (self.want_route)();
        tracing::debug!(address, kind = ?setback.kind, reason = setback.reason, "attempt failed");
    }

    /// Pauses in a call that began then.
    async fn pause(&self, began: Instant) {
        let now = self.runtime.now();
        let shortest = Duration::from_millis(PAUSE_MS_MIN + self.runtime.random_below(PAUSE_SPREAD_MS + 1));
        let pause = shortest.max(((now - began) / PAUSE_SHARE).min(PAUSE_MAX));
        self.runtime.sleep(pause.min(self.deadline - now)).await;
    }
}
