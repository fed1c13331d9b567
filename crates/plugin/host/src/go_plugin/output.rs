//! What a plugin prints: lines with their levels, bounded in size and rate.
//!
//! A plugin that floods is read on, so that it never blocks, and cut: what is
//! over its budget is counted and left out.

use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use crate::log::{Level, Log, MAX_LINE, Source};

/// What may be said at once.
const BURST: u64 = 256 << 10;

/// What may be said per second, for ever.
const RATE: u64 = 64 << 10;

/// Turns pieces of output into lines of the log.
#[derive(Debug)]
pub(super) struct Lines {
    log: Log,
    source: Source,
    line: Vec<u8>,
    budget: Budget,
}

impl Lines {
    pub(super) fn new(log: Log, source: Source) -> Self {
        Self {
            log,
            source,
            line: Vec::new(),
            budget: Budget::new(),
        }
    }

    /// Takes the next piece.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, ends) = match part.strip_suffix(b"\n") {
                Some(text) => (text, true),
                None => (part, false),
            };
            let room = MAX_LINE.saturating_sub(self.line.len());
            self.line.extend(text.iter().take(room));
            if ends {
                self.end_line();
            }
        }
    }

    /// Says what is left at the end.
    pub(super) fn finish(&mut self) {
        if !self.line.is_empty() {
            self.end_line();
        }
        self.confess();
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end();
        if text.is_empty() {
            return;
        }
        let size = u64::try_from(text.len()).unwrap_or(u64::MAX);
        if !self.budget.take(size, Instant::now()) {
            return;
        }
        self.confess();
        let (level, text) = levelled(text);
        self.log.write(level, self.source, &text);
    }

    fn confess(&mut self) {
        let left_out = std::mem::take(&mut self.budget.left_out);
        if left_out > 0 {
            let text = format!("it said too much; {left_out} bytes were left out");
            self.log.write(Level::Warn, Source::Host, &text);
        }
    }
}

/// A bucket that fills with time.
#[derive(Debug)]
struct Budget {
    left: u64,
    since: Instant,
    left_out: u64,
}

impl Budget {
    fn new() -> Self {
        Self {
            left: BURST,
            since: Instant::now(),
            left_out: 0,
        }
    }

    /// Whether so much may be said now; counted if not.
    fn take(&mut self, size: u64, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.since);
        if passed >= Duration::from_millis(100) {
            let millis = u64::try_from(passed.as_millis()).unwrap_or(u64::MAX);
            let more = millis.saturating_mul(RATE) / 1_000;
            self.left = self.left.saturating_add(more).min(BURST);
            self.since = now;
        }
        match self.left.checked_sub(size) {
            Some(left) => {
                self.left = left;
                true
            }
            None => {
                self.left_out = self.left_out.saturating_add(size);
                false
            }
        }
    }
}

/// The level that a line calls itself, and the rest of it.
///
/// Lines of hclog in JSON, as go-plugin writes them, and those that begin with
/// a level in brackets, as Go's own log does.
fn levelled(line: &str) -> (Level, String) {
    if let Some(found) = structured(line) {
        return found;
    }
    let bracketed = line.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    if let Some((level, text)) = bracketed.and_then(|(word, text)| Some((named(word)?, text))) {
        return (level, text.trim_start().to_owned());
    }
    (Level::Info, line.to_owned())
}

fn structured(line: &str) -> Option<(Level, String)> {
    if !line.starts_with('{') {
        return None;
    }
    let Value::Object(fields) = serde_json::from_str(line).ok()? else {
        return None;
    };
    let level = named(fields.get("@level")?.as_str()?)?;
    let mut text = fields.get("@message")?.as_str()?.to_owned();
    for (name, value) in &fields {
        if !name.starts_with('@') {
            text.push_str(&format!(" {name}={value}"));
        }
    }
    Some((level, text))
}

fn named(word: &str) -> Option<Level> {
    Some(match word.to_ascii_lowercase().as_str() {
        "trace" => Level::Trace,
        "debug" => Level::Debug,
        "info" => Level::Info,
        "warn" | "warning" => Level::Warn,
        "error" | "err" => Level::Error,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_keep_their_levels() {
        let cases = [
            (
                r#"{"@level":"warn","@message":"slow","@module":"m","took":3}"#,
                Level::Warn,
                "slow took=3",
            ),
            (r#"{"@level":"fatal","@message":"x"}"#, Level::Info, ""),
            ("[ERR] plugin: broken", Level::Error, "plugin: broken"),
            ("[note] hello", Level::Info, "[note] hello"),
            ("hello", Level::Info, "hello"),
        ];
        for (line, level, text) in cases {
            let text = if text.is_empty() { line } else { text };
            assert_eq!(levelled(line), (level, text.to_owned()), "{line}");
        }
    }

    #[test]
    fn a_flood_is_cut_and_counted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut lines = Lines::new(Log::open(&path).unwrap(), Source::Stderr);
        lines.feed(b"first\nsec");
        lines.feed(b"ond\n\n");
        for _ in 0..5_000 {
            lines.feed(&[b'x'; 1_000]);
            lines.feed(b"\n");
        }
        lines.feed(&vec![b'y'; 10 << 20]);
        lines.finish();
        let said = crate::log::read(&path).unwrap();
        let text = |at: usize| said[at].text.as_str();
        assert_eq!((text(0), text(1)), ("first", "second"));
        let all: usize = said.iter().map(|line| line.text.len()).sum();
        assert!(all < 1 << 20, "{all}");
        assert!(
            said.iter().any(
                |line| line.source == Source::Host && line.text.contains("bytes were left out")
            )
        );
    }
}
