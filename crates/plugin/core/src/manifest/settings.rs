//! `config_schema`: the settings of a plugin, and whether a value is one.
//!
//! The part of JSON Schema that a person can fill in by hand and a host can
//! check in bounded time: properties that are single values or lists of them.
//! Every other keyword is refused, since it would look like a check and be
//! none. No message ever shows a value: it may be a secret.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use fluffy_policy::reader::{Fields, Reader};
use fluffy_policy::yaml::Node;
use serde_json::{Map, Value};

use super::options::to_json;

/// The longest text of a setting, in characters, where nothing less is said.
pub const MAX_TEXT: u64 = 16 << 10;

/// The most items of a list.
pub const MAX_ITEMS: u64 = 256;

/// The most settings of a plugin.
const MAX_SETTINGS: usize = 64;

/// The most choices of one.
const MAX_CHOICES: usize = 128;

/// The integers that every reader of JSON keeps as they are.
const EXACT: f64 = 9_007_199_254_740_991.0;

pub(super) const FIELDS: &[&str] = &[
    "type",
    "properties",
    "required",
    "additionalProperties",
    "title",
    "description",
    "$schema",
];
pub(super) const SINGLE_FIELDS: &[&str] = &[
    "type",
    "title",
    "description",
    "default",
    "enum",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "items",
    "minItems",
    "maxItems",
    "secret",
];
pub(super) const ITEM_FIELDS: &[&str] = &[
    "type",
    "title",
    "description",
    "enum",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
];

/// The settings that a plugin takes, by name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Settings {
    /// All of them.
    pub all: BTreeMap<String, Setting>,
}

/// One setting.
#[derive(Debug, Clone, PartialEq)]
pub struct Setting {
    /// What its value is, or each item of it.
    pub shape: Shape,
    /// How many items it has, if it is a list.
    pub items: Option<RangeInclusive<u64>>,
    /// What it is for, in the author's words.
    pub description: Option<String>,
    /// What it is while nobody says otherwise.
    pub default: Option<Value>,
    /// Whether the plugin cannot do without.
    pub need: Need,
    /// Who may see it.
    pub sight: Sight,
}

/// Whether a plugin can do without a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// It starts without.
    Optional,
    /// It does not.
    Required,
}

/// Who may see a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sight {
    /// Whoever looks at the settings.
    Open,
    /// The plugin alone; stored encrypted, and taken out of what it says.
    Secret,
}

/// What a single value is.
#[derive(Debug, Clone, PartialEq)]
pub struct Shape {
    /// Its type.
    pub of: ValueType,
    /// The only values, if any are named.
    pub choices: Vec<Value>,
    /// Of a number.
    pub range: RangeInclusive<f64>,
    /// Of a text, in characters.
    pub length: RangeInclusive<u64>,
}

/// The type of a single value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueType {
    /// Text.
    Text,
    /// A whole number that every reader of JSON keeps.
    Integer,
    /// A number.
    Number,
    /// True or false.
    Flag,
}

/// Why a value is not one of a setting; never shows the value.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SettingProblem {
    /// Of another type.
    #[error("it is not {wanted}")]
    Type {
        /// Which type it should be.
        wanted: &'static str,
    },
    /// None of the choices.
    #[error("it is none of {choices}")]
    Choice {
        /// Which there are.
        choices: String,
    },
    /// Too small or too large.
    #[error("it is not {wanted}")]
    Range {
        /// What it should be.
        wanted: String,
    },
    /// Too short or too long.
    #[error("it has not between {least} and {most} {what}")]
    Length {
        /// The least.
        least: u64,
        /// The most.
        most: u64,
        /// Of what.
        what: &'static str,
    },
    /// A character that nobody sees.
    #[error("it has a character that cannot be stored")]
    Unstorable,
}

impl Settings {
    /// What a plugin gets: what was set, and defaults for the rest.
    #[must_use]
    pub fn resolved(&self, set: &Map<String, Value>) -> Map<String, Value> {
        let value = |(name, setting): (&String, &Setting)| {
            let value = set.get(name).or(setting.default.as_ref())?;
            Some((name.clone(), value.clone()))
        };
        self.all.iter().filter_map(value).collect()
    }

