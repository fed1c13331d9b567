//! The part of a manifest that says how a plugin runs.
//!
//! Each tier has its own fields, and a field of another one is refused: it
//! would look as if it held. Never looks at files; whether a program exists is
//! found out when it is started.

use std::ops::RangeInclusive;

use fluffy_base::{ByteSize, Span};
use fluffy_contract::isolation::Tier;
use fluffy_policy::host::HostPattern;
use fluffy_policy::reader::{Fields, Placed, Reader};
use fluffy_policy::yaml::Node;

use super::reach::{PathRule, Root};
use super::{Execution, Limits, Protocol, Reach, Start};

pub(super) const FIELDS: &[&str] = &[
    "tier", "command", "module", "image", "protocol", "env", "sandbox", "limits",
];
pub(super) const LIMIT_FIELDS: &[&str] = &["memory", "cpu", "pids", "fuel", "call_timeout"];

/// The most arguments of a command, and the most entries of a list.
const MAX_LIST: usize = 128;

/// An execution, and where its paths, hosts and settings stand.
#[derive(Debug)]
pub(super) struct PlacedExecution<'n> {
    pub(super) execution: Execution,
    pub(super) reach: PlacedReach<'n>,
    pub(super) environment: Vec<(String, Placed<'n>)>,
}

/// What a sandbox would open, each entry with its place.
#[derive(Debug, Default)]
pub(super) struct PlacedReach<'n> {
    pub(super) read_allow: Vec<(PathRule, Placed<'n>)>,
    pub(super) read_deny: Vec<(PathRule, Placed<'n>)>,
    pub(super) write_allow: Vec<(PathRule, Placed<'n>)>,
    pub(super) hosts: Vec<(HostPattern, Placed<'n>)>,
}

impl PlacedReach<'_> {
    fn plain(&self) -> Reach {
        let rules =
            |list: &[(PathRule, Placed<'_>)]| list.iter().map(|(rule, _)| rule.clone()).collect();
        Reach {
            read_allow: rules(&self.read_allow),
            read_deny: rules(&self.read_deny),
            write_allow: rules(&self.write_allow),
            hosts: self.hosts.iter().map(|(host, _)| host.clone()).collect(),
        }
    }
}

/// Reads `execution`.
pub(super) fn read<'n>(reader: &mut Reader, node: &'n Node<'n>) -> Option<PlacedExecution<'n>> {
    let fields = reader.fields(node, "`execution`", FIELDS)?;
    let tier = match fields.get("tier") {
        Some(node) => reader
            .text(node, "`tier`")
            .and_then(|text| reader.word(text)),
        None => {
            let help = "write `tier: process`, or wasm, container, microvm";
            reader.missing(fields.place, "`execution`", "tier", help);
            None
        }
    };
    let reach = match fields.get("sandbox") {
        Some(node) => read_reach(reader, node, tier),
        None => Some(PlacedReach::default()),
    };
    let limits = match fields.get("limits") {
        Some(node) => read_limits(reader, node, tier),
        None => Some(Limits::default()),
    };
    let tier = tier?;
    let start = read_start(reader, fields, tier);
    let environment = match fields.get("env") {
        Some(node) => read_environment(reader, node),
        None => Some(Vec::new()),
    }?;
    let reach = reach?;
    Some(PlacedExecution {
        execution: Execution {
            tier,
            start: start?,
            environment: environment
                .iter()
                .map(|(variable, setting, _)| (variable.clone(), setting.clone()))
                .collect(),
            sandbox: reach.plain(),
            limits: limits?,
        },
        reach,
        environment: environment
            .into_iter()
            .map(|(_, setting, placed)| (setting, placed))
            .collect(),
    })
}

/// Variables of the program: each has the value of a setting.
fn read_environment<'n>(
    reader: &mut Reader,
    node: &'n Node<'n>,
) -> Option<Vec<(String, String, Placed<'n>)>> {
    let mut variables = Vec::new();
    for (key, node) in reader.entries(node, "`env`")?.iter() {
        let placed = reader.text(node, "a variable")?;
        let name = &*key.text;
        let letter = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
        let is_name = name.starts_with(|c: char| c.is_ascii_uppercase())
            && name.len() <= 64
            && name.chars().all(letter);
        // What the host says itself, and what changes how a program is loaded.
        let is_taken = ["PATH", "HOME", "TMPDIR"].contains(&name)
            || ["LD_", "PLUGIN_", "FLUFFY_"]
                .iter()
                .any(|start| name.starts_with(start))
            || name.ends_with("_PROXY");
        let setting = placed.text.strip_prefix("@config.");
        let (what, why, help) = match setting {
            _ if !is_name => (
                "this cannot be the name of a variable",
                "programs read only such names",
                "use capital letters, digits and `_`, a letter first",
            ),
            _ if is_taken => (
                "this variable is the host's",
                "it decides how the program is started",
                "use a name of the program's own",
            ),
            None => (
                "a variable has the value of a setting",
                "everything else stands in `command`",
                "write `API_KEY: \"@config.api_key\"`",
            ),
            Some(_) if variables.len() >= MAX_LIST => {
                ("too many variables", "every list is bounded", "use fewer")
            }
            Some(setting) => {
                variables.push((name.to_owned(), setting.to_owned(), placed));
                continue;
            }
        };
        reader.findings.error(key.place, what, why, help);
    }
    Some(variables)
}

fn read_start(reader: &mut Reader, fields: Fields<'_>, tier: Tier) -> Option<Start> {
    let takes: &[&str] = match tier {
        Tier::Wasm => &["module"],
        Tier::Process => &["command", "protocol", "env"],
        Tier::Container | Tier::Microvm => &["command", "image", "protocol", "env"],
    };
    for field in ["command", "module", "image", "protocol", "env"] {
        if let (Some(node), false) = (fields.get(field), takes.contains(&field)) {
            reader.findings.error(
                node.place,
                format!("tier `{tier}` has no `{field}`"),
                "a field that is ignored would look as if it held",
                format!("remove it; the tier takes {}", takes.join(", ")),
            );
        }
    }
    match tier {
        Tier::Wasm => {
            let file = required(reader, fields, "module", "write `module: plugin.wasm`")?;
            let file = own_file(reader, file)?;
            Some(Start::Module { file })
        }
        Tier::Process => {
            let command = read_command(reader, fields);
            let protocol = required(
                reader,
                fields,
                "protocol",
                "write `protocol: go-plugin` or `mcp`",
            );
            let protocol = protocol.and_then(|text| reader.word(text));
            let (command, protocol) = (command?, protocol?);
            Some(Start::Program { command, protocol })
        }
        Tier::Container | Tier::Microvm => {
            let command = read_command(reader, fields);
            let image = required(reader, fields, "image", "write `image: registry/name:tag`");
            let image = image.and_then(|text| read_image(reader, text));
            let protocol = match fields.get("protocol") {
                Some(node) => reader
                    .text(node, "`protocol`")
                    .and_then(|text| reader.word(text)),
                None => Some(Protocol::GoPlugin),
            };
            Some(Start::Image {
                image: image?,
                command: command?,
                protocol: protocol?,
            })
        }
    }
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
            reader.missing(fields.place, "`execution`", field, help);
            None
        }
    }
}

fn read_command(reader: &mut Reader, fields: Fields<'_>) -> Option<Vec<String>> {
    let Some(node) = fields.get("command") else {
        let help = "write `command: [ \"./program\" ]`";
        reader.missing(fields.place, "`execution`", "command", help);
        return None;
    };
    reader.list(node, "`command`")?;
    let words = reader.texts(node, "`command`")?;
    let Some(program) = words.first() else {
        let why = "there has to be a program";
        let help = "write `command: [ \"./program\" ]`";
        reader
            .findings
            .error(node.place, "`command` is empty", why, help);
        return None;
    };
    if words.len() > MAX_LIST {
        let what = format!("`command` has more than {MAX_LIST} words");
        reader
            .findings
            .error(node.place, what, "every list is bounded", "shorten it");
        return None;
    }
    let mut usable = is_program(reader, *program);
    for word in &words {
        if word.text.chars().any(char::is_control) {
            usable = false;
            reader.findings.error(
                word.place,
                "an argument has a control character",
                "what cannot be seen cannot be reviewed",
                "remove it",
            );
        }
    }
    usable.then(|| words.iter().map(|word| word.text.to_owned()).collect())
}

/// A file of the plugin (`./x`), one of the system (`/usr/bin/x`) or a name.
fn is_program(reader: &mut Reader, program: Placed<'_>) -> bool {
    let text = program.text;
    let bare = !text.contains('/');
    let names = text
        .strip_prefix("./")
        .or(text.strip_prefix('/'))
        .unwrap_or(text);
    let plain = names
        .split('/')
        .all(|name| !matches!(name, "" | "." | ".."));
    let fits = plain
        && !text.starts_with('-')
        && (bare || text.starts_with("./") || text.starts_with('/'));
    if !fits {
        reader.findings.error(
            program.place,
            "this cannot be a program",
            "a program is a file of the plugin, an absolute path or a name, without `..` and not \
             like an option",
            "write for example `./program`, `/usr/bin/node` or `node`",
        );
    }
    fits
}

/// A file below the plugin's own directory.
fn own_file(reader: &mut Reader, placed: Placed<'_>) -> Option<String> {
    let text = placed.text.strip_prefix("./").unwrap_or(placed.text);
    let plain = text.split('/').all(|name| !matches!(name, "" | "." | ".."));
    let odd = |c: char| c.is_control() || c == '\\';
    if plain && !text.starts_with('-') && !text.contains(odd) && text.len() <= 512 {
        return Some(text.to_owned());
    }
    reader.findings.error(
        placed.place,
        "this is not a file of the plugin",
        "a path has no `..` and no control character, and begins neither with `/` nor with `-`",
        "write it from the plugin's own directory, such as `plugin.wasm`",
    );
    None
}

fn read_image(reader: &mut Reader, placed: Placed<'_>) -> Option<String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-:/@".contains(c);
    let text = placed.text;
    let first = text
        .chars()
        .next()
        .is_some_and(|c| c.is_ascii_alphanumeric());
    if first && text.len() <= 255 && text.chars().all(fits) {
        return Some(text.to_owned());
    }
    reader.findings.error(
        placed.place,
        "this is not the reference of an image",
        "an engine would read it as something else",
        "write for example `registry.example.com/name:1.2` or with `@sha256:…`",
    );
    None
}

fn read_reach<'n>(
    reader: &mut Reader,
    node: &'n Node<'n>,
    tier: Option<Tier>,
) -> Option<PlacedReach<'n>> {
    let fields = reader.fields(node, "`sandbox`", &["filesystem", "network"])?;
    let mut reach = PlacedReach::default();
    if let Some(node) = fields.get("filesystem") {
        let known = ["read_allow", "read_deny", "write_allow"];
        let fields = reader.fields(node, "`filesystem`", &known)?;
        reach.read_allow = read_paths(reader, fields, "read_allow");
        reach.read_deny = read_paths(reader, fields, "read_deny");
        reach.write_allow = read_paths(reader, fields, "write_allow");
        check_data(reader, &reach, tier);
        check_unread(reader, &reach);
    }
    if let Some(node) = fields.get("network") {
        let fields = reader.fields(node, "`network`", &["allow"])?;
        reach.hosts = read_hosts(reader, fields);
    }
    Some(reach)
}

