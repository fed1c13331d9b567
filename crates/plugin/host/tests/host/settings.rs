//! Settings and secrets: they reach the plugin, and nobody else.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fluffy_base::Digest;
use fluffy_plugin_core::lifecycle::State;
use fluffy_plugin_host::ServiceError;
use fluffy_plugin_host::log;
use fluffy_plugin_host::plugins::Plugins;
use fluffy_plugin_host::settings::{Change, ConfigureError, Set, SettingsError};
use fluffy_plugin_host::shelf::{Record, examine};
use fluffy_secret::redactor::MARK;
use fluffy_secret::{Redactor, SecretString};
use fluffy_test_kit::{permit, sample_plugin};
use serde_json::{Value, json};

use crate::kit::{ALLOW_ALL, Kit};
use crate::plugins::{Scene, say, source_of, until};

const SECRET: &str = "waffle-7f3a-marked-secret";

const MANIFEST: &str = "name: leaky
version: 1.0.0
type: tool
engine: \">=0.1\"
api: 1
capabilities: [ config.read.self ]
execution:
  tier: process
  command: [ python3, \"-u\", server.py ]
  protocol: mcp
  env: { TOKEN: \"@config.token\", MODE: \"@config.mode\" }
config_schema:
  required: [ token ]
  properties:
    token: { type: string, secret: true }
    mode: { type: string, default: plain }
    retries: { type: integer, maximum: 5 }
";

/// Installs it under this manifest, switched on.
fn install(scene: &Scene, name: &str, manifest: &str, (file, content): (&str, &[u8])) {
    let source = scene.kit.path(&format!("source-{name}"));
    std::fs::create_dir_all(&source).unwrap();
    std::fs::write(source.join("plugin.yaml"), manifest).unwrap();
    std::fs::write(source.join(file), content).unwrap();
    let record = Record::new(&examine(&source).unwrap(), vec!["*".to_owned()], "here");
    let allowed = permit("plugins.install", Some(name));
    scene.shelf.install(allowed, &source, &record).unwrap();
}

fn install_leaky(scene: &Scene) {
    let server = include_bytes!("leaky.py");
    install(scene, "leaky", MANIFEST, ("server.py", server));
}

fn configure(scene: &Scene, name: &str, change: Change) {
    let allowed = permit("plugins.config", Some(name));
    scene.shelf.configure(allowed, name, vec![change]).unwrap();
}

fn secret(name: &str, value: &str) -> Change {
    Change::Secret {
        name: name.to_owned(),
        value: SecretString::from(value.to_owned()),
    }
}

fn open(name: &str, value: Value) -> Change {
    Change::Open {
        name: name.to_owned(),
        value,
    }
}

/// Pins what its tools say now, and starts it.
async fn begin(scene: &Scene, plugins: &Plugins, name: &str) {
    let placed = scene.shelf.find(name).unwrap();
    let tools = plugins.try_out(&placed).await.unwrap();
    let allowed = permit("plugins.install", Some(name));
    scene.shelf.pin_tools(allowed, name, &tools).unwrap();
    plugins.refresh().await;
}

/// Every file below a folder in which the secret stands.
fn found_in(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && !path.is_symlink() {
            found.extend(found_in(&path));
        } else if holds(&std::fs::read(&path).unwrap_or_default()) {
            found.push(path);
        }
    }
    found
}

fn holds(bytes: &[u8]) -> bool {
    let mut windows = bytes.windows(SECRET.len());
    windows.any(|window| window == SECRET.as_bytes())
}

/// Processes that have the secret among their arguments.
fn shown_by_processes() -> Vec<PathBuf> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.map(|entry| entry.path().join("cmdline"));
    lines
        .filter(|line| holds(&std::fs::read(line).unwrap_or_default()))
        .collect()
}

