//! What the launcher, its clients and the init of a sandbox say to each other.
//!
//! A frame is a 4-byte big-endian length and that much JSON; descriptors travel
//! with the length bytes. The same words go from a client to a launcher and
//! from a launcher to an init, so every engine runs commands the same way.
//! Sizes are checked before anything is allocated. No message can ask for a
//! weaker sandbox.

use std::io;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use fluffy_base::id::SandboxId;
use fluffy_contract::isolation::{Command, Exit, Limit, SandboxSpec, Stats};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The longest message; the arguments and variables of a command must fit.
pub const MAX_FRAME: usize = 4 << 20;
/// The most descriptors that travel with one message.
pub const MAX_DESCRIPTORS: usize = 4;

/// Numbers one command of a sandbox.
pub type ExecId = u64;

/// What a client asks a launcher. Each is answered by one [`Answer`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Ask {
    /// Make a sandbox.
    Create {
        /// Its id, chosen by the client.
        sandbox: SandboxId,
        /// From what.
        spec: SandboxSpec,
        /// Whether the project is attached only by [`Ask::Attach`].
        warm: Warm,
    },
    /// Give a warm sandbox its project and layer; only once.
    Attach {
        /// Which.
        sandbox: SandboxId,
        /// The project and layer; the rest must be as it was created.
        spec: SandboxSpec,
    },
    /// Start a command. With three streams their descriptors travel along;
    /// with a terminal its descriptor comes back.
    Exec {
        /// Where.
        sandbox: SandboxId,
        /// Its number, chosen by the client.
        exec: ExecId,
        /// What.
        command: Command,
    },
    /// Send a signal to a command's whole session.
    Signal {
        /// Where.
        sandbox: SandboxId,
        /// Which command.
        exec: ExecId,
        /// The signal's number.
        signal: i32,
    },
    /// End one command, for this reason.
    End {
        /// Where.
        sandbox: SandboxId,
        /// Which command.
        exec: ExecId,
        /// Why it is ended; it becomes its exit.
        limit: Limit,
    },
    /// End every process in it; the sandbox itself stays.
    EndAll {
        /// Where.
        sandbox: SandboxId,
    },
    /// Open a listener on the sandbox's loopback; it comes back.
    Listen {
        /// Where.
        sandbox: SandboxId,
        /// On which port.
        port: u16,
    },
    /// Stop its processes where they are.
    Pause {
        /// Which.
        sandbox: SandboxId,
    },
    /// Let them go on.
    Resume {
        /// Which.
        sandbox: SandboxId,
    },
    /// What it uses now.
    Stats {
        /// Which.
        sandbox: SandboxId,
    },
    /// Ask its processes to end, then end them.
    Stop {
        /// Which.
        sandbox: SandboxId,
        /// After how many milliseconds.
        grace_millis: u64,
    },
    /// End all its processes at once.
    Kill {
        /// Which.
        sandbox: SandboxId,
    },
    /// End it and remove what it left; may be asked again.
    Cleanup {
        /// Which.
        sandbox: SandboxId,
    },
    /// Remove what launchers that are gone left behind.
    Sweep,
}

/// Whether a sandbox waits for its project.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Warm {
    /// Everything is mounted at once.
    Complete,
    /// The project comes with [`Ask::Attach`].
    Waiting,
}

/// What a launcher answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// It was done.
    Done,
    /// What the sandbox uses.
    Stats {
        /// The figures.
        stats: Stats,
    },
    /// What a sweep removed, a line for each.
    Swept {
        /// What.
        removed: Vec<String>,
    },
    /// What it needs is being fetched.
    Pending {
        /// How far it is.
        progress: String,
    },
    /// It was not done.
    Failed {
        /// Why.
        failure: Failure,
    },
}

/// Why something was not done, in words for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Which kind.
    pub kind: FailureKind,
    /// What happened.
    pub what: String,
    /// Why.
    pub why: String,
    /// How to fix it, where that is known.
    pub fix: Option<String>,
}

/// Kinds of failures that callers treat differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// No sandbox may have what was asked for.
    Refused,
    /// This machine cannot do it.
    Unavailable,
    /// There is no such sandbox, or it has ended.
    Ended,
    /// The system failed.
    System,
}

