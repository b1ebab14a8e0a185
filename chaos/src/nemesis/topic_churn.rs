//! Topics and groups come and go while messages flow.

use std::time::Duration;

use flotilla_client::{GroupSpec, TopicSpec};
use flotilla_message::{GroupName, TopicName};
use serde::{Deserialize, Serialize};

use super::{About, Field, FieldError, Nemesis};

pub(super) const ABOUT: About = About {
    what: "other topics and groups are created, looked at and deleted, about 50 a second",
    heals: "nothing is broken: it ends, and none is left, unless another fault stops the group meanwhile",
};

const PAUSE: Duration = Duration::from_millis(20);
const NAMES: u64 = 20;
/// How long the last ones may take to go. Under a fault that has stopped the group each call would wait for its own timeout, and
/// the other faults with it.
const CLEARING: Duration = Duration::from_secs(3);

/// Topics that come and go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopicChurn {}

impl Nemesis for TopicChurn {
    async fn hurt(&self, field: &mut Field) -> Result<Vec<u64>, FieldError> {
        let (admin, runtime) = (field.client.admin(), field.runtime.clone());
        let task = field.runtime.spawn("topic-churn", async move {
            // What fails meanwhile, as without a leader, is no matter: nobody was promised anything.
            for number in (0..NAMES).cycle() {
                let _ = admin.create_topic(&TopicSpec::new(topic(number), 4)).await;
                let _ = admin.create_group(&GroupSpec::new(group(number))).await;
                let _ = admin.describe_topic(&topic(number)).await;
                let old = (number + NAMES / 2) % NAMES;
                let _ = admin.delete_topic(&topic(old)).await;
                let _ = admin.delete_group(&group(old)).await;
                runtime.sleep(PAUSE).await;
            }
        });
        field.background.insert("topic-churn", task);
        Ok(Vec::new())
    }

    async fn heal(&self, field: &mut Field, _: &[u64]) -> Result<(), FieldError> {
        field.background.remove("topic-churn");
        let clear = async {
            for number in 0..NAMES {
                let _ = field.admin.delete_topic(&topic(number)).await;
                let _ = field.admin.delete_group(&group(number)).await;
            }
        };
        if field.runtime.timeout(CLEARING, clear).await.is_err() {
            field.notes.push(format!("some of its topics are left: the group did not delete them in {CLEARING:?}"));
        }
        Ok(())
    }
}

fn topic(number: u64) -> TopicName {
    TopicName::try_from(format!("churn-{number}")).expect("letters and a number are a name")
}

fn group(number: u64) -> GroupName {
    GroupName::try_from(format!("churn-readers-{number}")).expect("letters and a number are a name")
}
