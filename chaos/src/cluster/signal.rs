//! Signals to processes that this one started: freeze, go on, end gracefully.

use std::io;

/// What a child can be told. SIGKILL is not among them: `tokio`'s own `kill` sends it and reaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// SIGSTOP: it stands still, with its connections open.
    Stop,
    /// SIGCONT: it goes on.
    Continue,
    /// SIGTERM: it ends gracefully.
    Terminate,
}

/// Sends `signal` to `pid`, which must be a child of this process that was not yet waited for: its number is then not
/// given to anybody else.
pub(super) fn send(pid: u32, signal: Signal) -> io::Result<()> {
    let number = match signal {
        Signal::Stop => libc::SIGSTOP,
        Signal::Continue => libc::SIGCONT,
        Signal::Terminate => libc::SIGTERM,
    };
    // 0 and negative numbers would mean whole process groups.
    let pid = i32::try_from(pid).ok().filter(|pid| *pid > 0).ok_or(io::ErrorKind::InvalidInput)?;
    // SAFETY: `kill` takes two numbers and touches no memory of this process; that `pid` is a child not yet reaped is
    // the caller's promise, and breaking it could signal a stranger but not corrupt anything here.
    #[allow(unsafe_code, reason = "std has no call that sends a signal other than SIGKILL")]
    let result = unsafe { libc::kill(pid, number) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_group_is_never_signalled() {
        assert_eq!(send(0, Signal::Continue).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(send(u32::MAX, Signal::Continue).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
