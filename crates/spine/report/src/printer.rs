//! The only place that writes to standard output and standard error.
//!
//! Standard output is data, standard error is talk. A reader that goes away
//! (`| head`) is no failure: the command gets [`PrintError::Closed`], stops and
//! ends quietly. Talk that cannot be written is dropped, because there is
//! nobody left to tell.

use std::fmt;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use anstream::{AutoStream, ColorChoice};
use serde::Serialize;

use crate::exit::ExitCode;
use crate::footer::Footer;
use crate::json::sorted;
use crate::report::Report;
use crate::sanitize::{json_line, sanitize_for_terminal, sanitize_line};
use crate::style::{Styling, Tone};
use crate::table::Table;
use crate::text::Text;
use crate::tree::Tree;

/// The width where none can be found out.
const DEFAULT_WIDTH: usize = 80;

/// Narrower terminals get lines that are too long rather than unreadable.
const LEAST_WIDTH: usize = 40;

/// Wider text is hard to read, however wide the window.
const MAX_TEXT_WIDTH: usize = 100;

/// How much is said on standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Verbosity {
    /// Errors only.
    Quiet,
    /// Errors, warnings and notes.
    #[default]
    Normal,
    /// Also details.
    Verbose,
}

/// What results and errors look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// One JSON value per line.
    Json,
}

/// What the user wants about colour (`ui.color`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ColorWish {
    /// In a terminal, unless `NO_COLOR` or `TERM=dumb` says otherwise.
    #[default]
    Auto,
    /// Even in a pipe.
    Always,
    /// Nowhere.
    Never,
}

/// The choices a command line makes about output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PrinterOptions {
    /// How much is said on standard error.
    pub verbosity: Verbosity,
    /// What results and errors look like.
    pub format: Format,
    /// What the user wants about colour.
    pub color: ColorWish,
}

