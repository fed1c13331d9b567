//! A naive evaluator of the specification's page, and random policies for it.
//!
//! Written for clearness and against the page alone: it shares no code with
//! the engine, keeps no index, and tries everything. A policy is a model that
//! is both evaluated here and printed as YAML for the engine.

#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::BTreeSet;
use std::fmt::Write as _;

use fluffy_policy::word::{Mode, Tier};
use fluffy_policy::{Request, Verdict};
use proptest::prelude::*;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct When {
    pub(crate) action: Option<Vec<&'static str>>,
    pub(crate) path: Option<Vec<String>>,
    pub(crate) host: Option<Vec<&'static str>>,
    pub(crate) caller: Option<Vec<&'static str>>,
    pub(crate) tag: Option<Vec<&'static str>>,
    pub(crate) mode: Option<Vec<Mode>>,
    pub(crate) tier: Option<Vec<Tier>>,
    pub(crate) tenant: Option<Vec<&'static str>>,
    pub(crate) size: Option<(&'static str, u64)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Do {
    Allow,
    Deny,
    Review,
    Pass,
}

#[derive(Debug, Clone)]
pub(crate) struct RuleModel {
    pub(crate) name: String,
    pub(crate) effect: Do,
    pub(crate) when: When,
    pub(crate) except: Vec<When>,
    pub(crate) max_size: Option<u64>,
}

/// Verdict and the names of all rules that spoke.
pub(crate) fn reference(rules: &[RuleModel], request: &Request) -> (Verdict, BTreeSet<String>) {
    let mut spoke = BTreeSet::new();
    let (mut allow, mut deny, mut review) = (false, false, false);
    for rule in rules {
        let restricts = matches!(rule.effect, Do::Deny | Do::Review);
        if !rule.when.holds(request, restricts) {
            continue;
        }
        if rule
            .except
            .iter()
            .any(|except| except.holds(request, !restricts))
        {
            continue;
        }
        match rule.effect {
            Do::Pass => continue,
            Do::Deny => deny = true,
            Do::Review => review = true,
            Do::Allow => {
                let met = match (rule.max_size, request.context.size) {
                    (None, _) => true,
                    (Some(_), None) => false,
                    (Some(limit), Some(size)) => size <= limit,
                };
                if !met {
                    continue;
                }
                allow = true;
            }
        }
        spoke.insert(rule.name.clone());
    }
    let verdict = if deny {
        Verdict::Deny
    } else if review {
        Verdict::RequireReview
    } else if allow {
        Verdict::Allow
    } else {
        Verdict::Deny
    };
    (verdict, spoke)
}

impl When {
    fn holds(&self, request: &Request, if_absent: bool) -> bool {
        let context = &request.context;
        let is_path = |text: &&String| text.starts_with(['/', '@']);
        let object = (request.action == "env.deploy" && context.tenant.is_some())
            .then(|| request.resource.as_ref().map(|text| format!("/{text}")))
            .flatten();
        let path = object
            .as_ref()
            .or(request.resource.as_ref().filter(is_path));
        let host = match request.action.as_str() {
            "net.connect" => request
                .resource
                .as_ref()
                .and_then(|text| text.split(':').next()),
            _ => context.host.as_deref(),
        };
        let text = |wanted: &Option<Vec<&'static str>>, actual: Option<&str>| match (wanted, actual)
        {
            (None, _) => true,
            (Some(_), None) => if_absent,
            (Some(wanted), Some(actual)) => wanted.contains(&actual),
        };
        let action = self.action_holds(request);
        let path = self.path_holds(path);
        let host = self.host_holds(host, if_absent);
        let tag = self.tag.as_ref().is_none_or(|tags| {
            tags.iter()
                .any(|tag| request.principal.tags.iter().any(|each| each == tag))
        });
        let mode = match (&self.mode, context.mode) {
            (None, _) => true,
            (Some(_), None) => if_absent,
            (Some(wanted), Some(actual)) => wanted.contains(&actual),
        };
        let tier = match (&self.tier, context.tier) {
            (None, _) => true,
            (Some(_), None) => if_absent,
            (Some(wanted), Some(actual)) => wanted.contains(&actual),
        };
        let size = match (self.size, context.size) {
            (None, _) => true,
            (Some(_), None) => if_absent,
            (Some(("<", edge)), Some(size)) => size < edge,
            (Some(("<=", edge)), Some(size)) => size <= edge,
            (Some((">", edge)), Some(size)) => size > edge,
            (Some((">=", edge)), Some(size)) => size >= edge,
            (Some((_, edge)), Some(size)) => size == edge,
        };
        action
            && path
            && host
            && text(&self.caller, Some(&request.principal.name))
            && tag
            && mode
            && tier
            && text(&self.tenant, context.tenant.as_deref())
            && size
    }

    fn action_holds(&self, request: &Request) -> bool {
        let within = |group: &str| {
            let rest = request.action.strip_prefix(group);
            rest.is_some_and(|rest| rest.starts_with('.'))
        };
        self.action.as_ref().is_none_or(|list| {
            let named = |each: &&str| {
                *each == request.action || each.strip_suffix(".*").is_some_and(within)
            };
            list.iter().any(named)
        })
    }

    fn path_holds(&self, path: Option<&String>) -> bool {
        match (&self.path, path) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(globs), Some(path)) => {
                let mut excluded = globs.iter().filter_map(|glob| glob.strip_prefix('!'));
                let mut included = globs.iter().filter(|glob| !glob.starts_with('!'));
                included.any(|glob| glob_matches(glob, path))
                    && !excluded.any(|glob| glob_matches(glob, path))
            }
        }
    }

    fn host_holds(&self, host: Option<&str>, if_absent: bool) -> bool {
        match (&self.host, host) {
            (None, _) => true,
            (Some(_), None) => if_absent,
            (Some(patterns), Some(host)) => {
                patterns
                    .iter()
                    .any(|pattern| match pattern.strip_prefix("*.") {
                        Some(domain) => host.ends_with(&format!(".{domain}")),
                        None => *pattern == host,
                    })
            }
        }
    }

    fn yaml(&self) -> String {
        let mut fields = Vec::new();
        let list = |values: Vec<String>| {
            format!(
                "[{}]",
                values
                    .iter()
                    .map(|value| format!("\"{value}\""))
                    .collect::<Vec<_>>()
                    .join(", ")
            )
        };
        let mut add = |name: &str, values: Option<Vec<String>>| {
            if let Some(values) = values {
                fields.push(format!("{name}: {}", list(values)));
            }
        };
        let texts = |values: &Option<Vec<&'static str>>| {
            values
                .as_ref()
                .map(|values| values.iter().map(|value| (*value).to_owned()).collect())
        };
        add("action", texts(&self.action));
        add("path_glob", self.path.clone());
        add("host", texts(&self.host));
        add("caller", texts(&self.caller));
        add("caller_tag", texts(&self.tag));
        add(
            "mode",
            self.mode
                .as_ref()
                .map(|words| words.iter().map(ToString::to_string).collect()),
        );
        add(
            "tier",
            self.tier
                .as_ref()
                .map(|words| words.iter().map(ToString::to_string).collect()),
        );
        add("tenant", texts(&self.tenant));
        add(
            "size",
            self.size.map(|(sign, edge)| vec![format!("{sign} {edge}")]),
        );
        format!("{{ {} }}", fields.join(", "))
    }
}

