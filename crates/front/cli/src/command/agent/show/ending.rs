//! The closing summary: how a session ended, and what the kernel saw.
//!
//! States evidence and nothing else: every line comes from [`Evidence`], which
//! the kernel filled from the ledger. "verified" and "UNVERIFIED" differ in
//! their letters, not only in their colour. Pure.

use fluffy_kernel::event::{Evidence, SessionEnded, SessionResult, Spent};
use fluffy_report::{Text, Tone};
use fluffy_workflow::debt::{Budget, LOCK, Measured};

use super::words::{counted, money, number};

/// How many names of a list are shown before the rest is counted.
const MAX_NAMES: usize = 12;

/// The width of the words on the left.
const LABEL: usize = 13;

/// What a session ended with, for people.
pub(crate) fn ending(ended: &SessionEnded, spent: &Spent, width: usize) -> Text {
    let (tone, head) = headline(&ended.result);
    let mut text = Text::new();
    text.add(tone, head);
    let room = width.saturating_sub(text.columns() + 2);
    if ended.why.is_empty() {
        text.plain("\n");
    } else if ended.why.chars().count() <= room && !ended.why.contains('\n') {
        text.plain(&format!(": {}\n", ended.why));
    } else {
        text.plain(":\n");
        text.paragraph(Tone::Plain, &ended.why, (2, width));
    }
    evidence(&mut text, &ended.result, &ended.evidence, width);
    row(&mut text, "used", Tone::Plain, &used(spent));
    if let Some((seq, hash)) = &ended.evidence.head {
        let event = format!("event {}", number(*seq));
        // A hash that is broken in two is no use to anybody.
        if LABEL + event.len() + hash.len() + 6 < width {
            row(
                &mut text,
                "ledger",
                Tone::Plain,
                &format!("{event}, {hash}"),
            );
        } else {
            row(&mut text, "ledger", Tone::Plain, &event);
            let hash = fluffy_report::sanitize_line(hash);
            text.plain(&format!("  {hash}\n"));
        }
    }
    text
}

/// The one line that people and colours agree on.
pub(crate) fn headline(result: &SessionResult) -> (Tone, &'static str) {
    match result {
        SessionResult::Verified => (Tone::Good, "Done, verified"),
        SessionResult::Unverified => (Tone::Caution, "Done, UNVERIFIED"),
        SessionResult::Exempt => (Tone::Caution, "Done, exempt from test-first"),
        SessionResult::Unfinished => (Tone::Caution, "Not finished"),
        SessionResult::Waiting => (Tone::Caution, "Waiting for a person"),
        SessionResult::Budget => (Tone::Caution, "A budget ran out"),
        SessionResult::Denied => (Tone::Bad, "Denied"),
        SessionResult::Cancelled => (Tone::Caution, "Stopped"),
        SessionResult::Diverged => (Tone::Bad, "Diverged from the recording"),
        SessionResult::Failed => (Tone::Bad, "Failed"),
    }
}

fn evidence(text: &mut Text, result: &SessionResult, evidence: &Evidence, width: usize) {
    let is_done = matches!(
        result,
        SessionResult::Verified | SessionResult::Unverified | SessionResult::Exempt
    );
    let red_green = &evidence.fail_to_pass;
    if !red_green.is_empty() {
        names(text, "red to green", red_green, width);
    } else if is_done {
        row(
            text,
            "red to green",
            Tone::Caution,
            "no test was seen to fail and then pass",
        );
    }
    if is_done || evidence.pass_to_pass > 0 {
        let still = u64::try_from(evidence.pass_to_pass).unwrap_or(u64::MAX);
        row(
            text,
            "still green",
            Tone::Plain,
            &counted(still, "test", "tests"),
        );
    }
    if !evidence.not_run.is_empty() {
        let names = format!("integration tests {}", evidence.not_run.join(", "));
        row(text, "not run", Tone::Caution, &names);
    }
    merged(text, evidence);
    coverage(text, evidence);
    if let Some(commit) = &evidence.commit {
        row(text, "commit", Tone::Plain, commit);
    }
    let reviewed = u64::try_from(evidence.reviewed).unwrap_or(u64::MAX);
    let refused = u64::try_from(evidence.refused).unwrap_or(u64::MAX);
    let decisions = format!(
        "{} answered by a person, {} refused",
        counted(reviewed, "decision", "decisions"),
        counted(refused, "call", "calls"),
    );
    row(text, "reviewed", Tone::Plain, &decisions);
}

