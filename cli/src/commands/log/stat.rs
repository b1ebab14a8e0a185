//! `flotilla log stat`: what is there, by the headers.

use flotilla_raft_log::tools::{Depth, EntryRow, SegmentRow, SegmentState};

use super::directory::{Directory, Findings};
use crate::failure::Failure;
use crate::output;
use crate::table::Table;

pub fn run(directory: &Directory, json: bool) -> Result<(), Failure> {
    let findings = directory.examine(Depth::Headers)?;
    if json {
        output::line(serde_json::to_string_pretty(&findings)?);
    } else {
        output::line(text_of(&findings).trim_end());
    }
    Ok(())
}

fn entry(id: Option<EntryRow>) -> String {
    id.map_or_else(|| "none".to_owned(), |id| format!("{}.{}", id.term, id.index))
}

/// All of it, as people read it.
pub fn text_of(findings: &Findings) -> String {
    let log = &findings.log;
    let mut text = String::new();
    match &log.identity {
        Some(identity) => {
            text += &format!("cluster {}, group {}, node {}\n", identity.cluster, identity.group, identity.node);
        }
        None => text += "identity: damaged or missing\n",
    }
    let vote = log.vote.map_or_else(
        || "none".to_owned(),
        |vote| format!("term {} for node {}{}", vote.term, vote.node, if vote.committed { ", granted" } else { "" }),
    );
    text += &format!("vote {vote}; purged to {}; committed {}\n", entry(log.purged), entry(log.committed));
    text += &format!(
        "entries {} to {} (term.index of marks; {} records)\n\n",
        log.first,
        log.end.saturating_sub(1),
        log.records
    );
    text += &segments(&log.segments);
    if !log.checkpoints.is_empty() {
        text += &format!("\n{}", checkpoints(findings));
    }
    if !findings.index_files.is_empty() {
        text += &format!("\n{}", index_files(findings));
    }
    if !findings.part_files.is_empty() {
        text += &format!("\n{}", part_files(findings));
    }
    let names = |what: &str, names: &[String]| {
        if names.is_empty() { String::new() } else { format!("\n{what}: {}\n", names.join(", ")) }
    };
    text += &names("left over or made ahead", &log.leftovers);
    text += &names("none of the log's files", &log.foreign_files);
    text += &names("set aside as damaged", &findings.set_aside);
    if !log.damages.is_empty() {
        text += &format!("\n{} damage(s) already seen; `flotilla log verify` looks at everything\n", log.damages.len());
    }
    text
}

fn segments(rows: &[SegmentRow]) -> String {
    let mut table = Table::new(["SEGMENT", "STATE", "FIRST", "LAST", "TERMS", "RECORDS", "USED", "BYTES", "DAMAGES"]);
    for row in rows {
        let state = match row.state {
            SegmentState::Tail => "tail",
            SegmentState::Sealed => "sealed",
            SegmentState::Dead => "dead",
            SegmentState::Unreadable => "unreadable",
        };
        let last = if row.records == 0 { "-".to_owned() } else { (row.end.saturating_sub(1)).to_string() };
        let terms = row.terms.map_or_else(|| "-".to_owned(), |(low, high)| format!("{low}-{high}"));
        table.row([
            row.file.clone(),
            state.to_owned(),
            row.first.to_string(),
            last,
            terms,
            row.records.to_string(),
            row.used_bytes.to_string(),
            row.file_bytes.to_string(),
            row.damages.to_string(),
        ]);
    }
    table.to_string()
}

fn checkpoints(findings: &Findings) -> String {
    let mut table = Table::new([
        "CHECKPOINT",
        "ENTRY",
        "ORIGIN",
        "BYTES",
        "TOPICS",
        "QUEUES",
        "SLOTS",
        "GROUPS",
        "INDEX FILES",
        "DAMAGE",
    ]);
    for row in &findings.log.checkpoints {
        let found = findings.states.iter().find(|state| state.checkpoint == row.file);
        let state = found.and_then(|row| row.state.as_ref());
        let number = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
        table.row([
            row.file.clone(),
            entry(row.last),
            row.origin.unwrap_or("-").to_owned(),
            row.file_bytes.to_string(),
            number(state.map(|state| state.topics)),
            number(state.map(|state| state.queues)),
            number(state.map(|state| state.slots)),
            number(state.map(|state| state.groups)),
            number(state.map(|state| state.index_files.len() as u64)),
            row.damage.clone().or_else(|| found.and_then(|row| row.damage.clone())).unwrap_or_default(),
        ]);
    }
    table.to_string()
}

fn index_files(findings: &Findings) -> String {
    let mut table = Table::new(["INDEX FILE", "FIRST", "LAST", "QUEUES", "SLOTS", "DAMAGE"]);
    for row in &findings.index_files {
        let index = |index: Option<u64>| index.map_or_else(|| "-".to_owned(), |index| index.to_string());
        table.row([
            row.file.clone(),
            index(row.mark.map(|mark| mark.first_index)),
            index(row.mark.map(|mark| mark.last_index)),
            row.queues.to_string(),
            row.slots.to_string(),
            row.damage.clone().unwrap_or_default(),
        ]);
    }
    table.to_string()
}

fn part_files(findings: &Findings) -> String {
    let mut table = Table::new(["PART FILE", "BYTES", "PARTS", "CHECKPOINTS", "DAMAGE"]);
    for row in &findings.part_files {
        let states = findings.states.iter().filter_map(|found| found.state.as_ref());
        let relying = states.filter(|state| state.part_files.contains(&row.file)).count();
        table.row([
            row.file.clone(),
            row.bytes.to_string(),
            row.parts.to_string(),
            relying.to_string(),
            row.damage.clone().unwrap_or_default(),
        ]);
    }
    table.to_string()
}
