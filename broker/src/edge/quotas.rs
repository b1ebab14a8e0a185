//! How much of a replica one client, one topic or one group may take: the rest is for the others.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flotilla_proto::status::{Code, status};
use flotilla_proto::{CallContext, v2};

use crate::config::BrokerConfig;
use crate::edge::names::full_name;

/// Bounds the calls under way of each of many by one limit. Who has none under way costs nothing.
#[derive(Debug)]
pub struct Quota {
    /// Whose calls are counted, for the answer.
    of: &'static str,
    calls_max: u64,
    calls: Mutex<BTreeMap<String, u64>>,
}

/// One call's share, given back when dropped.
#[derive(Debug)]
pub struct QuotaShare {
    quota: Arc<Quota>,
    name: String,
}

impl Quota {
    fn new(of: &'static str, calls_max: u64) -> Arc<Quota> {
        Arc::new(Quota { of, calls_max, calls: Mutex::default() })
    }

    // Nobody panics while it is held.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a share, or the status that says what to do.
    fn take(self: &Arc<Quota>, name: &str) -> Result<QuotaShare, v2::Status> {
        let mut calls = self.lock();
        if let Some(count) = calls.get_mut(name) {
            if *count >= self.calls_max {
                let text = format!(
                    "{} '{name}' has {count} calls under way here, the most that are allowed; wait for some of them, then \
                     try again",
                    self.of
                );
                return Err(status(Code::TooManyRequests, text));
            }
            *count += 1;
        } else {
            calls.insert(name.to_owned(), 1);
        }
        Ok(QuotaShare { quota: self.clone(), name: name.to_owned() })
    }
}

impl Drop for QuotaShare {
    fn drop(&mut self) {
        let mut calls = self.quota.lock();
        match calls.get_mut(&self.name) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(calls.remove(&self.name)),
        }
    }
}

/// The client's, and the topic's or group's; calls inside of a process have neither client id nor connection.
pub type Shares = [Option<QuotaShare>; 2];

/// The quotas of a replica.
#[derive(Debug)]
pub struct Quotas {
    clients: Arc<Quota>,
    topics: Arc<Quota>,
    groups: Arc<Quota>,
}

impl Quotas {
    /// As the settings say.
    pub fn new(config: &BrokerConfig) -> Quotas {
        Quotas {
            clients: Quota::new("client", config.client_calls_max),
            topics: Quota::new("topic", config.topic_sends_max),
            groups: Quota::new("group", config.group_polls_max),
        }
    }

    /// The shares of a send.
    ///
    /// # Errors
    /// The status to answer: TOO_MANY_REQUESTS, and nothing was stored.
    pub fn send(&self, context: &CallContext, request: &v2::SendMessageRequest) -> Result<Shares, v2::Status> {
        let topic = request.messages.first().and_then(|message| message.topic.as_ref());
        Ok([self.client(context)?, Some(self.topics.take(&full_name(context, topic).unwrap_or_default())?)])
    }

    /// The shares of a poll.
    ///
    /// # Errors
    /// The status to answer: TOO_MANY_REQUESTS.
    pub fn poll(&self, context: &CallContext, group: Option<&v2::Resource>) -> Result<Shares, v2::Status> {
        Ok([self.client(context)?, Some(self.groups.take(&full_name(context, group).unwrap_or_default())?)])
    }

    fn client(&self, context: &CallContext) -> Result<Option<QuotaShare>, v2::Status> {
        client_name(context).map(|client| self.clients.take(client)).transpose()
    }
}

/// Whose call it is: who says no client id is known by its connection; calls inside of a process have neither.
pub fn client_name(context: &CallContext) -> Option<&str> {
    let of_connection = Some(&context.remote).filter(|remote| !remote.is_empty());
    context.client_id.as_ref().or(of_connection).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_takes_all_of_its_own_leaves_the_others_theirs() {
        let quota = Quota::new("topic", 2);
        let (first, _second) = (quota.take("a").expect("room"), quota.take("a").expect("room"));
        let refused = quota.take("a").expect_err("full");
        assert_eq!(refused.code, 42900);
        assert!(refused.message.contains("topic 'a' has 2 calls"), "{}", refused.message);
        let other = quota.take("b").expect("room");
        drop(first);
        let third = quota.take("a").expect("room again");
        drop((third, other));
        assert_eq!(quota.lock().len(), 1, "who has none under way is forgotten");
    }
}
