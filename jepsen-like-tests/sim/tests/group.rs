//! A simulated three-replica group: it keeps its promises, a seed is one run, and planted bugs are caught.

use flotilla_sim::{Machine, Mutant, Options, Outcome, run};

/// Each run in a fresh thread, as each seed of a sweep has a fresh process.
fn outcome(options: Options) -> Outcome {
    #[allow(clippy::disallowed_methods, reason = "a test of determinism needs fresh thread-local state")]
    let thread = std::thread::spawn(move || run(&options, false));
    thread.join().expect("a run tells of panics, it does not panic")
}

fn seed(seed: u64, machine: Machine) -> Outcome {
    outcome(Options::of(seed, machine))
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_seed_another() {
    for number in [1, 2] {
        let (first, second) = (seed(number, Machine::Store), seed(number, Machine::Store));
        assert_eq!((first.trace_hash, first.steps, first.acks), (second.trace_hash, second.steps, second.acks));
        assert_eq!(first.events, second.events);
    }
    assert_ne!(seed(1, Machine::Store).trace_hash, seed(2, Machine::Store).trace_hash);
}

#[test]
fn a_group_under_faults_keeps_its_promises_and_serves_again() {
    let mut marks = std::collections::BTreeMap::<String, u64>::new();
    let mut acks = 0;
    for number in 1..=24 {
        let machine = if number % 4 == 0 { Machine::Toy } else { Machine::Store };
        let outcome = seed(number, machine);
        assert!(outcome.findings.is_empty(), "seed {number}: {:#?}\n{:#?}", outcome.findings, outcome.story);
        acks += outcome.acks;
        outcome.marks.into_iter().for_each(|(what, count)| *marks.entry(what).or_default() += count);
    }
    assert!(acks > 2_000, "{acks} messages acknowledged are too few to mean anything");
    // Otherwise these seeds look at less than they are here for.
    for what in [
        "an election",
        "a power loss",
        "a page was lost",
        "a page was torn",
        "a name was lost",
        "a cut",
        "a crash point was reached",
        "a killed leader was replaced within its lease",
        "a segment was started",
        "a checkpoint was taken",
        "a checkpoint was restored",
    ] {
        assert!(marks.contains_key(what), "no seed reached \"{what}\": {marks:?}");
    }
}

fn catch(mutant: Mutant, expected: &str) {
    for number in 1..=40 {
        let mut options = Options::of(number, Machine::Store);
        options.mutant = Some(mutant);
        let findings = outcome(options).findings;
        if findings.iter().any(|finding| finding.contains(expected)) {
            return;
        }
    }
    panic!("40 seeds with {mutant:?} did not show \"{expected}\"");
}

#[test]
fn disks_that_lie_about_syncs_are_caught_at_the_acknowledgement() {
    catch(Mutant::SyncsLie, "is acknowledged and durable on");
}

#[test]
fn a_replica_that_skips_entries_is_caught_by_its_digest() {
    catch(Mutant::SkipsEntries, "had digest");
}

#[test]
fn a_group_that_never_heals_is_caught_by_its_clients() {
    catch(Mutant::NeverHeals, "replicas do not converge");
}
