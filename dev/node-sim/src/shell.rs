//! A toy shell, so that exec sessions can be tried end to end.
//!
//! `echo`, `fail`, `cat`, `sleep`, `flood`, `size`, `env` and `exit`, as the
//! command itself, or line by line as `sh`. Nothing of the machine is touched.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fluffy_api::node::{MAX_EXEC_FRAME, v1};
use tokio::sync::mpsc;
use tonic::Streaming;
use v1::exec_from_node::Frame;
use v1::exec_to_node::Frame as Input;

use crate::node::Counts;

/// One command of an exec session.
#[derive(Debug)]
pub(crate) struct Shell {
    /// What goes to the server.
    output: mpsc::Sender<v1::ExecFromNode>,
    /// What comes from it.
    input: Streaming<v1::ExecToNode>,
    env: BTreeMap<String, String>,
    size: Option<(u32, u32)>,
    /// What was typed and not used yet.
    typed: Vec<u8>,
    counts: Arc<Counts>,
}

/// How a command ends before it is through.
enum End {
    /// By itself.
    Exit(i32),
    /// By a signal.
    Signal(String),
    /// Nobody is there any more.
    Gone,
}

impl Shell {
    /// Runs the command of a session and says how it ended.
    pub(crate) async fn run(
        open: v1::ExecOpen,
        output: mpsc::Sender<v1::ExecFromNode>,
        input: Streaming<v1::ExecToNode>,
        counts: Arc<Counts>,
    ) {
        let mut shell = Self {
            output,
            input,
            env: open.env,
            size: open.terminal.map(|terminal| (terminal.cols, terminal.rows)),
            typed: Vec::new(),
            counts,
        };
        let words: Vec<&str> = open.command.iter().map(String::as_str).collect();
        let limit = Duration::from_secs(u64::from(open.max_seconds).max(1));
        let ran = tokio::time::timeout(limit, shell.command(&words)).await;
        let (of, reason) = match ran {
            Err(_) => (v1::exec_exit::Of::Signal("KILL".to_owned()), "timeout"),
            Ok(Ok(())) => (v1::exec_exit::Of::ExitCode(0), "exited"),
            Ok(Err(End::Exit(code))) => (v1::exec_exit::Of::ExitCode(code), "exited"),
            Ok(Err(End::Signal(signal))) => (v1::exec_exit::Of::Signal(signal), "killed"),
            Ok(Err(End::Gone)) => return,
        };
        let exit = v1::ExecExit {
            of: Some(of),
            reason: reason.to_owned(),
        };
        let _ = shell.say(Frame::Exit(exit)).await;
        // The server ends the stream; who hung up first would lose the rest.
        while let Ok(Some(_)) = shell.input.message().await {}
    }

    async fn command(&mut self, words: &[&str]) -> Result<(), End> {
        match words {
            ["sh"] => self.lines().await,
            _ => self.word(words).await,
        }
    }

    /// Runs what is typed, a line each.
    async fn lines(&mut self) -> Result<(), End> {
        while let Some(line) = self.line().await? {
            let line = String::from_utf8_lossy(&line).into_owned();
            let words: Vec<&str> = line.split_whitespace().collect();
            self.word(&words).await?;
        }
        Ok(())
    }

    async fn word(&mut self, words: &[&str]) -> Result<(), End> {
        match words {
            [] => Ok(()),
            ["echo", rest @ ..] => self.print(&format!("{}\n", rest.join(" "))).await,
            ["fail", rest @ ..] => {
                let text = format!("{}\n", rest.join(" "));
                self.say(Frame::Stderr(text.into_bytes())).await
            }
            ["exit", code] => Err(End::Exit(code.parse().unwrap_or(2))),
            ["env"] => {
                let env = std::mem::take(&mut self.env);
                for (key, value) in &env {
                    self.print(&format!("{key}={value}\n")).await?;
                }
                self.env = env;
                Ok(())
            }
            ["size"] => {
                let size = self.size;
                let text = size.map_or("none".to_owned(), |(cols, rows)| format!("{cols}x{rows}"));
                self.print(&format!("{text}\n")).await
            }
            ["sleep", seconds] => self.sleep(seconds.parse().unwrap_or(0)).await,
            ["flood", bytes] => self.flood(bytes.parse().unwrap_or(0)).await,
            ["cat"] => self.cat().await,
            [unknown, ..] => {
                let text = format!("{unknown}: no such command\n");
                self.say(Frame::Stderr(text.into_bytes())).await?;
                Err(End::Exit(127))
            }
        }
    }

    async fn sleep(&mut self, seconds: u64) -> Result<(), End> {
        let end = tokio::time::Instant::now() + Duration::from_secs(seconds);
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(end) => return Ok(()),
                more = self.read() => if !more? {
                    // Input has ended, and sleeping needs none.
                    tokio::time::sleep_until(end).await;
                    return Ok(());
                }
            }
        }
    }

    async fn flood(&mut self, mut bytes: usize) -> Result<(), End> {
        while bytes > 0 {
            let piece = bytes.min(MAX_EXEC_FRAME);
            self.say(Frame::Stdout(vec![b'x'; piece])).await?;
            bytes -= piece;
        }
        Ok(())
    }

    async fn cat(&mut self) -> Result<(), End> {
        loop {
            let typed = std::mem::take(&mut self.typed);
            if !typed.is_empty() {
                self.say(Frame::Stdout(typed)).await?;
            }
            if !self.read().await? {
                return Ok(());
            }
        }
    }

    async fn line(&mut self) -> Result<Option<Vec<u8>>, End> {
        loop {
            if let Some(end) = self.typed.iter().position(|byte| *byte == b'\n') {
                let mut line: Vec<u8> = self.typed.drain(..=end).collect();
                line.pop();
                return Ok(Some(line));
            }
            if !self.read().await? {
                return Ok(None);
            }
        }
    }

    /// Takes one piece of input; whether there may be more.
    async fn read(&mut self) -> Result<bool, End> {
        let Ok(Some(message)) = self.input.message().await else {
            return Err(End::Gone);
        };
        match message.frame {
            Some(Input::Stdin(bytes)) => {
                let count = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
                self.counts.bytes.fetch_add(count, Ordering::Relaxed);
                self.typed.extend(bytes);
            }
            Some(Input::StdinEnd(_)) => return Ok(false),
            Some(Input::Resize(size)) => self.size = Some((size.cols, size.rows)),
            Some(Input::Signal(signal)) => return Err(End::Signal(signal)),
            None => {}
        }
        Ok(true)
    }

    async fn print(&mut self, text: &str) -> Result<(), End> {
        self.say(Frame::Stdout(text.as_bytes().to_vec())).await
    }

    async fn say(&mut self, frame: Frame) -> Result<(), End> {
        let frame = v1::ExecFromNode { frame: Some(frame) };
        self.output.send(frame).await.map_err(|_| End::Gone)
    }
}
