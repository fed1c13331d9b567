//! Reads `plugin.yaml`, and finds everything that is wrong with it at once.
//!
//! The rules of YAML are the policy's: no anchors, tags, merges or doubled
//! keys. Beyond that nothing in a manifest may be invisible: what a person
//! reviews must be what a host reads. Next: `execution`, `capabilities`.

use std::collections::{BTreeMap, HashSet};

use fluffy_policy::action::is_plugin_name;
use fluffy_policy::capability::Pattern;
use fluffy_policy::diagnostic::RefusedText;
use fluffy_policy::reader::{Fields, Placed, Reader};
use fluffy_policy::yaml::{self, Bounds, Node, Value};
use semver::{Version, VersionReq};

use super::capabilities::{self, PlacedPattern};
use super::execution::{self, PlacedReach, read_timeout};
use super::options;
use super::reach::{Agreement, agrees};
use super::settings::{self, Settings};
use super::{FILE, Kind, LifecycleWishes, Manifest, ToolDeclaration};

pub(super) const FIELDS: &[&str] = &[
    "name",
    "version",
    "type",
    "engine",
    "api",
    "license",
    "capabilities",
    "deny_capabilities",
    "tags",
    "execution",
    "config_schema",
    "dependencies",
    "lifecycle",
    "tools",
];
pub(super) const TOOL_FIELDS: &[&str] = &["name", "summary", "parameters", "effect", "timeout"];

/// A schema may be deep; a manifest is small all the same.
const BOUNDS: Bounds = Bounds {
    bytes: 256 << 10,
    depth: 24,
};
const MAX_DEPENDENCIES: usize = 64;
const MAX_TOOLS: usize = 256;
const MAX_TAGS: usize = 32;
const MAX_SUMMARY: usize = 200;

/// Where a plugin comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comes {
    /// Somebody installs it, and it has to be started.
    FromOutside,
    /// It is a part of this program.
    WithTheProduct,
}

/// Reads a whole manifest.
pub(super) fn read(text: &str, comes: Comes) -> Result<Manifest, RefusedText> {
    let mut reader = Reader::default();
    let root = yaml::read(text, BOUNDS, &mut reader.findings);
    let manifest = root.and_then(|root| {
        // Everything else that is said would only repeat what nobody sees.
        match check_visible(&mut reader, &root) {
            true => read_root(&mut reader, &root, comes),
            false => None,
        }
    });
    let (mut manifest, warnings) = reader.findings.finish(FILE, manifest)?;
    manifest.warnings = warnings;
    Ok(manifest)
}

fn read_root(reader: &mut Reader, root: &Node<'_>, comes: Comes) -> Option<Manifest> {
    let fields = reader.fields(root, "the manifest", FIELDS)?;
    let name = read_name(reader, fields);
    let version = read_version(reader, fields);
    let kind = required(
        reader,
        fields,
        "type",
        "write `type: tool`, or provider, channel, skill",
    );
    let kind: Option<Kind> = kind.and_then(|text| reader.word(text));
    let engine = required(reader, fields, "engine", "write `engine: \">=0.1, <0.3\"`");
    let engine = engine.and_then(|text| read_range(reader, text));
    let api = read_api(reader, fields);
    let license = fields
        .get("license")
        .and_then(|node| read_license(reader, node));
    let tags = fields
        .get("tags")
        .map_or_else(Vec::new, |node| read_tags(reader, node));
    let mut capabilities = |field: &str| match fields.get(field) {
        Some(node) => capabilities::read(reader, node, &format!("`{field}`"), name.as_deref()),
        None => Vec::new(),
    };
    let declared = capabilities("capabilities");
    let denied = capabilities("deny_capabilities");
    capabilities::check_denied(reader, &declared, &denied);
    let execution = match (fields.get("execution"), kind, comes) {
        (Some(node), _, Comes::WithTheProduct) => {
            let what = "what comes with the product has nothing to start";
            let why = "a field that is ignored would look as if it held";
            reader
                .findings
                .error(node.place, what, why, "remove `execution`");
            None
        }
        (Some(node), _, Comes::FromOutside) => execution::read(reader, node).map(Some),
        (None, Some(Kind::Skill) | None, _) | (None, _, Comes::WithTheProduct) => Some(None),
        (None, Some(_), Comes::FromOutside) => {
            let help = "write `execution:` with a tier and what to start";
            reader.missing(fields.place, "the manifest", "execution", help);
            None
        }
    };
    let (declared, denied) = (plain(&declared), plain(&denied));
    if let Some(Some(execution)) = &execution {
        check_agreement(reader, &execution.reach, &declared, &denied);
    }
    let settings = match fields.get("config_schema") {
        Some(node) => settings::read(reader, node),
        None => Some(Settings::default()),
    };
    if let (Some(Some(execution)), Some(settings)) = (&execution, &settings) {
        check_environment(reader, &execution.environment, settings, &declared);
    }
    let dependencies = read_dependencies(reader, fields, name.as_deref());
    let lifecycle = read_lifecycle(reader, fields);
    let tools = read_tools(reader, fields, kind);
    Some(Manifest {
        name: name?,
        version: version?,
        kind: kind?,
        engine: engine?,
        api: api?,
        license,
        capabilities: declared,
        deny_capabilities: denied,
        tags,
        execution: execution?.map(|placed| placed.execution),
        settings: settings?,
        dependencies: dependencies?,
        lifecycle: lifecycle?,
        tools: tools?,
        warnings: Vec::new(),
    })
}