fn read_paths<'n>(
    reader: &mut Reader,
    fields: Fields<'n>,
    field: &str,
) -> Vec<(PathRule, Placed<'n>)> {
    let Some(node) = fields.get(field) else {
        return Vec::new();
    };
    let texts = bounded(reader, node, field);
    let mut rules = Vec::new();
    for placed in texts {
        match PathRule::parse(placed.text) {
            Ok(rule) => rules.push((rule, placed)),
            Err(error) => reader.findings.error(
                placed.place,
                error.to_string(),
                "a path is mounted, so it must mean one thing",
                "write a file such as `/docs/a.md` or all below a directory, `/docs/*`",
            ),
        }
    }
    rules
}

fn read_hosts<'n>(reader: &mut Reader, fields: Fields<'n>) -> Vec<(HostPattern, Placed<'n>)> {
    let Some(node) = fields.get("allow") else {
        return Vec::new();
    };
    let mut hosts = Vec::new();
    for placed in bounded(reader, node, "allow") {
        match HostPattern::parse_with_port(placed.text) {
            Ok(host) => hosts.push((host, placed)),
            Err(error) => reader.findings.error(
                placed.place,
                error.to_string(),
                "a host is allowed together with its port",
                "write for example `api.example.com:443` or `*.example.com:443`",
            ),
        }
    }
    hosts
}

