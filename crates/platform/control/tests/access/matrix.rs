//! The authorization matrix: every operation for everybody, as a table.
//!
//! A new operation is not in the table until somebody says for whom it is. Run
//! with `UPDATE_GOLDEN=1` to write the table anew, and read the difference.

use std::fmt::Write as _;
use std::path::Path;

use fluffy_api::Operation;
use fluffy_api::operation::Kind;
use fluffy_base::id::TokenId;
use fluffy_control::event::{Body, OrgMemberAdded, PolicyVersionSet};
use fluffy_control::{Caller, Fact, Outcome, Owner, Request};
use serde_json::json;

use crate::fixtures;
use crate::ground::{HOUR, With, World, anonymous, issued, local, node};

const GOLDEN: &str = "tests/fixtures/matrix.txt";

/// What a column asks of which env.
struct Column {
    name: &'static str,
    caller: Caller,
    env: &'static str,
}

#[test]
fn everybody_may_do_what_the_table_says_and_nothing_else() {
    let mut world = World::empty();
    let columns = people(&mut world);
    let mut table = String::from(
        "# y allowed  r needs a review  n forbidden  o org_access_denied  p policy_denied\n\
         # - not known  x needs the token of its session\n",
    );
    for (at, column) in columns.iter().enumerate() {
        writeln!(table, "# {:2} {}", at + 1, column.name).unwrap();
    }
    for operation in Operation::ALL {
        let id = operation.spec().id;
        let cells: Vec<&str> = columns
            .iter()
            .map(|column| cell(&world, column, *operation))
            .collect();
        writeln!(table, "{id:24} {}", cells.join(" ")).unwrap();
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(GOLDEN);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &table).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    for (number, (new, old)) in table.lines().zip(expected.lines()).enumerate() {
        assert_eq!(new, old, "line {} of {GOLDEN}", number + 1);
    }
    assert_eq!(table.lines().count(), expected.lines().count());
}

fn people(world: &mut World) -> Vec<Column> {
    // The objects of all examples, so that every path leads somewhere.
    world.record(fixtures::made());
    let acme = world.named("acme");
    let shop = Owner {
        app: acme
            .org
            .and_then(|org| world.state.access.names.app(org, "shop")),
        ..acme
    };
    world.env(shop, "prod", true);
    world.org("umbra");
    let mut columns = Vec::new();
    let mut add = |name, caller: &Caller, env| {
        columns.push(Column {
            name,
            caller: caller.clone(),
            env,
        });
    };
    for role in ["viewer", "developer", "operator", "admin", "owner"] {
        let member = world.member(Some("acme"), role);
        add(role, &member, "dev");
        if role == "developer" {
            add("developer in a protected env", &member, "prod");
        }
    }
    let dev = world.state.access.names.env(shop.app.unwrap(), "dev");
    let dev = Owner { env: dev, ..shop };
    for (name, role, on, env) in [
        ("viewer of the env", "viewer", dev, "dev"),
        ("developer of the env", "developer", dev, "dev"),
        ("operator of the env", "operator", dev, "dev"),
        ("owner of the env", "owner", dev, "dev"),
        ("owner of the env, in another", "owner", dev, "prod"),
        ("developer of the app", "developer", shop, "dev"),
        (
            "developer of the app, in a protected env",
            "developer",
            shop,
            "prod",
        ),
        ("admin of the app", "admin", shop, "prod"),
    ] {
        let bound = world.person();
        world.join(&bound, on, role);
        add(name, &bound, env);
    }
    let blog = world.app(acme, "blog");
    let elsewhere = world.person();
    world.join(&elsewhere, blog, "owner");
    add("owner of another app", &elsewhere, "dev");
    let operator = world.member(None, "platform_operator");
    add("platform operator", &operator, "dev");
    add("nobody in the org", &world.person(), "dev");
    let other = world.member(Some("umbra"), "owner");
    add("owner of another org", &other, "dev");
    let exec = world.person();
    let org = acme.org.unwrap().to_string();
    let below = [format!("{org}/{}/*", shop.app.unwrap())];
    world.give(&exec, "instance.exec.acme/shop/*", &below, HOUR);
    add("exec granted, nothing else", &exec, "dev");
    let late = world.person();
    world.give(&late, "*.acme/*", &[format!("{org}/*")], HOUR / 60);
    world.pass(HOUR / 30);
    add("everything granted, expired", &late, "dev");
    add(
        "owner with a token for app.read",
        &below_ceiling(world, &org),
        "dev",
    );
    let denied = world.member(Some("acme"), "owner");
    let reviewed = world.member(Some("acme"), "owner");
    rules(world, acme, &denied, &reviewed);
    add("owner whom a rule denies", &denied, "dev");
    add("owner whom a rule reviews", &reviewed, "dev");
    add("node", &node(), "dev");
    add("local, of another org", &local(), "dev");
    add("expired token", &expired(world), "dev");
    add("nobody at all", &anonymous(), "dev");
    columns
}

