//! Unified diffs as tools submit them: read strictly, applied exactly.
//!
//! Pure. A hunk must match at the very line it names; nothing is searched for,
//! fuzzed or left out, for a patch that lands elsewhere is a wrong change that
//! looks right. Writing the result into a layer is in [`crate::submit`].

use std::collections::BTreeSet;

use crate::path::{TreePath, TreePathError};

/// The most bytes of one submitted patch.
pub(crate) const MAX_BYTES: usize = 16 << 20;

/// A patch of one or more files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Patch {
    files: Vec<FilePatch>,
}

/// What a patch does to one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilePatch {
    /// Where.
    pub path: TreePath,
    /// What becomes of the file.
    pub effect: PatchEffect,
    /// Whether it can be executed afterwards, if the patch says so.
    pub executable: Option<bool>,
    hunks: Vec<Hunk>,
}

/// What becomes of a patched file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchEffect {
    /// It is new.
    Create,
    /// It changes.
    Edit,
    /// It goes.
    Delete,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Hunk {
    old_start: usize,
    old_lines: usize,
    new_lines: usize,
    lines: Vec<(Sign, String)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sign {
    Keep,
    Remove,
    Add,
}

/// Why a text is not a patch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParsePatchError {
    /// It is larger than any patch that is taken.
    #[error("the patch has {bytes} bytes, more than {MAX_BYTES}")]
    TooLarge {
        /// How large.
        bytes: usize,
    },
    /// There is no file in it.
    #[error("the text holds no `---` and `+++` lines of a unified diff")]
    Empty,
    /// A line is not what it should be at its place.
    #[error("line {line}: {expected} was expected")]
    Unexpected {
        /// Counted from one.
        line: usize,
        /// What should be there.
        expected: &'static str,
    },
    /// A form of patch that is not taken.
    #[error("line {line}: {what} cannot be submitted as a patch")]
    Unsupported {
        /// Counted from one.
        line: usize,
        /// What it is.
        what: &'static str,
    },
    /// A path that is none.
    #[error("line {line}: the path cannot be used")]
    Path {
        /// Counted from one.
        line: usize,
        /// Why.
        #[source]
        source: TreePathError,
    },
    /// The same file twice.
    #[error("`{path}` is in the patch twice")]
    Twice {
        /// The file.
        path: TreePath,
    },
}

/// Why a hunk does not fit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("hunk {hunk} of `{path}` does not match at line {line}{}", elsewhere.map(|line| format!("; it would match at line {line}")).unwrap_or_default())]
pub struct HunkMismatch {
    /// The file.
    pub path: TreePath,
    /// Which hunk, counted from one.
    pub hunk: usize,
    /// The first line of the file that differs, counted from one.
    pub line: usize,
    /// The one other line at which the hunk would match, if there is just one.
    pub elsewhere: Option<usize>,
}

impl Patch {
    /// Reads a unified diff, with or without what git writes around it.
    ///
    /// # Errors
    /// It is no unified diff, or holds renames, copies or binary content.
    pub fn parse(text: &str) -> Result<Self, ParsePatchError> {
        if text.len() > MAX_BYTES {
            let bytes = text.len();
            return Err(ParsePatchError::TooLarge { bytes });
        }
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        let mut reader = Reader {
            lines: &lines,
            at: 0,
        };
        let mut files: Vec<FilePatch> = Vec::new();
        let mut paths = BTreeSet::new();
        while let Some(file) = reader.file()? {
            if !paths.insert(file.path.clone()) {
                return Err(ParsePatchError::Twice { path: file.path });
            }
            files.push(file);
        }
        if files.is_empty() {
            return Err(ParsePatchError::Empty);
        }
        Ok(Self { files })
    }

    /// The files in it, in order.
    #[must_use]
    pub fn files(&self) -> &[FilePatch] {
        &self.files
    }
}