#[tokio::test]
async fn a_secret_reaches_its_plugin_and_comes_out_nowhere() {
    let scene = Scene::under(ALLOW_ALL).await;
    install_leaky(&scene);
    configure(&scene, "leaky", secret("token", SECRET));
    let plugins = scene.plugins();
    begin(&scene, &plugins, "leaky").await;
    let source = source_of(&plugins, "leaky").unwrap();
    // The plugin has it: the control of everything below.
    let hash = say(&source, "hash", json!({})).await.unwrap();
    assert_eq!(hash, Digest::of(SECRET.as_bytes()).to_string());
    let said = say(&source, "say", json!({})).await.unwrap();
    assert_eq!(said, format!("<{MARK}> plain"));
    let failed = say(&source, "fail", json!({})).await.unwrap();
    assert_eq!(failed, format!("bad token {MARK}"));
    let tools = serde_json::to_string(&source.tools()).unwrap();
    assert!(tools.contains(MARK) && !tools.contains(SECRET), "{tools}");
    assert!(shown_by_processes().is_empty());
    let died = say(&source, "die", json!({})).await.unwrap_err();
    let died = format!("{died:?}");
    assert!(!died.contains(SECRET), "{died}");
    until("it is started again", || {
        scene
            .states("leaky")
            .iter()
            .any(|state| state == "2 running")
    })
    .await;
    let lines = log::read(&scene.shelf.home("leaky").join("log")).unwrap();
    let text = serde_json::to_string(&lines).unwrap();
    assert!(text.contains(&format!("calling with {MARK}")), "{text}");
    // It was given by a decision that is recorded, and stands in no file.
    assert!(scene.kit.decisions("config.read", "allow") >= 2);
    plugins.stop_all().await;
    let root = scene.kit.path("");
    assert_eq!(found_in(&root), Vec::<PathBuf>::new());
    // The controls: both searches find what is there.
    let planted = root.join("planted");
    std::fs::write(&planted, format!("x{SECRET}y")).unwrap();
    assert_eq!(found_in(&root), [planted]);
    let mut waiting = Command::new("sh")
        .args(["-c", "read line", SECRET])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    until("a planted argument is found", || {
        shown_by_processes().len() == 1
    })
    .await;
    waiting.kill().unwrap();
    waiting.wait().unwrap();
}

