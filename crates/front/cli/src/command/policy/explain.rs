//! `fluffy policy explain`: the decision and every rule that spoke.

use fluffy_gate::{Bundle, LoadedPolicy};
use fluffy_policy::decision::{Layer, Verdict};
use fluffy_policy::explain::{Consideration, Considered, Explanation};
use fluffy_policy::record::SpokeRecord;
use fluffy_policy::rule::Effect;
use fluffy_report::{ExitCode, Tone, Tree};
use serde_json::json;

use super::{clock, places, read, request, warn_if_pending};
use crate::args::RequestArgs;
use crate::command::Outcome;
use crate::failure;
use crate::session::Session;

/// Explains what would be decided; records nothing.
pub(crate) fn run(session: &Session, args: &RequestArgs, assume: Assume) -> Outcome {
    let here = session.here()?;
    let mut request = request::build(args)?;
    let assumed = match assume {
        Assume::Ordinary => request::assume(&mut request),
        Assume::Nothing => Vec::new(),
    };
    let (places, clock) = (places(here)?, clock());
    let policy = match &args.policy {
        Some(file) => {
            let bundle = Bundle::of_rules(read(file)?);
            LoadedPolicy::with_project(&places, bundle, &clock)
                .map_err(|error| failure::load_policy(&error, Some(file)))?
        }
        None => LoadedPolicy::load(&places, 0, &clock)
            .map_err(|error| failure::load_policy(&error, None))?,
    };
    if args.policy.is_none() {
        warn_if_pending(session, here, policy.pinned);
    }
    let explanation = policy.engine.explain(&request, clock.now(), &policy);
    if session.json() {
        let mut value = json!(explanation);
        if let Some(fields) = value.as_object_mut() {
            fields.insert("assumed".to_owned(), json!(assumed));
        }
        session.printer.json(&value)?;
        return Ok(ExitCode::Success);
    }
    let mut tree = draw(&explanation, session.verbose());
    if !assumed.is_empty() {
        tree.push(Tree::new(format!("assumed: {}", assumed.join(", "))).tone(Tone::Dim));
    }
    session.printer.tree(&tree)?;
    Ok(ExitCode::Success)
}

/// What to do about the parts of a request that were not given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Assume {
    /// Take what an agent's call ordinarily has.
    Ordinary,
    /// Take nothing.
    Nothing,
}

/// The explanation as a tree: the answer, then layer by layer who said what.
pub(crate) fn draw(explanation: &Explanation, verbose: bool) -> Tree {
    let decision = &explanation.decision;
    let request = &decision.request;
    let resource = request
        .resource
        .as_deref()
        .unwrap_or("nothing in particular");
    let head = format!(
        "{}: {} on {} by {}",
        verdict_words(decision.verdict),
        request.action,
        resource,
        request.principal.name
    );
    let mut tree = Tree::new(head).tone(tone(decision.verdict));
    for (layer, title) in [
        (Layer::Request, "the request itself"),
        (Layer::Grants, "grants: the ceiling"),
        (Layer::Builtin, "built-in rules"),
        (Layer::Token, "token"),
        (Layer::Rules, "rules"),
        (Layer::Extensions, "extensions"),
    ] {
        let spoke = decision
            .spoke
            .iter()
            .filter(|voice| voice.layer == layer)
            .map(voice);
        let silent = explanation.rules.iter().filter(|rule| rule.layer == layer);
        let silent = silent.filter(|rule| is_shown(rule, verbose)).map(bystander);
        let mut branch = Tree::new(title);
        let children: Vec<Tree> = spoke.chain(silent).collect();
        if children.is_empty() {
            continue;
        }
        for child in children {
            branch.push(child);
        }
        tree.push(branch);
    }
    if decision.spoke.is_empty() {
        tree.push(Tree::new(
            "no rule allows it, and what is not allowed is denied",
        ));
    }
    tree
}

fn voice(spoke: &SpokeRecord) -> Tree {
    let (word, tone) = match spoke.effect {
        Effect::Allow => ("allow", Tone::Good),
        Effect::Deny => ("deny", Tone::Bad),
        Effect::RequireReview => ("review", Tone::Caution),
    };
    let reason = if spoke.reason.is_empty() {
        String::new()
    } else {
        format!(": {}", spoke.reason)
    };
    Tree::new(format!(
        "{word}  {}:{}{reason}",
        origin_word(spoke.origin),
        spoke.rule
    ))
    .tone(tone)
}

fn bystander(rule: &Considered) -> Tree {
    let text = format!(
        "–  {}:{}: {}",
        origin_word(rule.origin),
        rule.rule,
        rule.because
    );
    Tree::new(text).tone(Tone::Dim)
}

/// Whether a rule that did not speak is worth a line: one that came close
/// always is, one about something else only for the curious.
fn is_shown(rule: &Considered, verbose: bool) -> bool {
    match rule.outcome {
        Consideration::Allowed | Consideration::Denied | Consideration::Reviewed => false,
        Consideration::Excepted | Consideration::Unmet | Consideration::Passed => true,
        Consideration::NotMatched => verbose,
    }
}

fn origin_word(origin: fluffy_policy::rule::Origin) -> &'static str {
    origin.as_str()
}

/// A verdict as people read it.
pub(crate) fn verdict_words(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Allow => "allowed",
        Verdict::Deny => "denied",
        Verdict::RequireReview => "needs review",
    }
}

/// A verdict's tone.
pub(crate) fn tone(verdict: Verdict) -> Tone {
    match verdict {
        Verdict::Allow => Tone::Good,
        Verdict::Deny => Tone::Bad,
        Verdict::RequireReview => Tone::Caution,
    }
}
