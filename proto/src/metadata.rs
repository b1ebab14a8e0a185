//! Metadata: the names that travel beside messages, and the place an acknowledgement names.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

/// Names and values beside a message, in order; a name may occur more than once. Names are lower
/// case, values visible ASCII.
pub type Metadata = Vec<(Cow<'static, str>, String)>;

/// The client's own id, unique in the cluster.
pub const CLIENT_ID: &str = "x-mq-client-id";
/// Language of the client's library: `PYTHON`, `RUST`, `HTTP` (Node) and so on.
pub const LANGUAGE: &str = "x-mq-language";
/// Version of the protocol.
pub const PROTOCOL: &str = "x-mq-protocol";
/// Version of the client's library.
pub const CLIENT_VERSION: &str = "x-mq-client-version";
/// Namespace of all resources in the call.
pub const NAMESPACE: &str = "x-mq-namespace";
/// The caller's id of one call.
pub const REQUEST_ID: &str = "x-mq-request-id";
/// The transport's own description of the client.
pub const USER_AGENT: &str = "user-agent";
/// Credentials.
pub const AUTHORIZATION: &str = "authorization";
/// Time left for the call when it was sent.
pub const GRPC_TIMEOUT: &str = "grpc-timeout";

/// Cluster that an append stream belongs to.
pub const LINK_CLUSTER: &str = "x-flotilla-cluster";
/// Broker group that an append stream belongs to.
pub const LINK_GROUP: &str = "x-flotilla-group";
/// Node id of the sender of an append stream.
pub const LINK_FROM: &str = "x-flotilla-from";
/// Node id that the sender of an append stream means to reach.
pub const LINK_TO: &str = "x-flotilla-to";

/// Broker group whose replica passes a client's call on to another group's; it is not passed on once more. A client that
/// sends it means the group that it asks, and no other.
pub const FROM_GROUP: &str = "x-flotilla-from-group";

/// Response metadata of a send: one [`AckPlace`] per stored message, in the order of the request; of a large batch the first
/// ones only, as headers are bounded.
pub const ACK_PLACE: &str = "x-flotilla-ack";

/// The metadata that our own client library sends with each call.
pub fn of_client(client_id: &str, version: &'static str) -> Metadata {
    vec![
        (Cow::Borrowed(CLIENT_ID), client_id.to_owned()),
        (Cow::Borrowed(LANGUAGE), "RUST".to_owned()),
        (Cow::Borrowed(PROTOCOL), "v2".to_owned()),
        (Cow::Borrowed(CLIENT_VERSION), version.to_owned()),
    ]
}

/// The first value of `name`.
pub fn value_of<'m>(metadata: &'m Metadata, name: &str) -> Option<&'m str> {
    metadata.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
}

/// Where an acknowledged message lies and who acknowledged it, as checkers compare it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AckPlace {
    /// Name of the broker group.
    pub group: String,
    /// Term of the leader that answered: the one in which the message was committed, or a later one if the send repeats
    /// one that was stored before.
    pub term: u64,
    /// Node id of the leader that answered.
    pub leader: u64,
    /// Index of the log entry.
    pub log_index: u64,
    /// Queue of the topic.
    pub queue: u32,
    /// Offset in the queue.
    pub offset: u64,
}

impl fmt::Display for AckPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AckPlace { group, term, leader, log_index, queue, offset } = self;
        write!(f, "group={group} term={term} leader={leader} index={log_index} queue={queue} offset={offset}")
    }
}

/// A text that is no [`AckPlace`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} does not name the place of a message as `group=… term=… leader=… index=… queue=… offset=…`")]
pub struct AckPlaceError(String);

impl FromStr for AckPlace {
    type Err = AckPlaceError;

    fn from_str(text: &str) -> Result<AckPlace, AckPlaceError> {
        let mut words = text.split(' ');
        let mut next = |name: &str| words.next().and_then(|word| word.strip_prefix(name)?.strip_prefix('='));
        let place = (|| {
            Some(AckPlace {
                group: next("group")?.to_owned(),
                term: next("term")?.parse().ok()?,
                leader: next("leader")?.parse().ok()?,
                log_index: next("index")?.parse().ok()?,
                queue: next("queue")?.parse().ok()?,
                offset: next("offset")?.parse().ok()?,
            })
        })();
        place.ok_or_else(|| AckPlaceError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ack_place_survives_its_text_form() {
        let place = AckPlace { group: "group-a".into(), term: 3, leader: 2, log_index: 41, queue: 0, offset: u64::MAX };
        assert_eq!(place.to_string().parse(), Ok(place));
        assert!("group=a term=x".parse::<AckPlace>().is_err());
        assert!("".parse::<AckPlace>().is_err());
    }
}
