//! `regressions`: plans that once failed, each in several orders of steps.

use std::path::{Path, PathBuf};

use flotilla_sim::{Case, Machine, Size};

use super::Setting;
use super::run_one::read_case;
use super::worker::Worker;

pub(crate) fn regressions(dir: &Path, schedules: u64) -> Result<bool, String> {
    let at = |error: std::io::Error| format!("{}: {error}", dir.display());
    let entries = std::fs::read_dir(dir).map_err(at)?.collect::<Result<Vec<_>, _>>().map_err(at)?;
    let mut files: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    let mut is_good = true;
    let mut worker = Worker::new(Setting::of(Machine::Store, Size::Standard, None));
    for path in &files {
        // Without its bug, if it has one: what once failed must hold.
        let case = Case { bug: None, ..read_case(path)? };
        for schedule in 0..schedules.max(1) {
            let case = Case { schedule: case.schedule.wrapping_add(schedule), ..case.clone() };
            let findings = match worker.run_case(&case) {
                Ok(told) => told.findings,
                Err(text) => vec![text],
            };
            for finding in &findings {
                println!("{} in schedule {}: BROKEN {finding}", path.display(), case.schedule);
            }
            is_good &= findings.is_empty();
        }
    }
    println!("{} cases in {schedules} orders of steps: {}", files.len(), if is_good { "all hold" } else { "BROKEN" });
    Ok(is_good && !files.is_empty())
}
