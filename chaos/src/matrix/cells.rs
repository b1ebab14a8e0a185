//! The cells, row by row as docs/ha-levels.md has them.

use super::{COLUMNS, Cell, Claim, Durability};
use crate::levels::Level;
use crate::nemesis::{
    Amnesia, Border, End, Fault, FaultKind, Kill, MajorityGone, MembershipChurn, OneWay, OnlyDiskGone, Partition,
    PowerLoss, RollingRestart, SlowSync, Style, TailThen, Victim, WipeDisk,
};
use crate::plan::{Plan, QUIET_END_MS, Step};

use Claim::{All, Counted, Lacked, Nothing, Uncounted};

const ZERO: [Claim; 6] = [Nothing; 6];
const TAIL: [Claim; 6] = [Counted, Counted, Nothing, Nothing, Nothing, Nothing];
const TAIL_UNCOUNTED: [Claim; 6] = [Uncounted, Uncounted, Nothing, Nothing, Nothing, Nothing];
const CACHE: [Claim; 6] = [Uncounted, Nothing, Nothing, Nothing, Nothing, Nothing];
const CACHE_OR_TAIL: [Claim; 6] = [Uncounted, Counted, Nothing, Nothing, Nothing, Nothing];
const INTERVAL: [Claim; 6] = [Uncounted, Nothing, Uncounted, Nothing, Uncounted, Nothing];
const INTERVAL_OR_TAIL: [Claim; 6] = [Uncounted, Counted, Uncounted, Nothing, Uncounted, Nothing];

const ASYNC_ASYNC: Level = COLUMNS[0];
const ASYNC_SYNC: Level = COLUMNS[1];
const MAJORITY_ASYNC: Level = COLUMNS[2];

/// When the first fault strikes, and how long after one fault the next one does.
const FIRST_MS: u64 = 3_000;
const APART_MS: u64 = 4_000;
/// Longer than a lease and the patience of whoever waits in it.
const WAIT_MS: u64 = 4_000;
/// Longer than a follower that is cut off stays among those that keep up.
const LACKS_MS: u64 = 2_500;
/// Shorter than the lease within which a leader that is cut off takes messages.
const CUT_MS: u64 = 300;
/// A sync takes so long; the power goes in its middle.
const SLOW_SYNC_MS: u64 = 600;

/// A fault and how long it holds.
type Blow = (FaultKind, Fault, u64);

/// What a row says of a group of one size.
struct Row {
    claims: [Claim; 6],
    waits: bool,
    must_lose: Vec<Level>,
    broker: &'static [&'static str],
    /// Each after the one before is healed, or where `meets` says so while that holds.
    blows: Vec<Blow>,
    meets: bool,
}

impl Row {
    fn new(claims: [Claim; 6], blows: Vec<Blow>) -> Row {
        Row { claims, waits: false, must_lose: Vec::new(), broker: &[], blows, meets: false }
    }

    fn waits(self) -> Row {
        Row { waits: true, ..self }
    }

    fn must_lose(self, levels: &[Level]) -> Row {
        Row { must_lose: levels.to_vec(), ..self }
    }
}

fn kill(kind: FaultKind, victim: Victim, hold_ms: u64) -> Blow {
    (kind, Fault::Kill(Kill { victim }), hold_ms)
}

fn power(kind: FaultKind, victim: Victim, hold_ms: u64) -> Blow {
    (kind, Fault::PowerLoss(PowerLoss { victim, survivors: 0 }), hold_ms)
}

fn tail_then(kind: FaultKind, end: End) -> Blow {
    (kind, Fault::TailThen(TailThen { cut_ms: CUT_MS, end }), 1_000)
}

fn partition(kind: FaultKind, border: Border, style: Style) -> Blow {
    (kind, Fault::Partition(Partition { border, style }), WAIT_MS)
}

fn majority_gone(survivor: Victim, lacks_ms: u64, come_back_empty: bool) -> Blow {
    let fault = MajorityGone { survivor, lacks_ms, come_back_empty };
    (FaultKind::MajorityGone, Fault::MajorityGone(fault), WAIT_MS)
}

const FOLLOWER: Victim = Victim::Follower { pick: 0 };

