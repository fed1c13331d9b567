//! One HTTP/2 connection for gRPC, over a stream that is given to it.
//!
//! No pool and no second try: when the connection is gone, so is the plugin.

use std::sync::Arc;
use std::task::{Context, Poll};

use fluffy_contract::BoxFuture;
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::AbortHandle;
use tonic::body::Body;
use tonic::codegen::{Service, http};

/// The most bytes of all headers of one answer.
const MAX_HEADERS: u32 = 16 << 10;

/// A connection to a plugin; clones share it, and the last one closes it.
#[derive(Debug, Clone)]
pub struct Channel {
    requests: http2::SendRequest<Body>,
    _task: Arc<Task>,
}

#[derive(Debug)]
struct Task(AbortHandle);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Channel {
    /// Speaks HTTP/2 on a stream.
    ///
    /// # Errors
    /// When the other side does not.
    pub async fn over<S>(stream: S) -> Result<Self, hyper::Error>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (requests, connection) = http2::Builder::new(TokioExecutor::new())
            .max_header_list_size(MAX_HEADERS)
            .handshake(TokioIo::new(stream))
            .await?;
        let task = tokio::spawn(async move {
            // Whoever waits for an answer hears of the end.
            let _ = connection.await;
        });
        Ok(Self {
            requests,
            _task: Arc::new(Task(task.abort_handle())),
        })
    }

    /// Whether no answer can come any more.
    pub(super) fn is_closed(&self) -> bool {
        self.requests.is_closed()
    }
}

impl Service<http::Request<Body>> for Channel {
    type Response = http::Response<Incoming>;
    type Error = hyper::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.requests.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.requests.send_request(request))
    }
}
