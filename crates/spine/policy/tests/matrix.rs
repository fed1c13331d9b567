//! The golden authorization matrix: every action by every role.
//!
//! The rows come from the registry, so an action that nobody thought about
//! appears here by itself. Run with `UPDATE_GOLDEN=1` to write the file anew,
//! and read the difference before committing it.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "tests")]

mod support;

use std::fmt::Write as _;
use std::sync::Arc;

use fluffy_policy::action::{ACTIONS, Action, ResourceKind};
use fluffy_policy::document::PolicyFile;
use fluffy_policy::grant::{Grant, GrantLists};
use fluffy_policy::role::{Environment, Role, Scope};
use fluffy_policy::rule::Origin;
use fluffy_policy::starter::PLATFORM;
use fluffy_policy::word::State;
use fluffy_policy::{Engine, Request, Sources, Verdict};
use support::*;

const GOLDEN: &str = "tests/golden/matrix.txt";

fn scope() -> Scope {
    let environment = |object: &str, protected| Environment {
        object: object.into(),
        protected,
    };
    Scope {
        object: "acme".into(),
        environments: vec![
            environment("acme/shop/dev", false),
            environment("acme/shop/prod", true),
        ],
    }
}

fn resources(action: &Action) -> Vec<Option<&'static str>> {
    match action.resource {
        ResourceKind::None | ResourceKind::Free => vec![None],
        ResourceKind::Path => vec![Some("/src/lib.rs")],
        ResourceKind::Address => vec![Some("example.com:443")],
        ResourceKind::Object => {
            vec![
                Some("acme/shop/dev"),
                Some("acme/shop/prod"),
                Some("other/app/dev"),
            ]
        }
        ResourceKind::Name => vec![Some("name")],
    }
}

fn letter(verdict: Verdict) -> char {
    match verdict {
        Verdict::Allow => 'A',
        Verdict::Deny => '-',
        Verdict::RequireReview => 'R',
    }
}

fn cell(engine: &Engine, make: &dyn Fn(Option<&str>) -> Request, action: &Action) -> String {
    let decide = |resource: Option<&str>| letter(decide(engine, &make(resource)).verdict());
    resources(action).into_iter().map(decide).collect()
}

fn matrix() -> String {
    let platform = PolicyFile::parse(PLATFORM, Origin::Shipped).unwrap();
    let platform = Engine::build(vec![platform], 1);
    let starter = Engine::load(&Sources::default(), 1).unwrap();
    let mut text = String::from(
        "# A allow, R require_review, - deny. Objects: an open environment, a protected\n\
         # one, another tenant's. The agent holds every grant, in a sandbox.\n",
    );
    write!(text, "{:<28}", "action").unwrap();
    for role in Role::ALL {
        write!(text, "{:<19}", role.name()).unwrap();
    }
    text.push_str("agent with starter\n");
    for action in ACTIONS {
        write!(text, "{:<28}", action.name).unwrap();
        for role in Role::ALL {
            let grant = Grant::build(&GrantLists {
                capabilities: role.patterns(&scope()),
                deny_capabilities: vec![],
                workspace: vec!["*".into()],
                user: vec!["*".into()],
            });
            let grant = Arc::new(grant.unwrap());
            let make = |resource: Option<&str>| {
                let mut request = request(action.name, resource);
                request.principal.grant = Some(Arc::clone(&grant));
                request
            };
            write!(text, "{:<19}", cell(&platform, &make, action)).unwrap();
        }
        let make = |resource: Option<&str>| {
            let mut request = request(action.name, resource);
            request.context.template = Some("code-executor".into());
            request.context.state = Some(State::CodeWriting);
            request.context.size = Some(100);
            request.context.lines = Some(10);
            request
        };
        writeln!(text, "{}", cell(&starter, &make, action)).unwrap();
    }
    text
}

#[test]
fn the_matrix_is_as_reviewed() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(GOLDEN);
    let actual = matrix();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &actual).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    for (number, (new, old)) in actual.lines().zip(expected.lines()).enumerate() {
        assert_eq!(new, old, "line {} of {GOLDEN}", number + 1);
    }
    assert_eq!(actual.lines().count(), expected.lines().count());
}

#[test]
fn no_role_of_a_tenant_reaches_another_tenant() {
    let tenant_roles = Role::ALL.len() - 1;
    let text = matrix();
    let cells = text.lines().skip(3).flat_map(|line| {
        let cells = line.split_whitespace().skip(1).take(tenant_roles);
        cells.map(move |cell| (line, cell))
    });
    let mut objects = 0;
    for (line, cell) in cells.filter(|(_, cell)| cell.len() == 3) {
        assert!(cell.ends_with('-'), "{line}");
        objects += 1;
    }
    assert!(objects > 100, "the matrix has objects: {objects}");
}
