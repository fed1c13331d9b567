//! Reads the whole manifest: its tables, then what holds between them.
//!
//! Everything that is wrong is told at once. Never reads a file or a clock.
//! Next: `process` for one process type, `reader` for kinds and places.

use std::collections::{BTreeMap, BTreeSet};

use toml::de::DeTable;

use crate::image::ImageSource;
use crate::model::{
    App, Deploy, Image, Manifest, OnFailure, Override, Process, PullPolicy, Volume,
};
use crate::problem::{Code, Problem};
use crate::process::{self, Inherited};
use crate::reader::{Fields, Reader, shorten};

/// The largest manifest, in bytes.
pub const LARGEST: usize = 64 << 10;

/// The largest canonical form, in bytes: an event holds 256 KiB, and says of
/// what image the release is as well.
const LARGEST_CANONICAL: usize = 240 << 10;

/// The most process types.
const MOST_PROCESSES: usize = 16;

/// The most volumes.
const MOST_VOLUMES: usize = 16;

const GIB: u64 = 1 << 30;

const ROOT: &[&str] = &[
    "schema_version",
    "app",
    "image",
    "env",
    "deploy",
    "processes",
    "volumes",
    "overrides",
];

impl Manifest {
    /// Reads a manifest.
    ///
    /// # Errors
    /// Everything that is wrong with it, in the order of the text.
    pub fn parse(text: &str) -> Result<Self, Vec<Problem>> {
        let mut reader = Reader::new(text);
        if text.len() > LARGEST {
            let message = format!("a manifest has at most {LARGEST} bytes");
            reader.add(Code::Length, "", &(0..0), message);
            return Err(reader.problems);
        }
        let table = match DeTable::parse(text) {
            Ok(table) => table,
            Err(error) => {
                let message = error.message().lines().collect::<Vec<_>>().join(", ");
                let span = error.span().unwrap_or(0..0);
                reader.add(Code::TomlSyntax, "", &span, message);
                return Err(reader.problems);
            }
        };
        let root = Fields::root(&table);
        let manifest = read(&mut reader, &root);
        if reader.problems.is_empty() {
            check_length(&mut reader, &root, &manifest);
        }
        let mut problems = reader.problems;
        problems.sort_by_key(|problem| (problem.line, problem.column));
        if problems.is_empty() {
            Ok(manifest)
        } else {
            Err(problems)
        }
    }
}

fn read(reader: &mut Reader<'_>, root: &Fields<'_>) -> Manifest {
    reader.known(root, ROOT);
    match root.get("schema_version") {
        None => reader.missing(root, "schema_version"),
        Some(item) => {
            if reader.text(&item).is_some_and(|version| version != "v1") {
                reader.wrong_but(
                    &item,
                    Code::SchemaVersion,
                    "this version of the format is not known",
                    "write `schema_version = \"v1\"`",
                );
            }
        }
    }
    let volumes = volumes(reader, root);
    let inherited = Inherited::read(reader, root);
    let processes = processes(reader, root, &inherited, &volumes);
    let stateful = processes.values().any(|process| !process.mounts.is_empty());
    let careful = match stateful {
        true => OnFailure::Pause,
        false => OnFailure::Rollback,
    };
    Manifest {
        app: app(reader, root),
        image: image(reader, root),
        deploy: deploy(reader, root, careful),
        overrides: overrides(reader, root, &processes),
        processes,
        volumes,
    }
}

/// What `env` says is written out for every process, and defaults for every
/// override, so a short text can come to much.
fn check_length(reader: &mut Reader<'_>, root: &Fields<'_>, manifest: &Manifest) {
    let bytes = manifest.canonical().len();
    if bytes <= LARGEST_CANONICAL {
        return;
    }
    let processes = manifest.processes.len();
    let message = format!(
        "written out for {processes} processes, the manifest has {bytes} bytes, and it can have \
         {LARGEST_CANONICAL}"
    );
    let fixes = [
        (
            "env",
            "move what only some processes need from `env` to their own tables",
        ),
        ("overrides", "leave out what does not differ"),
        ("processes", "make two apps of it"),
    ];
    let mut written = fixes
        .iter()
        .filter_map(|(name, fix)| Some((root.get(name)?, *fix)));
    if let Some((item, fix)) = written.next() {
        reader.wrong_but(&item, Code::Length, message, fix);
    }
}

