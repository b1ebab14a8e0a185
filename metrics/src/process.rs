//! The process itself, with the names that Prometheus' own client libraries give it.

use std::fs;

use crate::Exposition;

/// Size of a page of memory on the machines that are supported, bytes.
const PAGE_BYTES: u64 = 4096;

/// Writes down what the system says of this process; what it does not say is left out.
pub(crate) fn write(into: &mut Exposition) {
    into.set_base(&[]);
    if let Some(bytes) = resident_bytes() {
        into.gauge_whole("process_resident_memory_bytes", "Resident memory of the process.", &[], bytes);
    }
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        // The listing itself is one of them.
        let open = (open.count() as u64).saturating_sub(1);
        into.gauge_whole("process_open_fds", "Open file descriptors of the process.", &[], open);
    }
    if let Some(limit) = open_files_max() {
        into.gauge_whole("process_max_fds", "File descriptors that the process may open.", &[], limit);
    }
}

fn resident_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split(' ').nth(1)?.parse().ok()?;
    Some(pages * PAGE_BYTES)
}

fn open_files_max() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/limits").ok()?;
    let line = text.lines().find(|line| line.starts_with("Max open files"))?;
    line.split_whitespace().nth(3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scrape;

    #[test]
    fn the_system_tells_memory_and_files_of_this_process() {
        let mut out = Exposition::new();
        write(&mut out);
        let scrape = Scrape::parse(&out.finish()).expect("of the format");
        let table = include_str!("../../docs/metrics.md");
        assert!(scrape.kinds.keys().all(|name| table.contains(&format!("`{name}`"))), "{:?}", scrape.kinds);
        let value = |name| scrape.value(name, &[]).unwrap_or_else(|| panic!("{name} is told"));
        assert!(value("process_resident_memory_bytes") > 100_000.0);
        assert!((1.0..value("process_max_fds")).contains(&value("process_open_fds")));
    }
}
