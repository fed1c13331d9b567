//! Reads the ports of a process, and how its health is looked at.

use std::collections::BTreeSet;

use crate::model::{Health, Port, Probe};
use crate::problem::Code;
use crate::process::is_name;
use crate::reader::{Fields, Reader, shorten};

/// The most ports of a process.
const MOST_PORTS: usize = 16;

pub(super) fn ports(reader: &mut Reader<'_>, fields: &Fields<'_>) -> Vec<Port> {
    let items = fields.get("ports").and_then(|item| reader.list(&item));
    let (mut ports, mut names, mut numbers) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    for item in items.unwrap_or_default() {
        if ports.len() >= MOST_PORTS {
            let message = format!("a process has at most {MOST_PORTS} ports");
            reader.wrong(&item, Code::PortRange, message);
            break;
        }
        let Some(section) = reader.table(&item) else {
            continue;
        };
        reader.known(&section, &["name", "internal", "protocol"]);
        reader.word(&section, "protocol", &["tcp"], Code::PortProtocol);
        if section.get("internal").is_none() {
            reader.missing(&section, "internal");
            continue;
        }
        let internal = reader.number(&section, "internal", (1..=65_535, 0), Code::PortRange);
        let Some(internal) = u16::try_from(internal).ok().filter(|port| *port > 0) else {
            continue;
        };
        let name = section.get("name").and_then(|item| {
            let text = reader.text(&item)?;
            if !is_name(text) {
                let message = format!("`{}` is no name of a port", shorten(text));
                reader.wrong(&item, Code::Name, message);
            }
            Some(text.to_owned())
        });
        let name = name.unwrap_or_else(|| format!("p{internal}"));
        if !names.insert(name.clone()) || !numbers.insert(internal) {
            let message = format!(
                "port {internal} or its name `{}` is there twice",
                shorten(&name)
            );
            reader.wrong(&item, Code::PortDuplicate, message);
        }
        ports.push(Port { name, internal });
    }
    ports
}

pub(super) fn health(
    reader: &mut Reader<'_>,
    fields: &Fields<'_>,
    ports: &[Port],
) -> Option<Health> {
    let known = [
        "type",
        "port",
        "path",
        "interval_seconds",
        "timeout_seconds",
        "grace_period_seconds",
        "success_threshold",
        "failure_threshold",
        "start_timeout_seconds",
    ];
    let section = reader.section(fields, "health", &known)?;
    let probe = probe(reader, &section);
    let mut number = |name, bounds| reader.number(&section, name, bounds, Code::Range);
    let mut health = Health {
        probe,
        port: 0,
        interval_seconds: number("interval_seconds", (1..=300, 10)),
        timeout_seconds: number("timeout_seconds", (1..=300, 2)),
        grace_period_seconds: number("grace_period_seconds", (0..=600, 10)),
        success_threshold: number("success_threshold", (1..=10, 1)),
        failure_threshold: number("failure_threshold", (1..=10, 3)),
        start_timeout_seconds: number("start_timeout_seconds", (10..=900, 120)),
    };
    let timing = section
        .get("timeout_seconds")
        .or_else(|| section.get("interval_seconds"));
    if let Some(item) = timing
        && health.timeout_seconds >= health.interval_seconds
    {
        let message = "a health check must take less time than the interval between two";
        reader.wrong(&item, Code::HealthTiming, message);
    }
    let Some(item) = section.get("port") else {
        reader.missing(&section, "port");
        return Some(health);
    };
    let port = reader.integer(&item)?;
    match ports
        .iter()
        .find(|declared| i64::from(declared.internal) == port)
    {
        Some(declared) => health.port = declared.internal,
        None => {
            let message = format!("port {port} is not declared");
            reader.wrong_but(&item, Code::HealthPort, message, "declare it in `ports`");
        }
    }
    Some(health)
}

fn probe(reader: &mut Reader<'_>, section: &Fields<'_>) -> Probe {
    let http = reader.word(section, "type", &["tcp", "http"], Code::Enum) == Some(1);
    let path = section.get("path");
    let text = path.as_ref().and_then(|item| reader.text(item));
    match (http, path, text) {
        (true, _, Some(text)) if text.starts_with('/') && !text.contains(char::is_whitespace) => {
            Probe::Http {
                path: text.to_owned(),
            }
        }
        (true, Some(item), _) => {
            reader.wrong(&item, Code::HealthPath, "the path must begin with `/`");
            Probe::Tcp
        }
        (true, None, _) => {
            if let Some(kind) = section.get("type") {
                let message = "a health check by HTTP needs a `path`";
                reader.wrong(&kind, Code::HealthPath, message);
            }
            Probe::Tcp
        }
        (false, Some(item), _) => {
            let fix = "set `type = \"http\"` or leave it out";
            reader.wrong_but(&item, Code::HealthPath, "a path is for HTTP", fix);
            Probe::Tcp
        }
        (false, None, _) => Probe::Tcp,
    }
}