fn below_ceiling(world: &mut World, org: &str) -> Caller {
    let owner = world.member(Some("acme"), "owner");
    let token = TokenId::from_bits(world.id());
    let mut issued = issued("api", &owner.actor.id, world.now.after(HOUR));
    issued.ceiling = Some(vec![format!("app.read.{org}/*")]);
    let scope = world.named("acme").scope();
    world.record(vec![Fact::new(token, issued.into()).of(&scope)]);
    fluffy_control::access::caller_of_token(&world.state, token).unwrap()
}

fn expired(world: &mut World) -> Caller {
    let person = world.person();
    let token = TokenId::from_bits(world.id());
    let issued = issued("api", &person.actor.id, world.now);
    world.record(vec![Fact::new(token, issued.into())]);
    let added = OrgMemberAdded {
        principal_id: person.actor.id,
        role: "owner".to_owned(),
        email_hash: String::new(),
    };
    let scope = world.named("acme").scope();
    let id = fluffy_base::id::MemberId::from_bits(world.id());
    world.record(vec![Fact::new(id, added.into()).of(&scope)]);
    fluffy_control::access::caller_of_token(&world.state, token).unwrap()
}

fn rules(world: &mut World, acme: Owner, denied: &Caller, reviewed: &Caller) {
    let text = format!(
        "version: 1\ncapabilities:\n\
         - {{ name: never, match: {{ caller: [{}] }}, do: deny }}\n\
         - {{ name: look, match: {{ caller: [{}] }}, do: require_review }}\n",
        denied.actor.id, reviewed.actor.id
    );
    let set = PolicyVersionSet {
        policy_hash: fluffy_base::Digest::of(text.as_bytes()),
        rules: text,
    };
    let id = acme.org.unwrap();
    world.record(vec![Fact::new(id, set.into()).of(&acme.scope())]);
}

fn cell(world: &World, column: &Column, operation: Operation) -> &'static str {
    let path = path_of(operation, column.env);
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    let mut request = Request::new(operation, &path);
    request.body = Some(json!({}));
    if operation.spec().kind == Kind::Write {
        // With a key every decision is recorded, whatever comes of it.
        let with = With {
            key: Some("a-key-of-mine"),
            if_match: None,
        };
        let written = world.decide(&column.caller, &request, with);
        return match (&written.outcome, outcome_of(&written.facts)) {
            (Outcome::Refused(refusal), None | Some("deny")) => symbol(refusal.code),
            (_, Some("review")) => "r",
            _ => "y",
        };
    }
    let read = world.read(&column.caller, &request);
    match (&read.result, outcome_of(&read.facts)) {
        (Err(refusal), Some("deny" | "review") | None) => symbol(refusal.code),
        _ => "y",
    }
}

/// A path of an operation on which something is.
pub(crate) fn path_of(operation: Operation, env: &str) -> Vec<String> {
    let params = operation.spec().path_params();
    params.map(|param| value_of(param, env)).collect()
}

fn outcome_of(facts: &[Fact]) -> Option<&str> {
    facts.iter().rev().find_map(|fact| match &fact.body {
        Body::AuthzDecided(decided) => Some(decided.outcome.as_str()),
        _ => None,
    })
}

fn symbol(code: &str) -> &'static str {
    match code {
        "forbidden" => "n",
        "org_access_denied" => "o",
        "policy_denied" => "p",
        "unauthenticated" | "token_expired" => "-",
        "exec_token_invalid" => "x",
        _ => "y",
    }
}

fn value_of(param: &str, env: &str) -> String {
    let prefix = match param {
        "org" => return "acme".to_owned(),
        "app" => return "shop".to_owned(),
        "env" => return env.to_owned(),
        "key" => return "mk_00000001".to_owned(),
        "approval" => "apr",
        "attachment" => "vat",
        "deploy" | "operation" => "dep",
        "enrollment_token" => "ent",
        "exec" => "exec",
        "grant" => "grt",
        "instance" => "inst",
        "member" => "mem",
        "node" => "node",
        "principal" => "sp",
        "project" => "prj",
        "release" => "rel",
        "route" => "rt",
        "snapshot" => "snap",
        "token" => "tok",
        "volume" => "vol",
        other => panic!("no example of `{other}`"),
    };
    format!("{prefix}_01J00000000000000000000001")
}
