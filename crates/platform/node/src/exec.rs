//! Commands beside a workload: the bytes between a server's stream and a guest.
//!
//! Each hop holds a few pieces: who reads slowly slows the command down, and
//! nothing is dropped. When either side goes, the command is ended.

use std::sync::Arc;
use std::time::Duration;

use fluffy_api::node::dial::Channel;
use fluffy_api::node::join::{nodes, streaming};
use fluffy_api::node::{MAX_EXEC_FRAME, v1};
use fluffy_guest::host::{Connection, Exec, ExecError, ExecInput, ExecOutput, Piece};
use fluffy_guest::message::ExecOpen;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tonic::Streaming;
use v1::exec_exit::Of;
use v1::exec_from_node::Frame;
use v1::exec_to_node::Frame as Input;

use crate::metrics::Metrics;

/// How long a command may take to start.
const START: Duration = Duration::from_secs(30);

/// The longest that any session lasts, whatever was asked.
const LONGEST: u32 = 24 * 3600;

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
    let end = match timeout(START, connection.exec(order(open))).await {
        Err(_) => not_started("it did not start in time"),
        Ok(Err(ExecError::Gone)) => not_started("the instance is gone"),
        Ok(Err(error)) => not_started(&error.to_string()),
        Ok(Ok(exec)) => {
            let started = v1::ExecStarted { pid: exec.pid };
            if tells && say(&output, Frame::Started(started)).await.is_err() {
                return "client_disconnect";
            }
            match timeout(limit, relay(exec, &output, &mut input)).await {
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
    if say(&output, Frame::Exit(exit)).await.is_ok() {
        // The server ends the stream; who hung up first would lose the rest.
        while let Ok(Some(_)) = input.message().await {}
    }
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
    while let Ok(Some(message)) = input.message().await {
        let size = |size: u32| u16::try_from(size).unwrap_or(u16::MAX).max(1);
        let done = match message.frame {
            Some(Input::Stdin(bytes)) => to.write(bytes).await,
            Some(Input::StdinEnd(_)) => to.close().await,
            Some(Input::Resize(terminal)) => {
                to.resize(size(terminal.cols), size(terminal.rows)).await
            }
            Some(Input::Signal(signal)) => to.signal(&signal).await,
            None => Ok(()),
        };
        if done.is_err() {
            // The command is gone; its end is on its way.
            std::future::pending::<()>().await;
        }
    }
}

async fn say(output: &mpsc::Sender<v1::ExecFromNode>, frame: Frame) -> Result<(), ()> {
    let message = v1::ExecFromNode { frame: Some(frame) };
    output.send(message).await.map_err(drop)
}
