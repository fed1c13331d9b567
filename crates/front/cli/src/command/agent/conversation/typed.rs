//! What a person types while a session is followed.
//!
//! Nothing that goes wrong here ends the conversation, except that the screen
//! is gone: the person reads what it was and types something else.

use fluffy_kernel::api::{Reply, SessionOrder};
use fluffy_kernel::event::PersonAnswer;
use fluffy_report::{Report, Tone};

use super::super::slash::{self, COMMANDS, Line};
use super::{Conversation, Step, Work};
use crate::failure::Failure;

/// What an order came to, and what for it was given.
#[derive(Debug)]
pub(super) struct Ordered {
    reply: Result<Reply, Report>,
    purpose: Purpose,
}

/// What a reply is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// To be shown.
    Show,
    /// To be shown, and the status line is another then.
    ShowAndUpdate,
    /// Only for the status line.
    Update,
    /// Only its budgets.
    Budgets,
}

impl Conversation<'_> {
    pub(super) async fn typed(&mut self, line: &str) -> Step {
        self.view.entered();
        self.interrupts = 0;
        let line = if self.questions.is_empty() {
            slash::parse(line)
        } else {
            slash::parse_answer(line)
        };
        if line == Line::Quit {
            return self.leave(self.exit).await;
        }
        match self.obey(line).await {
            Err(Failure::Report(report)) => self.view.report(&report)?,
            obeyed => obeyed?,
        }
        self.prompt()?;
        Ok(None)
    }

    async fn obey(&mut self, line: Line) -> Result<(), Failure> {
        match line {
            Line::Empty | Line::Quit => {}
            Line::Wrong(what) => self.view.say(Tone::Caution, &what)?,
            Line::Help => self.view.say(Tone::Plain, &help())?,
            Line::Plan => self.view.plan()?,
            Line::Say(_) if !self.questions.is_empty() => {
                let words = "answer the question first: yes, no, or /diff to look again";
                self.view.say(Tone::Caution, words)?;
            }
            Line::Say(text) => self.say(&text).await?,
            Line::Order(order) => self.order(order)?,
            Line::Budget => self.ask_kernel(SessionOrder::Status, Purpose::Budgets)?,
            Line::Approve => self.answer(PersonAnswer::Approve).await?,
            Line::Reject => self.answer(PersonAnswer::Reject).await?,
        }
        Ok(())
    }

    async fn say(&mut self, text: &str) -> Result<(), Failure> {
        match self.session {
            None => self.begin(text).await,
            Some(session) => {
                self.kernel.say(session, text).await?;
                self.unread = self.work == Work::Going;
                self.work = Work::Going;
                Ok(())
            }
        }
    }

    fn order(&mut self, order: SessionOrder) -> Result<(), Failure> {
        // Before there is a session these are wishes for it.
        match (&order, self.session, &mut self.wanted) {
            (SessionOrder::Mode { mode }, None, Some(wanted)) => {
                wanted.mode = *mode;
                let words = format!("the session will begin in mode {mode}");
                return Ok(self.view.say(Tone::Plain, &words)?);
            }
            (SessionOrder::Model { model }, None, Some(wanted)) => {
                wanted.models = vec![model.clone()];
                let words = format!("{model} will be asked");
                return Ok(self.view.say(Tone::Plain, &words)?);
            }
            _ => {}
        }
        let purpose = match order {
            SessionOrder::Mode { .. } | SessionOrder::Model { .. } | SessionOrder::Undo => {
                Purpose::ShowAndUpdate
            }
            SessionOrder::Status
            | SessionOrder::Diff
            | SessionOrder::Pin { .. }
            | SessionOrder::Compact => Purpose::Show,
        };
        self.ask_kernel(order, purpose)
    }

    /// Nothing, and a word about it, before there is a session.
    fn ask_kernel(&mut self, order: SessionOrder, purpose: Purpose) -> Result<(), Failure> {
        let Some(session) = self.session else {
            let words = "there is no session yet; type what is to be done";
            self.view.say(Tone::Caution, words)?;
            return Ok(());
        };
        let reply = self.kernel.order_later(session, order);
        self.orders.spawn(async move {
            Ordered {
                reply: reply.await,
                purpose,
            }
        });
        Ok(())
    }

    /// Shows what an order came to.
    pub(super) fn ordered(&mut self, ordered: Ordered) -> Step {
        match (ordered.reply, ordered.purpose) {
            (Err(report), _) => self.view.report(&report)?,
            (Ok(reply), Purpose::Show) => self.view.reply(&reply)?,
            (Ok(reply), Purpose::ShowAndUpdate) => {
                self.view.reply(&reply)?;
                self.ask_kernel(SessionOrder::Status, Purpose::Update)?;
            }
            (Ok(Reply::Status(status)), Purpose::Update) => self.view.update(&status)?,
            (Ok(Reply::Status(status)), Purpose::Budgets) => self.view.budgets(&status)?,
            (Ok(other), Purpose::Update | Purpose::Budgets) => self.view.reply(&other)?,
        }
        self.prompt()?;
        Ok(None)
    }

    /// Answers the oldest question.
    pub(super) async fn answer(&mut self, answer: PersonAnswer) -> Result<(), Failure> {
        let (Some(session), Some(approval)) = (self.session, self.questions.front().copied())
        else {
            self.view.say(Tone::Caution, "there is nothing to answer")?;
            return Ok(());
        };
        self.kernel.answer(session, approval, answer).await?;
        self.questions.pop_front();
        Ok(())
    }
}

fn help() -> String {
    let line = |(name, wants, does): &(&str, &str, &str)| {
        let both = format!("{name} {wants}");
        format!("  {both:<22} {does}")
    };
    let lines: Vec<String> = COMMANDS.iter().map(line).collect();
    format!(
        "{}\n  Ctrl-C                 stops the turn; twice leaves the session",
        lines.join("\n")
    )
}
