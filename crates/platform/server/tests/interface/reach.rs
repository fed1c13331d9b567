//! How far schemathesis gets when it wants to succeed: with ids that exist,
//! bodies that mean something, and the version it read before it writes.
//!
//! It comes in by the local socket, as who owns the machine: no other may do
//! everything.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use fluffy_api::Operation as O;
use fluffy_api::Operation;
use fluffy_api::client::{Ask, Client};
use fluffy_control::runtime::Notice as RuntimeNotice;
use fluffy_test_kit::{PublishedServers, campaign};
use serde_json::{Value, json};
use tokio::net::{TcpListener, UnixStream};
use tokio::time::{Instant, sleep};

use crate::crew::enrolment;
use crate::house::{House, PATIENCE};
use crate::strangers::target;

/// What is called last: the first of these change what others work on, the
/// second end it.
const CHANGES: [&str; 10] = [
    "cancelDeploy",
    "confirmNodePlan",
    "createDeploy",
    "createRollback",
    "disableIpv4",
    "drainNode",
    "restartInstance",
    "setPolicy",
    "setScale",
    "uncordonNode",
];
const ENDS: [&str; 6] = [
    "delete",
    "remove",
    "revoke",
    "disableNode",
    "rotate",
    "replaceAttachment",
];

const RULES: &str = "version: 1\ncapabilities:\n  - name: deletions\n    match:\n      action: app.delete\n    do: require_review\n    reason: two people delete an app\n";

fn manifest(version: u32) -> String {
    format!(
        "schema_version = \"v1\"\n[deploy]\nmin_ready_seconds = 0\n[processes.web]\n\
         command = [\"serve\", \"{version}\"]\nreplicas = 2\n\
         [[processes.web.ports]]\ninternal = 8080\n\
         [processes.web.resources]\nmemory = \"64MiB\"\n"
    )
}

/// A WebSocket is no JSON, and a signal needs a node that is connected.
const LEFT_OUT: [&str; 2] = ["connectExec", "signalInstance"];

const HOOKS: &str = r#"
import json, os, requests, schemathesis

BODIES = json.load(open("bodies.json"))
BASE = os.environ["FLUFFY_BASE"]

@schemathesis.hook
def before_call(context, case, **kwargs):
    known = BODIES.get(case.operation.definition.raw.get("operationId"))
    if known is not None:
        case.body = known
    elif isinstance(case.body, dict):
        case.body.pop("expected_version", None)
    for name in [name for name in (case.headers or {}) if name.lower().startswith(("authorization", "if-", "fluffy-"))]:
        del case.headers[name]
    if case.method.upper() in ("PUT", "PATCH", "DELETE"):
        shown = requests.get(BASE + case.formatted_path)
        if "ETag" in shown.headers:
            case.headers["If-Match"] = shown.headers["ETag"]
"#;

/// Lets what speaks TCP in by the local socket.
pub(crate) async fn open_socket(house: &House) -> String {
    let socket: PathBuf = house.folder.path().join("api.sock");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut outside, _)) = listener.accept().await {
            let socket = socket.clone();
            tokio::spawn(async move {
                let mut inside = UnixStream::connect(socket).await.unwrap();
                // Either side may leave; the other sees it.
                drop(tokio::io::copy_bidirectional(&mut outside, &mut inside).await);
            });
        }
    });
    url
}

/// Things that calls can be about, by the name of their parameter.
#[derive(Default)]
pub(crate) struct Known {
    pub(crate) ids: BTreeMap<&'static str, Vec<String>>,
    bodies: BTreeMap<&'static str, Value>,
}

impl Known {
    fn add(&mut self, name: &'static str, value: &Value) {
        let id = value["id"]
            .as_str()
            .unwrap_or_else(|| panic!("{name}: {value}"));
        self.ids.entry(name).or_default().push(id.to_owned());
    }

