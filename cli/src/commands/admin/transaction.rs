//! `flotilla admin transaction`.

use clap::{Subcommand, ValueEnum};
use flotilla_client::AdminClient;
use flotilla_proto::admin;
use serde::Serialize;

use super::{print, while_doing};
use crate::failure::Failure;
use crate::table::Table;

#[derive(Debug, Subcommand)]
pub enum TransactionCommand {
    /// List the oldest open transactions
    List {
        /// Only those that nobody is asked about any more
        #[arg(long)]
        parked: bool,
        #[arg(long, value_name = "COUNT", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=256))]
        count: u32,
    },
    /// End a transaction in its producer's place
    Resolve {
        /// As `list` shows it with --json, or as the producer was told
        #[arg(value_name = "TRANSACTION")]
        id: String,
        /// How it ends
        #[arg(long, value_name = "END")]
        to: End,
    },
}

/// How a transaction ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum End {
    /// Its message is delivered
    Commit,
    /// Its message is dropped
    Rollback,
}

#[derive(Serialize)]
struct OpenView {
    topic: String,
    queue: u32,
    message_id: String,
    transaction_id: String,
    checks: u32,
    parked: bool,
    prepared_at_ms: u64,
}

#[derive(Serialize)]
struct ListView {
    open: u64,
    parked: u64,
    transactions: Vec<OpenView>,
}

#[derive(Serialize)]
struct ResolvedView<'a> {
    resolved: &'a str,
    committed: bool,
}

pub async fn run(command: TransactionCommand, admin: &AdminClient, json: bool) -> Result<(), Failure> {
    match command {
        TransactionCommand::List { parked, count } => {
            let request = admin::ListTransactionsRequest { parked_only: parked, count };
            let reply = admin.list_transactions(request).await;
            let reply = reply.map_err(while_doing("transactions cannot be listed"))?;
            let transactions = reply.transactions.into_iter().map(|open| OpenView {
                topic: open.topic,
                queue: open.queue,
                message_id: open.message_id,
                transaction_id: open.transaction_id,
                checks: open.checks,
                parked: open.parked,
                prepared_at_ms: open.prepared_at_ms,
            });
            let view =
                ListView { open: reply.open_count, parked: reply.parked_count, transactions: transactions.collect() };
            print(json, &view, || text_of(&view))
        }
        TransactionCommand::Resolve { id, to } => {
            let commit = to == End::Commit;
            let request = admin::ResolveTransactionRequest { transaction_id: id.clone(), commit };
            admin.resolve_transaction(request).await.map_err(while_doing("transaction is not ended"))?;
            let ended = if commit { "committed" } else { "rolled back" };
            print(json, &ResolvedView { resolved: &id, committed: commit }, || format!("transaction is {ended}"))
        }
    }
}

fn text_of(view: &ListView) -> String {
    let head = format!("{} transactions are open, {} of them parked", view.open, view.parked);
    if view.transactions.is_empty() {
        return head;
    }
    let mut table = Table::new(["TOPIC", "MESSAGE", "CHECKS", "PARKED", "PREPARED AT MS", "TRANSACTION"]);
    for open in &view.transactions {
        let parked = if open.parked { "yes" } else { "no" };
        let (checks, prepared) = (open.checks.to_string(), open.prepared_at_ms.to_string());
        let (topic, message, id) = (open.topic.clone(), open.message_id.clone(), open.transaction_id.clone());
        table.row([topic, message, checks, parked.to_owned(), prepared, id]);
    }
    format!("{head}\n{table}")
}
