//! Writes: keys, versions, views that are late, callers that go away.

use std::time::Duration;

use super::*;

const KEY: (&str, &str) = ("idempotency-key", "key-0001-shop");

#[tokio::test]
async fn a_write_answers_with_its_object_and_its_event() {
    let stand = Stand::new();
    let got = stand.create("shop", &[]).await;
    assert_eq!(got.status, 201);
    assert_eq!(got.value["name"], "shop");
    assert_eq!(got.header("fluffy-seq"), Some("1"));
    assert_eq!(got.header("etag"), Some("\"1\""));
}

#[tokio::test]
async fn a_repeated_write_happens_once_and_shows_no_secret_again() {
    let stand = Stand::new();
    let first = stand.create("shop", &[KEY]).await;
    assert_eq!(first.value["secret"], "shown once");
    assert_eq!(first.header("idempotency-replayed"), None);
    let again = stand.create("shop", &[KEY]).await;
    assert_eq!(
        (again.status, again.header("idempotency-replayed")),
        (201, Some("true"))
    );
    assert_eq!(again.value["name"], "shop");
    assert_eq!(again.value.get("secret"), None);
    assert_eq!(again.header("fluffy-seq"), first.header("fluffy-seq"));
    assert_eq!(stand.double.apps(), 1);
    let other = stand.create("other", &[KEY]).await;
    assert_eq!((other.status, other.code()), (409, "idempotency_key_reuse"));
    for stored in stand.double.stored() {
        assert!(!stored.body.to_string().contains("shown once"));
    }
}

/// The answer is lost with the replica that gave it; what happened is not.
#[tokio::test]
async fn a_repeat_whose_answer_was_lost_gets_what_is_there() {
    let stand = Stand::new();
    stand.create("shop", &[KEY]).await;
    stand.double.lose_answers();
    let again = stand.create("shop", &[KEY]).await;
    assert_eq!(
        (again.status, again.header("idempotency-replayed")),
        (201, Some("true"))
    );
    assert_eq!(again.value["name"], "shop");
    assert_eq!(stand.double.apps(), 1);
}

#[tokio::test]
async fn a_refusal_is_repeated_unless_it_may_change() {
    let stand = Stand::new();
    stand.create("shop", &[]).await;
    let taken = stand.create("shop", &[KEY]).await;
    assert_eq!((taken.status, taken.code()), (409, "name_taken"));
    let again = stand.create("shop", &[KEY]).await;
    assert_eq!((again.status, again.code()), (409, "name_taken"));
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    assert_eq!(
        again.value["request_id"],
        again.header("fluffy-request-id").unwrap()
    );
    let other = ("idempotency-key", "key-0002");
    for _ in 0..2 {
        let got = stand.create("forbidden", &[other]).await;
        assert_eq!(
            (got.status, got.header("idempotency-replayed")),
            (403, None)
        );
    }
}

#[tokio::test]
async fn a_key_is_required_where_a_second_time_would_hurt() {
    let stand = Stand::new();
    let body = r#"{"name":"data","size_bytes":1073741824}"#;
    let got = stand.send("POST /v1/orgs/acme/volumes", &[], body).await;
    assert_eq!((got.status, got.code()), (400, "idempotency_key_required"));
    let got = stand.send("POST /v1/orgs/acme/volumes", &[KEY], body).await;
    assert_eq!(got.status, 201);
    for key in ["short", &"long".repeat(40), "with space in it"] {
        let got = stand.create("shop", &[("idempotency-key", key)]).await;
        assert_eq!(
            (got.status, got.code()),
            (400, "idempotency_key_invalid"),
            "{key}"
        );
    }
}

#[tokio::test]
async fn a_repeat_while_the_first_runs_is_told_to_wait() {
    let stand = Stand::new();
    stand.double.stall();
    let first = stand.create("shop", &[KEY]);
    let second = async {
        stand.double.stalled().await;
        let got = stand.create("shop", &[KEY]).await;
        stand.double.go_on();
        got
    };
    let (first, second) = tokio::join!(first, second);
    assert_eq!(
        (second.status, second.code()),
        (409, "idempotency_in_progress")
    );
    assert_eq!(first.status, 201);
    assert_eq!(stand.create("shop", &[KEY]).await.status, 201);
}

#[tokio::test]
async fn a_caller_that_goes_away_leaves_no_half_write() {
    let stand = Stand::new();
    stand.double.stall();
    let gone = tokio::time::timeout(Duration::from_millis(200), stand.create("shop", &[KEY]));
    assert!(gone.await.is_err());
    stand.double.stalled().await;
    stand.double.go_on();
    let kept = async {
        while stand.double.stored().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), kept)
        .await
        .expect("the answer is kept");
    let again = stand.create("shop", &[KEY]).await;
    assert_eq!(
        (again.status, again.header("idempotency-replayed")),
        (201, Some("true"))
    );
}