    fn name(&mut self, name: &'static str, value: &str) {
        self.ids.entry(name).or_default().push(value.to_owned());
    }

    fn config(&self) -> String {
        let mut config = String::new();
        for (name, ids) in &self.ids {
            config.push_str(&format!("[dictionaries.{name}]\nvalues = {ids:?}\n"));
        }
        config.push_str("[parameters]\n");
        for name in self.ids.keys() {
            let from = format!("{{ dictionary = \"{name}\", probability = 1.0 }}");
            config.push_str(&format!("\"path.{name}\" = {from}\n"));
        }
        config
    }
}

/// The owner, who makes several of everything: what ends one leaves others.
struct Maker<'a> {
    owner: &'a Client,
    known: Known,
}

impl Maker<'_> {
    async fn send(&self, operation: Operation, path: &[&str], body: Value) -> Value {
        let made = self.owner.send(operation, path, &body).await;
        made.unwrap_or_else(|error| panic!("{operation:?}: {error}"))
    }

    async fn make(&mut self, name: &'static str, operation: Operation, path: &[&str], body: Value) {
        let made = self.send(operation, path, body).await;
        self.known.add(name, &made);
    }

    /// Reads again until it is as wished.
    async fn until(&self, operation: Operation, path: &[&str], wish: impl Fn(&Value) -> bool) {
        let limit = Instant::now() + PATIENCE;
        loop {
            let value: Value = self.owner.get(operation, path).await.unwrap();
            if wish(&value) {
                return;
            }
            assert!(Instant::now() < limit, "{operation:?}: {value}");
            sleep(Duration::from_millis(50)).await;
        }
    }

    async fn people(&mut self, house: &House) {
        let org = ["local"];
        for number in 0..6 {
            let project = json!({ "name": format!("project{number}") });
            self.make("project", O::CreateProject, &org, project).await;
            let member = json!({ "email": format!("{number}@example.org"), "role": "viewer" });
            self.make("member", O::AddMember, &org, member).await;
            self.make("token", O::CreateToken, &org, json!({})).await;
            let careful = json!({ "require_approval": true });
            let token = self.send(O::CreateEnrollmentToken, &[], careful).await;
            self.known.add("enrollment_token", &token);
            let machine = enrolment(u128::from(100 + number), token["id"].as_str().unwrap());
            let asked = RuntimeNotice::Enroll(Box::new(machine));
            house.crew.notice(asked).await;
            let grants = ["app.read.local/*", "app.delete.local/*"];
            let robot = json!({ "name": format!("robot{number}"), "grants": grants });
            let robot = self.send(O::CreatePrincipal, &org, robot).await;
            self.known.add("principal", &robot);
            let grant = json!({ "principal_id": robot["id"], "pattern": "app.read.local/*" });
            self.make("grant", O::CreateGrant, &org, grant).await;
            self.park(house, &robot, number).await;
        }
        let exec = json!({ "principal_id": "local", "pattern": "instance.exec.local/*" });
        self.send(O::CreateGrant, &org, exec).await;
    }

    /// Lets a robot ask for what a person must approve.
    async fn park(&mut self, house: &House, robot: &Value, number: u32) {
        if number == 0 {
            let policy: Value = self.owner.get(O::GetPolicy, &["local"]).await.unwrap();
            let body = json!({ "rules": RULES, "expected_version": policy["version"] });
            self.send(O::SetPolicy, &["local"], body).await;
        }
        let id = robot["id"].as_str().unwrap();
        let rotated = self
            .send(O::RotatePrincipal, &["local", id], json!({}))
            .await;
        let login = json!({
            "grant_type": "client_credentials",
            "client_id": id,
            "client_secret": rotated["client_secret"],
        });
        let pair = self.send(O::ExchangeToken, &[], login.clone()).await;
        let _ = self.known.bodies.insert("exchangeToken", login);
        let bearer = house.bearer(pair["access_token"].as_str().unwrap()).await;
        let app = format!("gone{number}");
        self.send(O::CreateApp, &["local"], json!({ "name": app }))
            .await;
        let of_app = ["local", app.as_str()];
        let ask = Ask::new(O::DeleteApp, &of_app);
        let parked = bearer.call(ask).await.unwrap().value;
        self.known
            .name("approval", parked["approval_id"].as_str().unwrap());
    }

    async fn instances(&mut self, house: &House) {
        let (app, env) = (["local", "shop"], ["local", "shop", "dev"]);
        self.send(O::CreateApp, &["local"], json!({ "name": "shop" }))
            .await;
        self.send(O::CreateEnv, &app, json!({ "name": "dev" }))
            .await;
        let secrets = json!({ "values": { "KEY": "value" } });
        self.send(O::ReplaceSecrets, &env, secrets).await;
        let crew = house.crew.clone();
        let nodes = tokio::spawn(async move { crew.tend_for_ever().await });
        for version in 1..=2 {
            let deploy = self.deploy(version).await;
            let of_deploy = ["local", "shop", "dev", &deploy];
            let done = |value: &Value| value["status"] == "succeeded";
            self.until(O::GetDeploy, &of_deploy, done).await;
        }
        nodes.abort();
        let crew = house.crew.clone();
        tokio::spawn(async move { crew.beat_for_ever().await });
        let instances: Value = self.owner.get(O::ListInstances, &env).await.unwrap();
        let instances = instances["items"].as_array().unwrap().iter();
        for instance in instances.filter(|it| it["observed"]["status"] == "ready") {
            self.known.add("instance", instance);
            let of_instance = ["local", "shop", "dev", instance["id"].as_str().unwrap()];
            let body = json!({ "command": ["ls"], "token_seconds": 300 });
            self.make("exec", O::CreateExec, &of_instance, body).await;
        }
        // Its nodes live and do nothing more, so it goes on for ever.
        let deploy = self.deploy(3).await;
        let rolling = |value: &Value| value["status"] == "rolling";
        let of_deploy = ["local", "shop", "dev", &deploy];
        self.until(O::GetDeploy, &of_deploy, rolling).await;
        self.known.name("deploy", &deploy);
        for number in 0..6 {
            let body = json!({
                "hostname": format!("r{number}.example.org"), "listen_port": 443,
                "protocol_hint": "tls_passthrough", "backend_process": "web", "backend_port": 8080,
            });
            let route = self.send(O::CreateRoute, &env, body).await;
            self.known.add("route", &route);
            let challenge = &route["challenge"];
            let value = challenge["value"].as_str().unwrap();
            house
                .names
                .set(challenge["record"].as_str().unwrap(), &[value]);
        }
    }

    async fn deploy(&mut self, version: u32) -> String {
        let body = json!({ "image": "registry.example/shop:1", "manifest": manifest(version) });
        let release = self.send(O::CreateRelease, &["local", "shop"], body).await;
        let body = json!({ "release_id": release["id"] });
        if version == 1 {
            // Nobody blocks this one.
            let _ = self.known.bodies.insert("createDeploy", body.clone());
        } else {
            self.known.add("release", &release);
        }
        let env = ["local", "shop", "dev"];
        let deploy = self.send(O::CreateDeploy, &env, body).await;
        self.known.add("operation", &deploy);
        deploy["id"].as_str().unwrap().to_owned()
    }

    async fn volumes(&mut self, house: &House) {
        let mut other = None;
        for number in 0..6 {
            let body = json!({ "name": format!("disk{number}"), "size_bytes": 1_u64 << 30 });
            let volume = self.send(O::CreateVolume, &["local"], body).await;
            let id = volume["id"].as_str().unwrap();
            house.crew.provide(id).await;
            // One is restored, and others are deleted.
            for note in ["first", "second", "third"] {
                if number > 0 {
                    break;
                }
                let note = json!({ "note": note });
                let snapshot = self.send(O::CreateSnapshot, &["local", id], note).await;
                house.crew.back_up(snapshot["id"].as_str().unwrap()).await;
                self.known.add("snapshot", &snapshot);
            }
            if (1..4).contains(&number) {
                let process = format!("job{number}");
                let body = json!({ "volume_id": id, "process": process, "mount_path": "/data" });
                let env = ["local", "shop", "dev"];
                self.make("attachment", O::CreateAttachment, &env, body)
                    .await;
            }
            self.known.add("volume", &volume);
            other = Some(volume);
        }
        let other = &other.unwrap()["id"];
        let attachment = json!({ "volume_id": other, "process": "job", "mount_path": "/more" });
        for (operation, body) in [
            ("createAttachment", attachment),
            ("replaceAttachment", json!({ "volume_id": other })),
            ("restoreSnapshot", json!({ "name": "copy" })),
        ] {
            let _ = self.known.bodies.insert(operation, body);
        }
    }
}

