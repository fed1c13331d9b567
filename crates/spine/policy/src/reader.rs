//! Typed reading of YAML nodes, with a finding for everything that is off.
//!
//! Knows shapes and words but no policy; [`crate::document`], [`crate::table`]
//! and the manifests of plugins say which fields exist. Each function answers
//! `None` after it has put an error into the findings.

use std::str::FromStr;

use fluffy_base::{ByteSize, Span};

use crate::action::distance;
use crate::diagnostic::{Findings, Place};
use crate::glob::{GlobError, GlobSet};
use crate::rule::{Comparison, Operator};
use crate::word::UnknownWord;
use crate::yaml::{Key, Node, Value};

/// The most values one list may have.
const MAX_LIST: usize = 4096;

/// Reads nodes, and remembers what is wrong with them.
#[derive(Debug, Default)]
pub struct Reader {
    /// What was found so far.
    pub findings: Findings,
}

/// The fields of one mapping, all of them known.
#[derive(Debug, Clone, Copy)]
pub struct Fields<'n> {
    /// Where the mapping begins.
    pub place: Place,
    entries: &'n [(Key<'n>, Node<'n>)],
}

impl<'n> Fields<'n> {
    /// The value of a field, if it is there.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&'n Node<'n>> {
        let found = self.entries.iter().find(|(key, _)| key.text == name);
        found.map(|(_, node)| node)
    }

    /// Every field in the order of the text.
    pub fn iter(&self) -> impl Iterator<Item = (&'n Key<'n>, &'n Node<'n>)> {
        self.entries.iter().map(|(key, node)| (key, node))
    }
}

/// A text and where it stands.
#[derive(Debug, Clone, Copy)]
pub struct Placed<'n> {
    /// The text.
    pub text: &'n str,
    /// Where.
    pub place: Place,
}

