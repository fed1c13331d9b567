//! The table attack × subject, as data.
//!
//! The command line draws it, the documentation is generated from it. Must
//! never leave out a verdict, least of all a bad one.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::attack::{Attack, Family};
use crate::guard::Guard;
use crate::subject::Subject;
use crate::verdict::Verdict;

/// What came of many attacks on some subjects.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The columns.
    pub subjects: Vec<SubjectLine>,
    /// The rows, in the order of the corpus.
    pub rows: Vec<Row>,
}

/// One column's heading.
#[derive(Debug, Clone, Serialize)]
pub struct SubjectLine {
    /// Its name.
    pub name: String,
    /// The version of the program behind it.
    pub version: String,
    /// The tier it is held to.
    pub tier: String,
}

/// One attack on all subjects.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The attack's name.
    pub attack: &'static str,
    /// Its family.
    pub family: Family,
    /// What it would gain.
    pub what: &'static str,
    /// The guard that stops it.
    pub guard: Guard,
    /// Guards that would stop it too.
    pub also: &'static [Guard],
    /// One for each subject.
    pub cells: Vec<Cell>,
}

/// One attack on one subject.
#[derive(Debug, Clone, Serialize)]
pub struct Cell {
    /// The subject's name.
    pub subject: String,
    /// What came of it.
    #[serde(flatten)]
    pub verdict: Verdict,
}

/// How often each verdict was given on one subject.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Tried, and failed.
    pub stopped: usize,
    /// Tried, and worked.
    pub escaped: usize,
    /// Not tried.
    pub not_applicable: usize,
    /// The trial itself failed.
    pub broken: usize,
}

impl Report {
    /// The sums for each subject, by name.
    #[must_use]
    pub fn tallies(&self) -> BTreeMap<String, Tally> {
        let mut tallies: BTreeMap<String, Tally> = BTreeMap::new();
        for cell in self.rows.iter().flat_map(|row| &row.cells) {
            let tally = tallies.entry(cell.subject.clone()).or_default();
            match cell.verdict {
                Verdict::Stopped { .. } => tally.stopped += 1,
                Verdict::Escaped { .. } => tally.escaped += 1,
                Verdict::NotApplicable { .. } => tally.not_applicable += 1,
                Verdict::Broken { .. } => tally.broken += 1,
            }
        }
        tallies
    }

    /// The table in Markdown, for the documentation.
    #[must_use]
    pub fn markdown(&self) -> String {
        let names = || self.subjects.iter().map(|subject| subject.name.as_str());
        let mut text = String::from("| family | attack | what it would gain | guard |");
        for name in names() {
            text.push_str(&format!(" {name} |"));
        }
        text.push_str("\n| --- | --- | --- | --- |");
        for _ in names() {
            text.push_str(" --- |");
        }
        text.push('\n');
        for row in &self.rows {
            text.push_str(&format!(
                "| {} | `{}` | {} | {} |",
                row.family, row.attack, row.what, row.guard
            ));
            for cell in &row.cells {
                let word = match cell.verdict {
                    Verdict::Stopped { .. } => "stopped",
                    Verdict::Escaped { .. } => "**escaped**",
                    Verdict::NotApplicable { .. } => "–",
                    Verdict::Broken { .. } => "**broken**",
                };
                text.push_str(&format!(" {word} |"));
            }
            text.push('\n');
        }
        text
    }
}

impl SubjectLine {
    /// The heading of a subject.
    pub(crate) fn of(subject: &dyn Subject) -> Self {
        Self {
            name: subject.name().to_owned(),
            version: subject.version().to_owned(),
            tier: subject.tier().as_str().to_owned(),
        }
    }
}

impl Row {
    /// The row of an attack.
    pub(crate) fn of(attack: &Attack, cells: Vec<Cell>) -> Self {
        Self {
            attack: attack.name,
            family: attack.family,
            what: attack.what,
            guard: attack.guard,
            also: attack.also,
            cells,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus;

    fn report() -> Report {
        let attack = corpus::find("dot-dot").unwrap();
        let cell = |subject: &str, verdict| Cell {
            subject: subject.to_owned(),
            verdict,
        };
        let how = "x".to_owned();
        let cells = vec![
            cell(
                "ours",
                Verdict::Stopped {
                    how: how.clone(),
                    errno: Some(1),
                },
            ),
            cell("theirs", Verdict::Escaped { how }),
        ];
        let subject = |name: &str| SubjectLine {
            name: name.to_owned(),
            version: "1".to_owned(),
            tier: "process".to_owned(),
        };
        Report {
            subjects: vec![subject("ours"), subject("theirs")],
            rows: vec![Row::of(attack, cells)],
        }
    }

    #[test]
    fn tables_have_a_cell_for_every_subject() {
        let markdown = report().markdown();
        let last = markdown.lines().last().unwrap();
        assert!(last.starts_with("| paths | `dot-dot` |"), "{last}");
        assert!(
            last.ends_with("| mount-table | stopped | **escaped** |"),
            "{last}"
        );
    }

    #[test]
    fn tallies_count_by_subject() {
        let tallies = report().tallies();
        assert_eq!(tallies["ours"].stopped, 1);
        assert_eq!(tallies["theirs"].escaped, 1);
        assert_eq!(tallies["theirs"].stopped, 0);
    }

    #[test]
    fn json_names_the_verdict() {
        let value = serde_json::to_value(report()).unwrap();
        let cell = &value["rows"][0]["cells"][0];
        assert_eq!(cell["verdict"], "stopped");
        assert_eq!(cell["how"], "x");
    }
}