fn clean_stop(replicas: u64) -> Row {
    let restart = Fault::RollingRestart(RollingRestart { first: 1, replicas });
    Row::new(if replicas == 1 { ZERO } else { TAIL }, vec![(FaultKind::RollingRestart, restart, 0)])
}

fn leader_killed(replicas: u64) -> Row {
    match replicas {
        1 => Row::new(
            ZERO,
            vec![
                kill(FaultKind::KillLeader, Victim::Leader, 1_000),
                kill(FaultKind::KillLeader, Victim::Leader, 1_000),
            ],
        ),
        2 => Row::new(ZERO, vec![kill(FaultKind::KillLeader, Victim::Leader, WAIT_MS)]).waits(),
        _ => {
            let blow = || tail_then(FaultKind::TailThenKill, End::Kill);
            Row::new(TAIL, vec![blow(), blow()]).must_lose(&[ASYNC_ASYNC, ASYNC_SYNC])
        }
    }
}

fn leader_without_power(replicas: u64) -> Row {
    match replicas {
        1 => {
            // The power goes while a sync is under way.
            let slow = Fault::SlowSync(SlowSync { victim: Victim::Leader, delay_ms: SLOW_SYNC_MS });
            let blows =
                vec![(FaultKind::SlowSync, slow, 2_000), power(FaultKind::PowerLossLeader, Victim::Leader, 500)];
            Row { meets: true, ..Row::new(CACHE, blows).must_lose(&[ASYNC_ASYNC]) }
        }
        2 => Row::new(CACHE, vec![power(FaultKind::PowerLossLeader, Victim::Leader, WAIT_MS)]).waits(),
        _ => {
            let blow = || tail_then(FaultKind::TailThenPower, End::Power);
            Row::new(CACHE_OR_TAIL, vec![blow(), blow()]).must_lose(&[ASYNC_ASYNC, ASYNC_SYNC])
        }
    }
}

fn leader_gone(replicas: u64) -> Row {
    match replicas {
        1 => Row::new([All; 6], vec![(FaultKind::OnlyDiskGone, Fault::OnlyDiskGone(OnlyDiskGone {}), WAIT_MS)])
            .waits()
            .must_lose(&COLUMNS[..4]),
        2 => Row::new(TAIL_UNCOUNTED, vec![majority_gone(FOLLOWER, CUT_MS, false)])
            .waits()
            .must_lose(&[ASYNC_ASYNC, ASYNC_SYNC]),
        _ => {
            let blow = || tail_then(FaultKind::TailThenDisk, End::Disk);
            Row::new(TAIL_UNCOUNTED, vec![blow(), blow()]).must_lose(&[ASYNC_ASYNC, ASYNC_SYNC])
        }
    }
}

fn comes_back_empty(_: u64) -> Row {
    let churn = |victim| (FaultKind::MembershipChurn, Fault::MembershipChurn(MembershipChurn { victim }), 1_000);
    Row::new(ZERO, vec![churn(FOLLOWER), churn(Victim::Leader)])
}

fn follower_emptied(replicas: u64) -> Row {
    match replicas {
        2 => Row::new(ZERO, vec![majority_gone(Victim::Leader, 0, true)]).waits(),
        _ => {
            let wipe = |pick| {
                let victim = Victim::Follower { pick };
                (FaultKind::WipeDisk, Fault::WipeDisk(WipeDisk { victim }), 1_000)
            };
            Row::new(ZERO, vec![wipe(0), wipe(1)])
        }
    }
}

fn emptied_and_away(_: u64) -> Row {
    Row::new(TAIL_UNCOUNTED, vec![(FaultKind::Amnesia, Fault::Amnesia(Amnesia {}), WAIT_MS)]).waits()
}

fn leader_cut_off(replicas: u64) -> Row {
    let blow = |style| partition(FaultKind::PartitionLeader, Border::Leader, style);
    match replicas {
        2 => Row::new(ZERO, vec![blow(Style::Silent)]).waits(),
        _ => Row::new(TAIL, vec![blow(Style::Silent), blow(Style::Reset)]).must_lose(&[ASYNC_ASYNC, ASYNC_SYNC]),
    }
}

