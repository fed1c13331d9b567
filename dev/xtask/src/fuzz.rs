//! Builds the fuzz targets with coverage on the stable toolchain and runs them.
//!
//! Every run first lets the fuzzer find a planted fault: a search that could
//! find nothing must not look like success. What is found goes below the
//! target folder; seeds worth keeping are copied to the corpus by a person.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::output;
use crate::process::run;
use crate::step::Outcome;
use crate::workspace::Workspace;

/// Where the seeds are, one folder per target.
const CORPUS: &str = "dev/fuzz/corpus";

/// What the test command spends on all targets together.
const SHORT_SECONDS: u64 = 60;

/// How long the planted fault may stay hidden; it takes about three seconds.
const PLANTED_SECONDS: u64 = 60;

/// How much of a fuzzer's tale is shown when it found something.
const TOLD_LINES: usize = 50;

/// Compiles our own crates with coverage; what they depend on is left as the
/// tests have it, so that it is compiled once.
const INSTRUMENT: &str = "dev/fuzz/instrument.sh";

/// Replays the corpus and searches for a minute in all.
pub(crate) fn run_short(workspace: &Workspace) -> Result<Outcome> {
    run_for(workspace, None, SHORT_SECONDS)
}

/// Searches for that many minutes in all.
pub(crate) fn run_long(
    workspace: &Workspace,
    target: Option<&str>,
    minutes: u64,
) -> Result<Outcome> {
    run_for(workspace, target, minutes.saturating_mul(60))
}

fn run_for(workspace: &Workspace, target: Option<&str>, seconds: u64) -> Result<Outcome> {
    let known = names(&workspace.root.join(CORPUS))?;
    let chosen: Vec<&String> = known
        .iter()
        .filter(|name| target.is_none_or(|target| target == *name))
        .collect();
    if chosen.is_empty() {
        let wanted = target.unwrap_or_default();
        bail!("there is no fuzz target `{wanted}`: {}", known.join(", "));
    }
    let fuzzer = Fuzzer::build(workspace)?;
    fuzzer.prove()?;
    let each = (seconds / u64::try_from(chosen.len())?).max(1);
    let mut problems = Vec::new();
    for name in &chosen {
        output::line(&format!("{name}: {each} s"));
        problems.extend(fuzzer.search(name, each)?);
    }
    let note = format!("{} targets, {each} s each, no crash", chosen.len());
    Ok(Outcome::from_problems(&problems, note))
}

/// The targets: each has a folder of seeds, which a test of theirs checks.
fn names(corpus: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(corpus).with_context(|| format!("cannot read {CORPUS}"))?;
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot read {CORPUS}"))?;
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// The built program with all targets.
struct Fuzzer {
    program: PathBuf,
    corpus: PathBuf,
    found: PathBuf,
}

impl Fuzzer {
    fn build(workspace: &Workspace) -> Result<Self> {
        // The features that the tests chose for the whole workspace.
        let mut command = workspace.cargo(&["build", "--workspace", "--bin", "fluffy-fuzz"]);
        command
            .args(["--features", "fluffy-fuzz/engine"])
            .env("RUSTC_WORKSPACE_WRAPPER", workspace.root.join(INSTRUMENT));
        if let Outcome::Failed(reason) = run(&mut command, "")? {
            bail!("{reason}");
        }
        Ok(Self {
            program: workspace.target.join("debug/fluffy-fuzz"),
            corpus: workspace.root.join(CORPUS),
            found: workspace.target.join("fuzz"),
        })
    }

    /// Lets it find the planted fault.
    fn prove(&self) -> Result<()> {
        let folder = self.fresh("planted")?;
        let ended = self
            .command("planted", PLANTED_SECONDS, &folder)
            .arg("-seed=1")
            .output()
            .context("cannot run the fuzzer")?;
        let told = String::from_utf8_lossy(&ended.stderr);
        if ended.status.success() || !told.contains("the planted fault was found") {
            bail!("the fuzzer did not find the planted fault: its coverage does not work");
        }
        output::line("the planted fault was found");
        Ok(())
    }

    /// Replays the seeds of a target and searches on from there.
    fn search(&self, name: &str, seconds: u64) -> Result<Option<String>> {
        let folder = self.fresh(name)?;
        let grown = self.found.join(format!("{name}-corpus"));
        fs::create_dir_all(&grown).with_context(|| format!("cannot make {}", grown.display()))?;
        let ended = self
            .command(name, seconds, &folder)
            // New inputs go to the first folder only.
            .arg(&grown)
            .arg(self.corpus.join(name))
            .output()
            .context("cannot run the fuzzer")?;
        let told = String::from_utf8_lossy(&ended.stderr);
        if ended.status.success() {
            let last = told.lines().rfind(|line| line.contains("DONE"));
            output::line(last.unwrap_or_default().trim());
            return Ok(None);
        }
        // The panic and the input are at the end, after the tale of the search.
        let lines: Vec<&str> = told.lines().collect();
        let tail = lines.len().saturating_sub(TOLD_LINES);
        output::line(&lines.get(tail..).unwrap_or_default().join("\n"));
        Ok(Some(format!(
            "{name}: the input in {} breaks it; add it to {CORPUS}/{name} with the fix",
            folder.display()
        )))
    }

    fn command(&self, name: &str, seconds: u64, folder: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command
            .env("FLUFFY_FUZZ_TARGET", name)
            .arg(format!("-max_total_time={seconds}"))
            .args(["-timeout=10", "-rss_limit_mb=2048", "-print_final_stats=1"])
            .arg(format!("-artifact_prefix={}/", folder.display()))
            .current_dir(folder);
        command
    }

    /// An empty folder for what breaks a target.
    fn fresh(&self, name: &str) -> Result<PathBuf> {
        let folder = self.found.join(name);
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(folder)
    }
}
