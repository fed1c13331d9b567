//! Reads TOML values of a wanted kind and remembers everything that is wrong.
//!
//! Knows places and kinds, not what a field means. Nothing here stops at the
//! first mistake: what cannot be read is left out and told. Next: `document`.

use std::ops::{Range, RangeInclusive};

use fluffy_base::ByteSize;
use fluffy_policy::reader::nearest;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::problem::{Code, Problem};

/// More problems than this help nobody.
const MOST_PROBLEMS: usize = 100;

/// Longer values are shortened in messages.
const SHOWN: usize = 60;

/// The text with what was found wrong in it.
#[derive(Debug)]
pub(crate) struct Reader<'t> {
    text: &'t str,
    pub(crate) problems: Vec<Problem>,
}

/// One value and where it is.
#[derive(Debug, Clone)]
pub(crate) struct Item<'v> {
    pub(crate) path: String,
    span: Range<usize>,
    value: &'v DeValue<'v>,
}

/// A table whose fields are known.
#[derive(Debug, Clone)]
pub(crate) struct Fields<'v> {
    pub(crate) path: String,
    span: Range<usize>,
    table: &'v DeTable<'v>,
}

impl<'v> Item<'v> {
    /// The text, if it is one.
    pub(crate) fn as_text(&self) -> Option<&'v str> {
        match self.value {
            DeValue::String(text) => Some(text.as_ref()),
            _ => None,
        }
    }

    /// How many bytes of the text it takes.
    pub(crate) fn size(&self) -> usize {
        self.span.len()
    }
}

impl<'v> Fields<'v> {
    /// The whole document.
    pub(crate) fn root(table: &'v Spanned<DeTable<'v>>) -> Self {
        Self {
            path: String::new(),
            span: 0..0,
            table: table.get_ref(),
        }
    }

    /// A field, if it is written.
    pub(crate) fn get(&self, name: &str) -> Option<Item<'v>> {
        self.entries()
            .find(|(key, _)| key == name)
            .map(|(_, item)| item)
    }

    /// All fields in the order of the text.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (String, Item<'v>)> {
        self.table.iter().map(|(key, value)| {
            let item = Item {
                path: joined(&self.path, key.get_ref()),
                span: value.span(),
                value: value.get_ref(),
            };
            (key.get_ref().to_string(), item)
        })
    }
}

impl<'t> Reader<'t> {
    pub(crate) fn new(text: &'t str) -> Self {
        Self {
            text,
            problems: Vec::new(),
        }
    }

    /// Remembers a problem at a place of the text.
    pub(crate) fn add(&mut self, code: Code, path: &str, span: &Range<usize>, message: String) {
        self.add_with(code, path, span, (message, None));
    }

    fn add_with(
        &mut self,
        code: Code,
        path: &str,
        span: &Range<usize>,
        (message, fix): (String, Option<String>),
    ) {
        if self.problems.len() >= MOST_PROBLEMS {
            return;
        }
        let start = self.text.floor_char_boundary(span.start);
        let before = self.text.get(..start).unwrap_or_default();
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let in_line = before.get(line_start..).unwrap_or_default();
        self.problems.push(Problem {
            code,
            field: path.to_owned(),
            message,
            fix,
            line: before.matches('\n').count() + 1,
            column: in_line.chars().count() + 1,
        });
    }

    /// Remembers a problem with a value.
    pub(crate) fn wrong(&mut self, item: &Item<'_>, code: Code, message: impl Into<String>) {
        self.add(code, &item.path, &item.span, message.into());
    }

    /// Remembers a problem with a value, and what helps.
    pub(crate) fn wrong_but(
        &mut self,
        item: &Item<'_>,
        code: Code,
        message: impl Into<String>,
        fix: impl Into<String>,
    ) {
        let said = (message.into(), Some(fix.into()));
        self.add_with(code, &item.path, &item.span, said);
    }

    /// Remembers that a field is missing.
    pub(crate) fn missing(&mut self, fields: &Fields<'_>, name: &str) {
        let path = joined(&fields.path, name);
        let message = format!("`{path}` is required");
        self.add(Code::Required, &path, &fields.span, message);
    }

    /// A table with only these fields; others are told, with what was meant.
    pub(crate) fn known(&mut self, fields: &Fields<'_>, known: &[&str]) {
        for (key, _) in fields.table.iter() {
            let name = key.get_ref().as_ref();
            if known.contains(&name) {
                continue;
            }
            let path = joined(&fields.path, name);
            let message = format!("there is no field `{}`", shorten(&path));
            let fix = nearest(name, known).map(|near| format!("did you mean `{near}`?"));
            self.add_with(Code::UnknownField, &path, &key.span(), (message, fix));
        }
    }

