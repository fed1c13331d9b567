//! Who a context is logged in as, and where its token goes.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

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

/// How many commands come at once.
const CROWD: usize = 8;

/// A server whose refresh tokens are good for once: one that is sent again
/// ends the login, as the real one does. Before it exchanges the first, it
/// waits until everybody was told that their token is old.
fn jealous(crowd: usize) -> (Site, Double) {
    let (generation, expired) = (Mutex::new((0_usize, false)), AtomicUsize::new(0));
    local(move |asked| {
        let (now, ended) = *generation.lock().unwrap();
        match asked.operation {
            Operation::ExchangeToken if asked.body["grant_type"] == "refresh_token" => {
                wait_until("everybody was refused", || {
                    expired.load(Ordering::SeqCst) >= crowd
                });
                let mut held = generation.lock().unwrap();
                if asked.body["refresh_token"] != format!("refresh-{}", held.0) {
                    held.1 = true;
                    return refused("invalid_grant");
                }
                held.0 += 1;
                Reply::Json(200, tokens(held.0))
            }
            Operation::ExchangeToken => Reply::Json(200, tokens(0)),
            Operation::ListApps if ended => refused("token_revoked"),
            Operation::ListApps => {
                let good = format!("Bearer access-{now}");
                if now > 0 && authorization(asked) == Some(&good) {
                    return Reply::Json(200, json!({"items": [], "next_cursor": null}));
                }
                expired.fetch_add(1, Ordering::SeqCst);
                refused("token_expired")
            }
            _ => Reply::Json(200, whoami()),
        }
    })
}

fn tokens(generation: usize) -> Value {
    json!({
        "access_token": format!("access-{generation}"),
        "refresh_token": format!("refresh-{generation}"),
    })
}

fn wait_until(what: &str, done: impl Fn() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(60), "never: {what}");
        thread::yield_now();
    }
}

/// Runs commands at the same time, each in a context; how each ended.
fn at_once(site: &Site, contexts: &[&str]) -> Vec<Option<i32>> {
    let start = |context: &&str| {
        let mut command = site.context.command();
        command.args(["apps", "list", "--context", context]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().unwrap()
    };
    let children: Vec<_> = contexts.iter().map(start).collect();
    let ends = children.into_iter().map(|mut it| it.wait().unwrap().code());
    ends.collect()
}

#[test]
fn commands_at_the_same_time_keep_the_login() {
    let (site, double) = jealous(CROWD);
    site.succeeds(&["context", "set", "work", "--org", "acme"]);
    piped(&site, &["login", "--client-id", "sp_1"], "secret-1\n");
    double.asked();
    assert_eq!(at_once(&site, &["work"; CROWD]), [Some(0); CROWD]);
    let asked = double.asked();
    let exchanges = asked.iter();
    let exchanges = exchanges.filter(|it| it.operation == Operation::ExchangeToken);
    assert_eq!(exchanges.count(), 1, "{asked:?}");
    site.succeeds(&["apps", "list"]);
    // The control: without a lock between them the same token is sent twice,
    // and the login is over.
    let (site, _double) = jealous(2);
    site.succeeds(&["context", "set", "one", "--org", "acme"]);
    site.succeeds(&["context", "set", "two", "--org", "acme"]);
    piped(&site, &["login", "--client-id", "sp_1"], "secret-1\n");
    let logins = site.state().join("logins");
    std::fs::copy(logins.join("one.json"), logins.join("two.json")).unwrap();
    let ends = at_once(&site, &["one", "two"]);
    assert!(ends.iter().any(|end| *end != Some(0)), "{ends:?}");
    assert_eq!(at_once(&site, &["one"]), [Some(3)]);
}

#[test]
fn a_write_elsewhere_leaves_the_login_alone() {
    let (mut site, double) = local(|asked| match asked.operation {
        Operation::ExchangeToken => Reply::Json(200, tokens(0)),
        Operation::CreateApp => Reply::Json(201, json!({"id": "app_1", "name": "shop"})),
        _ => Reply::Json(200, whoami()),
    });
    let socket = format!("unix:{}", double.path.display());
    let context = [
        "context", "set", "work", "--server", &socket, "--org", "acme",
    ];
    site.succeeds(&context);
    piped(&site, &["login", "--client-id", "sp_1"], "secret-1\n");
    let file = site.state().join("logins/work.json");
    let kept = std::fs::read(&file).unwrap();
    let other = Double::start(
        &site.context.home().join("other.sock"),
        |asked| match asked.operation {
            Operation::ExchangeToken => Reply::Json(200, tokens(7)),
            Operation::CreateApp => Reply::Json(201, json!({"id": "app_2", "name": "shop"})),
            _ => Reply::Json(200, whoami()),
        },
    );
    let address = format!("unix:{}", other.path.display());
    site.succeeds(&["apps", "create", "shop", "--server", &address]);
    site.context.set("FLUFFY_SERVER", &address);
    site.succeeds(&["apps", "create", "shop"]);
    assert_eq!(std::fs::read(&file).unwrap(), kept, "a write elsewhere");
    // A login elsewhere is kept beside it, and each server gets its own.
    piped(&site, &["login", "--client-id", "sp_1"], "secret-1\n");
    other.asked();
    site.succeeds(&["whoami"]);
    assert_eq!(authorization(&other.asked()[0]), Some("Bearer access-7"));
    site.succeeds(&["logout"]);
    site.context.set("FLUFFY_SERVER", &socket);
    double.asked();
    site.succeeds(&["apps", "create", "shop"]);
    site.succeeds(&["whoami"]);
    for asked in double.asked() {
        assert_eq!(authorization(&asked), Some("Bearer access-0"), "{asked:?}");
    }
    // The control: what its own server ends is gone.
    site.succeeds(&["logout"]);
    assert!(!file.exists());
    site.succeeds(&["context", "remove", "work"]);
    let left = std::fs::read_dir(site.state().join("logins")).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["work.lock"]);
}

