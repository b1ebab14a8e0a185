//! A run as data: seed, machine, bug and plan in one file, to be made smaller, and to be kept when it has found something.

use flotilla_planted_bugs::Bug;
use serde::{Deserialize, Serialize};

use crate::lure::lure;
use crate::options::{Machine, Options, Size};
use crate::plan::{Planned, plan};

/// A run that can be written down. What the seed means changes with the code; the plan stays what it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Case {
    /// What the case showed when it was found, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub story: String,
    /// What all but the plan follows from.
    pub seed: u64,
    /// `store`, `broker` or `toy`.
    pub machine: Machine,
    /// `standard` or `short`.
    #[serde(default)]
    pub size: Size,
    /// A planted bug's name. Only builds that have them can run such a case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bug: Option<String>,
    /// Another order of steps: 0 is the seed's own.
    #[serde(default)]
    pub schedule: u64,
    /// Instead of the seed's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_count: Option<u64>,
    /// Instead of the seed's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consumer_count: Option<u64>,
    /// Instead of the seed's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errands: Option<bool>,
    /// The faults.
    pub plan: Vec<Planned>,
}

impl Case {
    /// The case of a seed.
    pub fn of_seed(seed: u64, machine: Machine, size: Size, bug: Option<Bug>) -> Case {
        let mut case = Case {
            story: String::new(),
            seed,
            machine,
            size,
            bug: bug.map(|bug| bug.name().to_owned()),
            schedule: 0,
            client_count: None,
            consumer_count: None,
            errands: None,
            plan: Vec::new(),
        };
        case.plan = plan(&case.options());
        case
    }

    /// The planted bug.
    pub fn bug(&self) -> Option<Bug> {
        self.bug.as_deref().and_then(Bug::of_name)
    }

    /// The options of its run.
    pub fn options(&self) -> Options {
        let mut options = Options::of(self.seed, self.machine).sized(self.size);
        options.bug = self.bug();
        if let Some(bug) = options.bug {
            lure(bug, &mut options);
        }
        options.schedule = self.schedule;
        options.client_count = self.client_count.unwrap_or(options.client_count);
        options.consumer_count = self.consumer_count.unwrap_or(options.consumer_count);
        options.errands = self.errands.unwrap_or(options.errands);
        options
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_reads_back_as_written_and_its_plan_is_that_of_its_seed() {
        let case = Case::of_seed(7, Machine::Store, Size::Standard, None);
        assert_eq!(case.plan, plan(&Options::of(7, Machine::Store)));
        let text = serde_json::to_string(&case).unwrap();
        assert_eq!(serde_json::from_str::<Case>(&text).unwrap(), case);
    }
}
