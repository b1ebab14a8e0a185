//! The line by which a server tells on stdout that it can be used; parents and scripts wait for it.

use std::fmt::Display;

use flotilla_chaos::cluster::READY_PREFIX;

use crate::output;

/// Prints `ready: WHAT` and flushes it, so that a waiting parent sees it at once.
///
/// Whether anybody reads is the reader's affair: a closed stdout does not stop a server.
pub fn print(what: impl Display) {
    output::line(format_args!("{READY_PREFIX}: {what}"));
}
