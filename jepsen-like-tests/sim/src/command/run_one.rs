//! `run`: one seed or one case.

use std::io::Read;
use std::path::Path;

use flotilla_sim::{Case, run, run_case};

use super::{Setting, Told};

/// The case in a file; `-` is the standard input.
pub(crate) fn read_case(path: &Path) -> Result<Case, String> {
    let at = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map_err(|error| at(&error))?;
        text
    } else {
        std::fs::read_to_string(path).map_err(|error| at(&error))?
    };
    serde_json::from_str(&text).map_err(|error| at(&error))
}

pub(crate) fn run_one(
    seed: Option<u64>,
    case: Option<&Path>,
    trace: bool,
    history: Option<&Path>,
    setting: Setting,
    json: bool,
) -> Result<bool, String> {
    let outcome = match (case, seed) {
        (Some(path), _) => {
            let case = read_case(path)?;
            // Only whoever runs it with its bug needs a build that has it.
            case.bug.as_deref().map(super::planted).transpose()?;
            run_case(&case, trace && !json)
        }
        (None, Some(seed)) => run(&setting.options(seed), trace && !json),
        (None, None) => return Err("neither a seed nor a case is named".to_owned()),
    };
    if let Some(path) = history {
        let file = std::fs::File::create(path).map_err(|error| format!("{}: {error}", path.display()))?;
        flotilla_checkers::write_json_lines(&outcome.events, std::io::BufWriter::new(file))
            .map_err(|error| format!("{}: {error}", path.display()))?;
    }
    if json {
        println!("{}", serde_json::to_string(&Told::of(&outcome)).map_err(|error| error.to_string())?);
        return Ok(outcome.findings.is_empty());
    }
    if !outcome.findings.is_empty() && !trace {
        println!("the last events:");
        outcome.story.iter().rev().take(60).rev().for_each(|line| println!("{line}"));
    }
    println!(
        "seed {}: {} steps, {} virtual ms, {} messages acknowledged, trace {:016x}",
        outcome.seed, outcome.steps, outcome.virtual_ms, outcome.acks, outcome.trace_hash
    );
    for (what, count) in &outcome.marks {
        println!("  {what}: {count}");
    }
    for finding in &outcome.findings {
        println!("BROKEN {finding}");
    }
    if !outcome.findings.is_empty() && case.is_none() {
        println!("replay: {}", setting.replay(outcome.seed));
    }
    Ok(outcome.findings.is_empty())
}
