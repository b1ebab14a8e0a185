//! How a command ends badly: an error for people and an exit code for scripts.

use std::error::Error;
use std::fmt;

/// Everything went as asked.
pub const EXIT_OK: u8 = 0;
/// The command was understood and failed.
pub const EXIT_FAILURE: u8 = 1;
/// The command line or a config was not understood; nothing was done. clap uses the same code.
pub const EXIT_USAGE: u8 = 2;
/// A replica stopped itself because its log can no longer be trusted to be durable (sysexits' EX_SOFTWARE).
pub const EXIT_NODE_FAILED: u8 = 70;

/// A command's bad end. Text is made of it only in [`fmt::Display`], which `main` prints.
#[derive(Debug)]
pub struct Failure {
    exit: u8,
    error: Box<dyn Error + Send + Sync>,
}

impl Failure {
    /// An end with an exit code of its own.
    pub fn with_exit(exit: u8, error: impl Into<Box<dyn Error + Send + Sync>>) -> Failure {
        Failure { exit, error: error.into() }
    }

    /// The caller's input was wrong.
    pub fn usage(error: impl Into<Box<dyn Error + Send + Sync>>) -> Failure {
        Failure::with_exit(EXIT_USAGE, error)
    }

    pub fn exit(&self) -> u8 {
        self.exit
    }
}

impl<E: Error + Send + Sync + 'static> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure::with_exit(EXIT_FAILURE, error)
    }
}

impl fmt::Display for Failure {
    /// The error and its causes on one line; a cause whose text the error already repeats is left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.error.to_string();
        f.write_str(&text)?;
        let mut cause = self.error.source();
        while let Some(error) = cause {
            let next = error.to_string();
            if !text.contains(&next) {
                write!(f, ": {next}")?;
                text = next;
            }
            cause = error.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot open {path}")]
    struct Outer {
        path: &'static str,
        source: std::io::Error,
    }

    #[derive(Debug, thiserror::Error)]
    #[error("cannot open: {source}")]
    struct Repeating {
        source: std::io::Error,
    }

    #[test]
    fn causes_are_told_once() {
        let cause = || std::io::Error::other("disk on fire");
        assert_eq!(Failure::from(Outer { path: "/x", source: cause() }).to_string(), "cannot open /x: disk on fire");
        assert_eq!(Failure::from(Repeating { source: cause() }).to_string(), "cannot open: disk on fire");
    }

    #[test]
    fn exit_codes_tell_a_wrong_call_from_a_failed_one() {
        assert_eq!(Failure::from(std::io::Error::other("x")).exit(), 1);
        assert_eq!(Failure::usage("no such thing").exit(), 2);
    }
}
