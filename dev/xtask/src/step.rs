//! One step of a run: its outcome, and the table of all of them.
//!
//! Never stops at the first failure: a person wants to see all of them.

use std::time::{Duration, Instant};

use crate::output;

/// How a step ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It held; the note is for the table, such as a count.
    Passed(String),
    /// It did not hold, or could not be found out.
    Failed(String),
    /// This machine cannot have what the step needs.
    Skipped(String),
}

impl Outcome {
    /// Failed with one line per problem, or passed with a note.
    pub(crate) fn from_problems(problems: &[String], note: String) -> Self {
        if problems.is_empty() {
            Self::Passed(note)
        } else {
            Self::Failed(problems.join("\n"))
        }
    }
}

/// What has been run so far.
#[derive(Debug, Default)]
pub(crate) struct Record {
    rows: Vec<(String, Outcome, Duration)>,
}

impl Record {
    /// Runs a step under its heading and keeps its outcome.
    pub(crate) fn perform(
        &mut self,
        name: &str,
        meaning: &str,
        step: impl FnOnce() -> anyhow::Result<Outcome>,
    ) {
        output::heading(&format!("{name}: {meaning}"));
        let started = Instant::now();
        let outcome = step().unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")));
        match &outcome {
            Outcome::Passed(note) => output::line(note),
            Outcome::Skipped(reason) => output::line(&format!("skipped: {reason}")),
            Outcome::Failed(reason) => output::complain(reason),
        }
        self.rows
            .push((name.to_owned(), outcome, started.elapsed()));
    }

    /// The table, and whether everything held.
    pub(crate) fn conclude(&self) -> Outcome {
        let count = |wanted: fn(&Outcome) -> bool| {
            let matching = self.rows.iter().filter(|(_, outcome, _)| wanted(outcome));
            matching.count()
        };
        let failed = count(|outcome| matches!(outcome, Outcome::Failed(_)));
        let skipped = count(|outcome| matches!(outcome, Outcome::Skipped(_)));
        let summary = format!(
            "{}{} steps, {failed} failed, {skipped} skipped",
            self.table(),
            self.rows.len()
        );
        if failed == 0 {
            Outcome::Passed(summary)
        } else {
            output::line(&summary);
            Outcome::Failed(format!("{failed} of {} steps failed", self.rows.len()))
        }
    }

    fn table(&self) -> String {
        let mut table = String::from("\n");
        for (name, outcome, time) in &self.rows {
            let (mark, text) = match outcome {
                Outcome::Passed(note) => ("ok", note),
                Outcome::Failed(reason) => ("FAILED", reason),
                Outcome::Skipped(reason) => ("skipped", reason),
            };
            let first = text.lines().next().unwrap_or_default();
            let row = format!("{name:<10} {mark:<8} {:>7.1}s  {first}", time.as_secs_f64());
            table.push_str(row.trim_end());
            table.push('\n');
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_steps_run_and_one_failure_fails_the_run() {
        let mut record = Record::default();
        record.perform("one", "", || Ok(Outcome::Failed("first\nmore".to_owned())));
        record.perform("two", "", || anyhow::bail!("broken"));
        record.perform("three", "", || Ok(Outcome::Passed("7 files".to_owned())));
        record.perform("four", "", || Ok(Outcome::Skipped("no KVM".to_owned())));
        assert_eq!(
            record.conclude(),
            Outcome::Failed("2 of 4 steps failed".to_owned())
        );
        let table = record.table();
        let lines: Vec<&str> = table.lines().skip(1).collect();
        assert_eq!(lines.len(), 4, "{table}");
        assert!(lines[0].starts_with("one        FAILED") && lines[0].ends_with("first"));
        assert!(lines[1].ends_with("broken"));
        assert!(lines[3].contains("skipped") && lines[3].ends_with("no KVM"));
    }

    #[test]
    fn a_skip_is_counted_and_does_not_fail() {
        let mut record = Record::default();
        record.perform("one", "", || Ok(Outcome::Skipped("no KVM".to_owned())));
        let Outcome::Passed(summary) = record.conclude() else {
            panic!("a skip failed the run");
        };
        assert!(
            summary.ends_with("1 steps, 0 failed, 1 skipped"),
            "{summary}"
        );
    }
}
