//! The door of exec sessions: whose token opens it, where, and what is on
//! record of those that do not.

use std::net::{IpAddr, Ipv6Addr};

use fluffy_api::Operation;
use fluffy_base::Digest;
use fluffy_base::id::{ExecSessionId, RequestId};
use fluffy_ledger::Event;
use fluffy_server::credential::recognise;
use fluffy_server::http::{Backend as _, OpenExec};
use serde_json::{Value, json};

use crate::house::House;

const ORG: [&str; 1] = ["local"];

/// A house with an instance in which its owner may run commands, and a second
/// org.
async fn begun() -> (House, String) {
    let house = House::start().await;
    let instance = house.instance().await;
    let crew = house.crew.clone();
    tokio::spawn(async move { crew.beat_for_ever().await });
    let owner = house.owner().await;
    let grant = json!({ "principal_id": "local", "pattern": "instance.exec.local/*" });
    let other = json!({ "slug": "beta" });
    for (operation, path, body) in [
        (Operation::CreateGrant, &ORG[..], grant),
        (Operation::CreateOrg, &[], other),
    ] {
        let _: Value = owner.send(operation, path, &body).await.unwrap();
    }
    (house, instance)
}

/// A session, and the hash of what opens it.
async fn session(house: &House, instance: &str) -> (String, Digest) {
    let body = json!({ "command": ["ls"], "token_seconds": 300 });
    let path = ["local", "shop", "dev", instance];
    let owner = house.owner().await;
    let granted: Value = owner
        .send(Operation::CreateExec, &path, &body)
        .await
        .unwrap();
    let (_, hash) = recognise(granted["token"].as_str().unwrap()).unwrap();
    (granted["id"].as_str().unwrap().to_owned(), hash)
}

/// Why nobody was let in.
async fn refusal(
    house: &House,
    (org, session): (&str, &str),
    token: Option<Digest>,
    from: IpAddr,
) -> &'static str {
    let asked = OpenExec {
        org: org.to_owned(),
        session: session.to_owned(),
        token,
        resume: None,
        source: from.to_string(),
        request_id: RequestId::generate().to_string(),
    };
    let opened = house.service.backend().open_exec(asked).await;
    opened.unwrap_err().code
}

/// What is on record of bad tokens: the reason, and in whose history it is.
fn failures(house: &House) -> Vec<(String, Option<String>)> {
    let events = house.crew.platform.ledger().read(1, 10_000).unwrap();
    let failed = events.iter().filter(|it| it.event_type == "auth.failed");
    let reason = |it: &Event| {
        let payload = it.payload.value().unwrap();
        payload["reason"].as_str().unwrap().to_owned()
    };
    failed
        .map(|it| (reason(it), it.scope.org_id.clone()))
        .collect()
}

fn host(network: u16, host: u16) -> IpAddr {
    Ipv6Addr::new(0x2001, 0xdb8, 0, network, 0, 0, 0, host).into()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_opens_its_session_at_the_door_of_its_own_org() {
    let (house, instance) = begun().await;
    let (id, token) = session(&house, &instance).await;
    for org in ["beta", "nowhere", ""] {
        let why = refusal(&house, (org, &id), Some(token), host(1, 1)).await;
        assert_eq!(why, "exec_token_invalid", "{org}");
    }
    let nobodys = ("exec_token_invalid".to_owned(), None);
    assert_eq!(failures(&house), vec![nobodys; 3]);
    // The control: at its own it is let in, where the instance's node turns out
    // to be nowhere.
    let why = refusal(&house, ("local", &id), Some(token), host(1, 1)).await;
    assert_eq!(why, "unavailable");
    assert_eq!(failures(&house).len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_write_into_nobodys_history_and_not_without_an_end() {
    let (house, instance) = begun().await;
    // Whoever has an address of IPv6 has as many as they like.
    for number in 1..=25 {
        let made_up = ExecSessionId::generate().to_string();
        let why = refusal(&house, ("local", &made_up), None, host(1, number)).await;
        assert_eq!(why, "exec_token_invalid");
    }
    let nobodys = |reason: &str| (reason.to_owned(), None);
    let recorded = failures(&house);
    assert_eq!(recorded, vec![nobodys("exec_token_invalid"); 10]);
    house.service.backend().settle().await.unwrap();
    let recorded = failures(&house);
    assert_eq!(recorded.last(), Some(&nobodys("folded")));
    assert_eq!(recorded.len(), 11);
    // The control: who knows a session is heard of by its org, each time.
    let (id, _) = session(&house, &instance).await;
    let owner = house.owner().await;
    let org: Value = owner.get(Operation::GetOrg, &ORG).await.unwrap();
    let theirs = (
        "exec_token_invalid".to_owned(),
        org["id"].as_str().map(str::to_owned),
    );
    for number in 1..=3 {
        let guess = Digest::of(&[0, number]);
        let why = refusal(&house, ("local", &id), Some(guess), host(2, 1)).await;
        assert_eq!(why, "exec_token_invalid");
    }
    assert_eq!(failures(&house)[11..], vec![theirs; 3]);
}
