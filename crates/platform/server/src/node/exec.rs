//! The bytes of exec sessions, between a gateway and a node.
//!
//! Who may open one was decided before; this side only joins the two ends. The
//! node opens a stream of its own for each session, and each end holds a few
//! pieces at most: who reads slowly slows down who writes, and nothing else.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fluffy_api::node::{MAX_EXEC_FRAME, feature, refusal, v1};
use fluffy_base::id::{ExecSessionId, NodeId};
use futures_util::{Stream, StreamExt as _};
use tokio::sync::{mpsc, oneshot};
use tonic::{Code, Status};
use v1::exec_from_node::Frame;

use super::session::Sessions;
use super::stream::Inlet;

/// How many pieces wait at each end.
const WAITING: usize = 4;

/// How long a node has to open the stream: less than a request may take, so
/// that its caller hears why it was in vain.
const PATIENCE: Duration = Duration::from_secs(20);

/// The gateway's end of a session; dropping it ends the session.
#[derive(Debug)]
pub struct ExecLink {
    /// What goes to the command.
    pub to_node: mpsc::Sender<v1::ExecToNode>,
    /// What comes from it; the exit is the last.
    pub from_node: mpsc::Receiver<Frame>,
    /// Whether the node says when the command runs, before anything else.
    pub tells_started: bool,
}

/// Why a session was not opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExecError {
    /// The node is not connected here.
    #[error("node `{node}` is not connected")]
    Disconnected {
        /// The node.
        node: NodeId,
    },
    /// The node says no.
    #[error("node `{node}` refused: {code}")]
    Refused {
        /// The node.
        node: NodeId,
        /// Why.
        code: String,
    },
    /// The node is too old for it.
    #[error("node `{node}` can't do that yet")]
    Unsupported {
        /// The node.
        node: NodeId,
    },
    /// The node did not start it in time.
    #[error("node `{node}` did not start it in time")]
    TimedOut {
        /// The node.
        node: NodeId,
    },
}

/// Sessions that a node was told to open and has not opened yet, and those
/// that are carried here.
#[derive(Debug, Default)]
pub(super) struct Execs {
    waiting: Mutex<HashMap<String, Waiting>>,
    carried: Arc<Mutex<HashSet<ExecSessionId>>>,
}

/// A session that is carried here, until this is dropped.
#[derive(Debug)]
pub struct Carried {
    all: Arc<Mutex<HashSet<ExecSessionId>>>,
    id: ExecSessionId,
}

impl Drop for Carried {
    fn drop(&mut self) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(&self.id);
    }
}

#[derive(Debug)]
struct Waiting {
    node: NodeId,
    instance: String,
    tells_started: bool,
    answer: oneshot::Sender<Result<ExecLink, String>>,
}

impl Execs {
    /// Counts a session among those that are carried here.
    pub(super) fn carry(&self, id: ExecSessionId) -> Carried {
        let all = Arc::clone(&self.carried);
        all.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(id);
        Carried { all, id }
    }

    /// Whether a session is carried here.
    pub(super) fn is_carried(&self, id: ExecSessionId) -> bool {
        let all = self.carried.lock();
        all.unwrap_or_else(PoisonError::into_inner).contains(&id)
    }

    /// Has a node run a command, and joins its ends.
    pub(super) async fn open(
        &self,
        sessions: &Sessions,
        node: NodeId,
        mut open: v1::ExecOpen,
    ) -> Result<ExecLink, ExecError> {
        // One that does not know of it would run it as somebody else.
        if open.as_root && !sessions.can(node, feature::EXEC_ROOT) {
            return Err(match sessions.nodes().contains(&node) {
                true => ExecError::Unsupported { node },
                false => ExecError::Disconnected { node },
            });
        }
        open.tell_started = sessions.can(node, feature::EXEC_STARTED);
        let id = open.session_id.clone();
        let (answer, answered) = oneshot::channel();
        let waiting = Waiting {
            node,
            instance: open.instance_id.clone(),
            tells_started: open.tell_started,
            answer,
        };
        self.lock().insert(id.clone(), waiting);
        // However this ends, also by being dropped: it waits no more.
        let _forget = Forget(self, id);
        let told = v1::server_message::Message::ExecOpen(open);
        let opened = async {
            let told = sessions.tell(node, told).await;
            told.map_err(|_| ExecError::Disconnected { node })?;
            let answer = answered.await;
            let answer = answer.map_err(|_| ExecError::Disconnected { node })?;
            answer.map_err(|code| ExecError::Refused { node, code })
        };
        let opened = tokio::time::timeout(PATIENCE, opened).await;
        opened.unwrap_or(Err(ExecError::TimedOut { node }))
    }

    /// A node does not run the command.
    pub(super) fn refuse(&self, node: NodeId, refused: v1::ExecRefused) {
        if let Some(waiting) = self.take(node, &refused.session_id) {
            let code = refused.code.chars().take(64).collect();
            let _ = waiting.answer.send(Err(code));
        }
    }

