//! Somebody of one org learns nothing of another's objects: every operation
//! answers of what is there exactly as of what is not, in status, headers,
//! body and time.
//!
//! The objects are real ones of every kind, made through the interface.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use fluffy_api::Operation as O;
use fluffy_api::Operation;
use fluffy_api::client::Client;
use fluffy_api::operation::{Auth, Kind};
use fluffy_base::id::RequestId;
use fluffy_server::http::{Door, Peer};
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper::body::Bytes;
use serde_json::{Value, json};

use crate::house::House;
use crate::reach::{Known, bodies, furnish};

/// What an id of nothing ends with.
const NOTHING: &str = "01ARZ3NDEKTSV4RRFFQ69G5FAV";

/// What is different in two answers to the very same question.
const PASSING: [&str; 7] = [
    "date",
    "fluffy-applied-seq",
    "fluffy-request-id",
    "fluffy-seq",
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
];

/// A question, before it is said of what.
#[derive(Clone)]
struct Question {
    operation: Operation,
    path: Vec<String>,
    query: String,
    body: Value,
}

/// All that an answer says.
#[derive(Debug, PartialEq)]
struct Said {
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
}

/// Somebody with a token.
struct Asker<'a> {
    house: &'a House,
    token: String,
}

impl Asker<'_> {
    fn request(&self, question: &Question) -> Request<Full<Bytes>> {
        let spec = question.operation.spec();
        let path: Vec<&str> = question.path.iter().map(String::as_str).collect();
        let path = question.operation.path_with(&path).unwrap();
        let mut request = Request::builder()
            .method(spec.method.as_str())
            .uri(format!("{path}{}", question.query))
            .header("authorization", format!("Bearer {}", self.token));
        if spec.kind == Kind::Write {
            let key = RequestId::generate().to_string();
            request = request.header("idempotency-key", key);
            request = request.header("if-match", "\"1\"");
        }
        if spec.auth == Auth::ExecToken {
            request = request
                .header("connection", "upgrade")
                .header("upgrade", "websocket")
                .header("sec-websocket-version", "13")
                .header("sec-websocket-key", "AAAAAAAAAAAAAAAAAAAAAA==")
                .header("sec-websocket-protocol", "fluffy.exec.v1");
        }
        let mut body = String::new();
        if spec.request.is_some() {
            request = request.header("content-type", "application/json");
            body = question.body.to_string();
        }
        request.body(Full::new(Bytes::from(body))).unwrap()
    }

    async fn ask(&self, question: &Question) -> Said {
        let request = self.request(question);
        let peer = Peer::Address(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)));
        let service = &self.house.service;
        let response = service.respond(Door::Public, peer, request).await;
        let (head, body) = response.into_parts();
        let headers = head.headers.iter();
        let mut headers: Vec<(String, String)> = headers
            .filter(|(name, _)| !PASSING.contains(&name.as_str()))
            .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
            .collect();
        headers.sort();
        let bytes = body.collect().await.unwrap().to_bytes();
        let mut value: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        if let Some(fields) = value.as_object_mut() {
            fields.remove("request_id");
        }
        Said {
            status: head.status.as_u16(),
            headers,
            body: value.to_string(),
        }
    }
}

/// A house with everything in the org `local`, and somebody who owns the org
/// `beta` and may do there whatever can be done.
async fn furnished() -> (House, Known, String) {
    let house = House::start().await;
    for number in 1..=3 {
        house.crew.join(number).await;
    }
    let owner = house.owner().await;
    let known = furnish(&house, &owner).await;
    send(&owner, O::CreateOrg, &[], json!({ "slug": "beta" })).await;
    send(&owner, O::CreateApp, &["beta"], json!({ "name": "shop" })).await;
    let app = ["beta", "shop"];
    send(&owner, O::CreateEnv, &app, json!({ "name": "dev" })).await;
    let member = json!({ "email": "mallory@example.org", "role": "owner" });
    let member = send(&owner, O::AddMember, &["beta"], member).await;
    let invite = json!({ "grant_type": "invite", "code": member["invite_code"] });
    let pair = send(&owner, O::ExchangeToken, &[], invite).await;
    let mallory = json!({
        "principal_id": member["principal_id"], "pattern": "instance.exec.beta/*",
    });
    send(&owner, O::CreateGrant, &["beta"], mallory).await;
    let token = pair["access_token"].as_str().unwrap().to_owned();
    (house, known, token)
}

