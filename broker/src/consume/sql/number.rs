//! The numbers of filter expressions: integers of 64 bits and decimals, compared exactly with each other.

use std::cmp::Ordering;
use std::fmt;

/// A number in an expression or a property.
#[derive(Debug, Clone, Copy)]
pub enum Number {
    /// Without point or exponent.
    Integer(i64),
    /// With one; finite.
    Decimal(f64),
}

/// 2^63, the first decimal above all integers.
const INTEGERS_END: f64 = 9_223_372_036_854_775_808.0;

impl Number {
    /// Reads a number of an expression: digits with an optional point, exponent, or `L` at the end of an integer.
    /// `None` if it is out of range.
    pub fn literal(digits: &str, is_negative: bool) -> Option<Number> {
        let digits = digits.strip_suffix(['l', 'L']).unwrap_or(digits);
        if digits.bytes().all(|byte| byte.is_ascii_digit()) {
            let number: i128 = digits.parse().ok()?;
            return i64::try_from(if is_negative { -number } else { number }).ok().map(Number::Integer);
        }
        let number: f64 = digits.parse().ok()?;
        number.is_finite().then_some(Number::Decimal(if is_negative { -number } else { number }))
    }

    /// Reads a property's value as a number: an optional sign, then as in an expression, and nothing around it.
    pub fn of_property(value: &str) -> Option<Number> {
        let digits = value.strip_prefix(['+', '-']).unwrap_or(value);
        if !digits.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'e' | b'E' | b'+' | b'-')) {
            // Words that would be read as "infinite" or "not a number".
            return None;
        }
        if let Ok(integer) = value.parse() {
            return Some(Number::Integer(integer));
        }
        let number: f64 = value.parse().ok()?;
        number.is_finite().then_some(Number::Decimal(number))
    }

    /// Which one is greater, without rounding.
    pub fn compare(self, other: Number) -> Ordering {
        match (self, other) {
            (Number::Integer(left), Number::Integer(right)) => left.cmp(&right),
            (Number::Decimal(left), Number::Decimal(right)) => decimals(left, right),
            (Number::Integer(left), Number::Decimal(right)) => integer_to_decimal(left, right),
            (Number::Decimal(left), Number::Integer(right)) => integer_to_decimal(right, left).reverse(),
        }
    }
}

fn decimals(left: f64, right: f64) -> Ordering {
    left.partial_cmp(&right).unwrap_or_else(|| unreachable!("numbers are finite"))
}

fn integer_to_decimal(integer: i64, decimal: f64) -> Ordering {
    if decimal >= INTEGERS_END {
        return Ordering::Less;
    }
    if decimal < -INTEGERS_END {
        return Ordering::Greater;
    }
    let whole = decimal.trunc();
    // Exact: `whole` has no fraction and is in range.
    integer.cmp(&(whole as i64)).then_with(|| decimals(whole, decimal))
}

impl PartialEq for Number {
    fn eq(&self, other: &Number) -> bool {
        self.compare(*other).is_eq()
    }
}

impl fmt::Display for Number {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Number::Integer(number) => write!(out, "{number}"),
            // With a point or an exponent, and all digits that matter.
            Number::Decimal(number) => write!(out, "{number:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_are_numbers_if_all_of_their_text_is() {
        for text in ["0", "-7", "+7", "007", "3.5", ".5", "5.", "1e3", "-1.5E-3", "9223372036854775808"] {
            assert!(Number::of_property(text).is_some(), "{text}");
        }
        for text in
            ["", " 1", "1 ", "abc", "1x", "0x10", "1L", "--1", "+-1", "inf", "NaN", "1e999", ".", "-", "e5", "1_0"]
        {
            assert!(Number::of_property(text).is_none(), "{text:?}");
        }
    }

    #[test]
    fn integers_and_decimals_are_compared_without_rounding() {
        let compare = |left: &str, right: &str| {
            Number::of_property(left).expect("a number").compare(Number::of_property(right).expect("a number"))
        };
        for (left, right, expected) in [
            ("3", "3.0", Ordering::Equal),
            ("10", "9", Ordering::Greater),
            ("-3", "-3.5", Ordering::Greater),
            ("3", "3.5", Ordering::Less),
            // 2^53 + 1 has no decimal of its own.
            ("9007199254740993", "9007199254740992.0", Ordering::Greater),
            ("9223372036854775807", "9223372036854775808", Ordering::Less),
            ("-9223372036854775808", "-9223372036854775808.0", Ordering::Equal),
            ("-9223372036854775808", "-1e19", Ordering::Greater),
            ("0", "-0.0", Ordering::Equal),
        ] {
            assert_eq!(compare(left, right), expected, "{left} to {right}");
            assert_eq!(compare(right, left), expected.reverse(), "{right} to {left}");
        }
    }

    #[test]
    fn literals_out_of_range_are_none() {
        assert_eq!(Number::literal("9223372036854775808", true), Some(Number::Integer(i64::MIN)));
        assert_eq!(Number::literal("12L", false), Some(Number::Integer(12)));
        assert!(Number::literal("9223372036854775808", false).is_none());
        assert!(Number::literal(&"9".repeat(400), false).is_none());
        assert!(Number::literal("1e400", false).is_none());
    }
}
