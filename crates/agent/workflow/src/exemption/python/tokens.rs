//! Python's tokens, line by logical line, for every version of the language.
//!
//! What two versions read differently, such as a quote inside a replacement
//! field, and what need not be in a program (tabs before code, control
//! characters, other alphabets in names) is refused: `None`. Never guesses.

/// The longest program that is looked at, in bytes.
const MAX_BYTES: usize = 1 << 20;

/// The deepest brackets.
const MAX_DEPTH: usize = 100;

/// What a token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Name,
    Number,
    Text,
    Operator,
}

/// One token, as it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Token<'a> {
    pub(super) kind: Kind,
    pub(super) text: &'a str,
}

impl Token<'_> {
    /// Whether it is this keyword or operator.
    pub(super) fn is(&self, word: &str) -> bool {
        matches!(self.kind, Kind::Name | Kind::Operator) && self.text == word
    }
}

/// One logical line.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Line<'a> {
    /// Spaces before it.
    pub(super) indent: usize,
    pub(super) tokens: Vec<Token<'a>>,
}

/// A whole program.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Program<'a> {
    pub(super) lines: Vec<Line<'a>>,
    /// Without those that only speak of types.
    pub(super) comments: Vec<&'a str>,
}

/// The tokens of a program; `None` if they are not certain.
pub(super) fn read(text: &str) -> Option<Program<'_>> {
    let odd = |c: char| (c.is_control() && !matches!(c, '\n' | '\t')) || c == '\u{feff}';
    if text.len() > MAX_BYTES || text.contains(odd) {
        return None;
    }
    let mut reader = Reader {
        text,
        at: 0,
        open: Vec::new(),
        line: Line::default(),
        program: Program::default(),
    };
    reader.indentation()?;
    while reader.step()? == Step::More {}
    Some(reader.program)
}

#[derive(PartialEq, Eq)]
enum Step {
    More,
    End,
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    /// The brackets that are open.
    open: Vec<char>,
    line: Line<'a>,
    program: Program<'a>,
}

/// Longest first.
const OPERATORS: [&str; 47] = [
    "...", "**=", "//=", ">>=", "<<=", "!=", "->", ":=", "==", "<=", ">=", "+=", "-=", "*=", "/=",
    "%=", "&=", "|=", "^=", "@=", "**", "//", "<<", ">>", "+", "-", "*", "/", "%", "@", "&", "|",
    "^", "~", "<", ">", "(", ")", "[", "]", "{", "}", ",", ":", ".", ";", "=",
];

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn step(&mut self) -> Option<Step> {
        let Some(next) = self.peek() else {
            self.end_line();
            return self.open.is_empty().then_some(Step::End);
        };
        match next {
            '\n' => {
                self.at += 1;
                if self.open.is_empty() {
                    self.end_line();
                    self.indentation()?;
                }
            }
            ' ' | '\t' => self.at += 1,
            '#' => self.comment()?,
            '\\' => {
                let starts = self.line.tokens.is_empty() && self.open.is_empty();
                let after = self.rest().strip_prefix("\\\n")?;
                let goes_on = after.trim_start_matches([' ', '\t']);
                // A line that goes on with nothing is no program.
                if starts || goes_on.is_empty() || goes_on.starts_with(['\n', '#', '\\']) {
                    return None;
                }
                self.at += 2;
            }
            '"' | '\'' => self.string(0)?,
            'a'..='z' | 'A'..='Z' | '_' => self.name()?,
            '0'..='9' => self.number(),
            '.' if self
                .rest()
                .chars()
                .nth(1)
                .is_some_and(|c| c.is_ascii_digit()) =>
            {
                self.number()
            }
            _ => self.operator()?,
        }
        Some(Step::More)
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        if !line.tokens.is_empty() {
            self.program.lines.push(line);
        }
    }

    /// Spaces before code; a tab there means something else to everybody.
    fn indentation(&mut self) -> Option<()> {
        let rest = self.rest();
        let indent = rest.len() - rest.trim_start_matches(' ').len();
        self.at += indent;
        self.line.indent = indent;
        (self.peek() != Some('\t')).then_some(())
    }

    fn push(&mut self, kind: Kind, length: usize) -> Option<()> {
        let text = self.rest().get(..length)?;
        self.at += length;
        self.line.tokens.push(Token { kind, text });
        Some(())
    }

    fn comment(&mut self) -> Option<()> {
        let line = self.rest().split('\n').next().unwrap_or_default();
        self.at += line.len();
        let lower = line.to_ascii_lowercase();
        // It may say that the text is written in another way than it seems.
        if lower.contains("coding") && !lower.contains("utf-8") {
            return None;
        }
        let types = line
            .trim_start_matches('#')
            .trim_start()
            .starts_with("type:");
        if !types || lower.contains("coding") {
            self.program.comments.push(line.trim_end());
        }
        Some(())
    }

    fn name(&mut self) -> Option<()> {
        let rest = self.rest();
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let length = rest.len() - rest.trim_start_matches(is_part).len();
        let (name, after) = rest.split_at_checked(length)?;
        if after.starts_with(['"', '\'']) && is_prefix(name) {
            return self.string(length);
        }
        self.push(Kind::Name, length)
    }

    /// Numbers stay as they are, so what follows without a space stays too.
    fn number(&mut self) {
        let rest = self.rest();
        let mut length = 0;
        for c in rest.chars() {
            let before = rest.get(..length).unwrap_or_default();
            let is_sign = matches!(c, '+' | '-')
                && before.ends_with(['e', 'E'])
                && !before.starts_with("0x")
                && !before.starts_with("0X");
            if !(c.is_ascii_alphanumeric() || matches!(c, '_' | '.') || is_sign) {
                break;
            }
            length += 1;
        }
        let _ = self.push(Kind::Number, length);
    }

    fn operator(&mut self) -> Option<()> {
        let rest = self.rest();
        let found = OPERATORS.iter().find(|one| rest.starts_with(**one))?;
        match *found {
            "(" => self.open.push(')'),
            "[" => self.open.push(']'),
            "{" => self.open.push('}'),
            ")" | "]" | "}" if self.open.pop() != found.chars().next() => return None,
            _ => {}
        }
        if self.open.len() > MAX_DEPTH {
            return None;
        }
        self.push(Kind::Operator, found.len())
    }

    /// A text whose prefix has this length.
    fn string(&mut self, prefix: usize) -> Option<()> {
        let rest = self.rest();
        let (kind, body) = rest.split_at_checked(prefix)?;
        let quote = body.chars().next()?;
        let single = body.get(..1)?;
        let triple = single.repeat(3);
        let close = match body.starts_with(&triple) {
            true => triple.as_str(),
            false => single,
        };
        let content = body.get(close.len()..)?;
        let length = match kind.contains(['f', 'F', 't', 'T']) {
            true => formatted(content, close, quote)?,
            false => plain(content, close)?,
        };
        self.push(Kind::Text, prefix + 2 * close.len() + length)
    }
}

