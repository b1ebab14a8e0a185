//! What a leader does by itself, without being asked: duties. Each proposes under its term, and lapses with it.

pub mod check;
pub mod due;
mod news;
pub mod purge;
pub mod retention;

use std::sync::Arc;

use flotilla_runtime::Task;

pub use news::DutyNews;

use crate::replica::Replica;

/// Starts all duties; they rest while another replica leads.
pub fn start(replica: &Arc<Replica>, news: &Arc<DutyNews>) -> [Task<()>; 4] {
    let runtime = &replica.runtime;
    [
        runtime.spawn("deliver-due", due::deliver_due(replica.clone(), news.clone())),
        runtime.spawn("check-transactions", check::check_transactions(replica.clone(), news.clone())),
        runtime.spawn("retention", retention::retain(replica.clone())),
        runtime.spawn("purge", purge::purge(replica.clone(), news.clone())),
    ]
}
