//! The host's services over gRPC, on sockets in the meeting folder.
//!
//! Nothing is decided here: each call is one call of [`Services`], which asks
//! policy. Next: `proto/fluffy/plugin/v1/host.proto` for what authors see.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use fluffy_sandbox::plan::PROXY_PORT;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::{Request, Response, Status};

use crate::log::Level;
use crate::services::{MAX_VALUE, ServiceError, Services};
use crate::wire::v1;

/// The most connections of one plugin to one socket at once.
const MAX_CONNECTIONS: usize = 8;

/// The most calls of one connection at once.
const MAX_CALLS: u32 = 32;

/// A value with its key, or a file with its path.
const MAX_REQUEST: usize = MAX_VALUE + (64 << 10);

/// How long a plugin may take for the TLS handshake.
const GREETING: Duration = Duration::from_secs(10);

/// Serves a plugin until the task is ended.
pub(super) async fn serve(
    listener: UnixListener,
    tls: Option<TlsAcceptor>,
    services: Arc<Services>,
    proxy: Option<String>,
) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    let host = Host { services, proxy };
    loop {
        while connections.try_join_next().is_some() {}
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(_) => {
                // Out of descriptors, say: others need a moment.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let (tls, host) = (tls.clone(), host.clone());
        connections.spawn(async move {
            let _place = place;
            match tls {
                None => host.speak(stream).await,
                Some(tls) => {
                    let greeted = tokio::time::timeout(GREETING, tls.accept(stream)).await;
                    if let Ok(Ok(stream)) = greeted {
                        host.speak(stream).await;
                    }
                }
            }
        });
    }
}

/// Where the proxy of a sandbox is, seen from inside.
pub(super) fn proxy_address() -> String {
    format!("127.0.0.1:{PROXY_PORT}")
}

#[derive(Clone)]
struct Host {
    services: Arc<Services>,
    proxy: Option<String>,
}

impl Host {
    async fn speak<S>(self, stream: S)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let answer = service_fn(move |request| {
            let host = self.clone();
            async move { Ok::<_, Infallible>(host.route(request).await) }
        });
        // How a connection ended is the plugin's business.
        let _ = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_CALLS)
            .max_header_list_size(16 << 10)
            .serve_connection(TokioIo::new(stream), answer)
            .await;
    }

    async fn route(self, request: http::Request<Incoming>) -> http::Response<Body> {
        let path = request.uri().path();
        let service = path.trim_start_matches('/').split('/').next();
        let answer = match service {
            Some("fluffy.plugin.v1.HostKv") => {
                let server = v1::host_kv_server::HostKvServer::new(self);
                let mut server = server.max_decoding_message_size(MAX_REQUEST);
                server.call(request).await
            }
            Some("fluffy.plugin.v1.HostConfig") => {
                let mut server = v1::host_config_server::HostConfigServer::new(self);
                server.call(request).await
            }
            Some("fluffy.plugin.v1.HostLog") => {
                let server = v1::host_log_server::HostLogServer::new(self);
                let mut server = server.max_decoding_message_size(MAX_REQUEST);
                server.call(request).await
            }
            Some("fluffy.plugin.v1.HostEgress") => {
                let mut server = v1::host_egress_server::HostEgressServer::new(self);
                server.call(request).await
            }
            Some("fluffy.plugin.v1.HostFs") => {
                let server = v1::host_fs_server::HostFsServer::new(self);
                let mut server = server.max_decoding_message_size(MAX_REQUEST);
                server.call(request).await
            }
            _ => return Status::unimplemented("the host has no such service").into_http(),
        };
        match answer {
            Ok(answer) => answer,
            Err(never) => match never {},
        }
    }
}

type Answer<T> = Result<Response<T>, Status>;

fn answer<T, U>(done: Result<T, ServiceError>, make: impl FnOnce(T) -> U) -> Answer<U> {
    done.map(|value| Response::new(make(value))).map_err(status)
}

