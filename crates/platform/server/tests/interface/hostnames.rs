//! Hostnames: proven by what the DNS says, and by nothing else.

use fluffy_api::Operation;
use fluffy_api::client::{Ask, CallError, Client};
use fluffy_server::dns::{Dns, LookUpError};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::house::{House, PATIENCE};
use crate::nameserver::{Manner, NameServer};

const ENV: [&str; 3] = ["local", "shop", "dev"];
const LIVE: [&str; 3] = ["local", "shop", "live"];
const MANIFEST: &str = "schema_version = \"v1\"\n[processes.web]\n\
    [[processes.web.ports]]\ninternal = 8080\n[processes.web.resources]\nmemory = \"64MiB\"\n";

/// A house with a deploy that declares port 8080 of `web`, in two envs.
async fn house() -> (House, Client) {
    let house = House::start().await;
    let owner = house.owner().await;
    let send = async |operation, path: &[&str], body: Value| -> Value {
        owner.send(operation, path, &body).await.unwrap()
    };
    send(Operation::CreateApp, &["local"], json!({"name": "shop"})).await;
    let body = json!({"image": "registry.example/shop:1", "manifest": MANIFEST});
    let release = send(Operation::CreateRelease, &ENV[..2], body).await;
    for env in [ENV, LIVE] {
        send(Operation::CreateEnv, &env[..2], json!({"name": env[2]})).await;
        let body = json!({"release_id": release["id"]});
        send(Operation::CreateDeploy, &env, body).await;
    }
    (house, owner)
}

async fn expose(owner: &Client, hostname: &str) -> Value {
    expose_at(owner, ENV, hostname).await
}

async fn expose_at(owner: &Client, env: [&str; 3], hostname: &str) -> Value {
    let body = json!({
        "hostname": hostname, "listen_port": 443, "protocol_hint": "tls_passthrough",
        "backend_process": "web", "backend_port": 8080,
    });
    let route = owner.send(Operation::CreateRoute, &env, &body).await;
    route.unwrap()
}

async fn verify(owner: &Client, route: &Value) -> Result<Value, (u16, String, String)> {
    verify_at(owner, ENV, route).await
}

async fn verify_at(
    owner: &Client,
    env: [&str; 3],
    route: &Value,
) -> Result<Value, (u16, String, String)> {
    let id = route["id"].as_str().unwrap();
    let path = [env[0], env[1], env[2], id];
    match owner.call(Ask::new(Operation::VerifyRoute, &path)).await {
        Ok(answer) => Ok(answer.value),
        Err(CallError::Refused(it)) => Err((it.status, it.code, it.detail)),
        Err(error) => panic!("{error:?}"),
    }
}

