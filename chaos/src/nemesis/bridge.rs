//! Two halves that do not hear each other, and one replica that hears both.

use serde::{Deserialize, Serialize};

use super::{About, Field, FieldError, Nemesis, Style};
use crate::rng::Rng;

pub(super) const ABOUT: About = About {
    what: "one replica hears all, the others only their own half: there is a quorum on either side of the bridge",
    heals: "the links pass again",
};

/// A bridge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bridge {
    /// The one that hears all first, then one half, then the other.
    pub order: Vec<u64>,
    /// What bytes and connections meet between the halves.
    pub style: Style,
}

impl Bridge {
    pub(super) fn draw(rng: &mut Rng, replicas: u64) -> Bridge {
        let all: Vec<u64> = (1..=replicas).collect();
        Bridge { order: rng.shuffled(&all), style: Style::draw(rng) }
    }

    /// All pairs that do not hear each other.
    fn pairs(&self) -> Vec<(u64, u64)> {
        let rest = self.order.get(1..).unwrap_or_default();
        let (one, other) = rest.split_at(rest.len() / 2);
        one.iter().flat_map(|left| other.iter().map(move |right| (*left, *right))).collect()
    }
}

impl Nemesis for Bridge {
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
    fn only_the_bridge_hears_both_sides() {
        let bridge = |order: &[u64]| Bridge { order: order.to_vec(), style: Style::Silent }.pairs();
        assert_eq!(bridge(&[2, 1, 3]), [(1, 3)]);
        assert_eq!(bridge(&[5, 1, 2, 3, 4]), [(1, 3), (1, 4), (2, 3), (2, 4)]);
    }
}
