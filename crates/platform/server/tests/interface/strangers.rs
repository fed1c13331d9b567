//! schemathesis reads the served document and tries everything it allows, and
//! much that it does not, with a credential of each role.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::Duration;

use fluffy_api::Operation;
use fluffy_api::client::{Ask, Client, Seen};
use fluffy_test_kit::{PublishedServers, campaign};
use serde_json::{Value, json};

use crate::house::House;
use crate::reach::open_socket;

/// What is held against every answer.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
                      response_schema_conformance,response_headers_conformance,\
                      unsupported_method,allow_header_conformance";

/// And where there is a login that could be ignored.
const LOGIN: &str = "ignored_auth";

/// These would end the credential that is used, are no JSON, or say that a
/// node is not connected, which here is so and elsewhere a 503.
const LEFT_OUT: [&str; 3] = ["revokeOwnToken", "connectExec", "signalInstance"];

/// How long each way of trying may take with the owner's credential, in
/// seconds, and with each other one: now, and in a long run.
const LONG: (u64, u64) = (20, 200);
const SHORT: (u64, u64) = (6, 60);
/// How often each operation is tried each way.
const EXAMPLES: (u64, u64) = (8, 80);

/// Headers that frame a message are not the API's: a library below it answers
/// them when they are garbage, without a body.
const HOOKS: &str = r#"
import schemathesis

FRAMING = {"connection", "content-length", "expect", "te", "trailer", "transfer-encoding", "upgrade"}

@schemathesis.hook
def before_call(context, case, **kwargs):
    for name in [name for name in (case.headers or {}) if name.lower() in FRAMING]:
        del case.headers[name]
"#;

/// The path of the folder that everything is built in.
pub(crate) fn target() -> std::path::PathBuf {
    let program = std::env::current_exe().unwrap();
    program.ancestors().nth(3).unwrap().to_owned()
}

const MANIFEST: &str = "schema_version = \"v1\"\n[processes.web]\ncommand = [\"serve\"]\n\
                        [processes.web.resources]\nmemory = \"64MiB\"\n";

/// What is really there, so that not everything that is tried is missing.
async fn known(house: &House, owner: &Client) -> String {
    let (org, app, env) = (["local"], ["local", "shop"], ["local", "shop", "dev"]);
    let body = json!({ "name": "data", "size_bytes": 1_u64 << 30 });
    let volume: Value = owner
        .send(Operation::CreateVolume, &org, &body)
        .await
        .unwrap();
    house.crew.provide(volume["id"].as_str().unwrap()).await;
    let mut words: Vec<(String, Vec<String>)> = [
        ("path.org", "local"),
        ("path.app", "shop"),
        ("path.env", "dev"),
        ("body.image", "registry.example/shop:1"),
        ("body.manifest", MANIFEST),
        ("body.pattern", "app.read.local/*"),
        ("body.process", "web"),
        ("body.rules", "version: 1\n"),
    ]
    .map(|(place, word)| (place.to_owned(), vec![word.to_owned()]))
    .into();
    // Some of what a call may end, so that there is more than one of it.
    for number in 0..6 {
        let named = |name: &str| json!({ "name": format!("{name}{number}"), "grants": [] });
        let principal: Value = owner
            .send(Operation::CreatePrincipal, &org, &named("robot"))
            .await
            .unwrap();
        let project = json!({ "name": format!("project{number}") });
        let grant = json!({ "principal_id": principal["id"], "pattern": "app.read.local/*" });
        let member = json!({ "email": format!("{number}@example.org"), "role": "viewer" });
        let made: [(&str, Operation, &[&str], Value); 5] = [
            ("path.project", Operation::CreateProject, &org, project),
            ("path.grant", Operation::CreateGrant, &org, grant),
            ("path.member", Operation::AddMember, &org, member),
            ("path.token", Operation::CreateToken, &org, json!({})),
            (
                "path.enrollment_token",
                Operation::CreateEnrollmentToken,
                &[],
                json!({}),
            ),
        ];
        let id = |value: &Value| vec![value["id"].as_str().unwrap().to_owned()];
        words.push(("path.principal".to_owned(), id(&principal)));
        words.push(("body.principal_id".to_owned(), id(&principal)));
        for (place, operation, path, body) in made {
            let value: Value = owner.send(operation, path, &body).await.unwrap();
            words.push((place.to_owned(), id(&value)));
        }
    }
    let lists: [(&str, Operation, &[&str]); 5] = [
        ("deploy", Operation::ListDeploys, &env),
        ("instance", Operation::ListInstances, &env),
        ("node", Operation::ListNodes, &[]),
        ("release", Operation::ListReleases, &app),
        ("volume", Operation::ListVolumes, &org),
    ];
    for (name, operation, path) in lists {
        let items: Vec<Value> = owner.list(Ask::new(operation, path)).await.unwrap();
        let ids: Vec<String> = items
            .iter()
            .map(|item| item["id"].as_str().unwrap().to_owned())
            .collect();
        assert!(!ids.is_empty(), "{name}");
        words.push((format!("path.{name}"), ids.clone()));
        words.push((format!("body.{name}_id"), ids));
    }
    let mut by_place: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (place, more) in words {
        by_place.entry(place).or_default().extend(more);
    }
    let words = by_place;
    let mut config = String::new();
    for (place, ids) in &words {
        let name = place.replace('.', "-");
        config.push_str(&format!("[dictionaries.{name}]\nvalues = {ids:?}\n"));
    }
    config.push_str("[parameters]\n");
    for place in words.keys() {
        let name = place.replace('.', "-");
        config.push_str(&format!(
            "\"{place}\" = {{ dictionary = \"{name}\", probability = 0.8 }}\n"
        ));
    }
    config
}

