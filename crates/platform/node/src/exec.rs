//! Commands beside a workload: the bytes between a server's stream and a guest.
//!
//! Each hop holds a few pieces: who reads slowly slows the command down, and
//! nothing is dropped. When either side goes, the command is ended.

use std::sync::Arc;
use std::time::Duration;

use fluffy_api::node::dial::Channel;
use fluffy_api::node::join::{nodes, streaming};
use fluffy_api::node::{MAX_EXEC_FRAME, v1};
use fluffy_guest::host::{Connection, Exec, ExecError, ExecInput, ExecOutput, Gone, Piece};
use fluffy_guest::message::ExecOpen;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};
use tonic::Streaming;
use v1::exec_exit::Of;
use v1::exec_from_node::Frame;
use v1::exec_to_node::Frame as Input;

use crate::metrics::Metrics;

/// How long a command may take to start.
const START: Duration = Duration::from_secs(30);

/// The longest that any session lasts, whatever was asked.
const LONGEST: u32 = 24 * 3600;

/// How long after its time a session's end may wait to be read.
const PARTING: Duration = Duration::from_secs(10);

/// How a session ended.
struct End {
    of: Of,
    reason: &'static str,
}

/// Runs one session until its command, its client or its time ends. That the
/// client is gone is also told beside its stream, which may be stuck behind
/// input that the command does not read.
pub(crate) async fn run(
    node_id: String,
    open: v1::ExecOpen,
    channel: Channel,
    connection: Connection,
    metrics: Arc<Metrics>,
    hung_up: oneshot::Receiver<()>,
) {
    metrics.add("exec_sessions", "", 1);
    let hung_up = async {
        if hung_up.await.is_err() {
            // Nobody will say so any more.
            std::future::pending::<()>().await;
        }
    };
    let reason = tokio::select! {
        reason = session(node_id, open, &channel, &connection) => reason,
        () = hung_up => "client_disconnect",
    };
    metrics.add("exec_sessions", "", -1);
    metrics.count("exec_sessions_total", reason);
}

async fn session(
    node_id: String,
    open: v1::ExecOpen,
    channel: &Channel,
    connection: &Connection,
) -> &'static str {
    // Two frames wait at most; the rest waits in the guest.
    let (output, frames) = mpsc::channel(2);
    let attach = v1::ExecAttach {
        node_id,
        session_id: open.session_id.clone(),
    };
    if say(&output, Frame::Attach(attach)).await.is_err() {
        return "client_disconnect";
    }
    let mut client = nodes(channel);
    let Ok(input) = client.exec_attach(streaming(frames)).await else {
        return "client_disconnect";
    };
    let mut input = input.into_inner();
    let seconds = open.max_seconds.clamp(1, LONGEST);
    let tells = open.tell_started;
    let limit = Duration::from_secs(seconds.into());
    let started = timeout(START, connection.exec(order(open))).await;
    let ends = Instant::now() + limit;
    let end = match started {
        Err(_) => not_started("it did not start in time"),
        Ok(Err(ExecError::Gone)) => not_started("the instance is gone"),
        Ok(Err(error)) => not_started(&error.to_string()),
        Ok(Ok(exec)) => {
            let started = v1::ExecStarted { pid: exec.pid };
            if tells && say(&output, Frame::Started(started)).await.is_err() {
                return "client_disconnect";
            }
            match timeout_at(ends, relay(exec, &output, &mut input)).await {
                Ok(Some(end)) => end,
                Ok(None) => return "client_disconnect",
                Err(_) => End {
                    of: Of::Signal("KILL".to_owned()),
                    reason: "timeout",
                },
            }
        }
    };
    let reason = end.reason;
    let exit = v1::ExecExit {
        of: Some(end.of),
        reason: reason.to_owned(),
    };
    let part = async {
        if say(&output, Frame::Exit(exit)).await.is_ok() {
            // The server ends the stream; who hung up first would lose the rest.
            while let Ok(Some(_)) = input.message().await {}
        }
    };
    // A slow reader hears of it late; one that does not read at all, never.
    let _ = timeout_at(ends + PARTING, part).await;
    reason
}

