//! What the tests share: a place for a socket, a running server, a raw peer.
#![allow(dead_code, reason = "each test file uses its own part of this")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fluffy_ipc::frame::{self, Decoder};
use fluffy_ipc::message::v1::encode_request;
use fluffy_ipc::message::{Message, Request, RequestId, Response};
use fluffy_ipc::server::ServeError;
use fluffy_ipc::{ApiRange, Client, Hello, Listener, Server, handshake};
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// How long a condition may take before a test gives up.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// A server that serves a socket in a directory of its own.
pub(crate) struct Serving {
    directory: tempfile::TempDir,
    stop: Option<oneshot::Sender<()>>,
    task: Option<JoinHandle<Result<(), ServeError>>>,
}

impl Serving {
    pub(crate) fn start(server: Server) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listener = Listener::bind(socket_in(directory.path())).unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(server.serve(listener, async { drop(stopped.await) }));
        Self {
            directory,
            stop: Some(stop),
            task: Some(task),
        }
    }

    pub(crate) fn path(&self) -> PathBuf {
        socket_in(self.directory.path())
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.path(), hello()).await.unwrap()
    }

    pub(crate) async fn raw(&self) -> RawPeer {
        RawPeer::greeted(&self.path()).await
    }

    /// Asks the server to end without waiting for it.
    pub(crate) fn begin_stop(&mut self) {
        drop(self.stop.take());
    }

    pub(crate) async fn stop(mut self) {
        self.begin_stop();
        let task = self.task.take().unwrap();
        let ended = tokio::time::timeout(DEADLINE, task).await;
        ended.expect("the server must end").unwrap().unwrap();
    }
}

/// A peer that sends whatever bytes it likes.
pub(crate) struct RawPeer {
    pub(crate) stream: UnixStream,
    decoder: Decoder,
    unread: Vec<u8>,
}

impl RawPeer {
    pub(crate) async fn silent(path: &Path) -> Self {
        Self::over(UnixStream::connect(path).await.unwrap())
    }

    pub(crate) fn over(stream: UnixStream) -> Self {
        Self {
            stream,
            decoder: Decoder::new(frame::LIMIT),
            unread: Vec::new(),
        }
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    pub(crate) async fn greeted(path: &Path) -> Self {
        let mut peer = Self::silent(path).await;
        peer.request(0, handshake::METHOD, &hello()).await;
        let welcome = peer.response().await.expect("a welcome");
        assert!(welcome.outcome.is_ok(), "{welcome:?}");
        peer
    }

    pub(crate) async fn request<P: Serialize>(&mut self, id: u64, method: &str, params: &P) {
        let bytes = encode_request(RequestId(id), method, params).unwrap();
        self.stream.write_all(&bytes).await.unwrap();
    }

    /// The next message, or none when the server closed the connection.
    pub(crate) async fn message(&mut self) -> Option<Message> {
        loop {
            let mut input = self.unread.as_slice();
            let frame = self.decoder.feed(&mut input).unwrap();
            self.unread = input.to_vec();
            if let Some(frame) = frame {
                return Some(Message::parse(&frame).unwrap());
            }
            let mut chunk = [0; 65536];
            let read = tokio::time::timeout(DEADLINE, self.stream.read(&mut chunk));
            // A close with bytes of ours unread arrives as a reset.
            match read.await.expect("an answer or an end") {
                Ok(0) | Err(_) => return None,
                Ok(count) => self.unread.extend_from_slice(&chunk[..count]),
            }
        }
    }

    pub(crate) async fn response(&mut self) -> Option<Response> {
        match self.message().await {
            Some(Message::Response(response)) => Some(response),
            None => None,
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) fn socket_in(directory: &Path) -> PathBuf {
    directory.join("run/test.sock")
}

pub(crate) fn hello() -> Hello {
    Hello::new("test", "1.0", 1)
}

/// A server of version 1 with the method `ping`.
pub(crate) fn ping_server() -> Server {
    Server::new("test", ApiRange::current_and_previous(1))
        .method("ping", |_, number: u64| async move { Ok(number) })
}

/// Waits until something is true; fails loudly if it never is.
pub(crate) async fn wait_until(what: &str, mut is_true: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_true() {
        assert!(start.elapsed() < DEADLINE, "never came true: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

pub(crate) fn request_of(message: Message) -> Request {
    match message {
        Message::Request(request) => request,
        other => panic!("{other:?}"),
    }
}