    /// A table, with any fields.
    pub(crate) fn table<'v>(&mut self, item: &Item<'v>) -> Option<Fields<'v>> {
        match item.value {
            DeValue::Table(table) => Some(Fields {
                path: item.path.clone(),
                span: item.span.clone(),
                table,
            }),
            _ => self.not(item, "a table"),
        }
    }

    /// A table below a table, with only these fields.
    pub(crate) fn section<'v>(
        &mut self,
        fields: &Fields<'v>,
        name: &str,
        known: &[&str],
    ) -> Option<Fields<'v>> {
        let section = self.table(&fields.get(name)?)?;
        self.known(&section, known);
        Some(section)
    }

    pub(crate) fn list<'v>(&mut self, item: &Item<'v>) -> Option<Vec<Item<'v>>> {
        match item.value {
            DeValue::Array(array) => {
                let items = array.iter().enumerate().map(|(at, value)| Item {
                    path: format!("{}[{at}]", item.path),
                    span: value.span(),
                    value: value.get_ref(),
                });
                Some(items.collect())
            }
            _ => self.not(item, "a list"),
        }
    }

    pub(crate) fn text<'v>(&mut self, item: &Item<'v>) -> Option<&'v str> {
        match item.value {
            DeValue::String(text) => Some(text.as_ref()),
            _ => self.not(item, "text"),
        }
    }

    pub(crate) fn flag(&mut self, item: &Item<'_>) -> Option<bool> {
        match item.value {
            DeValue::Boolean(flag) => Some(*flag),
            _ => self.not(item, "true or false"),
        }
    }

    /// A whole number; one that does not fit is as wrong as one out of bounds.
    pub(crate) fn integer(&mut self, item: &Item<'_>) -> Option<i64> {
        match item.value {
            DeValue::Integer(number) => {
                let parsed = i64::from_str_radix(number.as_str(), number.radix());
                Some(parsed.unwrap_or(i64::MAX))
            }
            _ => self.not(item, "a whole number"),
        }
    }

    /// The text of a number, whole or not.
    pub(crate) fn decimal<'v>(&mut self, item: &'v Item<'_>) -> Option<&'v str> {
        match item.value {
            DeValue::Integer(number) if number.radix() == 10 => Some(number.as_str()),
            DeValue::Float(number) => Some(number.as_str()),
            _ => self.not(item, "a number"),
        }
    }

    fn not<T>(&mut self, item: &Item<'_>, wanted: &str) -> Option<T> {
        let message = format!("`{}` must be {wanted}", shorten(&item.path));
        self.wrong(item, Code::Type, message);
        None
    }

    /// A number within bounds, or what it is by default.
    pub(crate) fn number(
        &mut self,
        fields: &Fields<'_>,
        name: &str,
        (bounds, default): (RangeInclusive<i64>, i64),
        code: Code,
    ) -> u32 {
        let written = fields.get(name).and_then(|item| {
            let number = self.integer(&item)?;
            if bounds.contains(&number) {
                return Some(number);
            }
            let (low, high) = (bounds.start(), bounds.end());
            let message = format!("`{}` must be {low} to {high}, not {number}", item.path);
            self.wrong(&item, code, message);
            None
        });
        u32::try_from(written.unwrap_or(default)).unwrap_or_default()
    }

    /// One of some words, or what it is by default: its place among them.
    pub(crate) fn word(
        &mut self,
        fields: &Fields<'_>,
        name: &str,
        words: &[&str],
        code: Code,
    ) -> Option<usize> {
        let item = fields.get(name)?;
        let text = self.text(&item)?;
        let found = words.iter().position(|word| *word == text);
        if found.is_none() {
            let message = format!("`{}` cannot be `{}`", item.path, shorten(text));
            self.wrong_but(
                &item,
                code,
                message,
                format!("use one of {}", words.join(", ")),
            );
        }
        found
    }

    /// A size within bounds.
    pub(crate) fn size(
        &mut self,
        item: &Item<'_>,
        bounds: RangeInclusive<u64>,
        code: Code,
    ) -> Option<u64> {
        let text = self.text(item)?;
        let Ok(size) = text.parse::<ByteSize>() else {
            let message = format!("`{}` is not a size", shorten(text));
            let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
            let unit = text.get(digits.len()..).unwrap_or_default();
            let fix = match unit {
                "Ki" | "Mi" | "Gi" => format!("write `{digits}{unit}B`"),
                _ => "use KiB, MiB or GiB, or KB, MB or GB, such as `512MiB`".to_owned(),
            };
            self.wrong_but(item, Code::Unit, message, fix);
            return None;
        };
        if bounds.contains(&size.0) {
            return Some(size.0);
        }
        let (low, high) = (ByteSize(*bounds.start()), ByteSize(*bounds.end()));
        let message = format!("`{}` must be {low} to {high}, not {size}", item.path);
        self.wrong(item, code, message);
        None
    }
}

/// A dotted path.
pub(crate) fn joined(above: &str, name: &str) -> String {
    match above {
        "" => name.to_owned(),
        above => format!("{above}.{name}"),
    }
}

/// A text that is short enough for a message.
pub(crate) fn shorten(text: &str) -> String {
    let mut short: String = text.chars().take(SHOWN).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}
