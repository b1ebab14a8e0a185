//! `flotilla admin dlq`.

use clap::Subcommand;
use flotilla_client::AdminClient;
use flotilla_message::GroupName;
use flotilla_proto::admin;
use serde::Serialize;

use super::group::not_done;
use super::message::{MessageView, letters_table_of, view_of};
use super::{print, while_doing};
use crate::connect_options::group_name;
use crate::failure::Failure;

#[derive(Debug, Subcommand)]
pub enum DlqCommand {
    /// List what a group could not consume
    List {
        #[arg(value_name = "GROUP", value_parser = group_name)]
        group: GroupName,
        /// From this offset of the dead letters on [default: the first one not resent]
        #[arg(long, value_name = "OFFSET")]
        from: Option<u64>,
        #[arg(long, value_name = "COUNT", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=256))]
        count: u32,
    },
    /// Deliver dead letters to their group again, from their own place in their own topic; other groups see nothing of it
    #[command(group = clap::ArgGroup::new("which").required(true).args(["offset", "all"]))]
    Resend {
        #[arg(value_name = "GROUP", value_parser = group_name)]
        group: GroupName,
        /// These, by their offsets among the dead letters
        #[arg(long, value_name = "OFFSET", value_delimiter = ',')]
        offset: Vec<u64>,
        /// All that were not resent yet
        #[arg(long)]
        all: bool,
        /// Stop after so many
        #[arg(long, value_name = "COUNT", default_value_t = 10_000)]
        max: u64,
    },
}

#[derive(Serialize)]
struct ListView {
    min_offset: u64,
    max_offset: u64,
    unsent_offset: u64,
    letters: Vec<MessageView>,
}

#[derive(Serialize)]
struct FailedView {
    offset: u64,
    reason: String,
}

#[derive(Serialize, Default)]
struct ResentView {
    resent: u64,
    failed: Vec<FailedView>,
    remaining: u64,
}

/// Something that was asked for was not done; what, was printed.
#[derive(Debug, thiserror::Error)]
#[error("{count} dead letters of group {group} are not resent")]
struct NotResent {
    count: usize,
    group: GroupName,
}

pub async fn run(command: DlqCommand, admin: &AdminClient, json: bool) -> Result<(), Failure> {
    match command {
        DlqCommand::List { group, from, count } => {
            let request = admin::ListDeadLettersRequest { group: group.to_string(), from_offset: from, count };
            let reply = admin.list_dead_letters(request).await.map_err(|error| not_done("read", &group, error))?;
            let view = ListView {
                min_offset: reply.min_offset,
                max_offset: reply.max_offset,
                unsent_offset: reply.unsent_offset,
                letters: reply.letters.iter().map(view_of).collect(),
            };
            print(json, &view, || {
                let waiting = view.max_offset - view.unsent_offset;
                let total = view.max_offset - view.min_offset;
                let head = format!("group {group} has {total} dead letters, {waiting} of them not resent");
                if view.letters.is_empty() { head } else { format!("{head}\n{}", letters_table_of(&view.letters)) }
            })
        }
        DlqCommand::Resend { group, offset, all, max } => {
            let mut view = ResentView::default();
            let mut offsets = offset;
            loop {
                let done = view.resent + view.failed.len() as u64;
                let count = u32::try_from((max - done).min(256)).unwrap_or(256);
                let batch: Vec<u64> = offsets.drain(..offsets.len().min(count as usize)).collect();
                if count == 0 || (!all && batch.is_empty()) {
                    break;
                }
                let request = admin::ResendDeadLettersRequest { group: group.to_string(), offsets: batch, count };
                let reply = admin.resend_dead_letters(request).await;
                let reply = reply.map_err(while_doing(format!(
                    "dead letters of group {group} are not all resent, {} were before",
                    view.resent
                )))?;
                view.resent += reply.resent;
                let failed = reply.failed.into_iter();
                view.failed.extend(failed.map(|letter| FailedView { offset: letter.offset, reason: letter.reason }));
                view.remaining = reply.remaining;
                tracing::info!(resent = view.resent, remaining = view.remaining, "resending");
                if all && reply.remaining == 0 {
                    break;
                }
            }
            print(json, &view, || {
                let mut text = format!("{} dead letters of group {group} are resent", view.resent);
                if view.remaining > 0 {
                    text.push_str(&format!(", {} remain", view.remaining));
                }
                for failed in &view.failed {
                    text.push_str(&format!("\nnot that at offset {}: {}", failed.offset, failed.reason));
                }
                text
            })?;
            match view.failed.len() {
                0 => Ok(()),
                count => Err(NotResent { count, group }.into()),
            }
        }
    }
}