fn coverage(text: &mut Text, evidence: &Evidence) {
    if let Some(Measured { before, after }) = evidence.coverage {
        let tone = match after < before {
            true => Tone::Caution,
            false => Tone::Plain,
        };
        let line = format!("{before} % before, {after} % now");
        row(text, "coverage", tone, &line);
    }
    if let Some(debt) = evidence.debt {
        row(text, "debt", Tone::Caution, &owed(debt));
    }
}

/// The debt in a line; the note before it says it at length.
fn owed(budget: Budget) -> String {
    match budget {
        Budget::Open => "none".to_owned(),
        Budget::Warned { drop } => format!("{drop} points of coverage; above {LOCK} explore locks"),
        Budget::LockedByCoverage { drop } => {
            format!("{drop} points of coverage; explore is locked")
        }
        Budget::LockedByCommits { commits } => {
            format!("{commits} commits that no test proves; explore is locked")
        }
    }
}

fn merged(text: &mut Text, evidence: &Evidence) {
    let files = &evidence.merged;
    if files.is_empty() {
        row(text, "merged", Tone::Plain, "nothing");
        return;
    }
    let sum = |pick: fn(&(u64, u64)) -> u64| {
        let all = files.values().map(pick);
        all.fold(0_u64, u64::saturating_add)
    };
    let count = u64::try_from(files.len()).unwrap_or(u64::MAX);
    let head = format!(
        "{} (+{} −{})",
        counted(count, "file", "files"),
        number(sum(|lines| lines.0)),
        number(sum(|lines| lines.1)),
    );
    row(text, "merged", Tone::Plain, &head);
    for (path, (added, removed)) in files.iter().take(MAX_NAMES) {
        let lines = format!("{path} +{} −{}", number(*added), number(*removed));
        row(text, "", Tone::Dim, &lines);
    }
    rest(text, files.len());
}

fn names(text: &mut Text, label: &str, names: &[String], width: usize) {
    let room = width.saturating_sub(LABEL + 2).max(20);
    for (index, name) in names.iter().take(MAX_NAMES).enumerate() {
        let label = if index == 0 { label } else { "" };
        let mut one = Text::new();
        one.add(Tone::Good, name);
        let one = if width == usize::MAX {
            one
        } else {
            one.cut(room)
        };
        start(text, label);
        text.append(one).plain("\n");
    }
    rest(text, names.len());
}

fn rest(text: &mut Text, count: usize) {
    let left = count.saturating_sub(MAX_NAMES);
    if left > 0 {
        row(text, "", Tone::Dim, &format!("and {left} more"));
    }
}

fn used(spent: &Spent) -> String {
    let tokens = &spent.tokens;
    let cost = spent
        .cost_micros
        .map_or_else(|| "price not known".to_owned(), money);
    format!(
        "{} tokens in ({} cached), {} out, {cost}",
        number(tokens.input_tokens),
        number(tokens.cached_tokens),
        number(tokens.output_tokens),
    )
}

fn row(text: &mut Text, label: &str, tone: Tone, value: &str) {
    start(text, label);
    // One line each, whatever a name holds.
    let value = fluffy_report::sanitize_line(value);
    text.add(tone, &value).plain("\n");
}

fn start(text: &mut Text, label: &str) {
    text.add(Tone::Dim, &format!("  {label:<LABEL$} "));
}
