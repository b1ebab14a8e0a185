//! The one table of result codes: how to make a status, which code an error has, and what a code
//! means to the caller.

use flotilla_message::{MessageError, NameError, NameKind, UnknownValue};

use crate::v2;

pub use v2::Code;

/// A status of `code` with a text for humans.
pub fn status(code: Code, message: impl Into<String>) -> v2::Status {
    v2::Status { code: code as i32, message: message.into() }
}

/// Success.
pub fn ok() -> v2::Status {
    status(Code::Ok, "ok")
}

/// NOT_IMPLEMENTED, naming the call.
pub fn not_implemented(rpc: &str) -> v2::Status {
    status(Code::NotImplemented, format!("{rpc} is not implemented by this server"))
}

/// True if there is a status and it says OK.
pub fn is_ok(status: Option<&v2::Status>) -> bool {
    status.is_some_and(|status| status.code == Code::Ok as i32)
}

/// An error that has a result code; its text is the status's text.
pub trait Coded: std::fmt::Display {
    /// The code that clients get.
    fn code(&self) -> Code;

    /// The whole status.
    fn status(&self) -> v2::Status {
        status(self.code(), self.to_string())
    }
}

impl Coded for NameError {
    fn code(&self) -> Code {
        let kind = match self {
            NameError::Empty { kind, .. }
            | NameError::TooLong { kind, .. }
            | NameError::IllegalCharacter { kind, .. } => *kind,
        };
        match kind {
            NameKind::Topic => Code::IllegalTopic,
            NameKind::Group => Code::IllegalConsumerGroup,
            NameKind::MessageId => Code::IllegalMessageId,
            NameKind::ClientId if matches!(self, NameError::Empty { .. }) => Code::ClientIdRequired,
            NameKind::ClientId => Code::BadRequest,
        }
    }
}

impl Coded for MessageError {
    fn code(&self) -> Code {
        match self {
            MessageError::BodyEmpty => Code::MessageBodyEmpty,
            MessageError::BodyTooLarge { .. } => Code::MessageBodyTooLarge,
            MessageError::TooManyProperties { .. } | MessageError::PropertiesTooLarge { .. } => {
                Code::MessagePropertiesTooLarge
            }
            MessageError::IllegalPropertyKey { .. } | MessageError::IllegalPropertyValue { .. } => {
                Code::IllegalMessagePropertyKey
            }
            MessageError::IllegalTag { .. } | MessageError::TagTooLong { .. } => Code::IllegalMessageTag,
            MessageError::TooManyKeys { .. } | MessageError::IllegalKey { .. } | MessageError::KeyTooLong { .. } => {
                Code::IllegalMessageKey
            }
            MessageError::IllegalMessageGroup { .. }
            | MessageError::MessageGroupTooLong { .. }
            | MessageError::MessageGroupMissing => Code::IllegalMessageGroup,
            MessageError::DeliveryTimeMissing => Code::IllegalDeliveryTime,
            MessageError::TraceContextTooLong { .. } | MessageError::BornHostTooLong { .. } => Code::BadRequest,
        }
    }
}

impl Coded for UnknownValue {
    fn code(&self) -> Code {
        Code::BadRequest
    }
}

/// What a code means to the caller of a call that changes something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consequence {
    /// It was done.
    Done,
    /// Each entry of the response has its own status.
    SeeEntries,
    /// It was not done, for a reason that passes: try again, here or elsewhere.
    NotDone,
    /// It may or may not have been done.
    Unknown,
    /// It was not done and never will be as it stands.
    Rejected,
}

