//! Where log events go: stderr, filtered by flag or environment, as text or JSON.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
#[error(
    "log level `{filter}` is not understood: write error, warn, info, debug, trace, or directives such as flotilla_broker=debug,info"
)]
pub struct LoggingError {
    filter: String,
    source: tracing_subscriber::filter::ParseError,
}

/// Sets up logging for this process. `filter` is a level or a list of `target=level` directives.
pub fn start(filter: &str, json: bool) -> Result<(), LoggingError> {
    let env_filter =
        EnvFilter::builder().parse(filter).map_err(|source| LoggingError { filter: filter.to_owned(), source })?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(env_filter)
        .with_writer(std::io::stderr)
        // An event that cannot be written, as with stderr on a full disk, is lost. Told on stderr it would panic in the
        // middle of whatever logged it.
        .log_internal_errors(false)
        .with_ansi(!json && std::io::stderr().is_terminal());
    // A second call in one process (tests) keeps the first subscriber, which is what one wants.
    let _ = if json { builder.json().try_init() } else { builder.try_init() };
    Ok(())
}
