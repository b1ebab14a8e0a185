//! `flotilla-chaos matrix`: runs cells of the matrix and holds each against what it claims.

use std::path::{Path, PathBuf};

use flotilla_chaos::matrix::{COLUMNS, Cell, CellAccount, Outcome};
use flotilla_chaos::{Abilities, NetworkMode, RunDir, Settings};
use flotilla_runtime::Runtime;

use crate::options::MatrixOptions;
use crate::{ChaosError, carry_out, line, program};

/// True if every cell that could be tried holds.
pub async fn run(options: MatrixOptions, runtime: Runtime) -> Result<bool, ChaosError> {
    let (cells, network) = (chosen(&options)?, options.network.mode);
    if options.list {
        cells.iter().for_each(list);
        return Ok(true);
    }
    let program = program(options.flotilla)?;
    let dir = options.dir.unwrap_or_else(|| PathBuf::from("target/chaos/matrix"));
    let shim = Abilities::probe().await.shim;
    let mut accounts = Vec::new();
    for cell in &cells {
        let account = match &shim {
            Err(why) if cell.needs_boots() => cell.skipped(why.clone()),
            _ => show(cell, network, &program, &dir, options.tries, &runtime).await?,
        };
        if options.json {
            line(&serde_json::to_string(&account).expect("numbers and strings become JSON"));
        }
        eprintln!("chaos: {account}");
        accounts.push(account);
    }
    if !options.json {
        line(&header());
        accounts.iter().for_each(|account| line(&account.to_string()));
    }
    Ok(accounts.iter().all(|account| matches!(account.outcome, Outcome::Holds | Outcome::Skipped)))
}

fn chosen(options: &MatrixOptions) -> Result<Vec<Cell>, ChaosError> {
    if options.cells.is_empty() {
        return Ok(Cell::all());
    }
    let mut cells = Vec::new();
    for name in &options.cells {
        let named = Cell::named(name);
        if named.is_empty() {
            return Err(ChaosError::NoCell(name.clone()));
        }
        cells.extend(named);
    }
    Ok(cells)
}

/// Runs a cell until it shows what it should, or so often.
async fn show(
    cell: &Cell,
    network: NetworkMode,
    program: &Path,
    dir: &Path,
    tries_max: u64,
    runtime: &Runtime,
) -> Result<CellAccount, ChaosError> {
    let path = dir.join(&cell.name);
    let mut tries = 0;
    loop {
        tries += 1;
        eprintln!("chaos: {}: {}, {} replicas", cell.name, cell.cause, cell.replicas);
        let settings = Settings { network, ..cell.settings(tries) };
        let report = carry_out(settings, Some(cell.plan.clone()), program.to_owned(), &path, false, runtime).await?;
        if let Some(skipped) = report.skipped.first() {
            return Ok(cell.skipped(format!("{}: {}", skipped.kind, skipped.why)));
        }
        let run = RunDir::open(&path)?;
        let (events, record) = (run.read_history()?, run.read_record()?);
        let account = cell.account(&events, &record, &report).map_err(ChaosError::History)?;
        if account.outcome == Outcome::Holds {
            run.remove_data()?;
        }
        if account.outcome != Outcome::NotShown || tries >= tries_max {
            return Ok(CellAccount { tries, ..account });
        }
    }
}

fn list(cell: &Cell) {
    let claims: Vec<String> = cell.claims.iter().map(|claim| format!("{claim:<7}")).collect();
    let wait = if cell.waits { ", wait" } else { "" };
    line(&format!("{:<28}{}{} replicas{wait}: {}", cell.name, claims.concat(), cell.replicas, cell.cause));
}

/// Above the accounts: each column is what the cell claims, and how many of the acknowledged messages were lost.
fn header() -> String {
    let columns: Vec<String> = COLUMNS.iter().map(|level| format!("{:<16}", level.to_string())).collect();
    format!("{:<28}{:<11}{}", "cell", "", columns.concat())
}
