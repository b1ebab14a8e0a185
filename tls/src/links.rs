//! All links of a process: what its settings make of them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use flotilla_metrics::{Exposition, Health, Source};
use flotilla_runtime::{Runtime, Task};

use crate::config::{LinkAuth, TlsConfig, TlsMode};
use crate::counters::{Cause, Link, Side};
use crate::credentials::Credentials;
use crate::error::TlsError;
use crate::incoming::Port;
use crate::outgoing::Outgoing;
use crate::tls::Tls;

/// How often a client looks at its files.
const CLIENT_RELOAD: Duration = Duration::from_secs(10);

/// How each link of a process is spoken. Cheap to clone; the files are looked at as long as a clone is there.
#[derive(Clone, Default)]
pub struct TlsLinks {
    on: Option<Arc<On>>,
}

struct On {
    tls: Arc<Tls>,
    modes: [TlsMode; Link::ALL.len()],
    asks: [bool; Link::ALL.len()],
    _fresh: Task<()>,
}

impl TlsLinks {
    /// No TLS anywhere.
    pub fn plain() -> TlsLinks {
        TlsLinks::default()
    }

    /// As the settings say; reads the files. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// [`TlsError`]: the first file that is not usable.
    pub fn start(config: &TlsConfig, runtime: &Runtime) -> Result<TlsLinks, TlsError> {
        let Some(credentials) = config.credentials().filter(|_| config.is_on()) else { return Ok(TlsLinks::plain()) };
        let modes = [config.client, config.peers, config.namesrv];
        let asks = [config.client_auth, config.peers_auth, config.namesrv_auth].map(|auth| auth == LinkAuth::Required);
        let every = Duration::from_millis(config.reload_interval_ms);
        TlsLinks::over(credentials, modes, asks, every, runtime)
    }

    /// For a client: TLS required with everybody. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// As [`TlsLinks::start`].
    pub fn of_client(credentials: Credentials, runtime: &Runtime) -> Result<TlsLinks, TlsError> {
        TlsLinks::over(credentials, [TlsMode::Required; 3], [false; 3], CLIENT_RELOAD, runtime)
    }

    fn over(
        credentials: Credentials,
        modes: [TlsMode; Link::ALL.len()],
        asks: [bool; Link::ALL.len()],
        every: Duration,
        runtime: &Runtime,
    ) -> Result<TlsLinks, TlsError> {
        let tls = Arc::new(Tls::load(credentials, runtime.clone())?);
        let fresh = runtime.spawn("tls reload", tls.clone().keep_fresh(every));
        Ok(TlsLinks { on: Some(Arc::new(On { tls, modes, asks, _fresh: fresh })) })
    }

    /// What this link's port does with connections; `None` if it takes them without TLS.
    pub fn port(&self, link: Link) -> Option<Port> {
        let on = self.on_for(link)?;
        let is_required = on.modes[link as usize] == TlsMode::Required;
        Some(Port { tls: on.tls.clone(), link, is_required, asks: on.asks[link as usize] })
    }

    /// How connections of this link are made; `None` if without TLS.
    pub fn outgoing(&self, link: Link) -> Option<Outgoing> {
        let on = self.on_for(link)?;
        Some(Outgoing { tls: on.tls.clone(), link, is_required: on.modes[link as usize] == TlsMode::Required })
    }

    fn on_for(&self, link: Link) -> Option<&On> {
        self.on.as_deref().filter(|on| on.modes[link as usize] != TlsMode::Off)
    }

    /// Why others would refuse this process' own certificate, if they would.
    pub fn own_problem(&self) -> Option<String> {
        self.on.as_ref()?.tls.own_problem()
    }

    /// What monitoring is told, with these labels; `None` without TLS.
    pub fn source(&self, labels: &[(&'static str, &str)]) -> Option<Arc<dyn Source>> {
        let tls = self.on.as_ref()?.tls.clone();
        let labels = labels.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        Some(Arc::new(TlsSource { tls, labels }))
    }
}

impl std::fmt::Debug for TlsLinks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsLinks").field("modes", &self.on.as_ref().map(|on| on.modes)).finish_non_exhaustive()
    }
}

/// The TLS of a process, as monitoring asks it.
struct TlsSource {
    tls: Arc<Tls>,
    labels: Vec<(&'static str, String)>,
}

impl Source for TlsSource {
    fn measure(&self, into: &mut Exposition) {
        let labels: Vec<_> = self.labels.iter().map(|(name, value)| (*name, value.as_str())).collect();
        into.set_base(&labels);
        if let Some(not_after_s) = self.tls.material().not_after_s {
            let help = "When the TLS certificate in use expires, seconds since the Unix epoch.";
            into.gauge_whole("flotilla_tls_certificate_expires_seconds", help, &[], not_after_s);
        }
        let counters = &self.tls.counters;
        let help = "New TLS files that were taken into use without a restart.";
        into.counter("flotilla_tls_reloads_total", help, &[], counters.reloads.load(Ordering::Relaxed));
        let help = "New TLS files that were not usable; the old ones stay in use.";
        let failures = counters.reload_failures.load(Ordering::Relaxed);
        into.counter("flotilla_tls_reload_failures_total", help, &[], failures);
        for link in Link::ALL {
            for side in Side::ALL {
                let seen = counters.of(link, side);
                let help = "Connections by link, by who opened them (in: the other end), and by whether they have TLS.";
                for (kind, count) in [("tls", &seen.secured), ("plain", &seen.plain)] {
                    let labels = [("link", link.text()), ("side", side.text()), ("kind", kind)];
                    into.counter("flotilla_tls_connections_total", help, &labels, count.load(Ordering::Relaxed));
                }
                let help = "Connections on which there was no TLS although it was wanted, by cause.";
                for cause in Cause::ALL {
                    let labels = [("link", link.text()), ("side", side.text()), ("cause", cause.text())];
                    let count = seen.failures[cause as usize].load(Ordering::Relaxed);
                    into.counter("flotilla_tls_handshake_failures_total", help, &labels, count);
                }
            }
        }
    }

    fn live(&self) -> Health {
        Health::of("tls")
    }

    fn ready(&self) -> Health {
        Health::of("tls").warn(self.tls.own_problem())
    }
}
