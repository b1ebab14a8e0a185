//! What is done with messages besides sending and receiving them, as it stands in a history.

use serde::{Deserialize, Serialize};

use crate::{Delivery, QueueKey};

/// One such deed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "task", rename_all = "kebab-case")]
pub enum Task {
    /// Deliveries are acknowledged for their consumer's group.
    Acknowledge {
        /// Which.
        deliveries: Vec<Delivery>,
    },
    /// A half message is sent: nobody may see it before it is committed.
    Prepare {
        /// Which.
        message_id: String,
    },
    /// A half message is ended.
    EndTransaction {
        /// Which.
        message_id: String,
        /// Else it is rolled back.
        commit: bool,
    },
    /// A message is sent that is not to come before its time.
    Delay {
        /// Which.
        message_id: String,
        /// Nanoseconds on the harness's own clock.
        due_ns: u64,
    },
    /// The end of a queue is asked for: the offset that its next message gets.
    AskEnd {
        /// Of which queue.
        queue: QueueKey,
        /// Only in an `ok`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        end: Option<u64>,
    },
    /// A register is given a value that no other write gives it.
    SetRegister {
        /// Which.
        register: String,
        /// The value.
        value: u64,
    },
    /// A register is read.
    ReadRegister {
        /// Which.
        register: String,
        /// Only in an `ok`; none there: no value was ever written.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        value: Option<u64>,
    },
}

/// How a task ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskOutcome {
    /// It surely happened.
    Done,
    /// It surely did not.
    Refused,
    /// Nobody knows.
    Unknown,
}

/// A task with its times on the harness's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskRun {
    /// What.
    pub task: Task,
    /// When it began, nanoseconds.
    pub invoked_ns: u64,
    /// When its outcome was known; `u64::MAX` if it never was.
    pub completed_ns: u64,
    /// How it ended.
    pub outcome: TaskOutcome,
}

impl TaskRun {
    /// A task that was done.
    pub fn done(task: Task, invoked_ns: u64, completed_ns: u64) -> TaskRun {
        TaskRun { task, invoked_ns, completed_ns, outcome: TaskOutcome::Done }
    }

    /// Whether it surely happened.
    pub fn is_done(&self) -> bool {
        self.outcome == TaskOutcome::Done
    }
}
