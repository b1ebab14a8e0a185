//! The duty by which a replica looks at itself, and a leader that is not fit gives the lead away.
//!
//! Heartbeats say nothing of a disk: a leader whose syncs take seconds keeps its followers content and its callers waiting.
//! So each replica judges itself ([`SelfJudge`]), does not campaign while it is ill, and hands over to a follower that says
//! that it is fit. It stays where nobody else can lead: slow is better than nothing.

use std::sync::Arc;
use std::time::Duration;

use flotilla_raft_log::{LogStatus, Role};
use flotilla_runtime::Instant;

use super::self_judge::{Limits, SelfJudge, Symptoms};
use crate::lead::hand_over::hand_over;
use crate::metrics::HandOverCause;
use crate::replica::Replica;

/// From one look to the next.
const LOOK_PAUSE: Duration = Duration::from_millis(250);
/// An ill replica campaigns too once nobody has led for so long.
const LEADERLESS_MAX: Duration = Duration::from_secs(2);
/// How long a hand-over is waited for. It may be over long before this replica knows, whose slow disk must keep a vote first.
const HAND_OVER_MAX: Duration = Duration::from_secs(10);
/// Pause after a hand-over that failed; doubled each time up to the second.
const PAUSE_MIN: Duration = Duration::from_secs(2);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Runs as long as the replica.
pub async fn watch_self(replica: Arc<Replica>) {
    let config = &replica.config;
    let mut watch = Watch {
        judge: SelfJudge::new(Limits {
            window: Duration::from_millis(config.slow_sync_window_ms),
            apply_lag_max: Duration::from_millis(config.apply_lag_ms_max),
            fit_again: Duration::from_millis(config.fit_again_ms),
        }),
        may_campaign: true,
        is_silenced: false,
        next_try: replica.runtime.now(),
        pause: PAUSE_MIN,
    };
    loop {
        let seen = replica.log.status();
        watch.look(&replica, &seen);
        if config.hand_over_when_unfit {
            watch.act(&replica, &seen).await;
        }
        replica.runtime.sleep(LOOK_PAUSE).await;
    }
}

struct Watch {
    judge: SelfJudge,
    may_campaign: bool,
    /// It leads without a quorum, and has said so.
    is_silenced: bool,
    /// The next hand-over not before.
    next_try: Instant,
    pause: Duration,
}

impl Watch {
    fn look(&mut self, replica: &Replica, seen: &LogStatus) {
        let now = replica.runtime.now();
        if let Some(last) = seen.last {
            let mut lag = replica.lag.lock().expect("lag lock is never poisoned: no code panics while holding it");
            lag.look(now, last);
        }
        let symptoms = Symptoms { syncs: replica.log.slow_syncs(), apply_lag: replica.seconds_behind(seen.applied) };
        // A leader that new connections do not reach, while it reaches the others, would go on and be of use to nobody.
        let unreachable = replica.peers.own_problem();
        let illness = self.judge.look(now, &symptoms);
        let illness = unreachable.as_deref().or(illness);
        if replica.fitness.set(illness) {
            replica.log.set_ill(illness.is_some());
            match illness {
                Some(reason) => tracing::warn!(reason, "this replica is not fit to lead"),
                None => tracing::info!("this replica is fit to lead again"),
            }
        }
        let is_silenced = seen.role == Role::Leader && !seen.can_write;
        if is_silenced != self.is_silenced {
            self.is_silenced = is_silenced;
            if is_silenced {
                tracing::warn!(
                    term = seen.term.0,
                    "this replica leads and may not write: no quorum answers, or not yet"
                );
            }
        }
    }

    async fn act(&mut self, replica: &Replica, seen: &LogStatus) {
        let now = replica.runtime.now();
        let is_ill = replica.fitness.illness().is_some();
        // Who is named as leader may be gone, and all who could take its place ill: then an ill one is better than none.
        let is_leaderless = seen.role != Role::Leader && replica.log.leader_silence() >= LEADERLESS_MAX;
        let may_campaign = !is_ill || is_leaderless || seen.members.len() < 2;
        if may_campaign != self.may_campaign {
            self.may_campaign = may_campaign;
            replica.log.let_campaign(may_campaign);
        }
        let should_go = seen.role == Role::Leader && seen.can_write && (is_ill || seen.disk.is_full);
        if !should_go || seen.members.len() < 2 || now < self.next_try {
            return;
        }
        match hand_over(replica, None, HAND_OVER_MAX, HandOverCause::Unfit).await {
            Ok(_) => self.pause = PAUSE_MIN,
            Err(_) => self.pause = (self.pause * 2).min(PAUSE_MAX),
        }
        self.next_try = replica.runtime.now() + self.pause;
    }
}
