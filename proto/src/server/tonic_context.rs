//! Makes a [`CallContext`] of a request's headers, and response headers of a reply's metadata.

use std::collections::BTreeMap;
use std::time::Duration;

use flotilla_runtime::Runtime;
use tonic::Extensions;
use tonic::codegen::http::HeaderMap;
use tonic::metadata::{AsciiMetadataKey, MetadataMap};
use tonic::transport::server::TcpConnectInfo;

use crate::{CallContext, Metadata, metadata, parse_grpc_timeout};

/// The context of a call; `timeout` holds if the caller named none.
pub(super) fn context_of(
    runtime: &Runtime,
    headers: &HeaderMap,
    extensions: &Extensions,
    timeout: Duration,
) -> CallContext {
    let named = headers.get(metadata::GRPC_TIMEOUT).and_then(|value| parse_grpc_timeout(value.to_str().ok()?));
    let deadline = runtime.now() + named.unwrap_or(timeout);
    let remote = extensions.get::<TcpConnectInfo>().and_then(TcpConnectInfo::remote_addr);
    let remote = remote.map(|address| address.to_string()).unwrap_or_default();
    CallContext::new(deadline, remote, kept(headers))
}

/// The headers a service may care for. What a caller sends twice counts once, what is no visible
/// ASCII not at all.
fn kept(headers: &HeaderMap) -> BTreeMap<String, String> {
    let mut kept = BTreeMap::new();
    for (name, value) in headers {
        let name = name.as_str();
        let wanted = name.starts_with("x-") || name == metadata::AUTHORIZATION || name == metadata::USER_AGENT;
        if let Some(value) = wanted.then(|| value.to_str().ok()).flatten() {
            kept.entry(name.to_owned()).or_insert_with(|| value.to_owned());
        }
    }
    kept
}

/// Adds `entries` to a message's headers, leaving out what no header can carry.
pub(crate) fn put_metadata(target: &mut MetadataMap, entries: &Metadata) {
    for (name, value) in entries {
        match (name.parse::<AsciiMetadataKey>(), value.parse()) {
            (Ok(name), Ok(value)) => {
                target.append(name, value);
            }
            _ => tracing::debug!(%name, "metadata entry left out: it cannot be a header"),
        }
    }
}
