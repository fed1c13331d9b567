//! Providers as sessions have them: a plugin made with HashiCorp's library that
//! plays a script, and what happens when it misbehaves.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fluffy_contract::ModelProvider as _;
use fluffy_contract::model::{
    FaultKind, ModelEvent, ModelStream, Retry, StartTurnError, StopReason, Turn,
};
use fluffy_plugin_core::lifecycle::State;
use fluffy_plugin_host::plugins::{NoProvider, Plugins, Provider};
use fluffy_plugin_host::settings::Change;
use fluffy_plugin_host::shelf::{Record, examine};
use fluffy_secret::SecretString;
use fluffy_secret::redactor::MARK;
use fluffy_test_kit::{GoPlugins, permit};
use serde_json::{Value, json};

use crate::plugins::{Scene, until};

/// Installs the provider with this script.
fn install(scene: &Scene, kind: &str, script: &Value) {
    let source = scene.kit.path("source");
    std::fs::create_dir_all(&source).unwrap();
    let manifest = format!(
        "name: scripted\nversion: 1.0.0\ntype: {kind}\nengine: \">=0.1\"\napi: 1\n\
         lifecycle: {{ graceful_shutdown_timeout: 60s }}\n\
         execution: {{ tier: process, command: [ ./provider ], protocol: go-plugin }}\n\
         config_schema: {{ properties: {{ key: {{ type: string, secret: true }} }} }}\n"
    );
    let built = GoPlugins::build(Path::new(env!("CARGO_TARGET_TMPDIR"))).unwrap();
    std::fs::copy(built.provider(), source.join("provider")).unwrap();
    std::fs::write(source.join("plugin.yaml"), manifest).unwrap();
    std::fs::write(source.join("script.json"), script.to_string()).unwrap();
    let record = Record::new(&examine(&source).unwrap(), vec!["*".to_owned()], "here");
    let allowed = permit("plugins.install", Some("scripted"));
    scene.shelf.install(allowed, &source, &record).unwrap();
}

async fn provider(scene: &Scene, script: &Value) -> (Plugins, Provider) {
    install(scene, "provider", script);
    let plugins = scene.plugins();
    plugins.refresh().await;
    let provider = plugins.provider("scripted").unwrap();
    (plugins, provider)
}

async fn ask(provider: &Provider) -> Result<Box<dyn ModelStream>, StartTurnError> {
    let turn = Turn {
        model: "script".to_owned(),
        messages: Vec::new(),
        tools: Vec::new(),
        max_output_tokens: 100,
        effort: None,
        conversation: None,
    };
    let permit = permit("model.generate", Some("plugin:scripted/script"));
    provider.start(permit, turn).await
}

async fn all(provider: &Provider) -> Vec<ModelEvent> {
    let mut stream = ask(provider).await.unwrap();
    let mut events = Vec::new();
    while let Some(event) = stream.next().await {
        events.push(event);
    }
    events
}

#[tokio::test]
async fn a_providers_key_is_in_nothing_that_it_says() {
    const KEY: &str = "waffle-7f3a-marked-key";
    let said = format!("the key is {KEY}");
    let script = json!([{
        "Reasoning": said, "Text": said,
        "Calls": [{"Tool": "echo", "Arguments": {"text": said}}],
        "Then": format!("refuse {said}"),
    }]);
    for is_secret in [false, true] {
        let scene = Scene::new().await;
        install(&scene, "provider", &script);
        if is_secret {
            let allowed = permit("plugins.config", Some("scripted"));
            let change = Change::Secret {
                name: "key".to_owned(),
                value: SecretString::from(KEY.to_owned()),
            };
            scene
                .shelf
                .configure(allowed, "scripted", vec![change])
                .unwrap();
        }
        let plugins = scene.plugins();
        plugins.refresh().await;
        let provider = plugins.provider("scripted").unwrap();
        let events = serde_json::to_string(&all(&provider).await).unwrap();
        // Thought, said, called with, failed with.
        let (seen, covered) = match is_secret {
            false => (4, 0),
            true => (0, 4),
        };
        assert_eq!(events.matches(KEY).count(), seen, "{events}");
        assert_eq!(events.matches(MARK).count(), covered, "{events}");
        plugins.stop_all().await;
    }
}