fn leader_cut_off_one_way(replicas: u64) -> Row {
    let blow = || (FaultKind::OneWay, Fault::OneWay(OneWay { from_leader: true, pick: None }), WAIT_MS);
    match replicas {
        2 => Row::new(ZERO, vec![blow()]).waits(),
        _ => Row::new(TAIL, vec![blow(), blow()]).must_lose(&[ASYNC_ASYNC, ASYNC_SYNC]),
    }
}

fn follower_cut_off(replicas: u64) -> Row {
    let blow = partition(FaultKind::PartitionFollower, Border::Follower { pick: 0 }, Style::Silent);
    let row = Row::new(ZERO, vec![blow]);
    if replicas == 2 { row.waits() } else { row }
}

fn majority_away(replicas: u64) -> Row {
    let nodes = (1..=replicas / 2 + 1).collect();
    Row::new(TAIL, vec![kill(FaultKind::KillMajority, Victim::These { nodes }, WAIT_MS)]).waits()
}

fn all_away(_: u64) -> Row {
    Row::new(TAIL, vec![kill(FaultKind::KillAll, Victim::All, WAIT_MS)]).waits()
}

fn majority_lost(replicas: u64) -> Row {
    match replicas {
        2 => Row::new([Lacked; 6], vec![majority_gone(Victim::Leader, 0, false)]).waits(),
        _ => Row::new([Lacked; 6], vec![majority_gone(FOLLOWER, LACKS_MS, false)]).waits().must_lose(&COLUMNS),
    }
}

fn all_without_power(_: u64) -> Row {
    let blow = || power(FaultKind::PowerLossAll, Victim::All, 500);
    Row::new(CACHE_OR_TAIL, vec![blow(), blow()])
}

fn one_without_power_os(_: u64) -> Row {
    let blows = vec![
        tail_then(FaultKind::TailThenPower, End::Power),
        power(FaultKind::PowerLossFollower, FOLLOWER, 500),
        tail_then(FaultKind::TailThenPower, End::Power),
    ];
    // Else a cut is too short for a sync of what was taken in it: whether anything is acknowledged at async/sync is chance.
    let broker = &["flush_interval_ms = 50"];
    Row { broker, ..Row::new(CACHE_OR_TAIL, blows).must_lose(&[ASYNC_ASYNC, ASYNC_SYNC]) }
}

fn all_without_power_os(_: u64) -> Row {
    let blow = || power(FaultKind::PowerLossAll, Victim::All, 500);
    Row::new(INTERVAL_OR_TAIL, vec![blow(), blow()]).must_lose(&[MAJORITY_ASYNC])
}

fn single_without_power_os(_: u64) -> Row {
    let blow = || power(FaultKind::PowerLossLeader, Victim::Leader, 500);
    Row::new(INTERVAL, vec![blow(), blow()]).must_lose(&[ASYNC_ASYNC, MAJORITY_ASYNC])
}

