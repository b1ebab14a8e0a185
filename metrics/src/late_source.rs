//! A part of a process that is still starting: its port answers before it does.

use std::sync::{Arc, RwLock};

use crate::{Exposition, Health, Source};

/// Stands for a part until it is there. Alive, so that nobody kills a process that recovers; not ready, and says so.
pub struct LateSource {
    part: String,
    state: RwLock<State>,
}

enum State {
    Starting,
    Here(Arc<dyn Source>),
    Left(String),
}

const LOCK: &str = "source lock is never poisoned: no code panics while holding it";

impl LateSource {
    /// A part that is starting.
    pub fn new(part: impl Into<String>) -> LateSource {
        LateSource { part: part.into(), state: RwLock::new(State::Starting) }
    }

    /// It is there, for the first time or again.
    pub fn arrived(&self, source: Arc<dyn Source>) {
        *self.state.write().expect(LOCK) = State::Here(source);
    }

    /// It stopped itself, and may come again: the process lives on with its other parts.
    pub fn left(&self, reason: String) {
        *self.state.write().expect(LOCK) = State::Left(reason);
    }

    fn source(&self) -> Result<Arc<dyn Source>, String> {
        match &*self.state.read().expect(LOCK) {
            State::Here(source) => Ok(source.clone()),
            State::Starting => Err("it is starting: its log is being recovered".to_owned()),
            State::Left(reason) => Err(format!("it stopped itself: {reason}")),
        }
    }
}

impl Source for LateSource {
    fn measure(&self, into: &mut Exposition) {
        if let Ok(source) = self.source() {
            source.measure(into);
        }
    }

    fn live(&self) -> Health {
        self.source().map_or_else(|_| Health::of(&self.part), |source| source.live())
    }

    fn ready(&self) -> Health {
        match self.source() {
            Ok(source) => source.ready(),
            Err(why) => Health::of(&self.part).unless(false, || why),
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
        late.left("its disk failed".to_owned());
        assert!(late.live().is_ok(), "the process is worth keeping");
        assert!(late.ready().problems[0].contains("its disk failed"));
    }
}
