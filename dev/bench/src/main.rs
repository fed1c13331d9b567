//! Benchmarks beside peers, as ratios in one run.
//!
//! `cargo xtask bench [policy|ipc|…]` builds this with the release profile and
//! runs it; it exits non-zero when a bar of the specifications is missed.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a developer's tool that prints"
)]

mod acceptance;
mod agent;
mod container;
mod control;
mod figure;
#[allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "tests' own: real commands, at random"
)]
#[path = "../../../crates/platform/control/tests/runtime/history.rs"]
mod history;
mod image;
mod ipc;
mod ledger;
mod node;
mod planner;
mod plugin;
mod policy;
mod process;
#[allow(
    dead_code,
    clippy::unwrap_used,
    reason = "a test's own, which this runs at full length"
)]
#[path = "../../../crates/platform/server/tests/rebuild/mod.rs"]
mod rebuild;
mod sandbox;
mod table;
#[allow(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests' own: a platform in memory"
)]
#[path = "../../../crates/platform/control/tests/runtime/world.rs"]
mod world;

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::figure::Figure;

fn main() -> ExitCode {
    // The workers of policy extensions are this program once more.
    if std::env::args().nth(1).as_deref() == Some(process::WORKER) {
        return fluffy_script::worker_main();
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments == [image::WORKER] {
        return fluffy_image::worker::run();
    }
    if arguments == fluffy_plugin_host::wasm::WORKER_ARGUMENTS {
        return fluffy_plugin_host::wasm::worker_main();
    }
    let worker = fluffy_sandbox::worker::run(&arguments);
    if let Some(ended) = worker.or_else(|| fluffy_container::worker::run(&arguments)) {
        return ended;
    }
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<bool> {
    let mut areas: Vec<String> = std::env::args().skip(1).collect();
    if let Some((ledger::APPENDER, rest)) =
        areas.split_first().map(|(it, rest)| (it.as_str(), rest))
    {
        return ledger::appender(rest).map(|()| true);
    }
    let write = areas
        .iter()
        .position(|area| area == "--write")
        .map(|at| areas.remove(at));
    if areas.is_empty() || areas.iter().any(|area| area == "all") {
        areas = AREAS.iter().map(|(name, _)| (*name).to_owned()).collect();
    }
    let mut sections = Vec::new();
    for area in &areas {
        let Some((name, measure)) = AREAS.iter().find(|(name, _)| name == area) else {
            let known: Vec<&str> = AREAS.iter().map(|(name, _)| *name).collect();
            bail!("there is no area `{area}`; use one of {}", known.join(", "));
        };
        eprintln!("measuring {name} …");
        let figures = measure()?;
        println!("{}", table::text(name, &figures));
        acceptance::write(name, &figures)?;
        sections.push((*name, figures));
    }
    if write.is_some() {
        table::write_document(&sections)?;
    }
    let missed: Vec<&Figure> = sections
        .iter()
        .flat_map(|(_, figures)| figures)
        .filter(|figure| !figure.holds())
        .collect();
    for figure in &missed {
        eprintln!("missed: {} ({})", figure.what, figure.bar);
    }
    Ok(missed.is_empty())
}

type Measure = fn() -> Result<Vec<Figure>>;

const AREAS: &[(&str, Measure)] = &[
    ("policy", policy::run),
    ("ledger", ledger::run),
    ("ipc", ipc::run),
    ("process", process::run),
    ("sandbox", sandbox::run),
    ("agent", agent::run),
    ("plugin", plugin::run),
    ("planner", planner::run),
    ("control", control::run),
    ("image", image::run),
    ("node", node::run),
];
