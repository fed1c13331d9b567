//! Commands that ask a server, against one that answers as each test says.

mod abuse;
mod custody;
mod debugging;
mod disk;
mod double;
mod exec;
mod exported;
mod guarded;
mod hidden;
mod images;
mod instances;
mod joining;
mod launch;
mod lived;
mod logins;
mod meant;
mod measured;
mod members;
mod migrate;
mod named;
mod private;
mod proven;
mod real;
mod routes;
mod stage;
mod waiting;

use std::io::Write as _;
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};

use fluffy_api::operation::Operation;
use serde_json::{Value, json};

use self::double::{Asked, Double, Reply, refused};
use crate::shell::completed;
use crate::site::Site;

const MANIFEST: &str = r#"schema_version = "v1"
[app]
name = "shop"
[image]
ref = "registry.example.com/shop:1"
[processes.web]
resources = { memory = "128MiB" }
"#;

/// A home whose `fluffy up` answers as is said.
pub(crate) fn local(answer: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> (Site, Double) {
    let site = Site::empty();
    let double = Double::start(&site.state().join("up/api.sock"), answer);
    (site, double)
}

fn app(name: &str) -> Value {
    json!({
        "id": "app_00000000000000000000000001", "name": name, "display_name": "The shop",
        "org_id": "org_1", "project_id": null, "description": null, "version": 3,
        "created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-01-01T00:00:00Z",
    })
}

fn env(protected: bool) -> Value {
    json!({"id": "env_1", "name": "prod", "protected": protected, "version": 1})
}

fn shared() -> Value {
    json!({"driver": "container-rootfs", "level": "shared-kernel"})
}

#[test]
fn a_list_is_a_table_a_document_or_ids() {
    let (site, double) =
        local(|_| Reply::Json(200, json!({"items": [app("shop")], "next_cursor": "c1"})));
    let finished = site.ends(0, &["apps", "list", "--limit", "1"]);
    assert!(
        finished.stdout.starts_with("NAME  TITLE     ID"),
        "{}",
        finished.stdout
    );
    assert!(
        finished.stdout.contains("shop  The shop  app_0000"),
        "{}",
        finished.stdout
    );
    assert!(
        finished.stderr.contains("--cursor c1"),
        "{}",
        finished.stderr
    );
    let asked = double.asked();
    assert_eq!(asked[0].operation, Operation::ListApps);
    assert_eq!(
        (asked[0].path[0].as_str(), asked[0].query.as_str()),
        ("local", "limit=1")
    );
    let value = site.json(0, &["apps", "list"]);
    assert_eq!(
        (&value["api_version"], &value["kind"]),
        (&json!("v1"), &json!("AppList"))
    );
    assert_eq!(value["items"][0]["name"], "shop");
    let ids = site.succeeds(&["apps", "list", "-q"]);
    assert_eq!(ids, "app_00000000000000000000000001\n");
}

#[test]
fn one_thing_is_shown_with_all_its_fields() {
    let (site, double) = local(|_| Reply::Json(200, app("shop")));
    let shown = site.succeeds(&["apps", "describe", "shop"]);
    assert!(shown.contains("display_name  The shop"), "{shown}");
    assert_eq!(shown, site.succeeds(&["describe", "app", "shop"]));
    assert!(
        double
            .asked()
            .iter()
            .all(|asked| asked.operation == Operation::GetApp)
    );
    assert_eq!(
        site.json(0, &["apps", "describe", "shop"])["data"]["name"],
        "shop"
    );
}

#[test]
fn a_write_leaves_a_receipt_and_is_seen_by_the_next_read() {
    let (site, double) = local(|asked| match asked.operation.spec().is_write() {
        true => Reply::Json(201, app("shop")),
        false => Reply::Json(200, app("shop")),
    });
    let shown = site.succeeds(&["apps", "create", "shop", "--display-name", "The shop"]);
    insta::assert_snapshot!(shown, @"
    done: apps create
      id               app_00000000000000000000000001
      name             shop
      changed          display_name, name
      target           local
      seq              41
      next             fluffy apps describe app_00000000000000000000000001
    ");
    site.succeeds(&["apps", "describe", "shop"]);
    let asked = double.asked();
    assert_eq!(
        asked[0].body,
        json!({"name": "shop", "display_name": "The shop"})
    );
    assert!(asked[0].headers["idempotency-key"].len() >= 8);
    assert_eq!(asked[1].headers["fluffy-min-seq"], "41");
    let value = site.json(0, &["apps", "create", "shop"]);
    assert_eq!(value["receipt"]["seq"], 41);
    assert_eq!(value["receipt"]["operation"], "createApp");
    assert_eq!(value["data"]["name"], "shop");
}

/// What is typed, and the operation that must be asked with a valid request.
const TYPED: &[(&str, &str)] = &[
    ("capabilities", "getCapabilities"),
    ("whoami", "whoami"),
    ("orgs create acme --display-name Acme", "createOrg"),
    ("orgs describe acme", "getOrg"),
    ("orgs update acme --display-name Acme", "updateOrg"),
    (
        "orgs update acme --legal-hold-until 2030-01-01T00:00:00Z",
        "updateOrg",
    ),
    ("orgs policy show", "getPolicy"),
    ("quotas set apps=5 memory=8GiB cpu=none", "setQuotas"),
    ("members add a@example.com --role developer", "addMember"),
    (
        "members add --principal usr_1 --role viewer --app shop --env dev",
        "addMember",
    ),
    ("members list --app shop --status invited", "listMembers"),
    ("members update mem_1 --role admin", "updateMember"),
    ("members remove mem_1 --yes", "removeMember"),
    (
        "principals create ci --grant env.deploy.acme/* --grant env.read.acme/*",
        "createPrincipal",
    ),
    ("principals rotate sp_1 --overlap 1h", "rotatePrincipal"),
    ("tokens create --ttl 24h --ceiling env.*", "createToken"),
    ("tokens revoke tok_1 --yes", "revokeToken"),
    (
        "grants add sp_1 --pattern instance.exec.acme/shop/* --ttl 1h --break-glass --reason fire",
        "createGrant",
    ),
    ("approvals list --status pending", "listApprovals"),
    ("approvals deny apr_1 --note no", "decideApproval"),
    ("projects create web --display-name Web", "createProject"),
    ("apps create shop --in-project web", "createApp"),
    (
        "apps update shop --description=x --in-project=",
        "updateApp",
    ),
    (
        "envs create prod --protected --allow-shared-kernel=false",
        "createEnv",
    ),
    ("envs list --status deleting", "listEnvs"),
    ("envs update prod --display-name Live", "updateEnv"),
    ("envs delete prod --yes", "deleteEnv"),
    ("releases list --status available", "listReleases"),
    (
        "releases create --image registry.example.com/shop:2",
        "createRelease",
    ),
    ("releases block rel_1 --reason broken", "blockRelease"),
    (
        "deploys list --status rolling --kind rollback --process web",
        "listDeploys",
    ),
    ("deploys pause dep_1", "pauseDeploy"),
    (
        "rollback --no-wait --to rel_00000000000000000000000001 --max-surge 2",
        "createRollback",
    ),
    ("scale", "getScale"),
    ("scale web=3 db=default", "setScale"),
    (
        "instances list --process web --status ready",
        "listInstances",
    ),
    ("instances restart inst_1", "restartInstance"),
    ("instances signal inst_1 USR1", "signalInstance"),
    ("instances diagnose inst_1", "diagnoseInstance"),
    ("logs --tail 10", "getLogs"),
    (
        "routes expose --hostname a.example --listen-port 443 --protocol-hint tls_passthrough --backend-process web --backend-port 8080",
        "createRoute",
    ),
    ("routes update rt_1 --backend-port 8081", "updateRoute"),
    ("routes delete rt_1 --yes", "deleteRoute"),
    ("ipv4 enable", "enableIpv4"),
    ("ipv4 disable --yes", "disableIpv4"),
    ("secrets list", "getSecrets"),
    ("secrets unset A B", "updateSecrets"),
    (
        "volumes create data --size 10GiB --backup-enabled=false",
        "createVolume",
    ),
    ("volumes update data --backup-enabled", "updateVolume"),
    (
        "attachments create vol_00000000000000000000000001 --process db --mount-path /data",
        "createAttachment",
    ),
    ("snapshots create data --note weekly", "createSnapshot"),
    ("snapshots restore snap_1 --name copy", "restoreSnapshot"),
    ("snapshots delete snap_1 --yes", "deleteSnapshot"),
    ("restores list", "listRestores"),
    (
        "events list --after 5 --types app.* --app shop",
        "listEvents",
    ),
    ("events audit", "listAudit"),
    ("events rebuild --view apps", "rebuildViews"),
    ("events views", "getProjections"),
    (
        "events platform --after 5 --types node.*",
        "listPlatformEvents",
    ),
    ("nodes list --status active", "listNodes"),
    (
        "nodes drain node_1 --no-wait --leave-stateful --deadline 10m",
        "drainNode",
    ),
    ("nodes confirm-plan node_1", "confirmNodePlan"),
    ("nodes remove node_1 --yes --abandon-volumes", "removeNode"),
    (
        "nodes enroll-token create --ttl 1h --allow-nat --replaces node_00000000000000000000000001",
        "createEnrollmentToken",
    ),
    (
        "nodes enroll-token create --require-approval --label zone=eu-1 --label rack=7",
        "createEnrollmentToken",
    ),
    ("nodes enroll-token list", "listEnrollmentTokens"),
    ("nodes enroll-token approve ent_1", "approveEnrollment"),
    ("nodes enroll-token refuse ent_1", "refuseEnrollment"),
    ("nodes addresses", "getIpam"),
    ("nodes image-limits list", "getImageLimits"),
    (
        "nodes image-limits set compressed_bytes=20GiB layers=default",
        "setImageLimits",
    ),
    ("keys status", "getKeys"),
    ("keys list", "getKeys"),
    ("keys rotate", "rotateKeys"),
    ("keys verify", "verifyKeys"),
    ("keys retire mk_00000001 --single", "retireKey"),
    (
        "volumes rehome data --node node_00000000000000000000000001",
        "rehomeVolume",
    ),
];

#[test]
fn what_is_typed_is_what_is_asked() {
    let (site, double) = local(|asked| {
        let spec = asked.operation.spec();
        let value = json!({
            "id": "x_1", "version": 7, "items": [], "next_cursor": null, "protected": false,
            "status": "succeeded", "processes": {}, "quotas": {}, "pools": {}, "keys": [],
            "limits": {},
        });
        Reply::Json(spec.success, value)
    });
    site.context.write("fluffy.toml", MANIFEST).unwrap();
    for (typed, id) in TYPED {
        let words: Vec<&str> = typed.split(' ').collect();
        site.ends(0, &words);
        let asked = double.asked();
        let last = asked.last().unwrap();
        assert_eq!(last.operation.spec().id, *id, "{typed}\n{asked:?}");
        if last.operation.spec().precondition == fluffy_api::operation::Precondition::Required {
            assert_eq!(last.headers["if-match"], "\"7\"", "{typed}");
        }
    }
    site.ends(0, &["scale", "web=3", "db=default"]);
    assert_eq!(
        double.asked().last().unwrap().body["processes"],
        json!({"web": 3, "db": null})
    );
    site.ends(0, &["volumes", "create", "data", "--size", "10GiB"]);
    assert_eq!(double.asked()[0].body["size_bytes"], 10_u64 << 30);
    site.ends(0, &["apps", "update", "shop", "--description", ""]);
    assert_eq!(double.asked()[0].body["description"], Value::Null);
    site.ends(0, &["quotas", "set", "cpu=1.5", "memory=8GiB"]);
    assert_eq!(
        double.asked().last().unwrap().body["limits"],
        json!({"cpu": 1500, "memory": 8_u64 << 30})
    );
    site.ends(
        0,
        &[
            "nodes",
            "image-limits",
            "set",
            "layers=default",
            "unpacked_bytes=1GiB",
        ],
    );
    assert_eq!(
        double.asked().last().unwrap().body["limits"],
        json!({"layers": null, "unpacked_bytes": 1_u64 << 30})
    );
    site.ends(2, &["quotas", "set", "cpu=8GiB"]);
    site.ends(2, &["scale", "web=many"]);
    site.ends(2, &["volumes", "create", "data", "--size", "10Gi"]);
}

#[test]
fn the_target_is_the_first_that_names_it() {
    let (mut site, double) = local(|_| Reply::Json(200, json!({"items": [], "next_cursor": null})));
    let meant = |site: &Site, words: &[&str]| {
        site.ends(0, &[&["deploys", "list"], words].concat());
        double.asked().pop().unwrap().path
    };
    let finished = site.ends(2, &["deploys", "list"]);
    assert!(
        finished.stderr.contains("which app?"),
        "{}",
        finished.stderr
    );
    assert!(
        finished.stderr.contains("add --app APP"),
        "{}",
        finished.stderr
    );
    site.succeeds(&[
        "context",
        "set",
        "here",
        "--app",
        "contextual",
        "--env",
        "staging",
    ]);
    assert_eq!(meant(&site, &[]), ["local", "contextual", "staging"]);
    site.context.write("fluffy.toml", MANIFEST).unwrap();
    assert_eq!(meant(&site, &[]), ["local", "shop", "staging"]);
    site.context.set("FLUFFY_APP", "variable");
    site.context.set("FLUFFY_ORG", "acme");
    assert_eq!(meant(&site, &[]), ["acme", "variable", "staging"]);
    assert_eq!(
        meant(&site, &["--app", "flag", "--env", "e"]),
        ["acme", "flag", "e"]
    );
}

#[test]
fn a_protected_env_has_to_be_named() {
    let (mut site, double) = local(|asked| match asked.operation {
        Operation::GetEnv => Reply::Json(200, env(true)),
        _ => Reply::Json(200, json!({"id": "x", "version": 1, "processes": {}})),
    });
    site.succeeds(&["context", "set", "here", "--app", "shop", "--env", "prod"]);
    let error = site.json_error(2, &["scale", "web=3"]);
    assert_eq!(error["code"], "env_not_named");
    assert!(
        double
            .asked()
            .iter()
            .all(|asked| !asked.operation.spec().is_write())
    );
    site.succeeds(&["scale"]);
    site.succeeds(&["scale", "web=3", "--env", "prod"]);
    site.context.set("FLUFFY_ENV", "prod");
    site.succeeds(&["scale", "web=3"]);
}

#[test]
fn nothing_is_deleted_without_a_word() {
    let (site, double) = local(|_| Reply::Json(200, json!({"id": "app_1", "deleted": true})));
    let finished = site.ends(2, &["apps", "delete", "shop"]);
    assert!(
        finished.stderr.contains("there is nobody to ask"),
        "{}",
        finished.stderr
    );
    assert!(finished.stderr.contains("add --yes"), "{}", finished.stderr);
    assert!(double.asked().is_empty());
    site.succeeds(&["apps", "delete", "shop", "--yes"]);
    assert_eq!(double.asked()[0].operation, Operation::DeleteApp);
}

#[test]
fn a_refusal_says_what_why_fix_and_ends_by_its_code() {
    for (code, exit) in [
        ("invalid_argument", 2),
        ("E_VOLUME_REPLICA_LIMIT", 2),
        ("forbidden", 3),
        ("token_revoked", 3),
        ("not_found", 4),
        ("name_taken", 5),
        ("precondition_failed", 5),
        ("internal", 7),
    ] {
        let (site, _double) = local(move |_| refused(code));
        let error = site.json_error(exit, &["apps", "create", "shop"]);
        assert_eq!(error["code"], code);
        assert_eq!(error["request_id"], "req_1");
        assert_eq!(error["fix"][0], "change the test");
        assert!(
            error["retryable"].is_boolean() && error["category"].is_string(),
            "{error}"
        );
    }
    let (site, _double) = local(|_| refused("name_taken"));
    insta::assert_snapshot!(site.ends(5, &["apps", "create", "shop"]).stderr, @"
    error: `fluffy apps create` was refused: the name is taken
      why: because of the test [name_taken]
      fix: change the test
      request: req_1
    ");
}

#[test]
fn without_a_server_it_is_said_how_to_get_one() {
    let site = Site::empty();
    let finished = site.ends(6, &["apps", "list"]);
    assert!(finished.stderr.contains("fluffy up"), "{}", finished.stderr);
    let error = site.json_error(6, &["apps", "list"]);
    assert_eq!(error["code"], "unreachable");
    assert_eq!(
        (&error["category"], &error["retryable"], &error["errors"]),
        (&json!("transient"), &json!(true), &json!([]))
    );
    site.ends(2, &["apps", "list", "--server", "http://a.example"]);
    site.ends(2, &["context", "set", "a", "--server", "ftp://a.example"]);
    site.ends(2, &["context", "set", "../a", "--org", "acme"]);
    site.ends(4, &["apps", "list", "--context", "missing"]);
}

#[test]
fn a_command_that_waits_for_a_person_ends_with_eight() {
    let parked = json!({"approval_id": "apr_1", "expires_at": "2030-01-01T00:00:00Z"});
    let (site, _double) = local(move |_| Reply::Json(202, parked.clone()));
    let finished = site.ends(8, &["apps", "create", "shop"]);
    assert!(
        finished.stdout.contains("fluffy approvals approve apr_1"),
        "{}",
        finished.stdout
    );
    assert_eq!(site.json(8, &["apps", "create", "shop"])["kind"], "Parked");
}

/// A deploy that is `last` after a few looks.
fn deploying(last: &'static str) -> impl Fn(&Asked) -> Reply + Send + Sync {
    let looks = AtomicU32::new(0);
    move |asked| {
        let deploy = |status: &str, available: u32| {
            json!({
                "id": "dep_1", "kind": "deploy", "status": status, "version": 1, "message": null,
                "failed_reason": (status == "failed").then_some("healthcheck_failed"),
                "isolation": shared(),
                "groups": [{"process": "web", "desired": 2, "new": available, "ready": available,
                    "available": available, "old": 2 - available, "replaced": 0, "conditions": []}],
            })
        };
        match asked.operation {
            Operation::GetEnv => Reply::Json(200, env(false)),
            Operation::CreateRelease => {
                Reply::Json(201, json!({"id": "rel_00000000000000000000000001"}))
            }
            Operation::CreateDeploy => Reply::Json(201, deploy("queued", 0)),
            _ => match looks.fetch_add(1, Ordering::SeqCst) {
                0 => Reply::Json(200, deploy("rolling", 0)),
                1 => Reply::Json(200, deploy("rolling", 1)),
                _ => Reply::Json(200, deploy(last, 2)),
            },
        }
    }
}

/// One that fails, and an instance that said why.
fn failing() -> impl Fn(&Asked) -> Reply + Send + Sync {
    let deploy = deploying("failed");
    move |asked| match asked.operation {
        Operation::ListEvents => {
            assert!(asked.query.contains("after=41"), "{}", asked.query);
            let event =
                |id: &str, status: &str| json!({"aggregate_id": id, "payload": {"status": status}});
            let items = [
                event("inst_1", "failed"),
                event("inst_2", "failed"),
                event("inst_3", "ready"),
            ];
            Reply::Json(200, json!({"items": items, "next_cursor": null}))
        }
        Operation::GetLogs => {
            assert!(asked.query.contains("instance=inst_2"), "{}", asked.query);
            let line = json!({"at": "2026-01-01T00:00:00Z", "line": "cannot open the database"});
            Reply::Json(200, json!({"items": [line]}))
        }
        _ => deploy(asked),
    }
}

#[test]
fn a_deploy_makes_a_release_rolls_it_out_and_waits() {
    let (site, double) = local(deploying("succeeded"));
    site.context.write("fluffy.toml", MANIFEST).unwrap();
    let finished = site.ends(
        0,
        &[
            "deploy",
            "--image",
            "registry.example.com/shop:2",
            "--max-surge",
            "2",
        ],
    );
    insta::assert_snapshot!(finished.stderr, @"
    release rel_00000000000000000000000001
    deploy: dep_1 on local/shop/dev, seq 41, SHARED KERNEL
    dep_1 rolling; web: 0 of 2 available, 2 old
    dep_1 rolling; web: 1 of 2 available, 1 old
    ");
    assert_eq!(finished.stdout, "dep_1 succeeded; web: 2 of 2 available\n");
    let asked = double.asked();
    let release = asked
        .iter()
        .find(|it| it.operation == Operation::CreateRelease)
        .unwrap();
    assert_eq!(release.body["manifest"], MANIFEST);
    let deploy = asked
        .iter()
        .find(|it| it.operation == Operation::CreateDeploy)
        .unwrap();
    assert_eq!(deploy.body["options"]["max_surge"], 2);
    assert_eq!(deploy.body["release_id"], "rel_00000000000000000000000001");
    let value = site.json(0, &["deploy"]);
    assert_eq!(
        (&value["kind"], &value["data"]["status"]),
        (&json!("Deploy"), &json!("succeeded"))
    );
}

#[test]
fn a_deploy_that_fails_or_takes_too_long_is_told_by_its_code() {
    let (site, _double) = local(deploying("failed"));
    site.context.write("fluffy.toml", MANIFEST).unwrap();
    let finished = site.ends(1, &["deploy"]);
    assert!(
        finished.stderr.contains("why: healthcheck_failed"),
        "{}",
        finished.stderr
    );
    let (site, _double) = local(failing());
    site.context.write("fluffy.toml", MANIFEST).unwrap();
    let finished = site.ends(1, &["deploy"]);
    let told = &finished.stderr;
    assert!(told.contains("  cannot open the database\n"), "{told}");
    assert!(told.contains("`fluffy logs --instance inst_2`"), "{told}");
    assert!(told.contains("why: healthcheck_failed"), "{told}");
    let (site, double) = local(deploying("rolling"));
    site.context.write("fluffy.toml", MANIFEST).unwrap();
    let error = site.json_error(6, &["deploy", "--timeout", "1s"]);
    assert_eq!(error["code"], "wait_expired");
    let receipt = site.json(0, &["deploy", "--no-wait"]);
    assert_eq!(receipt["data"]["status"], "queued");
    // A manifest that is wrong never leaves this machine.
    double.asked();
    site.context
        .write("fluffy.toml", "schema_version = \"v1\"\n")
        .unwrap();
    site.ends(2, &["deploy", "--app", "shop"]);
    assert!(
        double
            .asked()
            .iter()
            .all(|asked| !asked.operation.spec().is_write())
    );
}

#[test]
fn an_env_is_shown_with_what_it_shares() {
    let status = json!({
        "env_id": "env_1", "status": "degraded", "isolation": shared(),
        "conditions": [{"condition": "shared_kernel", "process": null, "reason": null, "detail": "the node has no KVM"}],
        "groups": [{"process": "web", "desired": 2, "live": 2, "ready": 1, "current": 2, "conditions": []}],
        "routes": [], "last_deploy": {"id": "dep_1", "status": "rolling", "kind": "deploy"},
        "last_error": {"reason": "healthcheck_failed", "detail": "503"},
    });
    let (site, _double) = local(move |_| Reply::Json(200, status.clone()));
    insta::assert_snapshot!(site.succeeds(&["status", "--app", "shop"]), @"
    degraded  SHARED KERNEL

    PROCESS  WANTED  LIVE  READY  CURRENT  CONDITIONS
    web      2       2     1      2
    ! shared_kernel: the node has no KVM
    last deploy: dep_1 rolling
    last error: healthcheck_failed 503
    ");
}

#[test]
fn names_that_exist_are_completed_and_silence_follows_a_failure() {
    let (site, double) = local(|asked| match asked.operation {
        Operation::ListApps if asked.path[0] == "local" => Reply::Json(
            200,
            json!({"items": [app("shop"), app("shelf"), app("till")], "next_cursor": null}),
        ),
        _ => refused("forbidden"),
    });
    let shown = completed(&site, &["apps", "describe", "sh"]);
    assert_eq!(
        shown.split_whitespace().collect::<Vec<_>>(),
        ["shop", "shelf"]
    );
    assert_eq!(double.asked()[0].query, "limit=100");
    assert_eq!(
        completed(&site, &["deploys", "list", "--app", "ti"]).trim(),
        "till"
    );
    assert_eq!(
        completed(&site, &["apps", "describe", "--org", "acme", "sh"]),
        ""
    );
    assert_eq!(completed(&site, &["nodes", "drain", "n"]), "");
    assert_eq!(completed(&Site::empty(), &["apps", "describe", "sh"]), "");
}

#[test]
fn changes_are_lines_when_watched() {
    let events = "event: snapshot\nid: 5\ndata: {\"id\":\"app_1\",\"name\":\"a\"}\n\n\
                  event: synced\nid: 5\ndata: {}\n\n\
                  event: upsert\nid: 6\ndata: {\"id\":\"app_2\",\"name\":\"b\"}\n\n\
                  event: delete\nid: 7\ndata: {\"id\":\"app_1\"}\n\n";
    let times = AtomicU32::new(0);
    let (site, _double) = local(move |_| match times.fetch_add(1, Ordering::SeqCst) {
        0 => Reply::Stream(events.to_owned()),
        _ => refused("forbidden"),
    });
    let finished = site.ends(3, &["apps", "list", "--watch", "--json"]);
    let lines: Vec<Value> = finished
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let kinds: Vec<&str> = lines
        .iter()
        .map(|line| line["change"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["snapshot", "synced", "upsert", "delete"]);
    assert_eq!(lines[2]["data"]["name"], "b");
}

/// Each event is a row of its own, in the order in which they happened, and
/// what is watched goes on where the stream broke.
#[test]
fn events_are_watched_one_by_one() {
    let of_audit = |seq: u64| {
        let event = json!({"seq": seq, "org_id": "org_1", "env_id": "env_1"});
        json!({"event": event, "decision": null, "verification": "verified"})
    };
    let plain = |seq: u64| json!({"seq": seq, "org_id": "org_1", "env_id": "env_1"});
    type Shown = fn(u64) -> Value;
    let commands: [(&[&str], Shown); 3] = [
        (&["events", "list"], plain),
        (&["events", "audit"], of_audit),
        (&["events", "platform"], plain),
    ];
    for (words, shown) in commands {
        let change = move |kind: &str, seq: u64| {
            let data = match kind {
                "upsert" => shown(seq),
                _ => json!({"seq": seq}),
            };
            format!("event: {kind}\nid: {seq}\ndata: {data}\n\n")
        };
        let (site, double) = local(move |asked| {
            let text = |all: &[String]| Reply::Stream(all.concat());
            match asked.headers.get("last-event-id").map(String::as_str) {
                None => text(&[
                    change("upsert", 9),
                    change("synced", 9),
                    change("upsert", 10),
                ]),
                Some("10") => text(&[change("synced", 10), change("upsert", 11)]),
                _ => refused("forbidden"),
            }
        });
        let words = [words, &["--watch", "-q"][..]].concat();
        let finished = site.ends(3, &words);
        let seqs: Vec<&str> = finished
            .stdout
            .lines()
            .filter(|it| !it.is_empty())
            .collect();
        // After each change all that is known is shown anew.
        let all = ["9", "9", "10", "9", "10", "9", "10", "11"];
        assert_eq!(seqs, all, "{words:?}");
        assert_eq!(double.asked().len(), 3);
    }
}

#[test]
fn events_are_followed_across_a_broken_stream() {
    let event = |seq: u64| {
        format!(
            "event: upsert\nid: {seq}\ndata: {{\"seq\":{seq},\"event_type\":\"app.created\",\"aggregate_id\":\"app_1\",\"occurred_at\":\"2026-01-01T00:00:00Z\",\"actor\":{{\"id\":\"u\"}}}}\n\n"
        )
    };
    let (site, double) =
        local(
            move |asked| match asked.headers.get("last-event-id").map(String::as_str) {
                Some("5") => Reply::Stream(format!("{}{}", event(6), event(7))),
                Some("7") => Reply::Stream(event(8)),
                other => panic!("{other:?}"),
            },
        );
    let shown = site.succeeds(&["events", "tail", "--after", "5", "--count", "3"]);
    let seqs: Vec<&str> = shown
        .lines()
        .map(|line| line.split_whitespace().next().unwrap())
        .collect();
    assert_eq!(seqs, ["6", "7", "8"]);
    assert_eq!(double.asked().len(), 2);
}

#[test]
fn logs_are_followed_across_a_broken_stream_and_what_was_lost_is_said() {
    let line = |id: &str, text: &str, dropped: u64| {
        let line = json!({
            "at": "2026-01-01T00:00:00Z", "process": "web", "stream": "stdout", "line": text,
            "truncated": false, "dropped": dropped,
        });
        format!("event: upsert\nid: {id}\ndata: {line}\n\n")
    };
    let (one, two) = ("00000000000000aa.1", "00000000000000aa.2");
    let (site, double) =
        local(
            move |asked| match asked.headers.get("last-event-id").map(String::as_str) {
                None => Reply::Stream(line(one, "first", 0)),
                Some(id) if id == one => Reply::Stream(line(two, "second", 7)),
                Some(_) => refused("forbidden"),
            },
        );
    let words = [
        "logs", "--follow", "--app", "shop", "--tail", "5", "--stream", "stdout",
    ];
    let finished = site.ends(3, &words);
    insta::assert_snapshot!(finished.stdout, @"
    2026-01-01T00:00:00Z  web  first
    2026-01-01T00:00:00Z  web  … 7 lines were lost
    2026-01-01T00:00:00Z  web  second
    ");
    let asked: Vec<String> = double.asked().into_iter().map(|it| it.query).collect();
    assert!(asked[0].contains("tail=5"), "{asked:?}");
    assert!(
        asked.iter().all(|it| it.contains("stream=stdout")),
        "{asked:?}"
    );
    // Who goes on gets all that came meanwhile.
    assert!(!asked[1].contains("tail"), "{asked:?}");
}

#[test]
fn logs_are_only_their_lines_when_quiet() {
    let (site, _double) = local(|_| {
        let line = |text: &str, dropped: u64| {
            json!({
                "at": "2026-01-01T00:00:00Z", "process": "web", "instance_id": "inst_1",
                "stream": "stdout", "line": text, "truncated": false, "seq": 1,
                "dropped": dropped,
            })
        };
        Reply::Json(
            200,
            json!({"items": [line("first", 0), line("", 0), line("last", 3)]}),
        )
    });
    let shown = site.succeeds(&["logs", "--app", "shop", "-q"]);
    assert_eq!(shown, "first\n\nlast\n");
    // The control: otherwise it is said that some were lost.
    let shown = site.succeeds(&["logs", "--app", "shop"]);
    assert!(shown.contains("3 lines were lost"), "{shown}");
}

#[test]
fn secrets_are_piped_in_and_shown_nowhere() {
    let (site, double) = local(|asked| match asked.operation {
        Operation::GetEnv => Reply::Json(200, env(false)),
        _ => Reply::Json(
            200,
            json!({"id": "sb_1", "status": "rotating", "keys": ["TOKEN"]}),
        ),
    });
    let mut command = site.context.command();
    command.args(["secrets", "set", "TOKEN", "--app", "shop", "--verbose"]);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(b"marked-secret\n")
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let shown = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        shown.contains("TOKEN") && !shown.contains("marked-secret"),
        "{shown}"
    );
    let asked = double.asked();
    assert_eq!(asked.last().unwrap().body["set"]["TOKEN"], "marked-secret");
    let files = crate::site::files(&site.context.home());
    for file in files.iter().filter(|file| file.is_file()) {
        let bytes = std::fs::read(file).unwrap_or_default();
        assert!(
            !String::from_utf8_lossy(&bytes).contains("marked-secret"),
            "{file:?}"
        );
    }
    // What would be seen by every program of this machine is refused.
    let finished = site.ends(
        2,
        &["secrets", "set", "TOKEN=marked-secret", "--app", "shop"],
    );
    assert!(
        finished.stderr.contains("never an argument"),
        "{}",
        finished.stderr
    );
    assert!(!finished.transcript().contains("marked-secret"));
    let file = "# FLUFFY_SECRETS_V1\nA=b\n";
    site.context.write("app.env", file).unwrap();
    site.succeeds(&["secrets", "import", "app.env", "--app", "shop"]);
    assert_eq!(double.asked().last().unwrap().body["file"], file);
}
