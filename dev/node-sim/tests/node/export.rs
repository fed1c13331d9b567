//! Every line of an env, however many: page by page, by whoever may.

use std::path::Path;

use fluffy_api::Operation;
use fluffy_api::client::{Ask, CallError, Client, Target};
use fluffy_api::node::dial::dial;
use fluffy_api::node::{MAX_LOG_ENTRIES, MAX_LOG_LINE, v1};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::kit::{nodes, streaming};
use crate::whole::{Replica, join, serve};

const DEV: [&str; 3] = ["local", "shop", "dev"];

/// More than one answer holds, and no multiple of what one does.
const LINES: u64 = 25_007;

/// What a node says, in batches; every third is said twice, as after a break.
async fn push(replica: &Replica, sims: &Path, entries: Vec<v1::LogEntry>) {
    let home = fluffy_node_sim::Home::open(&sims.join("node-0")).unwrap();
    let credentials = home.credentials().unwrap().unwrap();
    let (trust, identity) = (credentials.trust(), credentials.identity());
    let (trust, identity) = (trust.unwrap(), identity.unwrap());
    let channel = dial(("localhost", replica.port), &trust, Some(&identity)).await;
    let mut client = nodes(channel.unwrap());
    let (batches, receiver) = mpsc::channel(4);
    let acks = client.push_logs(streaming(receiver)).await.unwrap();
    let (mut acks, mut number) = (acks.into_inner(), 0);
    for (place, entries) in entries.chunks(MAX_LOG_ENTRIES).enumerate() {
        for _ in 0..=usize::from(place % 3 == 2) {
            number += 1;
            let batch = v1::LogBatch {
                node_id: credentials.node_id.clone(),
                number,
                entries: entries.to_vec(),
            };
            batches.send(batch).await.unwrap();
            assert_eq!(acks.message().await.unwrap().unwrap().through, number);
        }
    }
}

async fn page(client: &Client, env: &[&str], cursor: &str) -> Result<Value, CallError> {
    let ask = Ask::new(Operation::GetLogs, env)
        .query("stream", "stdout")
        .query("tail", "10000")
        .query("cursor", cursor.to_owned());
    client.call(ask).await.map(|answer| answer.value)
}

