//! The long runs: campaigns at full length, and figures.
//!
//! `test` runs a tenth of the same campaigns; bars of time are checked only
//! here and in `bench`. Never part of CI.

use std::process::Command;

use anyhow::{Context, Result, bail};
use fluffy_test_kit::{CAMPAIGN_ENV, POSTGRES_ENV, PrivatePostgres};

use crate::engines::Engines;
use crate::fuzz;
use crate::process::{find_program, run};
use crate::step::{Outcome, Record};
use crate::testing::{Length, run_packages};
use crate::workspace::Workspace;

/// How long all fuzz targets together run.
const FUZZ_MINUTES: u64 = 10;

/// What the platform is held to, and nothing else.
const PLATFORM: &str = "platform";

/// The tests of E2, E13, E15 and E17, by the words of nextest.
const PLATFORM_TESTS: &str = "\
    (binary(image) and (test(store::malicious) or test(root::hostile))) \
    or (binary(fleet) and test(exec::)) \
    or (binary(cli) and (test(platform::hidden::) or test(platform::guarded::))) \
    or (binary(cli) and test(platform::routes::drain::))";

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
        name: PLATFORM,
        meaning: "E2, E13, E15 and E17 alone; the others have them as well",
        run: platform,
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
        // Of all campaigns together it would be a second time.
        let wanted = match name {
            Some(name) => name == campaign.name,
            None => campaign.name != PLATFORM,
        };
        if wanted {
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
    // Run as it was built: `cargo run` would build it once more, with the features
    // that this package has alone.
    let mut command = Command::new(workspace.target.join("release/fluffy-bench"));
    command
        .current_dir(&workspace.root)
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

fn platform(workspace: &Workspace) -> Result<Outcome> {
    if find_program("cargo-nextest").is_none() {
        bail!("cargo-nextest chooses these tests: run `cargo xtask test --only setup`");
    }
    let packages = ["--package", "fluffy-image", "--package", "fluffy-cli"];
    let filter = ["--filterset", PLATFORM_TESTS];
    match full(workspace, &[&packages[..], &filter].concat())? {
        Outcome::Passed(tests) => match measure(workspace, &["image"], Length::Full)? {
            Outcome::Passed(figures) => Ok(Outcome::Passed(format!("{tests}; {figures}"))),
            outcome => Ok(outcome),
        },
        outcome => Ok(outcome),
    }
}

fn full(workspace: &Workspace, packages: &[&str]) -> Result<Outcome> {
    run_packages(workspace, packages, Length::Full)
}