    /// Those that a plugin cannot do without and that nobody has set.
    #[must_use]
    pub fn missing(&self, set: &Map<String, Value>) -> Vec<(&str, Sight)> {
        let resolved = self.resolved(set);
        let is_missing = |(name, setting): &(&String, &Setting)| {
            setting.need == Need::Required && !resolved.contains_key(*name)
        };
        let missing = self.all.iter().filter(is_missing);
        missing
            .map(|(name, setting)| (name.as_str(), setting.sight))
            .collect()
    }
}

impl Setting {
    /// Reads what a person typed. Items of a list stand between commas, or in
    /// a list of JSON.
    ///
    /// # Errors
    /// It is no value of this setting.
    pub fn read(&self, text: &str) -> Result<Value, SettingProblem> {
        let value = match self.items {
            None => self.shape.of.read(text),
            Some(_) if text.starts_with('[') => {
                serde_json::from_str(text).map_err(|_| SettingProblem::Type {
                    wanted: "a list of JSON",
                })
            }
            Some(_) if text.is_empty() => Ok(Value::Array(Vec::new())),
            Some(_) => {
                let items = text.split(',').map(|item| self.shape.of.read(item.trim()));
                items.collect()
            }
        }?;
        self.check(&value).map(|()| value)
    }

    /// Whether this is a value of this setting.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, value: &Value) -> Result<(), SettingProblem> {
        let Some(count) = &self.items else {
            return self.shape.check(value);
        };
        let Value::Array(items) = value else {
            return Err(SettingProblem::Type { wanted: "a list" });
        };
        within(items.len(), count, "items")?;
        items.iter().try_for_each(|item| self.shape.check(item))
    }

    /// What it takes, in a few words.
    #[must_use]
    pub fn in_words(&self) -> String {
        let one = match self.shape.choices.is_empty() {
            true => self.shape.of.in_words().to_owned(),
            false => format!("one of {}", listed(&self.shape.choices)),
        };
        match self.items {
            Some(_) => format!("a list, each item {one}"),
            None => one,
        }
    }
}

impl Shape {
    fn check(&self, value: &Value) -> Result<(), SettingProblem> {
        match (self.of, value) {
            (ValueType::Text, Value::String(text)) => {
                if text.contains('\0') {
                    return Err(SettingProblem::Unstorable);
                }
                within(text.chars().count(), &self.length, "characters")?;
            }
            (ValueType::Integer | ValueType::Number, Value::Number(number)) => {
                let is_whole = number.is_i64() || number.is_u64();
                let number = number.as_f64().unwrap_or(f64::NAN);
                if self.of == ValueType::Integer && !(is_whole && number.abs() <= EXACT) {
                    return Err(self.of.wanted());
                }
                if !self.range.contains(&number) {
                    let wanted = range_in_words(&self.range);
                    return Err(SettingProblem::Range { wanted });
                }
            }
            (ValueType::Flag, Value::Bool(_)) => {}
            _ => return Err(self.of.wanted()),
        }
        match self.choices.is_empty() || self.choices.contains(value) {
            true => Ok(()),
            false => Err(SettingProblem::Choice {
                choices: listed(&self.choices),
            }),
        }
    }
}

impl ValueType {
    fn read(self, text: &str) -> Result<Value, SettingProblem> {
        match self {
            Self::Text => Ok(Value::String(text.to_owned())),
            Self::Integer | Self::Number | Self::Flag => {
                serde_json::from_str(text).map_err(|_| self.wanted())
            }
        }
    }

    fn wanted(self) -> SettingProblem {
        SettingProblem::Type {
            wanted: self.in_words(),
        }
    }

    const fn in_words(self) -> &'static str {
        match self {
            Self::Text => "a text",
            Self::Integer => "a whole number",
            Self::Number => "a number",
            Self::Flag => "true or false",
        }
    }
}

fn within(
    count: usize,
    range: &RangeInclusive<u64>,
    what: &'static str,
) -> Result<(), SettingProblem> {
    match u64::try_from(count).is_ok_and(|count| range.contains(&count)) {
        true => Ok(()),
        false => Err(SettingProblem::Length {
            least: *range.start(),
            most: *range.end(),
            what,
        }),
    }
}

fn range_in_words(range: &RangeInclusive<f64>) -> String {
    let (least, most) = (*range.start(), *range.end());
    match (least == f64::MIN, most == f64::MAX) {
        (false, false) => format!("between {least} and {most}"),
        (false, true) => format!("{least} or more"),
        (true, _) => format!("{most} or less"),
    }
}

