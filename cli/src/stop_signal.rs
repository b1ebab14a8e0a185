//! When a server should stop: a signal, or the end of its stdin if its parent asked for that.

use std::io::{self, Read};

use flotilla_runtime::{Either, Runtime, select};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listens for SIGINT and SIGTERM from its creation on; a signal in between is not lost.
pub struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
    stdin_closes: bool,
    runtime: Runtime,
}

impl StopSignals {
    /// With `stdin_closes` the end of stdin counts as the first signal: a parent that holds the other
    /// end of the pipe then takes this process with it, however it dies.
    pub fn listen(stdin_closes: bool, runtime: &Runtime) -> io::Result<StopSignals> {
        Ok(StopSignals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            stdin_closes,
            runtime: runtime.clone(),
        })
    }

    /// Waits for the next reason to stop and names it.
    pub async fn next(&mut self) -> &'static str {
        let signals = async {
            match select(self.interrupt.recv(), self.terminate.recv()).await {
                Either::Left(_) => "SIGINT",
                Either::Right(_) => "SIGTERM",
            }
        };
        if !self.stdin_closes {
            return signals.await;
        }
        match select(signals, end_of_stdin(&self.runtime)).await {
            Either::Left(name) => name,
            Either::Right(()) => {
                // Once is enough: afterwards only signals count.
                self.stdin_closes = false;
                "the end of stdin"
            }
        }
    }
}

/// Whatever comes before the end is ignored; an unreadable stdin is a closed one.
async fn end_of_stdin(runtime: &Runtime) {
    let wait = || {
        let mut ignored = [0_u8; 64];
        while matches!(io::stdin().read(&mut ignored), Ok(count) if count > 0) {}
    };
    runtime.blocking(wait).await;
}
