//! Whether a replica is fit to lead, as it finds itself. The others ask the log for it.

use std::sync::Mutex;

/// Why a replica is not fit to lead, while it is not.
#[derive(Debug, Default)]
pub struct Fitness {
    illness: Mutex<Option<String>>,
}

impl Fitness {
    /// Notes an illness, or that there is none; true if that is news.
    pub fn set(&self, reason: Option<&str>) -> bool {
        let mut illness = self.illness.lock().expect(LOCK);
        let is_news = illness.is_some() != reason.is_some();
        *illness = reason.map(str::to_owned);
        is_news
    }

    /// Why it is not fit.
    pub fn illness(&self) -> Option<String> {
        self.illness.lock().expect(LOCK).clone()
    }
}

const LOCK: &str = "fitness lock is never poisoned: no code panics while holding it";
