//! What is waited for, what is not, and what waits for a person.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use fluffy_api::operation::Operation;
use fluffy_test_kit::wait_for;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::double::{Asked, Reply, refused};
use super::lived::LONG;
use super::{MANIFEST, deploying, env, local};

fn parked() -> Reply {
    let parked = json!({"approval_id": "apr_1", "expires_at": "2030-01-01T00:00:00Z"});
    Reply::Json(202, parked)
}

#[test]
fn a_release_that_waits_for_a_person_is_not_deployed() {
    let (site, double) = local(|asked| match asked.operation {
        Operation::GetEnv => Reply::Json(200, env(false)),
        Operation::CreateRelease => parked(),
        other => panic!("{other:?}"),
    });
    site.context.write("fluffy.toml", MANIFEST).unwrap();
    for words in [&["deploy"][..], &["deploys", "create"]] {
        let finished = site.ends(8, words);
        let next = "fluffy approvals approve apr_1";
        assert!(finished.stdout.contains(next), "{}", finished.stdout);
        assert!(!finished.stderr.contains("release"), "{}", finished.stderr);
    }
    let shown = site.json(8, &["deploy"]);
    assert_eq!(shown["kind"], "Parked");
    assert_eq!(shown["receipt"]["operation"], "createRelease");
    assert_eq!(
        shown["receipt"]["next"][0],
        "fluffy approvals approve apr_1"
    );
    let asked = double.asked();
    let deploys = asked.iter();
    let deploys = deploys.filter(|it| it.operation == Operation::CreateDeploy);
    assert_eq!(deploys.count(), 0);
}

#[test]
fn an_app_that_waits_for_a_person_is_not_launched() {
    let (site, double) = local(|asked| match asked.operation {
        Operation::GetApp => refused("not_found"),
        Operation::CreateApp => parked(),
        other => panic!("{other:?}"),
    });
    site.context.write("fluffy.toml", MANIFEST).unwrap();
    let finished = site.ends(8, &["launch"]);
    assert!(finished.stdout.contains("apr_1"), "{}", finished.stdout);
    assert!(!finished.stderr.contains("made"), "{}", finished.stderr);
    assert_eq!(double.asked().len(), 2);
}

#[test]
fn a_deploy_that_was_waited_for_has_a_receipt_or_its_id_alone() {
    let (site, _double) = local(deploying("succeeded"));
    site.context.write("fluffy.toml", MANIFEST).unwrap();
    let quiet = site.ends(0, &["deploy", "-q"]);
    assert_eq!((&*quiet.stdout, &*quiet.stderr), ("dep_1\n", ""));
    let shown = site.json(0, &["deploy", "--max-surge", "2"]);
    assert_eq!(shown["data"]["status"], "succeeded");
    let receipt = &shown["receipt"];
    assert_eq!(receipt["operation"], "createDeploy");
    assert_eq!(
        (&receipt["seq"], &receipt["target"]),
        (&json!(41), &json!("local/shop/dev"))
    );
    assert_eq!(receipt["ids"], json!(["dep_1"]));
    assert_eq!(receipt["changed"], json!(["options", "release_id"]));
    assert_eq!(receipt["isolation"], "shared-kernel");
    assert_eq!(receipt["next"], json!(["fluffy status"]));
}

/// What is read of something, look by look; the last stays.
fn seen(looks: &'static [&'static str], shape: fn(&str) -> Value) -> impl Fn(&Asked) -> Reply {
    let at = AtomicU32::new(0);
    move |asked| match asked.operation {
        Operation::GetEnv => Reply::Json(200, env(false)),
        Operation::GetScale => Reply::Json(200, json!({"version": 1, "processes": {}})),
        it if it.spec().is_write() => Reply::Json(it.spec().success, shape(looks[0])),
        _ => {
            let at = at.fetch_add(1, Ordering::SeqCst) as usize;
            match looks[at.min(looks.len() - 1)] {
                "" => refused("not_found"),
                word => Reply::Json(200, shape(word)),
            }
        }
    }
}

