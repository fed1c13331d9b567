//! Annotations: where they are in a line, and which of them do nothing.
//!
//! Whatever does not look exactly as expected gives `None`, and the line stays
//! as it is. Next: [`super`] decides which annotations are asked about.

use super::tokens::{Kind, Token};

/// The deepest brackets in an annotation.
const MAX_DEPTH: usize = 32;

/// Words that are no names.
const KEYWORDS: [&str; 35] = [
    "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class", "continue",
    "def", "del", "elif", "else", "except", "finally", "for", "from", "global", "if", "import",
    "in", "is", "lambda", "nonlocal", "not", "or", "pass", "raise", "return", "try", "while",
    "with", "yield",
];

pub(super) fn is_keyword(word: &str) -> bool {
    KEYWORDS.contains(&word)
}

/// The header of a function without those annotations that are inert.
pub(super) fn header<'a>(
    tokens: &[Token<'a>],
    inert: &dyn Fn(&[Token<'_>]) -> bool,
) -> Option<Vec<Token<'a>>> {
    let def = tokens.iter().position(|token| token.is("def"))?;
    let (name, open) = (tokens.get(def + 1)?, tokens.get(def + 2)?);
    if !is_name(name) || !open.is("(") {
        return None;
    }
    let close = end_of(tokens, def + 3, &[")"]);
    let parameters = tokens.get(def + 3..close)?;
    let mut kept = tokens.get(..def + 3)?.to_vec();
    strip_parameters(parameters, inert, &mut kept)?;
    kept.push(*tokens.get(close)?);
    let mut at = close + 1;
    if tokens.get(at)?.is("->") {
        let end = end_of(tokens, at + 1, &[":"]);
        let annotation = tokens.get(at + 1..end)?;
        if !inert(annotation) {
            kept.extend(tokens.get(at..end)?);
        }
        at = end;
    }
    let body = tokens.get(at..)?;
    kept.extend(body);
    body.first()?.is(":").then_some(kept)
}

fn strip_parameters<'a>(
    tokens: &[Token<'a>],
    inert: &dyn Fn(&[Token<'_>]) -> bool,
    kept: &mut Vec<Token<'a>>,
) -> Option<()> {
    let mut at = 0;
    while at < tokens.len() {
        let first = tokens.get(at)?;
        if first.is("*") || first.is("**") || first.is("/") {
            kept.push(*first);
            at += 1;
        }
        if let Some(name) = tokens.get(at).filter(|token| is_name(token)) {
            kept.push(*name);
            at += 1;
            if tokens.get(at).is_some_and(|token| token.is(":")) {
                let end = end_of(tokens, at + 1, &[",", "="]);
                if !inert(tokens.get(at + 1..end)?) {
                    kept.extend(tokens.get(at..end)?);
                }
                at = end;
            }
        }
        if tokens.get(at).is_some_and(|token| token.is("=")) {
            let end = end_of(tokens, at, &[","]);
            let default = tokens.get(at..end)?;
            // Its own parameters have commas and colons too.
            if end_of(default, 0, &["lambda"]) < default.len() {
                return None;
            }
            kept.extend(default);
            at = end;
        }
        match tokens.get(at) {
            Some(comma) if comma.is(",") => kept.push(*comma),
            Some(_) => return None,
            None => {}
        }
        at += 1;
    }
    Some(())
}

/// An annotated assignment of a function's variable, without its type.
///
/// The colon stays where no value is assigned: the name is local by that.
pub(super) fn assignment<'a>(tokens: &[Token<'a>]) -> Option<Vec<Token<'a>>> {
    let colon = end_of(tokens, 0, &[":"]);
    let target = tokens.get(..colon)?;
    let is_target = |(at, token): (usize, &Token<'_>)| match at % 2 {
        0 => is_name(token),
        _ => token.is("."),
    };
    let is_target = target.len() % 2 == 1 && target.iter().enumerate().all(is_target);
    if !is_target || tokens.iter().any(|token| token.is(";")) {
        return None;
    }
    let equals = end_of(tokens, colon + 1, &["="]);
    if !is_inert(tokens.get(colon + 1..equals)?) {
        return None;
    }
    let mut kept = target.to_vec();
    match tokens.get(equals..)? {
        [] => kept.push(*tokens.get(colon)?),
        [equals, value @ ..] => {
            let first = value.first()?;
            // Not every version takes these after an annotation.
            let more = end_of(value, 0, &["=", ",", ":="]) < value.len();
            if more || first.is("*") || first.is("yield") {
                return None;
            }
            kept.push(*equals);
            kept.extend(value);
        }
    }
    Some(kept)
}

