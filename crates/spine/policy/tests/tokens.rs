//! Tokens: what they are bound to, how they end, what they can never do.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "tests")]

mod support;

use std::time::Duration;

use fluffy_policy::decision::TokenOutcome;
use fluffy_policy::extension::{NoExtensions, Opinion};
use fluffy_policy::token::{
    Evaluation, IssueTokenError, Issued, Presented, Resources, Terms, Token, TokenVault,
};
use fluffy_policy::word::{Mode, State, Tier};
use fluffy_policy::{Engine, PrincipalKind, ProcessIdentity, Request, Verdict};
use support::*;

const ALLOW: &str = "  - { name: yes, match: { action: fs.write }, do: allow }\n";

fn evaluation<'a>(engine: &'a Engine, request: &'a Request) -> Evaluation<'a> {
    Evaluation {
        engine,
        request,
        now: now(),
        extensions: &NoExtensions,
    }
}

fn issue(engine: &Engine, vault: &TokenVault, request: &Request) -> Issued {
    vault
        .issue(&evaluation(engine, request), &Terms::default())
        .unwrap()
}

fn tree(glob: &str) -> Terms {
    Terms {
        resources: Resources::Tree(glob.to_owned()),
        ..Terms::default()
    }
}

fn outcome(
    engine: &Engine,
    vault: &TokenVault,
    request: &Request,
    presented: (&Token, u64),
) -> (TokenOutcome, Verdict) {
    let presented = Presented {
        token: presented.0,
        counter: presented.1,
    };
    let decision = engine.evaluate_with_token(request, &presented, vault, now(), &NoExtensions);
    (decision.token().unwrap().outcome, decision.verdict())
}

#[test]
fn a_forged_or_altered_token_is_denied() {
    let (vault, request) = (vault(), write_to("/a"));
    let engine = engine(ALLOW);
    let text = issue(&engine, &vault, &request).token.reveal();
    let other = issue(&engine, &vault, &request).token.reveal();
    let (id, rest) = text.split_once('.').unwrap();
    let (claims, mac) = rest.split_once('.').unwrap();
    let (other_id, other_rest) = other.split_once('.').unwrap();
    let (other_claims, _) = other_rest.split_once('.').unwrap();
    let flipped: String = mac
        .chars()
        .rev()
        .enumerate()
        .map(|(place, c)| match (place, c) {
            (0, '0') => '1',
            (0, _) => '0',
            (_, c) => c,
        })
        .collect();
    let flipped: String = flipped.chars().rev().collect();
    for forged in [
        format!("{id}.{claims}.{flipped}"),
        format!("{other_id}.{claims}.{mac}"),
        format!("{id}.{other_claims}.{mac}"),
    ] {
        let forged: Token = forged.parse().unwrap();
        let result = outcome(&engine, &vault, &request, (&forged, 1));
        assert_eq!(result, (TokenOutcome::Forged, Verdict::Deny));
    }
    let genuine: Token = text.parse().unwrap();
    let result = outcome(&engine, &vault, &request, (&genuine, 1));
    assert_eq!(result, (TokenOutcome::Used, Verdict::Allow), "a control");
}

#[test]
fn a_restart_ends_all_tokens() {
    let request = write_to("/a");
    let engine = engine(ALLOW);
    let issued = issue(&engine, &vault(), &request);
    let after = TokenVault::new([8u8; 32].into());
    let result = outcome(&engine, &after, &request, (&issued.token, 1));
    assert_eq!(result, (TokenOutcome::Forged, Verdict::Deny));
}

#[test]
fn a_replayed_counter_is_denied_and_parallel_calls_work() {
    let (vault, request) = (vault(), write_to("/a"));
    let engine = engine(ALLOW);
    let token = issue(&engine, &vault, &request).token;
    for counter in [3, 1, 2] {
        let result = outcome(&engine, &vault, &request, (&token, counter));
        assert_eq!(result, (TokenOutcome::Used, Verdict::Allow), "{counter}");
    }
    for counter in [1, 2, 3, 0] {
        let result = outcome(&engine, &vault, &request, (&token, counter));
        assert_eq!(result, (TokenOutcome::Replayed, Verdict::Deny), "{counter}");
    }
}