fn route(status: &str) -> Value {
    let reason = (status == "blocked").then_some("port_denied");
    json!({"id": "rt_1", "status": status, "reason": reason, "version": 1})
}

fn volume(status: &str) -> Value {
    json!({"id": "vol_1", "name": "data", "status": status})
}

fn bundle(status: &str) -> Value {
    json!({"id": "sb_1", "status": status, "keys": ["A"]})
}

/// Two wanted; as many are there as the word says.
fn groups(live: &str) -> Value {
    let live: u64 = live.parse().unwrap();
    json!({
        "env_id": "env_1", "status": "progressing", "version": 1,
        "last_deploy": {"id": "dep_1", "status": "succeeded"},
        "groups": [{"process": "web", "desired": 2, "live": live, "ready": live, "current": live,
                    "conditions": []}],
    })
}

/// What is typed, what is seen look by look and as what, how it ends, and the
/// last words.
type Case = (
    &'static str,
    &'static [&'static str],
    fn(&str) -> Value,
    i32,
    &'static str,
);

#[test]
fn other_writes_wait_if_they_are_told_to() {
    let expose = "routes expose --hostname a.example --listen-port 443 \
                  --protocol-hint tls_passthrough --backend-process web --backend-port 8080";
    let cases: [Case; 8] = [
        (
            expose,
            &["pending", "pending", "active"],
            route,
            0,
            "rt_1 active",
        ),
        (
            expose,
            &["pending", "blocked"],
            route,
            1,
            "rt_1 blocked (port_denied)",
        ),
        (
            "routes delete rt_1 --yes",
            &["deleting", "deleting", ""],
            route,
            0,
            "rt_1 deleted",
        ),
        (
            "volumes create data --size 1GiB",
            &["creating", "available"],
            volume,
            0,
            "available",
        ),
        (
            "volumes create data --size 1GiB",
            &["creating", "error"],
            volume,
            1,
            "vol_1 error",
        ),
        (
            "scale web=2",
            &["0", "1", "2"],
            groups,
            0,
            "web: 2 of 2 ready",
        ),
        (
            "secrets unset B",
            &["rotating", "active"],
            bundle,
            0,
            "sb_1 active",
        ),
        (
            "secrets unset B",
            &["rotating", "rotation_failed"],
            bundle,
            1,
            "rotation_failed",
        ),
    ];
    for (typed, looks, shape, code, last) in cases {
        let (site, double) = local(seen(looks, shape));
        let words: Vec<&str> = typed.split_whitespace().collect();
        let words = [&words[..], &["--app", "shop", "--wait"]].concat();
        let finished = site.ends(code, &words);
        assert!(
            finished.stdout.contains(last),
            "{typed}: {}",
            finished.transcript()
        );
        let reads = double.asked();
        let reads = reads.iter().filter(|it| !it.operation.spec().is_write());
        assert!(reads.count() >= looks.len() - 1, "{typed} did not look");
        // The control: without the flag nobody looks.
        let (site, double) = local(seen(looks, shape));
        site.ends(0, &words[..words.len() - 1]);
        let after = double.asked();
        let last = after.last().unwrap();
        assert!(last.operation.spec().is_write(), "{typed}: {last:?}");
    }
}

#[test]
fn who_waits_too_long_is_told_where_to_look() {
    let (site, _double) = local(seen(&["pending"], route));
    let words = "routes expose --hostname a.example --listen-port 443 --protocol-hint \
                 tls_passthrough --backend-process web --backend-port 80 --app shop --wait \
                 --timeout 1s";
    let words: Vec<&str> = words.split_whitespace().collect();
    let error = site.json_error(6, &words);
    assert_eq!(error["code"], "wait_expired");
    assert!(!error.to_string().contains("fluffy wait"), "{error}");
}

