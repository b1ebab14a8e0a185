//! What a replica does by itself, without being asked: duties. A leader's propose under its term, and lapse with it.

pub mod alarms;
pub mod check;
pub mod due;
mod feature_level;
mod news;
pub mod purge;
pub mod retention;
mod self_judge;
mod self_watch;
mod tidy;
mod topic_retention;

use std::sync::Arc;

use flotilla_runtime::Task;

pub use news::DutyNews;

use crate::replica::Replica;

/// Starts all duties; they rest while another replica leads.
pub fn start(replica: &Arc<Replica>, news: &Arc<DutyNews>) -> [Task<()>; 9] {
    let runtime = &replica.runtime;
    [
        runtime.spawn("deliver-due", due::deliver_due(replica.clone(), news.clone())),
        runtime.spawn("check-transactions", check::check_transactions(replica.clone(), news.clone())),
        runtime.spawn("self-watch", self_watch::watch_self(replica.clone())),
        runtime.spawn("alarms", alarms::watch_alarms(replica.clone())),
        runtime.spawn("retention", retention::retain(replica.clone())),
        runtime.spawn("tidy", tidy::tidy(replica.clone())),
        runtime.spawn("feature-level", feature_level::raise(replica.clone())),
        runtime.spawn("topic-retention", topic_retention::retain_topics(replica.clone())),
        runtime.spawn("purge", purge::purge(replica.clone(), news.clone())),
    ]
}
