//! The documents name tests and files: these exist.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::support::run;

/// Documents whose every named file and test must be there.
const DOCUMENTS: [&str; 3] = ["docs/compatibility.md", "docs/field-cases.md", "ARCHITECTURE.md"];
/// Names shorter than this may be settings, fields or commands.
const TEST_NAME_BYTES_MIN: usize = 34;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a workspace").to_owned()
}

/// What stands between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.lines().flat_map(|line| line.split('`').skip(1).step_by(2))
}

/// `a/{b,c}` means `a/b` and `a/c`.
fn spelled_out(path: &str) -> Vec<String> {
    match path.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?))) {
        Some((before, (names, after))) => names.split(',').map(|name| format!("{before}{name}{after}")).collect(),
        None => vec![path.to_owned()],
    }
}

fn source_files(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("a folder of the repository").map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            source_files(&path, files);
        } else if name.ends_with(".rs") {
            files.push(path);
        }
    }
}

/// All tests of the repository, by name.
fn tests(root: &Path) -> BTreeSet<String> {
    let mut files = Vec::new();
    source_files(root, &mut files);
    let mut tests = BTreeSet::new();
    for file in files {
        let text = std::fs::read_to_string(file).expect("source is text");
        let mut is_test = false;
        for line in text.lines().map(str::trim_start) {
            if line.starts_with("#[") {
                is_test |= line.starts_with("#[test") || line.starts_with("#[tokio::test");
            } else if let Some(at) = line.find("fn ").filter(|_| is_test) {
                tests.insert(line[at + 3..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect());
                is_test = false;
            } else if !line.starts_with("//") {
                is_test = false;
            }
        }
    }
    tests
}

/// All function names of the repository.
fn functions(root: &Path) -> BTreeSet<String> {
    let mut files = Vec::new();
    source_files(root, &mut files);
    let mut functions = BTreeSet::new();
    for file in files {
        let text = std::fs::read_to_string(file).expect("source is text");
        for (at, _) in text.match_indices("fn ") {
            let name: String = text[at + 3..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            functions.insert(name);
        }
    }
    functions
}

/// The rows of the tables under a heading, as cells.
fn rows(text: &str, heading: &str) -> Vec<Vec<String>> {
    let (_, section) = text.split_once(&format!("\n## {heading}\n")).expect("the heading is there");
    let section = section.split("\n## ").next().expect("a first part");
    let lines = section.lines().filter(|line| line.starts_with("| ") && !line.starts_with("|---"));
    lines.map(|line| line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect()).collect()
}

/// Text that names a test.
fn shows_something(text: &str, tests: &BTreeSet<String>) -> bool {
    quoted(text).any(|quote| tests.contains(quote.rsplit("::").next().unwrap_or(quote)))
}

#[test]
fn each_of_the_46_features_has_a_verdict_and_a_test_that_shows_it() {
    let root = root();
    let tests = tests(&root);
    let text = std::fs::read_to_string(root.join("docs/compatibility.md")).expect("the document is there");
    let table = rows(&text, "Feature by feature");
    let numbered: Vec<_> = table.iter().filter(|row| row[0].parse::<u32>().is_ok()).collect();
    let numbers: Vec<u32> = numbered.iter().map(|row| row[0].parse().expect("a number")).collect();
    assert_eq!(numbers, (1..=46).collect::<Vec<_>>());
    for row in &numbered {
        assert!(["works", "works better", "differs", "no"].contains(&row[2].as_str()), "verdict of {row:?}");
        let shown = row[3..].join(" | ");
        assert!(shows_something(&shown, &tests), "no test shows {row:?}");
    }
    // The other table of the section: what RocketMQ's modules are here.
    for what in ["filtersrv", "openmessaging", "tools", "reput", "LITE", "PRIORITY", "compaction"] {
        assert!(table.iter().any(|row| row[0].contains(what) && row.len() >= 3), "{what} has no row");
    }
    // Each promise about a dead leader has a test among those that kill one.
    let mut killing = BTreeSet::new();
    let mut files = Vec::new();
    source_files(&root.join("cli/tests/semantics"), &mut files);
    for file in files {
        let text = std::fs::read_to_string(file).expect("source is text");
        for rest in text.split("\nasync fn ").skip(1) {
            let body = rest.split("\n}").next().unwrap_or(rest);
            killing.extend(rest.split_once('(').filter(|_| body.contains("kill")).map(|(name, _)| name.to_owned()));
        }
    }
    for row in rows(&text, "What holds when the leader dies").iter().skip(1) {
        let name = quoted(&row[1]).next().expect("a test's name");
        assert!(killing.contains(name), "{name} kills nobody in cli/tests/semantics");
    }
}

#[test]
fn every_file_and_test_that_the_documents_name_is_there() {
    let root = root();
    let functions = functions(&root);
    let mut missing = Vec::new();
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    for document in DOCUMENTS {
        let text = std::fs::read_to_string(root.join(document)).expect("the document is there");
        for quote in quoted(&text) {
            let is_path = quote.contains('/') && (quote.ends_with(".rs") || quote.ends_with(".md"));
            if is_path && quote.chars().all(|c| c.is_ascii_graphic()) {
                missing.extend(spelled_out(quote).into_iter().filter(|path| !root.join(path).exists()));
            }
            let name = quote.rsplit("::").next().unwrap_or(quote);
            if name.len() >= TEST_NAME_BYTES_MIN && name.chars().all(is_name) && !functions.contains(name) {
                missing.push(name.to_owned());
            }
        }
    }
    assert!(missing.is_empty(), "named and not there: {missing:#?}");
}

#[test]
fn every_command_of_the_guides_is_one_that_there_is() {
    let root = root();
    let mut guides: Vec<PathBuf> = std::fs::read_dir(root.join("docs/guides"))
        .expect("the guides are there")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    guides.extend(["docs/retention.md", "README.md"].map(|path| root.join(path)));
    let mut commands = 0;
    for guide in guides {
        let text = std::fs::read_to_string(&guide).expect("a guide is text");
        for line in text.lines().filter_map(|line| line.strip_prefix("    flotilla ")) {
            // What follows two blanks, or a shell's own signs, is no part of it.
            let line = line.split("  ").next().unwrap_or(line).split(['|', '<', '>', '#']).next().unwrap_or(line);
            let mut words: Vec<&str> = line.split_ascii_whitespace().collect();
            // Flags and values before it are looked at all the same.
            words.push("--help");
            let ended = run(&words);
            assert_eq!(ended.code, 0, "{}: {line}: {}", guide.display(), ended.stderr);
            commands += 1;
        }
    }
    assert!(commands >= 8, "{commands}");
}
