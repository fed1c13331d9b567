//! Plugins of other types than `tool`: a provider and a channel, both the
//! double of our own.

use std::sync::Arc;

use fluffy_contract::Channel as _;
use fluffy_contract::ModelProvider as _;
use fluffy_contract::channel::{Outgoing, SendMessageError};
use fluffy_contract::model::{
    FaultKind, Message, ModelEvent, Opaque, Part, Retry, Role, StartTurnError, StopReason, Turn,
    Usage,
};
use fluffy_plugin_host::Connection as _;
use fluffy_plugin_host::go_plugin::{GoPlugin, PluginChannel, PluginProvider, Tls, start};
use fluffy_test_kit::{GoPlugins, permit};

use crate::go_plugin::{GRACE, program, settings};
use crate::kit::{ALLOW_ALL, Kit};

async fn double(kit: &Kit) -> GoPlugin {
    let entry = kit.entry([program(kit, GoPlugins::double)]);
    let services = Arc::new(kit.services(kit.desk(&[])));
    let started = start(entry, services, settings(Tls::Offered)).await;
    started.unwrap()
}

fn turn(parts: Vec<Part>) -> Turn {
    Turn {
        model: "parrot".to_owned(),
        messages: vec![Message {
            role: Role::Assistant,
            parts,
        }],
        tools: Vec::new(),
        max_output_tokens: 100,
        effort: None,
        conversation: None,
    }
}

fn text(text: &str, opaque: Option<Opaque>) -> Part {
    let text = text.to_owned();
    Part::Text { text, opaque }
}

async fn ask(provider: &PluginProvider, parts: Vec<Part>) -> Vec<ModelEvent> {
    let permit = permit("model.generate", Some("plugin:sample/parrot"));
    let mut stream = provider.start(permit, turn(parts)).await.unwrap();
    let mut events = Vec::new();
    while let Some(event) = stream.next().await {
        events.push(event);
    }
    events
}

#[tokio::test]
async fn a_provider_answers_in_events_and_sees_again_only_what_is_its_own() {
    let kit = Kit::new(ALLOW_ALL).await;
    let plugin = double(&kit).await;
    let provider = PluginProvider::new("sample", plugin.channel().unwrap());
    assert_eq!(provider.models().await.unwrap(), ["parrot"]);
    let opaque = |wire: &str| {
        Some(Opaque {
            wire: wire.to_owned(),
            model: "parrot".to_owned(),
            value: "signed".into(),
        })
    };
    let parts = vec![
        text("own", opaque("plugin/sample")),
        text("other", opaque("anthropic")),
    ];
    let events = ask(&provider, parts).await;
    let mut events = events.into_iter();
    let reasoning = "hm".to_owned();
    assert_eq!(
        events.next().unwrap(),
        ModelEvent::ReasoningDelta { text: reasoning }
    );
    assert_eq!(
        events.next().unwrap(),
        ModelEvent::ReasoningEnd {
            opaque: opaque("plugin/sample")
        }
    );
    let said: Vec<ModelEvent> = events.by_ref().take(2).collect();
    let delta = |text: &str| ModelEvent::TextDelta {
        text: text.to_owned(),
    };
    let seen = "ROLE_MODEL own[signed]; ROLE_MODEL other[]";
    assert_eq!(said, [delta("parrot: "), delta(seen)]);
    let rest: Vec<ModelEvent> = events.collect();
    assert_eq!(rest.len(), 5);
    let usage = Usage {
        input_tokens: 3,
        output_tokens: 4,
        ..Usage::default()
    };
    assert_eq!(rest[3], ModelEvent::Usage(usage));
    let reason = StopReason::ToolCalls;
    assert_eq!(rest[4], ModelEvent::Done { reason });
    for (what, kind) in [
        ("too much", FaultKind::RateLimited),
        ("unfinished", FaultKind::Malformed),
        ("no part", FaultKind::Malformed),
        ("endless", FaultKind::Malformed),
    ] {
        let events = ask(&provider, vec![text(what, None)]).await;
        let Some(ModelEvent::Error(fault)) = events.last() else {
            panic!("{what}: {events:?}");
        };
        assert_eq!(fault.kind, kind, "{what}");
    }
    for (action, resource) in [
        ("fs.read", "/a"),
        ("model.generate", "plugin:sample/other"),
        ("model.generate", "plugin:other/parrot"),
    ] {
        let other = permit(action, Some(resource));
        let refused = provider.start(other, turn(Vec::new())).await.err();
        assert!(matches!(refused, Some(StartTurnError::WrongPermit { .. })));
    }
    plugin.stop(GRACE).await;
    let events = ask(&provider, Vec::new()).await;
    // As when the worker of a model ends in the middle of an answer.
    let [ModelEvent::Error(fault)] = events.as_slice() else {
        panic!("{events:?}");
    };
    assert_eq!(
        (fault.kind, fault.retryable),
        (FaultKind::Network, Retry::Later)
    );
}

#[tokio::test]
async fn a_channel_carries_what_is_said_both_ways_until_it_closes() {
    let kit = Kit::new(ALLOW_ALL).await;
    let plugin = double(&kit).await;
    let channel = PluginChannel::new("sample", plugin.channel().unwrap());
    let (id, name) = channel.identity().await.unwrap();
    assert_eq!((id.as_str(), name.as_str()), ("f1", "fluffy"));
    let send = async |conversation: &str| {
        let message = Outgoing {
            conversation: conversation.to_owned(),
            text: "hello".to_owned(),
        };
        let permit = permit("messages.send", Some("sample"));
        channel.send(permit, message).await
    };
    for other in [
        permit("log.write", None),
        permit("messages.send", Some("other")),
    ] {
        let message = Outgoing {
            conversation: "home".to_owned(),
            text: "hello".to_owned(),
        };
        let refused = channel.send(other, message).await;
        assert!(matches!(refused, Err(SendMessageError::WrongPermit { .. })));
    }
    for _ in 0..2 {
        send("home").await.unwrap();
        let heard = channel.receive().await.unwrap();
        assert_eq!(heard.from, "ada");
        assert_eq!(heard.conversation, "home");
        assert_eq!(heard.text, "you said: hello");
    }
    let elsewhere = send("elsewhere").await;
    assert!(matches!(
        elsewhere,
        Err(SendMessageError::UnknownConversation { .. })
    ));
    send("end").await.unwrap();
    assert_eq!(channel.receive().await, None);
    plugin.stop(GRACE).await;
    let gone = send("home").await;
    assert!(matches!(gone, Err(SendMessageError::Disconnected { .. })));
}
