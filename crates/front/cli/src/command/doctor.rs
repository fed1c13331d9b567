//! `fluffy doctor`: how strongly this machine isolates, and how to get more.
//!
//! Every tier is tried, not guessed from versions, and nothing is changed. The
//! sandbox and container crates try and explain; this only asks and shows.

use std::collections::BTreeMap;
use std::path::Path;

use fluffy_container::{address, probe as container};
use fluffy_gate::LoadedPolicy;
use fluffy_report::{Cell, Column, ExitCode, Table, Tone};
use fluffy_sandbox::plan::Engine;
use fluffy_sandbox::probe::Report as Machine;
use fluffy_sandbox::protocol::Failure as Obstacle;
use fluffy_wasm::{Bounds, WasmTier};
use serde::Serialize;
use serde_json::json;

use crate::command::sandbox::{containers, user};
use crate::command::{Outcome, ledger, policy};
use crate::failure::{self, Failure};
use crate::session::{Here, Session};

/// The smallest program there is.
const NOTHING: &[u8] = b"\0asm\x01\0\0\0";

/// Tries everything and shows what came of it.
pub(crate) fn run(session: &Session) -> Outcome {
    let machine = Machine::probe();
    let mut tiers = vec![wasm()];
    tiers.extend(machine.engines.iter().map(|tried| Line {
        default: machine.best() == Some(tried.engine),
        ..Line::new(
            "process",
            engine_name(tried.engine),
            tried.obstacle.clone().map(Why::from),
        )
    }));
    tiers.extend(container_lines()?);
    tiers.push(microvm());
    let works = machine.best().is_some();
    let health = Health {
        kernel: kernel(),
        landlock: machine.landlock,
        ledger: ledger_health(session),
        policy: policy_health(session),
    };
    if session.json() {
        session.printer.json(&json!({
            "default_works": works,
            "tiers": tiers,
            "weaknesses": machine.weaknesses,
            "health": health,
        }))?;
    } else {
        show(session, &tiers, &machine, &health)?;
    }
    Ok(if works {
        ExitCode::Success
    } else {
        ExitCode::Failure
    })
}

/// One way to isolate, and whether it is to be had.
#[derive(Debug, Serialize)]
struct Line {
    tier: &'static str,
    engine: String,
    works: bool,
    #[serde(flatten)]
    obstacle: Option<Why>,
    /// Whether `sandbox run` uses it when nothing else is said.
    default: bool,
}

/// Why something is not to be had, and how to get it.
#[derive(Debug, Serialize)]
struct Why {
    what: String,
    why: String,
    fix: Option<String>,
}

impl Line {
    fn new(tier: &'static str, engine: impl Into<String>, obstacle: Option<Why>) -> Self {
        Self {
            tier,
            engine: engine.into(),
            works: obstacle.is_none(),
            obstacle,
            default: false,
        }
    }
}

impl From<Obstacle> for Why {
    fn from(obstacle: Obstacle) -> Self {
        Self {
            what: obstacle.what,
            why: obstacle.why,
            fix: obstacle.fix,
        }
    }
}

/// What everything else rests on, a line each.
#[derive(Debug, Serialize)]
struct Health {
    kernel: String,
    landlock: Option<i32>,
    ledger: Part,
    policy: Part,
}

/// One part, and whether it is as it should be.
#[derive(Debug, Serialize)]
struct Part {
    ok: bool,
    says: String,
}

fn engine_name(engine: Engine) -> &'static str {
    match engine {
        Engine::Native => "native",
        Engine::Bwrap => "bwrap",
        Engine::Reduced => "reduced",
        Engine::Container => "container",
    }
}

fn wasm() -> Line {
    let tried = WasmTier::start(Bounds::default())
        .map_err(|error| error.to_string())
        .and_then(|tier| tier.prepare(NOTHING).map_err(|error| error.to_string()));
    let obstacle = tried.err().map(|why| Why {
        what: "WebAssembly programs cannot be run".to_owned(),
        why,
        fix: Some(
            "allow memory that is both written and run (no MemoryDenyWriteExecute)".to_owned(),
        ),
    });
    Line::new("wasm", "wasmtime", obstacle)
}

fn microvm() -> Line {
    let why = Why {
        what: "not made by this command".to_owned(),
        why: "virtual machines come with a node of the platform".to_owned(),
        fix: None,
    };
    Line::new("microvm", "–", Some(why))
}