impl FilePatch {
    /// The text after the patch.
    ///
    /// # Errors
    /// A hunk does not match exactly.
    pub fn apply(&self, before: &str) -> Result<String, HunkMismatch> {
        let old: Vec<&str> = before.split_inclusive('\n').collect();
        let mut out = String::with_capacity(before.len());
        let mut place = 0;
        for (index, hunk) in self.hunks.iter().enumerate() {
            let start = hunk.first_line();
            let mismatch = |line: usize| HunkMismatch {
                path: self.path.clone(),
                hunk: index.saturating_add(1),
                line: line.saturating_add(1),
                elsewhere: hunk.only_match(&old),
            };
            let Some(between) = old.get(place..start) else {
                return Err(mismatch(start));
            };
            out.extend(between.iter().copied());
            place = start;
            for (sign, text) in &hunk.lines {
                if *sign != Sign::Add {
                    if old.get(place) != Some(&text.as_str()) {
                        return Err(mismatch(place));
                    }
                    place = place.saturating_add(1);
                }
                if *sign != Sign::Remove {
                    out.push_str(text);
                }
            }
        }
        out.extend(old.get(place..).unwrap_or_default().iter().copied());
        // Only the last line of a text can lack its end.
        let torn = out
            .split_inclusive('\n')
            .rev()
            .skip(1)
            .any(|line| !line.ends_with('\n'));
        if torn {
            let hunk = self.hunks.len();
            return Err(HunkMismatch {
                path: self.path.clone(),
                hunk,
                line: place,
                elsewhere: None,
            });
        }
        Ok(out)
    }
}

impl Hunk {
    /// The index of the first line it speaks of.
    fn first_line(&self) -> usize {
        // A hunk that removes and keeps nothing names the line before it.
        if self.old_lines == 0 {
            self.old_start
        } else {
            self.old_start.saturating_sub(1)
        }
    }

    /// The one place where it would match, counted from one.
    fn only_match(&self, old: &[&str]) -> Option<usize> {
        let wanted: Vec<&str> = self
            .lines
            .iter()
            .filter(|(sign, _)| *sign != Sign::Add)
            .map(|(_, text)| text.as_str())
            .collect();
        if wanted.is_empty() || wanted.len() > old.len() {
            return None;
        }
        let mut found = None;
        // Bounded: comparing stops at the first line that differs.
        for (at, window) in old.windows(wanted.len()).enumerate().take(100_000) {
            if window == wanted.as_slice() {
                if found.is_some() {
                    return None;
                }
                found = Some(at.saturating_add(1));
            }
        }
        found
    }
}

struct Reader<'a> {
    lines: &'a [&'a str],
    at: usize,
}

/// What git says about a file before its hunks.
#[derive(Default)]
struct Header {
    created: bool,
    deleted: bool,
    executable: Option<bool>,
    named: Option<(String, usize)>,
}

