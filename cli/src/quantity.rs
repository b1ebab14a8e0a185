//! Sizes and durations as people write them: `32MiB`, `200ms`.

use std::time::Duration;

/// Why a text is no size or no duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    #[error("`{text}` does not start with a number: write for example {example}")]
    NoNumber { text: String, example: &'static str },
    #[error("`{text}` has no unit: write for example {example}")]
    NoUnit { text: String, example: &'static str },
    #[error("`{unit}` in `{text}` is not a unit: allowed are {allowed}")]
    UnknownUnit { text: String, unit: String, allowed: &'static str },
    #[error("`{text}` is too large: the limit is {limit}")]
    TooLarge { text: String, limit: &'static str },
}

const BYTE_UNITS: &str = "B, KiB, MiB, GiB, TiB (or none: bytes)";
const BYTE_EXAMPLE: &str = "32MiB";
const TIME_UNITS: &str = "ms, s, m, h";
const TIME_EXAMPLE: &str = "5s or 200ms";
/// A year: longer waits are typing errors.
const DURATION_MS_MAX: u64 = 365 * 24 * 3_600_000;

/// A number of bytes; units count in 1,024s.
pub fn parse_bytes(text: &str) -> Result<u64, QuantityError> {
    let (number, unit) = split(text, BYTE_EXAMPLE)?;
    let factor: u64 = match unit {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        unit => {
            return Err(QuantityError::UnknownUnit {
                text: text.to_owned(),
                unit: unit.to_owned(),
                allowed: BYTE_UNITS,
            });
        }
    };
    number
        .and_then(|number| number.checked_mul(factor))
        .ok_or_else(|| QuantityError::TooLarge { text: text.to_owned(), limit: "16777215TiB" })
}

/// A duration; the unit must be given, so that nobody confuses seconds with milliseconds.
pub fn parse_duration(text: &str) -> Result<Duration, QuantityError> {
    let (number, unit) = split(text, TIME_EXAMPLE)?;
    let factor_ms: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "" => return Err(QuantityError::NoUnit { text: text.to_owned(), example: TIME_EXAMPLE }),
        unit => {
            return Err(QuantityError::UnknownUnit {
                text: text.to_owned(),
                unit: unit.to_owned(),
                allowed: TIME_UNITS,
            });
        }
    };
    number
        .and_then(|number| number.checked_mul(factor_ms))
        .filter(|ms| *ms <= DURATION_MS_MAX)
        .map(Duration::from_millis)
        .ok_or_else(|| QuantityError::TooLarge { text: text.to_owned(), limit: "8760h" })
}

/// The number (`None` when it does not fit 64 bits) and the unit behind it.
fn split<'a>(text: &'a str, example: &'static str) -> Result<(Option<u64>, &'a str), QuantityError> {
    let trimmed = text.trim();
    let digits = trimmed.bytes().take_while(u8::is_ascii_digit).count();
    if digits == 0 {
        return Err(QuantityError::NoNumber { text: text.to_owned(), example });
    }
    let (number, unit) = trimmed.split_at(digits);
    Ok((number.parse().ok(), unit.trim_start()))
}

/// `32MiB`, `1000B`: the largest unit that keeps the number whole.
pub fn format_bytes(bytes: u64) -> String {
    for (unit, shift) in [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)] {
        if bytes >= 1 << shift && bytes.trailing_zeros() >= shift {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    format!("{bytes}B")
}

/// `1.5s`, `200ms`.
pub fn format_duration(duration: Duration) -> String {
    match duration.as_millis() {
        ms if ms < 1_000 => format!("{ms}ms"),
        ms if ms % 3_600_000 == 0 => format!("{}h", ms / 3_600_000),
        ms if ms % 60_000 == 0 => format!("{}m", ms / 60_000),
        ms if ms % 1_000 == 0 => format!("{}s", ms / 1_000),
        _ => format!("{:.1}s", duration.as_secs_f64()),
    }
}

/// `100,000`: people read grouped digits.
pub fn format_count(count: u64) -> String {
    let digits = count.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_and_without_units() {
        assert_eq!(parse_bytes("256"), Ok(256));
        assert_eq!(parse_bytes("256B"), Ok(256));
        assert_eq!(parse_bytes("32MiB"), Ok(32 << 20));
        assert_eq!(parse_bytes(" 1 GiB "), Ok(1 << 30));
        assert_eq!(parse_bytes("16777215TiB"), Ok(16_777_215 << 40));
    }

    #[test]
    fn a_bad_size_is_named_with_what_is_allowed() {
        let unknown = parse_bytes("32MB").unwrap_err().to_string();
        assert!(unknown.contains("`MB` in `32MB`") && unknown.contains("MiB"), "{unknown}");
        let none = parse_bytes("big").unwrap_err().to_string();
        assert!(none.contains("`big`") && none.contains("32MiB"), "{none}");
        let large = parse_bytes("99999999TiB").unwrap_err().to_string();
        assert!(large.contains("`99999999TiB`") && large.contains("limit"), "{large}");
        assert!(matches!(parse_bytes("99999999999999999999999"), Err(QuantityError::TooLarge { .. })));
        assert!(matches!(parse_bytes("-5"), Err(QuantityError::NoNumber { .. })));
        assert!(matches!(parse_bytes(""), Err(QuantityError::NoNumber { .. })));
    }

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(parse_duration("5s"), Ok(Duration::from_secs(5)));
        assert_eq!(parse_duration("200ms"), Ok(Duration::from_millis(200)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(parse_duration("1h"), Ok(Duration::from_secs(3600)));
        let bare = parse_duration("5").unwrap_err().to_string();
        assert!(bare.contains("`5`") && bare.contains("unit"), "{bare}");
        let unknown = parse_duration("5d").unwrap_err().to_string();
        assert!(unknown.contains("`d` in `5d`") && unknown.contains("ms, s, m, h"), "{unknown}");
        assert!(matches!(parse_duration("8761h"), Err(QuantityError::TooLarge { .. })));
    }

    #[test]
    fn what_is_printed_can_be_read_again() {
        for bytes in [0, 1, 1023, 1024, 32 << 20, 1 << 30, (1 << 30) + 1, 5 << 40] {
            assert_eq!(parse_bytes(&format_bytes(bytes)), Ok(bytes));
        }
        assert_eq!(format_duration(Duration::from_millis(200)), "200ms");
        assert_eq!(format_duration(Duration::from_millis(5000)), "5s");
        assert_eq!(format_duration(Duration::from_millis(1540)), "1.5s");
        assert_eq!(format_duration(Duration::from_secs(5_400)), "90m");
        assert_eq!(format_duration(Duration::from_hours(72)), "72h");
        assert_eq!(format_count(7), "7");
        assert_eq!(format_count(1_000), "1,000");
        assert_eq!(format_count(1_234_567), "1,234,567");
    }
}
