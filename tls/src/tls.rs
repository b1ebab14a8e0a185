//! The certificates of one process, as they are now.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use flotilla_runtime::Runtime;

use crate::counters::{Cause, Counters, Link, Side};
use crate::credentials::Credentials;
use crate::der_dates::date_text;
use crate::error::TlsError;
use crate::material::{Material, Raw};
use crate::pace::Pace;

const DAY_S: u64 = 86_400;
/// How long before its end a certificate is told of, and then every day below the last of them.
const WARN_BEFORE_DAYS: [u64; 2] = [30, 7];

/// What all links of a process share.
pub(crate) struct Tls {
    pub(crate) runtime: Runtime,
    pub(crate) counters: Counters,
    credentials: Credentials,
    material: RwLock<Arc<Material>>,
    pace: Pace,
}

impl Tls {
    /// Reads and checks the files.
    pub(crate) fn load(credentials: Credentials, runtime: Runtime) -> Result<Tls, TlsError> {
        let raw = Raw::read(&credentials)?;
        let material = Material::of(raw, &credentials, runtime.wall_ms() / 1_000)?;
        let material = RwLock::new(Arc::new(material));
        Ok(Tls { runtime, counters: Counters::default(), credentials, material, pace: Pace::default() })
    }

    /// What a new connection uses.
    pub(crate) fn material(&self) -> Arc<Material> {
        // A panic while holding it leaves the pointer whole.
        self.material.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Counts a connection that has no TLS, and tells of it unless it was just told.
    pub(crate) fn note_failure(&self, (link, side): (Link, Side), who: &str, cause: Cause, reason: &str) {
        self.counters.note_failure(link, side, cause);
        let (link, side) = (link.text(), side.text());
        if self.pace.is_due(&format!("{link} {side} {who}"), cause, &self.runtime) {
            tracing::warn!(link, side, address = who, cause = cause.text(), reason, "no TLS on a connection");
        }
    }

    /// Why others would refuse this process' own certificate, if they would.
    pub(crate) fn own_problem(&self) -> Option<String> {
        let not_after_s = self.material().not_after_s?;
        let is_over = self.runtime.wall_ms() / 1_000 > not_after_s;
        is_over.then(|| format!("its TLS certificate expired at {}", date_text(not_after_s)))
    }

    /// Looks at the files again and again; never ends.
    pub(crate) async fn keep_fresh(self: Arc<Self>, every: Duration) {
        let (mut told, mut warned_s) = (None, None);
        loop {
            self.warn_of_the_end(&mut warned_s);
            self.runtime.sleep(every).await;
            let reading = self.clone();
            let seen = self.runtime.blocking(move || reading.reload()).await;
            match seen {
                Ok(false) => told = None,
                Ok(true) => {
                    (told, warned_s) = (None, None);
                    self.counters.reloads.fetch_add(1, Ordering::Relaxed);
                    let until = self.material().not_after_s.map(date_text).unwrap_or_default();
                    tracing::info!(until, "new TLS certificates are used for new connections");
                }
                Err(error) => {
                    let text = error.to_string();
                    // The same files are as wrong at the next look.
                    if told.as_ref() != Some(&text) {
                        self.counters.reload_failures.fetch_add(1, Ordering::Relaxed);
                        tracing::error!(%error, "new TLS files are not usable, the old ones stay in use");
                        told = Some(text);
                    }
                }
            }
        }
    }

    /// Takes what is in the files now; whether that is new.
    fn reload(&self) -> Result<bool, TlsError> {
        let raw = Raw::read(&self.credentials)?;
        if raw == self.material().raw {
            return Ok(false);
        }
        let material = Material::of(raw, &self.credentials, self.runtime.wall_ms() / 1_000)?;
        *self.material.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(material);
        Ok(true)
    }

    /// `warned_s` is when it was last told.
    fn warn_of_the_end(&self, warned_s: &mut Option<u64>) {
        let Some(not_after_s) = self.material().not_after_s else { return };
        let now_s = self.runtime.wall_ms() / 1_000;
        if !is_warning_due(now_s, not_after_s, *warned_s) {
            return;
        }
        *warned_s = Some(now_s);
        let until = date_text(not_after_s);
        if now_s > not_after_s {
            tracing::error!(until, "TLS certificate has expired: connections stay, new ones are refused by others");
        } else {
            let days = (not_after_s - now_s) / DAY_S;
            tracing::warn!(until, days, "TLS certificate expires soon");
        }
    }
}

/// Once at each of the marks, and every day behind the last one.
fn is_warning_due(now_s: u64, not_after_s: u64, warned_s: Option<u64>) -> bool {
    let [first, last] = WARN_BEFORE_DAYS.map(|days| not_after_s.saturating_sub(days * DAY_S));
    match warned_s {
        _ if now_s < first => false,
        None => true,
        Some(warned_s) if warned_s < last => now_s >= last,
        Some(warned_s) => now_s >= warned_s.saturating_add(DAY_S) || (warned_s <= not_after_s && now_s > not_after_s),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_told_at_thirty_and_seven_days_then_daily_and_when_it_comes() {
        let end = 100 * DAY_S;
        let mut warned = None;
        let mut told = Vec::new();
        for hour in 0..103 * 24 {
            let now = hour * 3_600;
            if is_warning_due(now, end, warned) {
                warned = Some(now);
                told.push((now / DAY_S, now % DAY_S / 3_600));
            }
        }
        let mut expected = vec![(70, 0), (93, 0)];
        expected.extend((94..=100).map(|day| (day, 0)));
        expected.extend([(100, 1), (101, 1), (102, 1)]);
        assert_eq!(told, expected);
    }
}
