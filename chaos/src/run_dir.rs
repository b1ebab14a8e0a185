//! One folder per run: plan, history, record, report, logs and, while needed, the replicas' data.

use std::io;
use std::path::{Path, PathBuf};

use flotilla_checkers::{Event, HistoryError};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::history_file;
use crate::plan::Plan;
use crate::report::Report;
use crate::run_record::RunRecord;

/// Files of one run.
#[derive(Debug, Clone)]
pub struct RunDir {
    path: PathBuf,
}

/// Why a run's files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RunDirError {
    /// The file system refuses.
    #[error("{path} cannot be used: {source}", path = .path.display())]
    Io {
        /// Which file or folder.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// There is something else.
    #[error("{path} is not empty and holds no run: choose another --dir", path = .path.display())]
    Foreign {
        /// Which folder.
        path: PathBuf,
    },
    /// A file is not what it should be.
    #[error("{path} is not understood: {source}", path = .path.display())]
    Malformed {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// The history is not what it should be.
    #[error("the history of {path} cannot be used: {source}", path = .path.display())]
    History {
        /// Of which run.
        path: PathBuf,
        /// What is wrong.
        source: HistoryError,
    },
}

const PLAN: &str = "plan.json";
const HISTORY: &str = "history.jsonl";
const RECORD: &str = "run.json";
const REPORT_JSON: &str = "report.json";
const PAGE: &str = "report.html";
const REPORT_TEXT: &str = "report.txt";
/// Processes' logs and data.
const CLUSTER: &str = "cluster";

impl RunDir {
    /// An empty folder at `path`; a run that was there before is removed.
    ///
    /// # Errors
    /// [`RunDirError::Foreign`] if something else than a run is there.
    pub fn create(path: &Path) -> Result<RunDir, RunDirError> {
        let error = |source| RunDirError::Io { path: path.to_owned(), source };
        if path.join(PLAN).is_file() {
            std::fs::remove_dir_all(path).map_err(error)?;
        }
        std::fs::create_dir_all(path.join(CLUSTER)).map_err(error)?;
        if std::fs::read_dir(path).map_err(error)?.count() > 1 {
            return Err(RunDirError::Foreign { path: path.to_owned() });
        }
        // Arguments of the replicas must not depend on where this process stands.
        Ok(RunDir { path: path.canonicalize().map_err(error)? })
    }

    /// A run that is over.
    ///
    /// # Errors
    /// If there is none.
    pub fn open(path: &Path) -> Result<RunDir, RunDirError> {
        let dir = RunDir { path: path.to_owned() };
        std::fs::metadata(dir.history_path()).map_err(|source| dir.io_error(HISTORY, source))?;
        Ok(dir)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the processes have their logs and data.
    pub fn cluster_path(&self) -> PathBuf {
        self.path.join(CLUSTER)
    }

    /// Where the history is.
    pub fn history_path(&self) -> PathBuf {
        self.path.join(HISTORY)
    }

    /// Stores the plan, before anything is done.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_plan(&self, plan: &Plan) -> Result<(), RunDirError> {
        self.write(PLAN, plan)
    }

    /// Reads a plan from any file.
    ///
    /// # Errors
    /// If it cannot be read or is none.
    pub fn read_plan(path: &Path) -> Result<Plan, RunDirError> {
        let dir = RunDir { path: path.parent().unwrap_or(Path::new(".")).to_owned() };
        dir.read(&path.file_name().unwrap_or_default().to_string_lossy())
    }

    /// Stores what happened.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_record(&self, record: &RunRecord) -> Result<(), RunDirError> {
        self.write(RECORD, record)
    }

    /// Stores the account, as JSON and as text.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write_report(&self, report: &Report) -> Result<(), RunDirError> {
        self.write(REPORT_JSON, report)?;
        std::fs::write(self.path.join(REPORT_TEXT), report.to_string())
            .map_err(|source| self.io_error(REPORT_TEXT, source))
    }

    /// Stores the page with the pictures.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_page(&self, html: &str) -> Result<(), RunDirError> {
        std::fs::write(self.path.join(PAGE), html).map_err(|source| self.io_error(PAGE, source))
    }

    /// What happened.
    ///
    /// # Errors
    /// If there is no such file, as when the harness was killed, or it is damaged.
    pub fn read_record(&self) -> Result<RunRecord, RunDirError> {
        self.read(RECORD)
    }

    /// The history.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read_history(&self) -> Result<Vec<Event>, RunDirError> {
        history_file::read(&self.history_path()).map_err(|source| self.history_error(source))
    }

    pub(crate) fn history_error(&self, source: HistoryError) -> RunDirError {
        RunDirError::History { path: self.path.clone(), source }
    }

    /// Removes what replicas stored; their logs stay.
    ///
    /// # Errors
    /// If the file system refuses.
    pub fn remove_data(&self) -> Result<(), RunDirError> {
        let error = |source| self.io_error(CLUSTER, source);
        for entry in std::fs::read_dir(self.cluster_path()).map_err(error)? {
            let entry = entry.map_err(error)?;
            if entry.file_type().map_err(error)?.is_dir() {
                std::fs::remove_dir_all(entry.path()).map_err(error)?;
            }
        }
        Ok(())
    }

    fn write(&self, name: &str, value: &impl Serialize) -> Result<(), RunDirError> {
        let mut text = serde_json::to_string_pretty(value).expect("numbers and strings become JSON");
        text.push('\n');
        std::fs::write(self.path.join(name), text).map_err(|source| self.io_error(name, source))
    }

    fn read<T: DeserializeOwned>(&self, name: &str) -> Result<T, RunDirError> {
        let text = std::fs::read_to_string(self.path.join(name)).map_err(|source| self.io_error(name, source))?;
        serde_json::from_str(&text).map_err(|source| RunDirError::Malformed { path: self.path.join(name), source })
    }

    fn io_error(&self, name: &str, source: io::Error) -> RunDirError {
        RunDirError::Io { path: self.path.join(name), source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nemesis::FaultKind;

    #[test]
    fn an_old_run_makes_room_and_anything_else_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("7");
        let run = RunDir::create(&path).unwrap();
        run.write_plan(&Plan::of_seed(7, &FaultKind::all(), 3, 60_000, false)).unwrap();
        std::fs::create_dir(run.cluster_path().join("broker-1")).unwrap();
        std::fs::write(run.cluster_path().join("broker-1.log"), "x").unwrap();
        run.remove_data().unwrap();
        assert!(run.cluster_path().join("broker-1.log").is_file() && !run.cluster_path().join("broker-1").exists());
        RunDir::create(&path).unwrap();
        assert!(!path.join(PLAN).exists());

        std::fs::write(path.join("thesis.txt"), "years of work").unwrap();
        assert!(matches!(RunDir::create(&path), Err(RunDirError::Foreign { .. })));
        assert!(path.join("thesis.txt").is_file());
    }
}
