//! Finds out whether the group has gone on without this replica, by an operator's order, and holds still if so.
//!
//! ```text
//!  start ─▶ no vote ─▶ ask all members ─┬─ one says: given up ─▶ on disk ─▶ neither votes nor counts, for good
//!                                        └─ nobody does ─▶ votes ─▶ somebody speaks as of a later epoch ─▶ ask that one
//! ```
//! Replicas that were given up still make a majority of the membership they know. So each asks before it first votes; where
//! the ones that went on cannot be reached then, the first word from them ends it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flotilla_runtime::{Runtime, Task};
use futures::future::join_all;

use super::acquaintance::{AcquaintanceAnswer, Verdict, ask_acquaintance};
use super::wire::{PeerMessage, encode};
use crate::log_view::LogView;
use crate::status_watch::StatusWatch;
use crate::{NodeId, Role, Transport};

/// From one question to the next, while others speak as of a later epoch.
const ASK_PAUSE: Duration = Duration::from_secs(1);

/// What is answered, whatever was asked, to one that the group went on without: so that it learns of it.
pub(crate) fn refusal(epoch: u16) -> Bytes {
    let verdict = Verdict::GivenUp { epoch };
    let answer = AcquaintanceAnswer { verdict, is_newcomer: false, durable: None, contact: String::new() };
    encode(PeerMessage::AcquaintanceAnswer(answer))
}

/// What it takes to find out.
pub(crate) struct LeftBehind {
    pub(crate) node: NodeId,
    pub(crate) view: LogView,
    pub(crate) status: StatusWatch,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) runtime: Runtime,
}

impl LeftBehind {
    /// Begins; dropping the task ends it. Where nobody has to be asked, that is settled when this returns.
    pub(crate) fn start(self) -> Task<()> {
        let standings = self.view.standings().clone();
        let others = self.others();
        if others.is_empty() || standings.given_up() > 0 {
            standings.settled();
        }
        let runtime = self.runtime.clone();
        runtime.spawn("left-behind", async move {
            if standings.is_settling() {
                self.ask(others).await;
                standings.settled();
                self.view.shared.damages.wake();
            }
            if standings.given_up() > 0 {
                self.tell(standings.given_up());
            }
            loop {
                let superiors = standings.superiors().await;
                self.ask(superiors.into_iter().collect()).await;
                self.runtime.sleep(ASK_PAUSE).await;
            }
        })
    }

    fn others(&self) -> Vec<NodeId> {
        let members = self.view.standings().members().members;
        members.into_keys().filter(|node| *node != self.node).collect()
    }

    async fn ask(&self, others: Vec<NodeId>) {
        let asking = others.iter().map(|node| ask_acquaintance(&self.runtime, &*self.transport, *node));
        let answers = join_all(asking).await;
        let epochs = answers.into_iter().flatten().filter_map(|(answer, _)| match answer.verdict {
            Verdict::GivenUp { epoch } => Some(epoch),
            Verdict::Welcome | Verdict::Remembered(_) | Verdict::Stranger { .. } => None,
        });
        let standings = self.view.standings();
        let Some(epoch) = epochs.max().filter(|epoch| *epoch > standings.given_up()) else { return };
        let writing = standings.clone();
        if self.view.note_identity(move || writing.give_up(epoch)).await.is_none() {
            return;
        }
        self.view.shared.damages.wake();
        if self.status.now().role == Role::Leader {
            // It may have acknowledged what the group will never have: nobody is to be served from here any more.
            self.view.failure().report(format!(
                "the group has gone on without this replica, which led replicas that were given up (epoch {epoch}); \
                 what it acknowledged since is only in its own directory: keep that, and let the replica come back with \
                 an empty one"
            ));
        } else if !standings.is_settling() {
            self.tell(epoch);
        }
    }

    fn tell(&self, epoch: u16) {
        tracing::error!(
            epoch,
            incarnation = %self.view.standings().incarnation(),
            "the group has gone on without this replica: it neither votes nor counts. Keep its directory for what may be only \
             there, and add it again with an empty one"
        );
    }
}
