//! `flotilla admin lost-tail`: messages that were acknowledged before their commit and overridden by another leader.

use std::path::{Path, PathBuf};

use flotilla_message::StoredFrame;
use flotilla_raft_log::{LostEntry, LostTail, OsDisk};
use flotilla_store::{Command, Entry};
use serde::Serialize;

use super::print;
use crate::commands::log::Directory;
use crate::failure::Failure;
use crate::table::Table;

/// One message that is lost.
#[derive(Serialize)]
struct LostRow {
    file: PathBuf,
    index: u64,
    term: u64,
    topic: String,
    queue: u32,
    message_id: String,
    body_bytes: usize,
}

/// A payload that the store does not understand.
#[derive(Debug, thiserror::Error)]
#[error("entry {index} in {} is not understood: {reason}", file.display())]
struct NotUnderstood {
    file: PathBuf,
    index: u64,
    reason: String,
}

pub fn run(dir: &Path, json: bool) -> Result<(), Failure> {
    let inner = dir.join("log");
    let log_dir = if inner.is_dir() { inner } else { dir.to_owned() };
    // Nothing lost is only true of a log. It may be in use.
    drop(Directory::open(dir, true)?);
    let mut rows = Vec::new();
    for file in LostTail::files(&OsDisk, &log_dir)? {
        let tail = LostTail::read(&OsDisk, &file)?;
        for entry in &tail.entries {
            rows.extend(rows_of(&file, entry)?);
        }
    }
    print(json, &rows, || table_of(&rows))
}

fn rows_of(file: &Path, entry: &LostEntry) -> Result<Vec<LostRow>, Failure> {
    let parsed = Entry::parse(&entry.payload).map_err(|error| NotUnderstood {
        file: file.to_owned(),
        index: entry.index.0,
        reason: error.to_string(),
    })?;
    let noted = parsed.commands.iter().filter_map(|command| match command {
        Command::AnsweredEarly { commands } => Some(commands),
        _ => None,
    });
    let sends = noted.flatten().filter_map(|number| match parsed.commands.get(*number as usize)? {
        Command::Produce { topic, queue, frames } | Command::Prepare { topic, queue, frames, .. } => {
            Some((topic, queue, frames))
        }
        _ => None,
    });
    let row = |topic: &flotilla_message::TopicName, queue: u32, frame: &StoredFrame| LostRow {
        file: file.to_owned(),
        index: entry.index.0,
        term: entry.term.0,
        topic: topic.to_string(),
        queue,
        message_id: frame.view().id().to_owned(),
        body_bytes: frame.view().body().len(),
    };
    Ok(sends.flat_map(|(topic, queue, frames)| frames.iter().map(move |frame| row(topic, queue.0, frame))).collect())
}

fn table_of(rows: &[LostRow]) -> String {
    let mut table = Table::new(["INDEX", "TERM", "TOPIC", "QUEUE", "MESSAGE ID", "BYTES"]);
    for row in rows {
        let [index, term] = [row.index, row.term].map(|number| number.to_string());
        let (queue, bytes) = (row.queue.to_string(), row.body_bytes.to_string());
        table.row([index, term, row.topic.clone(), queue, row.message_id.clone(), bytes]);
    }
    if table.is_empty() {
        "no acknowledged message of this replica was overridden".to_owned()
    } else {
        table.to_string()
    }
}
