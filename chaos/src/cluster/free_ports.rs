//! Ports for servers of our own that nobody else is using, now or by chance later.

use std::collections::BTreeSet;
use std::io;
use std::net::{Ipv4Addr, TcpListener};

use flotilla_runtime::Runtime;

const PORT_MIN: u16 = 15_000;
const ATTEMPTS_MAX: usize = 2_000;
/// Where Linux starts its ephemeral ports unless told otherwise.
const EPHEMERAL_FIRST_DEFAULT: u16 = 32_768;

/// `count` different loopback ports that can be bound now.
///
/// They lie below the system's ephemeral range on purpose: an ephemeral port could be given to some
/// outgoing connection while its broker is down, and the broker could then not come back.
pub fn free_ports(count: usize, runtime: &Runtime) -> io::Result<Vec<u16>> {
    let port_end = ephemeral_first().max(PORT_MIN + 1_000);
    let mut seen = BTreeSet::new();
    let mut ports = Vec::with_capacity(count);
    // Kept bound until all are found, so that two callers at a time hardly meet.
    let mut held = Vec::with_capacity(count);
    for _ in 0..ATTEMPTS_MAX {
        if ports.len() == count {
            return Ok(ports);
        }
        let offset = runtime.random_below(u64::from(port_end - PORT_MIN));
        let port = PORT_MIN + u16::try_from(offset).expect("the range is within 16 bits");
        if !seen.insert(port) {
            continue;
        }
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            held.push(listener);
            ports.push(port);
        }
    }
    Err(io::Error::new(
        io::ErrorKind::AddrNotAvailable,
        format!("found only {} of {count} free ports in {PORT_MIN}..{port_end}", ports.len()),
    ))
}

fn ephemeral_first() -> u16 {
    std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|range| range.split_ascii_whitespace().next()?.parse().ok())
        .unwrap_or(EPHEMERAL_FIRST_DEFAULT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_different_and_can_be_bound() {
        let ports = free_ports(7, &Runtime::tokio()).unwrap();
        assert_eq!(ports.iter().collect::<BTreeSet<_>>().len(), 7);
        for port in ports {
            TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
        }
    }
}
