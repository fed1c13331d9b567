//! The 26 normative cases of the policy specification, one test each.
//!
//! They are the contract: add more, change none. Where a case says *abstains*
//! or *does not apply*, the rule alone means deny and beside an allow it means
//! allow, and both are checked.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "tests")]

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fluffy_base::Timestamp;
use fluffy_base::id::SandboxId;
use fluffy_policy::builtin::Builtins;
use fluffy_policy::decision::TokenOutcome;
use fluffy_policy::document::PolicyFile;
use fluffy_policy::extension::{Answer, Extensions, NoExtensions, Opinion};
use fluffy_policy::rule::Origin;
use fluffy_policy::token::{Evaluation, Issued, Presented, Terms, TokenVault};
use fluffy_policy::{Engine, Request, Verdict};
use support::*;

const ALLOW: &str = "  - { name: yes, match: { action: fs.write }, do: allow }\n";
const DENY: &str = "  - { name: no, match: { action: fs.write }, do: deny, reason: never }\n";
const REVIEW: &str =
    "  - { name: look, match: { action: fs.write }, do: require_review, reason: a person looks }\n";

fn both(rules: &[&str]) -> String {
    rules.concat()
}

/// Alone deny, beside an allow allow, and never among those that spoke.
fn assert_abstains(rule: &str, request: &Request) {
    assert_eq!(verdict(rule, request), Verdict::Deny, "alone");
    let engine = engine(&both(&[rule, ALLOW]));
    let decision = decide(&engine, request);
    assert_eq!(decision.verdict(), Verdict::Allow, "beside an allow");
    assert_eq!(spoke(&decision), ["yes"]);
}

fn issue(engine: &Engine, vault: &TokenVault, request: &Request, terms: &Terms) -> Issued {
    let evaluation = Evaluation {
        engine,
        request,
        now: now(),
        extensions: &NoExtensions,
    };
    vault.issue(&evaluation, terms).unwrap()
}

#[test]
fn case_01_nothing_matches() {
    let rules = "  - { name: other, match: { action: fs.read }, do: allow }\n";
    assert_eq!(verdict(rules, &write_to("/a")), Verdict::Deny);
}

#[test]
fn case_02_only_abstaining_rules() {
    let rules = concat!(
        "  - { name: passes, match: { action: fs.write }, do: pass }\n",
        "  - { name: excepted, match: { action: fs.write }, do: allow, except: [ { caller: agent } ] }\n",
        "  - { name: unmet, match: { action: fs.write }, do: allow, constraints: { max_lines: 1 } }\n",
    );
    let engine = engine(rules);
    let decision = decide(&engine, &write_to("/a"));
    assert_eq!(decision.verdict(), Verdict::Deny);
    assert_eq!(spoke(&decision), Vec::<&str>::new());
}

#[test]
fn case_03_an_allow_and_a_deny() {
    for rules in [both(&[ALLOW, DENY]), both(&[DENY, ALLOW])] {
        let engine = engine(&rules);
        let decision = decide(&engine, &write_to("/a"));
        assert_eq!(decision.verdict(), Verdict::Deny);
        assert_eq!(spoke(&decision), ["no", "yes"]);
    }
}

#[test]
fn case_04_an_allow_and_a_review() {
    for rules in [both(&[ALLOW, REVIEW]), both(&[REVIEW, ALLOW])] {
        assert_eq!(verdict(&rules, &write_to("/a")), Verdict::RequireReview);
    }
}

#[test]
fn case_05_builtin_allows_and_an_extension_denies() {
    let engine = engine_with_builtins(ALLOW, "  []\n");
    let extensions = Scripted::new(&[("guard", Opinion::Deny)]);
    let decision = engine.evaluate(&write_to("/a"), now(), &extensions);
    assert_eq!(decision.verdict(), Verdict::Deny);
    assert_eq!(spoke(&decision), ["yes", "guard"]);
    let control = engine.evaluate(&write_to("/a"), now(), &NoExtensions);
    assert_eq!(control.verdict(), Verdict::Allow);
}

#[test]
fn case_06_review_whose_except_matches() {
    let rule = "  - { name: look, match: { action: fs.write }, do: require_review, except: [ { path_glob: [\"tests/**\"] } ] }\n";
    assert_abstains(rule, &write_to("/tests/a.rs"));
}

