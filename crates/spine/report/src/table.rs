//! Aligned columns that shrink to the width there is.
//!
//! Cells are text from anywhere: they are sanitised here and never wrap. A
//! column whose text must be copied whole (an id, a hash) is marked `whole` and
//! keeps its width; the others give way and end in `…`.

use crate::sanitize::sanitize_line;
use crate::style::{Styling, Tone};
use crate::wrap::{columns, cut};

/// What lies between two columns.
const GAP: &str = "  ";

/// How far a column can shrink.
const LEAST_WIDTH: usize = 6;

/// A table: titled columns and rows of cells.
#[derive(Debug, Clone, Default)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
}

/// One column: its title and how it behaves.
#[derive(Debug, Clone)]
pub struct Column {
    title: String,
    side: Side,
    whole: bool,
}

/// One cell: a text and what it is about.
#[derive(Debug, Clone, Default)]
pub struct Cell {
    text: String,
    tone: Tone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Left,
    Right,
}

impl Table {
    /// An empty table with these columns.
    #[must_use]
    pub fn new(columns: impl IntoIterator<Item = Column>) -> Self {
        Self {
            columns: columns.into_iter().collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row; missing cells are empty, cells too many are left out.
    pub fn row<C: Into<Cell>>(&mut self, cells: impl IntoIterator<Item = C>) {
        let count = self.columns.len();
        let mut row: Vec<Cell> = cells.into_iter().take(count).map(Into::into).collect();
        row.resize_with(count, Cell::default);
        for cell in &mut row {
            cell.text = sanitize_line(&cell.text).into_owned();
        }
        self.rows.push(row);
    }

    /// Whether there is no row.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The table as lines, at most `width` columns where there is a limit.
    #[must_use]
    pub fn render(&self, width: Option<usize>, styling: Styling) -> String {
        let widths = self.widths(width);
        let titles: Vec<Cell> = self
            .columns
            .iter()
            .map(|column| Cell::new(column.title.as_str()).tone(Tone::Strong))
            .collect();
        let mut text = String::new();
        for row in std::iter::once(&titles).chain(&self.rows) {
            let line = self.line(row, &widths, styling);
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    fn line(&self, row: &[Cell], widths: &[usize], styling: Styling) -> String {
        let mut line = String::new();
        for ((column, cell), width) in self.columns.iter().zip(row).zip(widths) {
            if !line.is_empty() {
                line.push_str(GAP);
            }
            let text = cut(&cell.text, *width);
            let pad = " ".repeat(width.saturating_sub(columns(&text)));
            let painted = cell.tone.paint(&text, styling);
            match column.side {
                Side::Left => line.extend([painted, pad]),
                Side::Right => line.extend([pad, painted]),
            }
        }
        line
    }

    /// The width of every column, taken from the widest first when too wide.
    fn widths(&self, limit: Option<usize>) -> Vec<usize> {
        let mut widths: Vec<usize> = (self.columns.iter().map(|c| columns(&c.title))).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(columns(&cell.text));
            }
        }
        let Some(limit) = limit else { return widths };
        for (width, column) in widths.iter_mut().zip(&self.columns) {
            if !column.whole {
                *width = (*width).min(limit.max(LEAST_WIDTH));
            }
        }
        let gaps = GAP.len() * self.columns.len().saturating_sub(1);
        while widths.iter().sum::<usize>() + gaps > limit {
            let widest = widths
                .iter_mut()
                .zip(&self.columns)
                .filter(|(width, column)| !column.whole && **width > LEAST_WIDTH)
                .max_by_key(|(width, _)| **width);
            match widest {
                Some((width, _)) => *width -= 1,
                None => break,
            }
        }
        widths
    }
}

impl Column {
    /// A column of text on the left that may shrink.
    #[must_use]
    pub fn new(title: impl Into<String>) -> Self {
        Self {
            title: sanitize_line(&title.into()).into_owned(),
            side: Side::Left,
            whole: false,
        }
    }

    /// Aligns to the right, for numbers.
    #[must_use]
    pub const fn right(mut self) -> Self {
        self.side = Side::Right;
        self
    }

    /// Never shrinks, for what people copy.
    #[must_use]
    pub const fn whole(mut self) -> Self {
        self.whole = true;
        self
    }
}

impl Cell {
    /// A cell of ordinary text.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            tone: Tone::Plain,
        }
    }

    /// The same text in a tone.
    #[must_use]
    pub const fn tone(mut self, tone: Tone) -> Self {
        self.tone = tone;
        self
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::new(text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> Table {
        let mut table = Table::new([
            Column::new("SEQ").right().whole(),
            Column::new("DECISION"),
            Column::new("RESOURCE"),
        ]);
        table.row([
            Cell::new("7"),
            Cell::new("allow").tone(Tone::Good),
            Cell::new("/src/漢字.rs"),
        ]);
        table.row([
            "1042",
            "deny",
            "/a/rather/long/path/that/does/not/fit/anywhere.rs",
        ]);
        table
    }

    #[test]
    fn columns_are_aligned() {
        insta::assert_snapshot!(sample().render(None, Styling::Plain), @r"
         SEQ  DECISION  RESOURCE
           7  allow     /src/漢字.rs
        1042  deny      /a/rather/long/path/that/does/not/fit/anywhere.rs
        ");
    }

    #[test]
    fn a_narrow_table_cuts_the_widest_column() {
        insta::assert_snapshot!(sample().render(Some(40), Styling::Plain), @r"
         SEQ  DECISION  RESOURCE
           7  allow     /src/漢字.rs
        1042  deny      /a/rather/long/path/tha…
        ");
    }

    #[test]
    fn colour_changes_no_alignment() {
        let coloured = sample().render(Some(40), Styling::Ansi);
        assert!(coloured.contains("\x1b[32mallow\x1b[0m"));
        let stripped = anstream::adapter::strip_str(&coloured).to_string();
        assert_eq!(stripped, sample().render(Some(40), Styling::Plain));
    }

    #[test]
    fn a_row_of_the_wrong_length_is_made_to_fit() {
        let mut table = Table::new([Column::new("A"), Column::new("B")]);
        table.row(["1"]);
        table.row(["1", "2", "3"]);
        assert_eq!(table.render(None, Styling::Plain), "A  B\n1\n1  2\n");
    }

    proptest! {
        #[test]
        fn it_fits_and_holds_no_escape(cells in prop::collection::vec(".*", 0..12), width in 30usize..120) {
            let mut table = Table::new([Column::new("A"), Column::new("B"), Column::new("C")]);
            for row in cells.chunks(3) {
                table.row(row.iter().map(String::as_str));
            }
            let text = table.render(Some(width), Styling::Plain);
            prop_assert_eq!(text.lines().count(), 1 + cells.chunks(3).count());
            for line in text.lines() {
                prop_assert!(columns(line) <= width, "{:?}", line);
            }
            prop_assert!(!text.contains('\x1b'));
        }
    }
}
