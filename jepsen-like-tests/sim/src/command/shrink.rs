//! `shrink`: the smallest plan that still fails, by leaving things out.

use std::path::Path;

use flotilla_sim::Case;

use super::Setting;
use super::worker::Worker;

/// Leaving something out shifts everything after it, so each candidate is tried in so many orders of steps.
const SCHEDULES: u64 = 6;

struct Shrinker {
    worker: Worker,
    tries_left: u64,
}

impl Shrinker {
    /// The candidate with an order of steps in which it fails, if there is one.
    fn failing(&mut self, candidate: &Case) -> Option<Case> {
        for schedule in (0..SCHEDULES).map(|number| candidate.schedule.wrapping_add(number)) {
            self.tries_left = self.tries_left.checked_sub(1)?;
            let tried = Case { schedule, ..candidate.clone() };
            // A process that dies has failed too.
            if self.worker.run_case(&tried).map_or(true, |told| !told.findings.is_empty()) {
                return Some(tried);
            }
        }
        None
    }

    /// Leaves out runs of faults, the longest first.
    fn faults(&mut self, mut case: Case) -> Case {
        let mut length = case.plan.len().div_ceil(2);
        while length > 0 && self.tries_left > 0 {
            let mut at = 0;
            while at < case.plan.len() {
                let mut candidate = case.clone();
                candidate.plan.drain(at..(at + length).min(case.plan.len()));
                match self.failing(&candidate) {
                    Some(smaller) => case = smaller,
                    None => at += length,
                }
            }
            length = if length == 1 { 0 } else { length.div_ceil(2) };
        }
        case
    }

    /// Fewer who send and take.
    fn people(&mut self, mut case: Case) -> Case {
        let options = case.options();
        let fewer = [
            Case { errands: Some(false), ..case.clone() },
            Case { consumer_count: Some(0), ..case.clone() },
            Case { client_count: Some(options.client_count.min(2)), ..case.clone() },
            Case { client_count: Some(1), ..case.clone() },
        ];
        for Case { errands, consumer_count, client_count, .. } in fewer {
            let candidate = Case {
                errands: errands.or(case.errands),
                consumer_count: consumer_count.or(case.consumer_count),
                client_count: client_count.or(case.client_count),
                ..case.clone()
            };
            if let Some(smaller) = self.failing(&candidate) {
                case = smaller;
            }
        }
        case
    }
}

pub(crate) fn shrink(seed: u64, to: &Path, tries: u64, setting: Setting) -> Result<bool, String> {
    let whole = setting.case(seed);
    let mut shrinker = Shrinker { worker: Worker::new(setting), tries_left: tries };
    let told = shrinker.worker.run_case(&whole);
    let finding = match &told {
        Ok(told) => match told.findings.first() {
            Some(finding) => finding.clone(),
            None => return Err(format!("seed {seed} does not fail: there is nothing to make smaller")),
        },
        Err(text) => text.clone(),
    };
    let smaller = shrinker.faults(whole.clone());
    let mut smaller = shrinker.people(smaller);
    smaller.story = finding;
    let text = serde_json::to_string_pretty(&smaller).map_err(|error| error.to_string())?;
    std::fs::write(to, text + "\n").map_err(|error| format!("{}: {error}", to.display()))?;
    println!(
        "{} of {} faults are left after {} runs, in {}",
        smaller.plan.len(),
        whole.plan.len(),
        tries - shrinker.tries_left,
        to.display()
    );
    println!("replay: flotilla-sim run --case {} --trace", to.display());
    Ok(true)
}
