//! Keeps a replica that is not fit from leading: it does not campaign, and if it leads, a fit follower takes over.
//!
//! Fit is a replica whose copy of the log has no known hole, whose wall clock the others do not contradict and that does not
//! hold its vote. Only where nobody led for a while does an unfit one campaign all the same: serving what is intact is
//! better than serving nothing. One that holds its vote never does: others may have confirmed what it forgot.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use flotilla_runtime::{Instant, Runtime, Task};

use crate::log_view::LogView;
use crate::raft::LogRaft;
use crate::status_watch::StatusWatch;
use crate::vitals::{Fitness, Vitals, ask_vitals};
use crate::{Role, Transport};

/// While this replica is unfit it looks so often.
const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// A fit replica looks so often even if nothing was told.
const IDLE_PAUSE: Duration = Duration::from_secs(5);
/// After so long without any leader an unfit replica campaigns too.
const LEADERLESS_MAX: Duration = Duration::from_secs(10);
/// A hand-over that has not worked after so long is tried again, perhaps with another follower.
const HAND_OVER_MAX: Duration = Duration::from_secs(2);

/// For how long nobody has led, as a replica that may not lead sees it.
#[derive(Debug, Default)]
struct Leaderless {
    since: Option<Instant>,
    /// So long that it campaigns although it is not fit.
    is_desperate: bool,
}

/// Cheap handle; the task ends with the last of them.
#[derive(Clone)]
pub(crate) struct LeadGuard {
    inner: Arc<Inner>,
    _task: Arc<Task<()>>,
}

struct Inner {
    view: LogView,
    vitals: Arc<Vitals>,
    raft: LogRaft,
    status: StatusWatch,
    transport: Arc<dyn Transport>,
    runtime: Runtime,
    may_campaign: AtomicBool,
    /// The owner does not want it to campaign by itself now.
    is_held_back: AtomicBool,
    hand_overs_done: AtomicU64,
    hand_overs_failed: AtomicU64,
}

impl LeadGuard {
    /// Begins to guard; whether this replica may campaign is settled when this returns.
    pub(crate) fn start(
        view: LogView,
        vitals: Arc<Vitals>,
        raft: LogRaft,
        status: StatusWatch,
        transport: Arc<dyn Transport>,
        runtime: &Runtime,
    ) -> LeadGuard {
        let inner = Arc::new(Inner {
            view,
            vitals,
            raft,
            status,
            transport,
            runtime: runtime.clone(),
            may_campaign: AtomicBool::new(true),
            is_held_back: AtomicBool::new(false),
            hand_overs_done: AtomicU64::new(0),
            hand_overs_failed: AtomicU64::new(0),
        });
        inner.let_campaign(inner.is_fit() || inner.status.now().members.len() <= 1);
        let paused = Arc::downgrade(&inner);
        inner.view.shared.campaign_pause.set_hook(Arc::new(move || {
            if let Some(inner) = paused.upgrade() {
                inner.tell_core();
                // Whose turn it is to end the pause.
                inner.view.shared.damages.wake();
            }
        }));
        let working = inner.clone();
        let task = Arc::new(runtime.spawn("lead-guard", async move { working.run().await }));
        LeadGuard { inner, _task: task }
    }

    /// The log that it guards.
    pub(crate) fn view(&self) -> LogView {
        self.inner.view.clone()
    }

    /// Whether this replica may campaign by itself.
    pub(crate) fn may_campaign(&self) -> bool {
        self.may_take_over() && !self.inner.is_held_back.load(Ordering::Acquire)
    }

    /// Lets the replica campaign by itself, or not. One that may not still votes, follows, and takes over when leadership
    /// is handed to it.
    pub(crate) fn hold_back(&self, is_held_back: bool) {
        self.inner.is_held_back.store(is_held_back, Ordering::Release);
        self.inner.tell_core();
    }

    /// How often it has given the lead away by itself, and how often nobody took it in time.
    pub(crate) fn hand_overs(&self) -> (u64, u64) {
        let inner = &*self.inner;
        (inner.hand_overs_done.load(Ordering::Relaxed), inner.hand_overs_failed.load(Ordering::Relaxed))
    }

    /// Whether this replica may take over leadership that is handed to it.
    pub(crate) fn may_take_over(&self) -> bool {
        // What was found a moment ago counts at once, though the task may not have looked yet.
        let inner = &*self.inner;
        inner.is_fit() || (!inner.holds_vote() && inner.may_campaign.load(Ordering::Acquire) && inner.is_late())
    }

    /// Whether there is a reason not to lead.
    pub(crate) fn is_fit(&self) -> bool {
        self.inner.is_fit()
    }
}

impl Leaderless {
    /// Takes what one look saw: whether this replica is not fit and nobody leads, and whether it may campaign if that lasts.
    /// Says whether it is desperate if that has changed.
    fn look(&mut self, is_leaderless: bool, may_campaign: bool, now: Instant) -> Option<bool> {
        self.since = is_leaderless.then(|| self.since.unwrap_or(now));
        let is_desperate = may_campaign && self.since.is_some_and(|since| now >= since + LEADERLESS_MAX);
        (std::mem::replace(&mut self.is_desperate, is_desperate) != is_desperate).then_some(is_desperate)
    }
}

