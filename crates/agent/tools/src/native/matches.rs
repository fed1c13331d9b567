//! What a search found, and how the model reads it.

use std::fmt::Write as _;

use fluffy_layer::TreePath;

use crate::arguments::Show;

/// The most characters of a line that are shown.
const MAX_LINE: usize = 400;

/// What a search found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextMatches {
    /// The files with matches, in order.
    pub files: Vec<FileMatches>,
    /// How many files were looked at.
    pub searched: usize,
    /// How many directories and files could not be read.
    pub unreadable: usize,
    /// Whether there may be more.
    pub is_cut: bool,
}

/// The matches of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileMatches {
    /// The file.
    pub path: TreePath,
    /// How many lines match.
    pub count: usize,
    /// Those lines with what is around them; only if lines are shown.
    pub lines: Vec<MatchLine>,
}

/// One line of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MatchLine {
    /// Which, counted from one.
    pub number: u64,
    /// Its text, without its end and cut if it is long.
    pub text: String,
    /// Whether it matches, or stands beside one that does.
    pub is_match: bool,
}

impl TextMatches {
    /// The matches as the model reads them.
    #[must_use]
    pub fn render(&self, show: Show) -> String {
        let mut text = String::new();
        for file in &self.files {
            match show {
                Show::Files => text.push_str(&format!("{}\n", file.path)),
                Show::Counts => text.push_str(&format!("{}: {}\n", file.path, file.count)),
                Show::Lines => render_lines(&mut text, file),
            }
        }
        if text.is_empty() {
            text = format!("no match in {} files\n", self.searched);
        }
        if self.is_cut {
            text.push_str("(there are more: narrow the search by path, globs or pattern)\n");
        }
        if self.unreadable > 0 {
            let _ = writeln!(
                text,
                "({} files or directories could not be read)",
                self.unreadable
            );
        }
        text
    }
}

fn render_lines(text: &mut String, file: &FileMatches) {
    let _ = writeln!(text, "{}", file.path);
    let mut last = None;
    for line in &file.lines {
        if last.is_some_and(|last: u64| last + 1 < line.number)
            && file.lines.iter().any(|line| !line.is_match)
        {
            text.push_str("--\n");
        }
        let mark = if line.is_match { ':' } else { '-' };
        let _ = writeln!(text, "{}{mark} {}", line.number, line.text);
        last = Some(line.number);
    }
}

/// Keeps the first matches of a file; says whether there were more.
pub(super) fn keep_matches(file: &mut FileMatches, limit: usize) -> bool {
    if file.count <= limit {
        return false;
    }
    let matches = file
        .lines
        .iter()
        .enumerate()
        .filter(|(_, line)| line.is_match);
    if let Some((cut, _)) = matches.map(|(at, line)| (at, line.number)).nth(limit) {
        file.lines.truncate(cut);
    }
    file.count = limit;
    true
}

/// A line for a person: its end gone, the part around the match kept.
pub(super) fn cut_line(bytes: &[u8], at: usize) -> String {
    let text = String::from_utf8_lossy(bytes.get(..at).unwrap_or_default());
    let before = text.chars().count();
    let line = String::from_utf8_lossy(bytes);
    let line = line.trim_end_matches(['\n', '\r']);
    if line.len() <= MAX_LINE || line.chars().count() <= MAX_LINE {
        return line.to_owned();
    }
    let skip = before.saturating_sub(MAX_LINE / 4);
    let mut shown = String::from(if skip > 0 { "…" } else { "" });
    shown.extend(line.chars().skip(skip).take(MAX_LINE));
    if line.chars().count() > skip + MAX_LINE {
        shown.push('…');
    }
    shown
}
