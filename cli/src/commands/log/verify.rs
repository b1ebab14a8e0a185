//! `flotilla log verify`: every byte that counts.

use flotilla_raft_log::tools::{Damage, Depth};
use serde::Serialize;

use super::directory::{Directory, Findings};
use crate::failure::Failure;
use crate::output;
use crate::table::Table;

#[derive(Serialize)]
struct Verdict<'a> {
    is_clean: bool,
    segments: usize,
    records: u64,
    checkpoints: usize,
    index_files: usize,
    part_files: usize,
    damages: &'a [Damage],
}

/// Told after the table, so that scripts see it in the exit code.
#[derive(Debug, thiserror::Error)]
#[error("{0} damage(s) found")]
struct Damaged(usize);

pub fn run(directory: &Directory, json: bool) -> Result<(), Failure> {
    let findings = directory.examine(Depth::Checksums)?;
    let damages = &findings.log.damages;
    if json {
        output::line(serde_json::to_string_pretty(&verdict(&findings))?);
    } else {
        output::line(text_of(&findings).trim_end());
    }
    if damages.is_empty() { Ok(()) } else { Err(Damaged(damages.len()).into()) }
}

fn verdict(findings: &Findings) -> Verdict<'_> {
    let log = &findings.log;
    Verdict {
        is_clean: log.damages.is_empty(),
        segments: log.segments.len(),
        records: log.records,
        checkpoints: log.checkpoints.len(),
        index_files: findings.index_files.len(),
        part_files: findings.part_files.len(),
        damages: &log.damages,
    }
}

fn text_of(findings: &Findings) -> String {
    let Verdict { is_clean, segments, records, checkpoints, index_files, part_files, damages } = verdict(findings);
    let looked = format!(
        "{segments} segment(s), {records} record(s), {checkpoints} checkpoint(s), {index_files} index file(s), \
         {part_files} part file(s)"
    );
    if is_clean {
        return format!("clean: {looked}");
    }
    let mut table = Table::new(["FILE", "BYTE", "DAMAGE"]);
    for damage in damages {
        table.row([damage.file.clone(), damage.offset.to_string(), damage.what.clone()]);
    }
    format!("{table}\nlooked at {looked}")
}