#[test]
fn a_wrong_token_does_not_end_the_login_before_it() {
    let (site, _double) = local(|asked| match authorization(asked) {
        Some("Bearer good") => Reply::Json(200, whoami()),
        _ => refused("unauthenticated"),
    });
    piped(&site, &["login"], "good\n");
    let mut command = site.context.command();
    command.arg("login").stdin(Stdio::piped());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"bad\n").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(3));
    site.succeeds(&["whoami"]);
}

#[test]
fn a_context_is_shown_with_where_each_value_comes_from() {
    let mut site = Site::empty();
    let server = "https://a.example:7443";
    let context = [
        "context", "set", "work", "--server", server, "--org", "acme", "--env", "prod",
    ];
    site.succeeds(&context);
    site.context.set("FLUFFY_ENV", "staging");
    let manifest = super::MANIFEST;
    site.context.write("fluffy.toml", manifest).unwrap();
    insta::assert_snapshot!(site.succeeds(&["context", "show"]), @"
    CONTEXT  work                    FROM
    server   https://a.example:7443  context `work`
    org      acme                    context `work`
    app      shop                    fluffy.toml
    env      staging                 FLUFFY_ENV
    ");
    site.context.set("FLUFFY_TOKEN", "marked-token");
    let shown = site.json(0, &["context", "show"]);
    let env = &shown["data"]["in_force"]["env"];
    assert_eq!(env, &json!({"value": "staging", "from": "FLUFFY_ENV"}));
    assert_eq!(shown["data"]["env"], "prod", "what the context itself says");
    assert_eq!(shown["data"]["in_force"]["login"]["from"], "FLUFFY_TOKEN");
    assert!(!shown.to_string().contains("marked-token"), "{shown}");
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

/// A code is good once: what it was exchanged for is all there is of it.
#[test]
fn a_login_by_a_code_survives_a_server_that_stumbles() {
    for (code, exit, kept) in [
        ("internal", 7, Some("Bearer access-0")),
        ("token_revoked", 3, None),
    ] {
        let looks = AtomicUsize::new(0);
        let (site, double) = local(move |asked| match asked.operation {
            Operation::ExchangeToken => Reply::Json(200, tokens(0)),
            _ if looks.fetch_add(1, Ordering::SeqCst) == 0 => refused(code),
            _ => Reply::Json(200, whoami()),
        });
        let mut command = site.context.command();
        command.args(["login", "--invite"]).stdin(Stdio::piped());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(b"code-1\n").unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(exit), "{code}");
        double.asked();
        site.succeeds(&["whoami"]);
        assert_eq!(authorization(&double.asked()[0]), kept, "{code}");
    }
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
