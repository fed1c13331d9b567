//! Warnings about rules that are legal but can never make a difference.
//!
//! Only what is certain is reported: a warning that is wrong teaches people to
//! ignore the next one. Nothing here changes how a rule is judged.

use std::collections::HashMap;

use crate::diagnostic::{Findings, Place};
use crate::glob::Glob;
use crate::rule::{Condition, Effect, Rule};

/// How many denies are compared with one rule; keeps loading linear.
const MAX_COMPARED: usize = 64;

/// Warns about pointless rules; `places` are those of the rules' names.
pub(crate) fn check(rules: &[Rule], places: &[Place], findings: &mut Findings) {
    let denies = Denies::of(rules);
    for (rule, place) in rules.iter().zip(places) {
        if rule.effect.is_none() {
            findings.warn(
                *place,
                format!("`{}` passes, which has no effect", rule.label.name),
                "a rule that passes says nothing",
                "remove it, or give it an effect",
            );
        }
        if rule.except.contains(&rule.when) {
            findings.warn(
                *place,
                format!(
                    "`{}` never fires: an `except` equals its `match`",
                    rule.label.name
                ),
                "an exception that always holds turns the rule into a pass",
                "narrow the `except`, or remove the rule",
            );
        }
        if let Some(deny) = denies.shadowing(rule) {
            findings.warn(
                *place,
                format!(
                    "`{}` is shadowed by the deny `{}`",
                    rule.label.name, deny.label.name
                ),
                "any deny is final, so this rule can never make a difference",
                "narrow the deny with an `except`, or remove this rule",
            );
        }
    }
}

/// The denies without exceptions, found by what they name.
struct Denies<'r> {
    by_glob: HashMap<&'r str, Vec<&'r Rule>>,
    by_host: HashMap<&'r str, Vec<&'r Rule>>,
    by_caller: HashMap<&'r str, Vec<&'r Rule>>,
    others: Vec<&'r Rule>,
}

impl<'r> Denies<'r> {
    fn of(rules: &'r [Rule]) -> Self {
        let mut denies = Self {
            by_glob: HashMap::new(),
            by_host: HashMap::new(),
            by_caller: HashMap::new(),
            others: Vec::new(),
        };
        let terminal = |rule: &&Rule| rule.effect == Some(Effect::Deny) && rule.except.is_empty();
        for rule in rules.iter().filter(terminal) {
            if let Some(path) = &rule.when.path {
                for glob in path.include() {
                    denies.by_glob.entry(glob.text()).or_default().push(rule);
                }
            } else if let Some(hosts) = &rule.when.host {
                for host in hosts {
                    denies.by_host.entry(host.name()).or_default().push(rule);
                }
            } else if let Some(callers) = &rule.when.caller {
                for caller in callers {
                    denies.by_caller.entry(caller).or_default().push(rule);
                }
            } else {
                denies.others.push(rule);
            }
        }
        denies
    }

    fn shadowing(&self, rule: &Rule) -> Option<&'r Rule> {
        let matches_something = rule.when.path.as_ref().is_none_or(|path| !path.is_empty());
        if rule.effect.is_none() || rule.effect == Some(Effect::Deny) || !matches_something {
            return None;
        }
        let mut candidates: Vec<&'r Rule> = Vec::new();
        let mut add = |found: Option<&Vec<&'r Rule>>| {
            candidates.extend(found.into_iter().flatten().take(MAX_COMPARED));
        };
        if let Some(first) = rule
            .when
            .path
            .as_ref()
            .and_then(|path| path.include().first())
        {
            for text in wider_texts(first) {
                add(self.by_glob.get(text.as_str()));
            }
        }
        for host in rule.when.host.iter().flatten().take(1) {
            let labels = host.name().match_indices('.').map(|(at, _)| at + 1);
            for at in std::iter::once(0).chain(labels) {
                add(self.by_host.get(host.name().get(at..).unwrap_or_default()));
            }
        }
        for caller in rule.when.caller.iter().flatten().take(1) {
            add(self.by_caller.get(caller.as_str()));
        }
        add(Some(&self.others));
        let mut found = candidates.into_iter().take(MAX_COMPARED * 4);
        found.find(|deny| covers(&deny.when, &rule.when))
    }
}

/// The spellings of globs that could cover this one.
fn wider_texts(glob: &Glob) -> Vec<String> {
    let mut texts = vec![glob.text().to_owned(), "**".to_owned()];
    let root = match glob.root() {
        "" => String::new(),
        root => format!("{root}/"),
    };
    let mut path = root.clone();
    texts.push(format!("{root}**"));
    for name in glob.literal_prefix() {
        path.push_str(name);
        for text in [
            path.clone(),
            format!("{path}/**"),
            format!("/{path}"),
            format!("/{path}/**"),
        ] {
            texts.push(text);
        }
        path.push('/');
    }
    texts
}

/// Whether `wide` certainly holds whenever `narrow` does.
fn covers(wide: &Condition, narrow: &Condition) -> bool {
    fn subset<T: PartialEq>(wide: Option<&Vec<T>>, narrow: Option<&Vec<T>>) -> bool {
        match (wide, narrow) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(wide), Some(narrow)) => {
                !narrow.is_empty() && narrow.iter().all(|each| wide.contains(each))
            }
        }
    }
    let actions = match (&wide.actions, &narrow.actions) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(wide), Some(narrow)) => wide.covers(narrow),
    };
    let path = match (&wide.path, &narrow.path) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(wide), Some(narrow)) => {
            let within = |glob: &Glob| wide.include().iter().any(|each| each.covers(glob));
            wide.exclude().is_empty() && !narrow.is_empty() && narrow.include().iter().all(within)
        }
    };
    let host = match (&wide.host, &narrow.host) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(wide), Some(narrow)) => {
            !narrow.is_empty()
                && narrow
                    .iter()
                    .all(|each| wide.iter().any(|wide| wide.covers(each)))
        }
    };
    actions
        && path
        && host
        && subset(wide.caller.as_ref(), narrow.caller.as_ref())
        && subset(wide.caller_tag.as_ref(), narrow.caller_tag.as_ref())
        && subset(wide.mode.as_ref(), narrow.mode.as_ref())
        && subset(wide.state.as_ref(), narrow.state.as_ref())
        && subset(wide.template.as_ref(), narrow.template.as_ref())
        && subset(wide.tier.as_ref(), narrow.tier.as_ref())
        && subset(wide.tenant.as_ref(), narrow.tenant.as_ref())
        && subset(wide.size.as_ref(), narrow.size.as_ref())
        && subset(wide.lines.as_ref(), narrow.lines.as_ref())
}
