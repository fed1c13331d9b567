//! A tree of short lines, for explaining a decision.
//!
//! Each line has a text and a tone; long texts wrap below themselves. Deeper
//! than [`MAX_DEPTH`] is left out, with a word that says so.

use crate::sanitize::sanitize_line;
use crate::style::{Styling, Tone};
use crate::wrap::wrap;

/// How many levels are shown.
pub const MAX_DEPTH: usize = 24;

/// A line and what is below it.
#[derive(Debug, Clone, Default)]
pub struct Tree {
    text: String,
    tone: Tone,
    children: Vec<Tree>,
}

impl Tree {
    /// A line of ordinary text with nothing below it.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            ..Self::default()
        }
    }

    /// The same line in a tone.
    #[must_use]
    pub const fn tone(mut self, tone: Tone) -> Self {
        self.tone = tone;
        self
    }

    /// Adds a branch below this line.
    pub fn push(&mut self, child: Self) {
        self.children.push(child);
    }

    /// This line with one more branch below it.
    #[must_use]
    pub fn with(mut self, child: Self) -> Self {
        self.push(child);
        self
    }

    /// The tree as lines of about `width` columns, the root first.
    #[must_use]
    pub fn render(&self, width: usize, styling: Styling) -> String {
        let mut pen = Pen {
            out: String::new(),
            width,
            styling,
        };
        pen.draw(self, &Guides::default(), 0);
        pen.out
    }
}

/// What stands before the first and before the other lines of an entry.
#[derive(Debug, Default)]
struct Guides {
    first: String,
    rest: String,
}

struct Pen {
    out: String,
    width: usize,
    styling: Styling,
}

impl Pen {
    fn draw(&mut self, tree: &Tree, guides: &Guides, depth: usize) {
        let below = if tree.children.is_empty() {
            ""
        } else {
            "│  "
        };
        let room = self.width.saturating_sub(guides.rest.chars().count() + 3);
        let text = sanitize_line(&tree.text);
        for (index, line) in wrap(&text, room.max(20)).iter().enumerate() {
            let painted = tree.tone.paint(line, self.styling);
            match index {
                0 => self.line(&guides.first, "", &painted),
                _ => self.line(&guides.rest, below, &painted),
            }
        }
        if depth == MAX_DEPTH && !tree.children.is_empty() {
            self.line(&guides.rest, "└─ ", "… (deeper levels are not shown)");
            return;
        }
        let last = tree.children.len().saturating_sub(1);
        for (index, child) in tree.children.iter().enumerate() {
            let (first, rest) = if index == last {
                ("└─ ", "   ")
            } else {
                ("├─ ", "│  ")
            };
            let guides = Guides {
                first: format!("{}{first}", guides.rest),
                rest: format!("{}{rest}", guides.rest),
            };
            self.draw(child, &guides, depth + 1);
        }
    }

    fn line(&mut self, guide: &str, more: &str, text: &str) {
        let line = format!("{guide}{more}{text}");
        self.out.push_str(line.trim_end());
        self.out.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_reads_from_top_to_bottom() {
        let tree = Tree::new("require_review  fs.write /Cargo.toml")
            .tone(Tone::Caution)
            .with(Tree::new("grants: inside").with(Tree::new("agent holds `fs.*`")))
            .with(
                Tree::new("rules")
                    .with(Tree::new(
                        "sensitive-files: review, because this file decides how everything \
                         else here is built and tested",
                    ))
                    .with(Tree::new("write-source: allow")),
            );
        insta::assert_snapshot!(tree.render(60, Styling::Plain), @r"
        require_review fs.write /Cargo.toml
        ├─ grants: inside
        │  └─ agent holds `fs.*`
        └─ rules
           ├─ sensitive-files: review, because this file decides
           │  how everything else here is built and tested
           └─ write-source: allow
        ");
    }

    #[test]
    fn depth_and_escapes_are_bounded() {
        let deep = (0..100).fold(Tree::new("\x1b]0;x\x07"), |inner, _| {
            Tree::new("a").with(inner)
        });
        let text = deep.render(80, Styling::Plain);
        assert_eq!(text.lines().count(), MAX_DEPTH + 2);
        assert!(text.contains("deeper levels"));
        let flat = Tree::new("\x1b]0;x\x07\ny").render(80, Styling::Plain);
        assert_eq!(flat, "\\x1b]0;x\\x07\\ny\n");
    }
}