/// The numbers of the lines that the test printed.
fn seqs_of_test(answer: &Value) -> Vec<u64> {
    let lines = answer["items"].as_array().unwrap().iter();
    let own = lines.filter(|it| it["boot_id"] == "boot_of_the_test");
    own.map(|it| it["seq"].as_u64().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_line_is_had_once_and_in_order_by_who_may() {
    let folder = tempfile::tempdir().unwrap();
    let mut replica = Replica::start(&folder, 0).await;
    let socket = serve(&mut replica, &folder).await;
    let sims = folder.path().join("sim");
    let sim = join(&replica.home(&sims), &[replica.token().await], 1);
    replica.shop().await;
    let made = replica.write(
        Operation::CreateEnv,
        &["local", "shop"],
        json!({"name": "prod"}),
    );
    made.await;
    let client = async |name: &str, grant: &str| {
        let robot = json!({"name": name, "grants": [grant]});
        let robot = replica.write(Operation::CreatePrincipal, &["local"], robot);
        let body = json!({"principal_id": robot.await.0.id});
        let made = replica.write(Operation::CreateToken, &["local"], body);
        let secret = made.await.1["secret"].as_str().unwrap().to_owned();
        let client = Client::connect(Target::Socket(socket.clone())).await;
        client.unwrap().with_token(secret.into())
    };
    let reader = client("reader", "logs.read.local/*").await;
    let other = client("other", "env.read.local/*").await;
    let release = replica.release("one", 1).await;
    replica.succeeds(&replica.deploy(&release).await).await;
    let (instance, _) = replica.ready().pop_first().unwrap();
    let now = std::time::SystemTime::now();
    let now = now.duration_since(std::time::UNIX_EPOCH).unwrap();
    let now_ms = u64::try_from(now.as_millis()).unwrap();
    let entry = |seq: u64| v1::LogEntry {
        instance_id: instance.to_string(),
        boot_id: "boot_of_the_test".to_owned(),
        stream: "stdout".to_owned(),
        seq,
        // Many in one millisecond, and none in the future.
        at_ms: now_ms - 60_000 + seq / 1_000,
        line: format!("line {seq}"),
        truncated: false,
        dropped: if seq == 12_345 { 7 } else { 0 },
    };
    push(&replica, &sims, (1..=LINES).map(entry).collect()).await;

    let (mut lines, mut cursor, mut pages) = (Vec::new(), "start".to_owned(), 0);
    loop {
        // Whoever goes on may be somebody else, who knows the cursor.
        let page = page(&reader, &DEV, &cursor).await.unwrap();
        let items = page["items"].as_array().unwrap().clone();
        cursor = page["next_cursor"].as_str().unwrap().to_owned();
        pages += 1;
        if items.is_empty() {
            break;
        }
        assert!(items.len() <= 10_000, "{}", items.len());
        lines.extend(items);
    }
    let of_test = |line: &&Value| line["boot_id"] == "boot_of_the_test";
    let own: Vec<&Value> = lines.iter().filter(of_test).collect();
    let seqs: Vec<u64> = own.iter().map(|it| it["seq"].as_u64().unwrap()).collect();
    assert!(
        seqs == (1..=LINES).collect::<Vec<_>>(),
        "{} lines",
        seqs.len()
    );
    assert!(
        own.iter()
            .all(|it| it["line"] == format!("line {}", it["seq"]))
    );
    let lost: Vec<&&Value> = own.iter().filter(|it| it["dropped"].is_u64()).collect();
    assert_eq!((lost.len(), &lost[0]["dropped"]), (1, &json!(7)));
    assert_eq!(pages, 4);
    // There is nothing more, until there is.
    let none = page(&reader, &DEV, &cursor).await.unwrap();
    assert_eq!(none["items"], json!([]));
    push(&replica, &sims, vec![entry(LINES + 1)]).await;
    let more = page(&reader, &DEV, &cursor).await.unwrap();
    assert_eq!(more["items"][0]["seq"], LINES + 1);
    assert_eq!(more["items"].as_array().unwrap().len(), 1);

    // One look has so much text, of the last lines; who goes on has the rest.
    let long = |seq: u64| v1::LogEntry {
        line: "x".repeat(MAX_LOG_LINE),
        ..entry(seq)
    };
    let first = LINES + 2;
    // A node's message has room for so many of them.
    for batch in 0..12 {
        let from = first + batch * 50;
        push(&replica, &sims, (from..from + 50).map(long).collect()).await;
    }
    let look = Ask::new(Operation::GetLogs, &DEV)
        .query("stream", "stdout")
        .query("tail", "10000");
    let shown = reader.call(look).await.unwrap().value;
    let shown = seqs_of_test(&shown);
    let fit = u64::try_from((8 << 20) / MAX_LOG_LINE).unwrap();
    let last = first + 599;
    assert_eq!(shown, (last + 1 - fit..=last).collect::<Vec<_>>());
    let mut behind = more["next_cursor"].as_str().unwrap().to_owned();
    let mut rest = Vec::new();
    loop {
        let page = page(&reader, &DEV, &behind).await.unwrap();
        if page["items"] == json!([]) {
            break;
        }
        rest.extend(seqs_of_test(&page));
        behind = page["next_cursor"].as_str().unwrap().to_owned();
    }
    assert_eq!(rest, (first..=last).collect::<Vec<_>>());

    // Who may not gets none of it, by no cursor; another env has none of it.
    for cursor in ["start", &cursor] {
        let refused = page(&other, &DEV, cursor).await.unwrap_err();
        let CallError::Refused(problem) = refused else {
            panic!("{refused:?}")
        };
        assert_eq!(problem.code, "forbidden");
        let prod = page(&reader, &["local", "shop", "prod"], cursor)
            .await
            .unwrap();
        assert_eq!(prod["items"], json!([]));
    }
    for nonsense in ["7", "nothing", "00000000000000aa.x"] {
        let refused = page(&reader, &DEV, nonsense).await.unwrap_err();
        let CallError::Refused(problem) = refused else {
            panic!("{refused:?}")
        };
        assert_eq!(problem.code, "cursor_invalid", "{nonsense}");
    }
    // Each look is on record.
    let looks = replica.count(|event| {
        event.event_type == "logs.accessed" && event.payload.as_str().contains("\"export\"")
    });
    assert!(looks >= pages + 2, "{looks}");
    drop(sim);
    replica.server.stop().await;
}