#[test]
fn case_07_valid_token_and_a_builtin_denies() {
    let (vault, request) = (vault(), write_to("/a"));
    let open = engine_with_builtins("  []\n", ALLOW);
    let issued = issue(&open, &vault, &request, &Terms::default());
    let closed = engine_with_builtins(DENY, ALLOW);
    let presented = Presented {
        token: &issued.token,
        counter: 1,
    };
    let before = open.evaluate_with_token(&request, &presented, &vault, now(), &NoExtensions);
    assert_eq!(before.verdict(), Verdict::Allow, "the token is valid");
    let presented = Presented {
        counter: 2,
        ..presented
    };
    let decision = closed.evaluate_with_token(&request, &presented, &vault, now(), &NoExtensions);
    assert_eq!(decision.verdict(), Verdict::Deny);
    assert_eq!(spoke(&decision), ["no"]);
}

#[test]
fn case_08_valid_token_and_silent_builtins() {
    let (vault, request) = (vault(), write_to("/a"));
    let engine = engine(ALLOW);
    let issued = issue(&engine, &vault, &request, &Terms::default());
    let extensions = Scripted::new(&[("guard", Opinion::Deny)]);
    let presented = Presented {
        token: &issued.token,
        counter: 1,
    };
    let decision = engine.evaluate_with_token(&request, &presented, &vault, now(), &extensions);
    assert_eq!(decision.verdict(), Verdict::Allow);
    assert_eq!(decision.token().unwrap().outcome, TokenOutcome::Used);
    assert_eq!(spoke(&decision), ["token"], "no rule was consulted");
    assert_eq!(extensions.asked(), 0);
}

#[test]
fn case_09_expired_token() {
    let (vault, request) = (vault(), write_to("/a"));
    let engine = engine(ALLOW);
    let issued = issue(&engine, &vault, &request, &Terms::default());
    let presented = Presented {
        token: &issued.token,
        counter: 1,
    };
    let extensions = Scripted::new(&[("guard", Opinion::Pass)]);
    let later = now().after(Duration::from_secs(30));
    let decision = engine.evaluate_with_token(&request, &presented, &vault, later, &extensions);
    assert_eq!(decision.token().unwrap().outcome, TokenOutcome::Expired);
    assert_eq!(decision.verdict(), Verdict::Allow);
    assert_eq!(spoke(&decision), ["yes"]);
    assert_eq!(extensions.asked(), 1, "a full evaluation");
}

#[test]
fn case_10_several_reviews() {
    let second = "  - { name: look-too, match: { action: fs.write }, do: require_review, reason: another looks }\n";
    let engine = engine(&both(&[ALLOW, REVIEW, second]));
    let decision = decide(&engine, &write_to("/a"));
    assert_eq!(decision.verdict(), Verdict::RequireReview);
    let reasons: Vec<&str> = decision.reasons().collect();
    assert_eq!(reasons, ["a person looks", "another looks"]);
}

#[test]
fn case_11_yaml_denies_and_the_extension_never_runs() {
    let engine = engine(&both(&[ALLOW, DENY]));
    let extensions = Scripted::new(&[("guard", Opinion::Allow)]);
    let decision = engine.evaluate(&write_to("/a"), now(), &extensions);
    assert_eq!(decision.verdict(), Verdict::Deny);
    assert_eq!(extensions.asked(), 0);
}

#[test]
fn case_12_action_matches_and_path_glob_does_not() {
    for effect in ["allow", "deny", "require_review"] {
        let rule = format!(
            "  - {{ name: src, match: {{ action: fs.write, path_glob: [\"src/**\"] }}, do: {effect} }}\n"
        );
        assert_abstains(&rule, &write_to("/tests/a.rs"));
    }
}

#[test]
fn case_13_review_whose_except_does_not_match() {
    let rule = "  - { name: look, match: { action: fs.write }, do: require_review, except: [ { path_glob: [\"tests/**\"] } ] }\n";
    assert_eq!(
        verdict(rule, &write_to("/src/a.rs")),
        Verdict::RequireReview
    );
    assert_eq!(
        verdict(&both(&[rule, ALLOW]), &write_to("/src/a.rs")),
        Verdict::RequireReview
    );
}

