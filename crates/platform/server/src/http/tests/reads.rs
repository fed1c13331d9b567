//! Reads: pages, cursors, and what a session has seen.

use super::*;

async fn filled() -> Stand {
    let stand = Stand::new();
    for name in ["a", "b", "c", "d", "e"] {
        stand.create(name, &[]).await;
    }
    stand
}

fn names(got: &Got) -> Vec<&str> {
    let items = got.value["items"].as_array().unwrap();
    items
        .iter()
        .map(|item| item["name"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn pages_follow_each_other_to_the_end() {
    let stand = filled().await;
    let first = stand.get("/v1/orgs/acme/apps?limit=2").await;
    assert_eq!(names(&first), ["a", "b"]);
    let cursor = first.value["next_cursor"].as_str().unwrap();
    let second = stand
        .get(&format!("/v1/orgs/acme/apps?limit=3&cursor={cursor}"))
        .await;
    assert_eq!(names(&second), ["c", "d", "e"]);
    assert!(second.value["next_cursor"].is_null());
    assert_eq!(names(&stand.get("/v1/orgs/acme/apps").await).len(), 5);
}

#[tokio::test]
async fn a_cursor_is_good_for_its_own_list_only() {
    let stand = filled().await;
    let first = stand.get("/v1/orgs/acme/apps?limit=2&project=p").await;
    let cursor = first.value["next_cursor"].as_str().unwrap();
    let same = format!("/v1/orgs/acme/apps?limit=2&project=p&cursor={cursor}");
    assert_eq!(stand.get(&same).await.status, 200);
    let (head, tail) = cursor.split_at(cursor.len() - 1);
    let forged = format!("{head}{}", if tail == "A" { "B" } else { "A" });
    for path in [
        format!("/v1/orgs/acme/apps?limit=2&cursor={cursor}"),
        format!("/v1/orgs/acme/apps?limit=2&project=q&cursor={cursor}"),
        format!("/v1/orgs/other/apps?limit=2&project=p&cursor={cursor}"),
        format!("/v1/orgs/acme/projects?limit=2&cursor={cursor}"),
        format!("/v1/orgs/acme/apps?limit=2&project=p&cursor={forged}"),
        "/v1/orgs/acme/apps?cursor=x".to_owned(),
        "/v1/orgs/acme/apps?cursor=%C3%BC".to_owned(),
    ] {
        let got = stand.get(&path).await;
        assert_eq!((got.status, got.code()), (400, "cursor_invalid"), "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_read_waits_for_what_the_session_has_seen() {
    let stand = filled().await;
    let got = stand
        .send("GET /v1/orgs/acme/apps", &[("fluffy-min-seq", "5")], "")
        .await;
    assert_eq!(
        (got.status, got.header("fluffy-applied-seq")),
        (200, Some("5"))
    );
    let future = stand
        .send("GET /v1/orgs/acme/apps", &[("fluffy-min-seq", "6")], "")
        .await;
    assert_eq!((future.status, future.code()), (400, "invalid_argument"));
    let nonsense = stand
        .send("GET /v1/orgs/acme/apps", &[("fluffy-min-seq", "x")], "")
        .await;
    assert_eq!(
        (nonsense.status, nonsense.code()),
        (400, "invalid_argument")
    );
    // What was seen before the ledger was restored need not be waited for.
    stand.double.restore();
    let seen = [("fluffy-min-seq", "5"), ("fluffy-epoch", "1")];
    let got = stand.send("GET /v1/orgs/acme/apps", &seen, "").await;
    assert_eq!((got.status, got.header("fluffy-epoch")), (200, Some("2")));
}
