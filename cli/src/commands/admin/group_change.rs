//! What moves a group or changes its settings.

use std::str::FromStr;

use clap::Args;
use flotilla_client::AdminClient;
use flotilla_message::{GroupName, TopicName};
use flotilla_proto::admin;
use flotilla_proto::admin::reset_group_request::To;
use serde::Serialize;

use super::group::{not_done, view_of};
use super::{print, while_doing};
use crate::connect_options::{group_name, topic_name};
use crate::failure::Failure;
use crate::table::Table;

/// `flotilla admin group reset`.
#[derive(Debug, Args)]
pub struct ResetArguments {
    #[arg(value_name = "NAME", value_parser = group_name)]
    name: GroupName,
    /// The topic in which it is moved
    #[arg(long, value_name = "TOPIC", value_parser = topic_name)]
    topic: TopicName,
    /// Where to: first, last, a time in ms since 1970, or `offset:N`
    #[arg(long, value_name = "WHERE")]
    to: Target,
    /// Only in this queue
    #[arg(long, value_name = "QUEUE")]
    queue: Option<u32>,
}

/// `flotilla admin group update`.
#[derive(Debug, Args)]
pub struct UpdateArguments {
    #[arg(value_name = "NAME", value_parser = group_name)]
    name: GroupName,
    /// Deliver the messages of a queue in order, one after the other
    #[arg(long, value_name = "true|false")]
    order: Option<bool>,
    /// After so many deliveries a message goes to the group's dead letter topic
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    max_deliveries: Option<u32>,
    /// Pauses before a failed message is delivered again, ms, at most 18, separated by commas; `default` for the broker's own
    #[arg(long, value_name = "MS,MS,...")]
    retry_pauses: Option<Pauses>,
}

/// `--retry-pauses`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pauses(Vec<u32>);

/// A list of pauses that is none.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is no list of pauses: write ms separated by commas, such as 1000,5000,30000, or default")]
struct PausesError(String);

impl FromStr for Pauses {
    type Err = PausesError;

    fn from_str(text: &str) -> Result<Pauses, PausesError> {
        if text == "default" {
            return Ok(Pauses(Vec::new()));
        }
        let pauses = text.split(',').map(|pause| pause.trim().parse()).collect::<Result<_, _>>();
        pauses.map(Pauses).map_err(|_| PausesError(text.to_owned()))
    }
}

/// `--to`.
#[derive(Debug, Clone, PartialEq)]
struct Target(To);

/// A place to go to that is none.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not a place to go to: first, last, a time in ms since 1970 such as 1767225600000, or offset:N")]
struct TargetError(String);

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Target, TargetError> {
        let wrong = |_| TargetError(text.to_owned());
        Ok(Target(match text {
            "first" => To::First(true),
            "last" => To::Last(true),
            text => match text.strip_prefix("offset:") {
                Some(offset) => To::Offset(offset.parse().map_err(wrong)?),
                None => To::TimestampMs(text.parse().map_err(wrong)?),
            },
        }))
    }
}

#[derive(Serialize)]
struct MovedView {
    queue: u32,
    committed_before: Option<u64>,
    offset: u64,
}

pub async fn reset(arguments: ResetArguments, admin: &AdminClient, json: bool) -> Result<(), Failure> {
    let ResetArguments { name, topic, to, queue } = arguments;
    let request = admin::ResetGroupRequest { group: name.to_string(), topic: topic.to_string(), queue, to: Some(to.0) };
    let moved = admin.reset_group(request).await;
    let moved = moved.map_err(while_doing(format!("group {name} is not moved in topic {topic}")))?;
    let views: Vec<MovedView> = moved
        .queues
        .iter()
        .map(|at| MovedView { queue: at.queue, committed_before: at.committed_before, offset: at.offset })
        .collect();
    print(json, &views, || {
        let mut table = Table::new(["QUEUE", "BEFORE", "NOW"]);
        for at in &views {
            let before = at.committed_before.map_or("-".to_owned(), |offset| offset.to_string());
            table.row([at.queue.to_string(), before, at.offset.to_string()]);
        }
        format!("group {name} is moved in topic {topic}\n{table}")
    })
}

pub async fn update(arguments: UpdateArguments, admin: &AdminClient, json: bool) -> Result<(), Failure> {
    let UpdateArguments { name, order, max_deliveries, retry_pauses } = arguments;
    let retry_pauses = retry_pauses.map(|pauses| admin::RetryPauses { ms: pauses.0 });
    let request =
        admin::UpdateGroupRequest { name: name.to_string(), order, max_deliveries, paused: None, retry_pauses };
    change(&name, request, admin, json).await
}

pub async fn pause(name: &GroupName, paused: bool, admin: &AdminClient, json: bool) -> Result<(), Failure> {
    let paused = Some(paused);
    let request = admin::UpdateGroupRequest { name: name.to_string(), paused, ..Default::default() };
    change(name, request, admin, json).await
}

async fn change(
    name: &GroupName,
    request: admin::UpdateGroupRequest,
    admin: &AdminClient,
    json: bool,
) -> Result<(), Failure> {
    let reply = admin.update_group(request).await.map_err(|error| not_done("changed", name, error))?;
    let view = view_of(&reply.group.unwrap_or_default());
    print(json, &view, || format!("group {name}: {}", view.settings()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_to_go_to_is_a_word_a_time_or_an_offset() {
        let of = |text: &str| text.parse::<Target>().map(|target| target.0).map_err(|error| error.to_string());
        assert_eq!(of("first"), Ok(To::First(true)));
        assert_eq!(of("last"), Ok(To::Last(true)));
        assert_eq!(of("1767225600000"), Ok(To::TimestampMs(1_767_225_600_000)));
        assert_eq!(of("offset:7"), Ok(To::Offset(7)));
        for text in ["7s", "offset:", "offset:-1", ""] {
            assert!(of(text).is_err_and(|error| error.contains("first, last")), "{text}");
        }
    }

    #[test]
    fn pauses_are_ms_or_the_default() {
        assert_eq!("1000, 5000".parse::<Pauses>().unwrap(), Pauses(vec![1_000, 5_000]));
        assert_eq!("default".parse::<Pauses>().unwrap(), Pauses(Vec::new()));
        assert!("1s".parse::<Pauses>().is_err());
    }
}