fn status(error: ServiceError) -> Status {
    let words = error.to_string();
    match error {
        ServiceError::Denied { .. } => Status::permission_denied(words),
        ServiceError::NotFound { .. } => Status::not_found(words),
        ServiceError::TooLarge { .. } | ServiceError::Full { .. } => {
            Status::resource_exhausted(words)
        }
        ServiceError::Invalid { .. } => Status::invalid_argument(words),
        ServiceError::Failed { .. } => Status::internal(words),
    }
}

#[tonic::async_trait]
impl v1::host_kv_server::HostKv for Host {
    async fn get(&self, request: Request<v1::KvGetRequest>) -> Answer<v1::KvGetResponse> {
        let done = self.services.kv_get(&request.into_inner().key).await;
        answer(done, |value| v1::KvGetResponse {
            found: value.is_some(),
            value: value.unwrap_or_default(),
        })
    }

    async fn set(&self, request: Request<v1::KvSetRequest>) -> Answer<v1::KvSetResponse> {
        let v1::KvSetRequest { key, value } = request.into_inner();
        let done = self.services.kv_set(&key, value).await;
        answer(done, |()| v1::KvSetResponse {})
    }

    async fn delete(&self, request: Request<v1::KvDeleteRequest>) -> Answer<v1::KvDeleteResponse> {
        let done = self.services.kv_delete(&request.into_inner().key).await;
        answer(done, |()| v1::KvDeleteResponse {})
    }

    async fn list(&self, request: Request<v1::KvListRequest>) -> Answer<v1::KvListResponse> {
        let v1::KvListRequest { prefix, after } = request.into_inner();
        let done = self.services.kv_list(&prefix, &after).await;
        answer(done, |keys| v1::KvListResponse { keys })
    }
}

#[tonic::async_trait]
impl v1::host_config_server::HostConfig for Host {
    async fn get(&self, _request: Request<v1::ConfigGetRequest>) -> Answer<v1::ConfigGetResponse> {
        let done = self.services.configuration();
        let text = |fields| serde_json::to_string(fields).unwrap_or_default();
        answer(done, |fields| v1::ConfigGetResponse {
            configuration: text(fields),
        })
    }
}

#[tonic::async_trait]
impl v1::host_log_server::HostLog for Host {
    async fn write(&self, request: Request<v1::LogWriteRequest>) -> Answer<v1::LogWriteResponse> {
        use v1::log_write_request::Level as Said;
        let request = request.into_inner();
        let level = match request.level() {
            Said::Unspecified | Said::Info => Level::Info,
            Said::Trace => Level::Trace,
            Said::Debug => Level::Debug,
            Said::Warn => Level::Warn,
            Said::Error => Level::Error,
        };
        let done = self.services.log(level, &request.text);
        answer(done, |()| v1::LogWriteResponse {})
    }
}

#[tonic::async_trait]
impl v1::host_egress_server::HostEgress for Host {
    async fn connect(
        &self,
        request: Request<v1::EgressConnectRequest>,
    ) -> Answer<v1::EgressConnectResponse> {
        let done = self.services.may_connect(&request.into_inner().address);
        done.map_err(status)?;
        let none = || Status::failed_precondition("this plugin was started without a network");
        let proxy = self.proxy.clone().ok_or_else(none)?;
        Ok(Response::new(v1::EgressConnectResponse { proxy }))
    }
}

#[tonic::async_trait]
impl v1::host_fs_server::HostFs for Host {
    async fn read(&self, request: Request<v1::FsReadRequest>) -> Answer<v1::FsReadResponse> {
        let done = self.services.fs_read(&request.into_inner().path).await;
        answer(done, |content| v1::FsReadResponse { content })
    }

    async fn list(&self, request: Request<v1::FsListRequest>) -> Answer<v1::FsListResponse> {
        let done = self.services.fs_list(&request.into_inner().path).await;
        answer(done, |names| v1::FsListResponse { names })
    }

    async fn write(&self, request: Request<v1::FsWriteRequest>) -> Answer<v1::FsWriteResponse> {
        let v1::FsWriteRequest { path, content } = request.into_inner();
        let done = self.services.fs_write(&path, content).await;
        answer(done, |()| v1::FsWriteResponse {})
    }
}