fn app(reader: &mut Reader<'_>, root: &Fields<'_>) -> App {
    let Some(fields) = reader.section(root, "app", &["name", "description"]) else {
        return App::default();
    };
    let mut text = |name, bounds: std::ops::RangeInclusive<usize>| {
        let item = fields.get(name)?;
        let text = reader.text(&item)?;
        if bounds.contains(&text.chars().count()) {
            return Some(text.to_owned());
        }
        let (low, high) = (bounds.start(), bounds.end());
        let message = format!("`app.{name}` has {low} to {high} characters");
        reader.wrong(&item, Code::Length, message);
        None
    };
    App {
        name: text("name", 1..=64),
        description: text("description", 0..=256),
    }
}

fn image(reader: &mut Reader<'_>, root: &Fields<'_>) -> Image {
    let Some(fields) = reader.section(root, "image", &["ref", "pull_policy"]) else {
        return Image::default();
    };
    let policy = reader.word(
        &fields,
        "pull_policy",
        &["if_not_present", "always"],
        Code::Enum,
    );
    let reference = fields.get("ref").and_then(|item| {
        let text = reader.text(&item)?;
        if let Err(why) = text.parse::<ImageSource>() {
            let message = format!("`{}` is no image reference: {why}", shorten(text));
            reader.wrong(&item, Code::ImageRef, message);
            return None;
        }
        Some(text.to_owned())
    });
    Image {
        reference,
        pull_policy: match policy {
            Some(1) => PullPolicy::Always,
            _ => PullPolicy::IfNotPresent,
        },
    }
}

fn deploy(reader: &mut Reader<'_>, root: &Fields<'_>, careful: OnFailure) -> Deploy {
    let known = [
        "strategy",
        "max_surge",
        "max_unavailable",
        "timeout_seconds",
        "min_ready_seconds",
        "on_failure",
    ];
    let Some(fields) = reader.section(root, "deploy", &known) else {
        return Deploy {
            max_surge: 1,
            max_unavailable: 0,
            timeout_seconds: 600,
            min_ready_seconds: 10,
            on_failure: careful,
        };
    };
    reader.word(&fields, "strategy", &["rolling"], Code::StrategyUnsupported);
    let on_failure = reader.word(&fields, "on_failure", &["rollback", "pause"], Code::Enum);
    let read = Deploy {
        max_surge: reader.number(&fields, "max_surge", (0..=10, 1), Code::Range),
        max_unavailable: reader.number(&fields, "max_unavailable", (0..=10, 0), Code::Range),
        timeout_seconds: reader.number(&fields, "timeout_seconds", (60..=3600, 600), Code::Range),
        min_ready_seconds: reader.number(&fields, "min_ready_seconds", (0..=300, 10), Code::Range),
        on_failure: match on_failure {
            Some(0) => OnFailure::Rollback,
            Some(_) => OnFailure::Pause,
            None => careful,
        },
    };
    if let Some(item) = fields.get("max_surge")
        && read.max_surge == 0
        && read.max_unavailable == 0
    {
        let message = "`deploy.max_surge` and `deploy.max_unavailable` cannot both be 0";
        reader.wrong(&item, Code::Range, message);
    }
    read
}

