//! Streams: what is there, what changes, where to go on, when it ends.

use std::time::Duration;

use hyper::Response;
use hyper::body::Body as _;

use super::*;

/// Reads a stream, one message at a time.
struct Reader {
    body: AnswerBody,
    text: String,
}

impl Reader {
    fn new(response: Response<AnswerBody>) -> Self {
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self {
            body: response.into_body(),
            text: String::new(),
        }
    }

    /// The next message: its kind, its id and its data; none at the end.
    async fn next(&mut self) -> Option<(String, u64, Value)> {
        loop {
            if let Some((message, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| {
                    let mut lines = message.lines();
                    lines
                        .find_map(|line| line.strip_prefix(name))
                        .unwrap()
                        .to_owned()
                };
                let read = (
                    field("event: "),
                    field("id: ").parse().unwrap(),
                    serde_json::from_str(&field("data: ")).unwrap(),
                );
                self.text = rest.to_owned();
                return Some(read);
            }
            let frame = tokio::time::timeout(Duration::from_secs(60), self.body.frame());
            let frame = frame.await.expect("the stream says something")?.unwrap();
            self.text
                .push_str(std::str::from_utf8(&frame.into_data().unwrap()).unwrap());
        }
    }

    async fn kinds(&mut self, count: usize) -> Vec<String> {
        let mut kinds = Vec::new();
        for _ in 0..count {
            let (kind, _, data) = self.next().await.unwrap();
            let of = data.get("id").and_then(Value::as_str).unwrap_or_default();
            kinds.push(format!("{kind} {of}").trim().to_owned());
        }
        kinds
    }
}

async fn watch(stand: &Stand, path: &str, headers: &[(&str, &str)]) -> Response<AnswerBody> {
    let mut request = stand.request(&format!("GET {path}"), headers, "");
    request
        .headers_mut()
        .insert("accept", "text/event-stream".parse().unwrap());
    let peer = Peer::Address(IpAddr::V4(Ipv4Addr::LOCALHOST));
    stand.service.respond(Door::Public, peer, request).await
}

#[tokio::test(start_paused = true)]
async fn a_list_is_shown_and_then_its_changes() {
    let stand = Stand::new();
    stand.create("a", &[]).await;
    stand.create("b", &[]).await;
    let mut reader = Reader::new(watch(&stand, "/v1/orgs/acme/apps", &[]).await);
    assert_eq!(
        reader.kinds(3).await,
        ["snapshot a", "snapshot b", "synced"]
    );
    stand.create("c", &[]).await;
    stand
        .send("PATCH /v1/orgs/acme/apps/a", &[], r#"{"description":"d"}"#)
        .await;
    stand.send("DELETE /v1/orgs/acme/apps/b", &[], "").await;
    let mut changes = reader.kinds(3).await;
    changes.sort();
    assert_eq!(changes, ["delete b", "upsert a", "upsert c"]);
    let (kind, seq, _) = reader.next().await.unwrap();
    assert_eq!((kind.as_str(), seq), ("watermark", 5));
}

#[tokio::test(start_paused = true)]
async fn a_stream_ends_when_its_caller_may_no_longer_look() {
    let stand = Stand::new();
    stand.create("a", &[]).await;
    let mut reader = Reader::new(watch(&stand, "/v1/orgs/acme/apps", &[]).await);
    reader.kinds(2).await;
    stand.double.forget("alice");
    assert_eq!(reader.next().await, None);
    // Who may not look from the start gets a refusal, no stream.
    stand.double.know(nobody(), "somebody else");
    let refused = watch(&stand, "/v1/orgs/acme/apps", &[]).await;
    assert_eq!(refused.status(), 401);
}

#[tokio::test(start_paused = true)]
async fn events_go_on_exactly_where_a_reader_was() {
    let stand = Stand::new();
    for name in ["a", "b", "c"] {
        stand.create(name, &[]).await;
    }
    let mut reader =
        Reader::new(watch(&stand, "/v1/orgs/acme/events", &[("last-event-id", "1")]).await);
    let mut seen = Vec::new();
    for _ in 0..3 {
        let (kind, seq, _) = reader.next().await.unwrap();
        seen.push((kind, seq));
    }
    let upsert = |seq| ("upsert".to_owned(), seq);
    assert_eq!(seen, [upsert(2), upsert(3), ("synced".to_owned(), 3)]);
    stand.create("d", &[]).await;
    let (kind, seq, _) = reader.next().await.unwrap();
    assert_eq!((kind.as_str(), seq), ("upsert", 4));
    // Without a place to go on from, what comes from now on.
    let mut fresh = Reader::new(watch(&stand, "/v1/orgs/acme/events", &[]).await);
    assert_eq!(fresh.kinds(1).await, ["synced"]);
    let mut whole = Reader::new(watch(&stand, "/v1/orgs/acme/events?after=0", &[]).await);
    assert_eq!(whole.kinds(5).await.len(), 5);
}

#[tokio::test(start_paused = true)]
async fn an_org_has_so_many_streams_and_no_more() {
    let stand = Stand::with(Options {
        rates: RateLimits {
            watches: 2,
            ..RateLimits::default()
        },
        ..Options::default()
    });
    let one = Reader::new(watch(&stand, "/v1/orgs/acme/apps", &[]).await);
    let _two = Reader::new(watch(&stand, "/v1/orgs/acme/apps", &[]).await);
    let refused = watch(&stand, "/v1/orgs/acme/apps", &[]).await;
    assert_eq!(refused.status(), 429);
    assert!(refused.body().size_hint().lower() > 0);
    let now = stand.double.now().as_micros() / 1_000_000;
    for (name, value) in [
        ("retry-after", "10".to_owned()),
        ("x-ratelimit-limit", "2".to_owned()),
        ("x-ratelimit-remaining", "0".to_owned()),
        ("x-ratelimit-reset", (now + 10).to_string()),
    ] {
        assert_eq!(refused.headers()[name], value, "{name}");
    }
    let _other = Reader::new(watch(&stand, "/v1/orgs/other/apps", &[]).await);
    drop(one);
    // The place is free once the stream has noticed.
    loop {
        let again = watch(&stand, "/v1/orgs/acme/apps", &[]).await;
        if again.status() == 200 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn few(watches: u64) -> Options {
    Options {
        rates: RateLimits {
            watches,
            ..RateLimits::default()
        },
        ..Options::default()
    }
}

/// Opens streams at one stand after the other until there is no place.
async fn open_all(stands: &[&Stand]) -> Vec<Reader> {
    let mut open = Vec::new();
    let mut full = 0;
    for stand in stands.iter().cycle() {
        let response = watch(stand, "/v1/orgs/acme/apps", &[]).await;
        if response.status() == 200 {
            open.push(Reader::new(response));
            full = 0;
        } else {
            full += 1;
        }
        if full == stands.len() {
            break;
        }
    }
    open
}

#[tokio::test(start_paused = true)]
async fn replicas_together_open_no_more_streams_than_the_limit() {
    let one = Stand::with(few(5));
    let two = Stand::on(one.double.clone(), few(5));
    let mut open = open_all(&[&one, &two]).await;
    assert_eq!(open.len(), 5);
    // Longer than places are kept for who says nothing: both go on saying.
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert!(open_all(&[&one, &two]).await.is_empty());
    // What one closes, the other opens.
    open.truncate(3);
    let mut more = Vec::new();
    while more.len() < 2 {
        more.extend(open_all(&[&two]).await);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(open_all(&[&one, &two]).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn out_of_reach_of_the_others_a_replica_opens_its_share() {
    let one = Stand::with(few(6));
    let two = Stand::on(one.double.clone(), few(6));
    one.double.out_of_reach(3);
    let alone = open_all(&[&one]).await;
    assert_eq!(alone.len(), 2);
    // Back in reach, what was opened meanwhile is counted as well.
    one.double.in_reach();
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(open_all(&[&two]).await.len(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_is_gone_leaves_its_places_to_the_others() {
    let one = Stand::with(few(4));
    let two = Stand::on(one.double.clone(), few(4));
    let lost = open_all(&[&one]).await;
    assert_eq!(lost.len(), 4);
    assert!(open_all(&[&two]).await.is_empty());
    // It says nothing more, as if it had been killed.
    one.double.silence(&one.service.holder());
    let start = tokio::time::Instant::now();
    let mut found = Vec::new();
    while found.len() < 4 {
        found.extend(open_all(&[&two]).await);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let took = start.elapsed();
    assert!(took < Duration::from_secs(16), "{took:?}");
    drop(lost);
}

/// What happens while a stream is busy with a slow reader is not missed, and
/// no watermark speaks of an event that was not sent.
#[tokio::test(start_paused = true)]
async fn what_happens_while_a_reader_is_slow_is_sent_at_once() {
    let stand = Stand::new();
    // More than wait for a reader that does not read.
    for number in 0..70 {
        stand.create(&format!("app{number}"), &[]).await;
    }
    let events = "/v1/orgs/acme/events?after=0";
    let mut reader = Reader::new(watch(&stand, events, &[]).await);
    // Nothing moves any more: the stream waits for its reader.
    tokio::time::advance(Duration::from_millis(1)).await;
    stand.create("late", &[]).await;
    let start = tokio::time::Instant::now();
    let mut last = 0;
    while last < 71 {
        let (kind, seq, _) = reader.next().await.unwrap();
        match kind.as_str() {
            "upsert" => {
                assert_eq!(seq, last + 1);
                last = seq;
            }
            _ => assert!(seq <= last, "{kind} {seq} before {last} was sent"),
        }
        let took = start.elapsed();
        assert!(took < Duration::from_secs(5), "{took:?}");
    }
}

/// A platform on which something always happens tells its readers that they
/// live too, and never more than they were sent.
#[tokio::test(start_paused = true)]
async fn a_busy_stream_has_watermarks() {
    let stand = Stand::new();
    stand.create("first", &[]).await;
    let mut reader = Reader::new(watch(&stand, "/v1/orgs/acme/events?after=0", &[]).await);
    let writing = async {
        for number in 0..10 {
            tokio::time::sleep(Duration::from_secs(5)).await;
            stand.create(&format!("app{number}"), &[]).await;
        }
    };
    let reading = async {
        let (mut last, mut marks) = (0, 0);
        while last < 11 {
            let (kind, seq, _) = reader.next().await.unwrap();
            match kind.as_str() {
                "upsert" => last = seq,
                "watermark" => {
                    assert_eq!(seq, last);
                    marks += 1;
                }
                _ => {}
            }
        }
        marks
    };
    let ((), marks) = tokio::join!(writing, reading);
    assert_eq!(marks, 3, "in 50 seconds");
}

/// Numbers of events mean something else after a restore: a stream ends, and
/// nobody goes on behind an event that there is not.
#[tokio::test(start_paused = true)]
async fn a_restored_ledger_ends_streams() {
    let stand = Stand::new();
    for name in ["a", "b", "c"] {
        stand.create(name, &[]).await;
    }
    let events = "/v1/orgs/acme/events";
    let mut reader = Reader::new(watch(&stand, events, &[("last-event-id", "1")]).await);
    assert_eq!(reader.kinds(3).await.len(), 3);
    let mut list = Reader::new(watch(&stand, "/v1/orgs/acme/apps", &[]).await);
    assert_eq!(list.kinds(4).await.len(), 4);
    stand.double.restore();
    assert_eq!(reader.next().await, None);
    assert_eq!(list.next().await, None);
    let again = watch(&stand, events, &[("last-event-id", "3")]).await;
    assert_eq!(again.status(), 410);
    // Where it ends, it goes on.
    let mut anew = Reader::new(watch(&stand, events, &[("last-event-id", "1")]).await);
    assert_eq!(anew.kinds(1).await, ["synced"]);
}