/// Everything that calls can be about, in the org `local` with an app `shop`;
/// the machines are there already.
pub(crate) async fn furnish(house: &House, owner: &Client) -> Known {
    let known = Known::default();
    let mut maker = Maker { owner, known };
    for (name, value) in [("org", "local"), ("app", "shop"), ("env", "dev")] {
        maker.known.name(name, value);
    }
    maker.people(house).await;
    maker.instances(house).await;
    maker.volumes(house).await;
    let nodes: Value = owner.get(O::ListNodes, &[]).await.unwrap();
    for node in nodes["items"].as_array().unwrap() {
        maker.known.add("node", node);
    }
    let rotated = owner.call(Ask::new(O::RotateKeys, &[])).await.unwrap();
    for key in rotated.value["keys"].as_array().unwrap() {
        maker.known.add("key", key);
    }
    let verified = owner.call(Ask::new(O::VerifyLedger, &[])).await.unwrap();
    maker.known.add("operation", &verified.value);
    maker.known
}

/// What a round may call: all that is not for a later one.
fn rounds() -> [Vec<&'static str>; 4] {
    let mut rounds = [vec![], vec![], vec![], vec![]];
    for operation in Operation::ALL {
        let id = operation.spec().id;
        let ends = ENDS.iter().any(|word| id.starts_with(word));
        let round = match id {
            "deleteApp" | "deleteEnv" => 3,
            _ if ends => 2,
            id if CHANGES.contains(&id) => 1,
            _ => 0,
        };
        if !LEFT_OUT.contains(&id) {
            rounds[round].push(id);
        }
    }
    rounds
}

