//! The matrix of docs/ha-levels.md as data: each cell with what it claims, the plan that shows it, and the verdict of its run.

mod account;
mod cells;

use std::fmt;

use flotilla_message::{AckLevel, FlushLevel};
use serde::Serialize;

pub use self::account::{CellAccount, ColumnSeen, Outcome};
use crate::levels::{Level, Levels};
use crate::network_mode::NetworkMode;
use crate::plan::Plan;
use crate::run_record::Settings;
use crate::scenario::Limits;

/// Messages a second: all columns share them.
const RATE: u64 = 180;

/// What a cell says of one level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Claim {
    /// Nothing that was acknowledged is lost.
    Nothing,
    /// The tail that no other replica had may be lost; it is counted and kept aside when the old leader comes back.
    Counted,
    /// As much may be lost, and nobody is left to count it: a page cache or a disk is gone.
    Uncounted,
    /// Lost is what the survivor lacks, exactly.
    Lacked,
    /// Everything is lost.
    All,
    /// The level is refused in such a group.
    Refused,
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Claim::Nothing => "0",
            Claim::Counted => "T",
            Claim::Uncounted => "C",
            Claim::Lacked => "lacks",
            Claim::All => "all",
            Claim::Refused => "-",
        })
    }
}

/// When replicas confirm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Durability {
    /// What is on their disk.
    Fsync,
    /// What is in their page cache.
    Os,
}

/// The columns of the table: levels that one run has side by side.
pub const COLUMNS: [Level; 6] = [
    Level { ack: AckLevel::Async, flush: FlushLevel::Async },
    Level { ack: AckLevel::Async, flush: FlushLevel::Sync },
    Level { ack: AckLevel::Majority, flush: FlushLevel::Async },
    Level { ack: AckLevel::Majority, flush: FlushLevel::Sync },
    Level { ack: AckLevel::Sync, flush: FlushLevel::Async },
    Level { ack: AckLevel::Sync, flush: FlushLevel::Sync },
];

/// One cause in a group of one size, at all levels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    /// How it is called on the command line.
    pub name: String,
    /// What happens.
    pub cause: &'static str,
    /// Size of the group.
    pub replicas: u64,
    /// When its replicas confirm.
    pub durability: Durability,
    /// Level by level, as [`COLUMNS`] has them.
    pub claims: [Claim; 6],
    /// Nothing is acknowledged while the faults of its plan hold.
    pub waits: bool,
    /// The plan makes sure that something is lost at these levels: a run in which nothing was does not show the cell.
    pub must_lose: Vec<Level>,
    /// Lines of the brokers' settings files, beside those that every cell has.
    pub broker: &'static [&'static str],
    /// What is done.
    pub plan: Plan,
}

impl Cell {
    /// All there are.
    pub fn all() -> Vec<Cell> {
        cells::all()
    }

    /// The one of that name, or those of a row: all sizes.
    pub fn named(name: &str) -> Vec<Cell> {
        let is_meant =
            |cell: &Cell| cell.name == name || cell.name.rsplit_once('-').is_some_and(|(row, _)| row == name);
        Cell::all().into_iter().filter(is_meant).collect()
    }

    /// How its run is made. The seed is in the messages' ids; the plan is what it is.
    pub fn settings(&self, seed: u64) -> Settings {
        let mut acks = vec![AckLevel::Async, AckLevel::Majority];
        if self.replicas > 1 {
            acks.push(AckLevel::Sync);
        }
        // Where everything is lost, nothing comes back in another shape before an operator has made it anew.
        let mut broker = vec!["auto_create_topics = false".to_owned(), "auto_create_groups = false".to_owned()];
        if self.durability == Durability::Os {
            broker.push("raft_durability = \"os\"".to_owned());
        }
        broker.extend(self.broker.iter().map(|line| (*line).to_owned()));
        let mut settings = Settings {
            seed,
            faults: Vec::new(),
            duration_ms: 0,
            rate: RATE,
            replicas: 0,
            overlaps: false,
            plan_file: None,
            scenario: None,
            levels: Levels::by_turns(acks, vec![FlushLevel::Async, FlushLevel::Sync]),
            limits: Limits::default(),
            broker,
            network: NetworkMode::default(),
        };
        settings.follow(&self.plan);
        settings.seed = seed;
        settings
    }

    /// What it says of a level.
    pub fn claim(&self, level: Level) -> Claim {
        let at = COLUMNS.iter().position(|column| *column == level);
        self.claims[at.expect("the columns are all levels there are")]
    }

    /// Whether consumers may have had what is lost by right: then it was committed.
    pub(crate) fn loses_what_was_committed(&self) -> bool {
        COLUMNS.iter().any(|level| {
            let may_lose = !matches!(self.claim(*level), Claim::Nothing | Claim::Refused);
            level.ack != AckLevel::Async && may_lose
        }) || (self.replicas == 1 && self.claims.contains(&Claim::All))
    }

    /// Whether its replicas' machines must be known to have booted again: what was confirmed may be gone with them.
    pub fn needs_boots(&self) -> bool {
        self.durability == Durability::Os
    }
}