#[test]
fn case_14_several_excepts_and_one_matches() {
    let rule = "  - { name: look, match: { action: fs.write }, do: require_review, except: [ { path_glob: [\"docs/**\"] }, { caller: agent }, { caller_tag: [x] } ] }\n";
    assert_abstains(rule, &write_to("/src/a.rs"));
}

#[test]
fn case_15_several_excepts_and_none_matches() {
    let rule = "  - { name: look, match: { action: fs.write }, do: require_review, except: [ { path_glob: [\"docs/**\"] }, { caller: other }, { caller_tag: [x] } ] }\n";
    assert_eq!(
        verdict(&both(&[rule, ALLOW]), &write_to("/src/a.rs")),
        Verdict::RequireReview
    );
}

#[test]
fn case_16_several_allows() {
    let second = "  - { name: yes-too, match: { caller: agent }, do: allow }\n";
    let engine = engine(&both(&[ALLOW, second]));
    let decision = decide(&engine, &write_to("/a"));
    assert_eq!(decision.verdict(), Verdict::Allow);
    assert_eq!(spoke(&decision), ["yes", "yes-too"]);
}

#[test]
fn case_17_allows_from_yaml_and_from_an_extension() {
    let engine = engine(ALLOW);
    let extensions = Scripted::new(&[("guard", Opinion::Allow)]);
    let decision = engine.evaluate(&write_to("/a"), now(), &extensions);
    assert_eq!(decision.verdict(), Verdict::Allow);
    assert_eq!(spoke(&decision), ["yes", "guard"]);
}

#[test]
fn case_18_empty_builtin_list() {
    let decide = |rules: &str| {
        let engine = engine_with_builtins("  []\n", rules);
        decide(&engine, &write_to("/a")).verdict()
    };
    assert_eq!(decide("  []\n"), Verdict::Deny);
    assert_eq!(
        decide("  - { name: p, match: {}, do: pass }\n"),
        Verdict::Deny
    );
    assert_eq!(decide(&both(&[ALLOW, DENY])), Verdict::Deny);
    assert_eq!(decide(&both(&[ALLOW, REVIEW])), Verdict::RequireReview);
    assert_eq!(decide(ALLOW), Verdict::Allow, "a control");
}

#[test]
fn case_19_no_rule_in_any_file() {
    for text in [
        "",
        "# nothing\n",
        "version: 1\n",
        "version: 1\ncapabilities:\n",
    ] {
        let file = PolicyFile::parse(text, Origin::Project).unwrap();
        let engine = Engine::build(vec![file], 1);
        assert_eq!(
            decide(&engine, &write_to("/a")).verdict(),
            Verdict::Deny,
            "{text:?}"
        );
        let guarded = decide(&engine, &write_to("/.fluffy/policy.yaml"));
        assert_eq!(
            spoke(&guarded),
            ["policy-files"],
            "built-ins are still active"
        );
        let update = decide(&engine, &request("policy.update", Some("project")));
        assert_eq!(update.verdict(), Verdict::RequireReview);
    }
    assert!(!Builtins::standard().is_empty());
}

/// Crashes once and is then restarted, as the script host does.
#[derive(Default)]
struct Crashing {
    asked: AtomicUsize,
    restarts: AtomicUsize,
}

impl Extensions for Crashing {
    fn ask(&self, _: &Request, _: Timestamp) -> Vec<Answer> {
        let first = self.asked.fetch_add(1, Ordering::SeqCst) == 0;
        if first {
            self.restarts.fetch_add(1, Ordering::SeqCst);
        }
        vec![Answer {
            extension: "guard".into(),
            opinion: if first {
                Opinion::Failed
            } else {
                Opinion::Pass
            },
            reason: "it threw".into(),
        }]
    }
}

#[test]
fn case_20_extension_crashes() {
    let engine = engine(ALLOW);
    let extensions = Crashing::default();
    let decision = engine.evaluate(&write_to("/a"), now(), &extensions);
    assert_eq!(decision.verdict(), Verdict::Deny);
    let reasons: Vec<&str> = decision.reasons().collect();
    assert_eq!(reasons, ["the extension failed: it threw"]);
    assert_eq!(extensions.asked.load(Ordering::SeqCst), 1, "asked once");
    let after = engine.evaluate(&write_to("/a"), now(), &extensions);
    assert_eq!(after.verdict(), Verdict::Allow, "the restarted one passes");
    assert_eq!(extensions.restarts.load(Ordering::SeqCst), 1);
}

