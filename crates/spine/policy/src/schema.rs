//! JSON Schemas of the policy file and the test table, for editors.
//!
//! A schema helps while typing; what counts is [`crate::document`], which also
//! knows what a schema cannot say. Tests hold the two together.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, json_schema};
use serde_json::Value;

use crate::word::{Category, Mode, Network, State, Tier};

/// The schema of a policy file.
#[must_use]
pub fn policy_schema() -> Value {
    schemars::schema_for!(PolicyFile).to_value()
}

/// The schema of a test table.
#[must_use]
pub fn test_table_schema() -> Value {
    schemars::schema_for!(TestTable).to_value()
}

macro_rules! shapes {
    ($($(#[$meta:meta])* struct $name:ident { $($(#[$field_meta:meta])* $field:ident: $type:ty,)* })*) => {$(
        $(#[$meta])*
        #[derive(JsonSchema)]
        #[schemars(deny_unknown_fields)]
        #[expect(dead_code, reason = "only its schema is used")]
        struct $name { $($(#[$field_meta])* $field: $type,)* }
    )*};
}

shapes! {
    /// A policy of fluffy.
    struct PolicyFile {
        /// Always 1.
        #[schemars(schema_with = "version")]
        version: u32,
        /// The rules; their order never matters.
        capabilities: Option<Vec<Rule>>,
        /// Hosts that may be reached, by group: `host:port`, `*.` for subdomains.
        network_allow: Option<BTreeMap<String, OneOrMany<String>>>,
        /// Templates of sandboxes, each based on a built-in one.
        templates: Option<BTreeMap<String, AddedTemplate>>,
        /// Paths that may change without a test first, by category.
        tdd_exemptions: Option<BTreeMap<Category, OneOrMany<String>>>,
        /// Further shapes of secrets to remove from output.
        sanitize: Option<Sanitize>,
    }

    /// One statement.
    struct Rule {
        /// Unique in the file.
        name: String,
        /// When it applies: fields are ANDed, values ORed.
        r#match: Condition,
        /// What it says.
        r#do: Do,
        /// Why, for people.
        reason: Option<String>,
        /// Any hit turns the rule into a pass.
        except: Option<Vec<Condition>>,
        /// What must hold besides for an allow to count.
        constraints: Option<Constraints>,
    }

    /// Conditions on a request.
    struct Condition {
        /// Dotted verbs, or a group such as `fs.*`.
        action: Option<OneOrMany<String>>,
        /// Globs like those of `.gitignore`; `!` excludes.
        path_glob: Option<OneOrMany<String>>,
        /// Hosts, with or without port.
        host: Option<OneOrMany<String>>,
        /// Names of principals.
        caller: Option<OneOrMany<String>>,
        /// Tags of principals.
        caller_tag: Option<OneOrMany<String>>,
        /// Modes of the session.
        mode: Option<OneOrMany<Mode>>,
        /// States of the workflow.
        state: Option<OneOrMany<State>>,
        /// Templates of the sandbox.
        template: Option<OneOrMany<String>>,
        /// Tiers of the sandbox.
        tier: Option<OneOrMany<Tier>>,
        /// Tenants.
        tenant: Option<OneOrMany<String>>,
        /// A comparison such as `"> 100KiB"`.
        size: Option<Comparison>,
        /// A comparison such as `"> 500"`.
        lines: Option<Comparison>,
    }

    /// Limits on an allow.
    struct Constraints {
        /// Only from inside a sandbox.
        require_sandbox: Option<bool>,
        /// At most this many bytes.
        max_file_size: Option<Size>,
        /// At most this many lines.
        max_lines: Option<u64>,
        /// Only from this tier or a stronger one.
        min_tier: Option<Tier>,
    }

    /// A template of sandboxes: what differs from the one it is based on.
    struct AddedTemplate {
        /// A built-in template.
        based_on: String,
        /// The weakest tier it accepts.
        tier: Option<Tier>,
        /// What it can reach.
        network: Option<Network>,
        /// Memory of all its processes together.
        memory: Option<Size>,
        /// Processors, such as `0.5`.
        #[schemars(schema_with = "text_or_number")]
        cpu: Option<String>,
        /// Processes and threads at once.
        pids: Option<u32>,
        /// How long it may run, such as `5m`.
        time: Option<String>,
        /// What it may write to its layer.
        disk: Option<Size>,
    }

    /// Shapes of secrets.
    struct Sanitize {
        /// Regular expressions.
        patterns: Option<OneOrMany<String>>,
    }

    /// Requests and the decisions they must get.
    struct TestTable {
        /// The policy file, beside this one.
        policy: Option<String>,
        /// Or the rules themselves.
        rules: Option<Vec<Rule>>,
        /// Extensions, beside this file.
        extensions: Option<OneOrMany<String>>,
        /// The cases.
        cases: Vec<Case>,
    }

    /// One request and what it must come to.
    struct Case {
        /// Unique in the table.
        name: String,
        /// Who asks.
        r#as: PrincipalShape,
        /// The dotted verb.
        action: String,
        /// What it acts on.
        resource: Option<String>,
        /// The circumstances.
        context: Option<ContextShape>,
        /// The decision.
        expect: crate::decision::Verdict,
        /// Rules that must be among those that spoke.
        because: Option<OneOrMany<String>>,
    }

    /// A principal.
    struct PrincipalShape {
        /// What sort of actor; an agent unless said.
        kind: Option<Kind>,
        /// Its name.
        name: String,
        /// Its tags.
        tags: Option<OneOrMany<String>>,
        /// What it declares.
        grants: Option<OneOrMany<String>>,
        /// What it denies itself.
        deny: Option<OneOrMany<String>>,
        /// What the workspace allows.
        workspace: Option<OneOrMany<String>>,
        /// What the user allows.
        user: Option<OneOrMany<String>>,
    }

    /// The circumstances of a case.
    struct ContextShape {
        /// The session's mode.
        mode: Option<Mode>,
        /// The workflow's state.
        state: Option<State>,
        /// The sandbox's template.
        template: Option<String>,
        /// The sandbox's tier.
        tier: Option<Tier>,
        /// The tenant.
        tenant: Option<String>,
        /// The size.
        size: Option<Size>,
        /// The number of lines.
        lines: Option<u64>,
        /// The peer's host.
        host: Option<String>,
        /// The peer's port.
        port: Option<u16>,
    }
}

/// One value or a list of them.
#[derive(JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, reason = "only its schema is used")]
enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
#[expect(dead_code, reason = "only its schema is used")]
enum Do {
    Allow,
    Deny,
    RequireReview,
    Pass,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
#[expect(dead_code, reason = "only its schema is used")]
enum Kind {
    User,
    Agent,
    Plugin,
    Service,
    Node,
}

fn text_or_number(_: &mut schemars::SchemaGenerator) -> Schema {
    json_schema!({ "type": ["string", "number"] })
}

fn version(_: &mut schemars::SchemaGenerator) -> Schema {
    json_schema!({ "const": 1 })
}

/// A size such as `100KiB`, or a number of bytes.
struct Size;

impl JsonSchema for Size {
    fn schema_name() -> Cow<'static, str> {
        "Size".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [
                { "type": "integer", "minimum": 0 },
                { "type": "string", "pattern": "^[0-9]+(KiB|MiB|GiB|KB|MB|GB)?$" },
            ]
        })
    }
}

/// A comparison such as `> 100KiB`, or several.
struct Comparison;

impl JsonSchema for Comparison {
    fn schema_name() -> Cow<'static, str> {
        "Comparison".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> Schema {
        let one = serde_json::json!({
            "type": "string",
            "pattern": "^(<=|>=|<|>|=) *[0-9]+(KiB|MiB|GiB|KB|MB|GB)?$",
        });
        json_schema!({ "anyOf": [one, { "type": "array", "items": one }] })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::diagnostic::Findings;
    use crate::document::{CONDITION_FIELDS, CONSTRAINT_FIELDS, FILE_FIELDS, RULE_FIELDS};
    use crate::starter::{PLATFORM, STARTER};
    use crate::table::{CASE_FIELDS, CONTEXT_FIELDS, PRINCIPAL_FIELDS, TABLE_FIELDS};
    use crate::yaml::{self, Node};

    use super::*;

    fn json_of(node: &Node<'_>) -> Value {
        match &node.value {
            yaml::Value::Null => Value::Null,
            yaml::Value::Text { text, plain } => match (plain, text.parse::<u64>()) {
                (true, Ok(number)) => json!(number),
                (true, _) if text == "true" => json!(true),
                (true, _) if text == "false" => json!(false),
                _ => json!(text),
            },
            yaml::Value::List(items) => items.iter().map(json_of).collect(),
            yaml::Value::Map(entries) => {
                let entries = entries
                    .iter()
                    .map(|(key, node)| (key.text.to_string(), json_of(node)));
                Value::Object(entries.collect())
            }
        }
    }

    fn read(text: &str) -> Value {
        json_of(&yaml::read(text, yaml::POLICY, &mut Findings::default()).unwrap())
    }

    #[test]
    fn schemas_accept_what_we_ship_and_refuse_mistakes() {
        let schema = jsonschema::validator_for(&policy_schema()).unwrap();
        for text in [STARTER, PLATFORM] {
            let errors: Vec<String> = schema
                .iter_errors(&read(text))
                .map(|e| e.to_string())
                .collect();
            assert_eq!(errors, Vec::<String>::new());
        }
        for broken in [
            "version: 2",
            "version: 1\nrules: []",
            "version: 1\ncapabilities: [ { name: a, match: {}, do: permit } ]",
            "version: 1\ncapabilities: [ { name: a, match: { mode: stirct }, do: deny } ]",
            "version: 1\ncapabilities: [ { name: a, match: { size: 5 }, do: deny } ]",
        ] {
            assert!(!schema.is_valid(&read(broken)), "{broken}");
        }
    }

    #[test]
    fn schemas_and_readers_know_the_same_fields() {
        let policy = policy_schema();
        let table = test_table_schema();
        for (schema, name, fields) in [
            (&policy, None, FILE_FIELDS),
            (&policy, Some("Rule"), RULE_FIELDS),
            (&policy, Some("Condition"), CONDITION_FIELDS),
            (&policy, Some("Constraints"), CONSTRAINT_FIELDS),
            (&table, None, TABLE_FIELDS),
            (&table, Some("Case"), CASE_FIELDS),
            (&table, Some("PrincipalShape"), PRINCIPAL_FIELDS),
            (&table, Some("ContextShape"), CONTEXT_FIELDS),
        ] {
            let shape = name.map_or(schema, |name| &schema["$defs"][name]);
            let mut known: Vec<&str> = shape["properties"]
                .as_object()
                .unwrap()
                .keys()
                .map(String::as_str)
                .collect();
            let mut read = fields.to_vec();
            known.sort_unstable();
            read.sort_unstable();
            assert_eq!(known, read, "{name:?}");
        }
    }
}