fn is_prefix(name: &str) -> bool {
    let known = ["r", "u", "b", "br", "rb", "f", "fr", "rf", "t", "tr", "rt"];
    known.contains(&name.to_ascii_lowercase().as_str())
}

/// The length of a text up to what closes it.
fn plain(content: &str, close: &str) -> Option<usize> {
    let mut at = 0;
    loop {
        let rest = content.get(at..)?;
        if rest.starts_with(close) {
            return Some(at);
        }
        let mut chars = rest.chars();
        match chars.next()? {
            '\\' => at += 1 + chars.next()?.len_utf8(),
            '\n' if close.len() == 1 => return None,
            other => at += other.len_utf8(),
        }
    }
}

/// The same of a text with replacement fields. Versions of the language differ
/// in what may be in a field; what they do not agree on is refused, so that
/// the first closing quote is the end in each.
fn formatted(content: &str, close: &str, quote: char) -> Option<usize> {
    let mut at = 0;
    loop {
        let rest = content.get(at..)?;
        if rest.starts_with(close) {
            return Some(at);
        }
        if rest.starts_with("{{") || rest.starts_with("}}") {
            at += 2;
            continue;
        }
        let mut chars = rest.chars();
        match chars.next()? {
            '\\' => {
                let escaped = chars.next()?;
                if matches!(escaped, '{' | '}' | 'N') {
                    return None;
                }
                at += 1 + escaped.len_utf8();
            }
            '\n' if close.len() == 1 => return None,
            '}' => return None,
            '{' => at += field(rest, quote)?,
            other => at += other.len_utf8(),
        }
    }
}

/// The length of a replacement field with its braces.
fn field(text: &str, quote: char) -> Option<usize> {
    let (mut at, mut depth, mut has_colon) = (0, 0usize, false);
    let mut before = '{';
    loop {
        let next = text.get(at..)?.chars().next()?;
        match next {
            '{' => depth += 1,
            '}' => depth -= 1,
            ':' => has_colon = true,
            '\\' | '\n' | '#' => return None,
            _ if next == quote => return None,
            '"' | '\'' => {
                // After a colon it may be a character of the format.
                if has_colon || before.is_alphanumeric() || before == '_' {
                    return None;
                }
                let inner = text.get(at + 1..)?;
                let length = inner.find(next)?;
                let inside = inner.get(..length)?;
                let again = inner.get(length + 1..)?.starts_with(next);
                if inside.contains(['\\', '\n', quote]) || again {
                    return None;
                }
                at += length + 1;
            }
            _ => {}
        }
        at += next.len_utf8();
        before = next;
        if depth == 0 {
            return Some(at);
        }
    }
}
