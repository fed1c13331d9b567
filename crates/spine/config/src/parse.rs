//! Turns one written value into the typed field of its key.
//!
//! The same rules for TOML values and for the text of variables and flags.
//! Never reads a file and never knows which layer a value came from.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use fluffy_policy::capability::Pattern;
use toml::de::DeValue;

use crate::keys::Kind;
use crate::values::{ColorMode, KeySource, ProcessEngine, Provider, Values, Wire};

/// The longest text and the longest list of one key.
const MAX_TEXT: usize = 4096;
const MAX_ITEMS: usize = 64;
/// The longest identity in a channel.
const MAX_IDENTITY: usize = 128;

/// What a command is, as the end of a sentence.
pub(crate) const COMMAND: &str = "a program and its arguments, such as [\"cargo\", \"test\"]";

/// A value as it was written.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Raw<'a> {
    /// In a file.
    Toml(&'a DeValue<'a>),
    /// In a variable, a flag, or our own registry.
    Text(&'a str),
}

/// The value is not one of this key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mismatch;

impl Kind {
    /// Stores the value in its field and returns it as shown to people.
    pub(crate) fn store(
        self,
        raw: Raw<'_>,
        home: Option<&Path>,
        values: &mut Values,
    ) -> Result<String, Mismatch> {
        match self {
            Self::Color(field) => {
                *field(values) = color(raw.text()?)?;
                raw.text().map(str::to_owned)
            }
            Self::Command(field) => {
                let command = raw.command()?;
                let shown = command.join(" ");
                *field(values) = Some(command);
                Ok(shown)
            }
            Self::Count { least, most, field } => {
                let count = raw.count()?;
                let inside = (least..=most).contains(&count);
                *field(values) = inside.then_some(count).ok_or(Mismatch)?;
                Ok(count.to_string())
            }
            Self::Engine(field) => {
                let name = raw.text()?;
                *field(values) = ProcessEngine::named(name).ok_or(Mismatch)?;
                Ok(name.to_owned())
            }
            Self::Inside(field) => {
                let path = raw.text()?;
                *field(values) = Some(is_inside(path).then(|| path.to_owned()).ok_or(Mismatch)?);
                Ok(path.to_owned())
            }
            Self::Model(field) => {
                let name = raw.text()?;
                let valid = is_model(name);
                *field(values) = Some(valid.then(|| name.to_owned()).ok_or(Mismatch)?);
                Ok(name.to_owned())
            }
            Self::Path(field) => {
                let path = absolute(Path::new(raw.text()?), home)?;
                let shown = path.display().to_string();
                *field(values) = Some(path);
                Ok(shown)
            }
            Self::Paths(field) => {
                let paths = raw.paths(home)?;
                let shown: Vec<_> = paths.iter().map(|p| p.display().to_string()).collect();
                *field(values) = paths;
                Ok(shown.join(", "))
            }
            Self::Patterns(field) => {
                let patterns = raw.items(str::split_whitespace)?;
                let valid = patterns.iter().all(|one| Pattern::parse(one).is_ok());
                let shown = patterns.join(" ");
                *field(values) = valid.then_some(patterns).ok_or(Mismatch)?;
                Ok(shown)
            }
            Self::Size(field) => store_unit(raw.unit_text()?.as_ref(), field(values)),
            Self::Speakers(field) => {
                let speakers = raw.items(str::split_whitespace)?;
                let shown = speakers.join(" ");
                let valid = speakers.iter().all(|one| is_speaker(one));
                *field(values) = valid.then_some(speakers).ok_or(Mismatch)?;
                Ok(shown)
            }
            Self::Time(field) => store_unit(raw.text()?, field(values)),
        }
    }

