//! Names and ids that exist only if they are legal.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use crate::limits;

/// Which kind of name a [`NameError`] speaks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameKind {
    /// A topic.
    Topic,
    /// A consumer group.
    Group,
    /// A message id.
    MessageId,
    /// A client id.
    ClientId,
}

impl NameKind {
    fn bytes_max(self) -> usize {
        match self {
            NameKind::Topic => limits::TOPIC_NAME_BYTES_MAX,
            NameKind::Group => limits::GROUP_NAME_BYTES_MAX,
            NameKind::MessageId => limits::MESSAGE_ID_BYTES_MAX,
            NameKind::ClientId => limits::CLIENT_ID_BYTES_MAX,
        }
    }

    fn allowed(self) -> &'static str {
        match self {
            NameKind::Topic | NameKind::Group => "letters, digits, '%', '|', '_' and '-'",
            NameKind::MessageId | NameKind::ClientId => "visible ASCII characters",
        }
    }

    fn allows(self, c: char) -> bool {
        match self {
            NameKind::Topic | NameKind::Group => c.is_ascii_alphanumeric() || matches!(c, '%' | '|' | '_' | '-'),
            NameKind::MessageId | NameKind::ClientId => c.is_ascii_graphic(),
        }
    }

    fn check(self, value: &str) -> Result<(), NameError> {
        if value.is_empty() {
            return Err(NameError::Empty { kind: self, limit: self.bytes_max() });
        }
        if value.len() > self.bytes_max() {
            return Err(NameError::TooLong {
                kind: self,
                value: shown(value),
                bytes: value.len(),
                limit: self.bytes_max(),
            });
        }
        match value.char_indices().find(|(_, c)| !self.allows(*c)) {
            None => Ok(()),
            Some((position, character)) => {
                Err(NameError::IllegalCharacter { kind: self, value: shown(value), character, position })
            }
        }
    }
}

impl fmt::Display for NameKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NameKind::Topic => "topic name",
            NameKind::Group => "group name",
            NameKind::MessageId => "message id",
            NameKind::ClientId => "client id",
        })
    }
}

/// Why a text is not a legal name; each message names the value and what is allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The text has no characters.
    #[error("{kind} is empty; 1 to {limit} bytes are allowed")]
    Empty {
        /// What was to be named.
        kind: NameKind,
        /// Most bytes allowed.
        limit: usize,
    },
    /// The text is too long.
    #[error("{kind} '{value}' has {bytes} bytes; at most {limit} are allowed")]
    TooLong {
        /// What was to be named.
        kind: NameKind,
        /// The text, shortened when it is very long.
        value: String,
        /// Its length, bytes.
        bytes: usize,
        /// Most bytes allowed.
        limit: usize,
    },
    /// The text holds a character outside the alphabet.
    #[error("{kind} '{value}' has the character {character:?} at byte {position}; only {} are allowed", .kind.allowed())]
    IllegalCharacter {
        /// What was to be named.
        kind: NameKind,
        /// The text, shortened when it is very long.
        value: String,
        /// The first character that is not allowed.
        character: char,
        /// Where it stands, bytes from the start.
        position: usize,
    },
}

/// Longest part of an illegal value that an error repeats, characters.
const SHOWN_CHARACTERS_MAX: usize = 160;

fn shown(value: &str) -> String {
    if value.chars().count() <= SHOWN_CHARACTERS_MAX {
        return value.escape_debug().to_string();
    }
    let head: String = value.chars().take(SHOWN_CHARACTERS_MAX).collect();
    format!("{}...", head.escape_debug())
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident, $kind:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// Whether `value` would be accepted.
            ///
            /// # Errors
            /// What is wrong with it, with the value and the limit.
            pub fn check(value: &str) -> Result<(), NameError> {
                $kind.check(value)
            }
        }

        impl TryFrom<&str> for $name {
            type Error = NameError;

            fn try_from(value: &str) -> Result<$name, NameError> {
                $kind.check(value)?;
                Ok($name(Arc::from(value)))
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;

            fn try_from(value: String) -> Result<$name, NameError> {
                $kind.check(&value)?;
                Ok($name(Arc::from(value)))
            }
        }

        impl std::str::FromStr for $name {
            type Err = NameError;

            fn from_str(value: &str) -> Result<$name, NameError> {
                $name::try_from(value)
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<$name, D::Error> {
                let value = String::deserialize(deserializer)?;
                $name::try_from(value).map_err(serde::de::Error::custom)
            }
        }
    };
}

