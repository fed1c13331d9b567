//! Cedar as a foreign judge, for the rules that both languages can say.
//!
//! Not translated: reviews, globs beyond a directory tree, numbers. One test
//! holds on to the difference: Cedar skips a rule whose evaluation fails, a
//! forbid too; we deny.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

mod support;

use std::str::FromStr;

use cedar_policy::{Authorizer, Context, Decision, Entities, EntityUid, PolicySet};
use fluffy_policy::word::Mode;
use fluffy_policy::{Request, Verdict};
use proptest::prelude::*;
use serde_json::json;
use support::*;

#[derive(Debug, Clone, Default, PartialEq)]
struct When {
    action: Option<&'static str>,
    directory: Option<&'static str>,
    caller: Option<&'static str>,
    tag: Option<&'static str>,
    mode: Option<Mode>,
}

#[derive(Debug, Clone)]
struct Rule {
    allow: bool,
    when: When,
    except: Option<When>,
}

impl When {
    fn yaml(&self) -> String {
        let fields = [
            self.action.map(|value| format!("action: {value}")),
            self.directory
                .map(|value| format!("path_glob: [\"{value}/**\"]")),
            self.caller.map(|value| format!("caller: {value}")),
            self.tag.map(|value| format!("caller_tag: {value}")),
            self.mode.map(|value| format!("mode: {value}")),
        ];
        let fields: Vec<String> = fields.into_iter().flatten().collect();
        format!("{{ {} }}", fields.join(", "))
    }

    /// `absent` is what a condition on an absent mode comes to.
    fn cedar(&self, absent: bool) -> String {
        let mode = self.mode.map(|value| match absent {
            true => format!("(!(context has mode) || context.mode == \"{value}\")"),
            false => format!("(context has mode && context.mode == \"{value}\")"),
        });
        let parts = [
            self.action
                .map(|value| format!("action == Action::\"{value}\"")),
            self.directory
                .map(|value| format!("context.path like \"/{value}/*\"")),
            self.caller
                .map(|value| format!("principal == Agent::\"{value}\"")),
            self.tag
                .map(|value| format!("context.tags.contains(\"{value}\")")),
            mode,
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        if parts.is_empty() {
            "true".to_owned()
        } else {
            parts.join(" && ")
        }
    }
}

fn yaml(rules: &[Rule]) -> String {
    let line = |(number, rule): (usize, &Rule)| {
        let effect = if rule.allow { "allow" } else { "deny" };
        let except = rule.except.as_ref().map(When::yaml).unwrap_or_default();
        format!(
            "  - {{ name: r{number}, match: {}, do: {effect}, except: [{except}] }}\n",
            rule.when.yaml()
        )
    };
    rules.iter().enumerate().map(line).collect()
}

fn cedar(rules: &[Rule]) -> PolicySet {
    let policy = |rule: &Rule| {
        let effect = if rule.allow { "permit" } else { "forbid" };
        let unless = rule
            .except
            .as_ref()
            .map(|except| format!("unless {{ {} }}", except.cedar(rule.allow)));
        format!(
            "{effect}(principal, action, resource) when {{ {} }} {};\n",
            rule.when.cedar(!rule.allow),
            unless.unwrap_or_default()
        )
    };
    let text: String = rules.iter().map(policy).collect();
    PolicySet::from_str(&text).unwrap()
}

fn judge(policies: &PolicySet, request: &Request) -> cedar_policy::Response {
    let uid = |kind: &str, name: &str| EntityUid::from_str(&format!("{kind}::\"{name}\"")).unwrap();
    let mut context = json!({
        "path": request.resource.clone().unwrap(),
        "tags": request.principal.tags.iter().collect::<Vec<_>>(),
    });
    if let Some(mode) = request.context.mode {
        context["mode"] = json!(mode.as_str());
    }
    let asked = cedar_policy::Request::new(
        uid("Agent", &request.principal.name),
        uid("Action", &request.action),
        uid("File", "any"),
        Context::from_json_value(context, None).unwrap(),
        None,
    );
    Authorizer::new().is_authorized(&asked.unwrap(), policies, &Entities::empty())
}

fn when() -> impl Strategy<Value = When> {
    let some = |values: &'static [&'static str]| prop::option::of(prop::sample::select(values));
    let modes = prop::option::of(prop::sample::select(vec![Mode::Strict, Mode::Debug]));
    (
        some(&["fs.read", "fs.write"]),
        some(&["src", "src/a", "tests"]),
        some(&["ann", "bob"]),
        some(&["new", "old"]),
        modes,
    )
        .prop_map(|(action, directory, caller, tag, mode)| When {
            action,
            directory,
            caller,
            tag,
            mode,
        })
}

fn rules() -> impl Strategy<Value = Vec<Rule>> {
    let except = prop::option::weighted(
        0.3,
        when().prop_filter("says something", |when| *when != When::default()),
    );
    let rule = (prop::bool::weighted(0.7), when(), except).prop_map(|(allow, when, except)| Rule {
        allow,
        when,
        except,
    });
    prop::collection::vec(rule, 1..8)
}

fn asked() -> impl Strategy<Value = Request> {
    (
        prop::sample::select(vec!["fs.read", "fs.write"]),
        prop::sample::select(vec![
            "/src/x", "/src/a/x", "/tests/x", "/other", "/src", "/src2/x",
        ]),
        prop::sample::select(vec!["ann", "bob", "eve"]),
        prop::sample::subsequence(vec!["new", "old"], 0..=2),
        prop::option::of(prop::sample::select(vec![
            Mode::Strict,
            Mode::Debug,
            Mode::Explore,
        ])),
    )
        .prop_map(|(action, path, caller, tags, mode)| {
            let mut request = request(action, Some(path));
            request.principal.name = caller.to_owned();
            request.principal.tags = tags.into_iter().map(str::to_owned).collect();
            request.context.mode = mode;
            request
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn cedar_agrees(rules in rules(), asked in prop::collection::vec(asked(), 1..8)) {
        let ours = engine_with_builtins("  []\n", &yaml(&rules));
        let theirs = cedar(&rules);
        for request in asked {
            let response = judge(&theirs, &request);
            prop_assert_eq!(response.diagnostics().errors().count(), 0);
            let expected = match response.decision() {
                Decision::Allow => Verdict::Allow,
                Decision::Deny => Verdict::Deny,
            };
            prop_assert_eq!(decide(&ours, &request).verdict(), expected, "{:?}\n{}", request, yaml(&rules));
        }
    }
}

#[test]
fn cedar_skips_a_forbid_that_fails_and_we_deny() {
    let policies = PolicySet::from_str(
        "permit(principal, action, resource);\n\
         forbid(principal, action, resource) when { context.mode == \"debug\" };",
    )
    .unwrap();
    let request = write_to("/src/x");
    assert_eq!(
        request.context.mode, None,
        "the field that the forbid needs"
    );
    let response = judge(&policies, &request);
    assert_eq!(
        response.diagnostics().errors().count(),
        1,
        "the forbid failed"
    );
    assert_eq!(response.decision(), Decision::Allow, "and was skipped");
    let ours = engine(concat!(
        "  - { name: all, match: {}, do: allow }\n",
        "  - { name: no-debug, match: { mode: debug }, do: deny }\n",
    ));
    assert_eq!(decide(&ours, &request).verdict(), Verdict::Deny);
}