async fn send(client: &Client, operation: Operation, path: &[&str], body: Value) -> Value {
    let sent = client.send(operation, path, &body).await;
    sent.unwrap_or_else(|error| panic!("{operation:?}: {error}"))
}

/// The body that an operation is tried with.
fn body_of(operation: Operation) -> Value {
    let id = operation.spec().id;
    if let Some((_, body)) = bodies().into_iter().find(|(known, _)| *known == id) {
        return body;
    }
    let nothing = |kind: &str| format!("{kind}_{NOTHING}");
    match operation {
        O::AddMember => json!({ "email": "x@example.org", "role": "viewer" }),
        O::UpdateMember => json!({ "role": "viewer" }),
        O::CreatePrincipal => json!({ "name": "new", "grants": [] }),
        O::UpdatePrincipal => json!({ "grants": [] }),
        O::CreateProject | O::CreateApp | O::CreateEnv | O::RestoreSnapshot => {
            json!({ "name": "new" })
        }
        O::CreateOrg => json!({ "slug": "new" }),
        O::UpdateProject => json!({ "display_name": "new" }),
        O::BlockRelease => json!({ "reason": "why not" }),
        O::SignalInstance => json!({ "signal": "TERM" }),
        O::CreateDeploy => json!({ "release_id": nothing("rel") }),
        O::CreateAttachment => {
            json!({ "volume_id": nothing("vol"), "process": "job", "mount_path": "/x" })
        }
        O::ReplaceAttachment => json!({ "volume_id": nothing("vol") }),
        O::UpdateVolume => json!({ "backup_enabled": true }),
        O::RehomeVolume => json!({ "node_id": nothing("node") }),
        _ => json!({}),
    }
}

/// An id of the same kind that nothing has.
fn made_up(id: &str) -> String {
    match id.rsplit_once('_') {
        Some((kind, _)) => format!("{kind}_{NOTHING}"),
        None => "nothing".to_owned(),
    }
}

/// Pairs of questions that must be answered alike, by what they are about: one
/// is about something of the org `local`, the other about nothing.
fn pairs(known: &Known) -> Vec<(String, Question, Question)> {
    let mut pairs = Vec::new();
    for operation in Operation::ALL {
        let spec = operation.spec();
        let params: Vec<&str> = spec.path_params().collect();
        if params.is_empty() {
            continue;
        }
        let real = |param: &str| -> String {
            let ids = known.ids.get(param);
            let ids = ids.unwrap_or_else(|| panic!("nothing is known of `{param}`"));
            ids[0].clone()
        };
        let question = |path: Vec<String>| Question {
            operation: *operation,
            path,
            query: String::new(),
            body: body_of(*operation),
        };
        let there: Vec<String> = params.iter().map(|param| real(param)).collect();
        // Below the other's org: each part of the path is there, or is not.
        for place in 0..params.len() {
            let mut not = there.clone();
            not[place] = made_up(&not[place]);
            let what = format!("{} without its {}", spec.id, params[place]);
            pairs.push((what, question(there.clone()), question(not)));
        }
        // Below one's own org: with what is the other's, and with nothing.
        let leaf = params.len() - 1;
        let is_own = params[0] == "org" && !["org", "app", "env"].contains(&params[leaf]);
        if is_own {
            for id in &known.ids[params[leaf]] {
                let own = ["beta", "shop", "dev"];
                let mut foreign: Vec<String> =
                    own.iter().take(leaf).map(|it| (*it).to_owned()).collect();
                let mut not = foreign.clone();
                foreign.push(id.clone());
                not.push(made_up(id));
                let what = format!("{} of one's own org with {id}", spec.id);
                pairs.push((what, question(foreign), question(not)));
            }
        }
    }
    pairs.extend(references(known));
    pairs
}

