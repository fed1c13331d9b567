//! Which actions an extension guards, as it declares them.
//!
//! A name that no action has would leave its author believing in a guard that
//! is never asked, so such a declaration is refused. Next: `host`.

use fluffy_policy::action::{ACTIONS, find};

use crate::problem::Problem;

/// The actions that an extension is asked about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GuardedActions {
    /// `None` means all; a name that ends in `.*` means all below it.
    declared: Option<Vec<String>>,
}

impl GuardedActions {
    /// Checks what an extension declares; `None` means all actions.
    pub(crate) fn declared(declared: Option<Vec<String>>) -> Result<Self, Problem> {
        match declared.iter().flatten().find(|word| !names_action(word)) {
            Some(unknown) => Err(Problem {
                at: None,
                what: format!("`actions` names `{unknown}`, which is no known action"),
                why: "the extension would never be asked about it".to_owned(),
                fix: "use an action such as `fs.write`, a group such as `fs.*`, or one of a plugin"
                    .to_owned(),
            }
            .tamed()),
            None => Ok(Self { declared }),
        }
    }

    /// Whether the extension is to be asked about this action.
    pub(crate) fn contain(&self, action: &str) -> bool {
        let Some(declared) = &self.declared else {
            return true;
        };
        declared.iter().any(|word| match word.strip_suffix('*') {
            Some(group) => action.starts_with(group),
            None => action == word,
        })
    }

    /// The words as declared; `None` means all.
    pub(crate) fn words(&self) -> Option<&[String]> {
        self.declared.as_deref()
    }
}

/// Plugins bring actions of their own, which may be named before they exist.
fn names_action(word: &str) -> bool {
    if word.starts_with("plugin.") {
        return true;
    }
    match word.strip_suffix('*') {
        Some(group) => ACTIONS.iter().any(|action| action.name.starts_with(group)),
        None => find(word).is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guarded(words: &[&str]) -> Result<GuardedActions, Problem> {
        GuardedActions::declared(Some(words.iter().map(|word| (*word).to_owned()).collect()))
    }

    #[test]
    fn a_group_holds_what_is_below_it_and_no_more() {
        let actions = guarded(&["fs.write", "net.*", "plugin.jira.*"]).unwrap();
        for inside in ["fs.write", "net.connect", "plugin.jira.create"] {
            assert!(actions.contain(inside), "{inside}");
        }
        for outside in [
            "fs.writer",
            "fs.read",
            "net",
            "network.x",
            "plugin.jiraffe.x",
        ] {
            assert!(!actions.contain(outside), "{outside}");
        }
        assert!(GuardedActions::declared(None).unwrap().contain("fs.read"));
    }

    #[test]
    fn a_name_that_no_action_has_is_refused() {
        for word in ["fs.wirte", "fss.*", "fs", "plugins.x"] {
            let problem = guarded(&["fs.write", word]).unwrap_err();
            assert!(problem.what.contains(word), "{problem}");
        }
    }
}
