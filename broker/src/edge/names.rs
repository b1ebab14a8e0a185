//! From what a client wrote to names that exist only if they are legal.

use flotilla_message::{GroupName, TopicName};
use flotilla_proto::status::{Code, Coded, status};
use flotilla_proto::{CallContext, v2};

/// Whether our own client library calls.
pub fn is_ours(context: &CallContext) -> bool {
    context.client_id.as_deref().is_some_and(|id| id.starts_with("flotilla@"))
}

/// The topic that a request names; system topics are refused.
pub fn topic(context: &CallContext, resource: Option<&v2::Resource>) -> Result<TopicName, v2::Status> {
    let name = full_name(context, resource).map_err(|text| status(Code::IllegalTopic, text))?;
    let topic = TopicName::try_from(name).map_err(|error| error.status())?;
    if topic.is_system() {
        return Err(status(Code::IllegalTopic, format!("topic '{topic}' is kept for the system")));
    }
    Ok(topic)
}

/// The consumer group that a request names.
pub fn group(context: &CallContext, resource: Option<&v2::Resource>) -> Result<GroupName, v2::Status> {
    let name = full_name(context, resource).map_err(|text| status(Code::IllegalConsumerGroup, text))?;
    GroupName::try_from(name).map_err(|error| error.status())
}

/// `namespace%name`, as RocketMQ writes a name within a namespace; the name alone if there is none. A name that the broker
/// derives from a group's keeps its beginning: `%DLQ%namespace%group`.
///
/// # Errors
/// What is wrong with the namespace: one with a `%` would reach into another.
pub(super) fn full_name(context: &CallContext, resource: Option<&v2::Resource>) -> Result<String, String> {
    let Some(resource) = resource else { return Ok(String::new()) };
    // Some clients name the namespace in the resource, some in the metadata, some in both.
    let namespace = match resource.resource_namespace.as_str() {
        "" => context.namespace.as_str(),
        namespace => namespace,
    };
    let name = resource.name.as_str();
    if namespace.is_empty() {
        return Ok(name.to_owned());
    }
    if !namespace.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')) {
        return Err(format!("namespace '{namespace}' is not usable: letters, digits, '_' and '-' are allowed"));
    }
    let (beginning, own) = ["%DLQ%", "%RETRY%"]
        .into_iter()
        .find_map(|beginning| Some((beginning, name.strip_prefix(beginning)?)))
        .unwrap_or(("", name));
    if own.is_empty() || own.strip_prefix(namespace).is_some_and(|rest| rest.starts_with('%')) {
        return Ok(name.to_owned());
    }
    Ok(format!("{beginning}{namespace}%{own}"))
}

/// The code to use towards this caller: the official Rust client (5.0.0) panics on codes newer than itself.
pub fn known_code(context: &CallContext, code: Code) -> Code {
    // Our own SDK is written in Rust too, and knows them all.
    let is_ours = context.client_id.as_deref().is_some_and(|id| id.starts_with("flotilla@"));
    if is_ours || !context.language.eq_ignore_ascii_case("RUST") {
        return code;
    }
    match code {
        Code::MessageBodyEmpty => Code::MessageCorrupted,
        Code::OffsetNotFound => Code::NotFound,
        Code::IllegalOffset | Code::IllegalLiteTopic | Code::InvalidClientProperties => Code::BadRequest,
        Code::LiteTopicQuotaExceeded | Code::LiteSubscriptionQuotaExceeded => Code::TooManyRequests,
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use flotilla_runtime::Instant;

    use super::*;

    fn context(entries: &[(&str, &str)]) -> CallContext {
        let metadata: BTreeMap<_, _> = entries.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        CallContext::new(Instant::from_nanos(0), String::new(), metadata)
    }

    fn resource(namespace: &str, name: &str) -> v2::Resource {
        v2::Resource { resource_namespace: namespace.to_owned(), name: name.to_owned() }
    }

    #[test]
    fn a_namespace_becomes_part_of_the_name_once() {
        let plain = context(&[]);
        let spaced = context(&[("x-mq-namespace", "shop")]);
        let named = |context: &CallContext, namespace, name| {
            topic(context, Some(&resource(namespace, name)))
                .map(|topic| topic.to_string())
                .map_err(|status| status.message)
        };
        assert_eq!(named(&plain, "", "orders"), Ok("orders".to_owned()));
        assert_eq!(named(&plain, "shop", "orders"), Ok("shop%orders".to_owned()));
        assert_eq!(named(&spaced, "", "orders"), Ok("shop%orders".to_owned()));
        assert_eq!(named(&spaced, "", "shop%orders"), Ok("shop%orders".to_owned()));
        assert_eq!(named(&spaced, "", "%DLQ%g"), Ok("%DLQ%shop%g".to_owned()));
        assert_eq!(named(&spaced, "", "%DLQ%shop%g"), Ok("%DLQ%shop%g".to_owned()));
        assert_eq!(named(&plain, "", "%DLQ%g"), Ok("%DLQ%g".to_owned()));
        assert!(named(&plain, "a%b", "c").is_err(), "it would be c of b within a");
    }

    #[test]
    fn illegal_names_are_refused_with_the_right_code() {
        let code = |result: Result<TopicName, v2::Status>| result.expect_err("illegal").code;
        assert_eq!(code(topic(&context(&[]), None)), 40002);
        assert_eq!(code(topic(&context(&[]), Some(&resource("", "a b")))), 40002);
        assert_eq!(code(topic(&context(&[]), Some(&resource("", "TBW102")))), 40002);
        let refused = group(&context(&[]), Some(&resource("", ""))).expect_err("illegal");
        assert_eq!(refused.code, 40003);
    }

    #[test]
    fn the_rust_client_is_spared_codes_it_does_not_know() {
        let rust = context(&[("x-mq-language", "RUST")]);
        assert_eq!(known_code(&rust, Code::MessageBodyEmpty), Code::MessageCorrupted);
        assert_eq!(known_code(&rust, Code::TopicNotFound), Code::TopicNotFound);
        assert_eq!(known_code(&context(&[]), Code::MessageBodyEmpty), Code::MessageBodyEmpty);
        let ours = context(&[("x-mq-language", "RUST"), ("x-mq-client-id", "flotilla@17")]);
        assert_eq!(known_code(&ours, Code::IllegalOffset), Code::IllegalOffset);
    }
}