/// One run of schemathesis.
struct Run {
    role: &'static str,
    url: String,
    /// None on the socket of who runs the platform.
    token: Option<String>,
    phases: &'static str,
    seconds: u64,
}

fn schemathesis(house: &House, servers: &PublishedServers, run: &Run) -> String {
    let ca = house.folder.path().join("ca.pem");
    std::fs::write(&ca, &house.ca).unwrap();
    let mut command: Command = servers.schemathesis();
    command
        .arg("--config-file")
        .arg(house.folder.path().join("schemathesis.toml"))
        .arg("run")
        .arg(format!("{}/v1/openapi.json", run.url))
        .args(["--url", &run.url, "--tls-verify"])
        .arg(&ca)
        .args(["--phases", run.phases])
        .args([
            "--max-time",
            &run.seconds.to_string(),
            "--max-examples",
            &campaign(EXAMPLES.0, EXAMPLES.1).to_string(),
            "--seed",
            "7",
        ])
        .args(["--no-shrink", "--continue-on-failure"])
        .args([
            "--suppress-health-check",
            "all",
            "--request-timeout",
            "25",
            "--request-retries",
            "3",
        ])
        .args(["--no-color", "--warnings", "off"])
        .env("SCHEMATHESIS_HOOKS", "hooks")
        .current_dir(house.folder.path());
    match &run.token {
        Some(token) => command
            .args(["--header", &format!("Authorization: Bearer {token}")])
            .args(["--checks", &format!("{CHECKS},{LOGIN}")]),
        None => {
            let platform = Operation::ALL.iter().map(|it| it.spec());
            for spec in platform.filter(|it| it.capability.is_some() && !it.path.contains("{org}"))
            {
                command.args(["--include-operation-id", spec.id]);
            }
            command.args(["--checks", CHECKS])
        }
    };
    for operation in LEFT_OUT {
        command.args(["--exclude-operation-id", operation]);
    }
    let done = command.output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    let wrong = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{}: {said}\n{wrong}", run.role);
    said
}