fn volumes(reader: &mut Reader<'_>, root: &Fields<'_>) -> BTreeMap<String, Volume> {
    let items = root.get("volumes").and_then(|item| reader.list(&item));
    let mut volumes = BTreeMap::new();
    for item in items.unwrap_or_default() {
        let Some(fields) = reader.table(&item) else {
            continue;
        };
        reader.known(&fields, &["name", "size", "filesystem", "backup_enabled"]);
        reader.word(&fields, "filesystem", &["ext4"], Code::VolumeFilesystem);
        let size = match fields.get("size") {
            None => {
                reader.missing(&fields, "size");
                None
            }
            Some(size) => reader.size(&size, GIB..=2048 * GIB, Code::VolumeSize),
        };
        let backup = fields
            .get("backup_enabled")
            .and_then(|item| reader.flag(&item));
        let Some(name) = process::name(reader, &fields) else {
            continue;
        };
        let volume = Volume {
            size: size.unwrap_or(GIB),
            backup_enabled: backup.unwrap_or(true),
        };
        if volumes.len() >= MOST_VOLUMES {
            let message = format!("there can be {MOST_VOLUMES} volumes");
            reader.wrong(&item, Code::VolumeDuplicate, message);
        } else if volumes.insert(name.clone(), volume).is_some() {
            let message = format!("there are two volumes `{name}`");
            reader.wrong(&item, Code::VolumeDuplicate, message);
        }
    }
    volumes
}

fn processes(
    reader: &mut Reader<'_>,
    root: &Fields<'_>,
    inherited: &Inherited,
    volumes: &BTreeMap<String, Volume>,
) -> BTreeMap<String, Process> {
    let mut processes = BTreeMap::new();
    let mut mounted: BTreeSet<String> = BTreeSet::new();
    let Some(item) = root.get("processes") else {
        reader.add(
            Code::NoProcess,
            "processes",
            &(0..0),
            "a manifest has at least one process, such as `[processes.web]`".to_owned(),
        );
        return processes;
    };
    let Some(table) = reader.table(&item) else {
        return processes;
    };
    let count = table.entries().count();
    if count == 0 || count > MOST_PROCESSES {
        let message = format!("there are 1 to {MOST_PROCESSES} processes, not {count}");
        reader.wrong(&item, Code::NoProcess, message);
    }
    for (name, item) in table.entries().take(MOST_PROCESSES) {
        if !process::is_name(&name) {
            let message = format!("`{}` is no name of a process", shorten(&name));
            let fix = "use lower-case letters, digits and dashes, a letter first";
            reader.wrong_but(&item, Code::Name, message, fix);
        }
        let Some(fields) = reader.table(&item) else {
            continue;
        };
        let process = process::read(reader, &fields, (inherited, volumes));
        process::check_vars(reader, &item, &name, [&process.vars].into_iter());
        let own: BTreeSet<&String> = process.mounts.iter().map(|it| &it.volume).collect();
        for volume in own {
            if !mounted.insert(volume.clone()) {
                let message = format!("volume `{volume}` is in two processes");
                reader.wrong(&item, Code::VolumeShared, message);
            }
        }
        processes.insert(name, process);
    }
    processes
}

fn overrides(
    reader: &mut Reader<'_>,
    root: &Fields<'_>,
    processes: &BTreeMap<String, Process>,
) -> BTreeMap<String, Override> {
    let table = root.get("overrides").and_then(|item| reader.table(&item));
    let mut overrides = BTreeMap::new();
    for (name, item) in table.iter().flat_map(Fields::entries) {
        if !process::is_name(&name) {
            let message = format!("`{}` is no name of an env", shorten(&name));
            reader.wrong(&item, Code::Name, message);
        }
        let Some(fields) = reader.table(&item) else {
            continue;
        };
        let changes = process::read_override(reader, &fields, processes);
        for (process, base) in processes {
            let own = changes.processes.get(process).map(|own| &own.vars);
            // What is too much without the override is said where it stands.
            if !changes.vars.is_empty() || own.is_some_and(|own| !own.is_empty()) {
                let parts = [&base.vars, &changes.vars].into_iter().chain(own);
                process::check_vars(reader, &item, process, parts);
            }
        }
        overrides.insert(name, changes);
    }
    overrides
}