impl Reader<'_> {
    /// The next file of the patch, or nothing at its end.
    fn file(&mut self) -> Result<Option<FilePatch>, ParsePatchError> {
        let mut header = Header::default();
        while let Some(line) = self.peek() {
            if line.starts_with("--- ") {
                return self.file_with_hunks(&header).map(Some);
            }
            if line.starts_with("@@ ") {
                return Err(self.unexpected("`---` and `+++`, before a hunk,"));
            }
            if line.starts_with("diff --git ") && header.named.is_some() {
                break;
            }
            self.header_line(&mut header)?;
        }
        self.file_without_hunks(header)
    }

    fn header_line(&mut self, header: &mut Header) -> Result<(), ParsePatchError> {
        let line = self.peek().unwrap_or_default().trim_end();
        let number = self.at.saturating_add(1);
        let unsupported = |what| ParsePatchError::Unsupported { line: number, what };
        let mode = |text: &str| match text {
            "100644" => Ok(Some(false)),
            "100755" => Ok(Some(true)),
            "120000" => Err(unsupported("a symbolic link")),
            _ => Err(unsupported("this mode")),
        };
        if let Some(names) = line.strip_prefix("diff --git ") {
            header.named = Some((names.to_owned(), number));
        } else if let Some(text) = line.strip_prefix("new file mode ") {
            (header.created, header.executable) = (true, mode(text)?);
        } else if let Some(text) = line.strip_prefix("deleted file mode ") {
            (header.deleted, _) = (true, mode(text)?);
        } else if let Some(text) = line.strip_prefix("new mode ") {
            header.executable = mode(text)?;
        } else if line.starts_with("rename ") || line.starts_with("copy ") {
            return Err(unsupported("a rename or copy"));
        } else if line.starts_with("GIT binary patch") || line.starts_with("Binary files ") {
            return Err(unsupported("binary content"));
        }
        self.at = self.at.saturating_add(1);
        Ok(())
    }

    /// A file of which only the mode changes, or that is created or deleted empty.
    fn file_without_hunks(&self, header: Header) -> Result<Option<FilePatch>, ParsePatchError> {
        let Some((names, line)) = header.named else {
            return Ok(None);
        };
        if !header.created && !header.deleted && header.executable.is_none() {
            return Err(ParsePatchError::Unexpected {
                line,
                expected: "a file with hunks or another mode",
            });
        }
        let raw = name_of_both(&names).ok_or(ParsePatchError::Unexpected {
            line,
            expected: "the same name twice, after `a/` and `b/`,",
        })?;
        let path = TreePath::parse(&raw);
        Ok(Some(FilePatch {
            path: path.map_err(|source| ParsePatchError::Path { line, source })?,
            effect: effect(header.created, header.deleted),
            executable: header.executable,
            hunks: Vec::new(),
        }))
    }

    fn file_with_hunks(&mut self, header: &Header) -> Result<FilePatch, ParsePatchError> {
        let line = self.at.saturating_add(1);
        let old = self.name("--- ")?;
        let new = self.name("+++ ")?;
        let (created, deleted) = (old.is_none(), new.is_none());
        let raw = match (old, new) {
            (None, None) => return Err(self.unexpected("a name other than /dev/null")),
            (None, Some(new)) => strip(&new, b"b/"),
            (Some(old), None) => strip(&old, b"a/"),
            (Some(old), Some(new)) => {
                let (short_old, short_new) = (strip(&old, b"a/"), strip(&new, b"b/"));
                if short_old == short_new {
                    short_new
                } else if old == new {
                    new
                } else {
                    let what = "a rename";
                    return Err(ParsePatchError::Unsupported { line, what });
                }
            }
        };
        let path = TreePath::parse(&raw);
        let path = path.map_err(|source| ParsePatchError::Path { line, source })?;
        let mut hunks = Vec::new();
        while self.peek().is_some_and(|line| line.starts_with("@@ ")) {
            hunks.push(self.hunk()?);
        }
        if hunks.is_empty() {
            return Err(self.unexpected("a hunk, `@@ -1,2 +1,3 @@`,"));
        }
        Ok(FilePatch {
            path,
            effect: effect(created || header.created, deleted || header.deleted),
            executable: header.executable,
            hunks,
        })
    }

    /// The name on a `---` or `+++` line; nothing for /dev/null.
    fn name(&mut self, start: &str) -> Result<Option<Vec<u8>>, ParsePatchError> {
        let expected = "`--- NAME` and `+++ NAME`";
        let line = self.peek().unwrap_or_default();
        let text = line
            .strip_prefix(start)
            .ok_or_else(|| self.unexpected(expected))?;
        let text = text.trim_end_matches(['\n', '\r']);
        let name = if text.starts_with('"') {
            unquote(text).ok_or_else(|| self.unexpected("a whole quoted name"))?
        } else {
            // Some tools write a time after a tab.
            text.split('\t')
                .next()
                .unwrap_or_default()
                .as_bytes()
                .to_vec()
        };
        self.at = self.at.saturating_add(1);
        Ok((name != b"/dev/null").then_some(name))
    }

    fn hunk(&mut self) -> Result<Hunk, ParsePatchError> {
        let line = self.peek().unwrap_or_default();
        let header = parse_hunk_header(line);
        let mut hunk = header.ok_or_else(|| self.unexpected("`@@ -1,2 +1,3 @@`"))?;
        self.at = self.at.saturating_add(1);
        let (mut old, mut new) = (hunk.old_lines, hunk.new_lines);
        while old > 0 || new > 0 {
            let Some(line) = self.peek() else {
                return Err(self.unexpected("more lines of the hunk"));
            };
            let (sign, text) = match line.split_at_checked(1) {
                Some((" ", text)) => (Sign::Keep, text),
                Some(("-", text)) => (Sign::Remove, text),
                Some(("+", text)) => (Sign::Add, text),
                // Mail and editors strip the one blank of an empty line.
                Some(("\n", _)) => (Sign::Keep, "\n"),
                _ => return Err(self.unexpected("a line of the hunk")),
            };
            let counts = [
                (sign != Sign::Add, &mut old),
                (sign != Sign::Remove, &mut new),
            ];
            for (counted, left) in counts {
                if counted {
                    *left = left.checked_sub(1).ok_or_else(|| {
                        self.unexpected("as many lines as the hunk's header says")
                    })?;
                }
            }
            let mut text = text.to_owned();
            self.at = self.at.saturating_add(1);
            if self.peek().is_some_and(|line| line.starts_with('\\')) {
                // "No newline at end of file" speaks of the line before.
                text.truncate(text.trim_end_matches('\n').len());
                self.at = self.at.saturating_add(1);
            } else if !text.ends_with('\n') {
                text.push('\n');
            }
            hunk.lines.push((sign, text));
        }
        Ok(hunk)
    }

    fn peek(&self) -> Option<&str> {
        self.lines.get(self.at).copied()
    }

    fn unexpected(&self, expected: &'static str) -> ParsePatchError {
        ParsePatchError::Unexpected {
            line: self.at.saturating_add(1),
            expected,
        }
    }
}

