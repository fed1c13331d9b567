//! Reads the text of one configuration file into written values.
//!
//! Knows the shape of TOML and the names of our sections, not what a value
//! means. Only sections that exist are entered, so depth is bounded.

use std::ops::Range;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::keys::{KEYS, PROVIDER_KEYS};
use crate::problem::{Place, Problem};

/// Longer names and values are shortened in messages.
const MAX_SHOWN: usize = 60;

/// One written value with its dotted name.
#[derive(Debug)]
pub(crate) struct Leaf<'a> {
    pub(crate) name: String,
    pub(crate) name_at: Range<usize>,
    pub(crate) value: DeValue<'a>,
    pub(crate) value_at: Range<usize>,
}

/// All values of a file, in the order of the text.
pub(crate) fn leaves<'a>(path: &Path, text: &'a str) -> Result<Vec<Leaf<'a>>, Box<Problem>> {
    let table = DeTable::parse(text).map_err(|error| {
        Box::new(Problem::Syntax {
            place: place(path, text, &error.span().unwrap_or(0..0)),
            message: error.message().lines().collect::<Vec<_>>().join(", "),
        })
    })?;
    let mut leaves = Vec::new();
    flatten(table.into_inner(), "", &mut leaves);
    leaves.sort_by_key(|leaf| leaf.name_at.start);
    Ok(leaves)
}

/// The place of a range of bytes in a file.
pub(crate) fn place(path: &Path, text: &str, range: &Range<usize>) -> Place {
    let start = text.floor_char_boundary(range.start);
    let end = text.ceil_char_boundary(range.end.max(start));
    let before = text.get(..start).unwrap_or_default();
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    let line = text.get(line_start..).unwrap_or_default().lines().next();
    let column = before.get(line_start..).unwrap_or_default().chars().count() + 1;
    let marked = text.get(start..end).unwrap_or_default().lines().next();
    Place::File {
        path: path.to_owned(),
        line: before.matches('\n').count() + 1,
        column,
        length: marked.unwrap_or_default().chars().count().max(1),
        text: line.unwrap_or_default().to_owned(),
    }
}

/// The text of a range of bytes, shortened for a message.
pub(crate) fn shown(text: &str, range: &Range<usize>) -> String {
    let written = text.get(range.clone()).unwrap_or_default();
    shorten(written.lines().next().unwrap_or_default())
}

/// At most [`MAX_SHOWN`] characters.
pub(crate) fn shorten(text: &str) -> String {
    let mut short: String = text.chars().take(MAX_SHOWN).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

/// Whether this name stands for a table of keys.
pub(crate) fn is_section(name: &str) -> bool {
    let above = |key: &str| {
        let below = key.strip_prefix(name);
        below.is_some_and(|below| below.starts_with('.'))
    };
    if KEYS.iter().any(|key| above(key.name)) {
        return true;
    }
    match provider_part(name) {
        Some((_, "")) => true,
        Some((_, part)) => PROVIDER_KEYS.iter().any(|key| {
            let below = key.name.strip_prefix(part);
            below.is_some_and(|below| below.starts_with('.'))
        }),
        None => name == "providers" || name == INTEGRATION,
    }
}

/// The section of integration tests, whose keys are names.
pub(crate) const INTEGRATION: &str = "tests.integration";

/// The name of an integration test, of `tests.integration.NAME`.
pub(crate) fn integration_part(name: &str) -> Option<&str> {
    name.strip_prefix(INTEGRATION)?.strip_prefix('.')
}

/// The provider's name and the key below it, of `providers.NAME.KEY`.
pub(crate) fn provider_part(name: &str) -> Option<(&str, &str)> {
    let rest = name.strip_prefix("providers.")?;
    Some(rest.split_once('.').unwrap_or((rest, "")))
}

fn flatten<'a>(table: DeTable<'a>, above: &str, leaves: &mut Vec<Leaf<'a>>) {
    for (key, value) in table {
        let name = dotted(above, key.get_ref());
        let (name_at, value_at) = (key.span(), value.span());
        match Spanned::into_inner(value) {
            DeValue::Table(inner) if is_section(&name) => flatten(inner, &name, leaves),
            value => leaves.push(Leaf {
                name,
                name_at,
                value,
                value_at,
            }),
        }
    }
}

/// A quoted key that holds a dot must not pass for two keys.
fn dotted(above: &str, key: &str) -> String {
    let key = match key.contains('.') {
        true => format!("{key:?}"),
        false => key.to_owned(),
    };
    match above {
        "" => key,
        above => format!("{above}.{key}"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names(text: &str) -> Vec<String> {
        let leaves = leaves(Path::new("c.toml"), text).unwrap();
        leaves.into_iter().map(|leaf| leaf.name).collect()
    }

    #[test]
    fn names_are_dotted_in_the_order_of_the_text() {
        let text = "model = 'a/b'\n[ui]\ncolor='never'\n[providers.x]\napi_key = {env='K'}\n";
        assert_eq!(
            names(text),
            ["model", "ui.color", "providers.x.api_key.env"]
        );
    }

    #[test]
    fn a_quoted_dot_and_an_unknown_table_stay_whole() {
        assert_eq!(names("\"ledger.path\" = 1"), ["\"ledger.path\""]);
        assert_eq!(
            names("[network]\nallow = [1]\n[network.a.b]\n"),
            ["network"]
        );
        assert_eq!(names("ledger.path = {x=1}"), ["ledger.path"]);
        assert!(names("[ledger]\n").is_empty());
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".*|([a-z.\"\\[\\]= {}\n]{0,80})") {
            let _ = leaves(Path::new("c.toml"), &text);
            let _ = place(Path::new("c.toml"), &text, &(3..9));
        }
    }
}