/// A member's access token.
pub(crate) async fn login(house: &House, owner: &Client, role: &str) -> String {
    let body = json!({ "email": format!("{role}@example.org"), "role": role });
    let member: Value = owner
        .send(Operation::AddMember, &["local"], &body)
        .await
        .unwrap();
    let login = json!({ "grant_type": "invite", "code": member["invite_code"] });
    let anonymous = house.bearer("flf_none").await;
    let pair: Value = anonymous
        .send(Operation::ExchangeToken, &[], &login)
        .await
        .unwrap();
    pair["access_token"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_who_tries_everything_finds_no_fault() {
    let servers = PublishedServers::fetched(&target());
    let servers = servers.expect("`cargo xtask test --only setup` fetches schemathesis");
    let house = House::start().await;
    for number in 1..=2 {
        house.crew.join(number).await;
    }
    house.crew.app("shop").await;
    let release = house.crew.release("shop", "1", 1).await;
    house.crew.deploy("shop", &release).await;
    let owner = house.owner().await;
    let body = json!({ "ttl_seconds": 86_400 });
    let token: Value = owner
        .send(Operation::CreateToken, &["local"], &body)
        .await
        .unwrap();
    let token = token["secret"].as_str().unwrap().to_owned();
    let nodes = house.crew.clone();
    let nodes = tokio::spawn(async move { nodes.tend_for_ever().await });
    house
        .crew
        .tend_until("an instance runs", |state| {
            let mut instances = state.runtime.plan.instances.values();
            instances
                .find(|instance| instance.observed.was_ready)
                .map(drop)
        })
        .await;
    let config = known(&house, &owner).await;
    std::fs::write(house.folder.path().join("schemathesis.toml"), config).unwrap();
    std::fs::write(house.folder.path().join("hooks.py"), HOOKS).unwrap();
    let (long, short) = (campaign(LONG.0, LONG.1), campaign(SHORT.0, SHORT.1));
    let run = |role, token: &String, phases, seconds| Run {
        role,
        url: house.url.clone(),
        token: Some(token.clone()),
        phases,
        seconds,
    };
    let mut runs: Vec<Run> = ["coverage", "fuzzing", "stateful"]
        .map(|phases| run("owner", &token, phases, long))
        .into();
    for role in ["viewer", "developer", "operator", "admin"] {
        let token = login(&house, &owner, role).await;
        runs.extend(["fuzzing", "stateful"].map(|phases| run(role, &token, phases, short)));
    }
    // Who runs the platform comes last, with what nobody else may: it takes
    // nodes out of use.
    let url = open_socket(&house).await;
    runs.extend(["fuzzing", "stateful"].map(|phases| Run {
        role: "platform operator",
        url: url.clone(),
        token: None,
        phases,
        seconds: long,
    }));
    let house = tokio::task::spawn_blocking(move || {
        for run in &runs {
            let said = schemathesis(&house, &servers, run);
            assert!(said.contains("generated"), "{}: {said}", run.role);
        }
        house
    });
    let house = tokio::time::timeout(Duration::from_secs(3600), house);
    let house = house.await.unwrap().unwrap();
    nodes.abort();
    // What the server counted itself: no answer of any run was its fault.
    let counted = house.metrics().await;
    let answers = counted
        .lines()
        .filter(|line| line.starts_with("fluffy_http_answers_total"));
    let (mut good, mut all) = (BTreeSet::new(), 0);
    for line in answers {
        assert!(!line.contains("status=\"5"), "{line}");
        let operation = line.split('"').nth(1).unwrap();
        if line.contains("status=\"2") {
            good.insert(operation.to_owned());
        }
        all += 1;
    }
    assert!(all > 100, "{counted}");
    assert!(good.len() > 10, "{good:?}");
    // And what is for who runs the platform was reached, too.
    let platform = [
        "getIpam",
        "getKeys",
        "getProjections",
        "rotateKeys",
        "verifyLedger",
    ];
    let reached = platform.iter().filter(|it| good.contains(**it)).count();
    assert!(reached >= 2, "{good:?}");
    house.server.stop().await;
}

/// Who remembers an event of another ledger, such as that of a data folder
/// which was made anew, is told so and goes on.
#[tokio::test(flavor = "multi_thread")]
async fn what_this_ledger_never_had_is_forgotten() {
    let house = House::start().await;
    let owner = house.owner().await;
    let foreign = Seen {
        epoch: 1,
        seq: 1_000_000,
    };
    owner.remember(foreign);
    let orgs: Value = owner.get(Operation::ListOrgs, &[]).await.unwrap();
    assert!(orgs["items"].is_array(), "{orgs}");
    let head = house.crew.platform.ledger().head().unwrap().seq;
    assert!(owner.seen().is_some_and(|seen| seen.seq <= head));
}