/// Whether an annotation is an expression of types that calls nothing: names,
/// subscripts, unions, plain texts and whole numbers.
pub(super) fn is_inert(annotation: &[Token<'_>]) -> bool {
    let mut reader = Reader {
        tokens: annotation,
        depth: 0,
    };
    reader.expression().is_some() && reader.tokens.is_empty()
}

struct Reader<'t, 'a> {
    tokens: &'t [Token<'a>],
    depth: usize,
}

impl<'a> Reader<'_, 'a> {
    fn next(&mut self) -> Option<Token<'a>> {
        let (first, rest) = self.tokens.split_first()?;
        self.tokens = rest;
        Some(*first)
    }

    fn sees(&self, word: &str) -> bool {
        self.tokens.first().is_some_and(|token| token.is(word))
    }

    fn expression(&mut self) -> Option<()> {
        self.term()?;
        while self.sees("|") {
            self.next()?;
            self.term()?;
        }
        Some(())
    }

    fn term(&mut self) -> Option<()> {
        let first = self.next()?;
        match first.kind {
            Kind::Text => is_plain_text(first.text).then_some(()),
            Kind::Number => is_whole(first.text).then_some(()),
            Kind::Operator if first.text == "..." => Some(()),
            Kind::Operator if first.text == "[" => match self.sees("]") {
                true => self.next().map(|_| ()),
                false => self.list(),
            },
            Kind::Operator => None,
            Kind::Name if matches!(first.text, "None" | "True" | "False") => Some(()),
            Kind::Name if is_keyword(first.text) => None,
            Kind::Name => self.trailers(),
        }
    }

    fn trailers(&mut self) -> Option<()> {
        loop {
            if self.sees(".") {
                self.next()?;
                is_name(&self.next()?).then_some(())?;
            } else if self.sees("[") {
                self.next()?;
                self.list()?;
            } else {
                return Some(());
            }
        }
    }

    /// At least one expression, up to the closing bracket.
    fn list(&mut self) -> Option<()> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }
        loop {
            self.expression()?;
            let next = self.next()?;
            match next.text {
                "," if !self.sees("]") => {}
                "," => {
                    self.next()?;
                    break;
                }
                "]" => break,
                _ => return None,
            }
        }
        self.depth -= 1;
        Some(())
    }
}

fn is_name(token: &Token<'_>) -> bool {
    token.kind == Kind::Name && !is_keyword(token.text)
}

/// A text on one line without a prefix or an escape.
fn is_plain_text(text: &str) -> bool {
    let quoted = text.starts_with(['"', '\'']);
    let triple = text.len() >= 6 && (text.starts_with("\"\"\"") || text.starts_with("'''"));
    quoted && !triple && !text.contains(['\\', '\n'])
}

fn is_whole(number: &str) -> bool {
    let digits = number.bytes().all(|byte| byte.is_ascii_digit());
    digits && (number == "0" || !number.starts_with('0'))
}

/// The first of these outside of brackets, from a place on; or the end.
fn end_of(tokens: &[Token<'_>], from: usize, words: &[&str]) -> usize {
    let mut depth = 0usize;
    for (at, token) in tokens.iter().enumerate().skip(from) {
        if depth == 0 && words.iter().any(|word| token.is(word)) {
            return at;
        }
        if token.is("(") || token.is("[") || token.is("{") {
            depth += 1;
        } else if token.is(")") || token.is("]") || token.is("}") {
            depth = depth.saturating_sub(1);
        }
    }
    tokens.len()
}
