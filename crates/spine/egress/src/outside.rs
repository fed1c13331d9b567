//! The egress process: the one that reaches the network, for one that cannot.
//!
//! It looks names up, connects, and hands the connected socket over; it knows
//! no project, no key and no policy, and never reads what is sent. Whoever asks
//! has decided, judged the address and will record. Both ends share a socket
//! that keeps messages apart; when one end is gone, so is the other.

use std::collections::HashMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use fluffy_contract::BoxFuture;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixDatagram};
use tokio::sync::{Semaphore, oneshot, watch};

use crate::network::{HostNetwork, Network};

/// The longest message; a name and its addresses fit many times over.
const LONGEST: usize = 8 * 1024;

/// How many addresses of one name are passed on.
const MOST_ADDRESSES: usize = 16;

/// How many questions are worked on at once.
const AT_ONCE: usize = 256;

/// The words that make `fluffy` this process; its socket is its input.
pub const ARGUMENTS: [&str; 2] = ["worker", "egress"];

/// The way to an egress process.
#[derive(Debug)]
pub struct Outside {
    line: Arc<Line>,
    numbers: AtomicU64,
    gone: watch::Receiver<()>,
}

#[derive(Debug)]
struct Line {
    socket: UnixDatagram,
    waiting: Mutex<HashMap<u64, oneshot::Sender<Answered>>>,
}

type Answered = (Answer, Option<OwnedFd>);

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Question {
    id: u64,
    ask: Ask,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Ask {
    Resolve(String),
    Connect(SocketAddr),
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Reply {
    id: u64,
    answer: Answer,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Answer {
    Addresses(Vec<IpAddr>),
    Connected,
    Failed(String),
}

/// The two ends of a line to an egress process.
///
/// # Errors
/// The system has no descriptor left.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let kind = SocketType::SEQPACKET;
    let pair = rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None);
    Ok(pair?)
}

impl Outside {
    /// Speaks to the egress process at the other end.
    ///
    /// Must be called within a tokio runtime with I/O.
    ///
    /// # Errors
    /// The socket cannot be used without blocking.
    pub fn over(socket: OwnedFd) -> io::Result<Self> {
        let line = Arc::new(Line {
            socket: without_blocking(socket)?,
            waiting: Mutex::default(),
        });
        let (alive, gone) = watch::channel(());
        let reader = Arc::clone(&line);
        tokio::spawn(async move {
            reader.read().await;
            // Whoever waits for an answer will not get one any more.
            reader.lock().clear();
            drop(alive);
        });
        Ok(Self {
            line,
            numbers: AtomicU64::new(1),
            gone,
        })
    }

    /// Whether the egress process is gone.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.gone.has_changed().is_err()
    }

    /// Ready when the egress process is gone.
    pub async fn gone(&self) {
        // Nothing is ever sent; the end of the sender is the news.
        let _ = self.gone.clone().changed().await;
    }

    async fn ask(&self, ask: Ask) -> io::Result<Answered> {
        let lost = || io::Error::new(io::ErrorKind::BrokenPipe, "the egress process is gone");
        let id = self.numbers.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        self.line.lock().insert(id, sender);
        let sent = send(&self.line.socket, &Question { id, ask }, None).await;
        // After the reader has ended nobody would take it out again.
        if sent.is_err() || self.is_gone() {
            self.line.lock().remove(&id);
            return Err(lost());
        }
        answer.await.map_err(|_| lost())
    }
}

impl Network for Outside {
    fn resolve<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        Box::pin(async move {
            match self.ask(Ask::Resolve(name.to_owned())).await? {
                (Answer::Addresses(addresses), _) => Ok(addresses),
                (answer, _) => Err(failed(answer)),
            }
        })
    }

    fn connect(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<TcpStream>> {
        Box::pin(async move {
            match self.ask(Ask::Connect(address)).await? {
                (Answer::Connected, Some(socket)) => {
                    let stream = std::net::TcpStream::from(socket);
                    stream.set_nonblocking(true)?;
                    TcpStream::from_std(stream)
                }
                (answer, _) => Err(failed(answer)),
            }
        })
    }
}

impl Line {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, oneshot::Sender<Answered>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn read(&self) {
        while let Ok(Some((reply, socket))) = receive::<Reply>(&self.socket).await {
            if let Some(waiting) = self.lock().remove(&reply.id) {
                // Whoever asked may have stopped waiting; the socket closes.
                let _ = waiting.send((reply.answer, socket));
            }
        }
    }
}

/// Answers until the other end is gone.
///
/// # Errors
/// The socket cannot be used, or something else than questions came.
pub async fn serve(socket: OwnedFd) -> io::Result<()> {
    let socket = Arc::new(without_blocking(socket)?);
    let places = Arc::new(Semaphore::new(AT_ONCE));
    while let Some((question, _)) = receive::<Question>(&socket).await? {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return Ok(());
        };
        let socket = Arc::clone(&socket);
        tokio::spawn(async move {
            let Question { id, ask } = question;
            let (answer, connected) = answer(ask).await;
            // An end that cannot be told is gone, which the loop sees too.
            let _ = send(&socket, &Reply { id, answer }, connected).await;
            drop(place);
        });
    }
    Ok(())
}

