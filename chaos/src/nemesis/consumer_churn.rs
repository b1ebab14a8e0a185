//! Consumers come, take messages, and vanish without a word.

use std::time::Duration;

use flotilla_client::{GroupSpec, SimpleConsumerConfig};
use flotilla_message::{GroupName, TopicName};
use serde::{Deserialize, Serialize};

use super::{About, Field, FieldError, Nemesis};
use crate::run::TOPIC;

pub(super) const ABOUT: About = About {
    what: "consumers of a group of their own come about 20 a second, take messages, settle half of them, and vanish",
    heals: "nothing is broken: it ends",
};

const PAUSE: Duration = Duration::from_millis(50);
const INVISIBLE: Duration = Duration::from_secs(10);
const WAIT: Duration = Duration::from_millis(20);

/// Consumers that come and go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsumerChurn {}

impl Nemesis for ConsumerChurn {
    async fn hurt(&self, field: &mut Field) -> Result<Vec<u64>, FieldError> {
        let group = GroupName::try_from("churn-readers").expect("the name is a constant and legal");
        let topic = TopicName::try_from(TOPIC).expect("the name is a constant and legal");
        field.admin.create_group(&GroupSpec::new(group.clone())).await?;
        let (client, runtime) = (field.client.clone(), field.runtime.clone());
        let task = field.runtime.spawn("consumer-churn", async move {
            loop {
                let config = SimpleConsumerConfig {
                    await_duration: WAIT,
                    ..SimpleConsumerConfig::new(group.clone(), topic.clone())
                };
                if let Ok(consumer) = client.simple_consumer(config)
                    && let Ok(batch) = consumer.receive(16, INVISIBLE).await
                {
                    for message in batch.iter().step_by(2) {
                        let _ = consumer.ack(message).await;
                    }
                }
                runtime.sleep(PAUSE).await;
            }
        });
        field.background.insert("consumer-churn", task);
        Ok(Vec::new())
    }

    async fn heal(&self, field: &mut Field, _: &[u64]) -> Result<(), FieldError> {
        field.background.remove("consumer-churn");
        Ok(())
    }
}
