//! Reads one process type, and what an env changes about it.

mod network;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use crate::model::{
    Mount, Override, Prestart, Process, ProcessOverride, Resources, Restart, RestartPolicy,
    Scaling, Signal, Stop, Volume,
};
use crate::problem::Code;
use crate::reader::{Fields, Item, Reader, shorten};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The most variables of a process, and the most bytes in them.
const VARS: (usize, usize) = (256, 64 << 10);

/// The most arguments of a command, and the most bytes in them.
const ARGUMENTS: (usize, usize) = (64, 16 << 10);

/// The most mounts of a process.
const MOST_MOUNTS: usize = 8;

const MEMORY: RangeInclusive<u64> = 64 * MIB..=256 * GIB;
const DISK: RangeInclusive<u64> = GIB..=100 * GIB;

const PROCESS: &[&str] = &[
    "command",
    "workdir",
    "user",
    "vars",
    "prestart",
    "prestart_timeout_seconds",
    "resources",
    "replicas",
    "scaling",
    "restart",
    "stop",
    "ports",
    "health",
    "mounts",
    "secrets",
];

/// Paths that belong to the platform.
const RESERVED: &[&str] = &["/proc", "/sys", "/dev", "/run", "/tmp"];

/// What all processes have from the `env` table.
#[derive(Debug, Default)]
pub(crate) struct Inherited {
    vars: BTreeMap<String, String>,
    workdir: Option<String>,
    user: Option<String>,
    prestart: Option<Prestart>,
}

impl Inherited {
    pub(crate) fn read(reader: &mut Reader<'_>, root: &Fields<'_>) -> Self {
        let known = [
            "vars",
            "workdir",
            "user",
            "prestart",
            "prestart_timeout_seconds",
        ];
        match reader.section(root, "env", &known) {
            Some(fields) => Self::of(reader, &fields),
            None => Self::default(),
        }
    }

    /// The fields that a process has as well.
    fn of(reader: &mut Reader<'_>, fields: &Fields<'_>) -> Self {
        let timeout = reader.number(
            fields,
            "prestart_timeout_seconds",
            (1..=600, 30),
            Code::Range,
        );
        let prestart = command(reader, fields, "prestart").map(|command| Prestart {
            command,
            timeout_seconds: timeout,
        });
        Self {
            vars: vars(reader, fields),
            workdir: checked(reader, fields, "workdir", |text| {
                is_plain_path(text).then_some(()).ok_or("an absolute path")
            }),
            user: checked(reader, fields, "user", |text| {
                let plain = |c: char| c.is_ascii_alphanumeric() || "_-.:".contains(c);
                let user = (1..=64).contains(&text.len()) && text.chars().all(plain);
                user.then_some(()).ok_or("a user or a user id")
            }),
            prestart,
        }
    }
}

/// Reads one process.
pub(crate) fn read(
    reader: &mut Reader<'_>,
    fields: &Fields<'_>,
    (inherited, volumes): (&Inherited, &BTreeMap<String, Volume>),
) -> Process {
    reader.known(fields, PROCESS);
    let own = Inherited::of(reader, fields);
    let mut all_vars = inherited.vars.clone();
    all_vars.extend(own.vars);
    let mounts = mounts(reader, fields, volumes);
    let most = most(&mounts);
    let replicas = reader.number(fields, "replicas", (0..=100, 1), Code::ReplicaRange);
    let scaling = scaling(reader, fields, most);
    bounds(reader, fields, (replicas, scaling), most);
    let ports = network::ports(reader, fields);
    Process {
        command: command(reader, fields, "command"),
        workdir: own.workdir.or_else(|| inherited.workdir.clone()),
        user: own.user.or_else(|| inherited.user.clone()),
        vars: all_vars,
        prestart: inherited
            .prestart
            .iter()
            .cloned()
            .chain(own.prestart)
            .collect(),
        resources: resources(reader, fields),
        replicas,
        scaling: scaling.unwrap_or(Scaling { min: 0, max: most }),
        restart: restart(reader, fields),
        stop: stop(reader, fields),
        health: network::health(reader, fields, &ports),
        ports,
        mounts,
        secrets_required: secrets(reader, fields),
    }
}