/// As `.gitignore` has it: the path or a directory above it matches.
pub(crate) fn glob_matches(glob: &str, path: &str) -> bool {
    let (root, body) = match glob.split_once('/') {
        Some((root, body)) if root.starts_with('@') => (root, body),
        _ => ("", glob),
    };
    let (path_root, below) = match path.strip_prefix('/') {
        Some(below) => ("", below),
        None => path.split_once('/').unwrap_or((path, "")),
    };
    if root != path_root {
        return false;
    }
    let body = body.strip_suffix('/').unwrap_or(body);
    let anchored = body.contains('/') || body == "**";
    let body = body.strip_prefix('/').unwrap_or(body);
    let mut parts: Vec<&str> = body.split('/').collect();
    if !anchored {
        parts.insert(0, "**");
    }
    let names: Vec<&str> = below.split('/').filter(|name| !name.is_empty()).collect();
    let whole = body != "**" && body.ends_with("**");
    (0..=names.len()).any(|length| parts_match(&parts, &names[..length], whole))
}

fn parts_match(parts: &[&str], names: &[&str], last_needs_one: bool) -> bool {
    match (parts, names) {
        ([], names) => names.is_empty(),
        (["**"], names) => !last_needs_one || !names.is_empty(),
        (["**", rest @ ..], names) => {
            (0..=names.len()).any(|skip| parts_match(rest, &names[skip..], last_needs_one))
        }
        ([_, ..], []) => false,
        ([part, parts @ ..], [name, names @ ..]) => {
            let (part, name): (Vec<char>, Vec<char>) =
                (part.chars().collect(), name.chars().collect());
            name_matches(&part, &name) && parts_match(parts, names, last_needs_one)
        }
    }
}