fn plain(patterns: &[PlacedPattern<'_>]) -> Vec<Pattern> {
    patterns
        .iter()
        .map(|(pattern, _)| pattern.clone())
        .collect()
}

fn required<'n>(
    reader: &mut Reader,
    fields: Fields<'n>,
    field: &str,
    help: &str,
) -> Option<Placed<'n>> {
    match fields.get(field) {
        Some(node) => reader.text(node, &format!("`{field}`")),
        None => {
            reader.missing(fields.place, "the manifest", field, help);
            None
        }
    }
}

fn read_name(reader: &mut Reader, fields: Fields<'_>) -> Option<String> {
    let placed = required(reader, fields, "name", "write `name: my-plugin`")?;
    if is_plugin_name(placed.text) {
        return Some(placed.text.to_owned());
    }
    reader.findings.error(
        placed.place,
        "this cannot be the name of a plugin",
        "it is part of actions, paths and commands",
        "use 2 to 64 lower-case letters, digits and `-`, a letter first",
    );
    None
}

fn read_version(reader: &mut Reader, fields: Fields<'_>) -> Option<Version> {
    let placed = required(reader, fields, "version", "write `version: 1.0.0`")?;
    match Version::parse(placed.text) {
        Ok(version) if placed.text.len() <= 64 => Some(version),
        _ => {
            let shown: String = placed.text.chars().take(64).collect();
            reader.findings.error(
                placed.place,
                format!("`{shown}` is not a version"),
                "versions are compared by the rules of semver",
                "write three numbers such as `1.2.0`",
            );
            None
        }
    }
}

fn read_range(reader: &mut Reader, placed: Placed<'_>) -> Option<VersionReq> {
    match VersionReq::parse(placed.text) {
        Ok(range) if placed.text.len() <= 128 => Some(range),
        _ => {
            let shown: String = placed.text.chars().take(64).collect();
            reader.findings.error(
                placed.place,
                format!("`{shown}` is not a range of versions"),
                "versions are compared by the rules of semver",
                "write for example `^1.0` or `\">=0.1, <0.3\"`",
            );
            None
        }
    }
}

fn read_api(reader: &mut Reader, fields: Fields<'_>) -> Option<u32> {
    let Some(node) = fields.get("api") else {
        reader.missing(fields.place, "the manifest", "api", "write `api: 1`");
        return None;
    };
    reader.positive(node, "`api`")
}

fn read_license(reader: &mut Reader, node: &Node<'_>) -> Option<String> {
    let placed = reader.text(node, "`license`")?;
    let fits = |c: char| c.is_ascii_alphanumeric() || " .-+()".contains(c);
    if !placed.text.is_empty() && placed.text.len() <= 128 && placed.text.chars().all(fits) {
        return Some(placed.text.to_owned());
    }
    reader.findings.error(
        placed.place,
        "this is not the name of a licence",
        "licences have names of the SPDX list",
        "write for example `MIT` or `MIT OR Apache-2.0`",
    );
    None
}

fn read_tags(reader: &mut Reader, node: &Node<'_>) -> Vec<String> {
    let mut tags = Vec::new();
    let letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-".contains(c);
    for placed in reader.texts(node, "`tags`").unwrap_or_default() {
        let text = placed.text;
        // Rules trust by these; who installs a plugin gives them, not it.
        let (why, help) = if text == "core_plugin" || text.starts_with("trusted") {
            (
                "a plugin cannot say of itself that it is trusted",
                "remove it",
            )
        } else if text.is_empty() || text.len() > 64 || !text.chars().all(letter) {
            (
                "a tag is a word",
                "use lower-case letters, digits, `_` and `-`",
            )
        } else if tags.len() >= MAX_TAGS {
            ("every list is bounded", "use fewer")
        } else {
            tags.push(text.to_owned());
            continue;
        };
        let shown: String = text.chars().take(64).collect();
        let what = format!("`{shown}` cannot be a tag");
        reader.findings.error(placed.place, what, why, help);
    }
    tags
}

