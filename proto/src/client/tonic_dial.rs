//! Opens connections with TLS for tonic, which has none of its own here.

use std::task::{Context, Poll};

use flotilla_runtime::BoxFuture;
use flotilla_tls::{ConnectError, Outgoing, Wire};
use hyper_util::rt::TokioIo;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;

/// Opens connections to one `host:port`, with limits of its own on the time that takes.
#[derive(Debug, Clone)]
pub(super) struct Dial {
    address: String,
    tls: Outgoing,
}

impl Dial {
    pub(super) fn new(address: &str, tls: Outgoing) -> Dial {
        Dial { address: address.to_owned(), tls }
    }
}

impl Service<Uri> for Dial {
    type Response = TokioIo<Wire>;
    type Error = ConnectError;
    type Future = BoxFuture<'static, Result<TokioIo<Wire>, ConnectError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let Dial { address, tls } = self.clone();
        Box::pin(async move { Ok(TokioIo::new(tls.connect(&address).await?)) })
    }
}
