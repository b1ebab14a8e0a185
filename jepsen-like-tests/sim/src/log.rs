//! The log of the code under test, stamped with virtual time.

use std::cell::Cell;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;

thread_local! {
    static NOW_NS: Cell<u64> = const { Cell::new(0) };
}

/// Told by the executor as time goes on.
pub(crate) fn set_now(now_ns: u64) {
    NOW_NS.with(|now| now.set(now_ns));
}

struct VirtualTime;

impl FormatTime for VirtualTime {
    fn format_time(&self, writer: &mut Writer<'_>) -> std::fmt::Result {
        write!(writer, "{:>12.6}", NOW_NS.with(Cell::get) as f64 / 1e9)
    }
}

/// Prints the log of everything run from now on to standard output. To be called once.
pub fn print_log(filter: &str) {
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(filter))
        .with_timer(VirtualTime)
        .with_ansi(false)
        .with_writer(std::io::stdout)
        .init();
}
