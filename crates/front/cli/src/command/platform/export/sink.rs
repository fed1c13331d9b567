//! Where an export goes: standard output, or a file that can be gone on with.
//!
//! A file is cut back to the last entry that says where it is before anything
//! is added, so that half an answer is never followed by another one. Knows
//! which lines are in it, so that none is there twice.

use std::fs::{File, OpenOptions};
use std::io::{
    self, BufRead as _, BufReader, BufWriter, Read as _, Seek as _, SeekFrom, Write as _,
};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use fluffy_base::Timestamp;
use fluffy_report::{ExitCode, Report};
use fluffy_server::logs::Had;
use serde_json::Value;

use super::{Place, Subject};
use crate::command::platform::ask::Asker;
use crate::failure::{self, Failure};

/// The longest entry: a line of logs, escaped, and what is known of it.
const LONGEST: u64 = 1 << 20;

/// Where the entries go.
pub(super) struct Sink {
    file: Option<(PathBuf, BufWriter<File>)>,
    before: Option<Before>,
    had: Had,
    lines: u64,
    lost: u64,
}

/// What a file says that was there before.
#[derive(Debug, Clone)]
pub(super) struct Before {
    pub(super) place: Place,
    pub(super) until: Timestamp,
    pub(super) complete: bool,
}

/// What is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Written {
    Line,
    /// So many lines were lost.
    Gap(u64),
    Mark,
}

impl Sink {
    fn of(file: Option<(PathBuf, BufWriter<File>)>) -> Self {
        Self {
            file,
            before: None,
            had: Had::default(),
            lines: 0,
            lost: 0,
        }
    }

    pub(super) fn standard_output() -> Self {
        Self::of(None)
    }