#[test]
fn many_threads_use_a_token_exactly_max_ops_times() {
    let (vault, request) = (vault(), write_to("/a"));
    let engine = engine(ALLOW);
    let token = issue(&engine, &vault, &request).token;
    let used = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let (engine, vault, request, token, used) = (&engine, &vault, &request, &token, &used);
            scope.spawn(move || {
                for call in 0..20 {
                    let counter = 1 + call * 8 + thread;
                    if outcome(engine, vault, request, (token, counter)).0 == TokenOutcome::Used {
                        used.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    }
                }
            });
        }
    });
    assert_eq!(used.into_inner(), 64);
}

/// A circumstance and how to make it another.
type Change = (&'static str, fn(&mut Request));

#[test]
fn every_circumstance_is_bound() {
    let rules = "  - { name: yes, match: {}, do: allow }\n";
    let engine = engine(rules);
    let vault = vault();
    let mut base = write_to("/a");
    base.context.mode = Some(Mode::Strict);
    base.context.size = Some(10);
    let changes: [Change; 19] = [
        ("pid", |r| {
            r.principal.process = Some(ProcessIdentity {
                pid: 101,
                started: 5,
            })
        }),
        ("reused pid", |r| {
            r.principal.process = Some(ProcessIdentity {
                pid: 100,
                started: 6,
            })
        }),
        ("no process", |r| r.principal.process = None),
        ("no sandbox", |r| r.principal.sandbox = None),
        ("name", |r| r.principal.name = "other".into()),
        ("kind", |r| r.principal.kind = PrincipalKind::Plugin),
        ("tags", |r| r.principal.tags = ["x".to_owned()].into()),
        ("behalf", |r| r.principal.on_behalf_of = Some("x".into())),
        ("action", |r| r.action = "fs.edit".into()),
        ("resource", |r| r.resource = Some("/b".into())),
        ("mode", |r| r.context.mode = Some(Mode::Explore)),
        ("state", |r| r.context.state = Some(State::Idle)),
        ("template", |r| r.context.template = Some("x".into())),
        ("tier", |r| r.context.tier = Some(Tier::Wasm)),
        ("tenant", |r| r.context.tenant = Some("x".into())),
        ("host", |r| r.context.host = Some("x.com".into())),
        ("port", |r| r.context.port = Some(1)),
        ("size", |r| r.context.size = None),
        ("lines", |r| r.context.lines = Some(1)),
    ];
    let token = issue(&engine, &vault, &base).token;
    for (name, change) in changes {
        let mut other = base.clone();
        change(&mut other);
        let result = outcome(&engine, &vault, &other, (&token, 1));
        assert_eq!(result.0, TokenOutcome::NotForThis, "{name}");
    }
    assert_eq!(
        outcome(&engine, &vault, &base, (&token, 1)).0,
        TokenOutcome::Used
    );
    let mut spelled = base.clone();
    spelled.resource = Some("//a/".into());
    let result = outcome(&engine, &vault, &spelled, (&token, 2));
    assert_eq!(result.0, TokenOutcome::Used, "another spelling of one path");
}

#[test]
fn a_policy_change_ends_tokens_at_once() {
    let (vault, request) = (vault(), write_to("/a"));
    let old = engine(ALLOW);
    let token = issue(&old, &vault, &request).token;
    let deny = "  - { name: no, match: { action: fs.write }, do: deny }\n";
    let new = Engine::build(vec![file(deny)], 2);
    let result = outcome(&new, &vault, &request, (&token, 1));
    assert_eq!(result, (TokenOutcome::OldPolicy, Verdict::Deny));
    // The same epoch with other rules is another policy too.
    let sneaky = Engine::build(vec![file(deny)], 1);
    let result = outcome(&sneaky, &vault, &request, (&token, 1));
    assert_eq!(result, (TokenOutcome::OldPolicy, Verdict::Deny));
}

#[test]
fn revocation_is_checked_on_every_use() {
    let (vault, request) = (vault(), write_to("/a"));
    let engine = engine(ALLOW);
    let token = issue(&engine, &vault, &request).token;
    assert_eq!(
        outcome(&engine, &vault, &request, (&token, 1)).0,
        TokenOutcome::Used
    );
    assert!(vault.revoke(token.id()) && !vault.revoke(token.id()));
    assert_eq!(
        outcome(&engine, &vault, &request, (&token, 2)).0,
        TokenOutcome::Revoked
    );
    let second = issue(&engine, &vault, &request).token;
    vault.revoke_sandbox(request.principal.sandbox.unwrap());
    assert_eq!(
        outcome(&engine, &vault, &request, (&second, 1)).0,
        TokenOutcome::Revoked
    );
}

#[test]
fn a_clock_that_went_back_does_not_prolong_a_token() {
    let (vault, request) = (vault(), write_to("/a"));
    let engine = engine(ALLOW);
    let token = issue(&engine, &vault, &request).token;
    let presented = Presented {
        token: &token,
        counter: 1,
    };
    let before = fluffy_base::Timestamp::from_micros(now().as_micros() - 1);
    let decision = engine.evaluate_with_token(&request, &presented, &vault, before, &NoExtensions);
    assert_eq!(decision.token().unwrap().outcome, TokenOutcome::Expired);
}

#[test]
fn the_ceiling_holds_for_tokens_too() {
    let (vault, request) = (vault(), write_to("/a"));
    let engine = engine(ALLOW);
    let token = issue(&engine, &vault, &request).token;
    let mut narrowed = request.clone();
    narrowed.principal.grant = None;
    let presented = Presented {
        token: &token,
        counter: 1,
    };
    let decision = engine.evaluate_with_token(&narrowed, &presented, &vault, now(), &NoExtensions);
    assert_eq!(decision.verdict(), Verdict::Deny);
    assert_eq!(spoke(&decision), ["grant"]);
}

#[test]
fn sizes_are_bound_to_the_range_in_which_no_rule_changes_its_mind() {
    let rules = concat!(
        "  - { name: yes, match: { action: fs.write }, do: allow, constraints: { max_file_size: 1000 } }\n",
        "  - { name: tiny, match: { action: fs.write, size: \"< 10\" }, do: deny }\n",
        "  - { name: odd, match: { action: fs.write, size: \"= 500\" }, do: deny }\n",
    );
    let engine = engine(rules);
    let vault = vault();
    let sized = |size| {
        let mut request = write_to("/a");
        request.context.size = Some(size);
        request
    };
    let token = issue(&engine, &vault, &sized(100)).token;
    for (counter, size, expected) in [
        (1, 10, TokenOutcome::Used),
        (2, 499, TokenOutcome::Used),
        (3, 9, TokenOutcome::NotForThis),
        (4, 500, TokenOutcome::NotForThis),
        (5, 501, TokenOutcome::NotForThis),
        (6, 1001, TokenOutcome::NotForThis),
    ] {
        let result = outcome(&engine, &vault, &sized(size), (&token, counter));
        assert_eq!(result.0, expected, "{size}");
    }
}

#[test]
fn an_extension_that_was_asked_pins_the_numbers() {
    let engine = engine(ALLOW);
    let vault = vault();
    let mut request = write_to("/a");
    request.context.size = Some(10);
    let extensions = Scripted::new(&[("guard", Opinion::Pass)]);
    let evaluation = Evaluation {
        extensions: &extensions,
        ..evaluation(&engine, &request)
    };
    let token = vault.issue(&evaluation, &Terms::default()).unwrap().token;
    assert_eq!(
        outcome(&engine, &vault, &request, (&token, 1)).0,
        TokenOutcome::Used
    );
    let mut larger = request.clone();
    larger.context.size = Some(11);
    assert_eq!(
        outcome(&engine, &vault, &larger, (&token, 2)).0,
        TokenOutcome::NotForThis
    );
    let refused = vault.issue(&evaluation, &tree("**")).unwrap_err();
    assert!(matches!(refused, IssueTokenError::Extended));
}

#[test]
fn a_tree_is_covered_only_if_nothing_there_can_object() {
    let rules = concat!(
        "  - { name: src, match: { action: fs.write, path_glob: [\"src/**\"] }, do: allow }\n",
        "  - { name: docs, match: { action: fs.write, path_glob: [\"docs/**\", \"!docs/private/**\"] }, do: allow }\n",
        "  - { name: gen, match: { action: fs.write, path_glob: [\"src/gen/**\"] }, do: deny }\n",
        "  - { name: keys, match: { path_glob: [\"*.key\"], mode: debug }, do: require_review }\n",
    );
    let engine = engine(rules);
    let vault = vault();
    let mut request = write_to("/src/app/main.rs");
    request.context.mode = Some(Mode::Strict);
    let issue =
        |request: &Request, glob: &str| vault.issue(&evaluation(&engine, request), &tree(glob));
    let token = issue(&request, "src/app/**").unwrap().token;
    let mut other = request.clone();
    other.resource = Some("/src/app/deep/other.rs".into());
    assert_eq!(
        outcome(&engine, &vault, &other, (&token, 1)).0,
        TokenOutcome::Used
    );
    other.resource = Some("/src/other.rs".into());
    assert_eq!(
        outcome(&engine, &vault, &other, (&token, 2)).0,
        TokenOutcome::NotForThis
    );
    let message = |request: &Request, glob: &str| {
        let error = issue(request, glob).unwrap_err();
        std::error::Error::source(&error).unwrap().to_string()
    };
    assert_eq!(
        message(&request, "src/**"),
        "`project:gen` could object to something in `src/**`"
    );
    assert_eq!(
        message(&request, "**/main.rs"),
        "`builtin:policy-files` could object to something in `**/main.rs`"
    );
    assert_eq!(
        message(&request, "lib/**"),
        "`lib/**` does not cover the path that was asked for"
    );
    assert_eq!(message(&request, "[a"), "`[a` is not a glob");
    let mut docs = write_to("/docs/a.md");
    docs.context.mode = Some(Mode::Strict);
    assert_eq!(message(&docs, "docs/**"), "no rule allows all of `docs/**`");
    docs.context.mode = None;
    assert_eq!(
        message(&docs, "docs/**"),
        "`project:keys` could object to something in `docs/**`"
    );
}

#[test]
fn builtins_are_out_of_reach_of_a_tree_in_any_case_of_letters() {
    let engine = engine("  - { name: all, match: {}, do: allow }\n");
    let vault = vault();
    let request = write_to("/.Fluffy/notes");
    let error = vault
        .issue(&evaluation(&engine, &request), &tree(".Fluffy/**"))
        .unwrap_err();
    assert!(matches!(error, IssueTokenError::Tree(_)), "{error}");
}

#[test]
fn several_resources_are_each_evaluated() {
    let rules =
        "  - { name: src, match: { action: fs.write, path_glob: [\"src/**\"] }, do: allow }\n";
    let engine = engine(rules);
    let vault = vault();
    let request = write_to("/src/a");
    let also = |others: &[&str]| Terms {
        resources: Resources::Also(others.iter().map(|path| (*path).to_owned()).collect()),
        ..Terms::default()
    };
    let token = vault
        .issue(&evaluation(&engine, &request), &also(&["/src/b"]))
        .unwrap()
        .token;
    assert_eq!(
        outcome(&engine, &vault, &write_to("/src/b"), (&token, 1)).0,
        TokenOutcome::Used
    );
    assert_eq!(
        outcome(&engine, &vault, &write_to("/src/c"), (&token, 2)).0,
        TokenOutcome::NotForThis
    );
    let refused = vault
        .issue(&evaluation(&engine, &request), &also(&["/etc/x"]))
        .unwrap_err();
    assert!(matches!(refused, IssueTokenError::Decided(_)));
}

#[test]
fn an_approval_answers_the_reviews_it_names_and_never_a_deny() {
    let rules = concat!(
        "  - { name: yes, match: { action: fs.write }, do: allow }\n",
        "  - { name: look, match: { action: fs.write }, do: require_review }\n",
        "  - { name: look-too, match: { action: fs.write, path_glob: [\"a\"] }, do: require_review }\n",
    );
    let engine = engine(rules);
    let (vault, request) = (vault(), write_to("/a"));
    let evaluation = evaluation(&engine, &request);
    let approve = |rules: &[&str]| {
        let answers: Vec<String> = rules.iter().map(|rule| (*rule).to_owned()).collect();
        vault.approve(&evaluation, &Terms::once(), &answers)
    };
    assert!(matches!(
        vault.issue(&evaluation, &Terms::once()),
        Err(IssueTokenError::Decided(_))
    ));
    match approve(&["project:look"]) {
        Err(IssueTokenError::Unanswered { rule }) => assert_eq!(rule, "project:look-too"),
        other => panic!("{other:?}"),
    }
    let issued = approve(&["project:look", "project:look-too"]).unwrap();
    assert_eq!(issued.claims.answers, ["project:look", "project:look-too"]);
    assert_eq!(
        outcome(&engine, &vault, &request, (&issued.token, 1)),
        (TokenOutcome::Used, Verdict::Allow)
    );
    // One operation, then the question is open again.
    let result = outcome(&engine, &vault, &request, (&issued.token, 2));
    assert_eq!(result, (TokenOutcome::UsedUp, Verdict::RequireReview));
    let denied = support::engine("  - { name: no, match: {}, do: deny }\n");
    let evaluation = Evaluation {
        engine: &denied,
        ..evaluation
    };
    let refused = vault.approve(&evaluation, &Terms::once(), &["project:no".to_owned()]);
    assert!(matches!(refused, Err(IssueTokenError::Decided(_))));
}

#[test]
fn a_policy_update_is_reviewed_even_with_a_token_and_approved_by_name() {
    let engine = engine("  - { name: all, match: {}, do: allow }\n");
    let (vault, request) = (vault(), request("policy.update", Some("project")));
    let evaluation = evaluation(&engine, &request);
    assert!(vault.issue(&evaluation, &Terms::default()).is_err());
    let answers = ["builtin:policy-update".to_owned()];
    let issued = vault
        .approve(&evaluation, &Terms::once(), &answers)
        .unwrap();
    let presented = Presented {
        token: &issued.token,
        counter: 1,
    };
    let decision = engine.evaluate_with_token(&request, &presented, &vault, now(), &NoExtensions);
    assert_eq!(decision.verdict(), Verdict::Allow);
    let reason: Vec<&str> = decision.reasons().collect();
    assert!(
        reason.join(" ").contains("builtin:policy-update"),
        "{reason:?}"
    );
}

#[test]
fn what_cannot_be_bound_gets_no_token() {
    let engine = engine(ALLOW);
    let vault = vault();
    let mut unbound = write_to("/a");
    unbound.principal.process = None;
    let refused = vault.issue(&evaluation(&engine, &unbound), &Terms::default());
    assert!(matches!(refused, Err(IssueTokenError::Unbound)));
    let mut outside = write_to("/a");
    outside.principal.sandbox = None;
    let refused = vault.issue(&evaluation(&engine, &outside), &Terms::default());
    assert!(matches!(refused, Err(IssueTokenError::Unbound)));
    // Only a person works outside of all sandboxes.
    outside.principal.kind = PrincipalKind::User;
    assert!(
        vault
            .issue(&evaluation(&engine, &outside), &Terms::default())
            .is_ok()
    );
    let request = write_to("/a");
    for terms in [
        Terms {
            max_ops: 0,
            ..Terms::default()
        },
        Terms {
            life: Duration::ZERO,
            ..Terms::default()
        },
        Terms {
            life: Duration::from_secs(3601),
            ..Terms::default()
        },
    ] {
        let refused = vault.issue(&evaluation(&engine, &request), &terms);
        assert!(matches!(refused, Err(IssueTokenError::Terms)), "{terms:?}");
    }
}

#[test]
fn no_text_but_a_token_s_own_is_a_token() {
    let engine = engine(ALLOW);
    let text = issue(&engine, &vault(), &write_to("/a")).token.reveal();
    assert_eq!(text.parse::<Token>().unwrap().reveal(), text);
    for broken in [
        "",
        ".",
        "..",
        &text[1..],
        &text.to_uppercase(),
        &format!("{text}."),
        &format!("{text}.x"),
    ] {
        assert!(broken.parse::<Token>().is_err(), "{broken}");
    }
    let shown = format!("{:?}", vault());
    assert!(!shown.contains('7'), "no secret in {shown}");
}