/// Why data could not be written to standard output.
#[derive(Debug, thiserror::Error)]
pub enum PrintError {
    /// The reader went away; end quietly.
    #[error("the reader of the output went away")]
    Closed,
    /// The value has no JSON form.
    #[error("the result has no JSON form")]
    Json(#[source] serde_json::Error),
    /// Anything else, such as a full disk.
    #[error("cannot write the output")]
    Write(#[source] io::Error),
}

impl PrintError {
    /// What the process should end with.
    #[must_use]
    pub const fn exit(&self) -> ExitCode {
        match self {
            Self::Closed => ExitCode::Success,
            Self::Json(_) => ExitCode::Internal,
            Self::Write(_) => ExitCode::Failure,
        }
    }
}

/// Writes data to standard output and talk to standard error.
#[derive(Debug)]
pub struct Printer {
    options: PrinterOptions,
    data: Channel,
    talk: Channel,
}

impl Printer {
    /// The printer of this process.
    #[must_use]
    pub fn new(options: PrinterOptions) -> Self {
        let wish = options.color;
        Self {
            options,
            data: Channel {
                sink: Sink::Stdout,
                styling: styling(wish, &io::stdout()),
                width: terminal_width(&io::stdout()),
            },
            talk: Channel {
                sink: Sink::Stderr,
                styling: styling(wish, &io::stderr()),
                width: terminal_width(&io::stderr()),
            },
        }
    }

    /// A printer into memory or any writer, as if into a pipe.
    #[must_use]
    pub fn with_writers(options: PrinterOptions, data: SharedWriter, talk: SharedWriter) -> Self {
        let styling = match options.color {
            ColorWish::Always => Styling::Ansi,
            ColorWish::Auto | ColorWish::Never => Styling::Plain,
        };
        let channel = |writer| Channel {
            sink: Sink::Writer(writer),
            styling,
            width: None,
        };
        Self {
            options,
            data: channel(data),
            talk: channel(talk),
        }
    }

    /// What results should look like.
    #[must_use]
    pub const fn format(&self) -> Format {
        self.options.format
    }

    /// How much is to be said.
    #[must_use]
    pub const fn verbosity(&self) -> Verbosity {
        self.options.verbosity
    }

    /// Whether data may hold colour.
    #[must_use]
    pub const fn styling(&self) -> Styling {
        self.data.styling
    }

    /// The width of the terminal that shows data; none in a pipe or a file.
    #[must_use]
    pub const fn width(&self) -> Option<usize> {
        self.data.width
    }

    /// Writes a result for people; a new line is added if it has none.
    ///
    /// What a terminal would obey is made visible; use [`Printer::table`] and
    /// [`Printer::tree`] for colour, [`Printer::raw`] for bytes as they are.
    ///
    /// # Errors
    /// The reader went away or the output cannot be written.
    pub fn data(&self, text: &str) -> Result<(), PrintError> {
        self.data.line(&sanitize_for_terminal(text))
    }

    /// Writes a table, shrunk to the terminal; in a pipe nothing is cut.
    ///
    /// # Errors
    /// As [`Printer::data`].
    pub fn table(&self, table: &Table) -> Result<(), PrintError> {
        let channel = &self.data;
        channel.line(&table.render(channel.width, channel.styling))
    }

    /// Writes a tree.
    ///
    /// # Errors
    /// As [`Printer::data`].
    pub fn tree(&self, tree: &Tree) -> Result<(), PrintError> {
        let channel = &self.data;
        channel.line(&tree.render(channel.text_width(), channel.styling))
    }

    /// Writes text in tones exactly as it is; no new line is added.
    ///
    /// # Errors
    /// As [`Printer::data`].
    pub fn text(&self, text: &Text) -> Result<(), PrintError> {
        self.data.write(text.render(self.data.styling).as_bytes())
    }

    /// The bottom line of the terminal; none where the cursor cannot move.
    #[must_use]
    pub fn footer(&self) -> Option<Footer<'_>> {
        let is_dumb = std::env::var_os("TERM").is_none_or(|name| name == "dumb");
        (self.data.width.is_some() && !is_dumb).then(|| Footer::new(self))
    }

    /// Empties the terminal for what is shown next; elsewhere an empty line.
    ///
    /// # Errors
    /// As [`Printer::data`].
    pub fn clear(&self) -> Result<(), PrintError> {
        match self.footer() {
            Some(_) => self.screen("\x1b[H\x1b[2J"),
            None => self.data(""),
        }
    }

    /// What moves the cursor, for [`Footer`] alone.
    pub(crate) fn screen(&self, frame: &str) -> Result<(), PrintError> {
        self.data.write(frame.as_bytes())
    }

    /// The width as it is now: windows change while we print.
    pub(crate) fn current_width(&self) -> usize {
        terminal_width(&io::stdout()).unwrap_or(DEFAULT_WIDTH)
    }

    /// Writes one JSON value on one line.
    ///
    /// # Errors
    /// As [`Printer::data`]; or the value has no JSON form.
    pub fn json(&self, value: &impl Serialize) -> Result<(), PrintError> {
        let value = sorted(serde_json::to_value(value).map_err(PrintError::Json)?);
        self.data.line(&json_line(&value))
    }

    /// Writes bytes: as they are in a pipe, made visible in a terminal.
    ///
    /// # Errors
    /// As [`Printer::data`].
    pub fn raw(&self, bytes: &[u8]) -> Result<(), PrintError> {
        if self.data.width.is_none() {
            return self.data.write(bytes);
        }
        let text = String::from_utf8_lossy(bytes);
        self.data.write(sanitize_for_terminal(&text).as_bytes())
    }

    /// Says one JSON value on one line of talk, however quiet we are: for
    /// commands whose standard output is somebody else's.
    pub fn json_talk(&self, value: &impl Serialize) {
        if let Ok(value) = serde_json::to_value(value) {
            self.say(&json_line(&sorted(value)));
        }
    }

    /// Asks a person something, however quiet we are; the answer follows on
    /// the same line.
    pub fn ask(&self, question: &str) {
        // There is nobody to tell that nobody can be told.
        let _ = self.talk.write(sanitize_for_terminal(question).as_bytes());
    }

    /// Says something useful to know.
    pub fn note(&self, text: &str) {
        if self.options.verbosity >= Verbosity::Normal {
            self.say(&sanitize_for_terminal(text));
        }
    }

    /// Says what only a curious person wants to know.
    pub fn detail(&self, text: &str) {
        if self.options.verbosity >= Verbosity::Verbose {
            self.say(&Tone::Dim.paint(&sanitize_line(text), self.talk.styling));
        }
    }

    /// Says that something is probably not meant so.
    pub fn warn(&self, text: &str) {
        if self.options.verbosity >= Verbosity::Normal {
            let head = Tone::Caution.paint("warning:", self.talk.styling);
            self.say(&format!("{head} {}", sanitize_for_terminal(text)));
        }
    }

    /// Says what went wrong, in the chosen format, however quiet we are.
    pub fn report(&self, report: &Report) {
        let text = match self.options.format {
            Format::Text => report.render(self.talk.text_width(), self.talk.styling),
            Format::Json => json_line(&report.to_json()),
        };
        self.say(&text);
    }

    /// Talk that nobody can hear any more is dropped.
    fn say(&self, text: &str) {
        let _ = self.talk.line(text);
    }
}

/// A writer that a test or an embedder keeps a hand on.
#[derive(Clone)]
pub struct SharedWriter(Arc<Mutex<dyn Write + Send>>);

impl SharedWriter {
    /// Shares any writer.
    #[must_use]
    pub fn new(writer: impl Write + Send + 'static) -> Self {
        Self(Arc::new(Mutex::new(writer)))
    }

