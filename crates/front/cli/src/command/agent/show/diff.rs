//! A unified diff in colours: what goes, what comes, and where.
//!
//! Only lines are coloured. Colours of the languages' syntax would take a crate
//! of megabytes of grammars for text that is read once. Pure.

use fluffy_report::{Text, Tone};

/// More lines than anybody reads in one go.
pub(crate) const MAX_LINES: usize = 2_000;

/// The diff in tones, each line as it is.
pub(crate) fn diff(unified: &str) -> Text {
    let mut text = Text::new();
    let mut place = Place::Head;
    for line in unified.lines().take(MAX_LINES) {
        place = place.after(line);
        text.add(tone(place, line), line).plain("\n");
    }
    let left = unified.lines().count().saturating_sub(MAX_LINES);
    if left > 0 {
        let rest = format!("… and {left} more lines; `fluffy session diff ID` prints them all\n");
        text.add(Tone::Caution, &rest);
    }
    text
}

/// Where a line of a diff stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Before the first hunk of a file: `---` and `+++` are names here.
    Head,
    /// In a hunk with this many old and new lines to come.
    Hunk(u64, u64),
}

impl Place {
    /// Counting is the only way to tell a removed `-- x` from a file's name.
    fn after(self, line: &str) -> Self {
        if let Self::Hunk(old, new) = self
            && (old > 0 || new > 0)
        {
            return match line.as_bytes().first() {
                Some(b'-') => Self::Hunk(old.saturating_sub(1), new),
                Some(b'+') => Self::Hunk(old, new.saturating_sub(1)),
                Some(b'\\') => self,
                Some(_) | None => Self::Hunk(old.saturating_sub(1), new.saturating_sub(1)),
            };
        }
        match (hunk(line), self) {
            (Some((old, new)), _) => Self::Hunk(old, new),
            (None, Self::Hunk(..)) if line.starts_with('\\') => self,
            (None, _) => Self::Head,
        }
    }
}

fn tone(place: Place, line: &str) -> Tone {
    match (place, line.as_bytes().first()) {
        (Place::Head, _) => Tone::Strong,
        (Place::Hunk(..), Some(b'@')) => Tone::Dim,
        (Place::Hunk(..), Some(b'+')) => Tone::Good,
        (Place::Hunk(..), Some(b'-')) => Tone::Bad,
        (Place::Hunk(..), _) => Tone::Plain,
    }
}

/// The line counts of `@@ -1,2 +3,4 @@`.
fn hunk(line: &str) -> Option<(u64, u64)> {
    let ranges = line.strip_prefix("@@ -")?.split_once(" @@")?.0;
    let (old, new) = ranges.split_once(" +")?;
    Some((length(old)?, length(new)?))
}

fn length(range: &str) -> Option<u64> {
    match range.split_once(',') {
        Some((_, length)) => length.parse().ok(),
        None => Some(1),
    }
}

#[cfg(test)]
mod tests {
    use fluffy_report::Styling;

    use super::*;

    const SAMPLE: &str = "\
diff --git a/query.sql b/query.sql
--- a/query.sql
+++ b/query.sql
@@ -1,3 +1,3 @@ start
 select 1;
--- an old comment
+++ not a name
 select 2;
\\ No newline at end of file
--- a/other
+++ b/other
@@ -0,0 +1 @@
+\u{1b}[2Jnew
";

    #[test]
    fn lines_have_the_tone_of_what_they_do() {
        insta::assert_snapshot!(diff(SAMPLE).render(Styling::Ansi).replace('\x1b', "^"), @r"
        ^[1mdiff --git a/query.sql b/query.sql^[0m
        ^[1m--- a/query.sql^[0m
        ^[1m+++ b/query.sql^[0m
        ^[2m@@ -1,3 +1,3 @@ start^[0m
         select 1;
        ^[1;31m--- an old comment^[0m
        ^[32m+++ not a name^[0m
         select 2;
        \ No newline at end of file
        ^[1m--- a/other^[0m
        ^[1m+++ b/other^[0m
        ^[2m@@ -0,0 +1 @@^[0m
        ^[32m+\x1b[2Jnew^[0m
        ");
    }

    #[test]
    fn a_huge_diff_says_that_it_is_cut() {
        let huge = "+x\n".repeat(MAX_LINES + 7);
        let shown = diff(&huge).render(Styling::Plain);
        assert!(shown.contains("… and 7 more lines"), "{}", shown.len());
        assert_eq!(diff("").render(Styling::Plain), "");
    }
}