/// Reads what an env changes; `vars` and little else can be changed.
pub(crate) fn read_override(
    reader: &mut Reader<'_>,
    fields: &Fields<'_>,
    processes: &BTreeMap<String, Process>,
) -> Override {
    only(reader, fields, &["vars", "processes"]);
    let mut read = Override {
        vars: vars(reader, fields),
        processes: BTreeMap::new(),
    };
    let table = fields.get("processes").and_then(|item| reader.table(&item));
    for (name, item) in table.iter().flat_map(Fields::entries) {
        let Some(process) = processes.get(&name) else {
            let message = format!("there is no process `{}`", shorten(&name));
            reader.wrong(&item, Code::OverrideField, message);
            continue;
        };
        let Some(fields) = reader.table(&item) else {
            continue;
        };
        only(
            reader,
            &fields,
            &["replicas", "scaling", "resources", "vars"],
        );
        let most = most(&process.mounts);
        let scaling = scaling(reader, &fields, most);
        let replicas = fields
            .get("replicas")
            .map(|_| reader.number(&fields, "replicas", (0..=100, 1), Code::ReplicaRange));
        let effective = (
            replicas.unwrap_or(process.replicas),
            Some(scaling.unwrap_or(process.scaling)),
        );
        bounds(reader, &fields, effective, most);
        let section = reader.section(&fields, "resources", &["memory", "cpu", "disk"]);
        let changed = ProcessOverride {
            replicas,
            scaling,
            memory: section.as_ref().and_then(|it| size(reader, it, "memory")),
            cpu_millis: section.as_ref().and_then(|it| cpu(reader, it)),
            disk: section.as_ref().and_then(|it| size(reader, it, "disk")),
            vars: vars(reader, &fields),
        };
        read.processes.insert(name, changed);
    }
    read
}

fn only(reader: &mut Reader<'_>, fields: &Fields<'_>, allowed: &[&str]) {
    for (name, item) in fields.entries() {
        if !allowed.contains(&name.as_str()) {
            let message = format!("`{}` cannot differ between envs", shorten(&item.path));
            let fix = format!("these can: {}", allowed.join(", "));
            reader.wrong_but(&item, Code::OverrideField, message, fix);
        }
    }
}

/// Whether a text names a process, an env or a volume.
pub(crate) fn is_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=32).contains(&text.len())
        && text.starts_with(|c: char| c.is_ascii_lowercase())
        && text.chars().all(plain)
}

/// The `name` of a table, which must be there.
pub(crate) fn name(reader: &mut Reader<'_>, fields: &Fields<'_>) -> Option<String> {
    let Some(item) = fields.get("name") else {
        reader.missing(fields, "name");
        return None;
    };
    let text = reader.text(&item)?;
    if !is_name(text) {
        let message = format!("`{}` is no name", shorten(text));
        let fix = "use lower-case letters, digits and dashes, a letter first";
        reader.wrong_but(&item, Code::Name, message, fix);
        return None;
    }
    Some(text.to_owned())
}

/// Whether a path is absolute and means what it says.
fn is_plain_path(path: &str) -> bool {
    let mut parts = path.split('/');
    path.len() <= 4096
        && parts.next() == Some("")
        && (path == "/" || parts.all(|part| !matches!(part, "" | "." | "..")))
        && !path.contains(char::is_control)
}

fn checked(
    reader: &mut Reader<'_>,
    fields: &Fields<'_>,
    name: &str,
    check: impl Fn(&str) -> Result<(), &'static str>,
) -> Option<String> {
    let item = fields.get(name)?;
    let text = reader.text(&item)?;
    match check(text) {
        Ok(()) => Some(text.to_owned()),
        Err(wanted) => {
            let message = format!("`{}` must be {wanted}", item.path);
            reader.wrong(&item, Code::Path, message);
            None
        }
    }
}

