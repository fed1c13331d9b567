//! Unified diffs, as `diff -u` and git write them and as models imitate them.
//!
//! Counts in the `@@` line end a hunk where they are right; where they are
//! wrong, what the lines look like does.

use super::patch::{FileChange, FileChangeKind, Hunk, HunkLine, ParsePatchError, Sign};

const NOWHERE: &str = "/dev/null";

/// The changes of a unified diff.
pub(crate) fn parse(lines: &[&str]) -> Result<Vec<FileChange>, ParsePatchError> {
    let mut reader = Reader { lines, at: 0 };
    let mut changes = Vec::new();
    while let Some(change) = reader.file()? {
        changes.push(change);
    }
    Ok(changes)
}

struct Reader<'a> {
    lines: &'a [&'a str],
    at: usize,
}

/// What stands before the hunks of a file.
#[derive(Default)]
struct Head {
    old: Option<String>,
    new: Option<String>,
    renamed_from: Option<String>,
    renamed_to: Option<String>,
}

impl<'a> Reader<'a> {
    fn line(&self, ahead: usize) -> Option<&'a str> {
        self.lines.get(self.at + ahead).copied()
    }

    fn unexpected(&self, expected: &'static str) -> ParsePatchError {
        ParsePatchError::Unexpected {
            line: self.at + 1,
            expected,
        }
    }

    fn file(&mut self) -> Result<Option<FileChange>, ParsePatchError> {
        let Some(head) = self.head()? else {
            return Ok(None);
        };
        let mut hunks = Vec::new();
        while self.line(0).is_some_and(|line| line.starts_with("@@")) {
            hunks.push(self.hunk()?);
        }
        let change = match (head.old, head.new, head.renamed_from, head.renamed_to) {
            (None, None, Some(path), Some(to)) => updated(path, Some(to), hunks),
            (Some(path), None, _, _) => FileChange {
                path,
                kind: FileChangeKind::Delete,
            },
            (None, Some(path), _, _) => FileChange {
                path,
                kind: FileChangeKind::Create {
                    content: added(&hunks),
                },
            },
            (Some(path), Some(to), _, _) => {
                let move_to = (path != to).then_some(to);
                if hunks.is_empty() && move_to.is_none() {
                    return Err(self.unexpected("expected a hunk that starts with `@@`"));
                }
                updated(path, move_to, hunks)
            }
            (None, None, _, _) => {
                return Err(self.unexpected("a file cannot come from and go to `/dev/null`"));
            }
        };
        Ok(Some(change))
    }

    /// Skips to the next file; nothing if there is none.
    fn head(&mut self) -> Result<Option<Head>, ParsePatchError> {
        let mut head = Head::default();
        while let Some(line) = self.line(0) {
            if line.starts_with("GIT binary patch") || line.starts_with("Binary files ") {
                return Err(self.unexpected("binary content cannot be patched"));
            }
            if let Some(path) = line.strip_prefix("rename from ") {
                head.renamed_from = Some(path.trim().to_owned());
            }
            if let Some(path) = line.strip_prefix("rename to ") {
                head.renamed_to = Some(path.trim().to_owned());
                let hunks_follow = self
                    .line(1)
                    .is_some_and(|line| line.starts_with("index ") || line.starts_with("--- "));
                if !hunks_follow {
                    self.at += 1;
                    return Ok(Some(head));
                }
            }
            let names = (line.strip_prefix("--- "))
                .zip(self.line(1).and_then(|line| line.strip_prefix("+++ ")));
            if let Some((old, new)) = names {
                (head.old, head.new) = self.names(old, new)?;
                self.at += 2;
                return Ok(Some(head));
            }
            if line.starts_with("@@ -") {
                return Err(
                    self.unexpected("a hunk without `--- a/file` and `+++ b/file` above it")
                );
            }
            self.at += 1;
        }
        Ok(None)
    }

    fn names(
        &self,
        old: &str,
        new: &str,
    ) -> Result<(Option<String>, Option<String>), ParsePatchError> {
        let (old, new) = (name_of(old), name_of(new));
        if old.starts_with('"') || new.starts_with('"') {
            return Err(self.unexpected("quoted file names cannot be read: write them plainly"));
        }
        let prefixed =
            (old == NOWHERE || old.starts_with("a/")) && (new == NOWHERE || new.starts_with("b/"));
        let path = |text: &str| {
            let plain = match prefixed {
                true => text.get(2..).unwrap_or_default(),
                false => text,
            };
            (text != NOWHERE).then(|| plain.to_owned())
        };
        Ok((path(old), path(new)))
    }

    fn hunk(&mut self) -> Result<Hunk, ParsePatchError> {
        let header = self.line(0).unwrap_or_default();
        let numbers = numbers(header);
        let mut hunk = Hunk {
            line: numbers.as_ref().map(|numbers| numbers.start),
            ..Hunk::default()
        };
        if numbers.is_none() {
            let anchor = header.trim_matches('@').trim();
            hunk.anchors
                .extend((!anchor.is_empty()).then(|| anchor.to_owned()));
        }
        let mut left = numbers.map(|numbers| (numbers.old, numbers.new));
        self.at += 1;
        while let Some(line) = self.line(0) {
            let is_done = left == Some((0, 0));
            if line.starts_with("\\ ") {
                if let Some(last) = hunk.lines.last_mut() {
                    last.unterminated = true;
                }
                self.at += 1;
                continue;
            }
            if self.ends_hunk(line, left) {
                break;
            }
            let Some(read) = HunkLine::read(line) else {
                if is_done || left.is_none() {
                    break;
                }
                return Err(self.unexpected("every line of a hunk starts with a space, `+` or `-`"));
            };
            if is_done && line.trim_end_matches('\r').is_empty() {
                break;
            }
            left = left.map(|(old, new)| match read.sign {
                Sign::Keep => (old.saturating_sub(1), new.saturating_sub(1)),
                Sign::Remove => (old.saturating_sub(1), new),
                Sign::Add => (old, new.saturating_sub(1)),
            });
            hunk.lines.push(read);
            self.at += 1;
        }
        if hunk.lines.iter().all(|line| line.sign == Sign::Keep) {
            return Err(self.unexpected("a hunk needs lines that start with `+` or `-`"));
        }
        Ok(hunk)
    }

    /// Whether a line begins something else than a line of the hunk.
    fn ends_hunk(&self, line: &str, left: Option<(usize, usize)>) -> bool {
        if line.starts_with("@@") || line.starts_with("diff --git ") {
            return true;
        }
        // A removed line `-- x` looks like a header; as long as the count says
        // that more lines follow, it is a line.
        let next_file = line.starts_with("--- ")
            && self.line(1).is_some_and(|line| line.starts_with("+++ "))
            && self.line(2).is_none_or(|line| line.starts_with("@@"));
        next_file && left.is_none_or(|left| left == (0, 0))
    }
}

