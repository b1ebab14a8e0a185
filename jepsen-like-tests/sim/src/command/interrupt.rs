//! Ctrl-C and SIGTERM: the first one asks the work to come to its end, the second one ends the process at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flotilla_runtime::select;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

/// What a process answers that was told to end and found nothing wrong until then: as shells say it of Ctrl-C.
pub(crate) const INTERRUPTED: u8 = 130;

/// Listens from its creation on, to the end of the process.
pub(crate) struct Interrupt {
    is_asked: Arc<AtomicBool>,
}

impl Interrupt {
    /// The first signal prints `what_now` and sets the flag; the second one exits.
    pub(crate) fn listen(what_now: &'static str) -> Result<Interrupt, String> {
        let refused = |error: std::io::Error| format!("no thread that waits for signals: {error}");
        let waiting = Builder::new_current_thread().enable_all().build().map_err(refused)?;
        let (mut interrupts, mut terminations) = {
            let _entered = waiting.enter();
            let of_kind = |kind| signal(kind).map_err(refused);
            (of_kind(SignalKind::interrupt())?, of_kind(SignalKind::terminate())?)
        };
        let is_asked = Arc::new(AtomicBool::new(false));
        let asked = is_asked.clone();
        let wait = move || {
            waiting.block_on(async move {
                loop {
                    select(interrupts.recv(), terminations.recv()).await;
                    if asked.swap(true, Ordering::Relaxed) {
                        std::process::exit(i32::from(INTERRUPTED));
                    }
                    eprintln!("\n{what_now}; once more ends it at once");
                }
            });
        };
        std::thread::Builder::new().name("signals".to_owned()).spawn(wait).map_err(refused)?;
        Ok(Interrupt { is_asked })
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.is_asked.load(Ordering::Relaxed)
    }
}
