//! Arguments of tools: their JSON schema, and reading them strictly.
//!
//! What the schema says is what is read: an argument of another type, a
//! missing one and one that nobody knows are refused in words that a model can
//! correct itself from.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// A type that an argument of a tool can have.
pub trait Argument: Sized {
    /// Its JSON schema.
    fn schema() -> Value;

    /// Reads it.
    ///
    /// # Errors
    /// It is something else; says what was expected.
    fn read(value: Value) -> Result<Self, String>;

    /// What it is where it was not given, if it need not be.
    #[must_use]
    fn absent() -> Option<Self> {
        None
    }
}

/// The arguments of a tool: an object. Derived for a struct.
///
/// The fields' names, types and documentation become the schema; an `Option`
/// need not be given.
pub trait Arguments: Argument {}

impl Argument for String {
    fn schema() -> Value {
        json!({"type": "string"})
    }

    fn read(value: Value) -> Result<Self, String> {
        match value {
            Value::String(text) => Ok(text),
            other => Err(expected("a string", &other)),
        }
    }
}

impl Argument for bool {
    fn schema() -> Value {
        json!({"type": "boolean"})
    }

    fn read(value: Value) -> Result<Self, String> {
        value
            .as_bool()
            .ok_or_else(|| expected("true or false", &value))
    }
}

impl Argument for f64 {
    fn schema() -> Value {
        json!({"type": "number"})
    }

    fn read(value: Value) -> Result<Self, String> {
        value.as_f64().ok_or_else(|| expected("a number", &value))
    }
}

macro_rules! integers {
    ($($integer:ty => $as:ident),*) => {$(
        impl Argument for $integer {
            fn schema() -> Value {
                json!({"type": "integer", "minimum": Self::MIN, "maximum": Self::MAX})
            }

            fn read(value: Value) -> Result<Self, String> {
                let number = value.$as().and_then(|number| Self::try_from(number).ok());
                number.ok_or_else(|| {
                    let between = format!("an integer from {} to {}", Self::MIN, Self::MAX);
                    expected(&between, &value)
                })
            }
        }
    )*};
}

integers!(u8 => as_u64, u16 => as_u64, u32 => as_u64, u64 => as_u64);
integers!(i8 => as_i64, i16 => as_i64, i32 => as_i64, i64 => as_i64);

impl<T: Argument> Argument for Option<T> {
    fn schema() -> Value {
        T::schema()
    }

    fn read(value: Value) -> Result<Self, String> {
        // Models write `null` for what they leave out.
        match value {
            Value::Null => Ok(None),
            value => T::read(value).map(Some),
        }
    }

    fn absent() -> Option<Self> {
        Some(None)
    }
}

impl<T: Argument> Argument for Vec<T> {
    fn schema() -> Value {
        json!({"type": "array", "items": T::schema()})
    }

    fn read(value: Value) -> Result<Self, String> {
        match value {
            Value::Array(items) => items.into_iter().map(T::read).collect(),
            other => Err(expected("an array", &other)),
        }
    }
}

impl<T: Argument> Argument for BTreeMap<String, T> {
    fn schema() -> Value {
        json!({"type": "object", "additionalProperties": T::schema()})
    }

    fn read(value: Value) -> Result<Self, String> {
        let fields = Map::read(value)?.into_iter();
        fields
            .map(|(name, value)| Ok((name, T::read(value)?)))
            .collect()
    }
}

/// Anything; the tool looks at it itself.
impl Argument for Value {
    fn schema() -> Value {
        json!({})
    }

    fn read(value: Value) -> Result<Self, String> {
        Ok(value)
    }
}

/// Any object; the tool looks at it itself.
impl Argument for Map<String, Value> {
    fn schema() -> Value {
        json!({"type": "object"})
    }

    fn read(value: Value) -> Result<Self, String> {
        match value {
            Value::Object(fields) => Ok(fields),
            other => Err(expected("an object", &other)),
        }
    }
}

impl Arguments for Map<String, Value> {}

/// No arguments.
impl Argument for () {
    fn schema() -> Value {
        SchemaOf::default().done()
    }

    fn read(value: Value) -> Result<Self, String> {
        Fields::of(value)?.done()
    }
}

impl Arguments for () {}

/// For `#[derive(Arguments)]`: a schema that is being made.
#[doc(hidden)]
#[derive(Debug, Default)]
pub struct SchemaOf {
    properties: Map<String, Value>,
    required: Vec<&'static str>,
}

impl SchemaOf {
    #[must_use]
    pub fn field<T: Argument>(mut self, name: &'static str, description: &str) -> Self {
        let mut schema = T::schema();
        if let (Value::Object(schema), false) = (&mut schema, description.is_empty()) {
            schema.insert("description".to_owned(), description.into());
        }
        self.properties.insert(name.to_owned(), schema);
        if T::absent().is_none() {
            self.required.push(name);
        }
        self
    }

    #[must_use]
    pub fn done(self) -> Value {
        json!({
            "type": "object",
            "properties": self.properties,
            "required": self.required,
            "additionalProperties": false,
        })
    }
}

/// For `#[derive(Arguments)]`: an object that is being read.
#[doc(hidden)]
#[derive(Debug)]
pub struct Fields(Map<String, Value>);

impl Fields {
    pub fn of(value: Value) -> Result<Self, String> {
        Map::read(value).map(Self)
    }

    pub fn take<T: Argument>(&mut self, name: &str) -> Result<T, String> {
        match self.0.remove(name) {
            Some(value) => T::read(value).map_err(|why| format!("`{name}`: {why}")),
            None => T::absent().ok_or_else(|| format!("`{name}` is missing")),
        }
    }

    pub fn done(self) -> Result<(), String> {
        match self.0.keys().next() {
            Some(name) => Err(format!("there is no argument `{name}`")),
            None => Ok(()),
        }
    }
}

/// For `#[derive(Choice)]`: which of these words it is.
#[doc(hidden)]
pub fn choice_of(words: &[&str], value: &Value) -> Result<usize, String> {
    let place = |word: &str| words.iter().position(|one| *one == word);
    let found = value.as_str().and_then(place);
    found.ok_or_else(|| expected(&format!("one of {}", words.join(", ")), value))
}

fn expected(what: &str, found: &Value) -> String {
    let found: String = found.to_string().chars().take(64).collect();
    format!("{what} was expected, not {found}")
}
