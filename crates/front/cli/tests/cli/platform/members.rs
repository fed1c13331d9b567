//! People and their roles, as they are typed and shown; and what a server says
//! to a command of a version that it does not serve.

use fluffy_api::operation::Operation;
use fluffy_api::problem::Problem;
use serde_json::{Value, json};

use super::double::Reply;
use super::{MANIFEST, local};

fn member(number: u32, role: &str, path: Option<&str>) -> Value {
    json!({
        "id": format!("mem_0000000000000000000000000{number}"), "org_id": "org_1",
        "app_id": null, "env_id": null, "path": path, "role": role, "email": "a@example.com",
        "principal_id": "usr_1", "status": "active", "version": 1,
        "created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-01-01T00:00:00Z",
    })
}

#[test]
fn a_role_is_bound_where_the_command_names_an_app_or_env() {
    let (mut site, double) = local(|asked| match asked.operation {
        Operation::ListMembers => Reply::Json(200, json!({"items": [], "next_cursor": null})),
        _ => Reply::Json(201, member(1, "developer", Some("local/shop/staging"))),
    });
    let add = ["members", "add", "a@example.com", "--role", "developer"];
    let shown = site.succeeds(&[&add[..], &["--app", "shop", "--env", "staging"]].concat());
    let on = shown
        .lines()
        .find(|line| line.trim_start().starts_with("on "));
    assert!(on.unwrap().ends_with(" local/shop/staging"), "{shown}");
    let asked = double.asked().pop().unwrap();
    assert_eq!(asked.path, ["local"]);
    let body = json!({
        "email": "a@example.com", "role": "developer", "app": "shop", "env": "staging",
    });
    assert_eq!(asked.body, body);
    // Who is in already is named as the principal that they are.
    let words = "members add --principal usr_1 --role viewer --app shop";
    site.succeeds(&words.split(' ').collect::<Vec<_>>());
    let asked = double.asked().pop().unwrap();
    let body = json!({ "principal_id": "usr_1", "role": "viewer", "app": "shop" });
    assert_eq!(asked.body, body);
    // What only happens to be the target binds nothing.
    site.context.write("fluffy.toml", MANIFEST).unwrap();
    site.succeeds(&["context", "set", "here", "--app", "shop", "--env", "dev"]);
    site.context.set("FLUFFY_ENV", "prod");
    site.succeeds(&add);
    let asked = double.asked().pop().unwrap();
    assert_eq!(
        asked.body,
        json!({ "email": "a@example.com", "role": "developer" })
    );
    site.ends(0, &["members", "list"]);
    assert_eq!(double.asked().pop().unwrap().query, "");
    site.ends(0, &["members", "list", "--app", "shop", "--env", "dev"]);
    let query = double.asked().pop().unwrap().query;
    let mut query: Vec<&str> = query.split('&').collect();
    query.sort_unstable();
    assert_eq!(query, ["app=shop", "env=dev"]);
}

#[test]
fn a_list_of_members_says_what_each_role_is_on() {
    let (site, _double) = local(|_| {
        let items = [
            member(1, "admin", Some("local")),
            member(2, "developer", Some("local/shop/staging")),
            member(3, "viewer", None),
        ];
        Reply::Json(200, json!({"items": items, "next_cursor": null}))
    });
    let shown = site.succeeds(&["members", "list"]);
    let lines: Vec<Vec<&str>> = shown
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(lines[0][1..4], ["EMAIL", "ROLE", "ON"]);
    let on: Vec<&str> = lines[1..].iter().map(|line| line[3]).collect();
    assert_eq!(on, ["local", "local/shop/staging", "gone"]);
    let shown = site.json(0, &["members", "list"]);
    assert_eq!(shown["items"][1]["path"], "local/shop/staging");
    assert_eq!(shown["items"][2]["path"], Value::Null);
}

#[test]
fn who_am_i_says_every_role_and_what_it_is_on() {
    let (site, _double) = local(|_| {
        let roles = json!([
            { "role": "viewer", "path": "acme/shop" },
            { "role": "developer", "path": "acme/shop/dev" },
        ]);
        Reply::Json(
            200,
            json!({
                "principal_id": "usr_1", "kind": "user", "credential": "tok_1",
                "on_behalf_of": null, "platform_operator": false, "expires_at": null,
                "orgs": [{ "org_id": "org_1", "slug": "acme", "role": null, "roles": roles }],
                "effective_patterns": ["app.read.acme/shop", "env.deploy.acme/shop/dev"],
            }),
        )
    });
    let shown = site.succeeds(&["whoami"]);
    for part in ["acme/shop/dev", "developer", "env.deploy.acme/shop/dev"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let shown = site.json(0, &["whoami"]);
    assert_eq!(shown["data"]["orgs"][0]["roles"][1]["role"], "developer");
}

#[test]
fn a_command_says_its_version_and_what_to_do_if_it_is_not_served() {
    let (site, double) = local(|_| {
        let mut problem = Problem::new(
            "version_unsupported",
            "this server is fluffy 3.4 and serves commands of 3.2 to 3.4; this one is 0.1",
            "install fluffy 3.4, or one that is not older than 3.2",
        );
        problem.details.insert("needed".into(), "3.2".into());
        Reply::Json(problem.status, serde_json::to_value(problem).unwrap())
    });
    let finished = site.ends(2, &["apps", "list"]);
    for part in [
        "this version is not supported",
        "3.2 to 3.4",
        "install fluffy 3.4",
    ] {
        assert!(finished.stderr.contains(part), "{}", finished.stderr);
    }
    let asked = double.asked();
    let version = &asked[0].headers["fluffy-client-version"];
    assert_eq!(version, env!("CARGO_PKG_VERSION"));
}