fn listed(choices: &[Value]) -> String {
    let texts = choices.iter().map(|choice| match choice {
        Value::String(text) => format!("`{text}`"),
        other => format!("`{other}`"),
    });
    texts.collect::<Vec<_>>().join(", ")
}

/// Whether this can be the name of a setting: people type it before a `=`.
fn is_name(text: &str) -> bool {
    let letter = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    let first = text.starts_with(|c: char| c.is_ascii_alphabetic());
    first && text.len() <= 64 && text.chars().all(letter)
}

/// Reads `config_schema`.
pub(super) fn read(reader: &mut Reader, node: &Node<'_>) -> Option<Settings> {
    let fields = reader.fields(node, "`config_schema`", FIELDS)?;
    if let Some(node) = fields.get("type")
        && reader.text(node, "`type`")?.text != "object"
    {
        let why = "settings have names";
        let help = "write `type: object` and `properties:`";
        let what = "the schema is not about an object";
        reader.findings.error(node.place, what, why, help);
        return None;
    }
    if let Some(node) = fields.get("additionalProperties")
        && reader.flag(node, "`additionalProperties`")?
    {
        let why = "a setting that nobody described cannot be checked";
        let what = "`additionalProperties` cannot be true";
        reader
            .findings
            .error(node.place, what, why, "name every setting");
        return None;
    }
    let mut settings = Settings::default();
    if let Some(node) = fields.get("properties") {
        let entries = reader.entries(node, "`properties`")?;
        for (key, node) in entries.iter() {
            if !is_name(&key.text) || settings.all.len() >= MAX_SETTINGS {
                reader.findings.error(
                    key.place,
                    "this cannot be the name of a setting",
                    "people type it, and there are not many",
                    format!("use letters, digits, `_` and `-`, a letter first, and at most {MAX_SETTINGS} settings"),
                );
                continue;
            }
            if let Some(setting) = read_setting(reader, node) {
                settings.all.insert(key.text.to_string(), setting);
            }
        }
    }
    if let Some(node) = fields.get("required") {
        reader.list(node, "`required`")?;
        for placed in reader.texts(node, "`required`")? {
            match settings.all.get_mut(placed.text) {
                Some(setting) => setting.need = Need::Required,
                None => {
                    let shown: String = placed.text.chars().take(64).collect();
                    let what = format!("`{shown}` is required and is no property");
                    let why = "nobody could ever set it";
                    reader
                        .findings
                        .error(placed.place, what, why, "describe it in `properties`");
                }
            }
        }
    }
    Some(settings)
}

fn read_setting(reader: &mut Reader, node: &Node<'_>) -> Option<Setting> {
    let fields = reader.fields(node, "a setting", SINGLE_FIELDS)?;
    let is_list = match fields.get("type") {
        Some(node) => reader.text(node, "`type`")?.text == "array",
        None => false,
    };
    let (shape, items) = match is_list {
        false => (read_shape(reader, fields)?, None),
        true => {
            let Some(items) = fields.get("items") else {
                let help = "write `items: { type: string }`";
                reader.missing(fields.place, "a list", "items", help);
                return None;
            };
            let items = reader.fields(items, "`items`", ITEM_FIELDS)?;
            let shape = read_shape(reader, items)?;
            let count = read_count(reader, fields, ("minItems", "maxItems"), MAX_ITEMS)?;
            (shape, Some(count))
        }
    };
    check_fields(reader, fields, &shape, items.as_ref())?;
    let description = match fields.get("description") {
        Some(node) => Some(reader.text(node, "`description`")?.text.to_owned()),
        None => None,
    };
    let sight = match fields.get("secret") {
        Some(node) => match reader.flag(node, "`secret`")? {
            true => Sight::Secret,
            false => Sight::Open,
        },
        None => Sight::Open,
    };
    let mut setting = Setting {
        shape,
        items,
        description,
        default: None,
        need: Need::Optional,
        sight,
    };
    if sight == Sight::Secret {
        check_secret(reader, fields, &setting)?;
    }
    if let Some(node) = fields.get("default") {
        let value = to_json(node);
        if let Err(problem) = setting.check(&value) {
            let what = "the default is no value of this setting";
            let help = "write one that is, or none";
            reader
                .findings
                .error(node.place, what, &problem.to_string(), help);
            return None;
        }
        setting.default = Some(value);
    }
    Some(setting)
}

