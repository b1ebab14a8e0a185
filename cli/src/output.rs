//! Lines on stdout for whoever reads them.

use std::fmt::Display;
use std::io::Write;

/// Prints one line and flushes it. Whether anybody reads is the reader's affair: a closed pipe is no error here.
pub fn line(text: impl Display) {
    let mut stdout = std::io::stdout().lock();
    let _ = writeln!(stdout, "{text}").and_then(|()| stdout.flush());
}

/// Prints bytes as they are and ends the line; false when stdout is closed, so that nobody needs more.
pub fn bytes_line(bytes: &[u8]) -> bool {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.write_all(b"\n")).and_then(|()| stdout.flush()).is_ok()
}
