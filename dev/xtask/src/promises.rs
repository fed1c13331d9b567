//! SPECIFICATION.md is true: every test that it names is there.
//!
//! A promise links to its test as [`name`](file); the file must hold a
//! function of that name, and every promise must have a link.

use anyhow::{Context, Result};

use crate::step::Outcome;
use crate::workspace::Workspace;

const DOCUMENT: &str = "SPECIFICATION.md";

/// Checks every promise.
pub(crate) fn check(workspace: &Workspace) -> Result<Outcome> {
    let text = std::fs::read_to_string(workspace.root.join(DOCUMENT))
        .with_context(|| format!("cannot read {DOCUMENT}"))?;
    let read = |file: &str| std::fs::read_to_string(workspace.root.join(file)).ok();
    let (promises, problems) = look(&text, read);
    Ok(Outcome::from_problems(
        &problems,
        format!("{promises} promises have their tests"),
    ))
}

fn look(text: &str, read: impl Fn(&str) -> Option<String>) -> (usize, Vec<String>) {
    let mut problems = Vec::new();
    let promises = text
        .lines()
        .enumerate()
        .filter(|(_, line)| is_promise(line));
    let mut count = 0;
    for (index, line) in promises {
        count += 1;
        let place = format!("{DOCUMENT}:{}", index + 1);
        if !line.contains("](") {
            problems.push(format!("{place}: the promise links to no test"));
        }
        for (name, file) in links(line) {
            let found = read(file).is_some_and(|source| source.contains(&format!("fn {name}(")));
            if !found {
                problems.push(format!("{place}: there is no test `{name}` in {file}"));
            }
        }
    }
    (count, problems)
}

/// Whether the line is an item of a numbered list.
fn is_promise(line: &str) -> bool {
    line.split_once(". ").is_some_and(|(number, _)| {
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}

/// The links whose text is code: the name and the file.
fn links(line: &str) -> impl Iterator<Item = (&str, &str)> {
    line.split("[`").skip(1).filter_map(|rest| {
        let (name, rest) = rest.split_once("`](")?;
        Some((name, rest.split_once(')')?.0))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        let read = |file: &str| (file == "a.rs").then(|| "fn holds() {}".to_owned());
        look(text, read).1
    }

    #[test]
    fn a_promise_with_its_test_passes() {
        assert_eq!(
            problems("1. It works. — [`holds`](a.rs)\n"),
            Vec::<String>::new()
        );
    }

    #[test]
    fn a_promise_without_a_test_fails() {
        assert!(problems("1. It works.\n")[0].contains("links to no test"));
        assert!(problems("2. It works. — [`gone`](a.rs)\n")[0].contains("no test `gone`"));
        assert!(problems("3. It works. — [`holds`](b.rs)\n")[0].contains("b.rs"));
    }
}
