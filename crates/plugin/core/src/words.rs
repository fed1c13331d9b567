//! Capabilities in words, for the person who is asked to accept them.
//!
//! One line each, about what could happen, without a pattern where words do.
//! What comes from the manifest is shown and never obeyed: characters that
//! cannot be seen, or that a terminal acts on, are written out.

use std::fmt::Write as _;

use fluffy_policy::action::{ACTIONS, Action, find};
use fluffy_policy::capability::Pattern;

use crate::manifest::document::is_hidden;

/// What this capability lets a plugin do, as one line: `can read …`.
#[must_use]
pub fn in_words(capability: &Pattern) -> String {
    let text = capability.as_str();
    let mut parts = text.splitn(3, '.');
    let (group, verb) = (parts.next().unwrap_or_default(), parts.next());
    let resource = parts.next();
    harmless(&match (group, verb, resource) {
        ("plugin", Some(_), Some("*")) => "can use all actions of its own".to_owned(),
        ("plugin", Some(_), Some(action)) => format!("can use its own action {action}"),
        ("net", Some("connect" | "*"), resource) => format!("can connect to {}", hosts(resource)),
        ("exec", Some("run" | "*"), None | Some("*")) => "can run programs".to_owned(),
        ("exec", Some("run"), Some(program)) => format!("can run the program {program}"),
        ("fs", Some(verb), resource) => of_files(verb, resource),
        (group, Some("*"), resource) => of_group(group, resource),
        (_, Some(_), resource) => {
            let name = text.split('.').take(2).collect::<Vec<_>>().join(".");
            let meaning = find(&name).map_or(text, |action| action.meaning);
            format!("can {meaning}{}", only(resource))
        }
        (_, None, _) => format!("can do what matches {text}"),
    })
}

/// All of a manifest's capabilities in words, each line once.
#[must_use]
pub fn all_in_words(capabilities: &[Pattern]) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for line in capabilities.iter().map(in_words) {
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines
}

fn hosts(resource: Option<&str>) -> String {
    let Some(resource) = resource.filter(|resource| *resource != "*") else {
        return "any host on any port".to_owned();
    };
    let (host, port) = resource.rsplit_once(':').unwrap_or((resource, "*"));
    let port = match port {
        "*" => "any port".to_owned(),
        port => format!("port {port}"),
    };
    match host.strip_prefix("*.") {
        _ if host == "*" => format!("any host on {port}"),
        Some(domain) => format!("every host below {domain} on {port}"),
        None => format!("{host} on {port}"),
    }
}

fn of_files(verb: &str, resource: Option<&str>) -> String {
    let verb = match verb {
        "read" => "read",
        "write" => "write",
        "edit" => "change",
        "remove" => "remove",
        "list" => "list",
        "exists" => "see the existence of",
        _ => "read, write, change, list and remove",
    };
    let Some(path) = resource.filter(|resource| *resource != "*") else {
        return format!("can {verb} any file");
    };
    let (place, path) = match (path.strip_prefix("@data"), path.strip_prefix("@host")) {
        (Some(path), _) => (" in its own data", path),
        (_, Some(path)) => (" of this machine, outside the project", path),
        (None, None) => ("", path),
    };
    match path.strip_suffix("/*") {
        Some("") if place.is_empty() => format!("can {verb} any file of the project"),
        Some("") => format!("can {verb} any file{place}"),
        Some(below) if !below.contains('*') => format!("can {verb} files below {below}{place}"),
        _ if path.contains('*') => format!("can {verb} files that match {path}{place}"),
        _ => format!("can {verb} the file {path}{place}"),
    }
}

fn of_group(group: &str, resource: Option<&str>) -> String {
    let inside = |action: &&Action| action.name.split('.').next() == Some(group);
    let meanings: Vec<&str> = ACTIONS
        .iter()
        .filter(inside)
        .map(|action| action.meaning)
        .collect();
    match meanings.is_empty() {
        true => format!("can do everything of {group}{}", only(resource)),
        false => format!("can {}{}", meanings.join("; "), only(resource)),
    }
}

fn only(resource: Option<&str>) -> String {
    match resource {
        None | Some("*") => String::new(),
        Some(resource) => format!(" (only {resource})"),
    }
}

/// The text with everything written out that is not simply seen.
fn harmless(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match is_hidden(c) {
            // Writing into a text cannot fail.
            true => drop(write!(safe, "\\u{{{:x}}}", u32::from(c))),
            false => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use fluffy_policy::action::ResourceKind;

    use super::*;

    fn words(text: &str) -> String {
        in_words(&Pattern::parse(text).unwrap())
    }

    #[test]
    fn what_a_person_reads() {
        for (capability, expected) in [
            (
                "net.connect.tracker.example.com:443",
                "can connect to tracker.example.com on port 443",
            ),
            (
                "net.connect.*.example.com:443",
                "can connect to every host below example.com on port 443",
            ),
            ("net.connect.*", "can connect to any host on any port"),
            ("net.*", "can connect to any host on any port"),
            ("fs.read./docs/*", "can read files below /docs"),
            ("fs.read./docs/a.md", "can read the file /docs/a.md"),
            ("fs.read./*", "can read any file of the project"),
            ("fs.read.*", "can read any file"),
            ("fs.write.@data/*", "can write any file in its own data"),
            (
                "fs.read.@host/usr/share/*",
                "can read files below /usr/share of this machine, outside the project",
            ),
            ("fs.read./d*s/*", "can read files that match /d*s/*"),
            ("fs.*", "can read, write, change, list and remove any file"),
            ("exec.*", "can run programs"),
            ("exec.run.make", "can run the program make"),
            (
                "kv.get.theme",
                "can read a value from a plugin's store (only theme)",
            ),
            ("log.write", "can write to the log"),
            ("plugin.jira.*", "can use all actions of its own"),
            ("plugin.jira.close", "can use its own action close"),
            (
                "messages.*",
                "can receive messages from a channel; send a message to a channel",
            ),
            ("fs.read./a\u{202e}b", "can read the file /a\\u{202e}b"),
        ] {
            assert_eq!(words(capability), expected, "{capability}");
        }
    }

    #[test]
    fn every_action_has_words_of_its_own() {
        let mut seen = BTreeSet::new();
        for action in ACTIONS {
            let resource = match action.resource {
                ResourceKind::None | ResourceKind::Free => "",
                ResourceKind::Path => "./src/*",
                ResourceKind::Address => ".example.com:443",
                ResourceKind::Object | ResourceKind::Name => ".*",
            };
            let line = words(&format!("{}{resource}", action.name));
            assert!(
                line.starts_with("can ") && !line.contains(action.name),
                "{line}"
            );
            assert!(seen.insert(line.clone()), "said twice: {line}");
        }
    }

    #[test]
    fn the_same_is_said_once() {
        let list =
            ["net.*", "net.connect.*", "log.write"].map(|text| Pattern::parse(text).unwrap());
        assert_eq!(all_in_words(&list).len(), 2);
    }
}
