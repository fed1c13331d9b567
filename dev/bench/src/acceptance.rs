//! Which figures are those of acceptance rows, for `target/acceptance`.
//!
//! Only says what was measured; whether a bar is missed is told by `main`.

use anyhow::Result;
use fluffy_test_kit::Acceptance;

use crate::figure::Figure;

/// A row, the area that measures it, and how its figures begin.
const ROWS: &[(&str, &str, &[&str])] = &[
    ("e2", "image", &["MB of a gzip layer", "rate of "]),
    ("e5", "ledger", &["append, "]),
    (
        "e6",
        "control",
        &[
            "lag of two other",
            "rate kept up meanwhile",
            "events in a burst",
            "until two other",
        ],
    ),
    ("e7", "control", &["100 instances placed"]),
    ("e7", "planner", &["a pass that places 100 instances"]),
    (
        "e8",
        "control",
        &["created on one replica", "rate of others kept up"],
    ),
    (
        "e20",
        "control",
        &[
            "views rebuilt",
            "chain verified",
            "a read while views are rebuilt",
        ],
    ),
];

/// What only a machine with KVM could say.
const NOT_HERE: &[(&str, &str)] = &[("e2", "5 GB compressed in less than 60 s, with KVM")];

/// Writes what an area measured of each row.
pub(crate) fn write(area: &str, figures: &[Figure]) -> Result<()> {
    for (row, _, begins) in ROWS.iter().filter(|(_, of, _)| *of == area) {
        let mut acceptance = Acceptance::of(row, area);
        let own = |figure: &&Figure| begins.iter().any(|begin| figure.what.starts_with(begin));
        for figure in figures.iter().filter(own) {
            let said = [figure.ours.show(figure.ours.median()), figure.slow_end()];
            let bar = figure
                .has_bar()
                .then(|| (figure.bar.to_string(), figure.holds()));
            acceptance.said(&figure.what, &said.join(", "), bar);
        }
        for (_, what) in NOT_HERE.iter().filter(|(of, _)| of == row) {
            acceptance.not_measured(what, "it is measured on real hosts");
        }
        acceptance.write()?;
    }
    Ok(())
}