#[test]
fn case_21_max_ops_used_up() {
    let (vault, request) = (vault(), write_to("/a"));
    let engine = engine(ALLOW);
    let terms = Terms {
        max_ops: 2,
        ..Terms::default()
    };
    let issued = issue(&engine, &vault, &request, &terms);
    let outcome = |counter| {
        let presented = Presented {
            token: &issued.token,
            counter,
        };
        let decision =
            engine.evaluate_with_token(&request, &presented, &vault, now(), &NoExtensions);
        assert_eq!(decision.verdict(), Verdict::Allow);
        let names = spoke(&decision).join(" ");
        (decision.token().unwrap().outcome, names)
    };
    assert_eq!(outcome(1), (TokenOutcome::Used, "token".into()));
    assert_eq!(outcome(2), (TokenOutcome::Used, "token".into()));
    assert_eq!(outcome(3), (TokenOutcome::UsedUp, "yes".into()));
}

#[test]
fn case_22_token_expires_during_evaluation() {
    let (vault, request) = (vault(), write_to("/a"));
    let engine = engine(ALLOW);
    let issued = issue(&engine, &vault, &request, &Terms::default());
    let presented = Presented {
        token: &issued.token,
        counter: 1,
    };
    // However long the evaluation takes, only the reading at its start counts.
    let last = Timestamp::from_micros(now().after(Duration::from_secs(30)).as_micros() - 1);
    let decision = engine.evaluate_with_token(&request, &presented, &vault, last, &NoExtensions);
    assert_eq!(decision.token().unwrap().outcome, TokenOutcome::Used);
    assert_eq!(decision.at(), last);
}

#[test]
fn case_23_token_from_another_sandbox() {
    let (vault, request) = (vault(), write_to("/a"));
    let engine = engine(ALLOW);
    let issued = issue(&engine, &vault, &request, &Terms::default());
    let presented = Presented {
        token: &issued.token,
        counter: 1,
    };
    let mut other = request.clone();
    other.principal.sandbox = Some(SandboxId::from_bits(2));
    let extensions = Scripted::new(&[]);
    let decision = engine.evaluate_with_token(&other, &presented, &vault, now(), &extensions);
    assert_eq!(decision.token().unwrap().outcome, TokenOutcome::NotForThis);
    assert_eq!(spoke(&decision), ["yes"]);
    assert_eq!(extensions.asked(), 1, "a full evaluation");
}

#[test]
fn case_24_unknown_action() {
    let rules = "  - { name: all, match: {}, do: allow }\n";
    let engine = engine(rules);
    for action in ["fs.destroy", "", "plugin.x", "FS.WRITE", "fs.write.", "*"] {
        let decision = decide(&engine, &request(action, Some("/a")));
        assert_eq!(decision.verdict(), Verdict::Deny, "{action}");
        assert_eq!(spoke(&decision), ["request"], "{action}");
    }
    let plugin = decide(&engine, &request("plugin.jira.create", None));
    assert_eq!(plugin.verdict(), Verdict::Allow, "a plugin's own are known");
}

#[test]
fn case_25_empty_path_glob() {
    for effect in ["allow", "deny", "require_review"] {
        let rule = format!(
            "  - {{ name: none, match: {{ action: fs.write, path_glob: [] }}, do: {effect} }}\n"
        );
        assert_abstains(&rule, &write_to("/a"));
        let warnings = file(&rule);
        let warning = warnings.warnings().first().unwrap();
        assert_eq!(warning.what, "`path_glob` is empty and matches nothing");
        assert_eq!((warning.place.line, warning.place.column), (3, 57));
    }
}

#[test]
fn case_26_except_identical_to_match() {
    let rule = "  - { name: never, match: { action: fs.write }, do: deny, except: [ { action: fs.write } ] }\n";
    assert_abstains(rule, &write_to("/a"));
    let file = file(rule);
    let warning = file.warnings().first().unwrap();
    assert_eq!(
        warning.what,
        "`never` never fires: an `except` equals its `match`"
    );
    assert_eq!((warning.place.line, warning.place.column), (3, 13));
}