    /// What values there are, as the end of a sentence.
    pub(crate) fn expected(self) -> String {
        match self {
            Self::Color(_) => "auto, always or never".to_owned(),
            Self::Command(_) => COMMAND.to_owned(),
            Self::Count { least, most, .. } => {
                format!("a whole number from {least} to {most}")
            }
            Self::Engine(_) => "native, bwrap or reduced".to_owned(),
            Self::Inside(_) => "a path inside the project, such as coverage/lcov.info".to_owned(),
            Self::Model(_) => "a provider and its model, as in provider/model".to_owned(),
            Self::Path(_) => "an absolute path, or one that starts with ~/".to_owned(),
            Self::Paths(_) => {
                "a list of absolute paths; ~/ stands for your home directory".to_owned()
            }
            Self::Patterns(_) => {
                "a list of patterns of capabilities, such as [\"kv.*\", \"fs.read./docs/*\"]"
                    .to_owned()
            }
            Self::Size(_) => "a size such as 512MiB or 1GiB".to_owned(),
            Self::Speakers(_) => {
                "a list of identities with their channel, such as [\"chat:ada\"]".to_owned()
            }
            Self::Time(_) => "a time such as 90s, 30m or 2h".to_owned(),
        }
    }

    /// Whether a value is more than another, for keys that a project may only
    /// lower.
    pub(crate) fn is_more(self, values: &mut Values, than: &mut Values) -> bool {
        let Self::Patterns(field) = self else {
            return self.amount(values) > self.amount(than);
        };
        let parsed = |patterns: &[String]| -> Vec<Pattern> {
            let parsed = patterns.iter().filter_map(|one| Pattern::parse(one).ok());
            parsed.collect()
        };
        let wide = parsed(field(than));
        let is_covered = |one: &Pattern| wide.iter().any(|wide| wide.covers(one));
        !parsed(field(values)).iter().all(is_covered)
    }

    fn amount(self, values: &mut Values) -> Option<u64> {
        match self {
            Self::Count { field, .. } => Some(*field(values)),
            Self::Size(field) => Some(field(values).0),
            Self::Time(field) => Some(field(values).millis),
            Self::Color(_)
            | Self::Command(_)
            | Self::Engine(_)
            | Self::Inside(_)
            | Self::Model(_)
            | Self::Path(_)
            | Self::Paths(_)
            | Self::Patterns(_)
            | Self::Speakers(_) => None,
        }
    }
}

impl<'a> Raw<'a> {
    /// A text of bounded length without control characters.
    pub(crate) fn text(self) -> Result<&'a str, Mismatch> {
        let text = match self {
            Self::Text(text) => text,
            Self::Toml(DeValue::String(text)) => text.as_ref(),
            Self::Toml(_) => return Err(Mismatch),
        };
        let valid = text.len() <= MAX_TEXT && !text.contains(char::is_control);
        valid.then_some(text).ok_or(Mismatch)
    }

    fn count(self) -> Result<u64, Mismatch> {
        match self {
            Self::Text(text) if text.bytes().all(|byte| byte.is_ascii_digit()) => {
                text.parse().map_err(|_| Mismatch)
            }
            Self::Toml(DeValue::Integer(number)) => {
                u64::from_str_radix(number.as_str(), number.radix()).map_err(|_| Mismatch)
            }
            Self::Text(_) | Self::Toml(_) => Err(Mismatch),
        }
    }

    /// A text, or a plain number, which means bytes.
    fn unit_text(self) -> Result<String, Mismatch> {
        match self {
            Self::Toml(DeValue::Integer(_)) => self.count().map(|count| count.to_string()),
            Self::Toml(_) | Self::Text(_) => self.text().map(str::to_owned),
        }
    }

    /// A program and its arguments.
    pub(crate) fn command(self) -> Result<Vec<String>, Mismatch> {
        let command = self.items(str::split_whitespace)?;
        let valid = !command.is_empty() && !command.iter().any(|word| word.contains('\0'));
        valid.then_some(command).ok_or(Mismatch)
    }

    /// The items of a list; text is cut into items by `split`.
    fn items<'t, I: Iterator<Item = &'t str>>(
        self,
        split: impl FnOnce(&'t str) -> I,
    ) -> Result<Vec<String>, Mismatch>
    where
        'a: 't,
    {
        let items: Vec<String> = match self {
            Self::Text(text) => split(text).map(str::to_owned).collect(),
            Self::Toml(DeValue::Array(array)) => (array.iter())
                .map(|item| item.get_ref().as_str().map(str::to_owned).ok_or(Mismatch))
                .collect::<Result<_, _>>()?,
            Self::Toml(_) => return Err(Mismatch),
        };
        let bounded = items.len() <= MAX_ITEMS && items.iter().all(|item| item.len() <= MAX_TEXT);
        bounded.then_some(items).ok_or(Mismatch)
    }

    fn paths(self, home: Option<&Path>) -> Result<Vec<PathBuf>, Mismatch> {
        let separator = if cfg!(windows) { ';' } else { ':' };
        let items = self.items(|text| text.split(separator).filter(|item| !item.is_empty()))?;
        (items.iter())
            .map(|item| absolute(Path::new(item), home))
            .collect()
    }
}