/// Name, cause, sizes of groups, and what the row is for each.
type RowOf = (&'static str, &'static str, &'static [u64], fn(u64) -> Row);

const FSYNC: &[RowOf] = &[
    ("clean-stop", "clean stop (SIGTERM)", &[1, 2, 3, 5], clean_stop),
    ("leader-killed", "leader process killed", &[1, 2, 3, 5], leader_killed),
    ("leader-without-power", "OS crash or power cut of the leader", &[1, 2, 3, 5], leader_without_power),
    ("leader-gone", "leader machine dead for good, or its disk", &[1, 2, 3, 5], leader_gone),
    ("comes-back-empty", "a replica leaves and comes back empty, by an operator", &[3, 5], comes_back_empty),
    ("follower-emptied", "a follower's disk emptied, and it is started again", &[2, 3, 5], follower_emptied),
    ("emptied-and-away", "… while the only other one that knows is away", &[3], emptied_and_away),
    ("leader-cut-off", "leader cut off, both ways", &[2, 3, 5], leader_cut_off),
    ("leader-cut-off-one-way", "leader cut off, one way", &[2, 3, 5], leader_cut_off_one_way),
    ("follower-cut-off", "follower cut off", &[2, 3, 5], follower_cut_off),
    ("majority-away", "majority of the processes gone, back later", &[2, 3, 5], majority_away),
    ("all-away", "all processes gone, back later", &[2, 3, 5], all_away),
    ("majority-gone", "majority gone for good", &[2, 3, 5], majority_lost),
    ("all-without-power", "whole group, power cut", &[2, 3, 5], all_without_power),
];

const OS: &[RowOf] = &[
    ("os-one-without-power", "power cut of one machine", &[3, 5], one_without_power_os),
    ("os-all-without-power", "whole group, power cut", &[2, 3, 5], all_without_power_os),
    ("os-single-without-power", "single replica, power cut", &[1], single_without_power_os),
];

pub(super) fn all() -> Vec<Cell> {
    let rows = |durability, rows: &'static [RowOf]| rows.iter().map(move |row| (durability, row));
    let rows = rows(Durability::Fsync, FSYNC).chain(rows(Durability::Os, OS));
    rows.flat_map(|(durability, (name, cause, sizes, row))| {
        sizes.iter().map(move |replicas| cell(name, cause, *replicas, durability, row(*replicas)))
    })
    .collect()
}

fn cell(name: &str, cause: &'static str, replicas: u64, durability: Durability, row: Row) -> Cell {
    let Row { mut claims, waits, must_lose, broker, blows, meets } = row;
    if replicas == 1 {
        claims[4..].fill(Claim::Refused);
    }
    let mut at_ms = FIRST_MS;
    let mut steps: Vec<Step> = Vec::new();
    for (kind, fault, hold_ms) in blows {
        let busy_ms = hold_ms + fault.busy_ms();
        steps.push(Step { number: steps.len() as u64 + 1, at_ms, hold_ms, kind, fault });
        at_ms += if meets { SLOW_SYNC_MS / 2 } else { busy_ms + APART_MS };
    }
    let ends = steps.iter().map(|step| step.at_ms + step.hold_ms + step.fault.busy_ms());
    let duration_ms = ends.max().unwrap_or_default() + QUIET_END_MS;
    let plan = Plan { seed: 1, replicas, duration_ms, overlaps: meets, meets_as_written: meets, network: None, steps };
    Cell { name: format!("{name}-{replicas}"), cause, replicas, durability, claims, waits, must_lose, broker, plan }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn cells_have_names_of_their_own_and_claim_what_their_plans_can_show() {
        let all = all();
        let names: BTreeSet<&str> = all.iter().map(|cell| cell.name.as_str()).collect();
        assert_eq!(names.len(), all.len());
        for cell in &all {
            assert_eq!(cell.claims.contains(&Claim::Refused), cell.replicas == 1, "{}", cell.name);
            for level in &cell.must_lose {
                let claim = cell.claim(*level);
                assert!(!matches!(claim, Nothing | Claim::Refused), "{} must lose what it claims not to", cell.name);
            }
            let longest = cell.plan.steps.iter().map(|step| step.hold_ms).max();
            assert!(!cell.waits || longest >= Some(WAIT_MS), "{}", cell.name);
            assert!(cell.plan.steps.is_sorted_by_key(|step| step.at_ms), "{}", cell.name);
            let min = cell.plan.steps.iter().map(|step| step.kind.card().replicas_min).max();
            assert!(min <= Some(cell.replicas), "{}", cell.name);
        }
        assert_eq!(Cell::named("leader-gone").len(), 4);
        assert_eq!(Cell::named("leader-cut-off").len(), 3, "and not those that are cut off one way");
        assert_eq!(Cell::named("leader-gone-2").len(), 1);
        assert!(Cell::named("leader").is_empty());
    }

    #[test]
    fn only_cells_that_lose_what_was_committed_excuse_what_consumers_saw() {
        let excused: Vec<String> =
            all().into_iter().filter(Cell::loses_what_was_committed).map(|cell| cell.name).collect();
        let expected = [
            "leader-gone-1",
            "majority-gone-2",
            "majority-gone-3",
            "majority-gone-5",
            "os-all-without-power-2",
            "os-all-without-power-3",
            "os-all-without-power-5",
            "os-single-without-power-1",
        ];
        assert_eq!(excused, expected);
    }
}
