//! Finds the service and method that a request's path names.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use flotilla_runtime::BoxFuture;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Service, http};

use super::Services;
use super::tonic_handler::{bare_unary, bidi_stream, server_stream, unary};
use crate::rpcs::{ADMIN, MESSAGING, NAMESRV, PEER, admin_unary, messaging_unary, namesrv_unary};
use crate::seal::Sealed;
use crate::{Admin, CallContext, Messaging, Namesrv, Peer, PeerError, PeerLink, admin, metadata, namesrv, peer, v2};

type Outcome = BoxFuture<'static, http::Response<Body>>;

/// The service that a connection's requests go to.
#[derive(Clone)]
pub(super) struct Dispatcher {
    services: Arc<Services>,
}

impl Dispatcher {
    pub(super) fn new(services: Services) -> Dispatcher {
        Dispatcher { services: Arc::new(services) }
    }

    fn dispatch(&self, request: http::Request<Body>) -> Outcome {
        let services = &*self.services;
        let path = request.uri().path();
        let service = path.strip_prefix('/').and_then(|path| path.split('/').next());
        match service {
            Some(MESSAGING) => match services.messaging.clone() {
                Some(service) => messaging(services, service, request),
                None => unknown(&request),
            },
            Some(PEER) => match services.peer.clone() {
                Some(service) => peer(services, service, request),
                None => unknown(&request),
            },
            Some(NAMESRV) => match services.namesrv.clone() {
                Some(service) => namesrv(services, service, request),
                None => unknown(&request),
            },
            Some(ADMIN) => match services.admin.clone() {
                Some(service) => admin(services, service, request),
                None => unknown(&request),
            },
            _ => unknown(&request),
        }
    }
}

impl Service<http::Request<Body>> for Dispatcher {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<http::Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let outcome = self.dispatch(request);
        Box::pin(async move { Ok(outcome.await) })
    }
}

/// The part of the path behind the service's name.
fn method_of(request: &http::Request<Body>) -> &str {
    request.uri().path().rsplit('/').next().unwrap_or_default()
}

fn unknown(request: &http::Request<Body>) -> Outcome {
    let status = Status::unimplemented(format!("{} is not served on this port", request.uri().path()));
    Box::pin(std::future::ready(status.into_http()))
}

fn messaging(services: &Services, service: Arc<dyn Messaging>, request: http::Request<Body>) -> Outcome {
    let runtime = services.runtime.clone();
    macro_rules! arms {
        ($($method:ident $name:literal $request:ident $response:ident;)*) => {
            match method_of(&request) {
                $($name => {
                    let method = <dyn Messaging>::$method;
                    Box::pin(unary::<dyn Messaging, v2::$request, v2::$response, _>(runtime, service, request, method))
                })*
                "ReceiveMessage" => Box::pin(server_stream(
                    runtime,
                    service,
                    request,
                    |request: &v2::ReceiveMessageRequest| polling_time(request.long_polling_timeout.as_ref()),
                    <dyn Messaging>::receive_message,
                )),
                "PullMessage" => Box::pin(server_stream(
                    runtime,
                    service,
                    request,
                    |request: &v2::PullMessageRequest| polling_time(request.long_polling_timeout.as_ref()),
                    <dyn Messaging>::pull_message,
                )),
                "Telemetry" => {
                    let same = std::convert::identity;
                    Box::pin(bidi_stream(runtime, request, same, same, move |_, context, commands| {
                        Ok(service.telemetry(context, commands))
                    }))
                }
                _ => unknown(&request),
            }
        };
    }
    messaging_unary!(arms)
}

/// `None` if it is absent or negative.
fn polling_time(timeout: Option<&prost_types::Duration>) -> Option<Duration> {
    Duration::try_from(*timeout?).ok()
}

fn admin(services: &Services, service: Arc<dyn Admin>, request: http::Request<Body>) -> Outcome {
    let runtime = services.runtime.clone();
    macro_rules! arms {
        ($($method:ident $name:literal $request:ident $reply:ident;)*) => {
            match method_of(&request) {
                $($name => {
                    let method = <dyn Admin>::$method;
                    Box::pin(unary::<dyn Admin, admin::$request, admin::$reply, _>(runtime, service, request, method))
                })*
                _ => unknown(&request),
            }
        };
    }
    admin_unary!(arms)
}

fn namesrv(services: &Services, service: Arc<dyn Namesrv>, request: http::Request<Body>) -> Outcome {
    let runtime = services.runtime.clone();
    macro_rules! arms {
        ($($method:ident $name:literal $request:ident $reply:ident;)*) => {
            match method_of(&request) {
                $($name => {
                    let method = <dyn Namesrv>::$method;
                    Box::pin(unary::<dyn Namesrv, namesrv::$request, namesrv::$reply, _>(runtime, service, request, method))
                })*
                "Register" => {
                    let (row, reply) = (std::convert::identity, std::convert::identity);
                    Box::pin(bidi_stream(runtime, request, row, reply, move |_, context, rows| {
                        Ok(service.register(context, rows))
                    }))
                }
                _ => unknown(&request),
            }
        };
    }
    namesrv_unary!(arms)
}

fn peer(services: &Services, service: Arc<dyn Peer>, request: http::Request<Body>) -> Outcome {
    let runtime = services.runtime.clone();
    match method_of(&request) {
        "Append" => {
            let open: fn(peer::PeerFrame) -> bytes::Bytes = |frame| frame.body;
            let wrap: fn(bytes::Bytes) -> peer::PeerFrame = |body| peer::PeerFrame { body };
            Box::pin(bidi_stream(runtime, request, open, wrap, move |headers, _, requests| {
                service.append(link_of(&headers)?, requests).map_err(status_of)
            }))
        }
        "Call" => Box::pin(bare_unary(request, move |call: peer::PeerCall| async move {
            let body = service.call(call).await.map_err(status_of)?;
            Ok(peer::PeerReply { body })
        })),
        "Forward" => Box::pin(unary::<dyn Peer, peer::ForwardRequest, peer::ForwardResponse, _>(
            runtime, service, request, forward,
        )),
        _ => unknown(&request),
    }
}

/// A request that was damaged on its way is surely not executed: whoever sent it does so again.
fn forward(
    service: &dyn Peer,
    context: CallContext,
    mut request: peer::ForwardRequest,
) -> BoxFuture<'_, peer::ForwardResponse> {
    Box::pin(async move {
        if !request.is_whole() {
            tracing::warn!(method = request.method, "a call that a replica handed on was damaged on its way");
            return peer::ForwardResponse { not_leader: true, ..Default::default() }.sealed();
        }
        service.forward(context, request).await.sealed()
    })
}

fn status_of(error: PeerError) -> Status {
    match error {
        PeerError::Refused(reason) => Status::failed_precondition(reason),
        PeerError::Failed(reason) => Status::internal(reason),
    }
}

fn link_of(headers: &http::HeaderMap) -> Result<PeerLink, Status> {
    let text = |name: &str| {
        let value = headers.get(name).and_then(|value| value.to_str().ok());
        value.ok_or_else(|| Status::invalid_argument(format!("metadata {name} is missing")))
    };
    let node = |name: &str| {
        let value = text(name)?;
        value.parse().map_err(|_| Status::invalid_argument(format!("metadata {name} is no node id: {value:?}")))
    };
    Ok(PeerLink {
        cluster: text(metadata::LINK_CLUSTER)?.to_owned(),
        group: text(metadata::LINK_GROUP)?.to_owned(),
        from: node(metadata::LINK_FROM)?,
        to: node(metadata::LINK_TO)?,
    })
}