#[tokio::test]
async fn a_plugin_that_does_not_start_keeps_its_secret_too() {
    let scene = Scene::under(ALLOW_ALL).await;
    install_leaky(&scene);
    configure(&scene, "leaky", secret("token", SECRET));
    configure(&scene, "leaky", open("mode", json!("broken")));
    let plugins = scene.plugins();
    plugins.refresh().await;
    let status = &plugins.status()[0];
    assert_eq!(status.state, State::Error);
    let why = status.why.clone().unwrap();
    assert!(why.contains(MARK) && !why.contains(SECRET), "{why}");
    assert_eq!(found_in(&scene.kit.path("")), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn settings_that_are_missing_or_wrong_are_said_and_start_nothing() {
    let scene = Scene::under(ALLOW_ALL).await;
    install_leaky(&scene);
    let plugins = scene.plugins();
    let why = || plugins.status()[0].why.clone().unwrap();
    plugins.refresh().await;
    assert_eq!(why(), "it needs the setting `token`");
    configure(&scene, "leaky", secret("token", SECRET));
    // As an older version of the plugin might have taken it.
    configure(&scene, "leaky", open("retries", json!(6)));
    plugins.refresh().await;
    let said = why();
    assert!(
        said.contains("`retries` cannot be used: it is not 5 or less"),
        "{said}"
    );
    let unset = Change::Unset {
        name: "retries".to_owned(),
    };
    configure(&scene, "leaky", unset);
    plugins.refresh().await;
    assert_eq!(plugins.status()[0].state, State::Running);
    plugins.stop_all().await;
}

#[tokio::test]
async fn settings_go_only_to_a_plugin_that_may_read_them() {
    for (rules, granted, expected) in [
        (ALLOW_ALL, "*", State::Running),
        (ALLOW_ALL, "kv.*", State::Error),
        (
            "version: 1\ncapabilities:\n  - { name: all, match: {}, do: allow }\n  \
             - { name: none, match: { action: config.read }, do: deny }\n",
            "*",
            State::Error,
        ),
    ] {
        let scene = Scene::under(rules).await;
        install_leaky(&scene);
        let placed = scene.shelf.find("leaky").unwrap();
        let mut record = placed.record.clone();
        record.granted = vec![granted.to_owned()];
        let allowed = permit("plugins.install", Some("leaky"));
        let source = scene.kit.path("source-leaky");
        scene.shelf.install(allowed, &source, &record).unwrap();
        configure(&scene, "leaky", secret("token", SECRET));
        let plugins = scene.plugins();
        plugins.refresh().await;
        assert_eq!(plugins.status()[0].state, expected, "{granted} {rules}");
        plugins.stop_all().await;
    }
}

#[tokio::test]
async fn a_module_asks_its_host_for_its_settings() {
    let scene = Scene::under(ALLOW_ALL).await;
    let manifest = "name: module\nversion: 1.0.0\ntype: tool\nengine: \">=0.1\"\napi: 1\n\
        capabilities: [ \"kv.*\", config.read.self, log.write ]\n\
        execution: { tier: wasm, module: plugin.wasm, limits: { memory: 64MiB } }\n\
        config_schema: { properties: { colour: { type: string, default: blue }, \
        token: { type: string, secret: true }, size: { type: integer } } }\n";
    let module = sample_plugin().unwrap();
    install(&scene, "module", manifest, ("plugin.wasm", &module));
    configure(&scene, "module", secret("token", SECRET));
    configure(&scene, "module", open("size", json!(3)));
    let plugins = scene.plugins();
    begin(&scene, &plugins, "module").await;
    let source = source_of(&plugins, "module").unwrap();
    let ask = |words: &str| json!({"ask": words});
    let said = say(&source, "ask", ask("config")).await.unwrap();
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said, json!({"colour": "blue", "size": 3, "token": MARK}));
    // What a decision is about is recorded, so a secret is no key.
    let key = format!("kv-set {SECRET} b");
    assert_ne!(
        say(&source, "ask", ask(&key)).await.unwrap_or_default(),
        "set"
    );
    assert_eq!(say(&source, "ask", ask("kv-set a b")).await.unwrap(), "set");
    plugins.stop_all().await;
    scene.kit.ledger.flush_blocking().unwrap();
    assert_eq!(found_in(&scene.kit.path("ledger")), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn no_request_that_is_recorded_has_a_secret_in_it() {
    let kit = Kit::new(ALLOW_ALL).await;
    let mut redactor = Redactor::of_values();
    redactor
        .register(SecretString::from(SECRET.to_owned()))
        .unwrap();
    let key = format!("x{SECRET}");
    for (redactor, is_recorded) in [(Some(redactor), false), (None, true)] {
        let services = kit.services(kit.desk(&["*"]));
        let services = services.configured(serde_json::Map::new(), redactor.map(Into::into));
        let asked = services.kv_get(&key).await;
        assert_eq!(
            matches!(asked, Err(ServiceError::Invalid { .. })),
            !is_recorded,
            "{asked:?}"
        );
        kit.ledger.flush_blocking().unwrap();
        // Without a redactor it is found: the control.
        assert_eq!(!found_in(&kit.path("ledger")).is_empty(), is_recorded);
    }
}

#[tokio::test]
async fn sealed_settings_open_for_one_plugin_and_with_one_key() {
    let scene = Scene::under(ALLOW_ALL).await;
    install_leaky(&scene);
    let other = MANIFEST.replace("name: leaky", "name: other");
    install(&scene, "other", &other, ("server.py", b""));
    configure(&scene, "leaky", secret("token", SECRET));
    let set = |name: &str| scene.shelf.settings(name);
    let value = |set: Set| set.secret["token"].expose().clone();
    assert_eq!(value(set("leaky").unwrap()), SECRET);
    let (key, file) = (
        scene.kit.path("p/key"),
        scene.shelf.home("leaky").join("settings"),
    );
    for path in [&key, &file] {
        let mode = std::fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", path.display());
    }
    // Another plugin's folder opens nothing.
    std::fs::copy(&file, scene.shelf.home("other").join("settings")).unwrap();
    assert!(matches!(set("other"), Err(SettingsError::Sealed(_))));
    // Nor does another key, nor one that others could read.
    let kept = std::fs::read(&key).unwrap();
    let with_key = |bytes: &[u8], mode: u32| {
        std::fs::write(&key, bytes).unwrap();
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(mode)).unwrap();
        set("leaky")
    };
    assert!(matches!(
        with_key(&[7; 32], 0o600),
        Err(SettingsError::Sealed(_))
    ));
    assert!(matches!(
        with_key(&kept, 0o644),
        Err(SettingsError::File { .. })
    ));
    assert_eq!(value(with_key(&kept, 0o600).unwrap()), SECRET);
    // Too short to be told from other text: never stored.
    let short = vec![secret("token", "abc")];
    let allowed = permit("plugins.config", Some("leaky"));
    let refused = scene.shelf.configure(allowed, "leaky", short);
    assert!(matches!(
        refused,
        Err(ConfigureError::Settings(SettingsError::NoSecret { .. }))
    ));
    assert_eq!(value(set("leaky").unwrap()), SECRET);
    let wrong = permit("plugins.config", Some("other"));
    assert!(scene.shelf.configure(wrong, "leaky", Vec::new()).is_err());
}