    /// A buffer, and the writer that fills it.
    #[must_use]
    pub fn buffer() -> (Arc<Mutex<Vec<u8>>>, Self) {
        let buffer = Arc::new(Mutex::new(Vec::new()));
        let writer = Self(Arc::clone(&buffer) as Arc<Mutex<dyn Write + Send>>);
        (buffer, writer)
    }
}

impl fmt::Debug for SharedWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedWriter")
    }
}

#[derive(Debug)]
enum Sink {
    Stdout,
    Stderr,
    Writer(SharedWriter),
}

/// One of the two directions, and what its other end can show.
#[derive(Debug)]
struct Channel {
    sink: Sink,
    styling: Styling,
    width: Option<usize>,
}

impl Channel {
    fn text_width(&self) -> usize {
        self.width.unwrap_or(DEFAULT_WIDTH).min(MAX_TEXT_WIDTH)
    }

    fn line(&self, text: &str) -> Result<(), PrintError> {
        if text.ends_with('\n') {
            return self.write(text.as_bytes());
        }
        self.write(format!("{text}\n").as_bytes())
    }

    /// One write per call: lines of two threads never mix.
    fn write(&self, bytes: &[u8]) -> Result<(), PrintError> {
        let written = match &self.sink {
            Sink::Stdout => self.write_stream(io::stdout().lock(), bytes),
            Sink::Stderr => self.write_stream(io::stderr().lock(), bytes),
            Sink::Writer(SharedWriter(writer)) => {
                let mut writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
                writer.write_all(bytes).and_then(|()| writer.flush())
            }
        };
        written.map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => PrintError::Closed,
            _ => PrintError::Write(error),
        })
    }

    /// Old Windows consoles need their colours translated; nothing is stripped.
    fn write_stream<S: anstream::stream::RawStream + anstream::stream::AsLockedWrite>(
        &self,
        stream: S,
        bytes: &[u8],
    ) -> io::Result<()> {
        let mut stream = match self.styling {
            Styling::Ansi => AutoStream::new(stream, ColorChoice::Always),
            Styling::Plain => AutoStream::new(stream, ColorChoice::AlwaysAnsi),
        };
        stream.write_all(bytes)?;
        stream.flush()
    }
}

fn styling<S: anstream::stream::RawStream>(wish: ColorWish, stream: &S) -> Styling {
    match wish {
        ColorWish::Always => Styling::Ansi,
        ColorWish::Never => Styling::Plain,
        ColorWish::Auto => match AutoStream::choice(stream) {
            ColorChoice::Never => Styling::Plain,
            ColorChoice::Auto | ColorChoice::AlwaysAnsi | ColorChoice::Always => Styling::Ansi,
        },
    }
}

