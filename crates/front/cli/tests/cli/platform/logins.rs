//! Who a context is logged in as, and where its token goes.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;

use fluffy_api::operation::Operation;
use serde_json::{Value, json};

use super::double::{Asked, Double, Reply, refused};
use super::local;
use crate::site::Site;

fn whoami() -> Value {
    json!({"principal_id": "usr_1", "kind": "user", "credential": "tok_1"})
}

/// Runs a command that reads something secret; it must succeed.
pub(crate) fn piped(site: &Site, words: &[&str], secret: &str) -> String {
    let mut command = site.context.command();
    command
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(secret.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{shown}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    shown
}

fn authorization(asked: &Asked) -> Option<&str> {
    asked.headers.get("authorization").map(String::as_str)
}

#[test]
fn an_invite_logs_in_and_the_token_is_only_for_this_user_and_server() {
    let (site, double) = local(|asked| match asked.operation {
        Operation::ExchangeToken => Reply::Json(
            200,
            json!({
                "access_token": "flf_at_marked", "refresh_token": "flf_rt_marked",
                "token_type": "Bearer", "expires_in": 900, "principal_id": "usr_1",
            }),
        ),
        _ => Reply::Json(200, whoami()),
    });
    let socket = format!("unix:{}", double.path.display());
    site.succeeds(&[
        "context", "set", "work", "--server", &socket, "--org", "acme",
    ]);
    let shown = piped(&site, &["login", "--invite"], "code-1\n");
    assert!(
        shown.contains("usr_1") && !shown.contains("marked"),
        "{shown}"
    );
    let asked = double.asked();
    assert_eq!(
        asked[0].body,
        json!({"grant_type": "invite", "code": "code-1"})
    );
    assert_eq!(authorization(&asked[0]), None);
    assert_eq!(authorization(&asked[1]), Some("Bearer flf_at_marked"));
    let file = site.state().join("logins/work.json");
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    // Another server under the same name, and another name, get nothing.
    let other = Double::start(&site.context.home().join("other.sock"), |_| {
        Reply::Json(200, whoami())
    });
    let address = format!("unix:{}", other.path.display());
    site.succeeds(&["whoami", "--server", &address]);
    site.succeeds(&["context", "set", "work", "--server", &address]);
    site.succeeds(&["whoami"]);
    for asked in other.asked() {
        assert_eq!(authorization(&asked), None, "{asked:?}");
    }
    // The control: its own server does.
    site.succeeds(&["context", "set", "work", "--server", &socket]);
    site.succeeds(&["whoami"]);
    assert_eq!(
        authorization(&double.asked()[0]),
        Some("Bearer flf_at_marked")
    );
    site.succeeds(&["logout"]);
    assert!(!file.exists());
    assert_eq!(double.asked()[0].operation, Operation::RevokeOwnToken);
}

#[test]
fn a_token_that_expired_is_exchanged_once() {
    let (site, double) = local(|asked| match (asked.operation, authorization(asked)) {
        (Operation::ExchangeToken, _) if asked.body["grant_type"] == "refresh_token" => {
            assert_eq!(asked.body["refresh_token"], "first-refresh");
            Reply::Json(
                200,
                json!({"access_token": "second", "refresh_token": "second-refresh"}),
            )
        }
        (Operation::ExchangeToken, _) => Reply::Json(
            200,
            json!({"access_token": "first", "refresh_token": "first-refresh"}),
        ),
        (Operation::ListApps, Some("Bearer first")) => refused("token_expired"),
        (Operation::ListApps, Some("Bearer second")) => {
            Reply::Json(200, json!({"items": [], "next_cursor": null}))
        }
        _ => Reply::Json(200, whoami()),
    });
    piped(&site, &["login", "--client-id", "sp_1"], "secret-1\n");
    site.succeeds(&["apps", "list"]);
    double.asked();
    site.succeeds(&["apps", "list"]);
    let asked = double.asked();
    assert_eq!(asked.len(), 1, "the new token was kept: {asked:?}");
}

#[test]
fn a_token_that_opens_nothing_is_not_kept() {
    let (mut site, double) = local(|asked| match authorization(asked) {
        Some("Bearer good") => Reply::Json(200, whoami()),
        _ => refused("unauthenticated"),
    });
    let mut command = site.context.command();
    command
        .arg("login")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"bad\n").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(3));
    assert!(!site.state().join("logins/local.json").exists());
    piped(&site, &["login"], "good\n");
    site.succeeds(&["whoami"]);
    // A variable is for its call, before what is kept.
    site.context.set("FLUFFY_TOKEN", "other");
    double.asked();
    site.ends(3, &["whoami"]);
    assert_eq!(authorization(&double.asked()[0]), Some("Bearer other"));
}

#[test]
fn contexts_are_kept_chosen_and_forgotten() {
    let site = Site::empty();
    assert!(site.succeeds(&["context", "list"]).contains("fluffy up"));
    site.succeeds(&[
        "context",
        "set",
        "work",
        "--server",
        "https://a.example:7443",
        "--org",
        "acme",
    ]);
    site.succeeds(&["context", "set", "home", "--org", "me"]);
    insta::assert_snapshot!(site.succeeds(&["context", "list"]), @"
       NAME  SERVER                  ORG   APP  ENV
       home  (local)                 me
    *  work  https://a.example:7443  acme
    ");
    site.succeeds(&["context", "use", "home"]);
    assert_eq!(site.json(0, &["context", "show"])["data"]["name"], "home");
    site.succeeds(&["context", "set", "work", "--org", ""]);
    assert_eq!(
        site.json(0, &["context", "show", "work"])["data"]["org"],
        Value::Null
    );
    site.succeeds(&["context", "remove", "home"]);
    site.ends(4, &["context", "use", "home"]);
    let file = site.context.home().join(".config/fluffy/contexts.toml");
    std::fs::write(&file, "current = 3\n").unwrap();
    let finished = site.ends(2, &["context", "list"]);
    assert!(
        finished.stderr.contains("contexts.toml"),
        "{}",
        finished.stderr
    );
}
