//! The platform on one machine: how soon it is up, how soon a deploy serves,
//! and what a node costs with many instances.
//!
//! Everything is `fluffy` itself, built as this is, as a person runs it. The
//! peer is `podman run` of the same image, with the same wait for an answer.
//! Instances are a static busybox with its own web server; needs root.

mod image;
mod machine;

use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use fluffy_test_kit::campaign;

use crate::figure::{Bar, Figure, Samples, Show};
use machine::{Machine, Peer, Running, resident};

const MIB: f64 = 1024.0 * 1024.0;

/// How large the image of a deploy is.
const LARGE: usize = 100 << 20;

/// The instances on one node.
const MANY: usize = 100;

/// All figures of a node.
///
/// # Errors
/// This machine runs no instances, or something did not come to be.
pub(crate) fn run() -> Result<Vec<Figure>> {
    let program = std::env::current_exe()?.with_file_name("fluffy");
    ensure!(program.is_file(), "there is no {}", program.display());
    let mut figures = vec![starting(&program)?];
    figures.extend(deploying(&program)?);
    figures.extend(many(&program)?);
    Ok(figures)
}

/// From nothing to a platform that takes deploys and runs them.
fn starting(program: &Path) -> Result<Figure> {
    let mut times = Vec::new();
    for _ in 0..campaign(5, 20) {
        let machine = Machine::new(program)?;
        let begun = Instant::now();
        let up = machine.up()?;
        times.push(begun.elapsed().as_secs_f64());
        up.end()?;
    }
    Ok(Figure {
        what: "`fluffy up` on an empty machine, until its node is ready".to_owned(),
        ours: Samples::new(times, Show::Time),
        reference: None,
        bar: Bar::Under(2.0),
    })
}

/// From `fluffy deploy` to the first answer, of an image that the node has.
fn deploying(program: &Path) -> Result<Vec<Figure>> {
    let machine = Machine::new(program)?;
    image::write(&machine.project().join("image"), LARGE)?;
    let peer = Peer::of(&machine.project().join("image"))?;
    let up = machine.up()?;
    machine.manifest("large", 1)?;
    let begun = Instant::now();
    machine.fluffy(&["launch", "--no-input"])?;
    let first = begun.elapsed().as_secs_f64();
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..campaign(5, 20) {
        // Another release, so that another instance has to start.
        machine.manifest("large", round + 2)?;
        let begun = Instant::now();
        machine.fluffy(&["deploy", "--env", "dev"])?;
        let instance = machine.newest()?;
        machine::answers(instance)?;
        ours.push(begun.elapsed().as_secs_f64());
        if let Some(peer) = &peer {
            theirs.push(peer.serves()?);
        }
    }
    up.end()?;
    let reference = peer.map(|_| {
        let name = "podman run, until it answers".to_owned();
        (name, Samples::new(theirs, Show::Time))
    });
    Ok(vec![
        Figure {
            what: "`fluffy deploy` of a cached image of 100 MiB, until it answers".to_owned(),
            ours: Samples::new(ours, Show::Time),
            reference,
            bar: Bar::Under(3.0),
        },
        Figure {
            what: "the same image for the first time: imported, converted, run".to_owned(),
            ours: Samples::new(vec![first], Show::Time),
            reference: None,
            bar: Bar::Inform,
        },
    ])
}

/// Many instances: what the agent needs for them, as a process of its own.
fn many(program: &Path) -> Result<Vec<Figure>> {
    let machine = Machine::new(program)?;
    image::write(&machine.project().join("image"), 0)?;
    let server = machine.up_without_node()?;
    let node = machine.node(&server)?;
    machine.manifest("small", 1)?;
    machine.fluffy(&["launch", "--no-input"])?;
    let alone = resident(node.id())?;
    let begun = Instant::now();
    machine.fluffy(&["scale", "--env", "dev", &format!("web={MANY}")])?;
    machine.reach(MANY)?;
    let started = begun.elapsed().as_secs_f64();
    let agent = resident(node.id())?;
    let shims = machine::shims(node.id())?;
    let each = shims.iter().map(|id| resident(*id)).sum::<Result<f64>>()?;
    for instance in machine.addresses()? {
        machine::answers(instance)?;
    }
    machine.fluffy(&["scale", "--env", "dev", "web=0"])?;
    machine.reach(0).context("they did not go away again")?;
    Running::end(node)?;
    Running::end(server)?;
    let size = |what: String, bytes: f64, bar| Figure {
        what,
        ours: Samples::new(vec![bytes], Show::Size),
        reference: None,
        bar,
    };
    #[expect(clippy::cast_precision_loss, reason = "a hundred")]
    let count = shims.len().max(1) as f64;
    Ok(vec![
        size(
            format!("resident of the agent with {MANY} instances"),
            agent,
            Bar::BytesUnder(100.0 * MIB),
        ),
        size("the same with one instance".to_owned(), alone, Bar::Inform),
        size(
            format!("resident of an instance's shim, mean of {count}"),
            each / count,
            Bar::Inform,
        ),
        Figure {
            what: format!("from 1 to {MANY} instances that are ready"),
            ours: Samples::new(vec![started], Show::Time),
            reference: None,
            bar: Bar::Inform,
        },
    ])
}
