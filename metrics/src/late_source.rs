//! A part of a process that is still starting: its port answers before it does.

use std::sync::{Arc, OnceLock};

use crate::{Exposition, Health, Source};

/// Stands for a part until it is there. Alive, so that nobody kills a process that recovers; not ready, and says so.
pub struct LateSource {
    part: String,
    source: OnceLock<Arc<dyn Source>>,
}

impl LateSource {
    /// A part that is starting.
    pub fn new(part: impl Into<String>) -> LateSource {
        LateSource { part: part.into(), source: OnceLock::new() }
    }

    /// It is there; said once.
    pub fn arrived(&self, source: Arc<dyn Source>) {
        if self.source.set(source).is_err() {
            tracing::debug!(part = self.part, "a part arrived twice");
        }
    }
}

impl Source for LateSource {
    fn measure(&self, into: &mut Exposition) {
        if let Some(source) = self.source.get() {
            source.measure(into);
        }
    }

    fn live(&self) -> Health {
        self.source.get().map_or_else(|| Health::of(&self.part), |source| source.live())
    }

    fn ready(&self) -> Health {
        match self.source.get() {
            Some(source) => source.ready(),
            None => Health::of(&self.part).unless(false, || "it is starting: its log is being recovered".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fine;

    impl Source for Fine {
        fn measure(&self, into: &mut Exposition) {
            into.gauge_whole("fine", "1.", &[], 1);
        }
        fn live(&self) -> Health {
            Health::of("replica")
        }
        fn ready(&self) -> Health {
            Health::of("replica")
        }
    }

    #[test]
    fn a_part_that_starts_is_alive_and_not_ready_until_it_is_there() {
        let late = LateSource::new("replica 1");
        assert!(late.live().is_ok());
        assert!(late.ready().problems[0].contains("starting"));
        late.arrived(Arc::new(Fine));
        assert!(late.ready().is_ok());
        let mut out = Exposition::new();
        late.measure(&mut out);
        assert!(out.finish().contains("fine 1"));
    }
}