/// What a sandbox would open must be declared and not denied.
fn check_agreement(
    reader: &mut Reader,
    reach: &PlacedReach<'_>,
    declared: &[Pattern],
    denied: &[Pattern],
) {
    let reads = reach
        .read_allow
        .iter()
        .map(|(rule, placed)| (rule.capability("fs.read"), placed));
    let writes = reach
        .write_allow
        .iter()
        .map(|(rule, placed)| (rule.capability("fs.write"), placed));
    let hosts = reach
        .hosts
        .iter()
        .map(|(host, placed)| (format!("net.connect.{host}"), placed));
    for (capability, placed) in reads.chain(writes).chain(hosts) {
        let (why, help) = match agrees(&capability, declared, denied) {
            Agreement::Given => continue,
            // Its own data is nobody else's: to ask for it is enough.
            Agreement::Missing if capability == "fs.write.@data/*" => continue,
            Agreement::Missing => (
                "the sandbox opens nothing that is not among the capabilities".to_owned(),
                format!("add `{capability}` to `capabilities`"),
            ),
            Agreement::Denied(deny) => (
                format!("`{deny}` in `deny_capabilities` takes it away"),
                "remove one of the two".to_owned(),
            ),
        };
        let what = format!("`{}` needs the capability `{capability}`", placed.text);
        reader.findings.error(placed.place, what, &why, help);
    }
}

