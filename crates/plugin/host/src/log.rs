//! What a plugin said: one file per plugin, a line for each, bounded.
//!
//! The text is the plugin's own and made harmless only where it is shown. When
//! the file is full it becomes the old one, and the one before that goes.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use fluffy_base::{Clock, SystemClock, Timestamp};
use fluffy_secret::Redactor;
use serde::{Deserialize, Serialize};

/// The longest line, in bytes.
pub const MAX_LINE: usize = 4 << 10;

/// How large the file becomes before it is the old one.
const MAX_FILE: u64 = 1 << 20;

/// How important a line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// For whoever looks closely.
    Trace,
    /// For whoever looks for a fault.
    Debug,
    /// For whoever wants to know.
    Info,
    /// Something is not as it should be.
    Warn,
    /// Something failed.
    Error,
}

/// Where a line comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// It asked its host to write it.
    Log,
    /// Its standard output.
    Stdout,
    /// Its standard error.
    Stderr,
    /// The host, about it.
    Host,
}

/// One line of the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// When it arrived.
    pub at: Timestamp,
    /// How important it calls itself.
    pub level: Level,
    /// Where it comes from.
    pub source: Source,
    /// What it says; the plugin's own text.
    pub text: String,
}

/// The log of one plugin; clones share it.
#[derive(Debug, Clone)]
pub struct Log {
    open: Arc<Mutex<Open>>,
    redactor: Option<Arc<Redactor>>,
}

#[derive(Debug)]
struct Open {
    path: PathBuf,
    file: File,
    size: u64,
}

impl Log {
    /// Opens the log in this file, or makes it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().append(true).create(true).open(path)?;
        let size = file.metadata()?.len();
        let path = path.to_owned();
        let open = Arc::new(Mutex::new(Open { path, file, size }));
        Ok(Self {
            open,
            redactor: None,
        })
    }

    /// The same log, from which these secrets are taken out first.
    #[must_use]
    pub(crate) fn without(&self, redactor: Option<Arc<Redactor>>) -> Self {
        Self {
            open: Arc::clone(&self.open),
            redactor,
        }
    }

    /// Adds a line, cut. A disk that is full loses lines and nothing else.
    pub fn write(&self, level: Level, source: Source, text: &str) {
        let redacted = self.redactor.as_ref().map(|one| one.redact(text).text);
        let text = redacted.as_deref().unwrap_or(text);
        let end = text.floor_char_boundary(MAX_LINE.min(text.len()));
        let line = Line {
            at: SystemClock.now(),
            level,
            source,
            text: text.get(..end).unwrap_or_default().to_owned(),
        };
        let Ok(mut bytes) = serde_json::to_vec(&line) else {
            return;
        };
        bytes.push(b'\n');
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = open.append(&bytes);
    }
}

impl Open {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.size >= MAX_FILE {
            std::fs::rename(&self.path, old(&self.path))?;
            let mut options = File::options();
            self.file = options.append(true).create(true).open(&self.path)?;
            self.size = 0;
        }
        self.file.write_all(bytes)?;
        let written = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        self.size = self.size.saturating_add(written);
        Ok(())
    }
}

/// The lines of a log, oldest first; what is no line is left out.
///
/// # Errors
/// It cannot be read. A log that is not there yet has no lines.
pub fn read(path: &Path) -> io::Result<Vec<Line>> {
    let mut lines = Vec::new();
    for file in [old(path), path.to_owned()] {
        let text = match std::fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        lines.extend(
            text.lines()
                .filter_map(|line| serde_json::from_str(line).ok()),
        );
    }
    Ok(lines)
}

fn old(path: &Path) -> PathBuf {
    path.with_extension("old")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_back_cut_and_in_order_and_the_file_stays_small() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        assert!(read(&path).unwrap().is_empty());
        let log = Log::open(&path).unwrap();
        log.write(Level::Warn, Source::Stderr, "first\nof two");
        log.write(Level::Info, Source::Log, &"é".repeat(MAX_LINE));
        let lines = read(&path).unwrap();
        assert_eq!(lines[0].text, "first\nof two");
        assert_eq!(lines[1].text.len(), MAX_LINE);
        assert_eq!(
            (lines[0].level, lines[0].source),
            (Level::Warn, Source::Stderr)
        );
        for number in 0..1_000 {
            let text = format!("{number} {}", "x".repeat(MAX_LINE));
            log.write(Level::Info, Source::Log, &text);
        }
        let size = |path: &Path| std::fs::metadata(path).unwrap().len();
        assert!(size(&path) + size(&old(&path)) < 3 * MAX_FILE);
        let lines = read(&path).unwrap();
        assert!(lines.last().unwrap().text.starts_with("999 "));
        assert!(lines.len() < 600, "{}", lines.len());
        // Another process goes on where the first one ended.
        drop(log);
        Log::open(&path)
            .unwrap()
            .write(Level::Info, Source::Host, "again");
        assert_eq!(read(&path).unwrap().last().unwrap().text, "again");
    }
}
