//! Tests of the selection.

use super::*;

fn environment(addresses: &[(&str, &str)], keys: &[&str]) -> Environment {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    Environment {
        addresses: addresses.iter().map(owned).collect(),
        keys: keys.iter().map(|&key| key.to_owned()).collect(),
    }
}

fn config(
    name: &str,
    base_url: Option<&str>,
    wire: Option<WireChoice>,
) -> BTreeMap<String, ProviderConfig> {
    let config = ProviderConfig {
        base_url: base_url.map(str::to_owned),
        wire,
        api_key: None,
    };
    BTreeMap::from([(name.to_owned(), config)])
}

fn choose(text: &str, environment: &Environment) -> Result<Selected, SelectModelError> {
    select(text, &BTreeMap::new(), environment)
}

fn key(name: &str) -> Option<KeySource> {
    Some(KeySource::Env(name.to_owned()))
}

#[test]
fn the_vendors_are_known() {
    for (text, wire, url, variable) in [
        (
            "openai/gpt-5",
            Wire::Responses,
            "https://api.openai.com/v1",
            "OPENAI_API_KEY",
        ),
        (
            "anthropic/claude-opus-5",
            Wire::Anthropic,
            "https://api.anthropic.com",
            "ANTHROPIC_API_KEY",
        ),
        (
            "google/gemini-3",
            Wire::Gemini,
            "https://generativelanguage.googleapis.com",
            "GEMINI_API_KEY",
        ),
        (
            "gemini/gemini-3",
            Wire::Gemini,
            "https://generativelanguage.googleapis.com",
            "GEMINI_API_KEY",
        ),
    ] {
        let found = choose(text, &environment(&[], &[variable])).unwrap();
        assert_eq!(found.settings.wire, wire);
        assert_eq!(found.settings.base_url.to_string(), url);
        assert_eq!(found.key, key(variable));
        assert!(found.priced_as.is_some());
        let error = choose(text, &environment(&[], &[])).unwrap_err();
        assert_eq!(error.fix(), format!("set {variable}"));
    }
}

#[test]
fn a_server_on_this_machine_needs_no_key() {
    let local = environment(&[("OPENAI_BASE_URL", "http://localhost:8000/v1")], &[]);
    let found = choose("openai/anything/with:tag", &local).unwrap();
    assert_eq!((found.settings.wire, found.key), (Wire::Chat, None));
    assert_eq!(found.model, "anything/with:tag");
    assert_eq!(
        found.priced_as, None,
        "the vendor's prices are not the imitator's"
    );
    for (text, port) in [("ollama/qwen3", 11434), ("lmstudio/x", 1234)] {
        let found = choose(text, &environment(&[], &["OPENAI_API_KEY"])).unwrap();
        assert_eq!((found.settings.base_url.port(), found.key), (port, None));
    }
    for (variable, text) in [
        ("ANTHROPIC_BASE_URL", "anthropic/x"),
        ("GOOGLE_GEMINI_BASE_URL", "google/x"),
    ] {
        let local = environment(&[(variable, "http://127.0.0.1:9")], &[]);
        assert_eq!(choose(text, &local).unwrap().key, None);
    }
}

#[test]
fn configuration_beats_variables_and_chooses_the_wire() {
    let set = environment(
        &[("OPENAI_BASE_URL", "http://localhost:1")],
        &["OPENAI_API_KEY", "MINE"],
    );
    let config = config(
        "openai",
        Some("https://llm.example.com/api"),
        Some(WireChoice::Responses),
    );
    let found = select("openai/m", &config, &set).unwrap();
    assert_eq!(
        found.settings.base_url.to_string(),
        "https://llm.example.com/api"
    );
    assert_eq!(found.settings.wire, Wire::Responses);
    let mut config = config;
    config.get_mut("openai").unwrap().api_key = key("MINE");
    assert_eq!(select("openai/m", &config, &set).unwrap().key, key("MINE"));
    config.get_mut("openai").unwrap().api_key = key("OTHER");
    let error = select("openai/m", &config, &set).unwrap_err();
    assert_eq!(error.fix(), "set OTHER");
    config.get_mut("openai").unwrap().api_key = Some(KeySource::Keyring("k".into()));
    let found = select("openai/m", &config, &set).unwrap();
    assert_eq!(found.key, Some(KeySource::Keyring("k".into())));
}

#[test]
fn other_providers_are_made_by_configuration() {
    let mine = config("mine", Some("https://mine.example"), None);
    let error = select("mine/m", &mine, &environment(&[], &[])).unwrap_err();
    assert!(error.fix().contains("[providers.mine]"), "{}", error.fix());
    let local = config("mine", Some("http://127.0.0.1:8080/v1"), None);
    let found = select("mine/m", &local, &environment(&[], &[])).unwrap();
    assert_eq!(found.settings.wire, Wire::Chat);
}

#[test]
fn mistakes_are_named_with_a_fix() {
    let none = environment(&[], &[]);
    for text in [
        "",
        "gpt-5",
        "/x",
        "openai/",
        "Open AI/x",
        "openai/a b",
        "openai/a\u{1b}b",
    ] {
        assert!(
            matches!(choose(text, &none), Err(SelectModelError::Form { .. })),
            "{text}"
        );
    }
    let error = choose("opnai/x", &none).unwrap_err();
    assert!(
        matches!(&error, SelectModelError::UnknownProvider { provider } if provider == "opnai")
    );
    let plain = environment(
        &[("OPENAI_BASE_URL", "http://example.com")],
        &["OPENAI_API_KEY"],
    );
    let error = choose("openai/x", &plain).unwrap_err();
    assert_eq!(error.fix(), "correct it in OPENAI_BASE_URL");
    let wire = config("anthropic", None, Some(WireChoice::Chat));
    let error = select(
        "anthropic/x",
        &wire,
        &environment(&[], &["ANTHROPIC_API_KEY"]),
    );
    assert!(matches!(error, Err(SelectModelError::FixedWire { .. })));
}