fn schemathesis(house: &House, servers: &PublishedServers, url: &str, operations: &[&str]) {
    let mut command = servers.schemathesis();
    command
        .args(["--config-file", "schemathesis.toml", "run"])
        .arg(format!("{url}/v1/openapi.json"))
        .args(["--url", url, "--mode", "positive"])
        .args(["--phases", "fuzzing", "--max-examples"])
        .arg(campaign(6, 60).to_string())
        .args([
            "--checks",
            "not_a_server_error,status_code_conformance,response_schema_conformance",
        ])
        .args(["--seed", "11"])
        .args([
            "--no-shrink",
            "--continue-on-failure",
            "--no-color",
            "--warnings",
            "off",
        ])
        .args(["--suppress-health-check", "all", "--request-timeout", "25"])
        .env("SCHEMATHESIS_HOOKS", "hooks")
        .env("FLUFFY_BASE", url)
        .current_dir(house.folder.path());
    for operation in operations {
        command.args(["--include-operation-id", operation]);
    }
    let done = command.output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    let wrong = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}\n{wrong}");
}

/// How often an operation was answered with a status, as the server counts.
async fn answers(house: &House) -> BTreeMap<(String, String), u64> {
    let counted = house.metrics().await;
    let lines = counted.lines();
    lines
        .filter(|line| line.starts_with("fluffy_http_answers_total"))
        .map(|line| {
            let mut words = line.split('"');
            let (operation, status) = (words.nth(1).unwrap(), words.nth(1).unwrap());
            let times = line.rsplit(' ').next().unwrap().parse().unwrap();
            ((operation.to_owned(), status.to_owned()), times)
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn nine_of_ten_operations_succeed_for_a_stranger() {
    let servers = PublishedServers::fetched(&target());
    let servers = servers.expect("`cargo xtask test --only setup` fetches schemathesis");
    let house = House::start().await;
    for number in 1..=3 {
        house.crew.join(number).await;
    }
    let owner = house.owner().await;
    let mut known = furnish(&house, &owner).await;
    for (operation, body) in bodies() {
        let _ = known.bodies.insert(operation, body);
    }
    let folder = house.folder.path();
    std::fs::write(folder.join("schemathesis.toml"), known.config()).unwrap();
    std::fs::write(folder.join("hooks.py"), HOOKS).unwrap();
    std::fs::write(folder.join("bodies.json"), json!(known.bodies).to_string()).unwrap();
    let url = open_socket(&house).await;
    let before = answers(&house).await;
    let house = tokio::task::spawn_blocking(move || {
        for operations in rounds() {
            schemathesis(&house, &servers, &url, &operations);
        }
        house
    });
    let house = house.await.unwrap();
    let after = answers(&house).await;
    // The server counted what it answered; what others did before is not theirs.
    let new = after
        .iter()
        .filter(|(key, times)| before.get(*key).copied().unwrap_or_default() < **times);
    let good: BTreeSet<&str> = new
        .filter(|((_, status), _)| status.starts_with('2'))
        .map(|((operation, _), _)| operation.as_str())
        .collect();
    let all = Operation::ALL.iter().map(|operation| operation.spec().id);
    let missed: Vec<&str> = all.filter(|id| !good.contains(id)).collect();
    let met: Vec<_> = after
        .iter()
        .filter(|((operation, _), _)| missed.contains(&operation.as_str()))
        .collect();
    let reached = good.len() * 100 / Operation::ALL.len();
    eprintln!(
        "{} of {} operations answered with 2xx",
        good.len(),
        Operation::ALL.len()
    );
    assert!(reached >= 90, "{reached} %, not {missed:?}: {met:?}");
    house.server.stop().await;
}

/// What means something, where almost nothing that is valid does.
pub(crate) fn bodies() -> [(&'static str, Value); 17] {
    [
        (
            "createGrant",
            json!({ "principal_id": "local", "pattern": "env.read.local/*" }),
        ),
        (
            "createVolume",
            json!({ "name": "more", "size_bytes": 1_u64 << 30 }),
        ),
        ("drainNode", json!({ "leave_stateful": true })),
        ("createExec", json!({ "command": ["ls"] })),
        (
            "createRelease",
            json!({ "image": "registry.example/shop:1", "manifest": manifest(9) }),
        ),
        ("createRollback", json!({})),
        (
            "createRoute",
            json!({
                "hostname": "more.example.org", "listen_port": 443, "protocol_hint": "tls_passthrough",
                "backend_process": "web", "backend_port": 8080,
            }),
        ),
        ("createSnapshot", json!({ "note": "more" })),
        ("createToken", json!({})),
        ("decideApproval", json!({ "outcome": "approved" })),
        ("rebuildViews", json!({})),
        ("replaceSecrets", json!({ "values": { "KEY": "other" } })),
        ("setPolicy", json!({ "rules": RULES })),
        ("setQuotas", json!({ "limits": { "apps": 60 } })),
        ("setScale", json!({ "processes": { "web": 1 } })),
        ("testPolicy", json!({ "rules": RULES })),
        ("updateRoute", json!({ "ipv4_required": false })),
    ]
}