#[tokio::test]
async fn a_version_is_read_from_the_header() {
    let stand = Stand::new();
    stand.create("shop", &[]).await;
    let patch = async |version: &str| {
        let line = "PATCH /v1/orgs/acme/apps/shop";
        let body = r#"{"description":"d"}"#;
        stand.send(line, &[("if-match", version)], body).await
    };
    let got = patch("\"7\"").await;
    assert_eq!((got.status, got.code()), (412, "precondition_failed"));
    assert_eq!(patch("\"1\"").await.header("etag"), Some("\"2\""));
    for wrong in ["1", "*", "W/\"1\"", "\"x\"", "\"-1\""] {
        let got = patch(wrong).await;
        assert_eq!(
            (got.status, got.code()),
            (400, "invalid_argument"),
            "{wrong}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_whose_view_is_late_answers_with_a_receipt() {
    let stand = Stand::new();
    stand.double.hold();
    let got = stand.create("shop", &[KEY, ("prefer", "wait=3")]).await;
    assert_eq!(got.status, 202);
    assert_eq!(got.value["seq"], 1);
    // Nobody could tell it later, and nobody keeps it.
    assert_eq!(got.value["secret"], "shown once");
    for stored in stand.double.stored() {
        assert!(!stored.body.to_string().contains("shown once"));
    }
    assert_eq!(got.value["status_url"], "/v1/orgs/acme/apps/shop");
    let read = stand.send(
        "GET /v1/orgs/acme/apps/shop",
        &[("fluffy-min-seq", "1")],
        "",
    );
    let read = read.await;
    assert_eq!((read.status, read.code()), (503, "projection_lag"));
    assert_eq!(read.header("retry-after"), Some("1"));
    stand.double.release();
    let read = stand.get("/v1/orgs/acme/apps/shop?min_seq=1").await;
    assert_eq!(
        (read.status, read.header("fluffy-applied-seq")),
        (200, Some("1"))
    );
}

#[tokio::test]
async fn bodies_are_checked_before_anything_is_decided() {
    let stand = Stand::new();
    for (body, code) in [
        ("{", "invalid_argument"),
        ("[]", "invalid_argument"),
        (r#"{"name":"Shop"}"#, "invalid_argument"),
        (r#"{"name":"shop","colour":"red"}"#, "unknown_field"),
    ] {
        let got = stand.send("POST /v1/orgs/acme/apps", &[], body).await;
        assert_eq!((got.status, got.code()), (400, code), "{body}");
    }
    let got = stand
        .send("DELETE /v1/orgs/acme/apps/shop", &[], "{}")
        .await;
    assert_eq!((got.status, got.code()), (400, "invalid_argument"));
    let manifest = format!(r#"{{"manifest":"{}"}}"#, "m".repeat(70_000));
    let got = stand
        .send("POST /v1/orgs/acme/apps/shop/releases", &[], &manifest)
        .await;
    assert_eq!((got.status, got.code()), (413, "too_large"));
    assert_eq!(stand.double.apps(), 0);
}

/// Where a write can be looked at whose view is late.
#[tokio::test]
async fn a_receipt_leads_to_what_was_written() {
    let stand = Stand::new();
    stand.create("shop", &[]).await;
    stand.double.hold();
    for (line, body, url) in [
        (
            "POST /v1/orgs/acme/apps",
            r#"{"name":"new"}"#,
            "/v1/orgs/acme/apps/new",
        ),
        (
            "PATCH /v1/orgs/acme/apps/shop",
            r#"{"description":"d"}"#,
            "/v1/orgs/acme/apps/shop",
        ),
    ] {
        let got = stand.send(line, &[("prefer", "wait=0")], body).await;
        assert_eq!(got.status, 202, "{line}");
        assert_eq!(got.value["status_url"], url, "{line}");
    }
}

/// A key of somebody who logs in is nobody's: it neither repeats an answer nor
/// is it in anybody's way.
#[tokio::test]
async fn logging_in_has_no_keys() {
    let stand = Stand::new();
    let body = r#"{"grant_type":"invite","code":"x"}"#;
    for _ in 0..2 {
        let got = stand.send("POST /v1/auth/token", &[KEY], body).await;
        assert_eq!(got.code(), "not_supported", "the double knows apps only");
        assert_eq!(got.header("idempotency-replayed"), None);
    }
    assert_eq!(stand.double.stored(), []);
}
