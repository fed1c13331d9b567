//! JSON Schema of `plugin.yaml`, for editors; `fluffy plugin schema` prints it.
//!
//! A schema helps while typing; what counts is `document`, which also knows
//! what a schema cannot say. Tests hold the two together.

use std::collections::BTreeMap;

use fluffy_policy::word::Tier;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::Value;

use super::{Effect, Kind, Protocol};

/// The schema of a manifest.
#[must_use]
pub fn manifest_schema() -> Value {
    schemars::schema_for!(PluginManifest).to_value()
}

macro_rules! shapes {
    ($($(#[$meta:meta])* struct $name:ident { $($(#[$field_meta:meta])* $field:ident: $type:ty,)* })*) => {$(
        #[derive(JsonSchema)]
        $(#[$meta])*
        #[schemars(deny_unknown_fields)]
        #[expect(dead_code, reason = "only its schema is used")]
        struct $name { $($(#[$field_meta])* $field: $type,)* }
    )*};
}

shapes! {
    /// What a plugin of fluffy declares about itself.
    struct PluginManifest {
        /// Lower-case letters, digits and `-`, a letter first.
        #[schemars(regex(pattern = r"^[a-z][a-z0-9-]{1,63}$"))]
        name: String,
        /// Its version, by the rules of semver.
        #[schemars(regex(pattern = r"^[0-9]+\.[0-9]+\.[0-9]+([-+][0-9A-Za-z.+-]+)?$"))]
        version: String,
        /// What it is.
        r#type: Kind,
        /// The versions of fluffy that it works with.
        engine: String,
        /// The version of the contract that it speaks.
        #[schemars(range(min = 1))]
        api: u32,
        /// Its licence, by its name on the SPDX list.
        license: Option<String>,
        /// The most that it can be granted.
        capabilities: Option<OneOrMany<Capability>>,
        /// What it never gets, whoever grants it.
        deny_capabilities: Option<OneOrMany<Capability>>,
        /// Labels; none of them means trust.
        tags: Option<OneOrMany<Tag>>,
        /// How it runs; only a skill can do without.
        execution: Option<Execution>,
        /// Its settings.
        config_schema: Option<ConfigSchema>,
        /// Other plugins that must run before it, with ranges of versions.
        dependencies: Option<BTreeMap<String, String>>,
        /// How it starts over and ends.
        lifecycle: Option<Lifecycle>,
        /// The tools that it is known to have without being asked.
        tools: Option<Vec<Tool>>,
    }

    /// How a plugin runs.
    #[schemars(extend("oneOf" = per_tier()))]
    struct Execution {
        /// The weakest tier that it runs in.
        tier: Tier,
        /// The program and its arguments.
        #[schemars(length(min = 1))]
        command: Option<Vec<String>>,
        /// The module of tier `wasm`.
        #[schemars(regex(pattern = r"^[^/-]"))]
        module: Option<String>,
        /// The image of tiers `container` and `microvm`.
        #[schemars(regex(pattern = r"^[A-Za-z0-9][A-Za-z0-9._:/@-]*$"))]
        image: Option<String>,
        /// What is spoken with its process.
        protocol: Option<Protocol>,
        /// Variables of the program, each with the setting that it has the value of.
        env: Option<BTreeMap<String, SettingReference>>,
        /// What it sees and reaches; nothing if not said.
        sandbox: Option<Sandbox>,
        /// The most that it uses.
        limits: Option<Limits>,
    }

    /// What a plugin sees and reaches.
    struct Sandbox {
        /// Files.
        filesystem: Option<Filesystem>,
        /// Hosts.
        network: Option<Network>,
    }

    /// Files, each as itself or with `/*` for all below a directory.
    struct Filesystem {
        /// What it may read.
        read_allow: Option<OneOrMany<PathText>>,
        /// What of that stays unread.
        read_deny: Option<OneOrMany<PathText>>,
        /// What it may write.
        write_allow: Option<OneOrMany<PathText>>,
    }

    /// Hosts.
    struct Network {
        /// `host:port`, `*.` for subdomains.
        allow: Option<OneOrMany<HostAndPort>>,
    }

    /// The most that a plugin uses.
    struct Limits {
        /// Memory of all its processes, such as `256MiB`.
        memory: Option<Size>,
        /// Processors, such as `0.5`.
        cpu: Option<Processors>,
        /// Processes and threads.
        #[schemars(range(min = 1, max = 4096))]
        pids: Option<u32>,
        /// What one call of a module may burn.
        #[schemars(range(min = 1))]
        fuel: Option<u64>,
        /// How long one call may take, such as `30s`.
        call_timeout: Option<Time>,
    }

    /// The settings of a plugin, as a part of JSON Schema.
    struct ConfigSchema {
        /// Settings have names.
        #[schemars(extend("const" = "object"))]
        r#type: Option<String>,
        /// The version of JSON Schema, for other readers.
        #[schemars(rename = "$schema")]
        schema: Option<String>,
        /// A name for all of them.
        title: Option<String>,
        /// What they are for.
        description: Option<String>,
        /// Each setting by its name.
        properties: Option<BTreeMap<String, Setting>>,
        /// Those that the plugin does not start without.
        required: Option<Vec<String>>,
        /// Only what is described can be set.
        #[schemars(rename = "additionalProperties", extend("const" = false))]
        additional_properties: Option<bool>,
    }

    /// A setting: a single value, or a list of them.
    struct Setting {
        /// What it is.
        r#type: SettingType,
        /// Its name for people.
        title: Option<String>,
        /// What it is for.
        description: Option<String>,
        /// What it is while nobody says otherwise.
        default: Option<Value>,
        /// The only values.
        r#enum: Option<Vec<Value>>,
        /// The smallest number.
        minimum: Option<f64>,
        /// The largest number.
        maximum: Option<f64>,
        /// The fewest characters.
        #[schemars(rename = "minLength")]
        min_length: Option<u64>,
        /// The most characters.
        #[schemars(rename = "maxLength")]
        max_length: Option<u64>,
        /// What each item of a list is.
        items: Option<SettingItem>,
        /// The fewest items.
        #[schemars(rename = "minItems")]
        min_items: Option<u64>,
        /// The most items.
        #[schemars(rename = "maxItems")]
        max_items: Option<u64>,
        /// Whether it is stored encrypted and shown to the plugin alone.
        secret: Option<bool>,
    }

    /// What each item of a list is.
    struct SettingItem {
        /// What it is.
        r#type: SettingType,
        /// Its name for people.
        title: Option<String>,
        /// What it is for.
        description: Option<String>,
        /// The only values.
        r#enum: Option<Vec<Value>>,
        /// The smallest number.
        minimum: Option<f64>,
        /// The largest number.
        maximum: Option<f64>,
        /// The fewest characters.
        #[schemars(rename = "minLength")]
        min_length: Option<u64>,
        /// The most characters.
        #[schemars(rename = "maxLength")]
        max_length: Option<u64>,
    }

    /// How a plugin starts over and ends.
    struct Lifecycle {
        /// Whether a new instance may start beside the old one.
        hot_reload: Option<bool>,
        /// How long calls may take to finish, such as `30s`.
        graceful_shutdown_timeout: Option<Time>,
    }

    /// A tool.
    struct Tool {
        /// Its name, which is the end of its action.
        #[schemars(regex(pattern = r"^[a-z0-9_-]+(\.[a-z0-9_-]+)*$"), length(max = 64))]
        name: String,
        /// One line about it.
        #[schemars(regex(pattern = r"^[^\n]+$"), length(max = 200))]
        summary: String,
        /// JSON Schema of its arguments.
        parameters: Option<BTreeMap<String, Value>>,
        /// What a call does.
        effect: Effect,
        /// A shorter time than the plugin's for one call.
        timeout: Option<Time>,
    }
}

/// Which fields a tier needs, and which it has not.
fn per_tier() -> Value {
    let without = |fields: &[&str]| {
        let each = fields
            .iter()
            .map(|field| serde_json::json!({ "required": [field] }));
        serde_json::json!({ "anyOf": each.collect::<Vec<_>>() })
    };
    serde_json::json!([
        {
            "properties": { "tier": { "const": "wasm" } },
            "required": ["module"],
            "not": without(&["command", "env", "image", "protocol"]),
        },
        {
            "properties": { "tier": { "const": "process" } },
            "required": ["command", "protocol"],
            "not": without(&["image", "module"]),
        },
        {
            "properties": { "tier": { "enum": ["container", "microvm"] } },
            "required": ["command", "image"],
            "not": without(&["module"]),
        },
    ])
}

macro_rules! texts {
    ($($(#[$doc:meta])* $name:ident $types:tt $pattern:literal)*) => {$(
        $(#[$doc])*
        struct $name;

        impl JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": $types, "pattern": $pattern })
            }
        }
    )*};
}

texts! {
    /// An action with its resource, or a group of them.
    Capability "string" r"^[a-z][a-z_]*\.([a-z0-9_-]+|\*)(\..+)?$"
    /// A word that is no claim of trust.
    Tag "string" r"^(?!core_plugin$|trusted)[a-z0-9_-]{1,64}$"
    /// A path of a root, itself or all below it.
    PathText "string" r"^(?!.*(^|/)\.\.?(/|$))(?!.*//)(/|@data/|@host/)[^*\\]*(?<!/)(/\*)?$|^(/|@data/)\*$"
    /// A host with its port.
    HostAndPort "string" r"^[^\s]+:[1-9][0-9]{0,4}$"
    /// A number of bytes.
    Size ["string", "number"] r"^[0-9]+(KiB|MiB|GiB|KB|MB|GB)?$"
    /// Processors, in thousandths at the finest.
    Processors ["string", "number"] r"^[0-9]+(\.[0-9]{1,3})?$"
    /// A setting of the plugin.
    SettingReference "string" r"^@config\.[A-Za-z][A-Za-z0-9_-]{0,63}$"
    /// A time.
    Time "string" r"^[0-9]+(ms|s|m|h)$"
}

/// The type of a setting.
#[derive(JsonSchema)]
#[schemars(rename_all = "lowercase")]
#[expect(dead_code, reason = "only its schema is used")]
enum SettingType {
    /// Text.
    String,
    /// A whole number.
    Integer,
    /// A number.
    Number,
    /// True or false.
    Boolean,
    /// A list of single values.
    Array,
}

/// One value or a list of them, as the reader takes it.
#[derive(JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, reason = "only its schema is used")]
enum OneOrMany<T> {
    /// One.
    One(T),
    /// Several.
    Many(Vec<T>),
}

#[cfg(test)]
mod tests {
    use super::super::{document, execution, settings};
    use super::*;

    #[test]
    fn the_schema_and_the_reader_know_the_same_fields() {
        let schema = manifest_schema();
        for (name, fields) in [
            (None, document::FIELDS),
            (Some("Execution"), execution::FIELDS),
            (Some("Limits"), execution::LIMIT_FIELDS),
            (Some("Tool"), document::TOOL_FIELDS),
            (Some("ConfigSchema"), settings::FIELDS),
            (Some("Setting"), settings::SINGLE_FIELDS),
            (Some("SettingItem"), settings::ITEM_FIELDS),
        ] {
            let shape = name.map_or(&schema, |name| &schema["$defs"][name]);
            let properties = shape["properties"].as_object().unwrap();
            let mut known: Vec<&str> = properties.keys().map(String::as_str).collect();
            let mut read = fields.to_vec();
            known.sort_unstable();
            read.sort_unstable();
            assert_eq!(known, read, "{name:?}");
        }
    }
}
