//! A watch channel that wakes its receivers in the order in which they came: tokio's picks at random, and a simulated
//! run could not be repeated.

use std::collections::VecDeque;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::task::{Context, Poll, Waker};

use openraft_rt::watch::{RecvError, SendError, Watch, WatchReceiver, WatchSender};
use openraft_rt::{OptionalSend, OptionalSync};

/// The channel family, for openraft.
pub(crate) struct FifoWatch;

/// The newest value and who waits for the next one.
struct Shared<T> {
    value: RwLock<T>,
    /// Counts changes. Written only under the value's write lock, so that a reader who holds the value knows its version.
    version: AtomicU64,
    senders: AtomicUsize,
    receivers: AtomicUsize,
    next_receiver: AtomicU64,
    /// One waker per waiting receiver, in the order of their coming.
    waiting: Mutex<VecDeque<(u64, Waker)>>,
}

impl<T> Shared<T> {
    fn wake_all(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        waiting.into_iter().for_each(|(_, waker)| waker.wake());
    }

    fn value(&self) -> RwLockReadGuard<'_, T> {
        self.value.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget(&self, receiver: u64) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).retain(|(waiting, _)| *waiting != receiver);
    }

    fn receiver(self: &Arc<Self>, seen: u64) -> FifoWatchReceiver<T> {
        self.receivers.fetch_add(1, Ordering::Relaxed);
        let id = self.next_receiver.fetch_add(1, Ordering::Relaxed);
        FifoWatchReceiver { shared: self.clone(), id, seen }
    }
}

/// The sending side; the channel closes with its last clone.
pub(crate) struct FifoWatchSender<T> {
    shared: Arc<Shared<T>>,
}

/// A receiving side, with its own idea of what it has seen.
pub(crate) struct FifoWatchReceiver<T> {
    shared: Arc<Shared<T>>,
    id: u64,
    seen: u64,
}

/// A look at the value; holds up senders, so be brief.
pub(crate) struct FifoRef<'a, T>(RwLockReadGuard<'a, T>);

impl<T> Deref for FifoRef<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl Watch for FifoWatch {
    type Sender<T: OptionalSend + OptionalSync> = FifoWatchSender<T>;
    type Receiver<T: OptionalSend + OptionalSync> = FifoWatchReceiver<T>;
    type Ref<'a, T: OptionalSend + 'a> = FifoRef<'a, T>;

    fn channel<T: OptionalSend + OptionalSync>(init: T) -> (FifoWatchSender<T>, FifoWatchReceiver<T>) {
        let shared = Arc::new(Shared {
            value: RwLock::new(init),
            version: AtomicU64::new(0),
            senders: AtomicUsize::new(1),
            receivers: AtomicUsize::new(0),
            next_receiver: AtomicU64::new(0),
            waiting: Mutex::default(),
        });
        let receiver = shared.receiver(0);
        (FifoWatchSender { shared }, receiver)
    }
}

impl<T> Clone for FifoWatchSender<T> {
    fn clone(&self) -> Self {
        self.shared.senders.fetch_add(1, Ordering::Relaxed);
        FifoWatchSender { shared: self.shared.clone() }
    }
}

impl<T> Drop for FifoWatchSender<T> {
    fn drop(&mut self) {
        if self.shared.senders.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.shared.wake_all();
        }
    }
}

impl<T: OptionalSend + OptionalSync> WatchSender<FifoWatch, T> for FifoWatchSender<T> {
    fn send(&self, value: T) -> Result<(), SendError<T>> {
        if self.shared.receivers.load(Ordering::Acquire) == 0 {
            return Err(SendError(value));
        }
        self.send_if_modified(|current| {
            *current = value;
            true
        });
        Ok(())
    }

    fn send_if_modified<F>(&self, modify: F) -> bool
    where
        F: FnOnce(&mut T) -> bool,
    {
        let mut value = self.shared.value.write().unwrap_or_else(PoisonError::into_inner);
        let modified = modify(&mut value);
        if modified {
            self.shared.version.fetch_add(1, Ordering::AcqRel);
        }
        drop(value);
        if modified {
            self.shared.wake_all();
        }
        modified
    }

    fn borrow_watched(&self) -> FifoRef<'_, T> {
        FifoRef(self.shared.value())
    }

    fn subscribe(&self) -> FifoWatchReceiver<T> {
        let _value = self.shared.value();
        self.shared.receiver(self.shared.version.load(Ordering::Acquire))
    }
}

impl<T> Clone for FifoWatchReceiver<T> {
    fn clone(&self) -> Self {
        self.shared.receiver(self.seen)
    }
}

impl<T> Drop for FifoWatchReceiver<T> {
    fn drop(&mut self) {
        self.shared.forget(self.id);
        self.shared.receivers.fetch_sub(1, Ordering::AcqRel);
    }
}

impl<T> FifoWatchReceiver<T> {
    fn poll_changed(&mut self, context: &mut Context<'_>) -> Poll<Result<(), RecvError>> {
        // Registered before the look, so that a change in between wakes.
        let mut waiting = self.shared.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let version = self.shared.version.load(Ordering::Acquire);
        if version != self.seen {
            drop(waiting);
            self.shared.forget(self.id);
            self.seen = version;
            return Poll::Ready(Ok(()));
        }
        if self.shared.senders.load(Ordering::Acquire) == 0 {
            return Poll::Ready(Err(RecvError(())));
        }
        match waiting.iter_mut().find(|(id, _)| *id == self.id) {
            Some((_, waker)) => waker.clone_from(context.waker()),
            None => waiting.push_back((self.id, context.waker().clone())),
        }
        Poll::Pending
    }
}

/// Resolves at the next change.
struct Changed<'a, T>(&'a mut FifoWatchReceiver<T>);

impl<T> Future for Changed<'_, T> {
    type Output = Result<(), RecvError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll_changed(context)
    }
}

impl<T: OptionalSend + OptionalSync> WatchReceiver<FifoWatch, T> for FifoWatchReceiver<T> {
    async fn changed(&mut self) -> Result<(), RecvError> {
        Changed(self).await
    }

    fn borrow_watched(&self) -> FifoRef<'_, T> {
        FifoRef(self.shared.value())
    }

    fn borrow_and_update(&mut self) -> FifoRef<'_, T> {
        let value = self.shared.value();
        self.seen = self.shared.version.load(Ordering::Acquire);
        FifoRef(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receivers_wake_in_the_order_of_their_coming() {
        struct Note(usize, Arc<Mutex<Vec<usize>>>);
        impl std::task::Wake for Note {
            fn wake(self: Arc<Self>) {
                self.1.lock().unwrap().push(self.0);
            }
        }
        let woken = Arc::new(Mutex::new(Vec::new()));
        let (sender, first) = FifoWatch::channel(0);
        let mut receivers: Vec<_> = (0..20).map(|_| first.clone()).collect();
        for (number, receiver) in receivers.iter_mut().enumerate() {
            let waker = Waker::from(Arc::new(Note(number, woken.clone())));
            assert!(receiver.poll_changed(&mut Context::from_waker(&waker)).is_pending());
        }
        drop(receivers.remove(7));
        sender.send(1).unwrap();
        let expected: Vec<usize> = (0..20).filter(|number| *number != 7).collect();
        assert_eq!(*woken.lock().unwrap(), expected);
    }
}