fn store_unit<T: FromStr + std::fmt::Display>(
    text: &str,
    field: &mut T,
) -> Result<String, Mismatch> {
    *field = text.parse().map_err(|_| Mismatch)?;
    Ok(field.to_string())
}

/// Relative paths are refused: they would mean another file in every directory.
fn absolute(path: &Path, home: Option<&Path>) -> Result<PathBuf, Mismatch> {
    let path = match (path.strip_prefix("~"), home) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path.to_owned(),
    };
    let plain = !path
        .components()
        .any(|part| part == std::path::Component::ParentDir);
    (path.is_absolute() && plain)
        .then_some(path)
        .ok_or(Mismatch)
}

/// Whether a path stays in the directory that it is relative to.
fn is_inside(path: &str) -> bool {
    let plain = |part: std::path::Component<'_>| matches!(part, std::path::Component::Normal(_));
    !path.is_empty() && Path::new(path).components().all(plain)
}

fn color(text: &str) -> Result<ColorMode, Mismatch> {
    match text {
        "auto" => Ok(ColorMode::Auto),
        "always" => Ok(ColorMode::Always),
        "never" => Ok(ColorMode::Never),
        _ => Err(Mismatch),
    }
}

/// `channel:identity`, with nothing that could be taken for something else.
fn is_speaker(text: &str) -> bool {
    let named = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    text.split_once(':').is_some_and(|(channel, identity)| {
        (1..=64).contains(&channel.len())
            && channel.bytes().all(named)
            && (1..=MAX_IDENTITY).contains(&identity.len())
            && identity.bytes().all(|byte| byte.is_ascii_graphic())
    })
}

fn is_model(text: &str) -> bool {
    // One of a plugin.
    let text = text.strip_prefix("plugin:").unwrap_or(text);
    text.split_once('/').is_some_and(|(provider, model)| {
        is_provider_name(provider) && !model.is_empty() && !model.contains(char::is_whitespace)
    })
}

/// Lowercase letters, digits and hyphens, at most 32.
pub(crate) fn is_provider_name(name: &str) -> bool {
    let valid = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=32).contains(&name.len()) && name.bytes().all(valid)
}

pub(crate) fn provider_key_env(provider: &mut Provider, text: &str) -> Result<(), &'static str> {
    let valid = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if text.is_empty() || !text.chars().all(valid) || text.starts_with(|c: char| c.is_ascii_digit())
    {
        return Err("the name of an environment variable, not the key itself");
    }
    provider.api_key = Some(KeySource::Env(text.to_owned()));
    Ok(())
}

pub(crate) fn provider_key_keyring(
    provider: &mut Provider,
    text: &str,
) -> Result<(), &'static str> {
    let valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    // It becomes a word on a command line.
    if !(1..=64).contains(&text.len()) || !text.chars().all(valid) || text.starts_with('-') {
        return Err(
            "the name of an entry in the system's keyring (letters, digits, `_`, `-`, `.`), \
             not the key itself",
        );
    }
    provider.api_key = Some(KeySource::Keyring(text.to_owned()));
    Ok(())
}