fn effect(created: bool, deleted: bool) -> PatchEffect {
    match (created, deleted) {
        (true, _) => PatchEffect::Create,
        (_, true) => PatchEffect::Delete,
        _ => PatchEffect::Edit,
    }
}

fn parse_hunk_header(line: &str) -> Option<Hunk> {
    let (ranges, _) = line.strip_prefix("@@ -")?.split_once(" @@")?;
    let (old, new) = ranges.split_once(" +")?;
    let range = |text: &str| -> Option<(usize, usize)> {
        let (start, count) = text.split_once(',').unwrap_or((text, "1"));
        let number = |text: &str| {
            let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            digits.then(|| text.parse().ok()).flatten()
        };
        Some((number(start)?, number(count)?))
    };
    let ((old_start, old_lines), (_, new_lines)) = (range(old)?, range(new)?);
    Some(Hunk {
        old_start,
        old_lines,
        new_lines,
        lines: Vec::new(),
    })
}

/// The name that `a/NAME b/NAME` gives twice.
fn name_of_both(names: &str) -> Option<Vec<u8>> {
    if names.starts_with('"') {
        let end = closing_quote(names)?;
        let name = unquote(names.get(..=end)?)?;
        return Some(strip(&name, b"a/"));
    }
    let middle = names.len().checked_sub(1)? / 2;
    let (old, new) = (names.get(..middle)?, names.get(middle.saturating_add(1)..)?);
    let (old, new) = (old.strip_prefix("a/")?, new.strip_prefix("b/")?);
    (old == new).then(|| old.as_bytes().to_vec())
}

fn strip(name: &[u8], prefix: &[u8]) -> Vec<u8> {
    name.strip_prefix(prefix).unwrap_or(name).to_vec()
}

fn closing_quote(text: &str) -> Option<usize> {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return Some(at),
            _ => {}
        }
    }
    None
}

/// A name in quotes, as git and C write it.
fn unquote(text: &str) -> Option<Vec<u8>> {
    let end = closing_quote(text)?;
    let mut rest = text.get(1..end)?.as_bytes();
    let mut out = Vec::new();
    while let Some((first, after)) = rest.split_first() {
        if *first != b'\\' {
            out.push(*first);
            rest = after;
            continue;
        }
        let (code, after) = after.split_first()?;
        rest = after;
        let plain = match code {
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'a' => 7,
            b'b' => 8,
            b'v' => 11,
            b'f' => 12,
            b'"' | b'\\' => *code,
            b'0'..=b'3' => {
                let (digits, after) = rest.split_first_chunk::<2>()?;
                rest = after;
                let mut value = code - b'0';
                for digit in digits {
                    let digit = digit.checked_sub(b'0').filter(|digit| *digit < 8)?;
                    value = value << 3 | digit;
                }
                value
            }
            _ => return None,
        };
        out.push(plain);
    }
    Some(out)
}

#[cfg(test)]
mod tests;
