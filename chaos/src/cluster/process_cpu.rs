//! CPU time of processes, from `/proc/PID/stat`.

use std::time::Duration;

/// Linux reports process times in ticks of 10 ms on every architecture we run on (`USER_HZ` is 100).
const TICKS_PER_SECOND: u64 = 100;

/// CPU time (user and system) a live process has used; `None` if it is gone or the system has no `/proc`.
pub fn cpu_time(pid: u32) -> Option<Duration> {
    parse_stat(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn parse_stat(stat: &str) -> Option<Duration> {
    // The second field is the program's name in parentheses and may hold spaces: count from its end.
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(Duration::from_millis((user + system) * 1_000 / TICKS_PER_SECOND))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_behind_a_name_with_spaces() {
        let stat = "42 (a b) c) S 1 42 42 0 -1 4194560 10 0 0 0 250 50 0 0 20 0 8 0 100 1 2";
        assert_eq!(parse_stat(stat), Some(Duration::from_secs(3)));
        assert_eq!(parse_stat("42 (x) S"), None);
        assert_eq!(parse_stat(""), None);
    }

    #[test]
    fn our_own_process_has_a_cpu_time() {
        assert!(cpu_time(std::process::id()).is_some());
        assert_eq!(cpu_time(u32::MAX), None);
    }
}
