//! A recovery order meets a power failure at each step of its carrying out, and a log that went on without it.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use crate::failure::Failure;
use crate::ids::EntryId;
use crate::log_files::LogFiles;
use crate::raft::{decode_membership, epoch_of};
use crate::recovery::open_log;
use crate::recovery_order::{ORDER_FILE, RecoveryOrder, carry_out};
use crate::segment::{Record, RecordKind};
use crate::testing::{CrashDisk, Loss, StepRuntime, small_config};
use crate::vote_and_marks::SavedVote;
use crate::{Disk, LogIndex, NodeId, OpenError, Term};

const DIR: &str = "/log";

fn open(disk: &CrashDisk, runtime: &StepRuntime) -> Result<LogFiles, OpenError> {
    open_log(&small_config(), Arc::new(disk.clone()), &runtime.handle(), Failure::default())
}

/// A log of ten entries whose replica voted in term 3, and the order that it goes on alone.
fn ordered(seed: u64) -> CrashDisk {
    let (disk, runtime) = (CrashDisk::new(seed), StepRuntime::default());
    let mut files = open(&disk, &runtime).unwrap();
    let record = |index| Record {
        id: EntryId::new(2, index),
        kind: RecordKind::Normal,
        payload: Bytes::from(format!("entry {index}")),
    };
    runtime.block_on(files.append((0..10).map(record).collect(), Box::new(|_| {}))).unwrap();
    let vote = SavedVote { term: Term(3), node: NodeId(2), committed: true };
    runtime.block_on(files.save_vote(vote)).unwrap();
    let standings = files.view().standings().clone();
    let order = RecoveryOrder {
        node: standings.node(),
        incarnation: standings.incarnation(),
        epoch: 1,
        last: EntryId::new(2, 9),
        contact: "here".to_owned(),
    };
    order.write(&disk, Path::new(DIR)).unwrap();
    runtime.run();
    runtime.block_on(files.view().close());
    drop(files);
    disk
}

fn start(disk: &CrashDisk) -> Result<LogFiles, OpenError> {
    let runtime = StepRuntime::default();
    let mut files = open(disk, &runtime)?;
    runtime.block_on(carry_out(&mut files, disk, Path::new(DIR), "there"))?;
    Ok(files)
}

fn check(disk: &CrashDisk, files: &LogFiles) {
    let view = files.view();
    assert_eq!(view.ends().1, Some(EntryId::new(4, 10)), "one entry behind the last one, in a new term");
    let records = view.read_all(LogIndex(0)..LogIndex(20)).unwrap();
    assert_eq!(records.len(), 11);
    let members = decode_membership(records[10].payload.clone()).unwrap();
    let voters: Vec<u64> = members.voter_ids().collect();
    assert_eq!((voters, epoch_of(&members)), (vec![view.standings().node().0], 1));
    let vote = view.vote().unwrap();
    assert_eq!((vote.term, vote.node, vote.committed), (Term(4), view.standings().node(), false));
    assert!(disk.open(&Path::new(DIR).join(ORDER_FILE)).is_err(), "the order is gone");
}

#[test]
fn an_order_is_carried_out_once_wherever_the_power_fails() {
    let mut points = 0;
    for loss in Loss::EACH {
        for operation in 1.. {
            let disk = ordered(operation);
            disk.crash_at(disk.operations() + operation);
            let begun = start(&disk);
            let has_crashed = disk.has_crashed();
            drop(begun);
            disk.power_cycle_with(loss);
            let files = start(&disk).unwrap_or_else(|error| panic!("step {operation}, lost {loss:?}: {error}"));
            check(&disk, &files);
            drop(files);
            // A start without an order changes nothing.
            disk.power_cycle_with(loss);
            check(&disk, &start(&disk).unwrap());
            if !has_crashed {
                break;
            }
            points += 1;
        }
    }
    assert!(points > 60, "{points} crash points");
}

#[test]
fn an_order_lapses_when_the_log_has_heard_of_a_leader_since() {
    let disk = ordered(1);
    let runtime = StepRuntime::default();
    let mut files = open(&disk, &runtime).unwrap();
    let record = Record { id: EntryId::new(5, 10), kind: RecordKind::Blank, payload: Bytes::new() };
    runtime.block_on(files.append(vec![record], Box::new(|_| {}))).unwrap();
    runtime.run();
    runtime.block_on(files.view().close());
    drop(files);
    let files = start(&disk).unwrap();
    assert_eq!(files.view().ends().1, Some(EntryId::new(5, 10)));
    assert!(disk.open(&Path::new(DIR).join(ORDER_FILE)).is_err(), "it is not carried out later either");
}

#[test]
fn an_order_for_another_directory_stops_the_start() {
    let disk = ordered(1);
    let order = RecoveryOrder {
        node: NodeId(1),
        incarnation: crate::Incarnation(77),
        epoch: 1,
        last: EntryId::new(2, 9),
        contact: String::new(),
    };
    order.write(&disk, Path::new(DIR)).unwrap();
    let error = start(&disk).err().unwrap().to_string();
    assert!(error.contains("in its life 000000000000004d"), "{error}");
}
