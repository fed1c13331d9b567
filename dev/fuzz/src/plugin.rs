//! Targets for `fluffy-plugin-core`: manifests, and profiles from hostile paths.
//!
//! Profiles are read back by rules of their own, written apart from the
//! generators: a rule that the manifest did not ask for is a broken promise.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use fluffy_contract::isolation::Tier;
use fluffy_plugin_core::Manifest;
use fluffy_plugin_core::manifest::reach::Extent;
use fluffy_plugin_core::manifest::{Execution, Limits, PathRule, Protocol, Reach, Start};
use fluffy_plugin_core::profile::{self, BwrapProfile, Kind, Places, SeatbeltProfile, System};
use fluffy_policy::host::HostPattern;

use crate::as_text;

/// A manifest is read or refused at a place; what is read opens what it says.
pub(crate) fn plugin_manifest(bytes: &[u8]) {
    let Some(text) = as_text(bytes) else { return };
    let manifest = match Manifest::parse(text) {
        Ok(manifest) => manifest,
        Err(refused) => {
            assert!(refused.errors().next().is_some());
            for finding in &refused.findings {
                let end = finding.place.offset.saturating_add(finding.place.length);
                assert!(end <= text.len(), "{finding}");
            }
            return;
        }
    };
    let Some(execution) = manifest.execution else {
        return;
    };
    let places = Places {
        files: "/plugins/one".into(),
        data: "/state/data".into(),
        meeting: "/state/meeting".into(),
        workspace: Some("/work".into()),
        proxy_port: 3128,
        present: BTreeMap::new(),
    };
    check_all(&execution, places);
}

/// Hostile places, links and paths never become a rule that was not asked for.
///
/// The input has a line each for files, data, meeting, workspace and the target
/// of a link, then lines that begin with `r`, `d`, `w` or `h` for what a
/// manifest allows to read, denies, allows to write, and for hosts.
pub(crate) fn plugin_profile(bytes: &[u8]) {
    let Some(text) = as_text(bytes) else { return };
    let mut lines = text.split('\0');
    let mut next = || PathBuf::from(lines.next().unwrap_or_default());
    let (files, data, meeting, workspace, target) = (next(), next(), next(), next(), next());
    let mut sandbox = Reach::default();
    let mut command = vec!["./run".to_owned()];
    for line in lines.take(64) {
        let mut letters = line.chars();
        let (kind, rest) = (letters.next(), letters.as_str());
        match (kind, PathRule::parse(rest)) {
            (Some('r'), Ok(rule)) => sandbox.read_allow.push(rule),
            (Some('d'), Ok(rule)) => sandbox.read_deny.push(rule),
            (Some('w'), Ok(rule)) => sandbox.write_allow.push(rule),
            (Some('h'), _) => sandbox.hosts.extend(HostPattern::parse_with_port(rest)),
            _ => command.push(line.to_owned()),
        }
    }
    let execution = Execution {
        tier: Tier::Process,
        start: Start::Program {
            command,
            protocol: Protocol::Mcp,
        },
        environment: BTreeMap::new(),
        sandbox,
        limits: Limits::default(),
    };
    let link = Kind::Link { target };
    let places = Places {
        files,
        data,
        meeting,
        workspace: Some(workspace),
        proxy_port: 3128,
        present: BTreeMap::from([("/bin".into(), link)]),
    };
    check_all(&execution, places);
}

/// What a manifest asks for on this machine, put together from its own texts.
struct Asked {
    read: BTreeSet<PathBuf>,
    denied: BTreeSet<PathBuf>,
    data: bool,
    command: Option<Vec<String>>,
    hosts: Vec<String>,
}

impl Asked {
    fn of(execution: &Execution, places: &Places) -> Self {
        let Reach {
            read_allow,
            read_deny,
            write_allow,
            hosts,
        } = &execution.sandbox;
        let paths = |rules: &[PathRule]| {
            let texts = rules.iter().map(ToString::to_string);
            texts.filter_map(|text| path_of(&text, places)).collect()
        };
        Self {
            read: paths(read_allow),
            denied: paths(read_deny),
            data: write_allow
                .iter()
                .any(|rule| rule.to_string().starts_with("@data/")),
            command: match &execution.start {
                Start::Program { command, .. } => Some(command.clone()),
                Start::Module { .. } | Start::Image { .. } => None,
            },
            hosts: hosts.iter().map(ToString::to_string).collect(),
        }
    }
}

