//! `fluffy session …`: what is in the ledger, without a kernel and with one.

use std::sync::Arc;
use std::time::Duration;

use fluffy_base::id::{LayerId, SessionId};
use fluffy_base::{Clock as _, ManualClock, SystemClock, Timestamp};
use fluffy_contract::model::{Part, StopReason, ToolCall, Usage};
use fluffy_kernel::api;
use fluffy_kernel::commit::Author;
use fluffy_kernel::event::{Outcome, SessionResult};
use fluffy_kernel::session::{Answered, CallFinished, Fact, Started};
use fluffy_kernel::store::SessionStore;
use fluffy_ledger::{Ledger, LedgerOptions};
use fluffy_policy::word::Mode;
use serde_json::{Value, json};

use crate::agent::{ending, socket, tell};
use crate::fake::Fake;
use crate::sample::{self, SESSION};
use crate::site::Site;

/// A ledger with two sessions: a verified one, and an open one after it.
async fn site() -> Site {
    let site = tokio::task::block_in_place(Site::initialised);
    fill(&site, LedgerOptions::default()).await;
    site
}

async fn fill(site: &Site, options: LedgerOptions) {
    let ledger = Ledger::open(&site.ledger(), options).unwrap();
    let store = SessionStore::new(ledger.clone());
    for fact in facts() {
        store.append(SESSION, &fact).await.unwrap();
    }
    let open = Fact::Started(started("look\u{1b}[2J around"));
    store.append(SessionId::from_bits(8), &open).await.unwrap();
    ledger.close().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn old_sessions_are_in_the_archive_and_not_lost() {
    const DAYS: Duration = Duration::from_secs(40 * 24 * 60 * 60);
    let site = tokio::task::block_in_place(Site::empty);
    let epoch = Timestamp::from_micros(0);
    let then = epoch.after(SystemClock.now().since(epoch) - DAYS);
    let options = LedgerOptions {
        clock: Arc::new(ManualClock::new(then)),
        ..LedgerOptions::default()
    };
    fill(&site, options).await;
    tokio::task::block_in_place(|| {
        let all = |words: &[&str]| site.json(0, words)["all"].clone();
        // Every command keeps to the retention when it is done.
        assert_eq!(all(&["session", "list"]), 2);
        assert_eq!(all(&["session", "list"]), 0);
        let said = site.succeeds(&["session", "list"]);
        assert!(said.contains("--archived"), "{said}");
        assert_eq!(all(&["session", "list", "--archived"]), 2);
        let id = SESSION.to_string();
        let shown = site.succeeds(&["session", "show", &id]);
        assert!(shown.contains("Done, verified"), "{shown}");
        site.succeeds(&["session", "export", &id]);
        site.succeeds(&["audit", "verify"]);
        // What is deleted after all is said, and never half of it shown.
        std::fs::remove_dir_all(site.ledger().join("archive")).unwrap();
        site.ends(4, &["session", "show", &id]);
    });
}

fn started(task: &str) -> Started {
    Started {
        task: task.to_owned(),
        mode: Mode::Strict,
        model: "openai/gpt-5".to_owned(),
        layer: LayerId::from_bits(5),
        moment: "2026-11-15T12:00:00Z".parse::<Timestamp>().unwrap(),
        author: Author {
            name: "Ann".to_owned(),
            email: "ann@example.com".to_owned(),
        },
        tier: fluffy_policy::word::Tier::Process,
        budget: std::collections::BTreeMap::new(),
        forked_from: None,
        record: None,
        forked_at: None,
    }
}

fn facts() -> Vec<Fact> {
    let call = ToolCall {
        id: "c1".to_owned(),
        name: "fs.read".to_owned(),
        arguments: json!({"path": "src/config.rs"}),
        opaque: None,
    };
    let text = Part::Text {
        text: "I read the parser first.".to_owned(),
        opaque: None,
    };
    vec![
        Fact::Started(started("add error handling to parse_config")),
        Fact::Answered(Answered {
            parts: vec![text, Part::ToolCall(call)],
            model: "openai/gpt-5".to_owned(),
            usage: Usage {
                input_tokens: 1_200,
                output_tokens: 34,
                ..Usage::default()
            },
            cost_micros: Some(5_000),
            stop: StopReason::ToolCalls,
        }),
        Fact::Finished(CallFinished {
            call: "c1".to_owned(),
            tool: "fs.read".to_owned(),
            outcome: Outcome::Done,
            content: "fn parse_config() {}\nmore".to_owned(),
            original: fluffy_base::Digest::of(b""),
            took_ms: 3,
        }),
        Fact::Ended(sample::ended(SessionResult::Verified, 0)),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_read_without_a_kernel() {
    let site = site().await;
    tokio::task::block_in_place(|| {
        let listed = site.json(0, &["session", "list"]);
        assert_eq!(listed["all"], 2, "{listed}");
        assert_eq!(listed["sessions"][1]["result"], "verified", "{listed}");
        assert_eq!(listed["sessions"][0]["result"], Value::Null, "{listed}");
        let table = site.succeeds(&["session", "list"]);
        assert!(table.contains("ses_00000000000000"), "{table}");
        assert!(!table.contains('\x1b'), "{table}");
        let id = SESSION.to_string();
        let shown = site.succeeds(&["session", "show", &id]);
        for text in [
            "verified",
            "> add error handling to parse_config",
            "I read the parser first.",
            "fs.read {\"path\":\"src/config.rs\"}",
            "done  fn parse_config() {}",
            "1 turn, 1,234 tokens, $0.01",
            "Done, verified",
        ] {
            assert!(shown.contains(text), "{text}\n{shown}");
        }
        let value = site.json(0, &["session", "show", &id]);
        assert_eq!(value["turns"], 1, "{value}");
        assert_eq!(value["ended"]["result"], "verified", "{value}");
        // Both begin alike; one letter more names one.
        site.ends(2, &["session", "show", "ses_0000"]);
        site.ends(4, &["session", "show", "ses_9"]);
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_is_every_fact() {
    let site = site().await;
    tokio::task::block_in_place(|| {
        let id = SESSION.to_string();
        let printed = site.succeeds(&["session", "export", &id]);
        let read: Vec<Fact> = printed
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(read, facts());
        let file = site.project_file("export.jsonl");
        let path = file.to_str().unwrap();
        let told = site.json(0, &["session", "export", &id, "--output", path]);
        assert_eq!(told["facts"], 4, "{told}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), printed);
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn going_on_and_taking_back_are_the_kernels_work() {
    let site = site().await;
    let id = SESSION.to_string();
    let events = [sample::started(), ending(SessionResult::Unverified, 9)];
    let fake = Fake::serve(&socket(&site), SESSION, tell(events));
    tokio::task::block_in_place(|| {
        let resumed = site.ends(9, &["session", "resume", &id]);
        assert!(
            resumed.stdout.contains("Done, UNVERIFIED"),
            "{}",
            resumed.stdout
        );
        let error = site.json_error(5, &["session", "undo", &id]);
        assert!(
            error["why"].to_string().contains("no turn has changed"),
            "{error}"
        );
        site.ends(
            9,
            &["session", "fork", &id, "another way", "--model", "a/b"],
        );
    });
    assert_eq!(fake.called(), [api::RESUME, api::COMMAND, api::START]);
    assert_eq!(fake.call(api::RESUME)["person"], "absent");
    assert_eq!(fake.call(api::START)["forked_from"], id);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_diff_of_a_layer_that_is_gone_says_so() {
    let site = site().await;
    tokio::task::block_in_place(|| {
        let error = site.json_error(4, &["session", "diff", &SESSION.to_string()]);
        assert!(error["what"].to_string().contains("lay_"), "{error}");
        let empty = Site::empty();
        empty.ends(4, &["session", "list"]);
    });
}
