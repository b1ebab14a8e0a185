//! AckMessage and ChangeInvisibleDuration: what a consumer says about deliveries it holds.

use std::collections::BTreeMap;
use std::sync::Arc;

use flotilla_message::{GroupName, QueueId, TopicName};
use flotilla_proto::status::{Code, ok, status};
use flotilla_proto::{CallContext, v2};
use flotilla_store::{AckResult, Command, Outcome, Rejection};
use futures::future::join_all;

use super::delivery::ms_of;
use super::receipt_handle::ReceiptHandle;
use crate::config::INVISIBLE_MS_MAX;
use crate::edge::names;
use crate::lead::leader_call::{Attempt, LeaderCall, Tried};
use crate::replica::Replica;

/// Receipts that one call may name.
const RECEIPTS_MAX: usize = 4096;

/// The call that ends deliveries.
pub struct AckMessage;

impl LeaderCall for AckMessage {
    type Request = v2::AckMessageRequest;
    type Answer = v2::AckMessageResponse;
    const METHOD: &'static str = "AckMessage";

    fn is_idempotent(_: &v2::AckMessageRequest) -> bool {
        true
    }

    async fn execute(
        replica: &Arc<Replica>,
        context: &CallContext,
        request: &v2::AckMessageRequest,
        attempt: Attempt,
    ) -> Tried<v2::AckMessageResponse> {
        let group = match names::group(context, request.group.as_ref()) {
            Ok(group) => group,
            Err(refusal) => return Tried::answer(refuse_ack(refusal)),
        };
        if request.entries.is_empty() || request.entries.len() > RECEIPTS_MAX {
            let text = format!("request has {} receipts; 1 to {RECEIPTS_MAX} are allowed", request.entries.len());
            return Tried::answer(refuse_ack(status(Code::BadRequest, text)));
        }
        let mut results: Vec<Option<v2::Status>> = vec![None; request.entries.len()];
        // One command for each queue, and for each receipt its place in the request.
        let mut commands: BTreeMap<(TopicName, QueueId), Vec<(usize, ReceiptHandle)>> = BTreeMap::new();
        for (place, entry) in request.entries.iter().enumerate() {
            match read_handle(replica, &entry.receipt_handle, &group) {
                Ok(handle) => {
                    commands.entry((handle.topic.clone(), handle.queue)).or_default().push((place, handle));
                }
                Err(refusal) => results[place] = Some(refusal),
            }
        }
        let submitted = commands.into_iter().map(|((topic, queue), handles)| {
            let receipts = handles.iter().map(|(_, handle)| (handle.offset, handle.sequence)).collect();
            let places: Vec<usize> = handles.into_iter().map(|(place, _)| place).collect();
            let command = Command::Ack { group: group.clone(), topic, queue, receipts };
            let settled = replica.proposer.submit(attempt.term, command);
            async move { (places, settled.await) }
        });
        for (places, settled) in join_all(submitted).await {
            let outcome = match settled {
                Ok(settled) => settled.outcome,
                Err(error) => return Tried::from_submit(error, refuse_ack),
            };
            let each: Vec<v2::Status> = match outcome {
                Outcome::Acked { results } => results.into_iter().map(ack_status).collect(),
                Outcome::Rejected(rejection) => vec![rejected(&rejection); places.len()],
                other => unreachable!("an ack is answered by an outcome of ack, not {other:?}"),
            };
            for (place, status) in places.into_iter().zip(each) {
                results[place] = Some(status);
            }
        }
        let results: Vec<v2::Status> =
            results.into_iter().map(|result| result.expect("each receipt has a result")).collect();
        Tried::answer(ack_answer(request, results))
    }

    fn refusal(_: &v2::AckMessageRequest, status: v2::Status) -> v2::AckMessageResponse {
        refuse_ack(status)
    }
}

fn refuse_ack(status: v2::Status) -> v2::AckMessageResponse {
    v2::AckMessageResponse { status: Some(status), entries: Vec::new() }
}

fn ack_answer(request: &v2::AckMessageRequest, results: Vec<v2::Status>) -> v2::AckMessageResponse {
    let first = &results[0];
    let overall = if results.iter().all(|result| result.code == first.code) {
        first.clone()
    } else {
        // Only when it says more than one code can: one client takes this code for a failure of all.
        status(Code::MultipleResults, "receipts have different results, see the entries")
    };
    let entries = request.entries.iter().zip(results).map(|(entry, status)| v2::AckMessageResultEntry {
        message_id: entry.message_id.clone(),
        receipt_handle: entry.receipt_handle.clone(),
        status: Some(status),
    });
    v2::AckMessageResponse { status: Some(overall), entries: entries.collect() }
}

fn ack_status(result: AckResult) -> v2::Status {
    match result {
        AckResult::Acked | AckResult::AlreadyAcked => ok(),
        AckResult::Stale => status(
            Code::InvalidReceiptHandle,
            "receipt is stale: the message was delivered again or its invisible time was changed",
        ),
        AckResult::NotFound => status(Code::InvalidReceiptHandle, "receipt names no delivery to this group"),
    }
}

/// What a refusal means for the holder of a receipt.
pub(super) fn rejected(rejection: &Rejection) -> v2::Status {
    match rejection {
        Rejection::TopicNotFound | Rejection::GroupNotFound | Rejection::QueueNotFound { .. } => {
            // Of a topic or group that is gone: clients repeat every other code for ever.
            status(Code::InvalidReceiptHandle, format!("receipt is void: {rejection}"))
        }
        Rejection::ReceiptStale | Rejection::DeliveryNotFound => {
            status(Code::InvalidReceiptHandle, rejection.to_string())
        }
        other => status(Code::InternalServerError, other.to_string()),
    }
}