fn name_matches(part: &[char], name: &[char]) -> bool {
    match (part, name) {
        ([], []) => true,
        (['*', rest @ ..], name) => (0..=name.len()).any(|skip| name_matches(rest, &name[skip..])),
        (['?', part @ ..], [_, name @ ..]) => name_matches(part, name),
        ([a, part @ ..], [b, name @ ..]) if a == b => name_matches(part, name),
        _ => false,
    }
}

pub(crate) fn yaml(rules: &[RuleModel]) -> String {
    let mut text = String::new();
    for rule in rules {
        let effect = match rule.effect {
            Do::Allow => "allow",
            Do::Deny => "deny",
            Do::Review => "require_review",
            Do::Pass => "pass",
        };
        let except: Vec<String> = rule.except.iter().map(When::yaml).collect();
        let constraints = rule
            .max_size
            .map(|limit| format!(", constraints: {{ max_file_size: {limit} }}"));
        writeln!(
            text,
            "  - {{ name: {}, match: {}, do: {effect}, except: [{}]{} }}",
            rule.name,
            rule.when.yaml(),
            except.join(", "),
            constraints.unwrap_or_default(),
        )
        .unwrap();
    }
    if text.is_empty() {
        "  []\n".to_owned()
    } else {
        text
    }
}

fn some_of(values: &'static [&'static str]) -> impl Strategy<Value = Option<Vec<&'static str>>> {
    prop::option::weighted(
        0.25,
        prop::collection::vec(prop::sample::select(values), 1..3),
    )
}

fn glob() -> impl Strategy<Value = String> {
    let name = prop::sample::select(vec!["a", "b", "c.rs", "*", "**", "*.rs", "a*", "?"]);
    let parts = prop::collection::vec(name, 1..4).prop_map(|parts| parts.join("/"));
    (
        prop::sample::select(vec!["", "/", "@data/"]),
        parts,
        prop::sample::select(vec!["", "/"]),
    )
        .prop_map(|(start, parts, end)| format!("{start}{parts}{end}"))
}

fn globs() -> impl Strategy<Value = Vec<String>> {
    (
        prop::collection::vec(glob(), 1..3),
        prop::option::weighted(0.3, glob()),
    )
        .prop_map(|(mut list, exclude)| {
            list.extend(exclude.map(|glob| format!("!{glob}")));
            list
        })
}

fn when() -> impl Strategy<Value = When> {
    let actions = prop::option::weighted(
        0.8,
        prop::collection::vec(
            prop::sample::select(vec![
                "fs.write",
                "fs.read",
                "fs.*",
                "net.connect",
                "plugin.ab.*",
                "plugin.ab.run",
                "plugin.*",
                "git.log",
            ]),
            1..3,
        ),
    );
    let words = (
        prop::option::weighted(
            0.2,
            prop::collection::vec(
                prop::sample::select(vec![Mode::Strict, Mode::Explore]),
                1..3,
            ),
        ),
        prop::option::weighted(
            0.2,
            prop::collection::vec(prop::sample::select(vec![Tier::Process, Tier::Wasm]), 1..3),
        ),
        prop::option::weighted(
            0.2,
            (
                prop::sample::select(vec!["<", "<=", ">", ">=", "="]),
                0u64..4,
            ),
        ),
    );
    (
        actions,
        prop::option::weighted(0.4, globs()),
        some_of(&["x.com", "*.x.com", "y.x.com", "z.org"]),
        some_of(&["agent", "other"]),
        some_of(&["new", "old"]),
        some_of(&["t1", "t2"]),
        words,
    )
        .prop_map(
            |(action, path, host, caller, tag, tenant, (mode, tier, size))| When {
                action,
                path,
                host,
                caller,
                tag,
                mode,
                tier,
                tenant,
                size,
            },
        )
}