/// None if nobody looks: what goes into a pipe or a file is never cut.
fn terminal_width(stream: &impl io::IsTerminal) -> Option<usize> {
    let size = || terminal_size::terminal_size().map(|(width, _)| usize::from(width.0));
    stream
        .is_terminal()
        .then(|| size().unwrap_or(DEFAULT_WIDTH).max(LEAST_WIDTH))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Column;

    struct Gone(io::ErrorKind);

    impl Write for Gone {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Runs `act` on a printer and returns what came out on both sides.
    fn output(options: PrinterOptions, act: impl FnOnce(&Printer)) -> (String, String) {
        let (data, data_writer) = SharedWriter::buffer();
        let (talk, talk_writer) = SharedWriter::buffer();
        act(&Printer::with_writers(options, data_writer, talk_writer));
        let text = |buffer: &Mutex<Vec<u8>>| String::from_utf8(buffer.lock().unwrap().clone());
        (text(&data).unwrap(), text(&talk).unwrap())
    }

    fn speak(printer: &Printer) {
        printer.detail("detail");
        printer.note("note");
        printer.warn("warning");
        printer.report(&Report::new(ExitCode::Failure, "broken"));
        printer.data("result").unwrap();
    }

    #[test]
    fn data_and_talk_go_their_own_ways_by_verbosity() {
        for (verbosity, talk) in [
            (Verbosity::Quiet, "error: broken\n"),
            (Verbosity::Normal, "note\nwarning: warning\nerror: broken\n"),
            (
                Verbosity::Verbose,
                "detail\nnote\nwarning: warning\nerror: broken\n",
            ),
        ] {
            let options = PrinterOptions {
                verbosity,
                ..PrinterOptions::default()
            };
            assert_eq!(output(options, speak), ("result\n".into(), talk.into()));
        }
    }

    #[test]
    fn a_json_error_is_one_line_of_talk() {
        let options = PrinterOptions {
            format: Format::Json,
            ..PrinterOptions::default()
        };
        let (data, talk) = output(options, |printer| {
            printer.report(&Report::new(ExitCode::Denied, "a\nb\u{9b}"));
            printer.json(&serde_json::json!({"x": "\u{7f}"})).unwrap();
        });
        assert_eq!(data, "{\"x\":\"\\u007f\"}\n");
        assert_eq!(
            talk,
            "{\"error\":{\"at\":[],\"code\":\"denied\",\"exit\":3,\"fix\":[],\
             \"what\":\"a\\nb\\u009b\",\"why\":[]}}\n"
        );
    }

    #[test]
    fn outside_text_is_made_visible_and_bytes_in_a_pipe_are_not_touched() {
        let (data, talk) = output(PrinterOptions::default(), |printer| {
            printer.data("\x1b]52;c;x\x07").unwrap();
            printer.note("\x1b[2J");
            printer.warn("\x1b[2J");
            printer.raw(b"\x1b[0m").unwrap();
        });
        assert_eq!(data, "\\x1b]52;c;x\\x07\n\x1b[0m");
        assert_eq!(talk, "\\x1b[2J\nwarning: \\x1b[2J\n");
    }

    #[test]
    fn colour_is_a_wish_and_tables_are_whole_in_a_pipe() {
        let long = "x".repeat(300);
        let mut table = Table::new([Column::new("A")]);
        table.row([long.as_str()]);
        let options = PrinterOptions {
            color: ColorWish::Always,
            ..PrinterOptions::default()
        };
        let (data, talk) = output(options, |printer| {
            printer.table(&table).unwrap();
            printer.tree(&Tree::new("root")).unwrap();
            printer.warn("w");
        });
        assert_eq!(data, format!("\x1b[1mA\x1b[0m\n{long}\nroot\n"));
        assert_eq!(talk, "\x1b[33mwarning:\x1b[0m w\n");
    }

    #[test]
    fn a_reader_that_went_away_is_no_failure() {
        let gone = |kind| {
            Printer::with_writers(
                PrinterOptions::default(),
                SharedWriter::new(Gone(kind)),
                SharedWriter::new(Gone(kind)),
            )
        };
        let closed = gone(io::ErrorKind::BrokenPipe);
        closed.note("nobody hears this");
        let error = closed.data("x").unwrap_err();
        assert!(matches!(error, PrintError::Closed));
        assert_eq!(error.exit(), ExitCode::Success);
        let full = gone(io::ErrorKind::StorageFull).data("x").unwrap_err();
        assert_eq!(full.exit(), ExitCode::Failure);
    }
}
