//! The long runs: campaigns at full length, and figures.
//!
//! `test` runs a tenth of the same campaigns; bars of time are checked only
//! here and in `bench`. Never part of CI.

use anyhow::{Context, Result, bail};
use fluffy_test_kit::{CAMPAIGN_ENV, POSTGRES_ENV, PrivatePostgres};

use crate::engines::Engines;
use crate::fuzz;
use crate::process::run;
use crate::step::{Outcome, Record};
use crate::testing::{Length, run_packages};
use crate::workspace::Workspace;

/// How long all fuzz targets together run.
const FUZZ_MINUTES: u64 = 10;

/// A run at full length.
struct Campaign {
    name: &'static str,
    meaning: &'static str,
    run: fn(&Workspace) -> Result<Outcome>,
}

const CAMPAIGNS: &[Campaign] = &[
    Campaign {
        name: "ledger",
        meaning: "kill -9, torn pages, full disks, on SQLite and PostgreSQL",
        run: |workspace| full(workspace, &["--package", "fluffy-ledger"]),
    },
    Campaign {
        name: "rest",
        meaning: "the campaigns of all other crates, E13 among them",
        run: |workspace| full(workspace, &["--workspace", "--exclude", "fluffy-ledger"]),
    },
    Campaign {
        name: "fuzz",
        meaning: "ten minutes of search over all parsers",
        run: |workspace| fuzz::run_long(workspace, None, FUZZ_MINUTES),
    },
    Campaign {
        name: "control",
        meaning: "E5 to E8 and E20 at full length, against their bars",
        run: |workspace| measure(workspace, &["ledger", "planner", "control"], Length::Full),
    },
    Campaign {
        name: "bench",
        meaning: "all figures against their bars",
        run: |workspace| bench(workspace, "all"),
    },
];

/// Runs one campaign, or all.
pub(crate) fn run_campaigns(workspace: &Workspace, name: Option<&str>) -> Result<Outcome> {
    let mut record = Record::default();
    let mut found = false;
    for campaign in CAMPAIGNS {
        if name.is_none_or(|name| name == campaign.name) {
            found = true;
            record.perform(campaign.name, campaign.meaning, || {
                (campaign.run)(workspace)
            });
        }
    }
    if !found {
        let names: Vec<&str> = CAMPAIGNS.iter().map(|campaign| campaign.name).collect();
        let wanted = name.unwrap_or_default();
        bail!("there is no campaign `{wanted}`: {}", names.join(", "));
    }
    Ok(record.conclude())
}

/// Runs the benchmarks of one area, or `all`.
pub(crate) fn bench(workspace: &Workspace, area: &str) -> Result<Outcome> {
    measure(workspace, &[area], Length::Tenth)
}

/// Builds the benchmarks for release and runs those of some areas.
fn measure(workspace: &Workspace, areas: &[&str], length: Length) -> Result<Outcome> {
    // Built first: a server that idles during a build is in the way of others.
    let packages = ["--package", "fluffy-bench", "--package", "fluffy-cli"];
    let arguments = [&["build", "--release"][..], &packages].concat();
    let built = run(&mut workspace.cargo(&arguments), "")?;
    if let Outcome::Failed(_) = built {
        return Ok(built);
    }
    let mut command = workspace.cargo(&["run", "--release", "--quiet", "--package"]);
    command
        .args(["fluffy-bench", "--"])
        .args(areas)
        .arg("--write");
    if length == Length::Full {
        command.env(CAMPAIGN_ENV, "full");
    }
    let any = |needing: &[&str]| areas.iter().any(|area| needing.contains(area));
    let needs_server = any(&["ledger", "control", "all"]);
    let postgres = needs_server
        .then(PrivatePostgres::start)
        .transpose()
        .context("cannot start a private PostgreSQL")?;
    if let Some(postgres) = &postgres {
        command.env(POSTGRES_ENV, postgres.url());
    }
    let needs_engines = any(&["agent", "sandbox", "all"]);
    let engines = needs_engines.then(Engines::start).transpose()?;
    if let Some(engines) = &engines {
        engines.tell(&mut command);
    }
    run(&mut command, "all bars are kept")
}

fn full(workspace: &Workspace, packages: &[&str]) -> Result<Outcome> {
    run_packages(workspace, packages, Length::Full)
}
