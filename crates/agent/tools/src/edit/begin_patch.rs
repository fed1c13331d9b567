//! The form that starts with `*** Begin Patch`.
//!
//! Files are added, deleted, updated and moved; hunks are found by what they
//! say and by `@@ line` anchors, never by numbers.

use super::patch::{FileChange, FileChangeKind, Hunk, HunkLine, ParsePatchError, Sign};

/// The first line.
pub(crate) const BEGIN: &str = "*** Begin Patch";
const END: &str = "*** End Patch";
const ADD: &str = "*** Add File: ";
const DELETE: &str = "*** Delete File: ";
const UPDATE: &str = "*** Update File: ";
const MOVE: &str = "*** Move to: ";
const END_OF_FILE: &str = "*** End of File";

/// The changes of a patch whose first line was recognised.
pub(crate) fn parse(lines: &[&str]) -> Result<Vec<FileChange>, ParsePatchError> {
    let begin = lines.iter().position(|line| line.trim() == BEGIN);
    let mut reader = Reader {
        lines,
        at: begin.map_or(0, |at| at + 1),
    };
    let mut changes = Vec::new();
    loop {
        let Some(line) = reader.next() else {
            return Err(ParsePatchError::Unfinished);
        };
        let line = line.trim_end();
        if line.trim() == END {
            return Ok(changes);
        }
        let (path, kind) = if let Some(path) = line.strip_prefix(ADD) {
            (path, reader.added()?)
        } else if let Some(path) = line.strip_prefix(DELETE) {
            (path, FileChangeKind::Delete)
        } else if let Some(path) = line.strip_prefix(UPDATE) {
            (path, reader.updated()?)
        } else if line.trim().is_empty() {
            continue;
        } else {
            return Err(reader.unexpected(
                "expected `*** Add File: `, `*** Update File: `, `*** Delete File: ` or `*** End Patch`",
            ));
        };
        changes.push(FileChange {
            path: path.trim().to_owned(),
            kind,
        });
    }
}

struct Reader<'a> {
    lines: &'a [&'a str],
    at: usize,
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<&'a str> {
        self.lines.get(self.at).copied()
    }

    fn next(&mut self) -> Option<&'a str> {
        let line = self.peek()?;
        self.at += 1;
        Some(line)
    }

    /// The line that was just taken is wrong.
    fn unexpected(&self, expected: &'static str) -> ParsePatchError {
        ParsePatchError::Unexpected {
            line: self.at,
            expected,
        }
    }

    /// The lines of one file: until a line that starts the next thing.
    fn in_file(&self) -> bool {
        self.peek().is_some_and(|line| {
            line.trim() == END_OF_FILE || !(line.starts_with("*** ") || line.trim() == END)
        })
    }

    fn added(&mut self) -> Result<FileChangeKind, ParsePatchError> {
        let mut content = String::new();
        while self.in_file() {
            let line = self.next().unwrap_or_default();
            match line.strip_prefix('+') {
                Some(text) => {
                    content.push_str(text);
                    content.push('\n');
                }
                // Space between two files of the patch.
                None if line.trim().is_empty() && !self.in_file() => {}
                None => {
                    return Err(self.unexpected("every line of an added file starts with `+`"));
                }
            }
        }
        Ok(FileChangeKind::Create { content })
    }

    fn updated(&mut self) -> Result<FileChangeKind, ParsePatchError> {
        let moved = self.peek().and_then(|line| line.strip_prefix(MOVE));
        let move_to = moved.map(|path| path.trim().to_owned());
        if move_to.is_some() {
            self.at += 1;
        }
        let mut hunks = Vec::new();
        while self.in_file() {
            let hunk = self.hunk()?;
            if !hunk.lines.is_empty() {
                hunks.push(hunk);
            }
        }
        if hunks.is_empty() && move_to.is_none() {
            return Err(self.unexpected("an updated file needs lines that start with `+` or `-`"));
        }
        Ok(FileChangeKind::Update { move_to, hunks })
    }

    fn hunk(&mut self) -> Result<Hunk, ParsePatchError> {
        let mut hunk = Hunk::default();
        while let Some(anchor) = self.peek().and_then(|line| line.strip_prefix("@@")) {
            self.at += 1;
            let anchor = anchor.trim().trim_end_matches("@@").trim_end();
            if !anchor.is_empty() {
                hunk.anchors.push(anchor.to_owned());
            }
        }
        while self.in_file() && !self.peek().is_some_and(|line| line.starts_with("@@")) {
            let line = self.next().unwrap_or_default();
            if line.trim() == END_OF_FILE {
                hunk.at_end = true;
                break;
            }
            let read = HunkLine::read(line);
            hunk.lines.push(read.ok_or_else(|| {
                self.unexpected("every line of a hunk starts with a space, `+` or `-`")
            })?);
        }
        // Empty lines between hunks belong to neither.
        while hunk.lines.last().is_some_and(is_blank) && !hunk.at_end && !self.in_file() {
            hunk.lines.pop();
        }
        if !hunk.lines.is_empty() && hunk.lines.iter().all(|line| line.sign == Sign::Keep) {
            return Err(self.unexpected("a hunk needs lines that start with `+` or `-`"));
        }
        Ok(hunk)
    }
}

fn is_blank(line: &HunkLine) -> bool {
    line.sign == Sign::Keep && line.text.trim().is_empty()
}