/// What happened without being asked.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "notice", rename_all = "snake_case")]
pub enum Notice {
    /// A command ended.
    Exited {
        /// Where.
        sandbox: SandboxId,
        /// Which command.
        exec: ExecId,
        /// How.
        exit: Exit,
    },
    /// A whole sandbox ended by itself; it still has to be cleaned up.
    Ended {
        /// Which.
        sandbox: SandboxId,
        /// The limit that ended it, if one did.
        limit: Option<Limit>,
    },
}

/// A message to a launcher.
#[derive(Debug, Serialize, Deserialize)]
pub struct Question {
    /// Counts up; the answer carries it too.
    pub id: u64,
    /// What is asked.
    pub ask: Ask,
}

/// A message from a launcher.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "from", rename_all = "snake_case")]
pub enum Reply {
    /// To a question.
    Answer {
        /// The question's number.
        id: u64,
        /// The answer.
        answer: Answer,
    },
    /// Without a question.
    Notice {
        /// What happened.
        notice: Notice,
    },
}

/// What a launcher asks the init of one sandbox.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub enum Order {
    /// Mount what a warm sandbox was waiting for.
    Attach {
        /// What.
        mounts: Vec<crate::plan::Mount>,
        /// Where commands start from now on.
        directory: std::path::PathBuf,
        /// The second wall, now with the project.
        reach: crate::plan::Reach,
    },
    /// Start a command.
    Exec {
        /// Its number.
        exec: ExecId,
        /// What.
        command: Command,
    },
    /// Send a signal to a command's whole session.
    Signal {
        /// Which command.
        exec: ExecId,
        /// The signal's number.
        signal: i32,
    },
    /// Send a signal to every process but init.
    SignalAll {
        /// The signal's number.
        signal: i32,
    },
    /// Open a listener on the loopback; it comes back.
    Listen {
        /// On which port.
        port: u16,
    },
}

/// What an init says to its launcher: one [`Report::Done`] or
/// [`Report::Failed`] for each order, in order, and exits between them.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "snake_case")]
pub enum Report {
    /// The sandbox stands; commands can be run.
    Ready,
    /// The oldest open order was carried out.
    Done,
    /// It was not; before [`Report::Ready`] the sandbox is lost.
    Failed {
        /// Why.
        failure: Failure,
    },
    /// A command ended.
    Exited {
        /// Which.
        exec: ExecId,
        /// How.
        exit: Exit,
    },
}

/// Sends a message with descriptors, whole. On a socket that does not block
/// it waits until there is room.
///
/// # Errors
/// When the message is too long or the peer is gone.
pub fn send<T: Serialize>(
    socket: impl AsFd,
    message: &T,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let body = serde_json::to_vec(message).map_err(io::Error::other)?;
    let length = u32::try_from(body.len())
        .ok()
        .filter(|_| body.len() <= MAX_FRAME)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the message is too long"))?;
    if descriptors.len() > MAX_DESCRIPTORS {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let socket = socket.as_fd();
    let head = length.to_be_bytes();
    // In one call, or the peer would wake for the length and wait once more.
    let mut sent = send_first(socket, [&head, &body], descriptors)?;
    while sent < head.len() {
        sent += send_some(socket, head.get(sent..).unwrap_or_default())?;
    }
    let mut sent = sent - head.len();
    while sent < body.len() {
        sent += send_some(socket, body.get(sent..).unwrap_or_default())?;
    }
    Ok(())
}

/// Receives one message and its descriptors; nothing when the peer has closed.
///
/// # Errors
/// When the frame is too long, cut off, or not the wanted message.
pub fn receive<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let socket = socket.as_fd();
    let mut head = [0_u8; 4];
    let mut descriptors = Vec::new();
    let mut have = receive_head(socket, &mut head, &mut descriptors)?;
    if have == 0 {
        return Ok(None);
    }
    while have < head.len() {
        have += receive_some(socket, head.get_mut(have..).unwrap_or_default())?;
    }
    let length = usize::try_from(u32::from_be_bytes(head)).unwrap_or(usize::MAX);
    if length > MAX_FRAME {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the frame is too long",
        ));
    }
    let mut body = vec![0_u8; length];
    let mut have = 0;
    while have < length {
        have += receive_some(socket, body.get_mut(have..).unwrap_or_default())?;
    }
    let message = serde_json::from_slice(&body)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    Ok(Some((message, descriptors)))
}

