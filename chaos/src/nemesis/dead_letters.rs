//! A group that fails at everything: each message must end among its dead letters, once.

use std::collections::BTreeSet;
use std::time::Duration;

use flotilla_client::{GroupSpec, OutgoingMessage, ProducerConfig, SimpleConsumerConfig, TopicSpec};
use flotilla_message::{GroupName, TopicName};
use flotilla_proto::admin::ListDeadLettersRequest;
use serde::{Deserialize, Serialize};

use super::{About, Field, FieldError, Nemesis};

pub(super) const ABOUT: About = About {
    what: "messages are sent to a group of its own that settles none of them, and gives each up after two deliveries",
    heals: "sending ends; over when every stored message is among the dead letters, which must have no copies",
};

const TOPIC: &str = "dying";
const GROUP: &str = "dying-readers";
const SENDER: &str = "dead-letters-sender";
const READER: &str = "dead-letters-reader";
const DELIVERIES_MAX: u32 = 2;
const QUEUES: u32 = 4;
const BODY: &[u8] = b"nobody can handle this";
const SEND_PAUSE: Duration = Duration::from_millis(20);
const INVISIBLE: Duration = Duration::from_secs(1);
const WAIT: Duration = Duration::from_millis(200);
/// All must have been given up so long after the last was sent: invisible times, retry pauses, and an election.
const PATIENCE: Duration = Duration::from_secs(90);
const LOOK: Duration = Duration::from_millis(200);
/// Letters asked for at once.
const PAGE: u32 = 256;

/// Messages that die.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLetters {}

impl Nemesis for DeadLetters {
    async fn hurt(&self, field: &mut Field) -> Result<Vec<u64>, FieldError> {
        let (topic, group) = (topic(), group());
        field.admin.create_topic(&TopicSpec::new(topic.clone(), QUEUES)).await?;
        let spec = GroupSpec { max_deliveries: DELIVERIES_MAX, ..GroupSpec::new(group.clone()) };
        field.admin.create_group(&spec).await?;
        let (client, runtime, sent_to) = (field.client.clone(), field.runtime.clone(), topic.clone());
        let sender = field.runtime.spawn(SENDER, async move {
            let Ok(producer) = client.producer(ProducerConfig::default()) else { return };
            loop {
                // What becomes of one send is no matter: what is stored is counted.
                let _ = producer.send(OutgoingMessage::new(sent_to.clone(), BODY)).await;
                runtime.sleep(SEND_PAUSE).await;
            }
        });
        let (client, runtime) = (field.client.clone(), field.runtime.clone());
        let reader = field.runtime.spawn(READER, async move {
            let config = SimpleConsumerConfig { await_duration: WAIT, ..SimpleConsumerConfig::new(group, topic) };
            let Ok(consumer) = client.simple_consumer(config) else { return };
            loop {
                if consumer.receive(32, INVISIBLE).await.is_err() {
                    runtime.sleep(LOOK).await;
                }
            }
        });
        field.background.insert(SENDER, sender);
        field.background.insert(READER, reader);
        Ok(Vec::new())
    }

    async fn heal(&self, field: &mut Field, _: &[u64]) -> Result<(), FieldError> {
        if field.background.remove(SENDER).is_none() {
            return Ok(());
        }
        let deadline = field.runtime.now() + PATIENCE;
        let mut seen = "nothing was read yet".to_owned();
        while field.runtime.now() < deadline {
            match counted(field).await {
                Ok((stored, letters, different)) => {
                    if letters > different {
                        let copies = letters - different;
                        return Err(FieldError::Wrong(format!(
                            "{copies} of {letters} dead letters are copies of others"
                        )));
                    }
                    if stored == letters && stored > 0 {
                        field.background.remove(READER);
                        field.notes.push(format!("{letters} messages died, and each is a dead letter once"));
                        return Ok(());
                    }
                    seen = format!("{letters} dead letters of {stored} stored messages");
                }
                Err(error) => seen = error.to_string(),
            }
            field.runtime.sleep(LOOK).await;
        }
        field.background.remove(READER);
        Err(FieldError::Wrong(format!("not every message is a dead letter after {PATIENCE:?}: {seen}")))
    }
}

/// Messages stored; dead letters; of these, different messages.
async fn counted(field: &Field) -> Result<(u64, u64, u64), FieldError> {
    let queues = field.admin.describe_topic(&topic()).await?.queues;
    let stored = queues.iter().map(|queue| queue.max_offset - queue.min_offset).sum();
    let (mut from, mut count, mut ids) = (0, 0, BTreeSet::new());
    loop {
        let request = ListDeadLettersRequest { group: GROUP.to_owned(), from_offset: Some(from), count: PAGE };
        let page = field.admin.list_dead_letters(request).await?;
        let letters = page.letters.len() as u64;
        count += letters;
        for letter in page.letters {
            let properties = letter.message.and_then(|message| message.system_properties);
            ids.insert(properties.map(|properties| properties.message_id).unwrap_or_default());
        }
        from += letters;
        if letters == 0 || from >= page.max_offset {
            return Ok((stored, count, ids.len() as u64));
        }
    }
}

fn topic() -> TopicName {
    TopicName::try_from(TOPIC).expect("the name is a constant and legal")
}

fn group() -> GroupName {
    GroupName::try_from(GROUP).expect("the name is a constant and legal")
}
