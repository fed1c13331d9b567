//! Properties that hold for every policy, found by trying many.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

#[path = "support/model.rs"]
mod model;
mod support;

use std::collections::BTreeSet;

use fluffy_policy::capability::{self, Capability};
use fluffy_policy::extension::{NoExtensions, Opinion};
use fluffy_policy::grant::{Grant, GrantLists};
use fluffy_policy::rule::Effect;
use fluffy_policy::{Decision, Engine, Request, Verdict};
use model::{Do, RuleModel, When, extra, policy, reference, requests, yaml};
use proptest::prelude::*;
use support::*;

fn request(action: &str, resource: Option<&str>) -> Request {
    support::request(action, resource)
}

fn build(rules: &[RuleModel]) -> Engine {
    engine_with_builtins("  []\n", &yaml(rules))
}

fn names(decision: &Decision) -> BTreeSet<String> {
    decision
        .spoke()
        .iter()
        .map(|voice| voice.label.name.clone())
        .collect()
}

fn rank(verdict: Verdict) -> u8 {
    match verdict {
        Verdict::Deny => 0,
        Verdict::RequireReview => 1,
        Verdict::Allow => 2,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn the_engine_agrees_with_the_page(rules in policy(), asked in prop::collection::vec(requests(), 1..12)) {
        let engine = build(&rules);
        for request in asked {
            let decision = decide(&engine, &request);
            let (verdict, spoke) = reference(&rules, &request);
            prop_assert_eq!(decision.verdict(), verdict, "{:?}\n{}", request, yaml(&rules));
            prop_assert_eq!(names(&decision), spoke, "{:?}\n{}", request, yaml(&rules));
        }
    }

    #[test]
    fn order_and_duplicates_never_change_the_result(
        (rules, shuffled) in policy().prop_flat_map(|rules| (Just(rules.clone()), Just(rules).prop_shuffle())),
        request in requests(),
    ) {
        let straight = decide(&build(&rules), &request);
        let mixed = decide(&build(&shuffled), &request);
        prop_assert_eq!(straight.verdict(), mixed.verdict());
        prop_assert_eq!(spoke(&straight), spoke(&mixed));
        let again = rules.iter().map(|rule| RuleModel { name: format!("{}b", rule.name), ..rule.clone() });
        let doubled: Vec<RuleModel> = rules.iter().cloned().chain(again).collect();
        prop_assert_eq!(decide(&build(&doubled), &request).verdict(), straight.verdict());
    }

    /// Cedar's theorems, in our words: a deny wins; allowed means explicitly
    /// permitted; nothing said means denied.
    #[test]
    fn a_deny_wins_and_only_an_allow_allows(rules in policy(), request in requests()) {
        let decision = decide(&build(&rules), &request);
        let said = |effect| decision.spoke().iter().any(|voice| voice.effect == effect);
        if said(Effect::Deny) {
            prop_assert_eq!(decision.verdict(), Verdict::Deny);
        }
        if decision.verdict() == Verdict::Allow {
            prop_assert!(said(Effect::Allow) && !said(Effect::RequireReview));
        }
        if decision.spoke().is_empty() {
            prop_assert_eq!(decision.verdict(), Verdict::Deny);
        }
        let without: Vec<RuleModel> = rules.into_iter().filter(|rule| rule.effect != Do::Allow).collect();
        prop_assert_ne!(decide(&build(&without), &request).verdict(), Verdict::Allow);
    }

    #[test]
    fn an_except_never_grants(rules in policy(), except in extra(), request in requests()) {
        let before = decide(&build(&rules), &request).verdict();
        let mut narrowed = rules.clone();
        for rule in narrowed.iter_mut().filter(|rule| rule.effect == Do::Allow) {
            rule.except.push(except.clone());
        }
        prop_assert!(rank(decide(&build(&narrowed), &request).verdict()) <= rank(before));
        // And without any allow, no exception opens anything.
        let mut only: Vec<RuleModel> = rules.into_iter().filter(|rule| rule.effect != Do::Allow).collect();
        for rule in &mut only {
            rule.except.push(except.clone());
        }
        prop_assert_ne!(decide(&build(&only), &request).verdict(), Verdict::Allow);
    }

    #[test]
    fn widening_a_deny_never_allows(rules in policy(), request in requests(), field in 0usize..6) {
        let before = decide(&build(&rules), &request).verdict();
        let mut wider = rules;
        for rule in wider.iter_mut().filter(|rule| rule.effect == Do::Deny) {
            let When { action, path, host, caller, tag, mode, .. } = &mut rule.when;
            match field {
                0 => *action = None,
                1 => *path = None,
                2 => *host = None,
                3 => *caller = None,
                4 => *tag = None,
                _ => *mode = None,
            }
        }
        prop_assert!(rank(decide(&build(&wider), &request).verdict()) <= rank(before));
    }

    #[test]
    fn an_extension_can_only_narrow_a_deny_and_never_widens(rules in policy(), request in requests()) {
        let engine = build(&rules);
        let plain = decide(&engine, &request).verdict();
        let with = |opinion: Opinion| engine.evaluate(&request, now(), &Scripted::new(&[("x", opinion)])).verdict();
        prop_assert_eq!(with(Opinion::Deny), Verdict::Deny);
        prop_assert_eq!(with(Opinion::Failed), Verdict::Deny);
        prop_assert_eq!(with(Opinion::Pass), plain);
        prop_assert_ne!(with(Opinion::RequireReview), Verdict::Allow);
    }

    #[test]
    fn a_recorded_request_is_decided_alike(rules in policy(), request in requests()) {
        let engine = build(&rules);
        let text = request.canonical().unwrap();
        let back: Request = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(decide(&engine, &back).verdict(), decide(&engine, &request).verdict());
    }

    #[test]
    fn no_request_panics(action in ".{0,20}|fs\\.write|net\\.connect", resource in prop::option::of(".{0,30}|/.{0,20}"), host in prop::option::of(".{0,10}")) {
        let mut asked = request(&action, resource.as_deref());
        asked.context.host = host;
        let engine = Engine::load(&fluffy_policy::Sources::default(), 1).unwrap();
        let _ = engine.evaluate(&asked, now(), &NoExtensions).into_permit();
    }

    #[test]
    fn the_matcher_agrees_with_a_naive_one(pattern in pattern_text(), text in capability_text()) {
        prop_assert_eq!(capability::matches(&pattern, &text), naive(&pattern, &text), "{} {}", pattern, text);
    }
}

fn pattern_text() -> impl Strategy<Value = String> {
    let segment = prop::sample::select(vec!["a", "b", "*", "a*", "*b", "ab", ""]);
    let path = prop::sample::select(vec![
        "", "", "", "./a/*", "./a*", "./*/b", ".@data/*", ".a/b", ".a/*", "./", "./*", "./a/*/b*",
        "./a.b/c",
    ]);
    (prop::collection::vec(segment, 1..5), path)
        .prop_map(|(segments, path)| segments.join(".") + path)
}

fn capability_text() -> impl Strategy<Value = String> {
    let segment = prop::sample::select(vec!["a", "b", "ab", "aab", "abb", ""]);
    let path = prop::sample::select(vec![
        "", "", "", "./a/b", "./a", "./ab/b", ".@data/x", ".a/b", ".a/b/c", "./", "./a/x/by",
        "./a.b/c", "./a//b",
    ]);
    (prop::collection::vec(segment, 1..5), path)
        .prop_map(|(segments, path)| segments.join(".") + path)
}

/// Splits and tries everything.
fn naive(pattern: &str, capability: &str) -> bool {
    match (split(pattern), split(capability)) {
        (Some(pattern), Some(capability)) => pieces(&pattern, &capability),
        _ => false,
    }
}

fn split(text: &str) -> Option<Vec<String>> {
    let mut pieces = Vec::new();
    let mut rest = text;
    loop {
        let end = rest.find('.').unwrap_or(rest.len());
        let segment = &rest[..end];
        if segment.starts_with('@') || segment.contains('/') {
            let inner = rest.strip_prefix('/').unwrap_or(rest);
            if !inner.is_empty() && inner.split('/').any(str::is_empty) {
                return None;
            }
            pieces.push(rest.to_owned());
            return Some(pieces);
        }
        if segment.is_empty() {
            return None;
        }
        pieces.push(segment.to_owned());
        if end == rest.len() {
            return Some(pieces);
        }
        rest = &rest[end + 1..];
    }
}

fn is_path(piece: &str) -> bool {
    piece.starts_with('@') || piece.contains('/')
}

fn pieces(pattern: &[String], capability: &[String]) -> bool {
    match (pattern, capability) {
        ([], []) => true,
        ([], _) | (_, []) => false,
        ([star, rest @ ..], _) if star == "*" => {
            (1..=capability.len()).any(|taken| pieces(rest, &capability[taken..]))
        }
        ([first, pattern @ ..], [piece, capability @ ..]) => {
            is_path(first) == is_path(piece)
                && (if is_path(first) {
                    path(first, piece)
                } else {
                    text(first, piece)
                })
                && pieces(pattern, capability)
        }
    }
}

fn path(pattern: &str, path: &str) -> bool {
    let pattern: Vec<&str> = pattern.split('/').collect();
    let names: Vec<&str> = path.split('/').collect();
    let open = pattern.last().is_some_and(|last| last.ends_with('*'));
    let counts = match open {
        true => names.len() >= pattern.len() && names.last().is_some_and(|last| !last.is_empty()),
        false => names.len() == pattern.len(),
    };
    counts
        && pattern
            .iter()
            .zip(&names)
            .all(|(part, name)| text(part, name))
}

fn text(pattern: &str, name: &str) -> bool {
    match pattern.chars().next() {
        None => name.is_empty(),
        Some('*') => (0..=name.len()).any(|skip| text(&pattern[1..], &name[skip..])),
        Some(letter) => name
            .strip_prefix(letter)
            .is_some_and(|name| text(&pattern[1..], name)),
    }
}

/// Every capability of three segments against every four small sets.
#[test]
fn the_enforcer_agrees_with_its_definition() {
    let words = ["a", "b"];
    let mut capabilities = Vec::new();
    for first in words {
        capabilities.push(first.to_owned());
        for second in words {
            capabilities.push(format!("{first}.{second}"));
            capabilities.extend(
                words
                    .iter()
                    .map(|third| format!("{first}.{second}.{third}")),
            );
        }
    }
    let sets: [&[&str]; 6] = [&[], &["*"], &["a.*"], &["*.b"], &["a", "b.a.*"], &["a.b.a"]];
    let owned = |set: &[&str]| {
        set.iter()
            .map(|text| (*text).to_owned())
            .collect::<Vec<String>>()
    };
    for number in 0..sets.len().pow(4) {
        let pick = |place: u32| sets[number / sets.len().pow(place) % sets.len()];
        let (declared, denied, workspace, user) = (pick(0), pick(1), pick(2), pick(3));
        let grant = Grant::build(&GrantLists {
            capabilities: owned(declared),
            deny_capabilities: owned(denied),
            workspace: owned(workspace),
            user: owned(user),
        })
        .unwrap();
        for text in &capabilities {
            let has = |set: &[&str]| set.iter().any(|pattern| naive(pattern, text));
            let expected = has(declared) && !has(denied) && has(workspace) && has(user);
            let actual = grant
                .check(&Capability::parse(text.as_str()).unwrap())
                .is_ok();
            assert_eq!(
                actual, expected,
                "{text} {declared:?} {denied:?} {workspace:?} {user:?}"
            );
        }
    }
}

#[test]
fn a_tenants_object_is_a_path_and_any_other_is_not() {
    let rules = r#"
  - { name: all, match: { action: ["env.*", "model.*"] }, do: allow }
  - { name: prod, match: { path_glob: ["*/*/prod"] }, do: require_review }
  - { name: shop, match: { path_glob: ["acme/shop"] }, do: deny }
"#;
    let of = |action: &str, object: &str, tenant: Option<&str>| {
        let mut request = request(action, Some(object));
        request.context.tenant = tenant.map(str::to_owned);
        verdict(rules, &request)
    };
    let acme = Some("acme");
    assert_eq!(
        of("env.deploy", "acme/blog/prod", acme),
        Verdict::RequireReview
    );
    assert_eq!(of("env.deploy", "acme/blog/dev", acme), Verdict::Allow);
    assert_eq!(of("env.deploy", "acme/shop/dev", acme), Verdict::Deny);
    assert_eq!(of("env.read", "acme/shop2", acme), Verdict::Allow);
    // Without a tenant it is no path: a rule about files is silent.
    assert_eq!(of("model.generate", "acme/shop/prod", None), Verdict::Allow);
}