fn path_of(text: &str, places: &Places) -> Option<PathBuf> {
    let names = text.strip_suffix("/*").unwrap_or(text);
    if names.starts_with("@data") {
        return None;
    }
    if let Some(names) = names.strip_prefix("@host") {
        return Some(names.into());
    }
    let mut path = places.workspace.clone()?.into_os_string();
    path.push(names);
    Some(path.into())
}

/// Directories of the system that any plugin may see.
const SYSTEM: &[&str] = &[
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/ssl/certs",
    "/usr/lib",
    "/usr/bin",
    "/usr/share",
    "/System/Library",
];

fn is_system(path: &OsStr) -> bool {
    SYSTEM.iter().any(|each| path == OsStr::new(each))
}

fn check_all(execution: &Execution, mut places: Places) {
    let rules = execution
        .sandbox
        .read_allow
        .iter()
        .chain(&execution.sandbox.read_deny);
    for rule in rules {
        let kind = match rule.extent() {
            Extent::Itself => Kind::File,
            Extent::Below => Kind::Directory,
        };
        if let Some(path) = path_of(&rule.to_string(), &places) {
            places.present.insert(path, kind);
        }
    }
    let workspace = places.workspace.clone();
    let _ = profile::looks_at(execution, System::Linux, workspace.as_deref());
    let asked = Asked::of(execution, &places);
    if let Ok(native) = profile::native(execution, &places) {
        assert!(native.read.iter().all(|path| asked.read.contains(path)));
        let hidden = native.hidden.iter().chain(&native.absent);
        assert!(hidden.into_iter().all(|path| asked.denied.contains(path)));
        assert!(!native.data || asked.data);
        assert!(texts(&native.hosts) == asked.hosts);
    }
    if let Ok(profile) = profile::bwrap(execution, &places) {
        check_bwrap(&profile, &asked, &places);
    }
    if let Ok(profile) = profile::seatbelt(execution, &places) {
        check_seatbelt(&profile, &asked, &places);
    }
}

fn texts(hosts: &[HostPattern]) -> Vec<String> {
    hosts.iter().map(ToString::to_string).collect()
}

/// Reads arguments as `bwrap` does: each option takes a fixed number of words.
fn check_bwrap(profile: &BwrapProfile, asked: &Asked, places: &Places) {
    assert!(texts(&profile.hosts) == asked.hosts);
    let mut words = profile.arguments.iter().map(|word| word.as_os_str());
    let mut seen = BTreeSet::new();
    loop {
        let option = words.next().and_then(OsStr::to_str).unwrap_or_default();
        if option == "--" {
            break;
        }
        let mut take = || words.next().unwrap_or_default();
        let fits = match option {
            "--unshare-user" | "--unshare-ipc" | "--unshare-pid" | "--unshare-net"
            | "--unshare-uts" | "--unshare-cgroup" | "--die-with-parent" | "--new-session"
            | "--clearenv" => true,
            "--hostname" => take() == "plugin",
            "--cap-drop" => take() == "ALL",
            "--uid" | "--gid" => take() == "1000",
            "--dev" => take() == "/dev",
            "--proc" => take() == "/proc",
            "--size" => take() == "67108864",
            "--perms" => take() == "0000",
            "--seccomp" => take() == "3",
            "--chdir" => take() == places.files,
            "--tmpfs" | "--remount-ro" => is_covered(take(), asked),
            "--setenv" => is_variable(take(), take(), places),
            "--symlink" => is_link(take(), take(), places),
            "--bind" => is_writable(take(), take(), asked, places),
            "--ro-bind" => is_readable(take(), take(), asked, places),
            _ => false,
        };
        assert!(fits, "`{option}` opens what was not asked for");
        seen.insert(option);
    }
    for always in [
        "--unshare-net",
        "--unshare-user",
        "--unshare-pid",
        "--clearenv",
        "--seccomp",
    ] {
        assert!(seen.contains(always), "`{always}` is missing");
    }
    let rest: Vec<&OsStr> = words.collect();
    let command = asked.command.clone().unwrap_or_default();
    assert!(rest.len() == command.len());
    let same = rest
        .iter()
        .zip(&command)
        .skip(1)
        .all(|(word, asked)| *word == OsStr::new(asked));
    assert!(same, "the arguments are the manifest's");
}