fn order(open: v1::ExecOpen) -> ExecOpen {
    let size = |size: u32| u16::try_from(size).unwrap_or(u16::MAX).max(1);
    let terminal = open.terminal.unwrap_or_default();
    ExecOpen {
        channel: 0,
        command: open.command,
        tty: open.terminal.is_some(),
        cols: size(terminal.cols),
        rows: size(terminal.rows),
        env: open.env.into_iter().collect(),
        stdin: open.stdin,
        as_root: open.as_root,
    }
}

fn not_started(why: &str) -> End {
    End {
        of: Of::NotStarted(why.chars().take(500).collect()),
        reason: "exited",
    }
}

/// Moves bytes both ways; how the command ended, unless nobody cares any more.
async fn relay(
    exec: Exec,
    output: &mpsc::Sender<v1::ExecFromNode>,
    input: &mut Streaming<v1::ExecToNode>,
) -> Option<End> {
    // Dropping the output ends the command.
    let Exec {
        input: to,
        output: mut from,
        ..
    } = exec;
    tokio::select! {
        end = outward(&mut from, output) => end,
        () = inward(&to, input) => None,
        // Also while the command reads nothing.
        () = output.closed() => None,
    }
}

type OfBytes = fn(Vec<u8>) -> Frame;

async fn outward(from: &mut ExecOutput, output: &mpsc::Sender<v1::ExecFromNode>) -> Option<End> {
    loop {
        let (bytes, frame): (_, OfBytes) = match from.next().await {
            Some(Piece::Stdout(bytes)) => (bytes, Frame::Stdout),
            Some(Piece::Stderr(bytes)) => (bytes, Frame::Stderr),
            Some(Piece::Exit { exit_code, signal }) => return Some(ended(exit_code, signal)),
            None => {
                return Some(End {
                    of: Of::Signal("KILL".to_owned()),
                    reason: "instance_gone",
                });
            }
        };
        for piece in bytes.chunks(MAX_EXEC_FRAME) {
            say(output, frame(piece.to_vec())).await.ok()?;
        }
    }
}

fn ended(exit_code: Option<i32>, signal: Option<i32>) -> End {
    match (exit_code, signal) {
        (Some(code), _) => End {
            of: Of::ExitCode(code),
            reason: "exited",
        },
        (None, signal) => End {
            of: Of::Signal(name(signal.unwrap_or(9))),
            reason: "killed",
        },
    }
}

/// Signals as people write them.
fn name(signal: i32) -> String {
    let known = [
        (1, "HUP"),
        (2, "INT"),
        (3, "QUIT"),
        (4, "ILL"),
        (6, "ABRT"),
        (7, "BUS"),
        (8, "FPE"),
        (9, "KILL"),
        (10, "USR1"),
        (11, "SEGV"),
        (12, "USR2"),
        (13, "PIPE"),
        (14, "ALRM"),
        (15, "TERM"),
    ];
    let found = known.iter().find(|(number, _)| *number == signal);
    found.map_or_else(|| signal.to_string(), |(_, name)| (*name).to_owned())
}

/// Ends when the client is gone; its end of input is not that.
async fn inward(to: &ExecInput, input: &mut Streaming<v1::ExecToNode>) {
    let mut reads = true;
    while let Ok(Some(message)) = input.message().await {
        let Some(frame) = message.frame else { continue };
        if hand_in(to, frame, &mut reads).await.is_err() {
            // The command is gone; its end is on its way.
            std::future::pending::<()>().await;
        }
    }
}

/// Hands one piece to a command, which `reads` until it closed its input. Then
/// it may still run, and be told other things.
async fn hand_in(to: &ExecInput, frame: Input, reads: &mut bool) -> Result<(), Gone> {
    let size = |size: u32| u16::try_from(size).unwrap_or(u16::MAX).max(1);
    match frame {
        Input::Stdin(bytes) if *reads => *reads = to.write(bytes).await.is_ok(),
        Input::StdinEnd(_) if *reads => *reads = to.close().await.is_ok(),
        Input::Stdin(_) | Input::StdinEnd(_) => {}
        Input::Resize(terminal) => to.resize(size(terminal.cols), size(terminal.rows)).await?,
        Input::Signal(signal) => to.signal(&signal).await?,
    }
    Ok(())
}

