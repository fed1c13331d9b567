//! Asking a person, and what happens when nobody is there.
//!
//! A question is an event; any client of the session may answer it once. An
//! answer is never assumed: silence waits, absence is a refusal.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use fluffy_base::id::ApprovalId;
use tokio::sync::oneshot;

use crate::api::Presence;
use crate::event::{AgentEvent, PersonAnswer};
use crate::hub::Hub;

/// The person of one session.
#[derive(Debug)]
pub struct Person {
    hub: Arc<Hub>,
    desk: Mutex<Desk>,
}

#[derive(Debug)]
struct Desk {
    presence: Presence,
    open: BTreeMap<ApprovalId, oneshot::Sender<PersonAnswer>>,
}

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// In a line.
    pub text: String,
    /// Which rules ask, and why.
    pub reasons: Vec<String>,
    /// What it is about, where that can be shown.
    pub shown: Option<String>,
}

/// What came of asking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    /// Yes.
    Yes,
    /// No.
    No,
    /// Nobody is there to ask.
    Nobody,
}

impl Person {
    /// The person at the other end of this hub.
    #[must_use]
    pub fn new(presence: Presence, hub: Arc<Hub>) -> Self {
        let open = BTreeMap::new();
        Self {
            hub,
            desk: Mutex::new(Desk { presence, open }),
        }
    }

    /// Somebody else goes on with the session, or nobody.
    pub fn becomes(&self, presence: Presence) {
        self.desk().presence = presence;
    }

    /// Asks, and waits for the answer.
    pub async fn ask(&self, question: Question) -> Said {
        let approval = ApprovalId::generate();
        let (answer, answered) = oneshot::channel();
        {
            let mut desk = self.desk();
            if desk.presence == Presence::Absent {
                return Said::Nobody;
            }
            desk.open.insert(approval, answer);
        }
        self.hub.publish(AgentEvent::ApprovalWanted {
            approval,
            question: question.text,
            reasons: question.reasons,
            shown: question.shown,
        });
        match answered.await {
            Ok(PersonAnswer::Approve) => Said::Yes,
            Ok(PersonAnswer::Reject) => Said::No,
            Err(_) => Said::Nobody,
        }
    }

    /// Takes an answer; says whether the question was open.
    pub fn answer(&self, approval: ApprovalId, answer: PersonAnswer) -> bool {
        let waiting = self.desk().open.remove(&approval);
        let was_open = waiting.is_some_and(|waiting| waiting.send(answer).is_ok());
        if was_open {
            self.hub
                .publish(AgentEvent::ApprovalAnswered { approval, answer });
        }
        was_open
    }

    fn desk(&self) -> std::sync::MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question() -> Question {
        Question {
            text: "merge?".to_owned(),
            reasons: Vec::new(),
            shown: None,
        }
    }

    async fn asked(hub: &Hub) -> ApprovalId {
        match hub.listen(0).next().await {
            (_, AgentEvent::ApprovalWanted { approval, .. }) => approval,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn a_question_is_answered_once() {
        let hub = Arc::new(Hub::default());
        let person = Person::new(Presence::Present, Arc::clone(&hub));
        let (said, ()) = tokio::join!(person.ask(question()), async {
            let approval = asked(&hub).await;
            assert!(!person.answer(ApprovalId::generate(), PersonAnswer::Approve));
            assert!(person.answer(approval, PersonAnswer::Reject));
            assert!(!person.answer(approval, PersonAnswer::Approve));
        });
        assert_eq!(said, Said::No);
    }

    #[tokio::test]
    async fn nobody_is_no_yes() {
        let hub = Arc::new(Hub::default());
        let person = Person::new(Presence::Absent, hub);
        assert_eq!(person.ask(question()).await, Said::Nobody);
    }
}
