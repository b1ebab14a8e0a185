//! The life of a server process: run until told to stop or broken, then stop within a deadline.

use std::future::Future;
use std::time::Duration;

use flotilla_runtime::{Either, Runtime, select};

use crate::failure::{EXIT_FAILURE, EXIT_NODE_FAILED, Failure};
use crate::output;
use crate::stop_signal::StopSignals;

/// How long a graceful stop may take before the process ends anyhow.
pub const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a server did not end as it should.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("this replica stopped itself: {reason}")]
    NodeFailed { reason: String },
    #[error("stopped at once by {signal}, before the graceful stop was over")]
    Forced { signal: &'static str },
    #[error("the graceful stop took longer than {timeout:?}")]
    StopTimeout { timeout: Duration },
}

impl ServeError {
    fn into_failure(self) -> Failure {
        let exit = match self {
            ServeError::NodeFailed { .. } => EXIT_NODE_FAILED,
            ServeError::Forced { .. } | ServeError::StopTimeout { .. } => EXIT_FAILURE,
        };
        Failure::with_exit(exit, self)
    }
}

/// Waits for `start`; `None` if a signal came first.
pub async fn start_unless_stopped<T>(signals: &mut StopSignals, start: impl Future<Output = T>) -> Option<T> {
    raise_open_files_limit();
    match select(signals.next(), start).await {
        Either::Left(signal) => {
            tracing::info!(signal, "stopped before the start was over");
            None
        }
        Either::Right(started) => Some(started),
    }
}

/// Each connection and each segment costs a descriptor, and a log that gets none for its next segment stops its node: the
/// soft limit of a plain shell (often 1,024) is raised as far as the system lets us.
fn raise_open_files_limit() {
    match rlimit::increase_nofile_limit(u64::MAX) {
        Ok(limit) => tracing::debug!(limit, "open files"),
        Err(error) => tracing::warn!(%error, "limit of open files is left as it is"),
    }
}

/// Something that runs until it is told to stop.
pub trait Server {
    /// Resolves, with the reason, when the server must end at once; never if it cannot break.
    fn failed(&self) -> impl Future<Output = String>;
    /// Ends it gracefully.
    fn shutdown(self, timeout: Duration) -> impl Future<Output = ()>;
}

/// Runs until a signal comes (then stops within a deadline) or the server fails by itself.
pub async fn serve_until_stopped(
    server: impl Server,
    signals: &mut StopSignals,
    runtime: &Runtime,
) -> Result<(), Failure> {
    let signal = match select(server.failed(), signals.next()).await {
        Either::Left(reason) => return Err(ServeError::NodeFailed { reason }.into_failure()),
        Either::Right(signal) => signal,
    };
    tracing::info!(signal, "stopping");
    // The server gets a little less than the deadline, so that it can still end by itself.
    let stop = server.shutdown(STOP_TIMEOUT.mul_f32(0.8));
    match select(runtime.timeout(STOP_TIMEOUT, stop), signals.next()).await {
        Either::Left(Ok(())) => {
            output::line("stopped");
            Ok(())
        }
        Either::Left(Err(_)) => Err(ServeError::StopTimeout { timeout: STOP_TIMEOUT }.into_failure()),
        Either::Right(signal) => Err(ServeError::Forced { signal }.into_failure()),
    }
}
