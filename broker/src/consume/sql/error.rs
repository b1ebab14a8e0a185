//! Why a text is no filter expression.

use super::{EXPRESSION_BYTES_MAX, LIST_VALUES_MAX, NESTING_MAX, PATTERN_BYTES_MAX, PROPERTIES_MAX};

/// A text that is no filter expression. Positions count characters from 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SqlError {
    /// The text is too long to be read.
    #[error("SQL filter has {bytes} bytes; at most {EXPRESSION_BYTES_MAX} are allowed")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// Something else should stand here.
    #[error("SQL filter at character {at}: found {found}, expected {expected}")]
    Unexpected {
        /// Where.
        at: usize,
        /// What stands there.
        found: String,
        /// What could.
        expected: &'static str,
    },
    /// A text, name or comment that does not end.
    #[error("SQL filter at character {at}: {what} begins here and does not end, expected {expected}")]
    NotClosed {
        /// Where it begins.
        at: usize,
        /// What it is.
        what: &'static str,
        /// What would end it.
        expected: &'static str,
    },
    /// A number nobody can compare with.
    #[error(
        "SQL filter at character {at}: found number {found}, expected an integer of 64 bits with sign or a decimal \
         below 1.8e308"
    )]
    NumberOutOfRange {
        /// Where.
        at: usize,
        /// The number, shortened.
        found: String,
    },
    /// Two sides that are never comparable.
    #[error("SQL filter at character {at}: {left} and {right} cannot be compared by {comparison}, expected {expected}")]
    NotComparable {
        /// Where the left side begins.
        at: usize,
        /// The left side's kind.
        left: &'static str,
        /// The right side's kind.
        right: &'static str,
        /// The comparison.
        comparison: &'static str,
        /// What could be compared.
        expected: &'static str,
    },
    /// BETWEEN with its bounds exchanged.
    #[error("SQL filter at character {at}: found BETWEEN {low} AND {high}, expected the smaller number first")]
    BoundsReversed {
        /// Where the lower bound stands.
        at: usize,
        /// The lower bound.
        low: String,
        /// The upper bound.
        high: String,
    },
    /// A name of RocketMQ's own properties that this broker keeps no property for.
    #[error(
        "SQL filter at character {at}: found property {name}, which is reserved and never set, expected a property of \
         the producer, TAGS, KEYS or UNIQ_KEY"
    )]
    Reserved {
        /// Where.
        at: usize,
        /// The name.
        name: String,
    },
    /// Too deep.
    #[error("SQL filter at character {at}: parentheses and NOT are nested more than {NESTING_MAX} deep")]
    TooDeep {
        /// Where the limit is passed.
        at: usize,
    },
    /// Too many values.
    #[error("SQL filter at character {at}: IN list has more than {LIST_VALUES_MAX} values")]
    ListTooLong {
        /// Where the limit is passed.
        at: usize,
    },
    /// Too many properties.
    #[error("SQL filter at character {at}: more than {PROPERTIES_MAX} different properties are named")]
    TooManyProperties {
        /// Where the limit is passed.
        at: usize,
    },
    /// Too long a pattern.
    #[error("SQL filter at character {at}: LIKE pattern has {bytes} bytes; at most {PATTERN_BYTES_MAX} are allowed")]
    PatternTooLong {
        /// Where.
        at: usize,
        /// Its length.
        bytes: usize,
    },
}