fn rule() -> impl Strategy<Value = RuleModel> {
    let effect = prop::sample::select(vec![
        Do::Allow,
        Do::Allow,
        Do::Allow,
        Do::Deny,
        Do::Review,
        Do::Pass,
    ]);
    let nonempty = when().prop_filter("an except says something", |when| *when != When::default());
    let except = prop_oneof![3 => Just(Vec::new()), 1 => prop::collection::vec(nonempty, 1..3)];
    (effect, when(), except, prop::option::weighted(0.2, 0u64..4)).prop_map(
        |(effect, when, except, max_size)| RuleModel {
            name: String::new(),
            effect,
            when,
            except,
            max_size: max_size.filter(|_| effect == Do::Allow),
        },
    )
}

pub(crate) fn policy() -> impl Strategy<Value = Vec<RuleModel>> {
    prop::collection::vec(rule(), 0..12).prop_map(|rules| {
        let number = |(number, rule): (usize, RuleModel)| RuleModel {
            name: format!("r{number:02}"),
            ..rule
        };
        rules.into_iter().enumerate().map(number).collect()
    })
}

pub(crate) fn extra() -> impl Strategy<Value = When> {
    when().prop_filter("an except says something", |when| *when != When::default())
}

pub(crate) fn requests() -> impl Strategy<Value = Request> {
    let path = prop::sample::select(vec![
        "/a",
        "/b",
        "/a/b",
        "/a/c.rs",
        "/a/b/c.rs",
        "/b/a/a",
        "/c.rs",
        "@data/a",
        "@data/a/b",
        "/",
        "/ab/b",
    ]);
    let target = prop_oneof![
        4 => (prop::sample::select(vec!["fs.write", "fs.read", "plugin.ab.run"]), path).prop_map(|(action, path)| (action, Some(path))),
        1 => prop::sample::select(vec!["a", "a/b", "b/a/a", "ab/b"]).prop_map(|object| ("env.deploy", Some(object))),
        1 => prop::sample::select(vec!["x.com:443", "y.x.com:443", "a.y.x.com:80", "z.org:1", "zx.com:1"]).prop_map(|host| ("net.connect", Some(host))),
        1 => prop::sample::select(vec!["git.log", "plugin.ab.other", "plugin.cd.run"]).prop_map(|action| (action, None)),
    ];
    let context = (
        prop::option::of(prop::sample::select(vec![
            Mode::Strict,
            Mode::Explore,
            Mode::Debug,
        ])),
        prop::option::of(prop::sample::select(vec![
            Tier::Process,
            Tier::Wasm,
            Tier::Microvm,
        ])),
        prop::option::of(prop::sample::select(vec!["t1", "t2", "t3"])),
        prop::option::of(0u64..4),
    );
    let principal = (
        prop::sample::select(vec!["agent", "other", "third"]),
        prop::sample::subsequence(vec!["new", "old", "odd"], 0..3),
    );
    (target, context, principal).prop_map(
        |((action, resource), (mode, tier, tenant, size), (name, tags))| {
            let mut request = super::request(action, resource);
            request.principal.name = name.to_owned();
            request.principal.tags = tags.into_iter().map(str::to_owned).collect();
            request.context.mode = mode;
            request.context.tier = tier;
            request.context.tenant = tenant.map(str::to_owned);
            request.context.size = size;
            // A whole address, so that host rules have all they ask for.
            request
        },
    )
}