/// A file's name without the time that may follow it after a tab.
fn name_of(text: &str) -> &str {
    text.split('\t').next().unwrap_or(text).trim_end()
}

fn updated(path: String, move_to: Option<String>, hunks: Vec<Hunk>) -> FileChange {
    FileChange {
        path,
        kind: FileChangeKind::Update { move_to, hunks },
    }
}

/// The content of a file that is new.
fn added(hunks: &[Hunk]) -> String {
    let mut content = String::new();
    for line in hunks.iter().flat_map(|hunk| &hunk.lines) {
        if line.sign == Sign::Add {
            content.push_str(&line.text);
            if !line.unterminated {
                content.push('\n');
            }
        }
    }
    content
}

struct Numbers {
    start: usize,
    old: usize,
    new: usize,
}

/// The numbers of `@@ -3,4 +3,5 @@`; nothing if there are none.
fn numbers(header: &str) -> Option<Numbers> {
    let rest = header.strip_prefix("@@ -")?;
    let (old, rest) = rest.split_once(" +")?;
    let (new, _) = rest.split_once(" @@")?;
    let pair = |text: &str| -> Option<(usize, usize)> {
        match text.split_once(',') {
            Some((start, count)) => Some((start.parse().ok()?, count.parse().ok()?)),
            None => Some((text.parse().ok()?, 1)),
        }
    };
    let ((start, old), (_, new)) = (pair(old)?, pair(new)?);
    // Of an insertion the line before it is named.
    let start = if old == 0 {
        start.checked_add(1)?
    } else {
        start
    };
    Some(Numbers { start, old, new })
}