#[tokio::test]
async fn an_answer_that_nobody_waits_for_is_cancelled() {
    let scene = Scene::new().await;
    let (plugins, provider) = provider(&scene, &json!([{"Text": "hm", "Then": "wait"}])).await;
    let mut stream = ask(&provider).await.unwrap();
    let text = "hm".to_owned();
    assert_eq!(stream.next().await, Some(ModelEvent::TextDelta { text }));
    drop(stream);
    // An answer is a call: ending waits for those that go on.
    let began = Instant::now();
    plugins.stop_all().await;
    assert!(
        began.elapsed() < Duration::from_secs(50),
        "it was not cancelled"
    );
}

#[tokio::test]
async fn one_that_dies_in_the_middle_says_to_try_again_and_is_started_again() {
    let scene = Scene::new().await;
    let (plugins, provider) = provider(&scene, &json!([{"Text": "half", "Then": "die"}])).await;
    let events = all(&provider).await;
    let Some(ModelEvent::Error(fault)) = events.last() else {
        panic!("{events:?}");
    };
    assert_eq!(
        (fault.kind, fault.retryable),
        (FaultKind::Network, Retry::Later)
    );
    let end = Instant::now() + Duration::from_secs(60);
    while Instant::now() < end {
        let Ok(mut stream) = ask(&provider).await else {
            break;
        };
        while stream.next().await.is_some() {}
        // Its end has to be noticed.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let is_off = || plugins.status().iter().any(|one| one.state == State::Error);
    until("it is switched off after too many crashes", is_off).await;
    // The same question went to one instance after the other until then.
    let states = scene.states("scripted");
    assert!(states.contains(&"2 running".to_owned()), "{states:?}");
    assert!(matches!(
        ask(&provider).await.err(),
        Some(StartTurnError::Unreachable { .. })
    ));
    assert!(matches!(
        plugins.provider("scripted").unwrap_err(),
        NoProvider::Not { .. }
    ));
    plugins.stop_all().await;
}

#[tokio::test]
async fn a_flood_is_cut_and_what_it_says_it_used_is_believed_within_bounds() {
    let scene = Scene::new().await;
    let (plugins, provider) = provider(&scene, &json!([{"Text": "x", "Then": "flood"}])).await;
    let events = all(&provider).await;
    let Some(ModelEvent::Error(fault)) = events.last() else {
        panic!("{events:?}");
    };
    assert_eq!(
        (fault.kind, fault.retryable),
        (FaultKind::Malformed, Retry::Never)
    );
    assert!(events.len() < 10, "{} events", events.len());
    plugins.stop_all().await;

    let words = "x".repeat(32_000);
    for (said, expected) in [(0, 1_000), (u64::MAX, 1 << 32), (4_000, 4_000)] {
        let scene = Scene::new().await;
        let script = json!([{"Text": words, "Input": said, "Output": said}]);
        let (plugins, provider) = self::provider(&scene, &script).await;
        let events = all(&provider).await;
        let usage = events.iter().find_map(|event| match event {
            ModelEvent::Usage(usage) => Some(*usage),
            _ => None,
        });
        let counted = usage.unwrap().output_tokens;
        assert!((expected..=expected + 10).contains(&counted), "{counted}");
        let reason = StopReason::EndTurn;
        assert_eq!(events.last(), Some(&ModelEvent::Done { reason }));
        plugins.stop_all().await;
    }
}

#[tokio::test]
async fn only_a_provider_answers_for_models_and_it_has_no_tools() {
    let scene = Scene::new().await;
    let (plugins, _) = provider(&scene, &json!([])).await;
    assert!(plugins.sources().is_empty());
    let placed = scene.shelf.find("scripted").unwrap();
    // A name that could not be asked for is not listed.
    assert_eq!(plugins.try_models(&placed).await.unwrap(), ["script"]);
    let unknown = plugins.provider("other").unwrap_err();
    assert!(matches!(unknown, NoProvider::Unknown { .. }));
    install(&scene, "tool", &json!([]));
    plugins.refresh().await;
    let wrong = plugins.provider("scripted").unwrap_err();
    assert!(wrong.to_string().contains("its type is `tool`"), "{wrong}");
    let plugins = Arc::new(plugins);
    plugins.stop_all().await;
}