fn command(reader: &mut Reader<'_>, fields: &Fields<'_>, name: &str) -> Option<Vec<String>> {
    let item = fields.get(name)?;
    let items = reader.list(&item)?;
    let texts = items
        .iter()
        .map(|item| reader.text(item).map(str::to_owned));
    let arguments: Vec<String> = texts.collect::<Option<_>>()?;
    let bytes: usize = arguments.iter().map(String::len).sum();
    if arguments.is_empty() || arguments.len() > ARGUMENTS.0 || bytes > ARGUMENTS.1 {
        let (most, size) = ARGUMENTS;
        let message = format!("`{}` has 1 to {most} arguments of {size} bytes", item.path);
        reader.wrong(&item, Code::Length, message);
        return None;
    }
    Some(arguments)
}

/// Holds what a process type gets in the end against the limit of each part:
/// its own variables and those that it inherits.
pub(crate) fn check_vars<'a>(
    reader: &mut Reader<'_>,
    item: &Item<'_>,
    name: &str,
    parts: impl Iterator<Item = &'a BTreeMap<String, String>>,
) {
    let mut merged: BTreeMap<&str, &str> = BTreeMap::new();
    for part in parts {
        merged.extend(
            part.iter()
                .map(|(key, value)| (key.as_str(), value.as_str())),
        );
    }
    let bytes: usize = merged
        .iter()
        .map(|(key, value)| key.len() + value.len())
        .sum();
    let (most, size) = VARS;
    if merged.len() > most || bytes > size {
        let message = format!(
            "`{name}` gets {} variables of {bytes} bytes with those it inherits; at most {most} of \
             {size} bytes",
            merged.len()
        );
        reader.wrong(item, Code::VarLimit, message);
    }
}

fn vars(reader: &mut Reader<'_>, fields: &Fields<'_>) -> BTreeMap<String, String> {
    let mut vars = BTreeMap::new();
    let Some(item) = fields.get("vars") else {
        return vars;
    };
    let Some(table) = reader.table(&item) else {
        return vars;
    };
    let bytes: usize = table
        .entries()
        .map(|(key, item)| key.len() + item.size())
        .sum();
    if table.entries().count() > VARS.0 || bytes > VARS.1 {
        let (most, size) = VARS;
        let message = format!(
            "`{}` has at most {most} variables of {size} bytes",
            item.path
        );
        reader.wrong(&item, Code::VarLimit, message);
        return vars;
    }
    for (key, item) in table.entries() {
        let plain = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
        let named = !key.starts_with(|c: char| c.is_ascii_digit()) && key.chars().all(plain);
        if key.is_empty() || !named {
            let message = format!("`{}` is no name of a variable", shorten(&key));
            let fix = "use upper-case letters, digits and underscores, no digit first";
            reader.wrong_but(&item, Code::VarKey, message, fix);
        }
        match item.as_text() {
            Some(value) if !value.contains('\0') => {
                vars.insert(key, value.to_owned());
            }
            _ => {
                let message = format!("the value of `{}` must be text", shorten(&item.path));
                reader.wrong_but(&item, Code::VarValue, message, "put it in quotes");
            }
        }
    }
    vars
}

fn resources(reader: &mut Reader<'_>, fields: &Fields<'_>) -> Resources {
    let section = reader.section(fields, "resources", &["memory", "cpu", "disk"]);
    let memory = match &section {
        Some(section) if section.get("memory").is_some() => size(reader, section, "memory"),
        Some(section) => {
            reader.missing(section, "memory");
            None
        }
        None => {
            if fields.get("resources").is_none() {
                reader.missing(fields, "resources.memory");
            }
            None
        }
    };
    Resources {
        memory: memory.unwrap_or(*MEMORY.start()),
        cpu_millis: section
            .as_ref()
            .and_then(|it| cpu(reader, it))
            .unwrap_or(1000),
        disk: section
            .as_ref()
            .and_then(|it| size(reader, it, "disk"))
            .unwrap_or(4 * GIB),
    }
}

