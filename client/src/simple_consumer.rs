//! A consumer that asks for messages and says itself which of them are consumed: one, or many at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::client::Client;
use crate::config::{BATCH_MAX, ConfigErrors, INVISIBLE_MAX, SimpleConsumerConfig};
use crate::consuming::{Consuming, DeliveryError, POLL_MAX, ReceiveError};
use crate::received::ReceivedMessage;
use crate::replicas::Replicas;

/// Takes messages of one topic for one group. Calls may run at the same time.
pub struct SimpleConsumer {
    client: Client,
    consuming: Consuming,
    await_duration: Duration,
    /// Which broker group is asked first; turns with every receive.
    turn: AtomicUsize,
}

impl SimpleConsumer {
    pub(crate) fn new(client: Client, config: SimpleConsumerConfig) -> Result<SimpleConsumer, ConfigErrors> {
        config.validate()?;
        let consuming = Consuming::new(client.shared.clone(), config.group, config.topic, config.filter);
        Ok(SimpleConsumer { client, consuming, await_duration: config.await_duration, turn: AtomicUsize::new(0) })
    }

    /// Takes up to `max` messages (1 to 32), hidden from others for `invisible` (at most 12 h). Waits up
    /// to the configured time for the first; empty means that there was none.
    ///
    /// # Errors
    /// [`ReceiveError`]; what a broker delivered all the same comes again after `invisible`.
    pub async fn receive(&self, max: usize, invisible: Duration) -> Result<Vec<ReceivedMessage>, ReceiveError> {
        if !(1..=BATCH_MAX).contains(&max) {
            let (value, allowed) = (max.to_string(), format!("1 to {BATCH_MAX}"));
            return Err(ReceiveError::Argument { name: "max", value, allowed });
        }
        if invisible.is_zero() || invisible > INVISIBLE_MAX {
            let (value, allowed) = (format!("{invisible:?}"), format!("above 0s up to {INVISIBLE_MAX:?}"));
            return Err(ReceiveError::Argument { name: "invisible", value, allowed });
        }
        let runtime = &self.client.shared.runtime;
        let until = runtime.now() + self.await_duration;
        let route_deadline = until.max(runtime.now() + self.client.shared.config.request_timeout);
        let route = self.client.shared.route_until(&self.consuming.topic, route_deadline).await?;
        let groups: Vec<&Arc<Replicas>> = route.readable().map(|group| &group.replicas).collect();
        if groups.is_empty() {
            return Err(ReceiveError::Unavailable {
                topic: self.consuming.topic.clone(),
                group: self.consuming.group.clone(),
                reason: "no broker group may be read from".to_owned(),
            });
        }
        // With several broker groups each waits its share in turn.
        let share = if groups.len() == 1 { self.await_duration } else { POLL_MAX / 4 };
        let (mut rounds, mut failures) = (0, 0);
        loop {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed);
            let now = runtime.now();
            let mut in_turn = (0..groups.len()).map(|step| turn.wrapping_add(step) % groups.len());
            // Past those that did not serve lately.
            let is_of_use = |place: &usize| groups.len() < 2 || groups[*place].may_try(now);
            let place = in_turn.find(is_of_use).unwrap_or(turn % groups.len());
            let poll_until = until.min(runtime.now() + share);
            let give_up = poll_until + self.client.shared.config.request_timeout;
            match self.consuming.poll(groups[place], max, invisible, poll_until, give_up).await {
                Ok(messages) if !messages.is_empty() => return Ok(messages),
                Ok(_) => failures = 0,
                Err(error) => {
                    groups[place].gave_up(runtime.now());
                    // As long as any group serves, the others may be down.
                    failures += 1;
                    if failures >= groups.len() {
                        return Err(error);
                    }
                }
            }
            rounds += 1;
            // Each group is asked at least once, also when there is no time to wait.
            if runtime.now() >= until && rounds >= groups.len() {
                return Ok(Vec::new());
            }
        }
    }

    /// Ends a delivery: the message is consumed.
    ///
    /// # Errors
    /// [`DeliveryError`]; it is repeated by itself until the client's deadline.
    pub async fn ack(&self, message: &ReceivedMessage) -> Result<(), DeliveryError> {
        self.consuming.ack(message).await
    }

    /// Ends deliveries, with one call for each broker group that they came from: many at once cost the brokers little more
    /// than one. The results stand in the order of the messages.
    ///
    /// # Errors
    /// Each is as [`SimpleConsumer::ack`] has it, and some may go through where others do not.
    pub async fn ack_all(&self, messages: &[ReceivedMessage]) -> Vec<Result<(), DeliveryError>> {
        self.consuming.ack_all(messages).await
    }

    /// Says good-bye to the brokers, which takes no longer than `timeout`, nor than a second. One that is dropped without it
    /// counts as a member of its group for two more minutes. What is not acknowledged comes again after its invisible time.
    pub async fn shutdown(self, timeout: Duration) {
        self.consuming.leave(timeout).await;
    }

    /// Hides the message for `invisible` (0 to 12 h) from now on, after which it comes again. Later calls
    /// with the same message use the new handle by themselves.
    ///
    /// # Errors
    /// [`DeliveryError`]; it is repeated by itself until the client's deadline.
    pub async fn change_invisible(&self, message: &ReceivedMessage, invisible: Duration) -> Result<(), DeliveryError> {
        self.consuming.change_invisible(message, invisible).await
    }
}