    /// A node opened the stream of a session: joins it with the gateway. When
    /// that goes first, `hang_up` tells the node: input that a command does not
    /// read would keep the end of the stream from it for ever.
    pub(super) fn attach<H>(
        &self,
        node: NodeId,
        session: &str,
        mut from: impl Stream<Item = FromNode> + Send + Unpin + 'static,
        to: Inlet<v1::ExecToNode>,
        hang_up: impl FnOnce(v1::ExecOpen) -> H + Send + 'static,
    ) -> Result<(), Status>
    where
        H: Future<Output = ()> + Send,
    {
        let unknown = || {
            refusal(
                Code::NotFound,
                "not_found",
                "no such session waits for this node",
            )
        };
        let waiting = self.take(node, session).ok_or_else(unknown)?;
        let (to_node, mut input) = mpsc::channel(WAITING);
        let (output, from_node) = mpsc::channel(WAITING);
        let link = ExecLink {
            to_node,
            from_node,
            tells_started: waiting.tells_started,
        };
        // Nothing to run: the session is over.
        let over = v1::ExecOpen {
            session_id: session.to_owned(),
            instance_id: waiting.instance,
            ..v1::ExecOpen::default()
        };
        waiting.answer.send(Ok(link)).map_err(|_| unknown())?;
        tokio::spawn(async move {
            let inward = async {
                while let Some(message) = input.recv().await {
                    // A command reads when it likes.
                    if to.wait(message).await.is_err() {
                        return;
                    }
                }
                // The gateway may have closed its half and still be reading.
                to.closed().await;
            };
            // Whether the node said all that it had to.
            let outward = async {
                while let Some(frame) = next_frame(&mut from).await {
                    let last = matches!(frame, Frame::Exit(_));
                    if output.send(frame).await.is_err() {
                        return false;
                    }
                    if last {
                        break;
                    }
                }
                true
            };
            // Who stops reading ends it, even while nothing comes.
            let told = tokio::select! {
                () = inward => false,
                told = outward => told,
                () = output.closed() => false,
            };
            if !told {
                hang_up(over).await;
            }
        });
        Ok(())
    }

    fn take(&self, node: NodeId, session: &str) -> Option<Waiting> {
        let mut waiting = self.lock();
        if waiting.get(session)?.node != node {
            return None;
        }
        waiting.remove(session)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a node says, as it comes.
type FromNode = Result<v1::ExecFromNode, Status>;

/// The next piece of a node, as long as it keeps to the rules.
async fn next_frame(from: &mut (impl Stream<Item = FromNode> + Unpin)) -> Option<Frame> {
    let frame = from.next().await?.ok()?.frame?;
    let fits = match &frame {
        Frame::Attach(_) => false,
        Frame::Stdout(bytes) | Frame::Stderr(bytes) => bytes.len() <= MAX_EXEC_FRAME,
        Frame::Started(_) | Frame::Exit(_) => true,
    };
    fits.then_some(frame)
}

struct Forget<'a>(&'a Execs, String);

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.0.lock().remove(&self.1);
    }
}

#[cfg(test)]
mod tests {
    use super::super::stream::{Outbox, outbox};
    use super::*;

    const SESSION: &str = "exec_1";

    /// A session that a node has just opened the stream of.
    struct Attached {
        /// The gateway's end.
        link: ExecLink,
        /// What the node says.
        says: Inlet<v1::ExecFromNode>,
        /// What it hears …
        hears: Outbox<v1::ExecToNode>,
        /// … and beside the stream, when nobody is there any more.
        hung_up: oneshot::Receiver<v1::ExecOpen>,
    }

    fn attached() -> Attached {
        let (execs, node) = (Execs::default(), NodeId::generate());
        let (answer, mut answered) = oneshot::channel();
        let waiting = Waiting {
            node,
            instance: "inst_1".to_owned(),
            tells_started: false,
            answer,
        };
        execs.lock().insert(SESSION.to_owned(), waiting);
        let (says, from) = outbox();
        let (to, hears) = outbox();
        let (over, hung_up) = oneshot::channel();
        let hang_up = move |open: v1::ExecOpen| async move {
            let _ = over.send(open);
        };
        execs.attach(node, SESSION, from, to, hang_up).unwrap();
        Attached {
            link: answered.try_recv().unwrap().unwrap(),
            says,
            hears,
            hung_up,
        }
    }

    /// Time is the test's: an hour for the command, not for us.
    #[tokio::test(start_paused = true)]
    async fn what_a_command_does_not_read_waits_as_long_as_its_session_lasts() {
        let mut attached = attached();
        let typed = |number| v1::exec_to_node::Frame::Stdin(vec![number]);
        let input = attached.link.to_node.clone();
        let typing = tokio::spawn(async move {
            for number in 0..20 {
                let frame = Some(typed(number));
                input.send(v1::ExecToNode { frame }).await.unwrap();
            }
        });
        tokio::time::sleep(Duration::from_secs(3600)).await;
        let frame = Some(Frame::Stdout(b"still here".to_vec()));
        let said = v1::ExecFromNode { frame };
        attached.says.say(said.clone()).await.unwrap();
        assert_eq!(attached.link.from_node.recv().await, said.frame);
        for number in 0..20 {
            let heard = attached.hears.next().await.unwrap().unwrap();
            assert_eq!(heard.frame, Some(typed(number)));
        }
        typing.await.unwrap();
    }

    /// Two things say so at once, and either may be seen first.
    #[tokio::test(start_paused = true)]
    async fn a_node_that_still_speaks_hears_that_nobody_listens() {
        for _ in 0..32 {
            let attached = attached();
            let says = attached.says.clone();
            tokio::spawn(async move {
                let frame = || Some(Frame::Stdout(vec![b'x']));
                while says.wait(v1::ExecFromNode { frame: frame() }).await.is_ok() {}
            });
            // This time passes when nothing else can go on: all is full.
            tokio::time::sleep(Duration::from_millis(1)).await;
            drop(attached.link);
            let over = attached.hung_up.await.unwrap();
            assert_eq!((over.session_id.as_str(), over.command.len()), (SESSION, 0));
        }
    }
}