fn bounded<'n>(reader: &mut Reader, node: &'n Node<'n>, field: &str) -> Vec<Placed<'n>> {
    let texts = reader
        .texts(node, &format!("`{field}`"))
        .unwrap_or_default();
    if texts.len() > MAX_LIST {
        let what = format!("`{field}` has more than {MAX_LIST} entries");
        let why = "each of them is mounted or checked on its own";
        reader
            .findings
            .error(node.place, what, why, "name a directory above them");
    }
    texts.into_iter().take(MAX_LIST).collect()
}

/// The data directory is mounted whole, and nothing else is written.
fn check_data(reader: &mut Reader, reach: &PlacedReach<'_>, tier: Option<Tier>) {
    for (rule, placed) in &reach.write_allow {
        let whole = rule.root() == Root::Data && rule.to_string() == "@data/*";
        let (why, help) = match (rule.root(), tier) {
            (Root::Data, _) if whole => continue,
            (Root::Data, _) => (
                "a plugin's data directory is mounted whole",
                "write `@data/*`",
            ),
            (Root::Workspace, Some(Tier::Wasm)) => continue,
            (Root::Workspace | Root::Host, _) => (
                "writes land in the layer of a session, which a process that outlives the session \
                 cannot share",
                "write to `@data/*`, and to the workspace through the host's `fs` service",
            ),
        };
        let what = format!("`{}` cannot be in `write_allow`", placed.text);
        reader.findings.error(placed.place, what, why, help);
    }
    let all = reach.read_allow.iter().chain(&reach.read_deny);
    for (_, placed) in all.filter(|(rule, _)| rule.root() == Root::Data) {
        reader.findings.error(
            placed.place,
            "a plugin's own data is read wherever it is written",
            "two lists about one directory could contradict each other",
            "write `write_allow: [ \"@data/*\" ]`",
        );
    }
}

