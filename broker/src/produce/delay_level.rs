//! RocketMQ's 18 delay levels, which older producers name instead of a time.

/// The property in which a message has its level.
pub const DELAY_PROPERTY: &str = "DELAY";

const SECOND: u64 = 1_000;
const MINUTE: u64 = 60 * SECOND;
/// What each level delays by, ms; the first is level 1.
const LEVELS_MS: [u64; 18] = [
    SECOND,
    5 * SECOND,
    10 * SECOND,
    30 * SECOND,
    MINUTE,
    2 * MINUTE,
    3 * MINUTE,
    4 * MINUTE,
    5 * MINUTE,
    6 * MINUTE,
    7 * MINUTE,
    8 * MINUTE,
    9 * MINUTE,
    10 * MINUTE,
    20 * MINUTE,
    30 * MINUTE,
    60 * MINUTE,
    120 * MINUTE,
];

/// What a level delays by, ms; one above the highest means the highest. 0 means no delay (`None`).
pub fn delay_level_ms(level: &str) -> Result<Option<u64>, String> {
    let number: u32 = level
        .parse()
        .map_err(|_| format!("delay level is '{level}'; allowed are 0 for none and the numbers from 1 to 18"))?;
    let at = (number as usize).min(LEVELS_MS.len());
    Ok(at.checked_sub(1).map(|at| LEVELS_MS[at]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_a_time_and_what_is_none_is_refused() {
        assert_eq!(delay_level_ms("0"), Ok(None));
        assert_eq!(delay_level_ms("1"), Ok(Some(1_000)));
        assert_eq!(delay_level_ms("5"), Ok(Some(60_000)));
        assert_eq!(delay_level_ms("18"), Ok(Some(7_200_000)));
        assert_eq!(delay_level_ms("99"), Ok(Some(7_200_000)), "as RocketMQ does");
        for none in ["", "-1", "one", "1.5", "99999999999"] {
            assert!(delay_level_ms(none).is_err(), "{none}");
        }
    }
}