fn send_first(
    socket: BorrowedFd<'_>,
    parts: [&[u8]; 2],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    loop {
        let sent = rustix::net::sendmsg(
            socket,
            &parts.map(IoSlice::new),
            &mut ancillary,
            SendFlags::NOSIGNAL,
        );
        match sent {
            Ok(sent) => return Ok(sent),
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => wait(socket, rustix::event::PollFlags::OUT)?,
            Err(error) => return Err(error.into()),
        }
    }
}

fn send_some(socket: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    loop {
        match rustix::net::send(socket, bytes, SendFlags::NOSIGNAL) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(sent) => return Ok(sent),
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => wait(socket, rustix::event::PollFlags::OUT)?,
            Err(error) => return Err(error.into()),
        }
    }
}

fn receive_head(
    socket: BorrowedFd<'_>,
    head: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let mut parts = [io::IoSliceMut::new(head)];
        match rustix::net::recvmsg(socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Ok(received) => break received.bytes,
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => wait(socket, rustix::event::PollFlags::IN)?,
            Err(rustix::io::Errno::CONNRESET) => return Ok(0),
            Err(error) => return Err(error.into()),
        }
    };
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    Ok(received)
}

fn receive_some(socket: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<usize> {
    loop {
        match rustix::net::recv(socket, &mut *into, RecvFlags::empty()) {
            Ok((_, 0)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok((_, received)) => return Ok(received),
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => wait(socket, rustix::event::PollFlags::IN)?,
            Err(error) => return Err(error.into()),
        }
    }
}

fn wait(socket: BorrowedFd<'_>, flags: rustix::event::PollFlags) -> io::Result<()> {
    let mut polled = [rustix::event::PollFd::from_borrowed_fd(socket, flags)];
    match rustix::event::poll(&mut polled, None) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::io::Read;

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap()
    }

    #[test]
    fn a_message_arrives_with_its_descriptors() {
        let (left, right) = pair();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        send(&left, &Report::Ready, &[writer.as_fd()]).unwrap();
        drop(writer);
        let (report, mut descriptors) = receive::<Report>(&right).unwrap().unwrap();
        assert!(matches!(report, Report::Ready));
        assert_eq!(descriptors.len(), 1);
        rustix::io::write(descriptors.pop().unwrap(), b"through").unwrap();
        let mut text = String::new();
        std::fs::File::from(reader)
            .read_to_string(&mut text)
            .unwrap();
        assert_eq!(text, "through");
    }

    #[test]
    fn a_long_message_arrives_whole() {
        let (left, right) = pair();
        let argv = vec!["x".repeat(100_000); 20];
        let order = Order::Exec {
            exec: 7,
            command: Command::new(argv.clone()),
        };
        let sender = std::thread::spawn(move || send(&left, &order, &[]));
        let (order, _) = receive::<Order>(&right).unwrap().unwrap();
        sender.join().unwrap().unwrap();
        assert!(matches!(order, Order::Exec { exec: 7, command } if command.argv == argv));
    }

    #[test]
    fn a_closed_peer_is_the_end_and_a_cut_frame_is_an_error() {
        let (left, right) = pair();
        drop(left);
        assert!(receive::<Report>(&right).unwrap().is_none());
        let (left, right) = pair();
        rustix::io::write(&left, &[0, 0, 0, 9, b'{']).unwrap();
        drop(left);
        assert!(receive::<Report>(&right).is_err());
    }

    #[test]
    fn a_frame_that_claims_too_much_is_refused_unread() {
        let (left, right) = pair();
        rustix::io::write(&left, &u32::MAX.to_be_bytes()).unwrap();
        let error = receive::<Report>(&right).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        let long = Order::Exec {
            exec: 1,
            command: Command::new(["x".repeat(MAX_FRAME)]),
        };
        assert!(send(&left, &long, &[]).is_err());
    }
}
