//! The driver with a made-up provider and a clock that only moves in sleep.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use fluffy_base::Timestamp;
use fluffy_contract::model::{Message, Opaque, Role, StopReason};
use tokio::time::Instant;

use super::*;
use crate::adapter::{HttpRequest, Wire};
use crate::client::Body;

/// What the provider does, attempt by attempt.
enum Act {
    /// Refuses, with a wish in seconds.
    Refuse(FaultKind, Retry, Option<u64>),
    /// Says this text, and then breaks or ends.
    Say(&'static str, Ending),
}

#[derive(Clone, Copy)]
enum Ending {
    Complete,
    Broken,
}

#[derive(Default)]
struct Script {
    acts: Mutex<VecDeque<Act>>,
    asked: Mutex<Vec<(String, Duration)>>,
    bodies: Mutex<Vec<String>>,
    began: Mutex<Option<Instant>>,
}

struct Pieces(VecDeque<Result<Option<Vec<u8>>, ModelFault>>);

impl Body for Pieces {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Vec<u8>>, ModelFault>> {
        let next = self.0.pop_front().unwrap_or(Ok(None));
        Box::pin(std::future::ready(next))
    }
}

impl Exchange for Script {
    fn send<'a>(
        &'a self,
        settings: &'a ProviderSettings,
        request: &'a HttpRequest,
        _key: Option<&'a SecretString>,
    ) -> BoxFuture<'a, Result<Box<dyn Body>, Refused>> {
        let began = *self.began.lock().unwrap().get_or_insert_with(Instant::now);
        let provider = settings.provider.clone();
        self.asked.lock().unwrap().push((provider, began.elapsed()));
        let body = String::from_utf8_lossy(&request.body).into_owned();
        self.bodies.lock().unwrap().push(body);
        let act = self
            .acts
            .lock()
            .unwrap()
            .pop_front()
            .expect("asked too often");
        let fault = |kind, retryable| ModelFault {
            kind,
            message: "made up about thinking and the key k-0123456789".into(),
            retryable,
        };
        let answer: Result<Box<dyn Body>, Refused> = match act {
            Act::Refuse(kind, retryable, wish) => Err(Refused {
                fault: fault(kind, retryable),
                retry_after: wish.map(Duration::from_secs),
            }),
            Act::Say(text, ending) => {
                let chunk =
                    format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n");
                let end = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
                let last = match ending {
                    Ending::Complete => Ok(Some(end.into())),
                    Ending::Broken => Err(fault(FaultKind::Network, Retry::Later)),
                };
                Ok(Box::new(Pieces(VecDeque::from([
                    Ok(Some(chunk.into())),
                    last,
                ]))))
            }
        };
        Box::pin(std::future::ready(answer))
    }
}

/// A clock that shows the runtime's virtual time.
#[derive(Debug)]
struct RuntimeClock(Instant);

impl Clock for RuntimeClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(0).after(self.0.elapsed())
    }
}

fn turn() -> Turn {
    Turn {
        model: "ignored".into(),
        messages: vec![],
        tools: vec![],
        max_output_tokens: 9,
        effort: None,
        conversation: None,
    }
}

async fn run(acts: Vec<Act>, providers: &[&str]) -> (Vec<ModelEvent>, Vec<(String, Duration)>) {
    let script = Arc::new(Script {
        acts: Mutex::new(acts.into()),
        ..Script::default()
    });
    let links = providers.iter().map(|provider| Link {
        settings: ProviderSettings {
            provider: (*provider).to_owned(),
            wire: Wire::Chat,
            base_url: "http://localhost:1/v1".parse().unwrap(),
        },
        model: "m".into(),
        key: Some("k-0123456789".to_owned().into()),
    });
    let clock = Arc::new(RuntimeClock(Instant::now()));
    let chain = Chain::new(links.collect(), script.clone(), clock);
    let mut stream = Arc::new(chain).start(turn());
    let mut events = Vec::new();
    while let Some(event) = stream.next().await {
        events.push(event);
    }
    let asked = script.asked.lock().unwrap().clone();
    assert!(!format!("{events:?}").contains("k-0123456789"));
    assert!(
        script.acts.lock().unwrap().is_empty(),
        "not asked often enough: {events:?}"
    );
    (events, asked)
}

fn text(events: &[ModelEvent]) -> String {
    let mut answer = crate::answer::Answer::default();
    events.iter().for_each(|event| answer.apply(event));
    answer.text()
}

#[tokio::test(start_paused = true)]
async fn the_providers_wish_is_waited_for_in_virtual_time() {
    let acts = vec![
        Act::Refuse(FaultKind::RateLimited, Retry::Later, Some(60)),
        Act::Refuse(FaultKind::RateLimited, Retry::Later, Some(100)),
        Act::Say("at last", Ending::Complete),
    ];
    let (events, asked) = run(acts, &["p"]).await;
    assert_eq!(text(&events), "at last");
    let seconds: Vec<u64> = asked.iter().map(|(_, at)| at.as_secs()).collect();
    assert_eq!(seconds, [0, 60, 160]);
    let waits = events.iter().filter_map(|event| match event {
        ModelEvent::Waiting { millis, .. } => Some(*millis),
        _ => None,
    });
    assert_eq!(waits.collect::<Vec<_>>(), [60_000, 100_000]);
}