fn size(reader: &mut Reader<'_>, section: &Fields<'_>, name: &str) -> Option<u64> {
    let item = section.get(name)?;
    match name {
        "memory" => reader.size(&item, MEMORY, Code::MemoryRange),
        _ => reader.size(&item, DISK, Code::DiskRange),
    }
}

/// Thousandths of a processor, from a decimal that has an exact value.
fn cpu(reader: &mut Reader<'_>, section: &Fields<'_>) -> Option<u32> {
    let item = section.get("cpu")?;
    let text = reader.decimal(&item)?;
    let millis = thousandths(text)
        .filter(|millis| (50..=64_000).contains(millis) && millis.is_multiple_of(50));
    if millis.is_none() {
        let message = format!("`{}` must be 0.05 to 64 in steps of 0.05", item.path);
        reader.wrong(&item, Code::CpuRange, message);
    }
    millis
}

fn thousandths(text: &str) -> Option<u32> {
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let part = part.trim_end_matches('0');
    if part.len() > 3 || !part.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let part: u32 = format!("{part:0<3}").parse().ok()?;
    let whole: u32 = whole.trim_start_matches('+').parse().ok()?;
    whole.checked_mul(1000)?.checked_add(part)
}

fn scaling(reader: &mut Reader<'_>, fields: &Fields<'_>, most: u32) -> Option<Scaling> {
    let item = fields.get("scaling")?;
    let section = reader.table(&item)?;
    reader.known(&section, &["min", "max", "autoscale"]);
    if let Some(item) = section.get("autoscale") {
        let message = "scaling by load does not exist yet";
        reader.wrong(&item, Code::AutoscaleUnsupported, message);
    }
    Some(Scaling {
        min: reader.number(&section, "min", (0..=100, 0), Code::ScaleBounds),
        max: reader.number(&section, "max", (0..=100, most.into()), Code::ScaleBounds),
    })
}

/// How many instances there can be: data has one writer.
fn most(mounts: &[Mount]) -> u32 {
    if mounts.is_empty() { 100 } else { 1 }
}

/// What counts and bounds must be to each other, and to volumes.
fn bounds(
    reader: &mut Reader<'_>,
    fields: &Fields<'_>,
    (replicas, scaling): (u32, Option<Scaling>),
    most: u32,
) {
    let place = fields.get("scaling").or_else(|| fields.get("replicas"));
    let Some(item) = place else {
        return;
    };
    let max = scaling.map_or(replicas, |scaling| scaling.max);
    if most == 1 && (replicas > 1 || max > 1) {
        let name = fields.path.rsplit('.').next().unwrap_or_default();
        let message =
            format!("process type '{name}' has volume mounts and cannot have replicas > 1");
        reader.wrong_but(
            &item,
            Code::VolumeReplicaLimit,
            message,
            "use one instance, or remove its mounts",
        );
    } else if let Some(Scaling { min, max }) = scaling
        && !(min <= replicas && replicas <= max)
    {
        let message = format!("{replicas} instances are not within {min} to {max}");
        reader.wrong(&item, Code::ScaleBounds, message);
    }
}

fn restart(reader: &mut Reader<'_>, fields: &Fields<'_>) -> Restart {
    let known = ["policy", "max_retries", "backoff_seconds"];
    let Some(section) = reader.section(fields, "restart", &known) else {
        return Restart {
            policy: RestartPolicy::Always,
            backoff_seconds: 2,
        };
    };
    let words = ["always", "on-failure", "never"];
    let word = reader.word(&section, "policy", &words, Code::Restart);
    let max_retries = reader.number(&section, "max_retries", (0..=100, 3), Code::Restart);
    let policy = match word {
        Some(1) => RestartPolicy::OnFailure { max_retries },
        Some(2) => RestartPolicy::Never,
        _ => RestartPolicy::Always,
    };
    if let Some(item) = section.get("max_retries")
        && !matches!(policy, RestartPolicy::OnFailure { .. })
    {
        let fix = "set `policy = \"on-failure\"` or leave it out";
        reader.wrong_but(
            &item,
            Code::Restart,
            "retries need the policy `on-failure`",
            fix,
        );
    }
    Restart {
        policy,
        backoff_seconds: reader.number(&section, "backoff_seconds", (1..=60, 2), Code::Restart),
    }
}

