//! `flotilla log dump`: records, one a line.

use std::ops::Range;

use flotilla_raft_log::LogIndex;
use flotilla_raft_log::tools::RecordRow;
use flotilla_store::Entry;
use serde::Serialize;

use super::commands_text::describe;
use super::directory::Directory;
use crate::failure::Failure;
use crate::output;

#[derive(Serialize)]
struct RecordView<'a> {
    #[serde(flatten)]
    record: &'a RecordRow,
    #[serde(skip_serializing_if = "Option::is_none")]
    commands: Option<Vec<String>>,
}

/// Told after the records, so that scripts see it in the exit code.
#[derive(Debug, thiserror::Error)]
#[error("{0} of the printed records are damaged")]
struct Damaged(u64);

pub fn run(
    directory: &Directory,
    range: Range<LogIndex>,
    limit: u64,
    with_commands: bool,
    json: bool,
) -> Result<(), Failure> {
    let (mut printed, mut damaged) = (0, 0);
    let mut failed = None;
    if limit == 0 {
        return Ok(());
    }
    directory.log.records(range, &mut |record| {
        damaged += u64::from(record.damage.is_some());
        let commands = (with_commands && record.kind == "proposal").then(|| commands_of(&record));
        if json {
            match serde_json::to_string(&RecordView { record: &record, commands }) {
                Ok(line) => output::line(line),
                Err(error) => failed = Some(error),
            }
        } else {
            output::line(text_of(&record, commands.as_deref()));
        }
        printed += 1;
        printed < limit && failed.is_none()
    })?;
    if let Some(error) = failed {
        return Err(error.into());
    }
    if damaged == 0 { Ok(()) } else { Err(Damaged(damaged).into()) }
}

fn commands_of(record: &RecordRow) -> Vec<String> {
    match Entry::parse(&record.payload) {
        Ok(entry) => entry.commands.iter().map(describe).collect(),
        Err(error) => vec![format!("not an entry of the store: {error}")],
    }
}

fn text_of(record: &RecordRow, commands: Option<&[String]>) -> String {
    let mut text = format!(
        "{}.{}  {}  {} bytes  {}@{}",
        record.term, record.index, record.kind, record.payload_bytes, record.file, record.position
    );
    if !record.voters.is_empty() {
        text += &format!("  voters {:?}", record.voters);
    }
    match &record.damage {
        Some(what) => text += &format!("  DAMAGED: {what}"),
        None => text += "  ok",
    }
    for command in commands.unwrap_or_default() {
        text += &format!("\n    {command}");
    }
    text
}
