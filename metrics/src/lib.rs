//! What monitoring reads of a process: numbers in Prometheus' text format, and whether it is alive and ready.
//!
//! What this crate promises:
//! - whoever has numbers keeps them as plain counters, and writes them down ([`Source`]) only when somebody asks: nothing is
//!   paid for a metric but an addition where something happens;
//! - one [`Endpoint`] serves all sources of a process, with a bound on connections, on headers, on the time of each, and on
//!   renderings at a time: a slow or hostile reader costs the process nothing more;
//! - [`Scrape`] reads the format back, for tests and tools.
//!
//! It knows nothing of brokers. Only [`Endpoint`] names hyper.

mod endpoint;
mod exposition;
mod health;
mod histogram;
mod late_source;
mod process;
mod scrape;

pub use endpoint::{Endpoint, EndpointError};
pub use exposition::{Exposition, Label};
pub use health::Health;
pub use histogram::{Buckets, Histogram};
pub use late_source::LateSource;
pub use scrape::{Sample, Scrape, ScrapeError};

/// A part of a process that monitoring asks: a replica, a namesrv.
pub trait Source: Send + Sync + 'static {
    /// Writes its numbers down. May take its time and read files: it is called where that blocks nobody.
    fn measure(&self, into: &mut Exposition);

    /// Whether it is worth keeping: a problem here means that the process should be started again.
    fn live(&self) -> Health;

    /// Whether it can do its work now: a problem here means that work should go elsewhere for a while.
    fn ready(&self) -> Health;
}
