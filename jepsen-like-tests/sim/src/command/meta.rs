//! `meta`: a seed is one run, and no two seeds are the same.

use super::{Setting, run_apart};

pub(crate) fn meta(seeds: u64, setting: Setting) -> Result<bool, String> {
    let mut hashes = std::collections::BTreeMap::new();
    let mut good = true;
    for seed in 1..=seeds {
        let (first, second) = (run_apart(seed, setting)?, run_apart(seed, setting)?);
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
    Ok(good)
}
