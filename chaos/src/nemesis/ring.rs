//! Every replica hears a majority, and no two hear the same one.

use serde::{Deserialize, Serialize};

use super::{About, Field, FieldError, Nemesis, Style};
use crate::rng::Rng;

pub(super) const ABOUT: About = About {
    what: "each of five replicas hears two others only: every one sees a majority, each another one (5 replicas)",
    heals: "the links pass again",
};

/// A ring of majorities.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ring {
    /// Neighbours hear each other, the last one and the first too.
    pub order: Vec<u64>,
    /// What bytes and connections meet between others.
    pub style: Style,
}

impl Ring {
    pub(super) fn draw(rng: &mut Rng, replicas: u64) -> Ring {
        let all: Vec<u64> = (1..=replicas).collect();
        Ring { order: rng.shuffled(&all), style: Style::draw(rng) }
    }

    /// All pairs that do not hear each other.
    fn pairs(&self) -> Vec<(u64, u64)> {
        let count = self.order.len();
        let pairs = (0..count).flat_map(|one| (one + 1..count).map(move |other| (one, other)));
        let far = pairs.filter(|(one, other)| other - one > 1 && other - one < count - 1);
        far.map(|(one, other)| (self.order[one], self.order[other])).collect()
    }
}

impl Nemesis for Ring {
    async fn hurt(&self, field: &mut Field) -> Result<Vec<u64>, FieldError> {
        self.style.apply_to(field.network()?, self.pairs(), true);
        Ok(self.order.clone())
    }

    async fn heal(&self, field: &mut Field, _: &[u64]) -> Result<(), FieldError> {
        self.style.apply_to(field.network()?, self.pairs(), false);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_five_hears_two_others() {
        let ring = Ring { order: vec![1, 2, 3, 4, 5], style: Style::Silent };
        assert_eq!(ring.pairs(), [(1, 3), (1, 4), (2, 4), (2, 5), (3, 5)]);
        for node in 1..=5 {
            assert_eq!(ring.pairs().iter().filter(|(one, other)| *one == node || *other == node).count(), 2);
        }
    }
}