impl Reader {
    /// The fields of a mapping; unknown ones are errors.
    pub fn fields<'n>(
        &mut self,
        node: &'n Node<'n>,
        what: &str,
        known: &[&str],
    ) -> Option<Fields<'n>> {
        let fields = self.entries(node, what)?;
        for (key, _) in fields.iter() {
            if !known.contains(&&*key.text) {
                self.unknown_field(key, what, known);
            }
        }
        Some(fields)
    }

    /// The entries of a mapping whose names are free.
    pub fn entries<'n>(&mut self, node: &'n Node<'n>, what: &str) -> Option<Fields<'n>> {
        match &node.value {
            Value::Map(entries) => Some(Fields {
                place: node.place,
                entries,
            }),
            _ => {
                self.wrong_shape(node, what, "a mapping such as `{ field: value }`");
                None
            }
        }
    }

    fn unknown_field(&mut self, key: &Key<'_>, what: &str, known: &[&str]) {
        let shown: String = key.text.chars().take(64).collect();
        let nearest = nearest(&shown, known);
        self.findings.error(
            key.place,
            format!("unknown field `{shown}` in {what}"),
            "a field that is ignored would look as if it held",
            match nearest {
                Some(word) => format!("did you mean `{word}`?"),
                None => format!("use one of {}", known.join(", ")),
            },
        );
    }

    /// Says that a field is not there.
    pub fn missing(&mut self, place: Place, what: &str, field: &str, help: &str) {
        self.findings.error(
            place,
            format!("{what} has no `{field}`"),
            "nothing is assumed",
            help,
        );
    }

    fn wrong_shape(&mut self, node: &Node<'_>, what: &str, wanted: &str) {
        let found = match &node.value {
            Value::Null => "nothing",
            Value::Text { .. } => "a single value",
            Value::List(_) => "a list",
            Value::Map(_) => "a mapping",
        };
        self.findings.error(
            node.place,
            format!("{what} is {found}"),
            "each field has one shape",
            format!("write {wanted}"),
        );
    }

    /// A single value.
    pub fn text<'n>(&mut self, node: &'n Node<'n>, what: &str) -> Option<Placed<'n>> {
        match &node.value {
            Value::Text { text, .. } => Some(Placed {
                text,
                place: node.place,
            }),
            _ => {
                self.wrong_shape(node, what, "a single value");
                None
            }
        }
    }

    /// The nodes of a list.
    pub fn list<'n>(&mut self, node: &'n Node<'n>, what: &str) -> Option<&'n [Node<'n>]> {
        match &node.value {
            Value::List(items) => Some(items),
            _ => {
                self.wrong_shape(node, what, "a list such as `[a, b]`");
                None
            }
        }
    }

    /// One text or a list of texts.
    pub fn texts<'n>(&mut self, node: &'n Node<'n>, what: &str) -> Option<Vec<Placed<'n>>> {
        let items = match &node.value {
            Value::Text { text, .. } => {
                return Some(vec![Placed {
                    text,
                    place: node.place,
                }]);
            }
            Value::List(items) if items.len() <= MAX_LIST => items,
            Value::List(_) => {
                self.findings.error(
                    node.place,
                    format!("{what} has more than {MAX_LIST} values"),
                    "every list is bounded",
                    "shorten it",
                );
                return None;
            }
            _ => {
                self.wrong_shape(node, what, "a value or a list of values");
                return None;
            }
        };
        let texts: Vec<_> = items.iter().map(|item| self.text(item, what)).collect();
        texts.into_iter().collect()
    }

    /// A list of plain texts.
    pub(crate) fn strings(&mut self, node: &Node<'_>, what: &str) -> Option<Vec<String>> {
        let texts = self.texts(node, what)?;
        Some(texts.into_iter().map(|each| each.text.to_owned()).collect())
    }

    /// A list of words of one closed list.
    pub(crate) fn words<T: FromStr<Err = UnknownWord>>(
        &mut self,
        node: &Node<'_>,
        what: &str,
    ) -> Option<Vec<T>> {
        let texts = self.texts(node, what)?;
        let words: Vec<_> = texts.into_iter().map(|each| self.word(each)).collect();
        words.into_iter().collect()
    }

    /// A word of a closed list.
    pub fn word<T: FromStr<Err = UnknownWord>>(&mut self, placed: Placed<'_>) -> Option<T> {
        let error = match placed.text.parse() {
            Ok(word) => return Some(word),
            Err(error) => error,
        };
        let help = match nearest(&error.text, error.words) {
            Some(word) => format!("did you mean `{word}`?"),
            None => format!("use one of {}", error.words.join(", ")),
        };
        self.findings.error(
            placed.place,
            error.to_string(),
            "a word that does not exist would never match",
            help,
        );
        None
    }

    /// `true` or `false`, unquoted.
    pub fn flag(&mut self, node: &Node<'_>, what: &str) -> Option<bool> {
        match &node.value {
            Value::Text { text, plain: true } if text == "true" => Some(true),
            Value::Text { text, plain: true } if text == "false" => Some(false),
            _ => {
                self.findings.error(
                    node.place,
                    format!("{what} is neither true nor false"),
                    "other spellings mean different things to different readers",
                    "write `true` or `false`, without quotes",
                );
                None
            }
        }
    }

    /// A number of bytes such as `100KiB`.
    pub fn size(&mut self, node: &Node<'_>, what: &str) -> Option<u64> {
        let placed = self.text(node, what)?;
        self.size_of(placed, placed.text)
    }

    fn size_of(&mut self, placed: Placed<'_>, text: &str) -> Option<u64> {
        match text.parse::<ByteSize>() {
            Ok(size) => Some(size.0),
            Err(error) => {
                self.findings.error(
                    placed.place,
                    error.to_string(),
                    "units are case-sensitive and have one meaning each",
                    "write for example `100KiB`",
                );
                None
            }
        }
    }

    /// A whole number.
    pub fn count(&mut self, node: &Node<'_>, what: &str) -> Option<u64> {
        let placed = self.text(node, what)?;
        self.count_of(placed, placed.text)
    }

    fn count_of(&mut self, placed: Placed<'_>, text: &str) -> Option<u64> {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = digits.then(|| text.parse().ok()).flatten();
        if number.is_none() {
            let shown: String = text.chars().take(64).collect();
            self.findings.error(
                placed.place,
                format!("`{shown}` is not a whole number"),
                "other spellings mean different things to different readers",
                "write digits alone, such as `500`",
            );
        }
        number
    }

    /// A whole number from 1 on.
    pub fn positive(&mut self, node: &Node<'_>, what: &str) -> Option<u32> {
        let count = self.count(node, what)?;
        let number = u32::try_from(count).ok().filter(|count| *count > 0);
        self.usable(node, number, "a number from 1 on")
    }

    /// Processors as people write them, `2` or `0.5`, in thousandths.
    pub fn processors(&mut self, node: &Node<'_>, what: &str) -> Option<u32> {
        let Placed { text, .. } = self.text(node, what)?;
        let whole = |text: &str| text.parse::<u32>().ok()?.checked_mul(1_000);
        let milli = match text.split_once('.') {
            None => whole(text),
            Some((before, part)) if (1..=3).contains(&part.len()) => {
                let part = format!("{part:0<3}").parse::<u32>().ok();
                let both = whole(before).zip(part);
                both.and_then(|(before, part)| before.checked_add(part))
            }
            Some(_) => None,
        };
        let plain = text
            .bytes()
            .all(|byte| byte.is_ascii_digit() || byte == b'.');
        let milli = milli.filter(|milli| *milli > 0 && plain);
        self.usable(node, milli, "processors such as `2` or `0.5`")
    }

    /// A time such as `30s`, longer than none.
    pub fn span(&mut self, node: &Node<'_>, what: &str) -> Option<Span> {
        let Placed { text, .. } = self.text(node, what)?;
        let span = text.parse::<Span>().ok().filter(|span| span.millis > 0);
        self.usable(node, span, "a time such as `30s`, `5m` or `1h`")
    }

    fn usable<T>(&mut self, node: &Node<'_>, value: Option<T>, wanted: &str) -> Option<T> {
        if value.is_none() {
            self.findings.error(
                node.place,
                "this value cannot be used",
                "a limit that is not understood would not hold",
                format!("write {wanted}"),
            );
        }
        value
    }

    /// Comparisons such as `> 100KiB`, of sizes or of counts.
    pub(crate) fn comparisons(
        &mut self,
        node: &Node<'_>,
        measure: Measure,
    ) -> Option<Vec<Comparison>> {
        let texts = self.texts(node, measure.name())?;
        let read: Vec<_> = texts
            .into_iter()
            .map(|placed| self.comparison(placed, measure))
            .collect();
        read.into_iter().collect()
    }

    fn comparison(&mut self, placed: Placed<'_>, measure: Measure) -> Option<Comparison> {
        let operators = [
            ("<=", Operator::AtMost),
            (">=", Operator::AtLeast),
            ("<", Operator::Less),
            (">", Operator::More),
            ("=", Operator::Equal),
        ];
        let found = operators
            .iter()
            .find_map(|(sign, operator)| Some((placed.text.strip_prefix(sign)?, *operator)));
        let Some((rest, operator)) = found else {
            let shown: String = placed.text.chars().take(64).collect();
            self.findings.error(
                placed.place,
                format!("`{shown}` is not a comparison"),
                "a number alone does not say which side of it is meant",
                "write for example `\"> 100\"`, in quotes",
            );
            return None;
        };
        let number = match measure {
            Measure::Size => self.size_of(placed, rest.trim_start()),
            Measure::Lines => self.count_of(placed, rest.trim_start()),
        };
        number.map(|number| Comparison { operator, number })
    }

    pub(crate) fn globs(&mut self, node: &Node<'_>, what: &str) -> Option<GlobSet> {
        let texts = self.texts(node, what)?;
        match GlobSet::build(texts.iter().map(|each| each.text)) {
            Ok(globs) => Some(globs),
            Err((index, error)) => {
                let place = match error {
                    GlobError::OnlyExcluding => node.place,
                    _ => texts.get(index).map_or(node.place, |each| each.place),
                };
                self.findings.error(
                    place,
                    error.to_string(),
                    "a glob is compiled when the policy is loaded",
                    glob_help(&error),
                );
                None
            }
        }
    }
}

/// What a comparison is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Measure {
    Size,
    Lines,
}

impl Measure {
    fn name(self) -> &'static str {
        match self {
            Self::Size => "`size`",
            Self::Lines => "`lines`",
        }
    }
}

fn glob_help(error: &GlobError) -> &'static str {
    match error {
        GlobError::Empty => "write `**` for everything",
        GlobError::TooLong => "split it into several",
        GlobError::Control(_) => "remove the character",
        GlobError::Unreachable(_) => "write the path as it is after normalising",
        GlobError::Class(_) => "close the `[`, or write `\\[` for the character",
        GlobError::Escape(_) => "write `\\\\` for a backslash",
        GlobError::Root(_) => "use `@data/` or `@host/`, or `\\@` for the character",
        GlobError::OnlyExcluding => "add what to include, such as `**`",
    }
}

/// The known word that is probably meant.
#[must_use]
pub fn nearest<'w>(text: &str, words: &[&'w str]) -> Option<&'w str> {
    let close = words.iter().filter(|word| distance(text, word) <= 2);
    close.min_by_key(|word| distance(text, word)).copied()
}