    /// A file, new unless it is gone on with.
    pub(super) fn file(path: &Path, resumes: bool, subject: &Subject) -> Result<Self, Failure> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(0o600);
        match resumes {
            true => options.create(true).truncate(false),
            false => options.create_new(true),
        };
        let file = options.open(path).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                let what = format!("`{}` exists already", path.display());
                let report = Report::new(ExitCode::Conflict, what);
                report.fix("name another file, or go on with this one by `--resume`")
            }
            _ => failure::unwritable(path, &error),
        })?;
        let mut sink = Self::of(None);
        let unread = |error: io::Error| failure::unreadable(path, &error);
        let end = sink.read(&file, subject).map_err(|wrong| match wrong {
            Wrong::Read(error) => unread(error),
            Wrong::Other(why) => Report::new(
                ExitCode::Conflict,
                format!("`{}` cannot be gone on with", path.display()),
            )
            .why(why)
            .fix("name another file, and export anew"),
        })?;
        // Half an answer is asked for again.
        file.set_len(end).map_err(unread)?;
        let mut file = file;
        file.seek(SeekFrom::Start(end)).map_err(unread)?;
        sink.file = Some((path.to_owned(), BufWriter::new(file)));
        Ok(sink)
    }

    /// Learns what is in a file; gives the end of what counts.
    fn read(&mut self, file: &File, subject: &Subject) -> Result<u64, Wrong> {
        let mut reader = BufReader::new(file);
        let (mut at, mut end) = (0_u64, 0);
        let (mut waiting, mut entry) = (Vec::new(), Vec::new());
        loop {
            entry.clear();
            let read = (&mut reader).take(LONGEST).read_until(b'\n', &mut entry);
            at += u64::try_from(read.map_err(Wrong::Read)?).unwrap_or(u64::MAX);
            if !entry.ends_with(b"\n") {
                let whole = entry.len() as u64 >= LONGEST;
                return match whole {
                    true => Err(Wrong::Other("an entry of it is too long".to_owned())),
                    // The end, or the half of an entry.
                    false if end == 0 && at > 0 => {
                        let why = "nothing in it says where it is";
                        Err(Wrong::Other(why.to_owned()))
                    }
                    false => Ok(end),
                };
            }
            let value: Value = serde_json::from_slice(&entry)
                .map_err(|_| Wrong::Other("it is no export".to_owned()))?;
            let data = value.get("data").cloned().unwrap_or_default();
            match value.get("kind").and_then(Value::as_str) {
                Some("LogLine") => waiting.push((Written::Line, data)),
                Some("LogGap") => {
                    let dropped = data.get("dropped").and_then(Value::as_u64);
                    waiting.push((Written::Gap(dropped.unwrap_or(0)), data));
                }
                Some("LogCursor") => {
                    for (written, data) in waiting.drain(..) {
                        self.count(written);
                        if written == Written::Line {
                            self.is_new(&data);
                        }
                    }
                    self.before = Some(Before::read(&data, subject)?);
                    end = at;
                }
                _ => return Err(Wrong::Other("it is no export".to_owned())),
            }
        }
    }

    /// What was there before.
    pub(super) const fn before(&self) -> Option<&Before> {
        self.before.as_ref()
    }

    /// Whether a line is new; it no longer is.
    pub(super) fn is_new(&mut self, line: &Value) -> bool {
        let text = |name: &str| line.get(name).and_then(Value::as_str);
        let named = text("instance_id").zip(text("boot_id")).zip(text("stream"));
        match named.zip(line.get("seq").and_then(Value::as_u64)) {
            Some((((instance, boot), stream), seq)) => self.had.is_new(instance, boot, stream, seq),
            None => true,
        }
    }

    fn count(&mut self, written: Written) {
        match written {
            Written::Line => self.lines += 1,
            Written::Gap(dropped) => self.lost = self.lost.saturating_add(dropped),
            Written::Mark => {}
        }
    }

    /// Writes an entry. What is before a mark is with the system then.
    pub(super) fn write(
        &mut self,
        asker: &Asker<'_>,
        written: Written,
        entry: &Value,
    ) -> Result<(), Failure> {
        self.count(written);
        let Some((path, file)) = &mut self.file else {
            return Ok(asker.session.printer.json(entry)?);
        };
        let done = serde_json::to_writer(&mut *file, entry).map_err(io::Error::from);
        let done = done.and_then(|()| file.write_all(b"\n"));
        let done = done.and_then(|()| match written {
            Written::Mark => file.flush(),
            _ => Ok(()),
        });
        Ok(done.map_err(|error| failure::unwritable(path, &error))?)
    }

    /// Brings what was written to the disk.
    pub(super) fn finish(&mut self) -> Result<(), Failure> {
        let Some((path, file)) = &mut self.file else {
            return Ok(());
        };
        let done = file.flush().and_then(|()| file.get_ref().sync_all());
        Ok(done.map_err(|error| failure::unwritable(path, &error))?)
    }

    pub(super) const fn lines(&self) -> u64 {
        self.lines
    }

    pub(super) fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(|(path, _)| path.as_path())
    }

    /// How much there is, in words.
    pub(super) fn counted(&self) -> String {
        let lines = match self.lines {
            1 => "1 line".to_owned(),
            many => format!("{many} lines"),
        };
        match self.lost {
            0 => lines,
            lost => format!("{lines}, and {lost} were lost"),
        }
    }
}

impl Before {
    fn read(mark: &Value, subject: &Subject) -> Result<Self, Wrong> {
        let text = |name: &str| mark.get(name).and_then(Value::as_str);
        if mark.get("of") != Some(subject) {
            let why = "it is of another env, or of other lines";
            return Err(Wrong::Other(why.to_owned()));
        }
        let place = text("cursor").and_then(Place::parse);
        let until = text("until").and_then(|text| text.parse().ok());
        let (place, until) = place
            .zip(until)
            .ok_or_else(|| Wrong::Other("it does not say where it is".to_owned()))?;
        Ok(Self {
            place,
            until,
            complete: mark.get("complete") == Some(&Value::Bool(true)),
        })
    }
}

/// Why a file is not gone on with.
enum Wrong {
    Read(io::Error),
    Other(String),
}