/// The same for what is named in a body or behind the question mark.
fn references(known: &Known) -> Vec<(String, Question, Question)> {
    let first = |name: &str| known.ids[name][0].clone();
    let (org, env) = (vec!["beta"], vec!["beta", "shop", "dev"]);
    let (volume, release) = (first("volume"), first("release"));
    let (principal, token) = (first("principal"), first("token"));
    let at = |volume: &str| json!({ "volume_id": volume, "process": "job", "mount_path": "/x" });
    let grant = |who: &str| json!({ "principal_id": who, "pattern": "app.read.beta/*" });
    let near = |id: &str| json!({ "name": "near", "size_bytes": 1_u64 << 30, "near": id });
    type Body<'a> = &'a dyn Fn(&str) -> Value;
    let bodies: [(Operation, &Vec<&str>, &str, Body<'_>); 8] = [
        (O::CreateAttachment, &env, &volume, &at),
        (O::CreateVolume, &org, &volume, &near),
        (
            O::CreateDeploy,
            &env,
            &release,
            &|id| json!({ "release_id": id }),
        ),
        (
            O::CreateRollback,
            &env,
            &release,
            &|id| json!({ "to_release": id }),
        ),
        (O::CreateGrant, &org, &principal, &grant),
        (
            O::CreateToken,
            &org,
            &principal,
            &|id| json!({ "principal_id": id }),
        ),
        (
            O::CreateToken,
            &org,
            &principal,
            &|id| json!({ "on_behalf_of": id }),
        ),
        (
            O::RevokeOwnToken,
            &vec![],
            &token,
            &|id| json!({ "token_id": id }),
        ),
    ];
    let mut pairs = Vec::new();
    for (operation, path, id, body) in bodies {
        let question = |id: &str| Question {
            operation,
            path: path.iter().map(|it| (*it).to_owned()).collect(),
            query: String::new(),
            body: body(id),
        };
        let what = format!("{} about {id}", operation.spec().id);
        pairs.push((what, question(id), question(&made_up(id))));
    }
    let filters = [
        (O::ListTokens, &org, "principal", &principal),
        (O::ListGrants, &org, "principal", &principal),
        (O::ListApps, &org, "project", &known.ids["project"][0]),
        (O::ListEvents, &org, "actor", &principal),
        (O::GetLogs, &env, "instance", &known.ids["instance"][0]),
    ];
    for (operation, path, name, id) in filters {
        let question = |id: &str| Question {
            operation,
            path: path.iter().map(|it| (*it).to_owned()).collect(),
            query: format!("?{name}={id}"),
            body: Value::Null,
        };
        let what = format!("{} by {name} {id}", operation.spec().id);
        pairs.push((what, question(id), question(&made_up(id))));
    }
    pairs
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_says_nothing_of_what_another_org_has() {
    let (house, known, token) = furnished().await;
    let house = &house;
    let mallory = Asker { house, token };
    let all = pairs(&known);
    let (mut told, mut operations) = (Vec::new(), std::collections::BTreeSet::new());
    for (what, there, not) in &all {
        let (real, nothing) = (mallory.ask(there).await, mallory.ask(not).await);
        if real != nothing {
            told.push(format!("{what}: {real:?} but of nothing {nothing:?}"));
        }
        // It got as far as a decision, and that was no.
        let of_other = there.path.first().is_some_and(|org| org == "local");
        if of_other && real.status != 403 {
            told.push(format!("{what}: {real:?}"));
        }
        operations.insert(there.operation.spec().id);
    }
    assert!(told.is_empty(), "{}", told.join("\n"));
    assert!(operations.len() > 90, "{}", operations.len());
    // The control: the same questions of who may know are answered otherwise.
    let owner = house.owner().await;
    let own = json!({ "ttl_seconds": 3600 });
    let own = send(&owner, O::CreateToken, &["local"], own).await;
    let token = own["secret"].as_str().unwrap().to_owned();
    let owner = Asker { house, token };
    let mut told = 0;
    for (_, there, not) in all.iter().filter(|(_, there, _)| {
        there.operation.spec().kind != Kind::Write
            && there.path.first().is_some_and(|it| it == "local")
    }) {
        let (real, nothing) = (owner.ask(there).await, owner.ask(not).await);
        told += usize::from(real != nothing);
    }
    assert!(told > 40, "{told}");
}

/// How many answers are timed at once, and how often before it counts.
const SAMPLES: usize = 41;
const ROUNDS: usize = 6;
/// What differs by more than so much can be told from afar.
const RATIO: f64 = 1.6;

/// Whether the answers to two questions can be told apart by the time they
/// take, every time that is tried. The first is answered so much later.
async fn differ(asker: &Asker<'_>, pair: [&Question; 2], later: Duration) -> bool {
    for _ in 0..ROUNDS {
        let mut times = [Vec::new(), Vec::new()];
        for sample in 0..SAMPLES * 2 {
            // In turns, and not always the same one first.
            let which = (sample + sample / 2) % 2;
            let start = Instant::now();
            asker.ask(pair[which]).await;
            while which == 0 && later > Duration::ZERO && start.elapsed() < later {
                std::hint::spin_loop();
            }
            times[which].push(start.elapsed());
        }
        let [one, other] = times.map(|mut times| {
            times.sort();
            times[times.len() / 2].as_secs_f64()
        });
        if (one / other).max(other / one) < RATIO {
            return false;
        }
    }
    true
}

#[tokio::test(flavor = "multi_thread")]
async fn the_time_of_an_answer_says_nothing_of_what_another_org_has() {
    let (house, known, token) = furnished().await;
    let mallory = Asker {
        house: &house,
        token,
    };
    let all = pairs(&known);
    // Reads: what a write costs is its place in the ledger, whatever it says.
    let timed: Vec<_> = all
        .iter()
        .filter(|(_, there, _)| {
            let spec = there.operation.spec();
            spec.kind == Kind::Read && spec.auth == Auth::Caller
        })
        .filter(|(what, ..)| what.contains("own org") || what.contains("without its app"))
        .collect();
    let mut seen = std::collections::BTreeSet::new();
    for (what, there, not) in timed {
        let kind = what
            .rsplit_once(' ')
            .map_or(what.as_str(), |(kind, _)| kind);
        if seen.insert((kind, there.operation.spec().id)) {
            let told = differ(&mallory, [there, not], Duration::ZERO).await;
            assert!(!told, "{what} can be timed");
        }
    }
    assert!(seen.len() > 12, "{seen:?}");
    // The control: an answer that takes twice as long is noticed.
    let (_, there, not) = all
        .iter()
        .find(|(what, there, _)| what.contains("own org") && there.operation == O::GetInstance)
        .unwrap();
    let start = Instant::now();
    for _ in 0..SAMPLES {
        mallory.ask(not).await;
    }
    let usual = start.elapsed() / u32::try_from(SAMPLES).unwrap();
    assert!(differ(&mallory, [there, not], usual * 4).await);
}

/// Within one org: who has every right on one env, and nothing besides.
#[tokio::test(flavor = "multi_thread")]
async fn a_role_on_one_env_says_nothing_of_another() {
    let (house, known, _) = furnished().await;
    let house = &house;
    let owner = house.owner().await;
    let app = known.ids["app"][0].as_str();
    let aside = json!({ "name": "aside" });
    send(&owner, O::CreateEnv, &["local", app], aside).await;
    let member = json!({
        "email": "eve@example.org", "role": "owner", "app": app, "env": "aside",
    });
    let member = send(&owner, O::AddMember, &["local"], member).await;
    let invite = json!({ "grant_type": "invite", "code": member["invite_code"] });
    let pair = send(&owner, O::ExchangeToken, &[], invite).await;
    let token = pair["access_token"].as_str().unwrap().to_owned();
    let eve = Asker { house, token };
    let mut all = pairs(&known);
    all.retain(|(what, there, _)| {
        there.path.first().is_some_and(|org| org == "local") && !what.ends_with("without its org")
    });
    let (mut told, mut operations) = (Vec::new(), std::collections::BTreeSet::new());
    for (what, there, not) in &all {
        let (real, nothing) = (eve.ask(there).await, eve.ask(not).await);
        if real != nothing || real.status != 403 {
            told.push(format!("{what}: {real:?} but of nothing {nothing:?}"));
        }
        operations.insert(there.operation.spec().id);
    }
    assert!(told.is_empty(), "{}", told.join("\n"));
    assert!(operations.len() > 60, "{}", operations.len());
    // Nor is there anything to be learnt by naming it in one's own env.
    let own = ["local", app, "aside"].map(str::to_owned);
    let mount = |volume: &str| Question {
        operation: O::CreateAttachment,
        path: own.to_vec(),
        query: String::new(),
        body: json!({ "volume_id": volume, "process": "job", "mount_path": "/x" }),
    };
    for volume in &known.ids["volume"] {
        let real = eve.ask(&mount(volume)).await;
        assert_eq!(real, eve.ask(&mount(&made_up(volume))).await);
        assert_eq!(real.status, 404, "{real:?}");
    }
    // The control: in their own env they see and do what the role says.
    let see = Question {
        operation: O::GetStatus,
        path: own.to_vec(),
        query: String::new(),
        body: Value::Null,
    };
    assert_eq!(eve.ask(&see).await.status, 200);
}