name_type!(
    /// The name of a topic: 1 to 127 bytes of RocketMQ's alphabet `[%|a-zA-Z0-9_-]`.
    TopicName,
    NameKind::Topic
);
name_type!(
    /// The name of a consumer group: RocketMQ's alphabet, 1 to 120 bytes, so that the topics
    /// derived from it are legal too.
    GroupName,
    NameKind::Group
);
name_type!(
    /// A message's id as its producer chose it: 1 to 255 bytes of visible ASCII.
    MessageId,
    NameKind::MessageId
);
name_type!(
    /// A client's id as it calls itself: 1 to 255 bytes of visible ASCII.
    ClientId,
    NameKind::ClientId
);

const DEAD_LETTER_PREFIX: &str = "%DLQ%";
const RETRY_PREFIX: &str = "%RETRY%";
const SYSTEM_PREFIX: &str = "rmq_sys_";

/// Names that RocketMQ keeps for itself, sorted.
const SYSTEM_TOPICS: [&str; 10] = [
    "BenchmarkTest",
    "OFFSET_MOVED_EVENT",
    "RMQ_SYS_TRACE_TOPIC",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "SCHEDULE_TOPIC_XXXX",
    "SELF_TEST_TOPIC",
    "TBW102",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "rmq_sys_wheel_timer",
];

impl TopicName {
    /// The topic that takes what `group` could not consume: `%DLQ%group`.
    pub fn dead_letter(group: &GroupName) -> TopicName {
        // Legal by construction: same alphabet, and the limits leave room for the prefix.
        TopicName(Arc::from(format!("{DEAD_LETTER_PREFIX}{group}")))
    }

    /// Whether users may neither create nor write this topic: RocketMQ's own names.
    pub fn is_system(&self) -> bool {
        SYSTEM_TOPICS.binary_search(&self.as_str()).is_ok() || self.as_str().starts_with(SYSTEM_PREFIX)
    }

    /// Whether this is a group's dead-letter topic.
    pub fn is_dead_letter(&self) -> bool {
        self.as_str().starts_with(DEAD_LETTER_PREFIX)
    }

    /// Whether this is a group's retry topic (a name of the 4.x clients).
    pub fn is_retry(&self) -> bool {
        self.as_str().starts_with(RETRY_PREFIX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn legal_names_are_accepted_and_kept() {
        for value in ["a", "orders", "%DLQ%g", "A|b-c_9", &"x".repeat(127)] {
            assert_eq!(TopicName::try_from(value).unwrap().as_str(), value);
        }
        assert!(GroupName::try_from("g".repeat(120)).is_ok());
        assert!(MessageId::try_from("01ABCDEF#0;~!").is_ok());
    }

    #[test]
    fn an_illegal_name_is_refused_with_its_value_and_the_limit() {
        let error = |value: &str| TopicName::try_from(value).unwrap_err().to_string();
        assert_eq!(error(""), "topic name is empty; 1 to 127 bytes are allowed");
        assert_eq!(
            error(&"x".repeat(128)),
            format!("topic name '{}' has 128 bytes; at most 127 are allowed", "x".repeat(128))
        );
        assert_eq!(
            error("a b"),
            "topic name 'a b' has the character ' ' at byte 1; only letters, digits, '%', '|', '_' and '-' are allowed"
        );
        assert!(error("caf\u{e9}").contains("'\u{e9}' at byte 3"));
        assert!(error("a\nb").contains("'a\\nb'"));
        assert!(error(&"y".repeat(100_000)).len() < 400);
        assert!(GroupName::try_from("g".repeat(121)).is_err());
        assert!(MessageId::try_from("with space").is_err());
        assert!(MessageId::try_from("m".repeat(256)).is_err());
        assert!(ClientId::try_from("\u{1F980}").is_err());
    }

    #[test]
    fn the_longest_group_has_a_legal_dead_letter_topic() {
        let group = GroupName::try_from("g".repeat(limits::GROUP_NAME_BYTES_MAX)).unwrap();
        let topic = TopicName::dead_letter(&group);
        assert!(TopicName::check(topic.as_str()).is_ok());
        assert!(topic.is_dead_letter() && !topic.is_system() && !topic.is_retry());
    }

    #[test]
    fn system_topics_are_known() {
        assert!(SYSTEM_TOPICS.is_sorted());
        for name in ["TBW102", "rmq_sys_anything", "SCHEDULE_TOPIC_XXXX"] {
            assert!(TopicName::try_from(name).unwrap().is_system(), "{name}");
        }
        assert!(!TopicName::try_from("orders").unwrap().is_system());
    }
}
