//! How a call can fail, told by its consequence.

use std::time::Duration;

/// Why a call gave no response message. Results of the service itself (a topic that does not exist)
/// are no errors here: they stand in the response's status.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The request message never left this process (connection refused, unreachable, no time left
    /// while connecting): it surely was not executed and may be sent elsewhere at once.
    #[error("not sent: {0}")]
    Refused(String),
    /// The connection broke after the request had gone out: it may or may not have been executed.
    #[error("connection broke, the outcome is unknown: {0}")]
    Broken(String),
    /// No answer within this time: the request may or may not have been executed.
    #[error("no answer within {} ms, the outcome is unknown", .0.as_millis())]
    Timeout(Duration),
    /// The other end answered with this gRPC status code (not a code of `apache.rocketmq.v2`).
    #[error("answered with gRPC status {code}: {message}")]
    Status {
        /// Number of the gRPC status code, e.g. 12 for UNIMPLEMENTED.
        code: i32,
        /// The other end's text.
        message: String,
    },
}

impl CallError {
    /// True if the call surely was not executed.
    pub fn is_refused(&self) -> bool {
        matches!(self, CallError::Refused(_))
    }

    /// True if nobody can tell whether the call was executed.
    pub fn is_unknown(&self) -> bool {
        matches!(self, CallError::Broken(_) | CallError::Timeout(_))
    }
}
