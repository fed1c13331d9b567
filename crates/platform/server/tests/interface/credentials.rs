//! Credentials: a secret that was changed opens, and one that is not good is
//! put on record, whatever is wrong with it.

use fluffy_api::Operation;
use fluffy_api::client::{CallError, Client};
use fluffy_server::http::{Backend as _, Identity};
use serde_json::{Value, json};

use crate::house::House;
use crate::strangers::login;

const ORG: [&str; 1] = ["local"];

async fn exchange(client: &Client, id: &Value, secret: &Value) -> Result<Value, CallError> {
    let login = json!({
        "grant_type": "client_credentials", "client_id": id, "client_secret": secret,
    });
    client.send(Operation::ExchangeToken, &[], &login).await
}

/// A service principal has a name, and whoever rotates its secret may use it.
#[tokio::test(flavor = "multi_thread")]
async fn a_secret_rotated_by_name_opens() {
    let house = House::start().await;
    let owner = house.owner().await;
    let body = json!({ "name": "robot", "grants": ["app.read.local"] });
    let robot = owner.send(Operation::CreatePrincipal, &ORG, &body).await;
    let robot: Value = robot.unwrap();
    let id = robot["id"].as_str().unwrap();
    for name in ["robot", id] {
        let path = ["local", name];
        let body = json!({ "overlap_seconds": 0 });
        let rotated = owner.send(Operation::RotatePrincipal, &path, &body).await;
        let rotated: Value = rotated.unwrap();
        let secret = &rotated["client_secret"];
        let pair = exchange(&owner, &robot["id"], secret).await.unwrap();
        let bearer = house.bearer(pair["access_token"].as_str().unwrap()).await;
        let apps: Value = bearer.get(Operation::ListApps, &ORG).await.unwrap();
        assert_eq!(apps["items"], json!([]), "by `{name}`");
        // The one before is no longer good.
        let before = exchange(&owner, &robot["id"], &robot["client_secret"]).await;
        assert!(before.is_err(), "{before:?}");
    }
}

/// The reasons on record for credentials that were not good.
fn reasons(house: &House) -> Vec<String> {
    let events = house.crew.platform.ledger().read(1, 10_000).unwrap();
    let failed = events.iter().filter(|it| it.event_type == "auth.failed");
    let reason = |text: &str| -> Value { serde_json::from_str(text).unwrap() };
    failed
        .map(|it| {
            reason(it.payload.as_str())["reason"]
                .as_str()
                .unwrap()
                .to_owned()
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_credential_that_is_not_good_is_on_record() {
    let house = House::start().await;
    let owner = house.owner().await;
    assert_eq!(reasons(&house), Vec::<String>::new());
    // One that was revoked.
    let token = login(&house, &owner, "viewer").await;
    let bearer = house.bearer(&token).await;
    let whoami: Value = bearer.get(Operation::Whoami, &[]).await.unwrap();
    assert!(whoami["principal_id"].is_string());
    let _: Value = bearer
        .send(Operation::RevokeOwnToken, &[], &json!({}))
        .await
        .unwrap();
    assert_eq!(reasons(&house), Vec::<String>::new(), "all were good");
    let refused: Result<Value, _> = bearer.get(Operation::Whoami, &[]).await;
    assert_eq!(code(refused), "token_revoked");
    // A secret of nobody, which has the right form.
    let nobody = fluffy_server::credential::Credential::generate(
        fluffy_server::credential::CredentialKind::Client,
    );
    let nobody = json!(nobody.unwrap().text.expose());
    let id = json!(fluffy_base::id::PrincipalId::generate().to_string());
    assert_eq!(code(exchange(&owner, &id, &nobody).await), "invalid_grant");
    // A used invite.
    let body = json!({ "email": "twice@example.org", "role": "viewer" });
    let member: Value = owner.send(Operation::AddMember, &ORG, &body).await.unwrap();
    let invite = json!({ "grant_type": "invite", "code": member["invite_code"] });
    let enter = || owner.send::<Value>(Operation::ExchangeToken, &[], &invite);
    enter().await.unwrap();
    assert_eq!(code(enter().await), "invalid_grant");
    // Another user of the machine at the owner's socket.
    let stranger = rustix::process::geteuid().as_raw() + 1;
    let refused = house.service.backend().identify(Identity::Socket(stranger));
    assert_eq!(refused.await.unwrap_err().code, "unauthenticated");
    // What was never a token.
    let refused: Result<Value, _> = house
        .bearer("flf_none")
        .await
        .get(Operation::Whoami, &[])
        .await;
    assert_eq!(code(refused), "unauthenticated");
    assert_eq!(
        reasons(&house),
        [
            "revoked token",
            "invalid grant",
            "invalid grant",
            "another user of the machine",
            "nothing was shown",
        ]
    );
    // From one place they are counted one by one up to ten, then in sum.
    for _ in 0..20 {
        let refused: Result<Value, _> = bearer.get(Operation::Whoami, &[]).await;
        assert_eq!(code(refused), "token_revoked");
    }
    let many = reasons(&house).len();
    house.service.backend().settle().await.unwrap();
    let after = reasons(&house);
    assert!(many <= 5 + 10, "{many}");
    assert_eq!(after.len(), many + 1);
    assert_eq!(after.last().map(String::as_str), Some("folded"));
}

fn code<T: std::fmt::Debug>(result: Result<T, CallError>) -> String {
    match result {
        Err(CallError::Refused(problem)) => problem.code,
        other => panic!("{other:?}"),
    }
}
