//! A terminal's screen as a picture: text with colours in, SVG out. Pure.
//!
//! Knows the few escapes that a terminal multiplexer writes when asked for its
//! screen. Each run of letters is put in its column, so that no font moves it.

use std::fmt::Write as _;

/// The size of a letter's cell, in pixels.
const CELL: (f64, f64) = (8.4, 18.0);

/// The room around the text, and the bar above it.
const PADDING: f64 = 18.0;
const BAR: f64 = 34.0;

const FONT: &str = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace";

const BACKGROUND: &str = "#161b22";
const PLAIN: &str = "#d5dae1";
const DIM: &str = "#8b949e";

/// How letters look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Style {
    bold: bool,
    dim: bool,
    /// One of the eight colours.
    colour: Option<u8>,
}

impl Style {
    /// The same after one number of an escape.
    fn after(self, code: u8) -> Self {
        match code {
            0 => Self::default(),
            1 => Self { bold: true, ..self },
            2 => Self { dim: true, ..self },
            22 => Self {
                bold: false,
                dim: false,
                ..self
            },
            30..=37 => Self {
                colour: Some(code - 30),
                ..self
            },
            90..=97 => Self {
                colour: Some(code - 90),
                ..self
            },
            39 => Self {
                colour: None,
                ..self
            },
            _ => self,
        }
    }

    fn fill(self) -> &'static str {
        match self.colour {
            Some(1) => "#ff7b72",
            Some(2) => "#7ee787",
            Some(3) => "#e3b341",
            Some(4) => "#79c0ff",
            Some(5) => "#d2a8ff",
            Some(6) => "#76e3ea",
            _ if self.dim => DIM,
            _ => PLAIN,
        }
    }
}

/// A window with these lines, as wide as so many letters.
pub(super) fn picture(title: &str, lines: &[&str], columns: usize) -> String {
    let width = pixels(columns) + 2.0 * PADDING;
    let height = BAR + 2.0 * PADDING + rows(lines.len());
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-label=\"{}\">\n\
         <rect width=\"100%\" height=\"100%\" rx=\"10\" fill=\"{BACKGROUND}\"/>\n",
        escaped(title)
    );
    for (at, colour) in [(22, "#ff5f57"), (42, "#febc2e"), (62, "#28c840")] {
        let _ = writeln!(
            svg,
            "<circle cx=\"{at}\" cy=\"18\" r=\"6\" fill=\"{colour}\"/>"
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"50%\" y=\"22\" fill=\"{DIM}\" font-family=\"{FONT}\" font-size=\"12\" \
         text-anchor=\"middle\">{}</text>\n<g font-family=\"{FONT}\" font-size=\"14\" \
         xml:space=\"preserve\">",
        escaped(title)
    );
    let mut style = Style::default();
    for (row, line) in lines.iter().enumerate() {
        let y = BAR + PADDING + rows(row) + 6.0;
        style = draw(&mut svg, line, y, style);
    }
    svg.push_str("</g>\n</svg>\n");
    svg
}

/// A line without its escapes.
pub(super) fn letters(line: &str) -> String {
    let mut pieces = line.split("\u{1b}[");
    let mut text = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let end = piece.find(|c: char| c.is_ascii_alphabetic());
        text.push_str(end.and_then(|end| piece.get(end + 1..)).unwrap_or_default());
    }
    text
}

/// Draws a line; how letters look after it.
fn draw(svg: &mut String, line: &str, y: f64, mut style: Style) -> Style {
    let mut column = 0;
    let mut pieces = line.split("\u{1b}[");
    let first = pieces.next().unwrap_or_default();
    column += put(svg, first, (column, y), style);
    for piece in pieces {
        let end = piece.find(|c: char| c.is_ascii_alphabetic());
        let (codes, rest) = piece.split_at(end.unwrap_or(piece.len()));
        let (kind, text) = rest.split_at(rest.len().min(1));
        if kind == "m" {
            for code in codes.split(';') {
                style = style.after(code.parse().unwrap_or_default());
            }
        }
        column += put(svg, text, (column, y), style);
    }
    style
}

/// Puts letters in their place; how many columns they take.
fn put(svg: &mut String, text: &str, (column, y): (usize, f64), style: Style) -> usize {
    let taken = text.chars().count();
    let blank = text.chars().take_while(|c| *c == ' ').count();
    let letters = text.trim();
    if !letters.is_empty() {
        let x = PADDING + pixels(column + blank);
        let weight = if style.bold {
            " font-weight=\"600\""
        } else {
            ""
        };
        let length = pixels(letters.chars().count());
        let _ = writeln!(
            svg,
            "<text x=\"{x:.1}\" y=\"{y:.0}\" fill=\"{}\"{weight} textLength=\"{length:.1}\">{}</text>",
            style.fill(),
            escaped(letters)
        );
    }
    taken
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a screen has some hundred columns"
)]
fn pixels(columns: usize) -> f64 {
    columns as f64 * CELL.0
}

#[expect(clippy::cast_precision_loss, reason = "a screen has some hundred rows")]
fn rows(count: usize) -> f64 {
    count as f64 * CELL.1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_stand_in_their_columns_and_colours() {
        let line = "  \u{1b}[1;33mrefused\u{1b}[0m  a <b> & \"c\"";
        let svg = picture("demo", &[line], 80);
        assert!(svg.contains("x=\"34.8\""), "{svg}");
        assert!(
            svg.contains("fill=\"#e3b341\" font-weight=\"600\""),
            "{svg}"
        );
        assert!(svg.contains(">refused</text>"), "{svg}");
        assert!(svg.contains(">a &lt;b&gt; &amp; &quot;c&quot;</text>"));
        assert!(!svg.contains('\u{1b}'));
        assert_eq!(letters(line), "  refused  a <b> & \"c\"");
        let after = format!("x=\"{:.1}\"", PADDING + pixels(11));
        assert!(svg.contains(&after), "{svg}");
    }

    #[test]
    fn what_is_no_colour_leaves_no_trace() {
        let svg = picture("x", &["\u{1b}[K\u{1b}[2mdim\u{1b}[22mplain", "next"], 10);
        assert!(svg.contains(&format!("fill=\"{DIM}\"")), "{svg}");
        assert!(svg.contains(">plain</text>") && svg.contains(">next</text>"));
    }
}
