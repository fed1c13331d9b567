//! A session of thousands of turns: neither slower nor larger at its end.
//!
//! Every turn reads another file, so that history fills up and is shortened
//! again and again.

use anyhow::{Context as _, Result, ensure};
use fluffy_model_server::Reply;
use fluffy_test_kit::campaign;
use serde_json::json;

use super::bed::Bed;
use super::footprint::resident;
use crate::figure::{Bar, Figure, Samples, Show};

const FILES: u64 = 50;

/// The last tenth of the turns beside the second tenth.
pub(super) fn run() -> Result<Vec<Figure>> {
    let turns = campaign(400, 2_000);
    let files: Vec<(String, String)> = (0..FILES).map(file).collect();
    let bed = Bed::new(&files)?;
    let read = |turn: u64| {
        let path = format!("src/file{}.txt", turn % FILES);
        Reply::call("fs.read", json!({"path": path}))
    };
    let mut sizes = Vec::new();
    let mut kernel = None;
    let ran = bed.run_watched((0..turns).map(read).collect(), |event| {
        if event.get("type").is_some_and(|kind| kind == "turn.started") {
            if kernel.is_none() {
                kernel = bed.kernel()?;
            }
            sizes.push(resident(kernel.context("there is no kernel")?)?);
        }
        Ok(())
    })?;
    let times = ran.turns();
    let tenth = usize::try_from(turns / 10)?;
    ensure!(times.len() >= 10 * tenth, "it ended after {}", times.len());
    // The first tenth starts with an empty history; the second is the first
    // that looks like all that follow.
    let early = |all: &[f64]| all.get(tenth..2 * tenth).map(<[f64]>::to_vec);
    let late = |all: &[f64]| all.get(9 * tenth..10 * tenth).map(<[f64]>::to_vec);
    let pair = |all: &[f64], show| -> Result<(Samples, Samples)> {
        let halves = late(all).zip(early(all)).context("too few turns")?;
        Ok((Samples::new(halves.0, show), Samples::new(halves.1, show)))
    };
    let name = |what: &str| format!("{what}, last {tenth} of {turns} turns");
    let beside = format!("turns {tenth} to {}", 2 * tenth);
    let (late_times, early_times) = pair(&times, Show::Time)?;
    let (late_sizes, early_sizes) = pair(&sizes, Show::Size)?;
    Ok(vec![
        Figure {
            what: name("a turn"),
            ours: late_times,
            reference: Some((beside.clone(), early_times)),
            bar: Bar::TimesReference(0.8),
        },
        Figure {
            what: name("memory of the kernel"),
            ours: late_sizes,
            reference: Some((beside, early_sizes)),
            bar: Bar::TimesReference(0.5),
        },
    ])
}

/// Four kilobytes of text.
fn file(at: u64) -> (String, String) {
    let lines = (0..100).map(|line| format!("value_{line} = compute({at}, {line}) # text\n"));
    (format!("src/file{at}.txt"), lines.collect())
}
