//! `fluffy logs export`, against a server that breaks and repeats itself.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use fluffy_api::Operation;
use serde_json::{Value, json};

use super::double::{Asked, Double, Reply, refused};
use super::local;
use crate::site::Site;

const STORE: &str = "00000000000000aa";

fn line(seq: u64, dropped: u64) -> Value {
    let mut line = json!({
        "at": "2026-01-01T00:10:00Z", "instance_id": "inst_1", "process": "web",
        "stream": "stdout", "line": format!("line {seq}"), "truncated": false,
        "boot_id": "boot_1", "seq": seq,
    });
    if dropped > 0 {
        line["dropped"] = dropped.into();
    }
    line
}

/// A server with six lines in the second of two hours, three in an answer; the
/// fourth is told twice, and two lines were lost before the fifth. While it is
/// `broken` it tells nothing behind the first answer.
fn server(broken: &Arc<AtomicBool>) -> (Site, Double) {
    let broken = Arc::clone(broken);
    local(move |asked| {
        assert_eq!(asked.operation, Operation::GetLogs);
        let has = |part: &str| asked.query.contains(part);
        let in_second = has("since=2026-01-01T01");
        let at = |number: u64| format!("cursor={STORE}.{number}");
        let (lines, next) = match () {
            () if !in_second => (vec![], 0),
            () if has("cursor=start") => (vec![line(1, 0), line(2, 0), line(3, 0)], 3),
            () if broken.load(Ordering::SeqCst) => return refused("forbidden"),
            () if has(&at(3)) => (vec![line(4, 0), line(4, 0), line(5, 2)], 5),
            () if has(&at(5)) => (vec![line(4, 0), line(6, 0)], 6),
            () => (vec![], 6),
        };
        let next = format!("{STORE}.{next}");
        Reply::Json(200, json!({"items": lines, "next_cursor": next}))
    })
}

const WINDOW: [&str; 8] = [
    "logs",
    "export",
    "--app",
    "shop",
    "--since",
    "2026-01-01T00:00:00Z",
    "--until",
    "2026-01-01T01:30:00Z",
];

fn entries(text: &str) -> Vec<Value> {
    let lines = text.lines();
    lines.map(|it| serde_json::from_str(it).unwrap()).collect()
}

fn seqs(entries: &[Value]) -> Vec<u64> {
    let lines = entries.iter().filter(|it| it["kind"] == "LogLine");
    lines
        .map(|it| it["data"]["seq"].as_u64().unwrap())
        .collect()
}

#[test]
fn every_line_of_a_window_is_written_once_with_what_was_lost() {
    let (site, double) = server(&Arc::default());
    let finished = site.ends(0, &WINDOW);
    let entries = entries(&finished.stdout);
    assert_eq!(seqs(&entries), [1, 2, 3, 4, 5, 6]);
    let gap = entries
        .iter()
        .position(|it| it["kind"] == "LogGap")
        .unwrap();
    assert_eq!(entries[gap]["data"]["dropped"], 2);
    assert_eq!(entries[gap + 1]["data"]["seq"], 5);
    let last = entries.last().unwrap();
    assert_eq!(
        (&last["kind"], &last["api_version"]),
        (&json!("LogCursor"), &json!("v1"))
    );
    assert_eq!(last["data"]["complete"], true);
    assert_eq!(last["data"]["lines"], 6);
    assert!(
        finished
            .stderr
            .contains("exported 6 lines, and 2 were lost")
    );
    // No hour is asked for twice, and no window is longer than one.
    let asked: Vec<String> = double
        .asked()
        .into_iter()
        .map(|it: Asked| it.query)
        .collect();
    assert_eq!(asked.len(), 5, "{asked:?}");
    let ends = [
        "until=2026-01-01T00%3A59%3A59.999",
        "until=2026-01-01T01%3A30",
    ];
    for (query, end) in asked
        .iter()
        .zip([ends[0], ends[1], ends[1], ends[1], ends[1]])
    {
        assert!(
            query.contains(end) || query.replace(':', "%3A").contains(end),
            "{query}"
        );
    }
}

