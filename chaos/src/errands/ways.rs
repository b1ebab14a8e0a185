//! Calls to one replica each, as the SDK has them not: nothing is repeated, so an answer belongs to one call.

use std::sync::Arc;
use std::time::Duration;

use flotilla_checkers::EventKind;
use flotilla_proto::client::{AdminCalls, CallError, CallOptions, Connector, MessagingCalls};
use flotilla_proto::metadata;
use flotilla_proto::status::{Consequence, consequence};
use flotilla_proto::v2;
use flotilla_runtime::{BoxFuture, Runtime};

use crate::rng::Rng;

/// How long a call may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(3);

/// The replicas, by number.
pub(super) struct Ways {
    replicas: Vec<(Arc<dyn MessagingCalls>, Arc<dyn AdminCalls>)>,
    options: CallOptions,
    runtime: Runtime,
}

impl Ways {
    /// To the replicas that serve clients at these `host:port`s.
    pub(super) fn new(addresses: &[String], connector: &dyn Connector, client_id: &str, runtime: &Runtime) -> Ways {
        let replicas = addresses.iter().map(|at| (connector.messaging(at), connector.admin(at))).collect();
        let metadata = Arc::new(metadata::of_client(client_id, env!("CARGO_PKG_VERSION")));
        Ways { replicas, options: CallOptions::within(CALL_TIMEOUT).with_metadata(metadata), runtime: runtime.clone() }
    }

    /// Asks some replica once.
    pub(super) async fn ask<T>(
        &self,
        rng: &mut Rng,
        question: impl FnOnce(&dyn MessagingCalls, &dyn AdminCalls, CallOptions) -> BoxFuture<'static, Result<T, CallError>>,
    ) -> Result<T, CallError> {
        let (messaging, admin) = &self.replicas[rng.below(self.replicas.len() as u64) as usize];
        let asked = question(&**messaging, &**admin, self.options.clone());
        self.runtime.timeout(CALL_TIMEOUT, asked).await.unwrap_or(Err(CallError::Timeout(CALL_TIMEOUT)))
    }
}

/// What one call came to, by its status. A refusal says no more than that the last try of the replica that was asked did
/// nothing: one before it may have.
pub(super) fn outcome(status: Result<Option<&v2::Status>, &CallError>) -> EventKind {
    match status {
        Ok(status) => match status.map(|status| consequence(status.code)) {
            Some(Consequence::Done) => EventKind::Ok,
            Some(Consequence::NotDone) => EventKind::Fail,
            _ => EventKind::Unknown,
        },
        Err(error) if error.is_refused() => EventKind::Fail,
        Err(_) => EventKind::Unknown,
    }
}

/// A name as the protocol has it.
pub(super) fn resource(name: &str) -> v2::Resource {
    v2::Resource { name: name.to_owned(), ..Default::default() }
}

/// A message as the protocol has it.
pub(super) fn message(topic: &str, id: &str, message_type: v2::MessageType, body: bytes::Bytes) -> v2::Message {
    let system =
        v2::SystemProperties { message_id: id.to_owned(), message_type: message_type.into(), ..Default::default() };
    v2::Message { topic: Some(resource(topic)), system_properties: Some(system), body, ..Default::default() }
}

#[cfg(test)]
mod tests {
    use flotilla_proto::status::{Code, ok, status};

    use super::*;

    #[test]
    fn only_what_surely_was_not_done_is_said_not_to_be() {
        assert_eq!(outcome(Ok(Some(&ok()))), EventKind::Ok);
        assert_eq!(outcome(Ok(Some(&status(Code::HaNotAvailable, "")))), EventKind::Fail);
        for code in [Code::ProxyTimeout, Code::IllegalOffset, Code::InternalServerError] {
            assert_eq!(outcome(Ok(Some(&status(code, "")))), EventKind::Unknown);
        }
        assert_eq!(outcome(Ok(None)), EventKind::Unknown);
        assert_eq!(outcome(Err(&CallError::Refused(String::new()))), EventKind::Fail);
        assert_eq!(outcome(Err(&CallError::Broken(String::new()))), EventKind::Unknown);
    }
}