/// Every container engine that answers; what is wrong where none does.
fn container_lines() -> Result<Vec<Line>, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| failure::no_threads(&error))?;
    let environment = containers();
    let sockets = address::candidates(&environment, user()).unwrap_or_default();
    let mut lines = Vec::new();
    for socket in sockets.iter().filter(|socket| socket.exists()) {
        let only = BTreeMap::from([("DOCKER_HOST".to_owned(), address_of(socket))]);
        let line = match runtime.block_on(container::probe(&only, user())) {
            Ok(found) => Line::new(
                "container",
                format!("{} {}", brand(found.brand), found.version),
                None,
            ),
            Err(obstacle) => {
                let place = socket.display().to_string();
                Line::new("container", place, Some(obstacle.into()))
            }
        };
        lines.push(line);
    }
    if lines.is_empty()
        && let Err(obstacle) = runtime.block_on(container::probe(&environment, user()))
    {
        lines.push(Line::new("container", "–", Some(obstacle.into())));
    }
    Ok(lines)
}

fn address_of(socket: &Path) -> String {
    format!("unix://{}", socket.display())
}

fn brand(brand: container::Brand) -> &'static str {
    match brand {
        container::Brand::Docker => "docker",
        container::Brand::Podman => "podman",
    }
}

fn kernel() -> String {
    let name = rustix::system::uname();
    format!(
        "{} {} {}",
        name.sysname().to_string_lossy(),
        name.release().to_string_lossy(),
        name.machine().to_string_lossy()
    )
}

fn ledger_health(session: &Session) -> Part {
    part(session.here().and_then(|here| {
        let folder = ledger::folder(here)?;
        if !ledger::exists(&folder) {
            return Ok("none yet; `fluffy init` or the first decision starts one".to_owned());
        }
        let opened = ledger::open(session, here)?;
        let head = opened
            .ledger
            .head()
            .map_err(|error| failure::read_ledger(&error))?;
        ledger::close(session, opened)?;
        Ok(format!("{} events in {}", head.seq, folder.display()))
    }))
}

fn policy_health(session: &Session) -> Part {
    let load = |here: &Here| {
        let loaded = LoadedPolicy::load(&policy::places(here)?, 1, &policy::clock())
            .map_err(|error| failure::load_policy(&error, None))?;
        Ok(match loaded.pinned {
            Some(digest) => format!("the project's own, reviewed ({digest})"),
            None => "the starter policy".to_owned(),
        })
    };
    part(session.here().and_then(load))
}

fn part(said: Result<String, Failure>) -> Part {
    match said {
        Ok(says) => Part { ok: true, says },
        Err(Failure::Report(report)) => {
            let value = report.to_json();
            let what = value.pointer("/error/what").and_then(|what| what.as_str());
            Part {
                ok: false,
                says: what.unwrap_or("it cannot be used").to_owned(),
            }
        }
        Err(Failure::Print(error)) => Part {
            ok: false,
            says: error.to_string(),
        },
    }
}

fn show(
    session: &Session,
    tiers: &[Line],
    machine: &Machine,
    health: &Health,
) -> Result<(), Failure> {
    let mut table = Table::new([
        Column::new("TIER").whole(),
        Column::new("ENGINE").whole(),
        Column::new("HERE").whole(),
        Column::new("WHY NOT"),
    ]);
    for line in tiers {
        let (word, tone) = match (&line.obstacle, line.default) {
            (None, true) => ("yes, the default", Tone::Good),
            (None, false) if line.engine == "reduced" => ("if asked for", Tone::Caution),
            (None, false) => ("yes", Tone::Good),
            (Some(_), _) => ("no", Tone::Dim),
        };
        let why = line.obstacle.as_ref().map_or("", |why| why.what.as_str());
        table.row([
            Cell::new(line.tier),
            Cell::new(line.engine.as_str()),
            Cell::new(word).tone(tone),
            Cell::new(why),
        ]);
    }
    session.printer.table(&table)?;
    let mut text = String::from("\n");
    for (line, why) in tiers
        .iter()
        .filter_map(|line| Some((line, line.obstacle.as_ref()?)))
    {
        text.push_str(&told(&format!("{} {}", line.tier, line.engine), why));
    }
    for weakness in &machine.weaknesses {
        let why = Why {
            what: weakness.what.clone(),
            why: weakness.why.clone(),
            fix: weakness.fix.clone(),
        };
        text.push_str(&told("weaker than it could be", &why));
    }
    let landlock = health
        .landlock
        .map_or_else(|| "none".to_owned(), |version| format!("version {version}"));
    text.push_str(&format!(
        "kernel    {}\nlandlock  {landlock}\nledger    {}\npolicy    {}",
        health.kernel, health.ledger.says, health.policy.says
    ));
    session.printer.data(&text)?;
    Ok(())
}

fn told(about: &str, why: &Why) -> String {
    let fix = why
        .fix
        .as_ref()
        .map(|fix| format!("\n  fix: {fix}"))
        .unwrap_or_default();
    format!("{about}: {}\n  why: {}{fix}\n\n", why.what, why.why)
}
