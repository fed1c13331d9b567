//! The connection, against a kernel that plays a script and dies in it.

use std::collections::BTreeMap;

use fluffy_kernel::api::{Presence, ProviderEnvironment};
use fluffy_kernel::commit::Author;
use fluffy_policy::word::Mode;
use tempfile::TempDir;

use super::super::show::sample::{self, SESSION};
use super::fake::{Act, Fake, Memory};
use super::*;

pub(crate) fn place(folder: &TempDir) -> KernelPlace {
    let state = folder.path().to_owned();
    let project = folder.path().join("project");
    KernelPlace {
        socket: socket(&state, &project),
        project,
        state,
        // A test that waits for a kernel in vain starts nothing instead.
        program: folder.path().join("no-program"),
        configuration: folder.path().join("config.toml"),
    }
}

pub(crate) fn wanted() -> Start {
    Start {
        task: "add a test".to_owned(),
        mode: Mode::Strict,
        models: vec!["openai/gpt-5".to_owned()],
        person: Presence::Present,
        author: Author {
            name: "A".to_owned(),
            email: "a@example.com".to_owned(),
        },
        directory: String::new(),
        budget: BTreeMap::new(),
        tier: None,
        record: None,
        forked_from: None,
        providers: ProviderEnvironment::default(),
    }
}

fn tell(events: &[AgentEvent]) -> Vec<Act> {
    events.iter().cloned().map(Act::Tell).collect()
}

#[tokio::test]
async fn every_event_is_heard_once_although_the_kernel_dies() {
    let folder = TempDir::new().unwrap();
    let place = place(&folder);
    let events = sample::session();
    for cut in [0, 1, 7, events.len() - 1] {
        let mut acts = tell(&events[..cut]);
        acts.push(Act::Die);
        let first = Fake::serve(&place.socket, SESSION, acts);
        let mut kernel = kernel(place.clone()).await.unwrap();
        assert_eq!(kernel.start(&wanted()).await.unwrap(), SESSION);
        let mut heard = Vec::new();
        while let Ok(event) = kernel.next().await {
            heard.push(event);
        }
        first.died().await;
        let second = Fake::serve(&place.socket, SESSION, tell(&events));
        kernel.reconnect().await.unwrap();
        let attach = second.call(api::ATTACH);
        assert_eq!(attach["after"], heard.len(), "{attach}");
        while heard.len() < events.len() {
            heard.push(kernel.next().await.unwrap());
        }
        assert_eq!(heard, events, "cut at {cut}");
        second.kill().await;
    }
}

#[tokio::test]
async fn a_new_kernel_that_counts_anew_is_heard_from_its_beginning() {
    let folder = TempDir::new().unwrap();
    let place = place(&folder);
    let mut acts = tell(&sample::session()[..5]);
    acts.push(Act::Die);
    let first = Fake::serve(&place.socket, SESSION, acts);
    let mut kernel = kernel(place.clone()).await.unwrap();
    kernel.start(&wanted()).await.unwrap();
    while kernel.next().await.is_ok() {}
    first.died().await;
    let goes_on = [sample::started(), sample::text("on it goes")];
    let second = Fake::serve_with(&place.socket, SESSION, (tell(&goes_on), Memory::Lost));
    kernel.reconnect().await.unwrap();
    assert_eq!(second.called(), [api::ATTACH, api::RESUME]);
    for expected in goes_on {
        assert_eq!(kernel.next().await.unwrap(), expected);
    }
}

#[tokio::test]
async fn answers_arrive_although_nobody_takes_the_events() {
    let folder = TempDir::new().unwrap();
    let place = place(&folder);
    let many: Vec<AgentEvent> = (0..5_000).map(|n| sample::text(&n.to_string())).collect();
    let fake = Fake::serve(&place.socket, SESSION, tell(&many));
    let mut kernel = kernel(place.clone()).await.unwrap();
    kernel.start(&wanted()).await.unwrap();
    kernel.say(SESSION, "hello").await.unwrap();
    let reply = kernel.order(SESSION, SessionOrder::Undo).await.unwrap();
    assert!(matches!(reply, Reply::Refused { .. }));
    assert_eq!(fake.call(api::SAY)["text"], "hello");
    for expected in many {
        assert_eq!(kernel.next().await.unwrap(), expected);
    }
}

#[tokio::test]
async fn events_of_other_sessions_and_unknown_kinds_are_left_out() {
    let folder = TempDir::new().unwrap();
    let place = place(&folder);
    let other = SessionId::from_bits(99);
    let fake = Fake::serve(&place.socket, other, tell(&[sample::text("not ours")]));
    let mut kernel = kernel(place.clone()).await.unwrap();
    kernel.start(&wanted()).await.unwrap();
    kernel.follow(Resume {
        session: SESSION,
        person: Presence::Present,
        providers: ProviderEnvironment::default(),
    });
    let unknown = serde_json::json!({
        "session": SESSION, "number": 1, "event": {"type": "news.of.tomorrow"},
    });
    let event = |params: &serde_json::Value| Event {
        id: None,
        method: api::EVENT.to_owned(),
        params: serde_json::value::to_raw_value(params).unwrap(),
    };
    assert_eq!(kernel.hear(&event(&unknown)), None);
    let ours = serde_json::json!({
        "session": SESSION, "number": 2, "event": sample::text("ours"),
    });
    assert_eq!(kernel.hear(&event(&ours)), Some(sample::text("ours")));
    assert_eq!(kernel.hear(&event(&ours)), None, "twice");
    drop(fake);
}

#[tokio::test]
async fn no_kernel_is_a_clear_failure() {
    let folder = TempDir::new().unwrap();
    let place = place(&folder);
    let Err(Failure::Report(report)) = kernel(place.clone()).await else {
        panic!("connected to nobody");
    };
    let text = report.render(100, fluffy_report::Styling::Plain);
    assert!(text.contains("no kernel runs for"), "{text}");
    let Err(Failure::Report(report)) = running(place).await else {
        panic!("connected to nobody");
    };
    assert_eq!(report.exit(), fluffy_report::ExitCode::Transient);
}

#[test]
fn the_last_words_of_a_kernel_are_its_last_line() {
    let folder = TempDir::new().unwrap();
    let place = place(&folder);
    assert_eq!(last_words(&place), "it said nothing before it ended");
    log(&place).unwrap();
    let text = format!("{}\nthe ledger is locked\n", "x".repeat(10_000));
    std::fs::write(log_file(&place), text).unwrap();
    let words = last_words(&place);
    assert!(words.ends_with(": the ledger is locked"), "{words}");
}

#[test]
fn the_path_of_a_socket_is_short_and_of_one_project() {
    let state = Path::new("/home/somebody/.local/state/fluffy");
    let one = socket(state, Path::new("/work/one"));
    assert_ne!(one, socket(state, Path::new("/work/two")));
    assert!(one.as_os_str().len() < 90, "{}", one.display());
}
