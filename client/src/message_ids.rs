//! Unique message ids in the 34 characters that RocketMQ 5's clients use, without naming the host.

use std::sync::atomic::{AtomicU32, Ordering};

use flotilla_message::MessageId;
use flotilla_runtime::Runtime;

/// Seconds from the Unix epoch to 2021-01-01T00:00:00Z, where the id's clock starts.
const EPOCH_S: u64 = 1_609_459_200;

/// Makes message ids: `01`, eight random bytes of this generator, the second, a running number; all
/// in upper-case hex.
///
/// Two generators collide only if their 64 random bits do; one generator repeats itself only after
/// 2^32 ids within one second.
///
/// ```text
///  01 | generator 8 B (official clients: MAC 6 B, pid 2 B) | seconds since 2021 4 B | number 4 B
/// ```
#[derive(Debug)]
pub(crate) struct MessageIds {
    generator: u64,
    next: AtomicU32,
}

impl MessageIds {
    pub(crate) fn new(runtime: &Runtime) -> MessageIds {
        MessageIds { generator: runtime.random_u64(), next: AtomicU32::new(0) }
    }

    pub(crate) fn next(&self, runtime: &Runtime) -> MessageId {
        // The field has 32 bits; that it wraps in 2157 harms nobody, since the rest still tells ids apart.
        let seconds = (runtime.wall_ms() / 1_000).saturating_sub(EPOCH_S) & u64::from(u32::MAX);
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let text = format!("01{:016X}{seconds:08X}{number:08X}", self.generator);
        MessageId::try_from(text).expect("34 hex digits are a message id")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn ids_are_34_upper_case_hex_digits_and_differ() {
        let runtime = Runtime::tokio();
        let generators = [MessageIds::new(&runtime), MessageIds::new(&runtime)];
        let mut seen = BTreeSet::new();
        for ids in &generators {
            for _ in 0..1_000 {
                let id = ids.next(&runtime);
                assert_eq!(id.as_str().len(), 34);
                assert!(id.as_str().starts_with("01"));
                assert!(id.as_str().chars().all(|c| matches!(c, '0'..='9' | 'A'..='F')), "{id}");
                assert!(seen.insert(id));
            }
        }
    }
}
