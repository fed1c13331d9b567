//! What a person types while a session is followed.
//!
//! Nothing that goes wrong here ends the conversation, except that the screen
//! is gone: the person reads what it was and types something else.

use fluffy_kernel::api::{Reply, SessionOrder};
use fluffy_kernel::event::PersonAnswer;
use fluffy_report::Tone;

use super::super::slash::{self, COMMANDS, Line};
use super::{Conversation, Step, Work};
use crate::failure::Failure;

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
            Line::Order(order) => self.order(order).await?,
            Line::Budget => {
                if let Some(Reply::Status(status)) = self.ask_kernel(SessionOrder::Status).await? {
                    self.view.budgets(&status)?;
                }
            }
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
                self.work = Work::Going;
                Ok(())
            }
        }
    }

    async fn order(&mut self, order: SessionOrder) -> Result<(), Failure> {
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
        let changes_status = matches!(
            order,
            SessionOrder::Mode { .. } | SessionOrder::Model { .. }
        );
        let Some(reply) = self.ask_kernel(order).await? else {
            return Ok(());
        };
        self.view.reply(&reply)?;
        if changes_status
            && let Some(Reply::Status(status)) = self.ask_kernel(SessionOrder::Status).await?
        {
            self.view.update(&status)?;
        }
        Ok(())
    }

    /// Nothing, and a word about it, before there is a session.
    async fn ask_kernel(&mut self, order: SessionOrder) -> Result<Option<Reply>, Failure> {
        let Some(session) = self.session else {
            let words = "there is no session yet; type what is to be done";
            self.view.say(Tone::Caution, words)?;
            return Ok(None);
        };
        Ok(Some(self.kernel.order(session, order).await?))
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
