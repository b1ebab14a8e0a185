//! What an answer or its absence means for a call: done, refused for good, or to be tried again, and
//! whether it may have been executed.

use flotilla_proto::client::CallError;
use flotilla_proto::status::{Code, Consequence, consequence};
use flotilla_proto::v2;

/// One attempt's result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict<T> {
    /// The call is done.
    Done(T),
    /// The call will never be done as it is.
    Rejected(Rejection),
    /// Another attempt may go through.
    Retry(Setback),
}

/// A final no.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rejection {
    pub(crate) code: i32,
    pub(crate) message: String,
}

impl Rejection {
    pub(crate) fn is(&self, code: Code) -> bool {
        self.code == code as i32
    }
}

/// An attempt that did not go through but need not be the last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Setback {
    pub(crate) kind: SetbackKind,
    pub(crate) reason: String,
}

/// What an attempt ran into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SetbackKind {
    /// Not sent: surely not executed; another replica can be asked at once.
    Refused,
    /// Answered that it was not done, for a reason that passes; worth a pause.
    NotDone,
    /// Answered that it may or may not have been done; worth a pause.
    Unsure,
    /// The connection broke: may have been executed; another replica can be asked at once.
    Broken,
    /// No answer: may have been executed; this replica is suspect.
    TimedOut,
}

impl SetbackKind {
    /// Whether the attempt may have been executed.
    pub(crate) fn is_unknown(self) -> bool {
        match self {
            SetbackKind::Refused | SetbackKind::NotDone => false,
            SetbackKind::Unsure | SetbackKind::Broken | SetbackKind::TimedOut => true,
        }
    }

    /// Whether the next attempt should wait a little.
    pub(crate) fn wants_pause(self) -> bool {
        match self {
            SetbackKind::NotDone | SetbackKind::Unsure => true,
            SetbackKind::Refused | SetbackKind::Broken | SetbackKind::TimedOut => false,
        }
    }
}

/// A code as people read it: number and name.
pub(crate) fn code_text(code: i32) -> String {
    match Code::try_from(code) {
        Ok(known) => format!("{code} {}", known.as_str_name()),
        Err(_) => code.to_string(),
    }
}

/// What a status means by the protocol's one table. None at all leaves it open what was done.
pub(crate) fn judge_status(status: Option<&v2::Status>) -> Verdict<()> {
    let Some(status) = status else {
        let reason = "the answer has no status".to_owned();
        return Verdict::Retry(Setback { kind: SetbackKind::Unsure, reason });
    };
    let setback = |kind| {
        let reason = format!("answered {}: {}", code_text(status.code), status.message);
        Verdict::Retry(Setback { kind, reason })
    };
    match consequence(status.code) {
        Consequence::Done => Verdict::Done(()),
        Consequence::NotDone => setback(SetbackKind::NotDone),
        // An entry's own status is judged where there is one.
        Consequence::Unknown | Consequence::SeeEntries => setback(SetbackKind::Unsure),
        Consequence::Rejected => Verdict::Rejected(Rejection { code: status.code, message: status.message.clone() }),
    }
}

/// What the lack of an answer means.
pub(crate) fn judge_error<T>(error: &CallError) -> Verdict<T> {
    let kind = match error {
        CallError::Refused(_) => SetbackKind::Refused,
        CallError::Broken(_) => SetbackKind::Broken,
        CallError::Timeout(_) => SetbackKind::TimedOut,
        CallError::Status { code, message } => {
            let rejected = |code: Code| Verdict::Rejected(Rejection { code: code as i32, message: message.clone() });
            match code {
                3 | 9 | 11 => return rejected(Code::BadRequest),
                5 => return rejected(Code::NotFound),
                7 => return rejected(Code::Forbidden),
                12 => return rejected(Code::NotImplemented),
                16 => return rejected(Code::Unauthorized),
                _ => SetbackKind::Unsure,
            }
        }
    };
    Verdict::Retry(Setback { kind, reason: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn kind_of(code: Code) -> Option<SetbackKind> {
        match judge_status(Some(&flotilla_proto::status::status(code, "x"))) {
            Verdict::Retry(setback) => Some(setback.kind),
            Verdict::Done(()) | Verdict::Rejected(_) => None,
        }
    }

    #[test]
    fn a_code_tells_whether_the_call_may_have_been_executed() {
        for code in [Code::TooManyRequests, Code::HaNotAvailable] {
            assert_eq!(kind_of(code), Some(SetbackKind::NotDone), "{code:?}");
        }
        for code in [Code::InternalServerError, Code::ProxyTimeout, Code::MasterPersistenceTimeout] {
            assert!(kind_of(code).is_some_and(SetbackKind::is_unknown), "{code:?}");
        }
        for code in [Code::BadRequest, Code::TopicNotFound, Code::Forbidden, Code::NotImplemented] {
            assert_eq!(kind_of(code), None, "{code:?} is final");
        }
    }

    #[test]
    fn errors_tell_whether_the_call_may_have_been_executed() {
        let kind = |error: CallError| match judge_error::<()>(&error) {
            Verdict::Retry(setback) => Some(setback.kind),
            Verdict::Done(()) | Verdict::Rejected(_) => None,
        };
        assert_eq!(kind(CallError::Refused("x".into())), Some(SetbackKind::Refused));
        assert_eq!(kind(CallError::Broken("x".into())), Some(SetbackKind::Broken));
        assert_eq!(kind(CallError::Timeout(Duration::from_secs(1))), Some(SetbackKind::TimedOut));
        assert_eq!(kind(CallError::Status { code: 14, message: "x".into() }), Some(SetbackKind::Unsure));
        assert_eq!(kind(CallError::Status { code: 12, message: "x".into() }), None);
    }
}
