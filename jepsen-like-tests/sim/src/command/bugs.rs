//! `bugs`: each planted bug on seed after seed until something catches it; the same seed without it must be clean.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use flotilla_planted_bugs::{ARE_BUILT_IN, Bug};
use flotilla_sim::{Case, Machine, Size, machine_for};
use serde::Serialize;

use super::worker::Worker;
use super::{Setting, no_bugs, planted};

/// These must be caught.
const REQUIRED: u32 = 15;
/// So many at a time in a rotation.
const ROTATION: u64 = 3;

/// What became of one bug.
#[derive(Serialize)]
struct Hunt {
    number: u32,
    bug: &'static str,
    what: &'static str,
    planted_in: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    machine: Option<Machine>,
    /// The check that saw it first.
    #[serde(skip_serializing_if = "Option::is_none")]
    caught_by: Option<String>,
    /// Its words.
    #[serde(skip_serializing_if = "Option::is_none")]
    finding: Option<String>,
    /// Seeds until then, or all that were tried.
    seeds: u64,
    seconds: f64,
    /// Whether the same run without the bug is clean.
    #[serde(skip_serializing_if = "Option::is_none")]
    is_clean_without: Option<bool>,
    /// Why no simulation can see it.
    #[serde(skip_serializing_if = "Option::is_none")]
    why_not: Option<&'static str>,
}

impl Hunt {
    fn is_right(&self) -> bool {
        let is_required = self.number <= REQUIRED || self.bug == Bug::Canary.name();
        let is_caught = self.caught_by.is_some() && self.is_clean_without != Some(false);
        is_caught || !is_required
    }

    fn print(&self) {
        let caught = match (&self.caught_by, self.why_not, self.is_clean_without) {
            (Some(check), _, Some(false)) => format!("{check}, BUT THE SAME RUN FAILS WITHOUT IT"),
            (Some(check), _, _) => format!("caught by {check}"),
            (None, Some(why), _) => format!("not tried: {why}"),
            (None, None, _) => "NOT CAUGHT".to_owned(),
        };
        println!(
            "{:>2} {:<24}{:<30}{:>6} seeds {:>7.1} s  {caught}",
            self.number, self.bug, self.planted_in, self.seeds, self.seconds
        );
    }
}

/// Runs the hunts and prints their table.
pub(crate) fn bugs(
    names: &[String],
    rotation: Option<u64>,
    seeds: u64,
    time_limit: Duration,
    json: bool,
) -> Result<bool, String> {
    if !ARE_BUILT_IN {
        return Err(no_bugs());
    }
    let mut chosen: Vec<Bug> = names.iter().map(|name| planted(name)).collect::<Result<_, _>>()?;
    if chosen.is_empty() {
        chosen = Bug::every().collect();
    }
    if let Some(number) = rotation {
        let tried: Vec<Bug> = chosen.into_iter().filter(|bug| bug.number() <= REQUIRED).collect();
        let from = (number * ROTATION) as usize % tried.len();
        chosen = tried.iter().cycle().skip(from).take(ROTATION as usize).copied().collect();
    }
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Done { hunts: chosen.iter().map(|_| None).collect(), printed: 0, is_right: true });
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from).min(chosen.len()) {
            scope.spawn(|| {
                while let Some(bug) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let hunt = hunt(*bug, seeds, time_limit);
                    let mut done = done.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    let place = chosen.iter().position(|other| other == bug).unwrap_or_default();
                    done.hunts[place] = Some(hunt);
                    done.print(json);
                }
            });
        }
    });
    Ok(done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).is_right)
}

/// Hunts as they end, printed in the order of their bugs.
struct Done {
    hunts: Vec<Option<Result<Hunt, String>>>,
    printed: usize,
    is_right: bool,
}

impl Done {
    fn print(&mut self, json: bool) {
        while let Some(Some(hunt)) = self.hunts.get(self.printed) {
            self.printed += 1;
            match hunt {
                Ok(hunt) => {
                    self.is_right &= hunt.is_right();
                    match serde_json::to_string(hunt) {
                        Ok(text) if json => println!("{text}"),
                        _ => hunt.print(),
                    }
                }
                Err(text) => {
                    self.is_right = false;
                    println!("{text}");
                }
            }
        }
    }
}

fn hunt(bug: Bug, seeds: u64, time_limit: Duration) -> Result<Hunt, String> {
    let mut hunt = Hunt {
        number: bug.number(),
        bug: bug.name(),
        what: bug.what(),
        planted_in: bug.planted_in(),
        machine: None,
        caught_by: None,
        finding: None,
        seeds: 0,
        seconds: 0.0,
        is_clean_without: None,
        why_not: None,
    };
    let machine = match machine_for(bug) {
        Ok(machine) => machine,
        Err(why) => {
            hunt.why_not = Some(why);
            return Ok(hunt);
        }
    };
    hunt.machine = Some(machine);
    let begun = Instant::now();
    let mut worker = Worker::new(Setting::of(machine, Size::Standard, Some(bug)));
    while hunt.seeds < seeds && begun.elapsed() < time_limit {
        hunt.seeds += 1;
        // A process that dies of the bug has caught it as well.
        let findings = match worker.run_seed(hunt.seeds) {
            Ok(told) => told.findings,
            Err(text) => vec![format!("process ended: {text}")],
        };
        hunt.seconds = begun.elapsed().as_secs_f64();
        let Some(first) = findings.first() else { continue };
        hunt.caught_by = Some(check_of(first));
        hunt.finding = Some(first.chars().take(300).collect());
        if bug != Bug::Canary {
            let mut same = Case::of_seed(hunt.seeds, machine, Size::Standard, Some(bug));
            same.bug = None;
            hunt.is_clean_without = Some(worker.run_case(&same)?.findings.is_empty());
        }
        break;
    }
    Ok(hunt)
}

/// What kind of check a finding comes from.
fn check_of(finding: &str) -> String {
    const WORDS: [(&str, &str); 13] = [
        ("the canary", "the canary's alarm"),
        ("in the page caches", "an acknowledged message is in the page caches of a majority"),
        ("went back for replica", "what a namesrv knows gets no older"),
        ("is acknowledged and durable on", "an acknowledged message is on the disks of a majority"),
        ("had digest", "digests are equal at equal entries"),
        ("had answered in term", "a vote never regresses"),
        ("after entry", "entries are applied once, in order"),
        ("applied entry", "an entry has one payload for all time"),
        ("panic", "nothing panics"),
        ("stopped without an injected cause", "no replica stops without a cause"),
        ("do not converge", "healed replicas converge"),
        ("get no service", "a healed group serves"),
        ("cannot read", "what is in a queue can be read"),
    ];
    let known = WORDS.iter().find(|(words, _)| finding.contains(words)).map(|(_, check)| (*check).to_owned());
    known.unwrap_or_else(|| finding.split(':').next().unwrap_or(finding).to_owned())
}
