//! A line that stays below everything else that is printed.
//!
//! Only in a terminal that can move its cursor; pipes and dumb terminals have
//! none. The cursor always rests where the text ends, so that the line can be
//! wiped and drawn again together with new text in a single write, and nothing
//! flickers. Must never be left on the screen: [`Footer::close`] wipes it.

use std::fmt::Write as _;

use unicode_width::UnicodeWidthChar as _;

use crate::printer::{PrintError, Printer};
use crate::style::Styling;
use crate::text::Text;

/// Everything from the cursor to the end of the screen goes.
const WIPE: &str = "\x1b[J";

/// Terminals that know these show nothing half drawn; others ignore them.
const HOLD: &str = "\x1b[?2026h";
const SHOW: &str = "\x1b[?2026l";

/// The bottom line of a terminal.
#[derive(Debug)]
pub struct Footer<'a> {
    printer: &'a Printer,
    cursor: Cursor,
}

impl<'a> Footer<'a> {
    pub(crate) const fn new(printer: &'a Printer) -> Self {
        let cursor = Cursor { column: 0 };
        Self { printer, cursor }
    }

    /// Writes text as it is, with `below` on the line under its end.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn write(&mut self, text: &Text, below: &Text) -> Result<(), PrintError> {
        let width = self.width();
        let styling = self.printer.styling();
        let frame = self.cursor.frame(text, below, width, styling);
        self.printer.screen(&frame)
    }

    /// The person ended a line of their own: the cursor is at the next one.
    pub const fn entered(&mut self) {
        self.cursor.column = 0;
    }

    /// How wide the terminal is now.
    #[must_use]
    pub fn width(&self) -> usize {
        self.printer.current_width()
    }

    /// Wipes the line; what was printed above it stays.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn close(&mut self) -> Result<(), PrintError> {
        self.printer.screen(WIPE)
    }
}

/// Where the text ended.
#[derive(Debug)]
struct Cursor {
    column: usize,
}

impl Cursor {
    fn frame(&mut self, text: &Text, below: &Text, width: usize, styling: Styling) -> String {
        let mut frame = format!("{HOLD}{WIPE}{}", text.render(styling));
        self.follow(&text.render(Styling::Plain), width);
        if self.column >= width {
            // A terminal would wrap before the next letter; it cannot be led
            // back to that place, so the line ends here.
            frame.push_str("\r\n");
            self.column = 0;
        }
        if !below.is_empty() {
            // The last column stays free: writing there may scroll.
            let line = below.cut(width.saturating_sub(1)).render(styling);
            let _ = write!(frame, "\n\r{line}\r\x1b[A");
            if self.column > 0 {
                let _ = write!(frame, "\x1b[{}C", self.column);
            }
        }
        frame.push_str(SHOW);
        frame
    }

    /// Where the cursor is after this text.
    fn follow(&mut self, text: &str, width: usize) {
        for c in text.chars() {
            match c {
                '\n' => self.column = 0,
                '\t' => self.column = (self.column / 8 + 1) * 8,
                c => {
                    let taken = c.width().unwrap_or(0);
                    let wraps = self.column + taken > width;
                    self.column = if wraps { taken } else { self.column + taken };
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WIDTH: usize = 20;
    const ROWS: usize = 6;

    /// As much of a terminal as is needed to see what a person would see.
    struct Screen {
        rows: Vec<Vec<char>>,
        row: usize,
        column: usize,
    }

    impl Screen {
        fn new() -> Self {
            Self {
                rows: vec![vec![' '; WIDTH]; ROWS],
                row: 0,
                column: 0,
            }
        }

        fn feed(&mut self, text: &str) {
            let mut chars = text.chars();
            while let Some(c) = chars.next() {
                match c {
                    '\n' => {
                        self.down();
                        // As a terminal in its ordinary mode does.
                        self.column = 0;
                    }
                    '\r' => self.column = 0,
                    '\x1b' => {
                        assert_eq!(chars.next(), Some('['));
                        let mut number = String::new();
                        let end = loop {
                            let c = chars.next().unwrap();
                            if c.is_ascii_alphabetic() {
                                break c;
                            }
                            number.push(c);
                        };
                        self.obey(end, number.parse().unwrap_or(1));
                    }
                    c => {
                        if self.column == WIDTH {
                            self.column = 0;
                            self.down();
                        }
                        self.rows[self.row][self.column] = c;
                        self.column += 1;
                    }
                }
            }
        }

        fn down(&mut self) {
            if self.row + 1 == ROWS {
                self.rows.remove(0);
                self.rows.push(vec![' '; WIDTH]);
            } else {
                self.row += 1;
            }
        }

        fn obey(&mut self, end: char, number: usize) {
            match end {
                'J' => {
                    let from = self.column.min(WIDTH);
                    self.rows[self.row][from..].fill(' ');
                    for row in &mut self.rows[self.row + 1..] {
                        row.fill(' ');
                    }
                }
                'A' => self.row = self.row.saturating_sub(number),
                'C' => self.column = (self.column + number).min(WIDTH - 1),
                'h' | 'l' => {}
                other => panic!("{other}"),
            }
        }

        fn lines(&self) -> Vec<String> {
            let text = |row: &Vec<char>| row.iter().collect::<String>().trim_end().to_owned();
            let mut lines: Vec<String> = self.rows.iter().map(text).collect();
            while lines.last().is_some_and(String::is_empty) {
                lines.pop();
            }
            lines
        }
    }

    fn text(text: &str) -> Text {
        let mut made = Text::new();
        made.plain(text);
        made
    }

    fn shown(pieces: &[&str], below: &str) -> Vec<String> {
        let mut cursor = Cursor { column: 0 };
        let mut screen = Screen::new();
        for piece in pieces {
            let frame = cursor.frame(&text(piece), &text(below), WIDTH, Styling::Plain);
            screen.feed(&frame);
        }
        screen.lines()
    }

    #[test]
    fn the_line_stays_below_text_that_grows() {
        assert_eq!(
            shown(&["one ", "two\n", "three"], "status"),
            ["one two", "three", "status"]
        );
        let many: Vec<String> = (0..20).map(|n| format!("line {n}\n")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(
            shown(&many, "status"),
            ["line 16", "line 17", "line 18", "line 19", "", "status"]
        );
    }

    #[test]
    fn the_line_never_wraps_and_can_be_left_out() {
        assert_eq!(shown(&["a"], &"x".repeat(50)), ["a", "xxxxxxxxxxxxxxxxxx…"]);
        assert_eq!(shown(&["a", "b"], ""), ["ab"]);
    }

    proptest! {
        /// However text is cut into writes, what is above the line is the text.
        #[test]
        fn nothing_of_the_text_is_lost(pieces in prop::collection::vec("[a-z \n]{0,30}", 1..8)) {
            let whole: String = pieces.concat();
            let mut plain = Screen::new();
            plain.feed(&whole);
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let with = shown(&pieces, "STATUS");
            prop_assert_eq!(with.last().map(String::as_str), Some("STATUS"));
            let above: Vec<&String> = with.iter().take(with.len() - 1).filter(|l| !l.is_empty()).collect();
            let expected = plain.lines();
            let expected: Vec<&String> = expected.iter().filter(|l| !l.is_empty()).collect();
            let tail = &expected[expected.len().saturating_sub(above.len())..];
            prop_assert_eq!(&above[..], tail);
        }
    }
}