/// A secret is a text that no manifest knows.
fn check_secret(reader: &mut Reader, fields: Fields<'_>, setting: &Setting) -> Option<()> {
    let is_text = setting.shape.of == ValueType::Text && setting.items.is_none();
    let why = match (fields.get("default").or(fields.get("enum")), is_text) {
        (Some(_), _) => "what is in the manifest is published with it",
        (None, false) => "only a single text is stored apart",
        (None, true) => return Some(()),
    };
    let help = "make it `type: string` without `default` and `enum`";
    let what = "this cannot be a secret";
    reader.findings.error(fields.place, what, why, help);
    None
}

fn read_shape(reader: &mut Reader, fields: Fields<'_>) -> Option<Shape> {
    let Some(node) = fields.get("type") else {
        let help = "write `type: string`, or integer, number, boolean, array";
        reader.missing(fields.place, "a setting", "type", help);
        return None;
    };
    let of = match reader.text(node, "`type`")?.text {
        "string" => ValueType::Text,
        "integer" => ValueType::Integer,
        "number" => ValueType::Number,
        "boolean" => ValueType::Flag,
        _ => {
            let why = "a person fills settings in by hand";
            let help = "use string, integer, number, boolean, or a list of those";
            let what = "this is not the type of a setting";
            reader.findings.error(node.place, what, why, help);
            return None;
        }
    };
    let length = read_count(reader, fields, ("minLength", "maxLength"), MAX_TEXT)?;
    let mut bound = |field: &str, otherwise: f64| {
        let Some(node) = fields.get(field) else {
            return Some(otherwise);
        };
        let number = to_json(node).as_f64();
        if number.is_none() {
            let what = format!("`{field}` is not a number");
            let why = "values are compared with it";
            reader
                .findings
                .error(node.place, what, why, "write a number");
        }
        number
    };
    let range = bound("minimum", f64::MIN)?..=bound("maximum", f64::MAX)?;
    let mut shape = Shape {
        of,
        choices: Vec::new(),
        range,
        length,
    };
    if let Some(node) = fields.get("enum") {
        let items = reader.list(node, "`enum`")?;
        let choices: Vec<Value> = items.iter().map(to_json).collect();
        let fit = choices.iter().all(|choice| shape.check(choice).is_ok());
        if choices.is_empty() || choices.len() > MAX_CHOICES || !fit {
            let what = "these choices cannot be used";
            let why = "each has to be a value of the setting";
            let help = format!("name from 1 to {MAX_CHOICES} of its type");
            reader.findings.error(node.place, what, why, help);
            return None;
        }
        shape.choices = choices;
    }
    Some(shape)
}

fn read_count(
    reader: &mut Reader,
    fields: Fields<'_>,
    names: (&str, &str),
    most: u64,
) -> Option<RangeInclusive<u64>> {
    let mut count = |field: &str, otherwise: u64| match fields.get(field) {
        Some(node) => reader.count(node, &format!("`{field}`")),
        None => Some(otherwise),
    };
    Some(count(names.0, 0)?..=count(names.1, most)?.min(most))
}

/// A check that does not belong to the type would never be made.
fn check_fields(
    reader: &mut Reader,
    fields: Fields<'_>,
    shape: &Shape,
    items: Option<&RangeInclusive<u64>>,
) -> Option<()> {
    let takes: &[&str] = match (items, shape.of) {
        (Some(_), _) => &["items", "minItems", "maxItems"],
        (None, ValueType::Text) => &["enum", "minLength", "maxLength"],
        (None, ValueType::Integer | ValueType::Number) => &["enum", "minimum", "maximum"],
        (None, ValueType::Flag) => &[],
    };
    let common = ["type", "title", "description", "default", "secret"];
    for (key, _) in fields.iter() {
        let name = &*key.text;
        let is_known = SINGLE_FIELDS.contains(&name);
        if is_known && !common.contains(&name) && !takes.contains(&name) {
            let what = format!("`{name}` says nothing about this type");
            let why = "it would look like a check and be none";
            reader.findings.error(key.place, what, why, "remove it");
            return None;
        }
    }
    Some(())
}
