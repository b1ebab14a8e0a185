//! Property checkers: what a broker group promised, held against what clients and replicas saw.
//!
//! Each property is one file with one pure function over plain data: it takes slices, returns what
//! is wrong, and costs at most n log n. Nothing here knows of sockets, clocks or this project's own
//! broker, so the same functions judge the simulation, the demo and runs against real processes.
//!
//! The three ways in:
//! - [`Report::of`]: sends and deliveries of one run, counted and judged (what a demo needs);
//! - [`check`]: everything that a [`History`] holds, judged by every property;
//! - the modules below, one property each.
//!
//! ```
//! use flotilla_checkers::{Ack, Delivery, QueueKey, Report, Send, SendOutcome};
//!
//! let queue = QueueKey::new("orders", 0);
//! let sends = [
//!     Send::new("m-1", SendOutcome::Acked(Ack::at(queue.clone(), 0))),
//!     Send::new("m-2", SendOutcome::Acked(Ack::at(queue.clone(), 1))),
//!     Send::new("m-3", SendOutcome::Unknown),
//! ];
//! let deliveries = [Delivery::new("c-1", queue, 0, "m-1")];
//! let report = Report::of(&sends, &deliveries);
//! assert_eq!((report.sent, report.acked, report.received), (3, 2, 1));
//! assert_eq!(report.lost, ["m-2"]);
//! assert!(!report.is_clean());
//! ```

pub mod all_or_nothing;
pub mod dead_letters_complete;
pub mod dense_offsets;
mod dump;
pub mod early_ack;
mod event;
pub mod fresh_reads;
mod history;
pub mod ledger;
pub mod linearizable_registers;
pub mod never_early;
pub mod no_duplicate;
pub mod no_lost_ack;
pub mod no_phantom;
pub mod nothing_taken_back;
pub mod one_at_a_time;
pub mod one_holder;
pub mod one_leader_per_term;
pub mod one_payload_per_entry;
pub mod order_per_message_group;
pub mod order_per_queue;
pub mod progress_kept;
pub mod real_time_order;
pub mod replicas_agree;
mod report;
mod task;
mod verdict;

pub use dump::{Dump, QueueDump, SlotDump};
pub use event::{Event, EventKind, HistoryError, Operation, Recorder, read_json_lines, write_json_lines};
pub use history::{Ack, Delivery, EntrySeen, History, Leadership, QueueBegin, QueueKey, Send, SendOutcome};
pub use report::Report;
pub use task::{Task, TaskOutcome, TaskRun};
pub use verdict::{Finding, Property, Verdict, check};