#[tokio::test(start_paused = true)]
async fn pauses_grow_and_end_with_the_last_fault() {
    let busy = || Act::Refuse(FaultKind::Overloaded, Retry::Later, None);
    let (events, asked) = run((0..5).map(|_| busy()).collect(), &["p"]).await;
    let gaps: Vec<Duration> = asked.windows(2).map(|pair| pair[1].1 - pair[0].1).collect();
    for (gap, whole) in gaps.iter().zip([500, 1000, 2000, 4000]) {
        let whole = Duration::from_millis(whole);
        // The runtime's timers are a millisecond wide.
        assert!(
            *gap + Duration::from_millis(1) >= whole / 2,
            "{gap:?} of {whole:?}"
        );
        assert!(
            *gap <= whole + Duration::from_millis(2),
            "{gap:?} of {whole:?}"
        );
    }
    assert!(
        matches!(events.last(), Some(ModelEvent::Error(fault)) if fault.kind == FaultKind::Overloaded)
    );
}

#[tokio::test(start_paused = true)]
async fn broken_output_is_taken_back_before_it_is_said_again() {
    let acts = vec![
        Act::Say("half of", Ending::Broken),
        Act::Say("all of it", Ending::Complete),
    ];
    let (events, _) = run(acts, &["p"]).await;
    let names: Vec<&str> = events
        .iter()
        .map(|event| match event {
            ModelEvent::TextDelta { .. } => "text",
            ModelEvent::Waiting { .. } => "waiting",
            ModelEvent::Restarted { .. } => "restarted",
            ModelEvent::Done {
                reason: StopReason::EndTurn,
            } => "done",
            _ => "other",
        })
        .collect();
    assert_eq!(names, ["text", "waiting", "restarted", "text", "done"]);
    assert_eq!(text(&events), "all of it");
}

#[tokio::test(start_paused = true)]
async fn the_next_model_takes_over_and_says_who_it_is() {
    let acts = vec![
        Act::Refuse(FaultKind::RateLimited, Retry::Later, Some(3600)),
        Act::Refuse(FaultKind::Billing, Retry::Never, None),
        Act::Say("third", Ending::Complete),
    ];
    let (events, asked) = run(acts, &["one", "two", "three"]).await;
    let providers: Vec<&str> = asked
        .iter()
        .map(|(provider, _)| provider.as_str())
        .collect();
    assert_eq!(providers, ["one", "two", "three"]);
    assert!(
        asked.iter().all(|(_, at)| at.is_zero()),
        "nobody waits when there is another"
    );
    assert!(matches!(&events[1], ModelEvent::Restarted { model, .. } if model == "three/m"));
    assert_eq!(text(&events), "third");
}

#[tokio::test(start_paused = true)]
async fn thoughts_that_are_refused_are_left_out_once() {
    let refused = || Act::Refuse(FaultKind::InvalidRequest, Retry::Never, None);
    let script = Arc::new(Script {
        acts: Mutex::new([refused(), refused()].into()),
        ..Script::default()
    });
    let opaque = Some(Opaque {
        wire: Wire::Anthropic.name().to_owned(),
        model: "m".into(),
        value: serde_json::json!({"type": "thinking", "thinking": "hm", "signature": "s"}),
    });
    let text = |text: &str| Part::Text {
        text: text.to_owned(),
        opaque: None,
    };
    let message = |role, parts| Message { role, parts };
    let thought = Part::Reasoning {
        text: "hm".into(),
        opaque,
    };
    let turn = Turn {
        messages: vec![
            message(Role::User, vec![text("go")]),
            message(Role::Assistant, vec![thought, text("gone")]),
            message(Role::User, vec![text("on")]),
        ],
        ..turn()
    };
    let link = Link {
        settings: ProviderSettings {
            provider: "p".into(),
            wire: Wire::Anthropic,
            base_url: "http://localhost:1".parse().unwrap(),
        },
        model: "m".into(),
        key: None,
    };
    let clock = Arc::new(RuntimeClock(Instant::now()));
    let chain = Chain::new(vec![link], script.clone(), clock);
    let mut stream = Arc::new(chain).start(turn);
    let last = stream.next().await;
    assert!(
        matches!(&last, Some(ModelEvent::Error(fault)) if fault.kind == FaultKind::InvalidRequest),
        "a second refusal is the answer: {last:?}"
    );
    let bodies = script.bodies.lock().unwrap().clone();
    let with_thoughts: Vec<bool> = bodies.iter().map(|b| b.contains("signature")).collect();
    assert_eq!(with_thoughts, [true, false]);
    assert!(bodies.iter().all(|body| body.contains("gone")));
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_cannot_be_written_is_refused_without_asking() {
    let (events, asked) = run(vec![], &[]).await;
    assert!(asked.is_empty());
    assert!(
        matches!(&events[..], [ModelEvent::Error(fault)] if fault.kind == FaultKind::InvalidRequest)
    );
}