impl Inner {
    fn is_fit(&self) -> bool {
        !self.view.shared.damages.any() && !self.vitals.is_clock_off() && !self.holds_vote()
    }

    /// It may lack entries that it had confirmed: not even when nobody else leads may it do so.
    fn holds_vote(&self) -> bool {
        self.view.vote_hold().holds()
    }

    /// Nobody else can or did lead.
    fn is_late(&self) -> bool {
        let status = self.status.now();
        status.members.len() <= 1 || status.leader.is_none()
    }

    fn let_campaign(&self, may: bool) {
        let may = may && !self.holds_vote();
        self.may_campaign.store(may, Ordering::Release);
        self.tell_core();
    }

    fn tell_core(&self) {
        let is_held_back = self.is_held_back.load(Ordering::Acquire);
        let pauses = self.view.shared.campaign_pause.left(self.runtime.now()).is_some();
        self.raft.runtime_config().elect(self.may_campaign.load(Ordering::Acquire) && !is_held_back && !pauses);
    }

    async fn run(&self) {
        let damages = &self.view.shared.damages;
        let mut leaderless = Leaderless::default();
        let (mut was_fit, mut is_stuck) = (true, false);
        while !damages.is_closing() {
            let mut news = std::pin::pin!(damages.news());
            news.as_mut().enable();
            let is_fit = self.is_fit();
            let waits_for_group = self.holds_vote() && !self.view.vote_hold().recovers();
            if is_fit != was_fit && !waits_for_group {
                tracing::warn!(is_fit, "lead guard: this replica's fitness to lead changed");
                was_fit = is_fit;
            }
            let status = self.status.now();
            let now = self.runtime.now();
            let is_alone = status.members.len() <= 1;
            let is_leaderless = !is_fit && status.leader.is_none();
            match leaderless.look(is_leaderless, !is_alone && !self.holds_vote(), now) {
                Some(true) => {
                    tracing::error!(
                        "lead guard: nobody leads, so this replica campaigns although it is not fit to lead"
                    );
                }
                Some(false) => {
                    let leader = status.leader.map_or(0, |leader| leader.0);
                    tracing::warn!(
                        is_fit,
                        leader,
                        "lead guard: this replica campaigns no longer although it is not fit"
                    );
                }
                None => {}
            }
            let may = is_fit || is_alone || leaderless.is_desperate;
            self.let_campaign(may);
            if !is_fit && status.role == Role::Leader && !is_alone {
                let was_begun = self.hand_over().await;
                if !was_begun && !is_stuck {
                    tracing::error!(
                        "lead guard: this replica leads and is not fit to, but no follower can take over now"
                    );
                }
                is_stuck = !was_begun;
            }
            let pause = if is_fit { IDLE_PAUSE } else { LOOK_PAUSE };
            let pause = self.view.shared.campaign_pause.left(now).map_or(pause, |left| left.min(pause));
            let _ = self.runtime.timeout(pause, news).await;
        }
    }

    /// Gives the lead to the fittest follower; false if there is none.
    async fn hand_over(&self) -> bool {
        let mut fitnesses = Vec::new();
        for (place, target) in self.status.followers_by_log().into_iter().enumerate() {
            // One that does not answer, or does not know the question, is passed over.
            if let Some(answer) = ask_vitals(&self.runtime, &*self.transport, target).await {
                fitnesses.push((answer.fitness, place, target));
            }
        }
        if let Some((_, _, target)) = fitnesses.into_iter().filter(|(fitness, ..)| *fitness != Fitness::Unfit).min() {
            tracing::warn!(%target, "lead guard: handing over, this replica is not fit to lead");
            if self.raft.trigger().transfer_leader(target.0).await.is_err() {
                return true;
            }
            let until = self.runtime.now() + HAND_OVER_MAX;
            while self.status.now().role == Role::Leader && self.runtime.now() < until {
                self.runtime.sleep(LOOK_PAUSE / 4).await;
            }
            let is_done = self.status.now().role != Role::Leader;
            let count = if is_done { &self.hand_overs_done } else { &self.hand_overs_failed };
            count.fetch_add(1, Ordering::Relaxed);
            return true;
        }
        self.runtime.sleep(LOOK_PAUSE * 10).await;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_an_unfit_replica_campaigns_is_said_once_and_so_is_the_end_of_it() {
        let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        let mut leaderless = Leaderless::default();
        let mut told = Vec::new();
        // Nobody leads for 30 s, twice, and a leader that is there for one look between them begins it anew.
        for ms in (0..60_000).step_by(100) {
            if let Some(is_desperate) = leaderless.look(ms != 30_000, true, at(ms)) {
                told.push((ms, is_desperate));
            }
            assert_eq!(leaderless.is_desperate, matches!(ms, 10_000..30_000 | 40_100..), "{ms}");
        }
        assert_eq!(told, [(10_000, true), (30_000, false), (40_100, true)]);
        assert_eq!(leaderless.look(true, false, at(60_000)), Some(false), "one that holds its vote does not campaign");
        assert_eq!(leaderless.look(true, true, at(60_100)), Some(true), "it has waited meanwhile");
    }
}
