//! The registry as documentation: Markdown for people, JSON Schema for editors.
//!
//! Generated files are written and checked by the product's own command; this
//! module only returns their text.

use serde_json::{Map, Value, json};

use crate::env;
use crate::keys::{KEYS, Key, Kind, PROVIDER_KEYS, ProjectRule};
use crate::values::ProcessEngine;

/// The reference of all keys and variables, as Markdown.
#[must_use]
pub fn reference() -> String {
    let mut text = String::from(
        "# Configuration\n\n\
         Highest first: flags, `FLUFFY_*` variables, the project's `.fluffy/config.toml`, your \
         own `$XDG_CONFIG_HOME/fluffy/config.toml`, defaults. An unknown key or a wrong value \
         is an error that names file, line and column; nothing half-loads. `fluffy config` \
         shows every value and where it came from.\n\n\
         A file may say `version = 1`; that is also what it means without.\n\n\
         ## Keys\n\n\
         | key | value | default | variable | project | meaning |\n\
         | --- | --- | --- | --- | --- | --- |\n",
    );
    for key in KEYS {
        let default = match key.default {
            "" => "none".to_owned(),
            default => format!("`{default}`"),
        };
        text.push_str(&format!(
            "| `{}` | {} | {default} | `{}` | {} | {} |\n",
            key.name,
            key.kind.expected(),
            key.env_name(),
            project_word(key.project),
            key.meaning,
        ));
    }
    text.push_str(
        "\n`project` says whether the file that comes with a repository may set the key: what \
         comes with a repository is data, and a cloned one must not be able to send a key to \
         its own host. A list of paths in a variable is separated like `PATH`.\n\n\
         ## Providers\n\n\
         In your own file only, below `[providers.NAME]`.\n\n\
         | key | meaning |\n| --- | --- |\n",
    );
    for key in PROVIDER_KEYS {
        text.push_str(&format!("| `{}` | {} |\n", key.name, key.meaning));
    }
    text.push_str(
        "\n## Integration tests\n\n\
         In any file, below `[tests.integration]`: a name (lowercase letters, digits and \
         hyphens) and a command, as in `server = [\"node\", \"--test\", \"integration\"]`. They run \
         beside the other tests, in the template `integration-test`, and only where a rule \
         allows `test.run` in it.\n",
    );
    text.push_str("\n## Other variables\n\n| variable | meaning |\n| --- | --- |\n");
    for (name, meaning) in env::VARIABLES {
        text.push_str(&format!("| `{name}` | {meaning} |\n"));
    }
    text
}

/// The JSON Schema of a configuration file.
#[must_use]
pub fn schema() -> Value {
    let mut sections: Map<String, Value> = Map::new();
    sections.insert("version".to_owned(), json!({ "const": 1 }));
    for key in KEYS {
        match key.name.split_once('.') {
            None => {
                sections.insert(key.name.to_owned(), key_schema(key));
            }
            Some((section, name)) => insert(&mut sections, section, name, key_schema(key)),
        }
    }
    let command = json!({ "type": "array", "minItems": 1, "items": { "type": "string" } });
    let named = json!({
        "type": "object",
        "description": "commands of integration tests by name; running them needs a rule",
        "propertyNames": { "pattern": "^[a-z0-9-]{1,32}$" },
        "additionalProperties": command,
    });
    insert(&mut sections, "tests", "integration", named);
    let text = |meaning: &str| json!({ "type": "string", "description": meaning });
    let mut provider = Map::new();
    for key in PROVIDER_KEYS {
        match key.name.split_once('.') {
            None => {
                provider.insert(key.name.to_owned(), text(key.meaning));
            }
            Some((section, name)) => insert(&mut provider, section, name, text(key.meaning)),
        }
    }
    let provider = json!({
        "type": "object",
        "additionalProperties": false,
        "properties": provider,
    });
    sections.insert(
        "providers".to_owned(),
        json!({ "type": "object", "additionalProperties": provider }),
    );
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "fluffy configuration",
        "type": "object",
        "additionalProperties": false,
        "properties": sections,
    })
}

/// Adds a property to the object of a section, making it if need be.
fn insert(sections: &mut Map<String, Value>, section: &str, name: &str, schema: Value) {
    let entry = sections.entry(section).or_insert_with(
        || json!({ "type": "object", "additionalProperties": false, "properties": {} }),
    );
    if let Some(Value::Object(properties)) = entry.get_mut("properties") {
        match name.split_once('.') {
            Some((section, name)) => insert(properties, section, name, schema),
            None => {
                properties.insert(name.to_owned(), schema);
            }
        }
    }
}

fn key_schema(key: &Key) -> Value {
    let mut schema = match key.kind {
        Kind::Color(_) => json!({ "enum": ["auto", "always", "never"] }),
        Kind::Command(_) => {
            json!({ "type": "array", "minItems": 1, "items": { "type": "string" } })
        }
        Kind::Count { least, most, .. } => {
            json!({ "type": "integer", "minimum": least, "maximum": most })
        }
        Kind::Engine(_) => json!({ "enum": ProcessEngine::ALL.map(|(name, _)| name) }),
        Kind::Paths(_) | Kind::Patterns(_) | Kind::Speakers(_) => {
            json!({ "type": "array", "items": { "type": "string" } })
        }
        Kind::Size(_) => json!({ "type": ["string", "integer"] }),
        Kind::Inside(_) | Kind::Model(_) | Kind::Path(_) | Kind::Time(_) => {
            json!({ "type": "string" })
        }
    };
    if let Value::Object(fields) = &mut schema {
        fields.insert("description".to_owned(), Value::from(key.meaning));
    }
    schema
}

const fn project_word(rule: ProjectRule) -> &'static str {
    match rule {
        ProjectRule::May => "yes",
        ProjectRule::Downward => "lower only",
        ProjectRule::Never => "after review",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_and_variable_is_in_the_reference() {
        let text = reference();
        for key in KEYS {
            let row = format!("| `{}` | {} |", key.name, key.kind.expected());
            assert!(
                text.contains(&row) && text.contains(&key.env_name()),
                "{row}"
            );
        }
        for (name, _) in env::VARIABLES {
            assert!(text.contains(&format!("| `{name}` |")), "{name}");
        }
        // A cell with a bar in it would break the table.
        let bars = |line: &str| line.matches('|').count();
        let rows = text.lines().filter(|line| line.starts_with("| `"));
        assert!(
            rows.into_iter().all(|row| [3, 7].contains(&bars(row))),
            "{text}"
        );
    }

    #[test]
    fn the_schema_knows_every_key_and_nothing_else() {
        let schema = schema();
        for key in KEYS {
            let pointer = format!("/properties/{}", key.name.replace('.', "/properties/"));
            let found = schema.pointer(&pointer).unwrap();
            assert_eq!(found["description"], key.meaning, "{pointer}");
        }
        assert_eq!(schema["additionalProperties"], false);
        assert_eq!(
            schema["properties"]["ledger"]["additionalProperties"],
            false
        );
        let provider = &schema["properties"]["providers"]["additionalProperties"]["properties"];
        assert_eq!(provider["api_key"]["properties"]["env"]["type"], "string");
    }
}
