//! Where a session goes to: a terminal, a pipe, or JSON Lines.
//!
//! Puts the pure parts (`show`, `status`) and the printer together. In a
//! terminal that can move its cursor the status line stays at the bottom;
//! elsewhere there is none.

use fluffy_kernel::api::{Reply, Status};
use fluffy_kernel::event::{AgentEvent, VERSION};
use fluffy_report::{
    Footer, Format, PrintError, Printer, Report, Text, Tone, Verbosity, sanitize_line,
};
use serde::Serialize;

use super::show::words::{money, number, short_id, tokens};
use super::show::{Detail, Show, diff, level_word};
use super::status::StatusLine;

/// One line of `run --json`.
#[derive(Debug, Serialize)]
struct JsonLine<'a> {
    /// The version of the stream.
    v: u32,
    #[serde(flatten)]
    event: &'a AgentEvent,
}

/// The eyes of whoever follows a session.
#[derive(Debug)]
pub(crate) struct View<'a> {
    printer: &'a Printer,
    show: Show,
    status: StatusLine,
    footer: Option<Footer<'a>>,
    /// The model's plan, in a line.
    plan: Option<String>,
}

impl<'a> View<'a> {
    /// A view through this printer.
    pub(crate) fn new(printer: &'a Printer) -> Self {
        let is_text = printer.format() == Format::Text;
        let detail = match printer.verbosity() {
            Verbosity::Quiet => Detail::Result,
            Verbosity::Normal => Detail::Normal,
            Verbosity::Verbose => Detail::Everything,
        };
        let footer = printer.footer();
        Self {
            printer,
            show: Show::new(printer.width(), detail),
            status: StatusLine::default(),
            footer: footer.filter(|_| is_text && detail != Detail::Result),
            plan: None,
        }
    }

    /// Shows an event.
    pub(crate) fn event(&mut self, event: &AgentEvent) -> Result<(), PrintError> {
        if let AgentEvent::ToolStarted { tool, subject, .. } = event
            && tool == "plan.complete"
        {
            self.plan = Some(sanitize_line(subject).into_owned());
        }
        if self.printer.format() == Format::Json {
            return self.printer.json(&JsonLine { v: VERSION, event });
        }
        self.status.hear(event);
        if let Some(footer) = &self.footer {
            self.show.set_width(Some(footer.width()));
        }
        let text = self.show.event(event);
        self.write(&text)
    }

    /// Shows something of our own, on lines of its own.
    pub(crate) fn say(&mut self, tone: Tone, text: &str) -> Result<(), PrintError> {
        if self.printer.format() == Format::Json {
            self.printer.note(text);
            return Ok(());
        }
        let mut whole = self.show.end_prose();
        whole.add(tone, text).plain("\n");
        self.write(&whole)
    }

    /// Asks for a line: the cursor stays behind the words.
    pub(crate) fn ask(&mut self, words: &str) -> Result<(), PrintError> {
        let mut whole = self.show.end_prose();
        whole.add(Tone::Strong, words);
        self.write(&whole)
    }

    /// The person ended a line of their own.
    pub(crate) fn entered(&mut self) {
        if let Some(footer) = &mut self.footer {
            footer.entered();
        }
    }

    /// The connection is gone for now.
    pub(crate) fn lost(&mut self) -> Result<(), PrintError> {
        self.status.lost();
        match &self.footer {
            Some(_) => self.write(&Text::new()),
            None => self.say(Tone::Caution, "the kernel is gone; looking for it"),
        }
    }

    /// Takes over what the kernel says about the session.
    pub(crate) fn update(&mut self, status: &Status) -> Result<(), PrintError> {
        self.status.update(status);
        self.write(&Text::new())
    }

    /// Shows what an order came to.
    pub(crate) fn reply(&mut self, reply: &Reply) -> Result<(), PrintError> {
        match reply {
            Reply::Done { text } => self.say(Tone::Plain, text),
            Reply::Refused { text } => self.say(Tone::Caution, &format!("refused: {text}")),
            Reply::Text { text } if text.is_empty() => self.say(Tone::Plain, "nothing changed"),
            Reply::Text { text } => {
                let mut whole = self.show.end_prose();
                whole.append(diff(text));
                self.write(&whole)
            }
            Reply::Status(status) => {
                self.status.update(status);
                self.say(Tone::Plain, &status_lines(status))
            }
        }
    }

    /// Shows what went wrong without ending anything.
    pub(crate) fn report(&mut self, report: &Report) -> Result<(), PrintError> {
        self.close()?;
        self.printer.report(report);
        self.entered();
        self.write(&Text::new())
    }

    /// Shows what may still be used.
    pub(crate) fn budgets(&mut self, status: &Status) -> Result<(), PrintError> {
        self.say(Tone::Plain, &budget_lines(status))
    }

    /// Shows the plan.
    pub(crate) fn plan(&mut self) -> Result<(), PrintError> {
        let plan = self.plan.clone();
        let none = || "there is no plan yet; the model ends its planning with one".to_owned();
        self.say(Tone::Plain, &plan.unwrap_or_else(none))
    }

    /// Ends an open line and takes the status line away.
    pub(crate) fn close(&mut self) -> Result<(), PrintError> {
        let rest = self.show.end_prose();
        self.write(&rest)?;
        match &mut self.footer {
            Some(footer) => footer.close(),
            None => Ok(()),
        }
    }

    /// Text for people; a stream of JSON has no place for it.
    fn write(&mut self, text: &Text) -> Result<(), PrintError> {
        if self.printer.format() == Format::Json {
            return Ok(());
        }
        match &mut self.footer {
            Some(footer) => footer.write(text, &self.status.line(footer.width().saturating_sub(1))),
            None if text.is_empty() => Ok(()),
            None => self.printer.text(text),
        }
    }
}

fn status_lines(status: &Status) -> String {
    let session = status.session.to_string();
    let cost = status.spent.cost_micros.map(money);
    format!(
        "  session    {}\n  mode       {}\n  state      {}\n  model      {}\n  isolation  {} ({})\n  \
         used       {} tokens, {}",
        short_id(&session),
        status.mode,
        status.state,
        status.model,
        status.tier,
        level_word(status.isolation),
        number(tokens(&status.spent)),
        cost.as_deref().unwrap_or("price not known"),
    )
}

/// Seconds as hours, minutes and seconds.
fn clock(seconds: u64) -> String {
    let (hours, minutes) = (seconds / 3_600, seconds / 60 % 60);
    format!("{hours}:{minutes:02}:{:02}", seconds % 60)
}

fn budget_lines(status: &Status) -> String {
    if status.budgets.is_empty() {
        return "  no budget is set".to_owned();
    }
    let line = |(name, (used, allowed)): (&String, &(u64, u64))| {
        let left = allowed.saturating_sub(*used);
        let shown = |amount: u64| match name.as_str() {
            "cost_cents" => money(amount.saturating_mul(10_000)),
            "wall_time" => clock(amount),
            _ => number(amount),
        };
        format!(
            "  {name:<16} {} of {} used, {} left",
            shown(*used),
            shown(*allowed),
            shown(left),
        )
    };
    let lines: Vec<String> = status.budgets.iter().map(line).collect();
    lines.join("\n")
}
