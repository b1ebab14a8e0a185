//! How far a long command is: a bar on a terminal, a plain line now and then anywhere else.

use std::io::IsTerminal;
use std::time::Duration;

use flotilla_runtime::{Instant, Runtime};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

const PLAIN_INTERVAL: Duration = Duration::from_secs(1);
const REDRAWS_PER_SECOND: u8 = 10;

/// Progress on stderr, so that stdout stays for results.
pub struct Progress {
    runtime: Runtime,
    total: Option<u64>,
    bar: Option<ProgressBar>,
    /// Whether it shows anything where there is no terminal.
    plain_lines: bool,
    label: &'static str,
    last_line: Instant,
}

impl Progress {
    /// Without a total it only counts.
    pub fn start(label: &'static str, total: Option<u64>, runtime: &Runtime) -> Progress {
        let bar = std::io::stderr().is_terminal().then(|| {
            let target = ProgressDrawTarget::stderr_with_hz(REDRAWS_PER_SECOND);
            let template = if total.is_some() {
                "{prefix} {wide_bar} {human_pos}/{human_len} {msg}"
            } else {
                "{prefix} {human_pos} {msg}"
            };
            let style = ProgressStyle::with_template(template).expect("the template is a constant and valid");
            let bar = ProgressBar::with_draw_target(total, target).with_style(style);
            bar.set_prefix(label);
            bar
        });
        Progress { runtime: runtime.clone(), total, bar, plain_lines: true, label, last_line: runtime.now() }
    }

    /// The same for commands in pipes: without a terminal it shows nothing.
    pub fn on_terminal(label: &'static str, total: Option<u64>, runtime: &Runtime) -> Progress {
        let mut progress = Progress::start(label, total, runtime);
        progress.plain_lines = false;
        progress
    }

    /// `note` says what is going on besides the count.
    pub fn update(&mut self, done: u64, note: &str) {
        if let Some(bar) = &self.bar {
            bar.set_position(done);
            bar.set_message(note.to_owned());
            return;
        }
        let now = self.runtime.now();
        if self.plain_lines && now.saturating_since(self.last_line) >= PLAIN_INTERVAL {
            self.last_line = now;
            self.line(done, note);
        }
    }

    /// Something worth a line of its own.
    pub fn event(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("{text}")),
            None => eprintln!("{text}"),
        }
    }

    /// Takes the bar away.
    pub fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    fn line(&self, done: u64, note: &str) {
        let total = self.total.map(|total| format!("/{total}")).unwrap_or_default();
        let separator = if note.is_empty() { "" } else { ", " };
        eprintln!("{}: {done}{total}{separator}{note}", self.label);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}
