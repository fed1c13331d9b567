//! Keeps a plugin's program: reads what it prints, passes signals on, and
//! tidies up when it has ended.
//!
//! One task owns program and sandbox. When nobody holds the other end any more
//! both are ended, however that came about.

use fluffy_contract::isolation::{Child as _, Output};
use fluffy_sandbox::client::{ChildHandle, ChildInput};
use futures_util::FutureExt as _;
use tokio::sync::{mpsc, oneshot, watch};

use super::handshake::MAX_LINE;
use super::meeting::Meeting;
use super::output::Lines;
use crate::log::{Log, Source};
use crate::room::{Room, words};

/// How much of its last words is kept.
const LAST_WORDS: usize = 600;

/// How many pieces of output are read after its end: a process that it left
/// behind can go on for ever.
const LAST_PIECES: u32 = 64;

/// The other end of a keeper.
#[derive(Debug)]
pub(super) struct Kept {
    orders: mpsc::UnboundedSender<Order>,
    ended: watch::Receiver<Option<Ended>>,
}

/// What a keeper is told to do.
#[derive(Debug, Clone, Copy)]
pub(super) enum Order {
    /// Ends its standard input.
    CloseInput,
    /// Sends the program a signal.
    Signal(i32),
    /// Ends it and everything it started.
    End,
}

/// How a program ended.
#[derive(Debug, Clone)]
pub(super) struct Ended {
    /// In words of ours.
    pub(super) how: String,
    /// The last of what it printed to standard error.
    pub(super) said: String,
}

/// The first line of a program; nothing where it was longer than any may be.
pub(super) type FirstLine = oneshot::Receiver<Option<Vec<u8>>>;

impl Kept {
    /// Tells the keeper something; one that is gone needs no orders.
    pub(super) fn order(&self, order: Order) {
        let _ = self.orders.send(order);
    }

    /// Waits for the end, after which nothing of it is left.
    pub(super) async fn ended(&self) -> Ended {
        let mut ended = self.ended.clone();
        let known = ended.wait_for(Option::is_some).await;
        let known = known.ok().and_then(|ended| ended.clone());
        known.unwrap_or_else(|| Ended {
            how: "its host let it go".to_owned(),
            said: String::new(),
        })
    }
}

/// Keeps a program from now on.
pub(super) fn keep(
    room: Room,
    mut child: ChildHandle,
    meeting: Meeting,
    log: Log,
) -> (Kept, FirstLine) {
    let (orders, orders_in) = mpsc::unbounded_channel();
    let (ended_out, ended) = watch::channel(None);
    let (first_out, first) = oneshot::channel();
    tokio::spawn(async move {
        let mut said = Said::new(log, first_out);
        let how = attend(&mut child, orders_in, &mut said).await;
        // What it started goes with it, also when that still holds its pipes.
        drop(child);
        room.close().await;
        meeting.clear();
        let said = said.finish();
        ended_out.send_replace(Some(Ended { how, said }));
    });
    (Kept { orders, ended }, first)
}

/// Sees to a program until it has ended or shall end.
async fn attend(
    child: &mut ChildHandle,
    mut orders: mpsc::UnboundedReceiver<Order>,
    said: &mut Said,
) -> String {
    let mut input = child.take_input().ok();
    let mut still = Still::Printing;
    loop {
        // A plugin that floods does not keep an order waiting.
        tokio::select! {
            biased;
            order = orders.recv() => match order {
                Some(order) => if !obey(order, child, &mut input).await {
                    return "it was ended".to_owned();
                },
                None => return "its host let it go".to_owned(),
            },
            news = next(child, &mut still) => match news {
                News::Printed(output) => said.take(output),
                News::Ended(how) => return how,
            },
        }
    }
}

/// What a program may still do.
enum Still {
    Printing,
    /// It has ended, and what it started may print so many pieces more.
    Draining(u32),
    /// It is silent; only its end is to come.
    Running,
}

enum News {
    Printed(Output),
    Ended(String),
}

async fn next(child: &mut ChildHandle, still: &mut Still) -> News {
    if matches!(still, Still::Printing) && child.wait().now_or_never().is_some() {
        *still = Still::Draining(LAST_PIECES);
    }
    match still {
        Still::Printing => match child.output().await {
            Ok(Some(output)) => return News::Printed(output),
            Ok(None) | Err(_) => *still = Still::Running,
        },
        Still::Draining(left) => match left.checked_sub(1) {
            None => *still = Still::Running,
            Some(less) => {
                *left = less;
                if let Ok(Some(output)) = child.output().await {
                    return News::Printed(output);
                }
            }
        },
        Still::Running => {}
    }
    News::Ended(match child.wait().await {
        Ok(exit) => words(exit),
        Err(error) => error.to_string(),
    })
}

/// Whether the program goes on after it.
async fn obey(order: Order, child: &mut ChildHandle, input: &mut Option<ChildInput>) -> bool {
    match order {
        Order::CloseInput => drop(input.take()),
        Order::Signal(signal) => {
            // A program that is gone needs none.
            let _ = child.signal(signal).await;
        }
        Order::End => return false,
    }
    true
}

/// What a program prints: its first line apart from the rest.
struct Said {
    first: Option<oneshot::Sender<Option<Vec<u8>>>>,
    line: Vec<u8>,
    stdout: Lines,
    stderr: Lines,
    last: Vec<u8>,
}

impl Said {
    fn new(log: Log, first: oneshot::Sender<Option<Vec<u8>>>) -> Self {
        Self {
            first: Some(first),
            line: Vec::new(),
            stdout: Lines::new(log.clone(), Source::Stdout),
            stderr: Lines::new(log, Source::Stderr),
            last: Vec::new(),
        }
    }

    fn take(&mut self, output: Output) {
        match output {
            Output::Stdout(bytes) => self.printed(&bytes),
            Output::Stderr(bytes) => {
                self.stderr.feed(&bytes);
                self.last.extend(bytes);
                let over = self.last.len().saturating_sub(LAST_WORDS);
                self.last.drain(..over);
            }
        }
    }

    fn printed(&mut self, bytes: &[u8]) {
        if self.first.is_none() {
            return self.stdout.feed(bytes);
        }
        let mut parts = bytes.splitn(2, |byte| *byte == b'\n');
        self.line.extend(parts.next().unwrap_or_default());
        let rest = parts.next();
        let too_long = self.line.len() > MAX_LINE;
        if rest.is_none() && !too_long {
            return;
        }
        let line = std::mem::take(&mut self.line);
        if let Some(first) = self.first.take() {
            let _ = first.send((!too_long).then_some(line));
        }
        self.stdout.feed(rest.unwrap_or_default());
    }

    /// Its last words.
    fn finish(mut self) -> String {
        self.stdout.finish();
        self.stderr.finish();
        String::from_utf8_lossy(&self.last).trim().to_owned()
    }
}