/// A variable carries one value of a setting that there is, to a plugin that
/// may read its settings.
fn check_environment(
    reader: &mut Reader,
    environment: &[(String, Placed<'_>)],
    settings: &Settings,
    declared: &[Pattern],
) {
    for (name, placed) in environment {
        let (why, help) = match settings.all.get(name) {
            Some(setting) if setting.items.is_some() => (
                "a variable holds one value",
                "have the plugin ask its host for lists".to_owned(),
            ),
            Some(_) => match agrees("config.read.self", declared, &[]) {
                Agreement::Given => continue,
                _ => (
                    "a plugin reads its settings by a capability",
                    "add `config.read.self` to `capabilities`".to_owned(),
                ),
            },
            None => (
                "there is no such setting",
                format!("describe `{name}` in `config_schema`"),
            ),
        };
        let what = format!("`{}` cannot be given to the program", placed.text);
        reader.findings.error(placed.place, what, why, help);
    }
}

fn read_dependencies(
    reader: &mut Reader,
    fields: Fields<'_>,
    own: Option<&str>,
) -> Option<BTreeMap<String, VersionReq>> {
    let Some(node) = fields.get("dependencies") else {
        return Some(BTreeMap::new());
    };
    let entries = reader.entries(node, "`dependencies`")?;
    let mut dependencies = BTreeMap::new();
    for (key, node) in entries.iter() {
        let range = reader.text(node, "a dependency");
        let range = range.and_then(|text| read_range(reader, text));
        let name = &*key.text;
        let fits =
            is_plugin_name(name) && own != Some(name) && dependencies.len() < MAX_DEPENDENCIES;
        if !fits {
            reader.findings.error(
                key.place,
                "a plugin cannot depend on this",
                "dependencies are other plugins, and not many",
                "write their names, such as `session-store: \"^1.0\"`",
            );
        }
        if let (Some(range), true) = (range, fits) {
            dependencies.insert(name.to_owned(), range);
        }
    }
    Some(dependencies)
}

fn read_lifecycle(reader: &mut Reader, fields: Fields<'_>) -> Option<LifecycleWishes> {
    let mut wishes = LifecycleWishes::default();
    let Some(node) = fields.get("lifecycle") else {
        return Some(wishes);
    };
    let known = ["hot_reload", "graceful_shutdown_timeout"];
    let fields = reader.fields(node, "`lifecycle`", &known)?;
    let flag = fields
        .get("hot_reload")
        .map(|node| reader.flag(node, "`hot_reload`"));
    let what = "graceful_shutdown_timeout";
    let timeout = fields
        .get(what)
        .map(|node| read_timeout(reader, node, &format!("`{what}`")));
    if let Some(flag) = flag {
        wishes.hot_reload = flag?;
    }
    if let Some(timeout) = timeout {
        wishes.graceful_shutdown_timeout = timeout?;
    }
    Some(wishes)
}

fn read_tools(
    reader: &mut Reader,
    fields: Fields<'_>,
    kind: Option<Kind>,
) -> Option<Vec<ToolDeclaration>> {
    let Some(node) = fields.get("tools") else {
        return Some(Vec::new());
    };
    let items = reader.list(node, "`tools`")?;
    let what = match kind {
        Some(kind) if kind != Kind::Tool => Some("only a plugin of type `tool` has tools"),
        _ if items.len() > MAX_TOOLS => Some("more tools than a model could choose from"),
        _ => None,
    };
    if let Some(what) = what {
        let why = "what is declared and never called would mislead";
        reader.findings.error(
            node.place,
            what,
            why,
            "remove them, or make it `type: tool`",
        );
        return None;
    }
    let mut names = HashSet::new();
    let mut tools = Vec::new();
    for item in items {
        let Some(tool) = read_tool(reader, item) else {
            continue;
        };
        if !names.insert(tool.name.clone()) {
            let what = format!("the tool `{}` is declared twice", tool.name);
            let why = "a call names one tool";
            reader
                .findings
                .error(item.place, what, why, "give each its own name");
        }
        tools.push(tool);
    }
    Some(tools)
}

fn read_tool(reader: &mut Reader, node: &Node<'_>) -> Option<ToolDeclaration> {
    let fields = reader.fields(node, "a tool", TOOL_FIELDS)?;
    let mut text = |field: &str, help: &str| match fields.get(field) {
        Some(node) => reader.text(node, &format!("`{field}`")),
        None => {
            reader.missing(fields.place, "a tool", field, help);
            None
        }
    };
    let name = text("name", "write `name: close-issue`");
    let summary = text("summary", "say in a line what it does");
    let effect = text("effect", "write `effect: reads` or `effect: acts`");
    let name = name.filter(|name| is_tool_name(reader, *name));
    let summary = summary.filter(|summary| is_summary(reader, *summary));
    let effect = effect.and_then(|effect| reader.word(effect));
    let parameters = match fields.get("parameters") {
        Some(node) => options::read(reader, node),
        None => Some(serde_json::json!({ "type": "object", "additionalProperties": false })),
    };
    let timeout = match fields.get("timeout") {
        Some(node) => read_timeout(reader, node, "`timeout`").map(Some),
        None => Some(None),
    };
    Some(ToolDeclaration {
        name: name?.text.to_owned(),
        summary: summary?.text.to_owned(),
        parameters: parameters?,
        effect: effect?,
        timeout: timeout?,
    })
}

/// It ends an action, `plugin.<plugin>.<tool>`, so it looks like one.
fn is_tool_name(reader: &mut Reader, placed: Placed<'_>) -> bool {
    let letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-".contains(c);
    let word = |text: &str| !text.is_empty() && text.chars().all(letter);
    let fits = placed.text.len() <= 64 && placed.text.split('.').all(word);
    if !fits {
        reader.findings.error(
            placed.place,
            "this cannot be the name of a tool",
            "it is the end of an action's name",
            "use lower-case letters, digits, `_`, `-`, and dots between words",
        );
    }
    fits
}

fn is_summary(reader: &mut Reader, placed: Placed<'_>) -> bool {
    let fits = (1..=MAX_SUMMARY).contains(&placed.text.len()) && !placed.text.contains('\n');
    if !fits {
        reader.findings.error(
            placed.place,
            "this is not a summary",
            "each tool costs a model's context one line",
            format!("write one line of at most {MAX_SUMMARY} bytes"),
        );
    }
    fits
}

/// Whether every text shows what it says; those that do not are refused.
fn check_visible(reader: &mut Reader, node: &Node<'_>) -> bool {
    let mut visible = |place, text: &str| {
        let hidden = |c: char| is_hidden(c) && !matches!(c, '\n' | '\t');
        let hidden = text.contains(hidden);
        if hidden {
            let what = "a character here cannot be seen";
            let why = "what a person reviews must be what is read";
            reader.findings.error(place, what, why, "remove it");
        }
        !hidden
    };
    match &node.value {
        Value::Null => true,
        Value::Text { text, .. } => visible(node.place, text),
        Value::List(items) => {
            let hidden = items.iter().filter(|item| !check_visible(reader, item));
            hidden.count() == 0
        }
        Value::Map(entries) => {
            let hidden = entries
                .iter()
                .filter(|(key, _)| !visible(key.place, &key.text))
                .count();
            let below = entries
                .iter()
                .filter(|(_, node)| !check_visible(reader, node));
            hidden + below.count() == 0
        }
    }
}

/// Whether a character is not seen, or changes how others are.
pub(crate) fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}' | '\u{200e}' | '\u{200f}'
            | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}'
            | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}