pub(crate) fn provider_base_url(provider: &mut Provider, text: &str) -> Result<(), &'static str> {
    let rest = text
        .strip_prefix("https://")
        .or_else(|| text.strip_prefix("http://"));
    match rest {
        // A user name in a URL would be a secret in a file.
        Some(rest) if !rest.is_empty() && !rest.contains(['@', ' ', '"']) => {
            provider.base_url = Some(text.to_owned());
            Ok(())
        }
        _ => Err("a URL that starts with https:// or http:// and holds no password"),
    }
}

pub(crate) fn provider_wire(provider: &mut Provider, text: &str) -> Result<(), &'static str> {
    provider.wire = Some(match text {
        "chat" => Wire::Chat,
        "responses" => Wire::Responses,
        _ => return Err("responses or chat"),
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::{KEYS, find};

    fn store(key: &str, text: &str) -> Result<(String, Values), Mismatch> {
        let mut values = Values::default();
        let kind = find(key).unwrap().kind;
        let shown = kind.store(Raw::Text(text), Some(Path::new("/home/me")), &mut values)?;
        Ok((shown, values))
    }

    #[test]
    fn every_default_is_a_value_of_its_key() {
        for key in KEYS.iter().filter(|key| !key.default.is_empty()) {
            let (shown, _) = store(key.name, key.default).unwrap();
            assert_eq!(shown, key.default, "{}", key.name);
        }
    }

    #[test]
    fn text_becomes_typed() {
        let (_, values) = store("ledger.witness", "/a:~/b").unwrap();
        assert_eq!(
            values.ledger.witness,
            ["/a", "/home/me/b"].map(PathBuf::from)
        );
        let (_, values) = store("tests.command", "cargo  test").unwrap();
        assert_eq!(values.tests.command.unwrap(), ["cargo", "test"]);
        let (_, values) = store("ledger.retention_size", "2MB").unwrap();
        assert_eq!(values.ledger.retention_size.0, 2_000_000);
    }

    #[test]
    fn what_is_not_a_value_is_refused() {
        for (key, text) in [
            ("ledger.path", "relative/path"),
            ("ledger.path", "/a/../b"),
            ("ledger.path", "~other/x"),
            ("ledger.retention_days", "0"),
            ("ledger.retention_days", "-1"),
            ("ledger.retention_days", "+1"),
            ("ledger.retention_days", ""),
            ("ledger.retention_days", "99999999999999999999999"),
            ("ledger.retention_size", "1kb"),
            ("budget.wall_time", "5"),
            ("ui.color", "Auto"),
            ("sandbox.engine", "none"),
            ("model", "no-slash"),
            ("model", "Open AI/x"),
            ("model", "openai/"),
            ("model", "openai/a\u{1b}b"),
            ("tests.command", " "),
            ("tests.coverage.report", ""),
            ("tests.coverage.report", "/etc/passwd"),
            ("tests.coverage.report", "../lcov.info"),
            ("tests.coverage.report", "a/../../b"),
        ] {
            assert_eq!(store(key, text).unwrap_err(), Mismatch, "{key} {text:?}");
        }
        assert!(store("model", &format!("a/{}", "x".repeat(MAX_TEXT))).is_err());
    }

    #[test]
    fn a_refused_value_leaves_the_field_as_it_was() {
        let mut values = Values::default();
        values.ledger.retention_days = 7;
        let kind = find("ledger.retention_days").unwrap().kind;
        assert!(kind.store(Raw::Text("0"), None, &mut values).is_err());
        assert_eq!(values.ledger.retention_days, 7);
    }

    #[test]
    fn a_key_itself_is_never_taken_for_its_name() {
        let mut provider = Provider::default();
        assert!(provider_key_env(&mut provider, "sk-abc-123").is_err());
        assert!(provider_key_env(&mut provider, "OPENAI_API_KEY").is_ok());
        assert!(provider_base_url(&mut provider, "https://u:p@host").is_err());
        assert!(provider_base_url(&mut provider, "ftp://host").is_err());
        assert!(provider_base_url(&mut provider, "http://127.0.0.1:11434/v1").is_ok());
    }
}
