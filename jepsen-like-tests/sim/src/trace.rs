//! The run's fingerprint, a hash over every step taken, and its story, one line for each event that matters.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::rng::{FNV_PRIME, FNV_START};

/// Lines of the story that are kept for the report of a failure.
const STORY_LINES_MAX: usize = 400;

/// Hash and story of one run. Two runs of one seed must end with the same hash.
#[derive(Debug)]
pub struct Trace {
    hash: AtomicU64,
    steps: AtomicU64,
    story: Mutex<VecDeque<String>>,
    print: bool,
}

impl Trace {
    /// With `print` each line of the story goes to standard output as it happens.
    pub fn new(print: bool) -> Trace {
        Trace { hash: AtomicU64::new(FNV_START), steps: AtomicU64::new(0), story: Mutex::new(VecDeque::new()), print }
    }

    /// Takes one step into the hash.
    pub fn step(&self, now_ns: u64, what: u64) {
        let mut hash = self.hash.load(Ordering::Relaxed);
        for word in [now_ns, what] {
            // Words, not bytes, as FNV has it: this is done for every step. The rotation brings high bits down.
            hash = (hash ^ word).wrapping_mul(FNV_PRIME).rotate_left(29);
        }
        self.hash.store(hash, Ordering::Relaxed);
        self.steps.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds a line to the story, and to the hash.
    pub fn tell(&self, now_ns: u64, line: &str) {
        self.step(now_ns, crate::rng::fnv(line.as_bytes()));
        let line = format!("{:>12.6} {line}", now_ns as f64 / 1e9);
        if self.print {
            println!("{line}");
        }
        let mut story = self.story.lock().expect("story lock is never poisoned: no code panics while holding it");
        if story.len() == STORY_LINES_MAX {
            story.pop_front();
        }
        story.push_back(line);
    }

    /// The fingerprint of everything so far.
    pub fn hash(&self) -> u64 {
        self.hash.load(Ordering::Relaxed)
    }

    /// Steps taken so far.
    pub fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// The newest lines of the story.
    pub fn story(&self) -> Vec<String> {
        let story = self.story.lock().expect("story lock is never poisoned: no code panics while holding it");
        story.iter().cloned().collect()
    }
}
