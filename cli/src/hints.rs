//! What a user can do about an error, said behind it.

use flotilla_client::{ReceiveError, RouteError, SendError};
use flotilla_message::{GroupName, TopicName};
use flotilla_proto::status::Code;

/// For a send that failed; empty when there is nothing to be said.
pub fn for_send(error: &SendError, topic: &TopicName) -> String {
    match error {
        SendError::Rejected { code, .. } if *code == Code::TopicNotFound as i32 => create_topic(topic),
        SendError::Rejected { code, .. } if *code == Code::MessagePropertyConflictWithType as i32 => {
            "\n  FIFO topics take messages with --group, DELAY topics with --delay, NORMAL topics those with neither; \
             messages of transactions are sent by programs"
                .to_owned()
        }
        SendError::Rejected { .. } | SendError::NotStored { .. } | SendError::Unknown { .. } => String::new(),
    }
}

/// For a receive that failed; empty when there is nothing to be said.
pub fn for_receive(error: &ReceiveError, topic: &TopicName, group: &GroupName) -> String {
    match error {
        ReceiveError::Route(RouteError::TopicNotFound { .. }) => create_topic(topic),
        ReceiveError::Rejected { code, .. } if *code == Code::TopicNotFound as i32 => create_topic(topic),
        ReceiveError::Rejected { code, .. } if *code == Code::ConsumerGroupNotFound as i32 => create_group(group),
        ReceiveError::Rejected { .. }
        | ReceiveError::Route(RouteError::Rejected { .. } | RouteError::Unreachable { .. })
        | ReceiveError::Unavailable { .. }
        | ReceiveError::Argument { .. } => String::new(),
    }
}

fn create_topic(topic: &TopicName) -> String {
    format!(
        "\n  create it with: flotilla admin topic create {topic}\n  see what there is with: flotilla admin topic list"
    )
}

fn create_group(group: &GroupName) -> String {
    format!("\n  create it with: flotilla admin group create {group}")
}