/// The consequence of a code as it stands in a status; codes we do not know are judged by their class.
pub fn consequence(code: i32) -> Consequence {
    match Code::try_from(code) {
        Ok(Code::Ok) => Consequence::Done,
        Ok(Code::MultipleResults) => Consequence::SeeEntries,
        Ok(Code::TooManyRequests | Code::HaNotAvailable) => Consequence::NotDone,
        // The write itself may be there: only its confirmation did not come in time.
        Ok(
            Code::RequestTimeout
            | Code::ProxyTimeout
            | Code::MasterPersistenceTimeout
            | Code::SlavePersistenceTimeout
            | Code::InternalError
            | Code::InternalServerError
            | Code::Unspecified,
        ) => Consequence::Unknown,
        Ok(
            Code::BadRequest
            | Code::IllegalAccessPoint
            | Code::IllegalTopic
            | Code::IllegalConsumerGroup
            | Code::IllegalMessageTag
            | Code::IllegalMessageKey
            | Code::IllegalMessageGroup
            | Code::IllegalMessagePropertyKey
            | Code::InvalidTransactionId
            | Code::IllegalMessageId
            | Code::IllegalFilterExpression
            | Code::IllegalInvisibleTime
            | Code::IllegalDeliveryTime
            | Code::InvalidReceiptHandle
            | Code::MessagePropertyConflictWithType
            | Code::UnrecognizedClientType
            | Code::MessageCorrupted
            | Code::ClientIdRequired
            | Code::IllegalPollingTime
            | Code::IllegalOffset
            | Code::IllegalLiteTopic
            | Code::InvalidClientProperties
            | Code::Unauthorized
            | Code::PaymentRequired
            | Code::Forbidden
            | Code::NotFound
            | Code::MessageNotFound
            | Code::TopicNotFound
            | Code::ConsumerGroupNotFound
            | Code::OffsetNotFound
            | Code::PayloadTooLarge
            | Code::MessageBodyTooLarge
            | Code::MessageBodyEmpty
            | Code::PreconditionFailed
            | Code::LiteTopicQuotaExceeded
            | Code::LiteSubscriptionQuotaExceeded
            | Code::RequestHeaderFieldsTooLarge
            | Code::MessagePropertiesTooLarge
            | Code::NotImplemented
            | Code::Unsupported
            | Code::VersionUnsupported
            | Code::VerifyFifoMessageUnsupported
            | Code::FailedToConsumeMessage,
        ) => Consequence::Rejected,
        Err(_) if (20_000..30_000).contains(&code) => Consequence::Done,
        Err(_) if (40_000..50_000).contains(&code) => Consequence::Rejected,
        Err(_) => Consequence::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flotilla_message::{ClientId, GroupName, TopicName};

    #[test]
    fn an_illegal_name_is_told_with_its_value_and_code() {
        let error = TopicName::try_from("no spaces").unwrap_err();
        let status = error.status();
        assert_eq!(status.code, Code::IllegalTopic as i32);
        assert!(status.message.contains("no spaces"), "{}", status.message);
        assert_eq!(GroupName::try_from("").unwrap_err().code(), Code::IllegalConsumerGroup);
        assert_eq!(ClientId::try_from("").unwrap_err().code(), Code::ClientIdRequired);
        assert_eq!(ClientId::try_from("ü").unwrap_err().code(), Code::BadRequest);
    }

    #[test]
    fn a_message_over_a_limit_has_the_code_of_that_limit() {
        let too_large = MessageError::BodyTooLarge { bytes: 5, limit: 4 };
        assert_eq!(too_large.code(), Code::MessageBodyTooLarge);
        assert_eq!(MessageError::BodyEmpty.code(), Code::MessageBodyEmpty);
        assert_eq!(MessageError::PropertiesTooLarge { bytes: 2, limit: 1 }.code(), Code::MessagePropertiesTooLarge);
    }

    #[test]
    fn only_a_surely_undone_call_may_be_taken_for_undone() {
        assert_eq!(consequence(Code::Ok as i32), Consequence::Done);
        assert_eq!(consequence(Code::HaNotAvailable as i32), Consequence::NotDone);
        assert_eq!(consequence(Code::SlavePersistenceTimeout as i32), Consequence::Unknown);
        assert_eq!(consequence(Code::TopicNotFound as i32), Consequence::Rejected);
        assert_eq!(consequence(40_099), Consequence::Rejected);
        assert_eq!(consequence(50_099), Consequence::Unknown);
        assert_eq!(consequence(0), Consequence::Unknown);
    }
}