#[test]
fn a_file_is_gone_on_with_exactly_where_it_was_interrupted() {
    let broken = Arc::new(AtomicBool::new(true));
    let (site, double) = server(&broken);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("logs.ndjson");
    let name = file.to_str().unwrap();
    let words = [&WINDOW[..], &["-o", name]].concat();
    let again = [&words[..], &["--resume"]].concat();
    let finished = site.ends(3, &words);
    assert!(finished.stderr.contains("--resume"), "{}", finished.stderr);
    assert_eq!(
        seqs(&entries(&fs::read_to_string(&file).unwrap())),
        [1, 2, 3]
    );
    // It is not written over by mistake.
    let finished = site.ends(5, &words);
    assert!(
        finished.stderr.contains("exists already"),
        "{}",
        finished.stderr
    );

    // Killed in the middle of an entry, behind half of an answer.
    let half = format!(
        "{}\n{{\"kind\": \"LogL",
        json!({"kind": "LogLine", "data": line(4, 0)})
    );
    let mut text = fs::read_to_string(&file).unwrap();
    text.push_str(&half);
    fs::write(&file, text).unwrap();
    broken.store(false, Ordering::SeqCst);
    double.asked();
    site.ends(0, &again);
    let written = fs::read_to_string(&file).unwrap();
    assert_eq!(seqs(&entries(&written)), [1, 2, 3, 4, 5, 6]);
    assert_eq!(entries(&written).last().unwrap()["data"]["lines"], 6);
    let asked = double.asked();
    assert!(
        !asked.iter().any(|it| it.query.contains("cursor=start")),
        "{asked:?}"
    );
    // Whole is whole.
    site.ends(0, &again);
    assert_eq!(fs::read_to_string(&file).unwrap(), written);
    assert!(double.asked().is_empty());

    // What is of something else is left as it is.
    let other = [&again[..], &["--process", "db"]].concat();
    let finished = site.ends(5, &other);
    assert!(finished.stderr.contains("another env, or of other lines"));
    fs::write(&file, "a letter\n").unwrap();
    site.ends(5, &again);
    assert_eq!(fs::read_to_string(&file).unwrap(), "a letter\n");
}

#[test]
fn a_server_that_is_busy_is_asked_again_and_one_of_before_is_told() {
    let asked = AtomicUsize::new(0);
    let (site, _double) = local(move |it| match asked.fetch_add(1, Ordering::SeqCst) {
        0 => {
            let Reply::Json(status, mut problem) = refused("rate_limited") else {
                unreachable!()
            };
            problem["retry_after"] = 1.into();
            problem["retryable"] = true.into();
            Reply::Json(status, problem)
        }
        _ if it.query.contains("cursor=start") => {
            let lines = json!([line(1, 0)]);
            Reply::Json(
                200,
                json!({"items": lines, "next_cursor": format!("{STORE}.1")}),
            )
        }
        _ => Reply::Json(
            200,
            json!({"items": [], "next_cursor": format!("{STORE}.1")}),
        ),
    });
    let short = ["logs", "export", "--app", "shop", "--since", "10m"];
    let finished = site.ends(0, &short);
    assert_eq!(seqs(&entries(&finished.stdout)), [1]);

    let (site, _double) = local(|_| Reply::Json(200, json!({"items": [line(1, 0)]})));
    let finished = site.ends(1, &short);
    assert!(
        finished.stderr.contains("earlier version"),
        "{}",
        finished.stderr
    );
    site.ends(
        2,
        &["logs", "export", "--app", "shop", "--since", "yesterday"],
    );
    site.ends(
        2,
        &["logs", "export", "--app", "shop", "--cursor", "nonsense"],
    );
    site.ends(2, &["logs", "export", "--app", "shop", "--resume"]);
}
