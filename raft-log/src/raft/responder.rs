//! The way a proposal's outcome gets back to its proposer.

use openraft::OptionalSend;
use openraft::raft::responder::Responder;
use tokio::sync::oneshot;

use super::type_config::TypeConfig;

/// A one-shot answer. Dropped without one, the outcome is unknown.
pub(crate) struct ReplyTo<T>(oneshot::Sender<T>);

impl<T> ReplyTo<T> {
    pub(crate) fn pair() -> (ReplyTo<T>, oneshot::Receiver<T>) {
        let (send, receive) = oneshot::channel();
        (ReplyTo(send), receive)
    }
}

impl<T: OptionalSend + 'static> Responder<TypeConfig, T> for ReplyTo<T> {
    fn on_complete(self, result: T) {
        // The proposer may have given up waiting.
        let _ = self.0.send(result);
    }
}
