//! Between the caller's streams and a command inside: bytes, signals, sizes.
//!
//! Nothing piles up: each direction holds one piece at a time and waits for
//! whoever is slower. Next: `command/streams.rs` for the caller's own streams.

use fluffy_contract::isolation::{Child, Exit, Output, SandboxError};
use fluffy_sandbox::client::{ChildHandle, ChildInput};
use rustix::process::Signal;
use tokio::sync::mpsc;

use crate::command::streams::{Event, Reader, Signals, Writer};
use crate::command::terminal;

/// Carries everything between the caller and the command until it ends.
pub(super) async fn pump(mut child: ChildHandle) -> Result<Exit, SandboxError> {
    let mut signals = Signals::listen();
    let writer = Writer::start();
    // Ends the reading thread when this function returns: the terminal may be
    // asked a question afterwards.
    let reader = child
        .take_input()
        .ok()
        .and_then(|input| Reader::start(feed(input)).ok());
    let mut held: Option<Output> = None;
    let mut phase = Phase::Printing;
    let exit = loop {
        tokio::select! {
            // A piece that was read is written before another is read.
            room = writer.pieces.reserve(), if held.is_some() => {
                if let (Ok(room), Some(piece)) = (room, held.take()) {
                    room.send(piece);
                }
            }
            step = next(&mut child, phase), if held.is_none() => match step? {
                Step::Printed(piece) => {
                    if writer.is_unheard(&piece) {
                        // As a pipe would have told it.
                        child.signal(Signal::PIPE.as_raw()).await?;
                    }
                    held = Some(piece);
                }
                Step::Silent => phase = Phase::Silent,
                Step::Ended(exit) => break exit,
            },
            event = signals.next() => match event {
                Event::Resized => child.resize(terminal::size()).await?,
                // It may have ended in the meantime.
                Event::Signal(number) => drop(child.signal(number).await),
            },
        }
    };
    drop(reader);
    writer.finish().await;
    Ok(exit)
}

/// What a command did next.
enum Step {
    Printed(Output),
    /// Both streams are closed; it may still run.
    Silent,
    Ended(Exit),
}

/// What a command can still do.
#[derive(Clone, Copy)]
enum Phase {
    Printing,
    /// Only end.
    Silent,
}

async fn next(child: &mut ChildHandle, phase: Phase) -> Result<Step, SandboxError> {
    match phase {
        Phase::Printing => {
            let output = child.output().await?;
            Ok(output.map_or(Step::Silent, Step::Printed))
        }
        Phase::Silent => child.wait().await.map(Step::Ended),
    }
}

/// Where what is typed goes: to the command, as long as it reads.
fn feed(mut input: ChildInput) -> mpsc::Sender<Vec<u8>> {
    let (pieces, mut queue) = mpsc::channel::<Vec<u8>>(1);
    tokio::spawn(async move {
        while let Some(piece) = queue.recv().await {
            // A command that reads no further needs no more.
            if input.write(&piece).await.is_err() {
                break;
            }
        }
    });
    pieces
}
