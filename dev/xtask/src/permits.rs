//! Every public function of an effect crate takes a `Permit`, or says why not.
//!
//! `dev/effects.toml` lists the crates and the exceptions. A function that is
//! not listed fails the check, and so does an entry without its function.
//! Reads source text only: it is a guard against forgetting, while the
//! compiler keeps a `Permit` from being forged.

mod scan;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::step::Outcome;
use crate::workspace::Workspace;

use scan::{Function, scan_crate};

/// The file with the list, from the workspace's folder.
const LIST: &str = "dev/effects.toml";

/// The list of effect crates and of what needs no permit in them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Effects {
    /// By folder: the exceptions with their reasons, by function.
    #[serde(rename = "crate")]
    crates: BTreeMap<String, BTreeMap<String, String>>,
}

/// Checks the effect crates of the workspace.
pub(crate) fn check(workspace: &Workspace) -> Result<Outcome> {
    let text = std::fs::read_to_string(workspace.root.join(LIST))
        .with_context(|| format!("cannot read {LIST}"))?;
    let effects: Effects = toml::from_str(&text).with_context(|| format!("{LIST} is wrong"))?;
    let (mut problems, mut with, mut without) = (Vec::new(), 0, 0);
    for (folder, exempt) in &effects.crates {
        let entry = workspace.root.join(folder).join("src/lib.rs");
        let functions = scan_crate(&entry, &|path: &Path| std::fs::read_to_string(path).ok())?;
        with += functions.iter().filter(|f| f.takes_permit).count();
        without += exempt.len();
        problems.extend(compare(folder, &functions, exempt));
    }
    let note = format!("{with} functions take a permit, {without} say why not");
    Ok(Outcome::from_problems(&problems, note))
}

fn compare(folder: &str, functions: &[Function], exempt: &BTreeMap<String, String>) -> Vec<String> {
    let mut problems = Vec::new();
    for function in functions {
        let name = &function.name;
        match (function.takes_permit, exempt.contains_key(name)) {
            (false, false) => problems.push(format!(
                "{folder}: `{name}` takes no Permit; let it take one by value, or list it with \
                 its reason in {LIST}"
            )),
            (true, true) => problems.push(format!(
                "{folder}: `{name}` takes a Permit; remove it from {LIST}"
            )),
            _ => {}
        }
    }
    for (name, reason) in exempt {
        if !functions.iter().any(|function| function.name == *name) {
            problems.push(format!(
                "{folder}: there is no `{name}` any more; remove it from {LIST}"
            ));
        }
        if reason.split_whitespace().count() < 2 {
            problems.push(format!("{folder}: `{name}` needs a reason in {LIST}"));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &str, takes_permit: bool) -> Function {
        Function {
            name: name.to_owned(),
            takes_permit,
        }
    }

    fn exempt(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
        let owned = |(name, reason): &(&str, &str)| ((*name).to_owned(), (*reason).to_owned());
        entries.iter().map(owned).collect()
    }

    #[test]
    fn unknown_stale_needless_and_unreasoned_entries_fail() {
        let functions = [function("write", true), function("read", false)];
        let fine = exempt(&[("read", "only returns a number")]);
        assert!(compare("c", &functions, &fine).is_empty());
        for (listed, wanted) in [
            (exempt(&[]), "takes no Permit"),
            (
                exempt(&[("read", "only reads"), ("gone", "was here once")]),
                "any more",
            ),
            (
                exempt(&[("read", "only reads"), ("write", "not needed")]),
                "takes a Permit",
            ),
            (exempt(&[("read", "  ")]), "needs a reason"),
        ] {
            let problems = compare("c", &functions, &listed);
            assert_eq!(problems.len(), 1, "{problems:?}");
            assert!(problems[0].contains(wanted), "{problems:?}");
        }
    }
}
