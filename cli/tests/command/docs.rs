//! The documents name tests and files: these exist.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

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

#[test]
fn every_file_and_test_that_the_documents_name_is_there() {
    let root = root();
    let mut files = Vec::new();
    source_files(&root, &mut files);
    let mut functions = BTreeSet::new();
    for file in files {
        let text = std::fs::read_to_string(file).expect("source is text");
        for (at, _) in text.match_indices("fn ") {
            let name: String = text[at + 3..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            functions.insert(name);
        }
    }
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
