//! The control socket: one command as JSON per line, one answer per line.
//!
//! For tests in other processes; [`control`] is the client's side of it.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};

use crate::behaviour::Behaviour;
use crate::node::{Handle, Order};

/// What somebody asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "do", deny_unknown_fields)]
pub enum Command {
    /// How are you?
    Status {},
    /// Behave like this; what is not said is as by default.
    Behave {
        /// Like this.
        behaviour: Behaviour,
        /// Only this node, by its place.
        node: Option<usize>,
    },
    /// An instance crashes, wherever it is.
    Crash {
        /// Which.
        instance: String,
    },
    /// An instance prints a line, wherever it is.
    Print {
        /// Which.
        instance: String,
        /// What.
        text: String,
    },
    /// The connection is lost.
    Drop {
        /// Only this node, by its place.
        node: Option<usize>,
    },
    /// Everything is remembered as it is.
    Remember {},
    /// Everything is as remembered.
    Back {},
}

/// Serves the control socket of some nodes.
#[derive(Debug)]
pub struct Controller {
    listener: UnixListener,
    nodes: Vec<Handle>,
}

impl Controller {
    /// Listens at a path.
    ///
    /// # Errors
    /// It cannot listen there.
    pub fn new(path: &Path, nodes: Vec<Handle>) -> Result<Self> {
        let listener = UnixListener::bind(path);
        let listener = listener.with_context(|| format!("cannot listen at {}", path.display()))?;
        Ok(Self { listener, nodes })
    }

    /// Serves one connection after the other.
    pub async fn run(self) {
        while let Ok((stream, _)) = self.listener.accept().await {
            // Whoever leaves early hears no answer.
            let _ = self.serve(stream).await;
        }
    }

    async fn serve(&self, stream: UnixStream) -> Result<()> {
        let (read, mut write) = stream.into_split();
        let mut lines = BufReader::new(read).lines();
        while let Some(line) = lines.next_line().await? {
            let answer = match serde_json::from_str(&line) {
                Ok(command) => self.obey(command).await?,
                Err(error) => json!({ "error": error.to_string() }),
            };
            write.write_all(format!("{answer}\n").as_bytes()).await?;
        }
        Ok(())
    }

    async fn obey(&self, command: Command) -> Result<Value> {
        let only = match &command {
            Command::Behave { node, .. } | Command::Drop { node } => *node,
            _ => None,
        };
        let mut nodes = Vec::new();
        for (place, node) in self.nodes.iter().enumerate() {
            let order = match &command {
                _ if only.is_some_and(|only| only != place) => Order::Status,
                Command::Status {} => Order::Status,
                Command::Behave { behaviour, .. } => Order::Behave(behaviour.clone()),
                Command::Crash { instance } => Order::Crash(instance.clone()),
                Command::Print { instance, text } => Order::Print(instance.clone(), text.clone()),
                Command::Drop { .. } => Order::Drop,
                Command::Remember {} => Order::Remember,
                Command::Back {} => Order::Back,
            };
            nodes.push(node.order(order).await?);
        }
        Ok(json!({ "nodes": nodes }))
    }
}

/// Sends a command to a control socket and gives the answer.
///
/// # Errors
/// Nobody answers, or the command is not understood.
pub async fn control(path: &Path, command: &Command) -> Result<Value> {
    let stream = UnixStream::connect(path).await;
    let stream = stream.with_context(|| format!("nobody is at {}", path.display()))?;
    let (read, mut write) = stream.into_split();
    let line = serde_json::to_string(command)?;
    write.write_all(format!("{line}\n").as_bytes()).await?;
    let mut lines = BufReader::new(read).lines();
    let answer = lines.next_line().await?.context("no answer")?;
    let answer: Value = serde_json::from_str(&answer)?;
    match answer.get("error") {
        Some(error) => bail!("{error}"),
        None => Ok(answer),
    }
}
