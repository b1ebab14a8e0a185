//! Message bodies that can be told from any other bytes: everything in them follows from the message's number.

use bytes::Bytes;

const BYTES_MIN: u64 = 16;
const BYTES_MAX: u64 = 1_024;

/// The body of message `number`: the number, then filling, of a length that differs from message to message.
pub(crate) fn of_number(number: u64) -> Bytes {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let length = BYTES_MIN + (mixed >> 32) % (BYTES_MAX - BYTES_MIN + 1);
    let mut body = number.to_be_bytes().to_vec();
    let filling = mixed.to_le_bytes();
    body.extend((8..length as usize).map(|at| filling[at % 8] ^ at as u8));
    body.into()
}

/// The number of a body; none if no message of ours has it.
pub(crate) fn number_of(body: &Bytes) -> Option<u64> {
    let number = u64::from_be_bytes(*body.first_chunk()?);
    (of_number(number) == *body).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_found_in_its_body_and_in_no_damaged_one() {
        for number in [0, 1, 77, 1 << 40, u64::MAX] {
            let body = of_number(number);
            assert!((16..=1_024).contains(&body.len()));
            assert_eq!(number_of(&body), Some(number));
            assert_eq!(number_of(&body.slice(..body.len() - 1)), None);
            for at in [0, 7, 8, body.len() - 1] {
                let mut damaged = body.to_vec();
                damaged[at] ^= 1;
                assert_eq!(number_of(&damaged.into()), None);
            }
        }
        assert_eq!(number_of(&Bytes::from_static(b"short")), None);
    }
}
