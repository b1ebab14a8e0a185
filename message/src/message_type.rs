//! The kinds of messages a topic takes, and what may be done with a topic.

use std::fmt;
use std::str::FromStr;

/// A number or word that names none of the values of an enum.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown {what} '{value}'; {allowed} are allowed")]
pub struct UnknownValue {
    /// What was to be named.
    pub what: &'static str,
    /// The value given.
    pub value: String,
    /// The values allowed, as words.
    pub allowed: &'static str,
}

/// What a topic's messages are; the numbers are those of `apache.rocketmq.v2`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum MessageType {
    /// No order between messages.
    Normal = 1,
    /// Ordered within a message group.
    Fifo = 2,
    /// Visible at a given time.
    Delay = 3,
    /// Visible once its transaction is committed.
    Transaction = 4,
}

impl MessageType {
    /// Every type, by number.
    pub const ALL: [MessageType; 4] =
        [MessageType::Normal, MessageType::Fifo, MessageType::Delay, MessageType::Transaction];

    /// The number of the type.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The type of a number; `None` when there is none.
    pub fn from_code(code: u8) -> Option<MessageType> {
        MessageType::ALL.into_iter().find(|t| t.code() == code)
    }
}

impl fmt::Display for MessageType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            MessageType::Normal => "NORMAL",
            MessageType::Fifo => "FIFO",
            MessageType::Delay => "DELAY",
            MessageType::Transaction => "TRANSACTION",
        })
    }
}

impl FromStr for MessageType {
    type Err = UnknownValue;

    /// Takes the words in any case.
    fn from_str(value: &str) -> Result<MessageType, UnknownValue> {
        MessageType::ALL.into_iter().find(|t| t.to_string().eq_ignore_ascii_case(value)).ok_or_else(|| UnknownValue {
            what: "message type",
            value: value.to_owned(),
            allowed: "NORMAL, FIFO, DELAY and TRANSACTION",
        })
    }
}

/// What may be done with a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Permission {
    /// Nothing.
    None = 1,
    /// Consume.
    Read = 2,
    /// Send.
    Write = 3,
    /// Both.
    ReadWrite = 4,
}

impl Permission {
    /// Every permission, by number.
    pub const ALL: [Permission; 4] = [Permission::None, Permission::Read, Permission::Write, Permission::ReadWrite];

    /// The number of the permission, as in `apache.rocketmq.v2`.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The permission of a number; `None` when there is none.
    pub fn from_code(code: u8) -> Option<Permission> {
        Permission::ALL.into_iter().find(|p| p.code() == code)
    }

    /// Whether messages may be consumed.
    pub fn is_readable(self) -> bool {
        matches!(self, Permission::Read | Permission::ReadWrite)
    }

    /// Whether messages may be sent.
    pub fn is_writable(self) -> bool {
        matches!(self, Permission::Write | Permission::ReadWrite)
    }
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Permission::None => "NONE",
            Permission::Read => "READ",
            Permission::Write => "WRITE",
            Permission::ReadWrite => "READ_WRITE",
        })
    }
}

impl FromStr for Permission {
    type Err = UnknownValue;

    /// Takes the words in any case.
    fn from_str(value: &str) -> Result<Permission, UnknownValue> {
        Permission::ALL.into_iter().find(|p| p.to_string().eq_ignore_ascii_case(value)).ok_or_else(|| UnknownValue {
            what: "permission",
            value: value.to_owned(),
            allowed: "NONE, READ, WRITE and READ_WRITE",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_numbers_lead_back_to_the_value() {
        for t in MessageType::ALL {
            assert_eq!(MessageType::from_code(t.code()), Some(t));
            assert_eq!(t.to_string().to_lowercase().parse(), Ok(t));
        }
        for p in Permission::ALL {
            assert_eq!(Permission::from_code(p.code()), Some(p));
            assert_eq!(p.to_string().parse(), Ok(p));
        }
        assert_eq!(MessageType::from_code(0), None);
        assert_eq!(
            "LITE".parse::<MessageType>().unwrap_err().to_string(),
            "unknown message type 'LITE'; NORMAL, FIFO, DELAY and TRANSACTION are allowed"
        );
    }
}
