//! What the tests of this crate share: turns, chains and whole answers.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests use different parts"
)]

use std::sync::Arc;
use std::time::Duration;

use fluffy_base::SystemClock;
use fluffy_contract::model::{Message, ModelEvent, ModelStream, Part, Role, Turn};
use fluffy_contract::tool::{ToolDescription, ToolOutcome};
use fluffy_model_server::{Format, ModelServer, Piece, Reply, Tokens};
use fluffy_models::adapter::{ProviderSettings, Wire};
use fluffy_models::answer::Answer;
use fluffy_models::attempt::RetryRules;
use fluffy_models::client::{Client, Direct, Roots, Timeouts};
use fluffy_models::driver::{Chain, Link};
use serde_json::json;

pub(crate) const MODEL: &str = "gpt-5-test";

pub(crate) const TOKENS: Tokens = Tokens {
    input: 120,
    cached: 60,
    cache_write: 0,
    output: 30,
    reasoning: 7,
};

pub(crate) const fn wire(format: Format) -> Wire {
    match format {
        Format::Responses => Wire::Responses,
        Format::Chat => Wire::Chat,
        Format::Anthropic => Wire::Anthropic,
        Format::Gemini => Wire::Gemini,
    }
}

pub(crate) fn settings(server: &ModelServer, format: Format) -> ProviderSettings {
    ProviderSettings {
        provider: format!("{format:?}").to_lowercase(),
        wire: wire(format),
        base_url: server.base_url(format).parse().unwrap(),
    }
}

pub(crate) fn link(server: &ModelServer, format: Format) -> Link {
    Link {
        settings: settings(server, format),
        model: MODEL.into(),
        key: Some("test-key-123".to_owned().into()),
    }
}

pub(crate) fn quick() -> Timeouts {
    Timeouts {
        connect: Duration::from_secs(20),
        first_byte: Duration::from_secs(20),
        idle: Duration::from_secs(20),
    }
}

pub(crate) fn rules(models: usize) -> RetryRules {
    RetryRules {
        first_pause: Duration::from_millis(2),
        longest_pause: Duration::from_millis(4),
        ..RetryRules::for_models(models)
    }
}

pub(crate) fn chain(links: Vec<Link>, timeouts: Timeouts) -> Arc<Chain> {
    let rules = rules(links.len());
    let client = Client::new(Box::new(Direct), Roots::none(), timeouts);
    let chain = Chain::new(links, Arc::new(client), Arc::new(SystemClock));
    Arc::new(chain.with_rules(rules))
}

pub(crate) fn tool(name: &str) -> ToolDescription {
    ToolDescription {
        name: name.into(),
        summary: format!("does {name}"),
        parameters: json!({
            "type": "object",
            "properties": {"path": {"type": "string"}},
            "required": ["path"],
        }),
    }
}

pub(crate) fn text(role: Role, text: &str) -> Message {
    let text = text.to_owned();
    Message {
        role,
        parts: vec![Part::Text { text, opaque: None }],
    }
}

pub(crate) fn result(call: &str, content: &str) -> Message {
    Message {
        role: Role::Tool,
        parts: vec![Part::ToolResult {
            call: call.into(),
            content: content.into(),
            outcome: ToolOutcome::Done,
        }],
    }
}

pub(crate) fn turn() -> Turn {
    Turn {
        model: MODEL.into(),
        messages: vec![text(Role::System, "Be brief."), text(Role::User, "go")],
        tools: vec![tool("fs.read"), tool("fs.write")],
        max_output_tokens: 4000,
        effort: None,
        conversation: Some("conversation-1".into()),
    }
}

/// Everything at once: reasoning, text with characters of all lengths, calls
/// in parallel, counts.
pub(crate) fn rich() -> Reply {
    Reply::default()
        .with(Piece::Reasoning("First I think, é.".into()))
        .with(Piece::Text("Grüße 🦀 und 漢字.".into()))
        .and_call("fs.read", json!({"path": "/ä \"quoted\" \\ 🦀"}))
        .and_call(
            "fs.write",
            json!({"path": "/b", "nested": {"list": [1, null, true]}}),
        )
        .counting(TOKENS)
}

pub(crate) async fn collect(mut stream: impl ModelStream) -> Vec<ModelEvent> {
    let mut events = Vec::new();
    while let Some(event) = stream.next().await {
        events.push(event);
    }
    events
}

pub(crate) fn answer(events: &[ModelEvent]) -> Answer {
    let mut answer = Answer::default();
    events.iter().for_each(|event| answer.apply(event));
    answer
}

/// A message as it looks in every format: without ids and opaque items.
pub(crate) fn plain(message: &Message) -> Vec<String> {
    let parts = message.parts.iter().filter_map(|part| match part {
        Part::Text { text, .. } if text.is_empty() => None,
        Part::Text { text, .. } => Some(format!("text {text}")),
        Part::Reasoning { text, .. } => Some(format!("reasoning {text}")),
        Part::ToolCall(call) => Some(format!("call {} {}", call.name, call.arguments)),
        Part::ToolResult { content, .. } => Some(format!("result {content}")),
    });
    parts.collect()
}

/// What [`rich`] looks like.
pub(crate) fn rich_plain() -> Vec<String> {
    vec![
        "reasoning First I think, é.".into(),
        "text Grüße 🦀 und 漢字.".into(),
        format!("call fs.read {}", json!({"path": "/ä \"quoted\" \\ 🦀"})),
        format!(
            "call fs.write {}",
            json!({"path": "/b", "nested": {"list": [1, null, true]}})
        ),
    ]
}
