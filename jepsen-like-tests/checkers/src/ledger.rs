//! The ledger: sums of what was run, commit by commit, one JSON object a line.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

/// One sweep, or one run on real processes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerRow {
    /// Short hash; with `+` if files were changed since.
    pub commit: String,
    /// `sim` or `chaos`.
    pub tool: String,
    /// The machine that was simulated, or the kind of run.
    pub what: String,
    /// How many seeds or runs.
    pub seeds: u64,
    /// The first of them.
    pub first_seed: u64,
    /// Of these, broken.
    pub failed: u64,
    /// Of these, without proof.
    pub void: u64,
    /// Messages acknowledged.
    pub acks: u64,
    /// Milliseconds under load, virtual ones in a simulation.
    pub ms: u64,
    /// How often each was done.
    pub faults: BTreeMap<String, u64>,
}

/// The commit that is checked out; "unknown" where nobody can tell.
pub fn commit() -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(hash) = git(&["rev-parse", "--short=10", "HEAD"]) else { return "unknown".to_owned() };
    let is_changed = git(&["status", "--porcelain", "--untracked-files=no"]).is_none_or(|changes| !changes.is_empty());
    if is_changed { format!("{hash}+") } else { hash }
}

/// Adds a row to a file, which is made if it is not there.
///
/// # Errors
/// What the file system answers, with the file's name.
pub fn add(path: &Path, row: &LedgerRow) -> Result<(), String> {
    let at = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let mut line = serde_json::to_string(row).map_err(|error| at(&error))?;
    line.push('\n');
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    file.and_then(|mut file| file.write_all(line.as_bytes())).map_err(|error| at(&error))
}

fn read(path: &Path) -> Result<Vec<LedgerRow>, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let row = |(at, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|error| format!("{} line {}: {error}", path.display(), at + 1))
    };
    lines.map(row).collect()
}

/// A table with a line for each commit, in the order of the file, and the sums of all.
///
/// # Errors
/// If the file cannot be read, or a line of it is no row.
pub fn table(path: &Path) -> Result<String, String> {
    let rows = read(path)?;
    let mut commits: Vec<(String, String)> = Vec::new();
    for row in &rows {
        let key = (row.commit.clone(), row.tool.clone());
        if !commits.contains(&key) {
            commits.push(key);
        }
    }
    let mut table = String::from("| commit | by | seeds or runs | failed | void | acknowledged | hours | faults |\n");
    table.push_str("|---|---|---|---|---|---|---|---|\n");
    let mut line = |name: &str, tool: &str, rows: &[&LedgerRow]| {
        let sum = |value: fn(&LedgerRow) -> u64| rows.iter().map(|row| value(row)).sum::<u64>();
        let faults: u64 = rows.iter().flat_map(|row| row.faults.values()).sum();
        let _ = writeln!(
            table,
            "| {name} | {tool} | {} | {} | {} | {} | {:.1} | {faults} |",
            sum(|row| row.seeds),
            sum(|row| row.failed),
            sum(|row| row.void),
            sum(|row| row.acks),
            sum(|row| row.ms) as f64 / 3_600_000.0
        );
    };
    for (commit, tool) in &commits {
        let own: Vec<&LedgerRow> = rows.iter().filter(|row| row.commit == *commit && row.tool == *tool).collect();
        line(commit, tool, &own);
    }
    for tool in ["sim", "chaos"] {
        let own: Vec<&LedgerRow> = rows.iter().filter(|row| row.tool == tool).collect();
        if !own.is_empty() {
            line("all", tool, &own);
        }
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_added_and_read_back() {
        let path = std::env::temp_dir().join(format!("flotilla-ledger-{}.jsonl", std::process::id()));
        let row = LedgerRow {
            commit: "abc".into(),
            tool: "sim".into(),
            what: "store".into(),
            seeds: 3,
            first_seed: 1,
            failed: 0,
            void: 1,
            acks: 70,
            ms: 9,
            faults: BTreeMap::from([("Kill".into(), 4)]),
        };
        add(&path, &row).unwrap();
        add(&path, &row).unwrap();
        assert_eq!(read(&path), Ok(vec![row.clone(), row]));
        std::fs::remove_file(&path).unwrap();
    }
}