async fn answer(ask: Ask) -> (Answer, Option<OwnedFd>) {
    let failed = |error: io::Error| (Answer::Failed(error.to_string()), None);
    match ask {
        Ask::Resolve(name) => match HostNetwork.resolve(&name).await {
            Ok(mut addresses) => {
                addresses.truncate(MOST_ADDRESSES);
                (Answer::Addresses(addresses), None)
            }
            Err(error) => failed(error),
        },
        Ask::Connect(address) => {
            let connected = HostNetwork.connect(address).await;
            match connected.and_then(TcpStream::into_std) {
                Ok(stream) => (Answer::Connected, Some(stream.into())),
                Err(error) => failed(error),
            }
        }
    }
}

fn failed(answer: Answer) -> io::Error {
    match answer {
        Answer::Failed(why) => io::Error::other(why),
        Answer::Addresses(_) | Answer::Connected => {
            io::Error::new(io::ErrorKind::InvalidData, "an answer to something else")
        }
    }
}

/// The same socket for tokio, which only waits for it: a socket of packets and
/// one of datagrams do not differ in what is called here.
fn without_blocking(socket: OwnedFd) -> io::Result<UnixDatagram> {
    let socket = std::os::unix::net::UnixDatagram::from(socket);
    socket.set_nonblocking(true)?;
    UnixDatagram::from_std(socket)
}

/// Sends one message, with a socket if there is one.
async fn send<T: Serialize>(
    line: &UnixDatagram,
    message: &T,
    socket: Option<OwnedFd>,
) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    if bytes.len() > LONGEST {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    line.async_io(Interest::WRITABLE, || {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let sockets: Vec<_> = socket.iter().map(AsFd::as_fd).collect();
        if !sockets.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(&sockets));
        }
        let flags = SendFlags::NOSIGNAL;
        rustix::net::sendmsg(line, &[IoSlice::new(&bytes)], &mut ancillary, flags)?;
        Ok(())
    })
    .await
}

/// The next message; nothing when the other end is gone.
async fn receive<T: for<'de> Deserialize<'de>>(
    line: &UnixDatagram,
) -> io::Result<Option<(T, Option<OwnedFd>)>> {
    let mut bytes = vec![0; LONGEST];
    let (count, socket) = line
        .async_io(Interest::READABLE, || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC;
            let mut parts = [IoSliceMut::new(&mut bytes)];
            let received = rustix::net::recvmsg(line, &mut parts, &mut ancillary, flags)?;
            if received.flags.contains(ReturnFlags::TRUNC) {
                return Err(io::ErrorKind::InvalidData.into());
            }
            let sockets = ancillary.drain().filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(sockets) => Some(sockets),
                _ => None,
            });
            Ok((received.bytes, sockets.flatten().next()))
        })
        .await?;
    match bytes.get(..count) {
        Some([]) | None => Ok(None),
        Some(bytes) => Ok(Some((serde_json::from_slice(bytes)?, socket))),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn both() -> (Outside, tokio::task::JoinHandle<io::Result<()>>) {
        let (ours, theirs) = pair().unwrap();
        let served = tokio::spawn(serve(theirs));
        (Outside::over(ours).unwrap(), served)
    }

    #[tokio::test]
    async fn a_connection_is_handed_over_and_carries_bytes() {
        let (outside, _served) = both();
        let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = server.local_addr().unwrap();
        let mut client = outside.connect(address).await.unwrap();
        let (mut accepted, _) = server.accept().await.unwrap();
        client.write_all(b"there").await.unwrap();
        accepted.write_all(b"back").await.unwrap();
        let (mut there, mut back) = ([0; 5], [0; 4]);
        accepted.read_exact(&mut there).await.unwrap();
        client.read_exact(&mut back).await.unwrap();
        assert_eq!((&there, &back), (b"there", b"back"));
        // The egress process keeps no copy: the end of ours is the end.
        drop(client);
        assert_eq!(accepted.read(&mut there).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn names_are_looked_up_there_and_failures_are_told() {
        let (outside, _served) = both();
        let found = outside.resolve("localhost").await.unwrap();
        assert!(found.iter().all(IpAddr::is_loopback), "{found:?}");
        assert!(!found.is_empty());
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = nobody.local_addr().unwrap();
        drop(nobody);
        let refused = outside.connect(address).await.unwrap_err();
        assert!(refused.to_string().contains("refused"), "{refused}");
    }

    #[tokio::test]
    async fn many_questions_at_once_get_their_own_answers() {
        let (outside, _served) = both();
        let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = server.local_addr().unwrap();
        tokio::spawn(async move { while server.accept().await.is_ok() {} });
        let outside = Arc::new(outside);
        let mut asking = tokio::task::JoinSet::new();
        for number in 0..300 {
            let outside = Arc::clone(&outside);
            asking.spawn(async move {
                if number % 2 == 0 {
                    let found = outside.resolve("localhost").await.unwrap();
                    assert!(found.iter().all(IpAddr::is_loopback), "{found:?}");
                } else {
                    let connected = outside.connect(address).await.unwrap();
                    assert_eq!(connected.peer_addr().unwrap(), address);
                }
            });
        }
        asking.join_all().await;
        assert!(outside.line.lock().is_empty());
    }

    #[tokio::test]
    async fn when_the_process_is_gone_everything_fails_at_once() {
        let (outside, served) = both();
        served.abort();
        outside.gone().await;
        let error = outside.resolve("localhost").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        assert!(outside.line.lock().is_empty());
    }

    #[tokio::test]
    async fn what_is_no_question_ends_the_process() {
        let (ours, theirs) = pair().unwrap();
        let served = tokio::spawn(serve(theirs));
        rustix::net::send(&ours, b"{\"id\":1}", SendFlags::empty()).unwrap();
        assert!(served.await.unwrap().is_err());
    }
}