/// Reads a receipt, which must be one of this group.
pub(super) fn read_handle(replica: &Replica, text: &str, group: &GroupName) -> Result<ReceiptHandle, v2::Status> {
    let handle =
        ReceiptHandle::from_text(text).map_err(|error| status(Code::InvalidReceiptHandle, error.to_string()))?;
    let own = &replica.config.group;
    if let Some(other) = handle.broker_group.as_ref().filter(|other| *other != own) {
        let text = format!("receipt handle is one of broker group '{other}', this is '{own}'");
        return Err(status(Code::InvalidReceiptHandle, text));
    }
    if handle.group != *group {
        let text = format!("receipt handle is one of group '{}', not of '{group}'", handle.group);
        return Err(status(Code::InvalidReceiptHandle, text));
    }
    Ok(handle)
}

/// The call that moves the end of a delivery's invisible time.
pub struct ChangeInvisibleDuration;

impl LeaderCall for ChangeInvisibleDuration {
    type Request = v2::ChangeInvisibleDurationRequest;
    type Answer = v2::ChangeInvisibleDurationResponse;
    const METHOD: &'static str = "ChangeInvisibleDuration";

    /// The store answers the newest number again to the change that made it.
    fn is_idempotent(_: &v2::ChangeInvisibleDurationRequest) -> bool {
        true
    }

    async fn execute(
        replica: &Arc<Replica>,
        context: &CallContext,
        request: &v2::ChangeInvisibleDurationRequest,
        attempt: Attempt,
    ) -> Tried<v2::ChangeInvisibleDurationResponse> {
        let checked = names::group(context, request.group.as_ref()).and_then(|group| {
            let handle = read_handle(replica, &request.receipt_handle, &group)?;
            Ok((handle, invisible_ms(request.invisible_duration.as_ref())?))
        });
        let (handle, invisible_ms) = match checked {
            Ok(checked) => checked,
            Err(refusal) => return Tried::answer(refuse_change(refusal)),
        };
        let now_ms = replica.clock.now_ms(attempt.term, &replica.store);
        let command = Command::ChangeInvisible {
            group: handle.group.clone(),
            topic: handle.topic.clone(),
            queue: handle.queue,
            offset: handle.offset,
            seq: handle.sequence,
            invisible_until_ms: now_ms.saturating_add(invisible_ms),
        };
        match replica.proposer.submit(attempt.term, command).await {
            Ok(settled) => Tried::answer(match settled.outcome {
                Outcome::InvisibleChanged { seq, slot, .. } => {
                    let handle = ReceiptHandle { sequence: seq, message: slot.message, ..handle };
                    v2::ChangeInvisibleDurationResponse { status: Some(ok()), receipt_handle: handle.to_text() }
                }
                Outcome::Rejected(rejection) => refuse_change(rejected(&rejection)),
                other => unreachable!("a change is answered by an outcome of change, not {other:?}"),
            }),
            Err(error) => Tried::from_submit(error, refuse_change),
        }
    }

    fn refusal(_: &v2::ChangeInvisibleDurationRequest, status: v2::Status) -> v2::ChangeInvisibleDurationResponse {
        refuse_change(status)
    }
}

fn refuse_change(status: v2::Status) -> v2::ChangeInvisibleDurationResponse {
    v2::ChangeInvisibleDurationResponse { status: Some(status), receipt_handle: String::new() }
}

/// Nothing at all counts as 0, which makes the message visible at once; some clients mean a few ms.
fn invisible_ms(duration: Option<&prost_types::Duration>) -> Result<u64, v2::Status> {
    let ms = duration.map_or(Some(0), ms_of);
    match ms {
        Some(ms) if ms <= INVISIBLE_MS_MAX => Ok(ms),
        _ => {
            let (seconds, hours) = (duration.map_or(0, |duration| duration.seconds), INVISIBLE_MS_MAX / 3_600_000);
            let text = format!("invisible duration is about {seconds} s; 0 to {hours} hours are allowed");
            Err(status(Code::IllegalInvisibleTime, text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_short_invisible_time_is_taken_and_a_long_one_named() {
        let duration = |seconds, nanos| prost_types::Duration { seconds, nanos };
        assert_eq!(invisible_ms(None), Ok(0));
        assert_eq!(invisible_ms(Some(&duration(0, 3_000_000))), Ok(3));
        assert_eq!(invisible_ms(Some(&duration(12 * 3600, 0))), Ok(INVISIBLE_MS_MAX));
        for bad in [duration(12 * 3600 + 1, 0), duration(-1, 0)] {
            assert_eq!(invisible_ms(Some(&bad)).expect_err("out of range").code, 40011);
        }
    }

    #[test]
    fn only_different_results_are_told_as_multiple() {
        let entry = |id: &str| v2::AckMessageEntry { message_id: id.to_owned(), ..Default::default() };
        let request = v2::AckMessageRequest { entries: vec![entry("a"), entry("b")], ..Default::default() };
        let code = |results| ack_answer(&request, results).status.expect("a status").code;
        assert_eq!(code(vec![ok(), ok()]), 20000);
        let stale = ack_status(AckResult::Stale);
        assert_eq!(code(vec![stale.clone(), stale.clone()]), 40013);
        assert_eq!(code(vec![ok(), stale]), 30000);
        assert_eq!(ack_status(AckResult::AlreadyAcked).code, 20000, "a repeated ack is no error");
    }
}
