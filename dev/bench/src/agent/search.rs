//! A search of ten thousand files beside `rg`.
//!
//! Ours asks policy about every file and sees the layer over the project;
//! `rg` is started as people start it, with its threads.

use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use fluffy_model_server::Reply;
use serde_json::json;

use super::bed::Bed;
use super::time;
use crate::figure::{Bar, Figure, Samples, Show};

const FILES: usize = 10_000;
const ROUNDS: usize = 20;
const NEEDLE: &str = "fn wanted_[0-9]+_here";

/// The figure.
pub(super) fn run() -> Result<Vec<Figure>> {
    let files: Vec<(String, String)> = (0..FILES).map(file).collect();
    let bed = Bed::new(&files)?;
    let search = Reply::call("search.grep", json!({"pattern": NEEDLE}));
    // The first of each warms the system's cache.
    let ours = bed.run(vec![search; ROUNDS + 1])?.calls("search.grep")?;
    let mut theirs = Vec::new();
    for _ in 0..=ROUNDS {
        theirs.push(by_ripgrep(&bed)?);
    }
    let ours = ours.into_iter().skip(1).collect();
    let theirs = theirs.into_iter().skip(1).collect();
    Ok(vec![Figure {
        reference: Some(("rg".to_owned(), Samples::new(theirs, Show::Time))),
        ..time(format!("search {FILES} files"), ours, Bar::Inform)
    }])
}

/// Two kilobytes of something like code; ten of them have a match.
fn file(at: usize) -> (String, String) {
    let mut text = String::new();
    for line in 0..40 {
        text.push_str(&format!("    let value_{line} = compute({at}, {line});\n"));
    }
    if at % (FILES / 10) == 7 {
        text.push_str(&format!("fn wanted_{at}_here() {{}}\n"));
    }
    (format!("src/part{}/file{at}.rs", at / 100), text)
}

fn by_ripgrep(bed: &Bed) -> Result<f64> {
    let begun = Instant::now();
    let output = Command::new("rg")
        .current_dir(bed.context.project())
        .args(["--line-number", NEEDLE])
        .stdin(Stdio::null())
        .output()
        .context("cannot run rg; `cargo xtask setup` installs it")?;
    let took = begun.elapsed().as_secs_f64();
    let lines = output.stdout.iter().filter(|byte| **byte == b'\n').count();
    ensure!(lines == 10, "rg found {lines} lines");
    Ok(took)
}
