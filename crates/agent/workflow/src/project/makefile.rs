//! The targets of a Makefile that run tests.
//!
//! Variables and includes reach into every recipe, so they count as
//! configuration too; only rules of other targets are source.

/// Rules that run tests and everything they can depend on, and other rules.
pub(super) fn split(text: &str) -> (String, String) {
    let (mut configuration, mut source) = (String::new(), String::new());
    let mut in_source_rule = false;
    for line in text
        .lines()
        .map(str::trim_end)
        .filter(|line| !line.is_empty())
    {
        let is_recipe = line.starts_with('\t');
        if !is_recipe {
            in_source_rule = targets(line).is_some_and(|mut names| !names.any(runs_tests));
        }
        let part = match in_source_rule {
            true => &mut source,
            false => &mut configuration,
        };
        part.push_str(line);
        part.push('\n');
    }
    (configuration, source)
}

/// The first target that runs tests, `test` before `check`.
pub(super) fn test_target(text: &str) -> Option<&str> {
    let declared = |wanted: &str| {
        let mut rules = text.lines().filter(|line| !line.starts_with('\t'));
        rules.any(|line| targets(line).is_some_and(|mut names| names.any(|name| name == wanted)))
    };
    ["test", "tests", "check"]
        .into_iter()
        .find(|wanted| declared(wanted))
}

/// The targets of a rule's first line; `None` for variables and directives.
fn targets(line: &str) -> Option<impl Iterator<Item = &str>> {
    let (names, rest) = line.split_once(':')?;
    let is_variable = rest.starts_with('=') || rest.starts_with(":=") || names.contains('=');
    (!is_variable && !names.starts_with(['#', '.', ' '])).then(|| names.split_whitespace())
}

fn runs_tests(target: &str) -> bool {
    target.split(['-', '_', '/', '.']).any(|word| {
        matches!(
            word,
            "test" | "tests" | "check" | "spec" | "coverage" | "ci" | "unittest"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "CC := gcc\n\nall: main.c\n\t$(CC) main.c\n\n.PHONY: test\n\
                        test-unit test: all\n\t./run.sh\n";

    #[test]
    fn rules_of_other_targets_are_source() {
        let (configuration, source) = split(FILE);
        assert_eq!(source, "all: main.c\n\t$(CC) main.c\n");
        assert!(configuration.contains("./run.sh") && configuration.contains("CC := gcc"));
    }

    #[test]
    fn the_test_target_is_found() {
        assert_eq!(test_target(FILE), Some("test"));
        assert_eq!(test_target("check:\n\ttrue\n"), Some("check"));
        assert_eq!(test_target("test = 1\nall:\n\tmake test:\n"), None);
    }
}
