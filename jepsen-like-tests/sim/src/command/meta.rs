//! `meta`: a seed is one run, and no two seeds are the same.

use super::worker::Worker;
use super::{Setting, Told};

pub(crate) fn meta(seeds: u64, setting: Setting) -> Result<bool, String> {
    // Two processes, one from the first seed on and one from the last: what a run leaves behind would show.
    let run = |seeds: &mut dyn Iterator<Item = u64>| -> Result<Vec<Told>, String> {
        let mut worker = Worker::new(setting);
        seeds.map(|seed| worker.run_seed(seed)).collect()
    };
    let (first, second) = std::thread::scope(|scope| {
        let second = scope.spawn(|| run(&mut (1..=seeds).rev()));
        let first = run(&mut (1..=seeds));
        (first, second.join().unwrap_or_else(|_| Err("the thread of the second runs panicked".to_owned())))
    });
    let mut hashes = std::collections::BTreeMap::new();
    let mut good = true;
    for (first, second) in first?.into_iter().zip(second?.into_iter().rev()) {
        let seed = first.seed;
        if first.trace_hash != second.trace_hash || first.steps != second.steps {
            good = false;
            println!(
                "seed {seed} is two runs: trace {} after {} steps, and {} after {}",
                first.trace_hash, first.steps, second.trace_hash, second.steps
            );
        }
        if let Some(other) = hashes.insert(first.trace_hash, seed) {
            good = false;
            println!("seeds {other} and {seed} are one run");
        }
    }
    if good {
        println!("{seeds} of {seeds} seeds: each gave the same trace twice, and no two the same");
    }
    Ok(good && seeds > 0)
}
