//! When a send is answered: how many copies there are by then, and whether they are on disk.

use std::fmt;
use std::str::FromStr;

use crate::UnknownValue;

/// Property by which a message asks for a higher [`AckLevel`] than its topic gives: `async`, `majority` or `sync`.
pub const ACK_PROPERTY: &str = "FLOTILLA_ACK";
/// Property by which a message asks for a higher [`FlushLevel`] than its topic gives: `sync` or `async`.
pub const FLUSH_PROPERTY: &str = "FLOTILLA_FLUSH";

/// How many replicas have a message when its send is answered; a later one is a stronger promise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AckLevel {
    /// The leader. What it has answered so may be lost when another replica takes over.
    Async = 1,
    /// A quorum: it is committed.
    #[default]
    Majority = 2,
    /// Every replica that keeps up, never fewer than a quorum nor fewer than two.
    Sync = 3,
}

/// Whether the copies that [`AckLevel`] counts are on disk; a later one is a stronger promise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FlushLevel {
    /// They survive the process, not the machine.
    Async = 1,
    /// They are on disk.
    #[default]
    Sync = 2,
}

/// Both dimensions together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct SendLevel {
    /// How many copies.
    pub ack: AckLevel,
    /// Whether they are on disk.
    pub flush: FlushLevel,
}

impl AckLevel {
    /// Every level, the weakest first.
    pub const ALL: [AckLevel; 3] = [AckLevel::Async, AckLevel::Majority, AckLevel::Sync];

    /// The number of the level in our formats.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The level of a number; `None` when there is none.
    pub fn from_code(code: u8) -> Option<AckLevel> {
        AckLevel::ALL.into_iter().find(|level| level.code() == code)
    }
}

impl FlushLevel {
    /// Every level, the weakest first.
    pub const ALL: [FlushLevel; 2] = [FlushLevel::Async, FlushLevel::Sync];

    /// The number of the level in our formats.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The level of a number; `None` when there is none.
    pub fn from_code(code: u8) -> Option<FlushLevel> {
        FlushLevel::ALL.into_iter().find(|level| level.code() == code)
    }
}

impl SendLevel {
    /// The stronger one in each dimension: a send may ask for more than its topic gives, never for less.
    pub fn at_least(self, asked: (Option<AckLevel>, Option<FlushLevel>)) -> SendLevel {
        let (ack, flush) = asked;
        SendLevel {
            ack: ack.map_or(self.ack, |ack| ack.max(self.ack)),
            flush: flush.map_or(self.flush, |f| f.max(self.flush)),
        }
    }
}

impl fmt::Display for AckLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            AckLevel::Async => "async",
            AckLevel::Majority => "majority",
            AckLevel::Sync => "sync",
        })
    }
}

impl fmt::Display for FlushLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            FlushLevel::Async => "async",
            FlushLevel::Sync => "sync",
        })
    }
}

impl fmt::Display for SendLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with {} flush", self.ack, self.flush)
    }
}

impl FromStr for AckLevel {
    type Err = UnknownValue;

    fn from_str(text: &str) -> Result<AckLevel, UnknownValue> {
        let found = AckLevel::ALL.into_iter().find(|level| level.to_string().eq_ignore_ascii_case(text));
        let allowed = "async, majority, sync";
        found.ok_or_else(|| UnknownValue { what: "ack level", value: text.to_owned(), allowed })
    }
}

impl FromStr for FlushLevel {
    type Err = UnknownValue;

    fn from_str(text: &str) -> Result<FlushLevel, UnknownValue> {
        let found = FlushLevel::ALL.into_iter().find(|level| level.to_string().eq_ignore_ascii_case(text));
        found.ok_or_else(|| UnknownValue { what: "flush level", value: text.to_owned(), allowed: "sync, async" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_numbers_name_the_levels() {
        for level in AckLevel::ALL {
            assert_eq!(level.to_string().to_uppercase().parse(), Ok(level));
            assert_eq!(AckLevel::from_code(level.code()), Some(level));
        }
        for level in FlushLevel::ALL {
            assert_eq!(level.to_string().parse(), Ok(level));
            assert_eq!(FlushLevel::from_code(level.code()), Some(level));
        }
        let error = "all".parse::<AckLevel>().expect_err("no level").to_string();
        assert_eq!(error, "unknown ack level 'all'; async, majority, sync are allowed");
        assert_eq!((AckLevel::from_code(0), FlushLevel::from_code(3)), (None, None));
    }

    #[test]
    fn a_send_may_only_ask_for_more_in_each_dimension() {
        let given = SendLevel { ack: AckLevel::Majority, flush: FlushLevel::Async };
        let level = given.at_least((Some(AckLevel::Async), Some(FlushLevel::Sync)));
        assert_eq!(level, SendLevel { ack: AckLevel::Majority, flush: FlushLevel::Sync });
        assert_eq!(given.at_least((Some(AckLevel::Sync), None)).ack, AckLevel::Sync);
        assert_eq!(given.at_least((None, None)), given);
    }
}