/// A deploy like any other, but this operation is answered only so often; then
/// `instead` answers it.
fn deploying_until(
    (operation, answers): (Operation, u32),
    instead: impl Fn(u32) -> Option<Reply> + Send + Sync,
) -> impl Fn(&Asked) -> Reply + Send + Sync {
    let (asked_for, deploy) = (AtomicU32::new(0), deploying("succeeded"));
    move |asked| {
        if asked.operation == operation {
            let before = asked_for.fetch_add(1, Ordering::SeqCst);
            let reply = before.checked_sub(answers).and_then(&instead);
            return reply.unwrap_or_else(|| deploy(asked));
        }
        deploy(asked)
    }
}

#[test]
fn ctrl_c_is_heard_while_the_server_is_asked() {
    let cases = [
        (Operation::GetDeploy, 0, 6),
        (Operation::GetDeploy, 1, 6),
        (Operation::GetStatus, 0, 0),
    ];
    for (operation, answers, code) in cases {
        let is_silent = Arc::new(AtomicBool::new(false));
        let falls_silent = Arc::clone(&is_silent);
        let (site, _double) = local(deploying_until((operation, answers), move |_| {
            falls_silent.store(true, Ordering::SeqCst);
            // Nobody answers any more.
            loop {
                thread::park();
            }
        }));
        site.context.write("fluffy.toml", MANIFEST).unwrap();
        let mut command = site.context.command();
        command.args(["deploy", "--json"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let asked = || is_silent.load(Ordering::SeqCst).then_some(());
        wait_for("it is asked", LONG, asked).unwrap();
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        let ended = wait_for("it ends", LONG, || child.try_wait().unwrap());
        let _ = child.kill();
        let output = child.wait_with_output().unwrap();
        let case = format!("{operation:?} {answers}: {output:?}");
        ended.unwrap_or_else(|error| panic!("{error}: {case}"));
        assert_eq!(output.status.code(), Some(code), "{case}");
        // Whatever was known of it, what was begun is told.
        let receipt = match (operation, answers) {
            (Operation::GetDeploy, 0) => json_of(&output.stderr)["error"]["receipt"].clone(),
            _ => json_of(&output.stdout)["receipt"].clone(),
        };
        assert_eq!(receipt["ids"], json!(["dep_1"]), "{case}");
    }
}

fn json_of(text: &[u8]) -> Value {
    serde_json::from_slice(text).unwrap()
}

/// More often than a call is sent again by itself.
const OFTEN: u32 = 6;

#[test]
fn a_server_that_is_away_for_a_while_does_not_end_the_wait() {
    let away = |times: u32| {
        let operation = (Operation::GetDeploy, 1);
        let reply = move |time: u32| (time < times).then(|| refused("unavailable"));
        let (site, double) = local(deploying_until(operation, reply));
        site.context.write("fluffy.toml", MANIFEST).unwrap();
        (site, double)
    };
    let (site, _double) = away(OFTEN);
    let finished = site.ends(0, &["deploy"]);
    let told = "no answer, asking again: because of the test";
    assert_eq!(finished.stderr.matches(told).count(), 1, "{finished:?}");
    let (site, _double) = away(OFTEN);
    let shown = site.json(0, &["deploy"]);
    assert_eq!(shown["data"]["status"], "succeeded");
    // Who has no more time is told what was begun all the same.
    let (site, _double) = away(u32::MAX);
    let error = site.json_error(6, &["deploy", "--timeout", "1s"]);
    assert_eq!(error["code"], "unavailable");
    assert_eq!(error["receipt"]["ids"], json!(["dep_1"]), "{error}");
    assert!(error.to_string().contains("fluffy wait dep_1"), "{error}");
}

#[test]
fn a_watched_list_is_ids_when_that_is_wanted() {
    let events = "event: snapshot\nid: 5\ndata: {\"id\":\"app_1\",\"name\":\"a\"}\n\n\
                  event: synced\nid: 5\ndata: {}\n\n";
    let times = AtomicU32::new(0);
    let (site, _double) = local(move |_| match times.fetch_add(1, Ordering::SeqCst) {
        0 => Reply::Stream(events.to_owned()),
        _ => refused("forbidden"),
    });
    let finished = site.ends(3, &["apps", "list", "--watch", "-q"]);
    assert_eq!(finished.stdout.trim(), "app_1");
}