fn is_covered(path: &OsStr, asked: &Asked) -> bool {
    path == "/tmp" || path == "/" || asked.denied.contains(Path::new(path))
}

fn is_variable(name: &OsStr, value: &OsStr, places: &Places) -> bool {
    match name.to_str() {
        Some("PATH") => value == "/usr/local/bin:/usr/bin:/bin",
        Some("TMPDIR") => value == "/tmp",
        Some("HOME") => value == "/tmp" || value == places.data,
        _ => false,
    }
}

fn is_link(target: &OsStr, path: &OsStr, places: &Places) -> bool {
    let told = places.present.get(Path::new(path));
    let option = target.as_encoded_bytes().starts_with(b"-");
    !option
        && is_system(path)
        && told
            == Some(&Kind::Link {
                target: target.into(),
            })
}

fn is_writable(from: &OsStr, to: &OsStr, asked: &Asked, places: &Places) -> bool {
    let own = (asked.data && from == places.data) || from == places.meeting;
    from == to && own && is_plain(from)
}

fn is_readable(from: &OsStr, to: &OsStr, asked: &Asked, places: &Places) -> bool {
    let hidden = from == "/dev/null" && asked.denied.contains(Path::new(to));
    let own = from == places.files || is_system(from) || asked.read.contains(Path::new(from));
    hidden || (from == to && own && is_plain(from))
}

/// Whether a path is itself to every reader.
fn is_plain(path: &OsStr) -> bool {
    let text = path.as_encoded_bytes();
    let names = || text.split(|byte| *byte == b'/').skip(1);
    text.starts_with(b"/")
        && !text.contains(&0)
        && names().all(|name| !matches!(name, b"" | b"." | b".."))
}

/// Every line is one of a few, with the name of one path where one belongs.
fn check_seatbelt(profile: &SeatbeltProfile, asked: &Asked, places: &Places) {
    assert!(texts(&profile.hosts) == asked.hosts);
    let names: BTreeMap<&str, &Path> = profile
        .parameters
        .iter()
        .map(|(name, value)| (name.as_str(), Path::new(value)))
        .collect();
    let denied = profile.text.lines().any(|line| line == "(deny default)");
    assert!(denied, "everything else is denied");
    for line in profile.text.lines() {
        let (shape, path) = match line.split_once("(param \"") {
            None => (line.to_owned(), None),
            Some((before, rest)) => {
                let (name, after) = rest.split_once("\")").unwrap_or_default();
                (format!("{before}_{after}"), names.get(name).copied())
            }
        };
        let is = |expected: &Path| path == Some(expected);
        let system = path.is_some_and(|path| is_system(path.as_os_str()));
        let read = path.is_some_and(|path| asked.read.contains(path));
        let hidden = path.is_some_and(|path| asked.denied.contains(path));
        let fits = match shape.as_str() {
            "(version 1)" | "(deny default)" | "(allow process-fork)" => true,
            "(allow signal (target same-sandbox))" => true,
            "(allow process-info* (target same-sandbox))" => true,
            "(allow file-read* file-map-executable process-exec (subpath _))" => {
                system || is(&places.files)
            }
            "(allow file-read* (subpath _))" | "(allow file-read* (literal _))" => read,
            "(deny file-read* (subpath _))" | "(deny file-read* (literal _))" => hidden,
            "(allow file-read* file-write* (subpath _))" => {
                (asked.data && is(&places.data)) || is(&places.meeting)
            }
            "(allow network-bind (local unix-socket (subpath _)))"
            | "(allow network-inbound (local unix-socket (subpath _)))"
            | "(allow network-outbound (remote unix-socket (subpath _)))" => is(&places.meeting),
            "(allow file-read-metadata (literal _))" => {
                path.is_some_and(|path| names.values().any(|below| below.starts_with(path)))
            }
            "(allow network-outbound (remote tcp \"localhost:3128\"))" => !asked.hosts.is_empty(),
            other => other
                .strip_prefix("(allow sysctl-read (sysctl-name \"")
                .and_then(|rest| rest.strip_suffix("\"))"))
                .is_some_and(|name| name.starts_with("hw.") || name.starts_with("kern.")),
        };
        assert!(fits, "`{line}` opens what was not asked for");
    }
}