/// Warns about what is denied and was never allowed.
fn check_unread(reader: &mut Reader, reach: &PlacedReach<'_>) {
    for (rule, placed) in &reach.read_deny {
        let inside = |(wide, _): &(PathRule, Placed<'_>)| wide.covers(rule);
        if !reach.read_allow.iter().any(inside) {
            let what = format!("`{}` is denied and was never allowed", placed.text);
            let why = "what is not in `read_allow` is not seen at all";
            reader.findings.warn(placed.place, what, why, "remove it");
        }
    }
}

fn read_limits(reader: &mut Reader, node: &Node<'_>, tier: Option<Tier>) -> Option<Limits> {
    let fields = reader.fields(node, "`limits`", LIMIT_FIELDS)?;
    let mut limits = Limits::default();
    for (key, node) in fields.iter() {
        // What cannot be used has been reported, and the whole is refused.
        let _ = match key.text.as_ref() {
            "memory" => reader
                .size(node, "`memory`")
                .and_then(|size| {
                    in_range(reader, node, size, 1 << 20..=64 << 30, "from 1MiB to 64GiB")
                })
                .map(|size| limits.memory = ByteSize(size)),
            "cpu" => reader
                .processors(node, "`cpu`")
                .and_then(|cpu| in_range(reader, node, cpu, 10..=64_000, "from 0.01 to 64"))
                .map(|cpu| limits.cpu_milli = cpu),
            "pids" => reader
                .positive(node, "`pids`")
                .and_then(|pids| in_range(reader, node, pids, 1..=4_096, "from 1 to 4096"))
                .map(|pids| limits.pids = pids),
            "fuel" => read_fuel(reader, node, tier).map(|fuel| limits.fuel = Some(fuel)),
            "call_timeout" => read_timeout(reader, node, "`call_timeout`")
                .map(|timeout| limits.call_timeout = timeout),
            _ => None,
        };
    }
    Some(limits)
}

fn read_fuel(reader: &mut Reader, node: &Node<'_>, tier: Option<Tier>) -> Option<u64> {
    if tier.is_some_and(|tier| tier != Tier::Wasm) {
        let why = "it has no effect in other tiers";
        let help = "remove it, or run the plugin in tier `wasm`";
        reader
            .findings
            .warn(node.place, "only a module burns fuel", why, help);
    }
    let fuel = reader.count(node, "`fuel`")?;
    in_range(reader, node, fuel, 1..=1 << 50, "from 1 on")
}

/// A time for something that somebody waits for.
pub(super) fn read_timeout(reader: &mut Reader, node: &Node<'_>, what: &str) -> Option<Span> {
    let span = reader.span(node, what)?;
    let millis = in_range(reader, node, span.millis, 1..=3_600_000, "from 1ms to 1h")?;
    Some(Span { millis })
}

fn in_range<T: PartialOrd>(
    reader: &mut Reader,
    node: &Node<'_>,
    value: T,
    range: RangeInclusive<T>,
    wanted: &str,
) -> Option<T> {
    if range.contains(&value) {
        return Some(value);
    }
    reader.findings.error(
        node.place,
        "this limit is out of range",
        "a limit that no machine keeps is none",
        format!("write one {wanted}"),
    );
    None
}