fn stop(reader: &mut Reader<'_>, fields: &Fields<'_>) -> Stop {
    let Some(section) = reader.section(fields, "stop", &["signal", "grace_seconds"]) else {
        return Stop {
            signal: Signal::Term,
            grace_seconds: 10,
        };
    };
    let signals = ["TERM", "INT", "QUIT", "HUP"];
    Stop {
        signal: match reader.word(&section, "signal", &signals, Code::Enum) {
            Some(1) => Signal::Int,
            Some(2) => Signal::Quit,
            Some(3) => Signal::Hup,
            _ => Signal::Term,
        },
        grace_seconds: reader.number(&section, "grace_seconds", (0..=300, 10), Code::Range),
    }
}

fn mounts(
    reader: &mut Reader<'_>,
    fields: &Fields<'_>,
    volumes: &BTreeMap<String, Volume>,
) -> Vec<Mount> {
    let items = fields.get("mounts").and_then(|item| reader.list(&item));
    let mut mounts: Vec<Mount> = Vec::new();
    let mut taken = BTreeSet::new();
    for item in items.unwrap_or_default() {
        if mounts.len() >= MOST_MOUNTS {
            let message = format!("a process has at most {MOST_MOUNTS} mounts");
            reader.wrong(&item, Code::MountDuplicate, message);
            break;
        }
        let Some(mount) = mount(reader, &item, volumes) else {
            continue;
        };
        if !taken.insert(mount.path.clone()) || !taken.insert(format!(":{}", mount.volume)) {
            let message = format!("`{}` or its path is mounted twice", mount.volume);
            reader.wrong(&item, Code::MountDuplicate, message);
        }
        mounts.push(mount);
    }
    mounts
}

fn mount(
    reader: &mut Reader<'_>,
    item: &Item<'_>,
    volumes: &BTreeMap<String, Volume>,
) -> Option<Mount> {
    let fields = reader.table(item)?;
    reader.known(&fields, &["volume", "path", "read_only"]);
    for name in ["volume", "path"] {
        if fields.get(name).is_none() {
            reader.missing(&fields, name);
        }
    }
    let read_only = fields.get("read_only").and_then(|item| reader.flag(&item));
    let volume = fields.get("volume")?;
    let volume_name = reader.text(&volume)?;
    if !volumes.contains_key(volume_name) {
        let message = format!("there is no volume `{}`", shorten(volume_name));
        let fix = "declare it in `[[volumes]]`";
        reader.wrong_but(&volume, Code::MountUnknownVolume, message, fix);
    }
    let path_item = fields.get("path")?;
    let path = reader.text(&path_item)?;
    let below = |reserved: &&str| {
        path.strip_prefix(*reserved)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    if !is_plain_path(path) {
        let message = format!("`{}` is no absolute, plain path", shorten(path));
        reader.wrong(&path_item, Code::MountPath, message);
    } else if path == "/" || RESERVED.iter().any(below) {
        let message = format!("`{}` belongs to the platform", shorten(path));
        reader.wrong(&path_item, Code::MountReserved, message);
    }
    Some(Mount {
        volume: volume_name.to_owned(),
        path: path.to_owned(),
        read_only: read_only.unwrap_or(false),
    })
}

fn secrets(reader: &mut Reader<'_>, fields: &Fields<'_>) -> bool {
    let Some(section) = reader.section(fields, "secrets", &["required", "path"]) else {
        return false;
    };
    if let Some(item) = section.get("path") {
        let message = "secrets are always at /run/secrets/platform.env";
        reader.wrong_but(&item, Code::SecretPathFixed, message, "leave `path` out");
    }
    let required = section.get("required").and_then(|item| reader.flag(&item));
    required.unwrap_or(false)
}
