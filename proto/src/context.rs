//! What a service knows about a call besides its message: who calls, and until when.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use flotilla_runtime::Instant;

use crate::metadata;

/// Time a unary call gets whose caller named none.
pub const UNARY_TIMEOUT: Duration = Duration::from_secs(3);

/// Who calls, and until when an answer is of use.
#[derive(Clone)]
pub struct CallContext {
    /// When the caller stops waiting. An answer must be on its way well before.
    pub deadline: Instant,
    /// The client's own id, if it told one.
    pub client_id: Option<String>,
    /// The language of the client's library in its own spelling, empty if untold.
    pub language: String,
    /// The transport's description of the client, empty if untold.
    pub user_agent: String,
    /// Namespace of the call's resources, empty if there is none.
    pub namespace: String,
    /// Address of the other end of the socket; empty for calls inside a process.
    pub remote: String,
    /// All `x-…` metadata and the credentials of the call. Names are lower case.
    pub metadata: BTreeMap<String, String>,
}

impl CallContext {
    /// The context of a call that came with `metadata` from `remote`.
    pub fn new(deadline: Instant, remote: String, metadata: BTreeMap<String, String>) -> CallContext {
        let text = |name: &str| metadata.get(name).cloned().unwrap_or_default();
        CallContext {
            deadline,
            client_id: metadata.get(metadata::CLIENT_ID).filter(|id| !id.is_empty()).cloned(),
            language: text(metadata::LANGUAGE),
            user_agent: text(metadata::USER_AGENT),
            namespace: text(metadata::NAMESPACE),
            remote,
            metadata,
        }
    }
}

impl fmt::Debug for CallContext {
    /// Leaves the metadata out: it may hold credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallContext")
            .field("deadline", &self.deadline)
            .field("client_id", &self.client_id)
            .field("language", &self.language)
            .field("remote", &self.remote)
            .finish_non_exhaustive()
    }
}

/// Reads the value of a `grpc-timeout` header: at most eight digits and a unit (`H`, `M`, `S`, `m`,
/// `u`, `n`). `None` if it is malformed, which counts as absent.
pub fn parse_grpc_timeout(text: &str) -> Option<Duration> {
    let unit = text.bytes().next_back()?;
    let digits = text.get(..text.len() - 1)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    match unit {
        b'H' => Some(Duration::from_secs(count * 3600)),
        b'M' => Some(Duration::from_secs(count * 60)),
        b'S' => Some(Duration::from_secs(count)),
        b'm' => Some(Duration::from_millis(count)),
        b'u' => Some(Duration::from_micros(count)),
        b'n' => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_unit_of_grpc_timeout_is_read() {
        for (text, duration) in [
            ("2H", Duration::from_secs(7200)),
            ("3M", Duration::from_secs(180)),
            ("42S", Duration::from_secs(42)),
            ("1500m", Duration::from_millis(1500)),
            ("82u", Duration::from_micros(82)),
            ("99999999n", Duration::from_nanos(99_999_999)),
            ("31536000S", Duration::from_secs(31_536_000)),
            ("0S", Duration::ZERO),
        ] {
            assert_eq!(parse_grpc_timeout(text), Some(duration), "{text}");
        }
    }

    #[test]
    fn a_malformed_grpc_timeout_counts_as_absent() {
        for text in ["", "S", "5", "123456789S", "-1S", "+1S", "1.5S", "5s", "1 S", "5Š"] {
            assert_eq!(parse_grpc_timeout(text), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_timeout_parser_panic(text in ".{0,12}") {
            let _ = parse_grpc_timeout(&text);
        }
    }

    #[test]
    fn the_context_finds_its_fields_in_the_metadata() {
        let metadata = BTreeMap::from([
            ("x-mq-client-id".to_owned(), "host@7@1".to_owned()),
            ("x-mq-language".to_owned(), "PYTHON".to_owned()),
        ]);
        let context = CallContext::new(Instant::from_nanos(9), "10.0.0.1:5".to_owned(), metadata);
        assert_eq!(context.client_id.as_deref(), Some("host@7@1"));
        assert_eq!(context.language, "PYTHON");
        assert_eq!(context.namespace, "");
    }
}