fn challenge(route: &Value) -> (&str, &str) {
    let of = |name: &str| route["challenge"][name].as_str().unwrap();
    (of("record"), of("value"))
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_right_text_proves_a_hostname() {
    let (house, owner) = house().await;
    let (first, second) = (
        expose(&owner, "shop.example.com").await,
        expose(&owner, "other.example.com").await,
    );
    let (record, value) = challenge(&first);
    assert_eq!(record, "_fluffy-challenge.shop.example.com");
    let refused = verify(&owner, &first).await.unwrap_err();
    assert_eq!(
        (refused.0, refused.1.as_str()),
        (409, "hostname_not_proven")
    );
    assert!(refused.2.contains(record) && refused.2.contains(value));
    // What proves another route proves nothing here.
    house
        .names
        .set(record, &["v=spf1 -all", challenge(&second).1]);
    assert!(verify(&owner, &first).await.is_err());

    house.names.behave(Manner::Failing);
    house.names.set(record, &["v=spf1 -all", value]);
    let refused = verify(&owner, &first).await.unwrap_err();
    assert_eq!((refused.0, refused.1.as_str()), (503, "unavailable"));

    house.names.behave(Manner::AfterLies);
    let proven = verify(&owner, &first).await.unwrap();
    assert_eq!(proven["verified"], true, "{proven}");
    assert!(proven["challenge"].is_null(), "{proven}");
    // Nobody is asked about what is known.
    house.names.behave(Manner::Never);
    assert_eq!(verify(&owner, &first).await.unwrap()["verified"], true);
    house.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_is_looked_up_again_by_itself() {
    let (house, owner) = house().await;
    let route = expose(&owner, "shop.example.com").await;
    let (record, value) = challenge(&route);
    house.names.set(record, &[value]);
    let path = [ENV[0], ENV[1], ENV[2], route["id"].as_str().unwrap()];
    let limit = Instant::now() + PATIENCE * 2;
    loop {
        let route: Value = owner.get(Operation::GetRoute, &path).await.unwrap();
        if route["verified"] == true {
            break;
        }
        assert!(
            Instant::now() < limit,
            "asked {}: {route}",
            house.names.asked()
        );
        sleep(std::time::Duration::from_millis(100)).await;
    }
    let events = house.crew.platform.ledger().read(1, 10_000).unwrap();
    let mut proven = events.iter().filter(|it| it.event_type == "route.verified");
    let proven = proven.next().unwrap();
    assert!(proven.payload.as_str().contains("dns_txt"));
    assert_eq!(proven.actor.id, "routes-verify");
    house.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_asked_first_for_a_name_keeps_nobody_from_it_who_proves_it() {
    let (house, owner) = house().await;
    let squatter = expose(&owner, "shop.example.com").await;
    let route = expose_at(&owner, LIVE, "shop.example.com").await;
    let (record, value) = challenge(&route);
    house.names.set(record, &[value]);
    let proven = verify_at(&owner, LIVE, &route).await.unwrap();
    assert_eq!(proven["verified"], true, "{proven}");
    // From now on no text makes it another env's, and none is looked for.
    house.names.set(record, &[value, challenge(&squatter).1]);
    house.names.behave(Manner::Never);
    let refused = verify(&owner, &squatter).await.unwrap_err();
    assert_eq!((refused.0, refused.1.as_str()), (409, "hostname_taken"));
    house.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_below_the_own_suffix_need_no_proof() {
    let (house, owner) = house().await;
    let own = expose(&owner, "shop.apps.example.org").await;
    assert_eq!(own["verified"], true, "{own}");
    let other = expose(&owner, "apps.example.org").await;
    assert_eq!(other["verified"], false, "{other}");
    house.server.stop().await;
}

#[tokio::test]
async fn texts_come_by_the_way_that_works_and_from_who_was_asked() {
    let names = NameServer::start().await;
    names.set("a.example.com", &["one", "two"]);
    names.set_alias("b.example.com", "A.example.com");
    let dns = Dns::new(vec![names.address]);
    for manner in [Manner::Well, Manner::AfterLies, Manner::Cut] {
        names.behave(manner);
        for name in ["a.example.com", "A.Example.com.", "b.example.com"] {
            assert_eq!(dns.texts(name).await.unwrap(), ["one", "two"], "{name}");
        }
        let none = dns.texts("none.example.com").await.unwrap();
        assert!(none.is_empty());
    }
    let long = "x".repeat(255);
    names.behave(Manner::Cut);
    names.set("long.example.com", &[long.as_str(); 40]);
    assert_eq!(dns.texts("long.example.com").await.unwrap().len(), 40);

    let wrong = dns.texts(&"x".repeat(300)).await;
    assert!(matches!(wrong, Err(LookUpError::Name { .. })), "{wrong:?}");
    names.behave(Manner::Failing);
    let failing = dns.texts("a.example.com").await;
    assert!(matches!(failing, Err(LookUpError::Refused { .. })));
}

/// One that says nothing, or nothing that can be read, holds nobody up for
/// long, and another is asked.
#[tokio::test]
async fn a_server_that_does_not_answer_is_passed_over() {
    let (mute, names) = (NameServer::start().await, NameServer::start().await);
    names.set("a.example.com", &["one"]);
    for manner in [Manner::Never, Manner::Garbage] {
        mute.behave(manner);
        let dns = Dns::new(vec![mute.address, names.address]);
        assert_eq!(dns.texts("a.example.com").await.unwrap(), ["one"]);
        assert!(mute.asked() > 0);
    }
    let began = Instant::now();
    let alone = Dns::new(vec![mute.address]).texts("a.example.com").await;
    assert!(
        matches!(alone, Err(LookUpError::Silent { .. })),
        "{alone:?}"
    );
    assert!(began.elapsed() < PATIENCE);
}