async fn say(output: &mpsc::Sender<v1::ExecFromNode>, frame: Frame) -> Result<(), ()> {
    let message = v1::ExecFromNode { frame: Some(frame) };
    output.send(message).await.map_err(drop)
}

#[cfg(test)]
mod tests {
    use fluffy_guest::host::{Options, open};
    use fluffy_guest::link::{Event, Link, WINDOW, read_message};
    use fluffy_guest::message::Hello;
    use fluffy_guest::{FromGuest, FromHost, PROTOCOL};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

    use super::*;

    /// The inside of an instance, played by the test.
    struct Guest {
        stream: DuplexStream,
        link: Link,
    }

    impl Guest {
        async fn say(&mut self, message: &FromGuest) {
            self.link.send(message).unwrap();
            self.flush().await;
        }

        async fn flush(&mut self) {
            while self.link.has_outgoing() {
                let written = self.stream.write(self.link.outgoing()).await.unwrap();
                self.link.written(written);
            }
        }

        async fn hears(&mut self) -> Event {
            let mut buffer = [0; 4096];
            loop {
                self.flush().await;
                if let Some(event) = self.link.event() {
                    return event;
                }
                let length = self.stream.read(&mut buffer).await.unwrap();
                assert!(length > 0, "the link ended");
                self.link.feed(&buffer[..length]).unwrap();
            }
        }

        async fn is_told(&mut self) -> FromHost {
            loop {
                if let Event::Message(message) = self.hears().await {
                    return read_message(&message).unwrap();
                }
            }
        }
    }

    #[tokio::test]
    async fn a_command_that_closed_its_input_is_still_told_other_things() {
        let (here, there) = duplex(1 << 20);
        let (stream, link) = (there, Link::new());
        let mut guest = Guest { stream, link };
        let hello = Hello {
            protocol: PROTOCOL,
            init_version: "0".to_owned(),
            instance_id: "inst_1".to_owned(),
            boot_id: "boot_1".to_owned(),
            kernel: String::new(),
            features: Vec::new(),
            disks: Vec::new(),
        };
        guest.say(&FromGuest::Hello(hello)).await;
        let patient = Options {
            handshake: Duration::from_secs(60),
            ping: Duration::from_secs(60),
            missed: 3,
        };
        let (_, connection, _events) = open(here, patient).await.unwrap();
        let order = ExecOpen {
            command: vec!["sh".to_owned()],
            stdin: true,
            ..ExecOpen::default()
        };
        let asked = connection.clone();
        let starting = tokio::spawn(async move { asked.exec(order).await.unwrap() });
        let FromHost::ExecOpen(ExecOpen { channel, .. }) = guest.is_told().await else {
            panic!("no command");
        };
        guest.link.open(channel);
        guest.say(&FromGuest::ExecOpened { channel, pid: 9 }).await;
        let exec = starting.await.unwrap();

        // The last byte waits for a command that will not read it.
        let mut reads = true;
        let typed = Input::Stdin(vec![1; WINDOW + 1]);
        let typing = hand_in(&exec.input, typed, &mut reads);
        let closing = async {
            let mut read = 0;
            while read < WINDOW {
                if let Event::Data { bytes, .. } = guest.hears().await {
                    read += bytes.len();
                }
            }
            guest.link.send_reset(channel);
            guest.flush().await;
        };
        let (typed, ()) = tokio::join!(typing, closing);
        assert_eq!((typed, reads), (Ok(()), false));
        for frame in [
            Input::Stdin(b"more".to_vec()),
            Input::StdinEnd(v1::StdinEnd {}),
            Input::Signal("INT".to_owned()),
        ] {
            assert_eq!(hand_in(&exec.input, frame, &mut reads).await, Ok(()));
        }
        let FromHost::ExecSignal { signal, .. } = guest.is_told().await else {
            panic!("no signal");
        };
        assert_eq!(signal, "INT");
    }
}
