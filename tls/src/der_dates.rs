//! From when to when a certificate is valid, read out of its DER; and such dates as text.
//!
//! ```text
//! Certificate ::= SEQUENCE { TBSCertificate ::= SEQUENCE {
//!     [0] version?, INTEGER serial, SEQUENCE algorithm, SEQUENCE issuer, SEQUENCE { notBefore, notAfter }, … } … }
//! ```

const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// When a certificate is valid, seconds since the Unix epoch, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Validity {
    pub(crate) not_before_s: u64,
    pub(crate) not_after_s: u64,
}

/// Reads it; `None` if the bytes are no certificate.
pub(crate) fn validity(der: &[u8]) -> Option<Validity> {
    let (_, certificate, _) = element(der).filter(|(tag, ..)| *tag == SEQUENCE)?;
    let (_, mut rest, _) = element(certificate).filter(|(tag, ..)| *tag == SEQUENCE)?;
    if rest.first() == Some(&VERSION) {
        rest = element(rest)?.2;
    }
    for _serial_algorithm_issuer in 0..3 {
        rest = element(rest)?.2;
    }
    let (_, dates, _) = element(rest).filter(|(tag, ..)| *tag == SEQUENCE)?;
    let (tag, first, rest) = element(dates)?;
    let not_before_s = time(tag, first)?;
    let (tag, last, _) = element(rest)?;
    Some(Validity { not_before_s, not_after_s: time(tag, last)? })
}

/// Tag, content and what comes behind.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, mut rest) = rest.split_first()?;
    let length = match first {
        0..=0x7f => usize::from(first),
        0x81..=0x84 => {
            let (length, behind) = rest.split_at_checked(usize::from(first & 0x7f))?;
            rest = behind;
            length.iter().fold(0, |length, byte| (length << 8) | usize::from(*byte))
        }
        _ => return None,
    };
    let (content, behind) = rest.split_at_checked(length)?;
    Some((tag, content, behind))
}

/// `YYMMDDhhmmssZ` or `YYYYMMDDhhmmssZ`.
fn time(tag: u8, text: &[u8]) -> Option<u64> {
    let (year, rest) = match tag {
        UTC_TIME => {
            let (year, rest) = text.split_at_checked(2)?;
            let year = number(year)?;
            (if year < 50 { 2000 + year } else { 1900 + year }, rest)
        }
        GENERALIZED_TIME => {
            let (year, rest) = text.split_at_checked(4)?;
            (number(year)?, rest)
        }
        _ => return None,
    };
    if rest.len() != 11 || rest[10] != b'Z' {
        return None;
    }
    let mut parts = [0; 5];
    for (part, digits) in parts.iter_mut().zip(rest.chunks(2)) {
        *part = number(digits)?;
    }
    let [month, day, hour, minute, second] = parts;
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    Some(days_before(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second)
}

fn number(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0, |value, digit| digit.is_ascii_digit().then(|| value * 10 + u64::from(digit - b'0')))
}

/// Days from 1970-01-01, in the Gregorian calendar: years begin in March, so that the leap day is the last one.
fn days_before(year: u64, month: u64, day: u64) -> u64 {
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    // Days from 0000-03-01 to 1970-01-01.
    year * 365 + year / 4 - year / 100 + year / 400 + day_of_year - 719_468
}

/// As `2026-11-30 00:00:00 UTC`.
pub(crate) fn date_text(unix_s: u64) -> String {
    let days = unix_s / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let second = unix_s % 86_400;
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC", second / 3_600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_certificate_tells_when_it_is_valid() {
        let mut parameters = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
        parameters.not_before = rcgen::date_time_ymd(2024, 2, 29);
        parameters.not_after = rcgen::date_time_ymd(2051, 3, 1);
        let certificate = parameters.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap();
        let read = validity(certificate.der()).unwrap();
        assert_eq!(read, Validity { not_before_s: 1_709_164_800, not_after_s: 2_561_241_600 });
        assert_eq!(date_text(read.not_before_s), "2024-02-29 00:00:00 UTC");
        assert_eq!(date_text(read.not_after_s), "2051-03-01 00:00:00 UTC");
    }

    proptest! {
        #[test]
        fn what_is_no_certificate_is_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = validity(&bytes);
            let _ = time(UTC_TIME, &bytes);
            let _ = time(GENERALIZED_TIME, &bytes);
        }

        #[test]
        fn dates_are_read_back(unix_s in 0_u64..253_402_300_800) {
            let text = date_text(unix_s);
            let digits: String = text.chars().filter(char::is_ascii_digit).collect();
            prop_assert_eq!(time(GENERALIZED_TIME, format!("{digits}Z").as_bytes()), Some(unix_s));
        }
    }
}
