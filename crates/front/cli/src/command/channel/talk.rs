//! One conversation: what is said is a task or steers it, what happens is told.
//!
//! Has its own connection to the kernel of the project, as a terminal has. The
//! first words are the task; later ones go to the same session. A question is
//! answered here only by who may; everybody else is told where.

use std::time::Duration;

use fluffy_base::id::{ApprovalId, SessionId};
use fluffy_contract::channel::Outgoing;
use fluffy_kernel::api::Start;
use fluffy_kernel::event::{AgentEvent, PersonAnswer, SessionEnded};
use fluffy_report::Styling;
use serde_json::json;
use tokio::sync::mpsc;

use super::door::{Speaker, readable};
use crate::command::agent::connect::{Kernel, KernelPlace, Lost, kernel};
use crate::failure::Failure;

/// The longest message that is sent, in bytes.
const MAX_TEXT: usize = 4_000;

/// How long a message may wait to be taken; then it is not sent.
const PATIENCE: Duration = Duration::from_secs(30);

/// Something that may be read, and who said it.
#[derive(Debug)]
pub(super) struct Said {
    pub(super) speaker: Speaker,
    pub(super) text: String,
}

/// One conversation.
pub(super) struct Talk {
    place: KernelPlace,
    wanted: Start,
    conversation: String,
    out: mpsc::Sender<Outgoing>,
    session: Option<SessionId>,
    /// The question that waits for an answer.
    asked: Option<ApprovalId>,
    /// What the model says at the moment.
    words: String,
    is_working: bool,
}

impl Talk {
    /// A conversation in which nothing was said yet.
    pub(super) fn new(
        place: KernelPlace,
        wanted: Start,
        conversation: String,
        out: mpsc::Sender<Outgoing>,
    ) -> Self {
        Self {
            place,
            wanted,
            conversation,
            out,
            session: None,
            asked: None,
            words: String::new(),
            is_working: false,
        }
    }

    /// Goes on until the channel is closed.
    pub(super) async fn run(mut self, mut inbox: mpsc::Receiver<Said>) {
        let mut kernel = match kernel(self.place.clone()).await {
            Ok(kernel) => kernel,
            Err(failure) => return self.tell(&told(&failure)).await,
        };
        loop {
            let step = tokio::select! {
                event = kernel.next(), if self.session.is_some() => match event {
                    Ok(event) => {
                        self.hear(&event).await;
                        Ok(())
                    }
                    Err(Lost) => kernel.reconnect().await,
                },
                said = inbox.recv() => match said {
                    Some(said) => self.said(&mut kernel, said).await,
                    None => break,
                },
            };
            if let Err(failure) = step {
                self.tell(&told(&failure)).await;
            }
        }
        if let (Some(session), true) = (self.session, self.is_working) {
            // Nobody watches any more; the session can be resumed.
            let _ = kernel.stop(session).await;
        }
    }

    async fn said(&mut self, kernel: &mut Kernel, said: Said) -> Result<(), Failure> {
        let Said { speaker, text } = said;
        let Some(session) = self.session else {
            self.wanted.task = text;
            self.session = Some(kernel.start(&self.wanted).await?);
            self.is_working = true;
            return Ok(());
        };
        let answer = match text.trim().to_ascii_lowercase().as_str() {
            "yes" => Some(PersonAnswer::Approve),
            "no" => Some(PersonAnswer::Reject),
            _ => None,
        };
        match (self.asked, answer) {
            (Some(approval), Some(answer)) => {
                if speaker.may_answer(session) {
                    self.asked = None;
                    return kernel.answer(session, approval, answer).await;
                }
                self.tell(&elsewhere(session)).await;
                Ok(())
            }
            _ => {
                self.is_working = true;
                kernel.say(session, &text).await
            }
        }
    }

    async fn hear(&mut self, event: &AgentEvent) {
        match event {
            AgentEvent::TextDelta { text } => {
                let room = MAX_TEXT.saturating_sub(self.words.len());
                let end = text.floor_char_boundary(room.min(text.len()));
                self.words.push_str(text.get(..end).unwrap_or_default());
                return;
            }
            AgentEvent::TurnRestarted { .. } => self.words.clear(),
            AgentEvent::ReasoningDelta { .. } | AgentEvent::Usage(_) => return,
            _ => {}
        }
        let words = std::mem::take(&mut self.words);
        if !words.trim().is_empty() {
            self.tell(&words).await;
        }
        match event {
            AgentEvent::ApprovalWanted { approval, .. } => self.asked = Some(*approval),
            AgentEvent::ApprovalAnswered { .. } => self.asked = None,
            AgentEvent::SessionEnded(_) => {
                self.asked = None;
                self.is_working = false;
            }
            _ => {}
        }
        if let Some(text) = self.report(event) {
            self.tell(&text).await;
        }
    }

    /// What people are told of an event, if it is worth a message.
    fn report(&self, event: &AgentEvent) -> Option<String> {
        Some(match event {
            AgentEvent::SessionStarted(started) => format!("working on it: {}", started.session),
            AgentEvent::WorkflowChanged { to, .. } => format!("now {}", to.as_str()),
            AgentEvent::TestsRan { passed, failed, .. } => {
                format!("tests: {passed} passed, {} failed", failed.len())
            }
            AgentEvent::ApprovalWanted {
                question, reasons, ..
            } => {
                let place = self.session.map(elsewhere).unwrap_or_default();
                format!(
                    "{question}\n{}\nSay yes or no if you may. {place}",
                    reasons.join("\n")
                )
            }
            AgentEvent::ApprovalAnswered { answer, .. } => match answer {
                PersonAnswer::Approve => "the answer is yes".to_owned(),
                PersonAnswer::Reject => "the answer is no".to_owned(),
            },
            AgentEvent::Note { text } => text.clone(),
            AgentEvent::SessionEnded(ended) => end(ended),
            _ => return None,
        })
    }

    async fn tell(&self, text: &str) {
        let message = Outgoing {
            conversation: self.conversation.clone(),
            text: readable(text, MAX_TEXT),
        };
        // A channel that takes nothing must not hold up the session.
        let _ = self.out.send_timeout(message, PATIENCE).await;
    }
}

fn end(ended: &SessionEnded) -> String {
    let result = json!(ended.result);
    let result = result.as_str().unwrap_or("over");
    match &ended.evidence.commit {
        Some(commit) => format!("{result}: commit {commit}"),
        None => format!("{result}: {}", ended.why),
    }
}

fn elsewhere(session: SessionId) -> String {
    format!("At a terminal of the project: fluffy session resume {session}")
}

fn told(failure: &Failure) -> String {
    match failure {
        Failure::Report(report) => report.render(100, Styling::Plain).trim().to_owned(),
        Failure::Print(error) => error.to_string(),
    }
}
