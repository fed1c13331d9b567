//! Rate limits: what is counted by whom, and that replicas share.

use std::time::Duration;

use fluffy_api::operation::Bucket;

use super::super::rate::{Payer, Rates};
use super::*;

fn tight() -> Options {
    Options {
        rates: RateLimits {
            reads: 40,
            writes: 3,
            logins: 2,
            ..RateLimits::default()
        },
        ..Options::default()
    }
}

#[tokio::test]
async fn writes_of_an_org_end_at_its_limit_and_come_back() {
    let stand = Stand::with(tight());
    for (index, left) in ["2", "1", "0"].into_iter().enumerate() {
        let got = stand.create(&format!("a{index}"), &[]).await;
        assert_eq!(got.status, 201);
        assert_eq!(got.header("x-ratelimit-limit"), Some("3"));
        assert_eq!(got.header("x-ratelimit-remaining"), Some(left));
    }
    let got = stand.create("more", &[]).await;
    assert_eq!((got.status, got.code()), (429, "rate_limited"));
    assert_eq!(got.value["error"], "rate_limited");
    assert_eq!(got.header("retry-after"), Some("30"));
    assert_eq!(got.value["retry_after"], 30);
    assert_eq!(stand.double.apps(), 3);
    // Others are not touched by it: another org, and reads of this one.
    let other = stand.send("POST /v1/orgs/other/apps", &[], r#"{"name":"b"}"#);
    assert_eq!(other.await.status, 201);
    assert_eq!(stand.get("/v1/orgs/acme/apps").await.status, 200);
    stand.double.pass(Duration::from_secs(30));
    assert_eq!(stand.create("more", &[]).await.status, 201);
}

#[tokio::test]
async fn a_token_has_no_more_than_its_own_limit_or_the_orgs() {
    let stand = Stand::with(tight());
    stand.double.limit_tokens(Some(2));
    for (index, left) in ["1", "0"].into_iter().enumerate() {
        let got = stand.create(&format!("a{index}"), &[]).await;
        assert_eq!(got.status, 201);
        assert_eq!(got.header("x-ratelimit-limit"), Some("2"));
        assert_eq!(got.header("x-ratelimit-remaining"), Some(left));
    }
    for _ in 0..5 {
        assert_eq!(stand.create("more", &[]).await.status, 429);
    }
    // What it was refused cost the org nothing: another token has the rest.
    stand.double.limit_tokens(None);
    assert_eq!(stand.create("more", &[]).await.status, 201);
    assert_eq!(stand.create("most", &[]).await.status, 429);
    // A limit above the org's raises nothing.
    stand.double.pass(Duration::from_secs(30));
    stand.double.limit_tokens(Some(1_000));
    for index in 0..3 {
        assert_eq!(stand.create(&format!("b{index}"), &[]).await.status, 201);
    }
    assert_eq!(stand.create("last", &[]).await.status, 429);
}

#[tokio::test]
async fn replicas_together_allow_no_more_than_the_limit() {
    let one = Stand::with(tight());
    let two = Stand::on(one.double.clone(), tight());
    let mut allowed = 0;
    for turn in 0..60 {
        let stand = if turn % 3 == 0 { &one } else { &two };
        let got = stand.get("/v1/orgs/acme/apps").await;
        allowed += u32::from(got.status == 200);
    }
    assert_eq!(allowed, 40);
}

#[tokio::test]
async fn a_crowd_at_one_replica_leaves_the_rest_to_others() {
    let one = Stand::with(tight());
    let two = Stand::on(one.double.clone(), tight());
    let crowd = (0..20).map(|_| one.get("/v1/orgs/acme/apps"));
    let crowd = futures_util::future::join_all(crowd).await;
    assert!(crowd.iter().all(|got| got.status == 200));
    let mut allowed = 0;
    for _ in 0..20 {
        allowed += u32::from(two.get("/v1/orgs/acme/apps").await.status == 200);
    }
    assert_eq!(allowed, 20);
}

#[tokio::test]
async fn out_of_reach_of_the_others_a_replica_allows_its_share() {
    let stand = Stand::with(tight());
    stand.double.out_of_reach(4);
    let mut allowed = 0;
    for _ in 0..60 {
        allowed += u32::from(stand.get("/v1/orgs/acme/apps").await.status == 200);
    }
    assert_eq!(allowed, 10);
}

#[tokio::test]
async fn guessing_tokens_is_cut_off_by_address() {
    let stand = Stand::with(tight());
    let guess = || stand.request("GET /v1/orgs", &[("authorization", "Bearer flf_at_x")], "");
    let mut statuses = Vec::new();
    for _ in 0..4 {
        statuses.push(stand.send_from(7, guess()).await.status);
    }
    assert_eq!(statuses, [401, 401, 429, 429]);
    // The control: another address still gets its answer, and so does who has
    // a token, even from there.
    assert_eq!(stand.send_from(8, guess()).await.status, 401);
    let good = stand.request("GET /v1/orgs", &[], "");
    assert_eq!(stand.send_from(7, good).await.status, 200);
}

/// What replicas ask each other costs nothing; what only looks like it does.
#[tokio::test]
async fn guessing_tickets_of_replicas_is_cut_off_by_address() {
    use crate::peers::{ERRAND, LOGS, TICKET};

    let stand = Stand::with(tight());
    for (last, path) in [(7, LOGS), (8, ERRAND)] {
        let line = format!("GET {path}");
        let guess = || stand.request(&line, &[(TICKET, "AAAA")], "");
        let mut statuses = Vec::new();
        for _ in 0..4 {
            statuses.push(stand.send_from(last, guess()).await.status);
        }
        assert_eq!(statuses, [404, 404, 429, 429], "{path}");
        // The control: who has a token gets an answer, even from there.
        let good = stand.request("GET /v1/orgs", &[], "");
        assert_eq!(stand.send_from(last, good).await.status, 200);
    }
}

/// A guess from an address of IPv6, by its last two groups.
async fn guess_from(stand: &Stand, (network, host): (u16, u16)) -> u16 {
    let guess = [("authorization", "Bearer flf_at_x")];
    let request = stand.request("GET /v1/orgs", &guess, "");
    let from = IpAddr::from([0x2001, 0xdb8, 0, network, 0, 0, 0, host]);
    let peer = Peer::Address(from);
    let answer = stand.service.respond(Door::Public, peer, request).await;
    answer.status().as_u16()
}

#[tokio::test]
async fn the_addresses_of_one_network_are_one_address() {
    let stand = Stand::with(tight());
    let mut statuses = Vec::new();
    for host in 1..=4 {
        statuses.push(guess_from(&stand, (1, host)).await);
    }
    assert_eq!(statuses, [401, 401, 429, 429]);
    // The control: another network.
    assert_eq!(guess_from(&stand, (2, 1)).await, 401);
}

#[tokio::test]
async fn guessing_tokens_of_exec_sessions_is_cut_off_by_address() {
    let stand = Stand::with(tight());
    let good = Credential::generate(CredentialKind::Exec).unwrap();
    let _session = stand.double.expect_exec(good.hash);
    let path = "GET /v1/orgs/acme/exec/exec_1/connect";
    let knock = async |token: &str| {
        let protocol = format!("fluffy.exec.v1, bearer.{token}");
        let headers = [
            ("authorization", ""),
            ("connection", "upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ("sec-websocket-protocol", &protocol),
        ];
        let mut request = stand.request(path, &headers, "");
        request.headers_mut().remove("authorization");
        stand.send_from(7, request).await.status
    };
    let mut statuses = Vec::new();
    for _ in 0..4 {
        let other = Credential::generate(CredentialKind::Exec).unwrap();
        statuses.push(knock(other.text.expose()).await);
    }
    assert_eq!(statuses, [403, 403, 429, 429]);
    // The control: who has the token is let in, even from there.
    assert_eq!(knock(good.text.expose()).await, 101);
}

#[tokio::test]
async fn what_is_nowhere_costs_the_address() {
    let stand = Stand::with(tight());
    let mut last = 0;
    for _ in 0..41 {
        last = stand.get("/v1/nothing").await.status;
    }
    assert_eq!(last, 429);
}

/// More payers than are kept share what one has, and none of them ends a
/// bucket whose window goes on.
#[tokio::test]
async fn a_crowd_of_payers_is_bounded_and_forgets_nobody() {
    let double = Double::default();
    // What is drawn here is kept here alone.
    double.out_of_reach(1);
    let rates = Rates::default();
    let limits = RateLimits {
        reads: 5,
        execs: 2,
        ..RateLimits::default()
    };
    let exec = async || {
        let left = rates.count(&double, limits, (Bucket::Exec, Payer::Known("acme")));
        left.await.allowed
    };
    assert!(exec().await && exec().await && !exec().await);
    let mut allowed = 0;
    for number in 0..25_000 {
        let payer = format!("payer{number}");
        let left = rates.count(&double, limits, (Bucket::Read, Payer::Known(&payer)));
        allowed += u32::from(left.await.allowed);
    }
    assert_eq!(allowed, 20_000 - 1 + 5, "one each, and five for all others");
    assert!(!exec().await, "the hour is not over");
    // The next minute has room again.
    double.pass(Duration::from_secs(60));
    let left = rates.count(&double, limits, (Bucket::Read, Payer::Known("late")));
    assert!(left.await.allowed);
    assert!(!exec().await, "the hour is still not over");
}

/// Strangers come from as many addresses as they like, and who proved who they
/// are has a budget all the same.
#[tokio::test]
async fn a_crowd_of_strangers_takes_nothing_from_who_is_known() {
    let limits = RateLimits {
        reads: 5,
        ..RateLimits::default()
    };
    for is_known in [false, true] {
        let double = Double::default();
        let rates = Rates::default();
        let read = async |payer: Payer<'_>| {
            let left = rates.count(&double, limits, (Bucket::Read, payer));
            left.await.allowed
        };
        for number in 0..25_000_u32 {
            let stranger = IpAddr::from(number.to_be_bytes());
            let name = stranger.to_string();
            let payer = match is_known {
                false => Payer::Stranger(Peer::Address(stranger)),
                true => Payer::Known(&name),
            };
            read(payer).await;
        }
        let mut allowed = 0;
        for _ in 0..6 {
            allowed += u32::from(read(Payer::Known("acme")).await);
        }
        // The control: a crowd of its own kind leaves nothing.
        assert_eq!(allowed, if is_known { 0 } else { 5 });
    }
}

#[tokio::test]
async fn health_costs_nobody_anything() {
    let stand = Stand::with(tight());
    let peer = Peer::Address(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 9)));
    for _ in 0..100 {
        let ask = stand.request("GET /healthz", &[], "");
        let answer = stand.service.respond(Door::Operators, peer, ask).await;
        assert_eq!(answer.status(), 200);
    }
    let read = stand.request("GET /v1/orgs/acme/apps", &[], "");
    assert_eq!(stand.send_from(9, read).await.status, 200);
}
