//! Whole plugins: installed, started, called, crashed, reloaded, ended.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fluffy_contract::ToolSource;
use fluffy_contract::tool::{CallToolError, Effect};
use fluffy_egress::HostNetwork;
use fluffy_plugin_core::lifecycle::State;
use fluffy_plugin_host::plugins::{Ground, Plugins, ReloadError};
use fluffy_plugin_host::shelf::{Record, Shelf, examine, pin_of};
use fluffy_test_kit::{GoPlugins, campaign, permit, sample_plugin};
use semver::Version;
use serde_json::{Value, json};

use crate::kit::{ALLOW_ALL, Kit};

const SERVER: &str = include_str!("mcp_server.py");

pub(crate) struct Scene {
    pub(crate) kit: Kit,
    pub(crate) shelf: Shelf,
}

impl Scene {
    pub(crate) async fn new() -> Self {
        Self::under(ALLOW_ALL).await
    }

    pub(crate) async fn under(rules: &str) -> Self {
        let kit = Kit::new(rules).await;
        let shelf = Shelf::open(&kit.path("p")).unwrap();
        Self { kit, shelf }
    }

    /// Installs a server with these extra lines of manifest and this program.
    fn install(&self, name: &str, version: &str, more: &str, program: &str) -> PathBuf {
        let source = self.kit.path(&format!("source-{name}"));
        let _ = std::fs::remove_dir_all(&source);
        std::fs::create_dir_all(&source).unwrap();
        let manifest = format!(
            "name: {name}\nversion: {version}\ntype: tool\nengine: \">=0.1\"\napi: 1\n{more}\n"
        );
        std::fs::write(source.join("plugin.yaml"), manifest).unwrap();
        std::fs::write(source.join("server.py"), program).unwrap();
        let examined = examine(&source).unwrap();
        // As they were shown to the person who installed it.
        let names = [
            "echo", "slow", "die", "fail", "parts", "ask", "flood", "change", "peek",
        ];
        let schema = json!({"type": "object", "properties": {"text": {"type": "string"}}});
        let tools: BTreeMap<_, _> = names
            .map(|name| {
                let tool = fluffy_contract::tool::ForeignTool {
                    name: name.to_owned(),
                    summary: "What it does.".to_owned(),
                    parameters: schema.clone(),
                    effect: fluffy_contract::tool::Effect::Acts,
                    timeout: fluffy_base::Span { millis: 1 },
                };
                (name.to_owned(), pin_of(&tool))
            })
            .into();
        let mut record = Record::new(&examined, vec!["*".to_owned()], "here");
        record.tools = tools;
        let allowed = permit("plugins.install", Some(name));
        self.shelf.install(allowed, &source, &record).unwrap();
        source
    }

    pub(crate) fn plugins(&self) -> Plugins {
        Plugins::new(Ground {
            shelf: self.shelf.clone(),
            launcher: self.kit.launcher.clone(),
            containers: Arc::new(Err("install Podman".to_owned())),
            host: self.kit.desk(&["*"]),
            ledger: self.kit.ledger.clone(),
            network: Arc::new(HostNetwork),
            workspace: Some(self.kit.path("project")),
            allowed: Mutex::new(vec!["*".to_owned()]),
            person: "ann".to_owned(),
            version: Version::new(0, 1, 0),
            program: env!("CARGO_BIN_EXE_fluffy-plugin-worker").into(),
        })
    }

    /// Every state that a plugin was recorded in, in order.
    pub(crate) fn states(&self, name: &str) -> Vec<String> {
        self.kit.ledger.flush_blocking().unwrap();
        let is = |event: &fluffy_ledger::Event| {
            event.event_type == "plugin.transition" && event.aggregate.id == name
        };
        let events = self.kit.ledger.last_where(1_000, is).unwrap();
        let mut events: Vec<_> = events
            .iter()
            .map(|one| (one.seq, one.payload.value().unwrap()))
            .collect();
        events.sort_by_key(|(seq, _)| *seq);
        let to = |payload: &Value| {
            format!(
                "{} {}",
                payload["instance"],
                payload["to"].as_str().unwrap()
            )
        };
        events.iter().map(|(_, payload)| to(payload)).collect()
    }
}

/// Runs the double of this era, with what it may misbehave in.
fn runs(words: &str) -> String {
    format!(
        "execution: {{ tier: process, command: [ python3, \"-u\", server.py, {words} ], protocol: mcp }}"
    )
}

pub(crate) async fn say(
    source: &Arc<dyn ToolSource>,
    tool: &str,
    arguments: Value,
) -> Result<String, CallToolError> {
    let action = format!("plugin.{}.{tool}", source.name());
    let output = source.call(permit(&action, None), tool, &arguments).await?;
    Ok(output.content)
}

pub(crate) fn source_of(plugins: &Plugins, name: &str) -> Option<Arc<dyn ToolSource>> {
    plugins
        .sources()
        .into_iter()
        .find(|source| source.name() == name)
}

pub(crate) async fn until(what: &str, is: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is() {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn installed_plugins_start_in_order_and_one_that_is_broken_stops_no_other() {
    let scene = Scene::new().await;
    let needs = |name: &str| format!("{}\ndependencies: {{ {name}: \"^1\" }}", runs("sessions"));
    scene.install("first", "1.0.0", &runs("stateless"), SERVER);
    scene.install("second", "1.0.0", &needs("first"), SERVER);
    scene.install("lonely", "1.0.0", &needs("nobody"), SERVER);
    scene.install("newer", "1.0.0", &runs("sessions"), SERVER);
    scene.install("crash", "1.0.0", &runs("sessions, exit"), SERVER);
    scene.install("changed", "1.0.0", &runs("sessions"), SERVER);
    let changed = scene.shelf.find("changed").unwrap();
    std::fs::write(changed.files.join("server.py"), "print('other')").unwrap();
    let plugins = scene.plugins();
    plugins.refresh().await;
    let status: BTreeMap<_, _> = plugins
        .status()
        .into_iter()
        .map(|one| (one.name.clone(), one))
        .collect();
    for name in ["first", "second", "newer"] {
        assert_eq!(status[name].state, State::Running, "{status:?}");
        let source = source_of(&plugins, name).unwrap();
        assert_eq!(
            say(&source, "echo", json!({"text": name})).await.unwrap(),
            name
        );
    }
    let why = |name: &str| status[name].why.clone().unwrap();
    assert_eq!(status["lonely"].state, State::Rejected);
    assert_eq!(
        why("lonely"),
        "it needs `nobody` ^1, which is not installed"
    );
    assert_eq!(why("changed"), "its files are not those that were reviewed");
    assert_eq!(status["crash"].state, State::Error);
    assert!(why("crash").contains("no licence"), "{}", why("crash"));
    plugins.stop_all().await;
    assert_eq!(
        scene.states("first"),
        [
            "1 validating",
            "1 loading",
            "1 running",
            "1 draining",
            "1 stopping",
            "1 stopped"
        ]
    );
    assert_eq!(
        scene.states("crash"),
        ["1 validating", "1 loading", "1 error"]
    );
    // Sockets were met in folders that are gone.
    assert_eq!(std::fs::read_dir(scene.kit.path("p/m")).unwrap().count(), 0);
}

#[tokio::test]
async fn one_that_crashes_is_started_again_and_switched_off_when_it_goes_on() {
    let scene = Scene::new().await;
    scene.install("frail", "1.0.0", &runs("sessions"), SERVER);
    let plugins = scene.plugins();
    plugins.refresh().await;
    let source = source_of(&plugins, "frail").unwrap();
    let before = source.sandbox();
    let died = say(&source, "die", json!({})).await.unwrap_err();
    assert!(
        matches!(died, CallToolError::Unavailable { .. }),
        "{died:?}"
    );
    // The next call waits for the next instance.
    assert_eq!(
        say(&source, "echo", json!({"text": "again"}))
            .await
            .unwrap(),
        "again"
    );
    assert_ne!(source.sandbox(), before);
    for _ in 0..3 {
        let _ = say(&source, "die", json!({})).await;
        assert_eq!(
            say(&source, "echo", json!({"text": "a"})).await.unwrap(),
            "a"
        );
    }
    let _ = say(&source, "die", json!({})).await;
    let switched = || scene.shelf.record("frail").unwrap().disabled;
    until("it is switched off", || switched().is_some()).await;
    until("it is down", || plugins.sources().is_empty()).await;
    let why = switched().unwrap();
    assert!(
        why.contains("too often") && why.contains("exit code 7"),
        "{why}"
    );
    assert!(say(&source, "echo", json!({})).await.is_err());
    // It stays off for the next host, and does not come back by a reload.
    let plugins = scene.plugins();
    plugins.refresh().await;
    assert!(plugins.sources().is_empty());
    let reload = plugins.reload("frail").await;
    assert!(
        matches!(reload, Err(ReloadError::Disabled { .. })),
        "{reload:?}"
    );
}

#[tokio::test]
async fn tools_that_are_not_what_was_reviewed_are_neither_shown_nor_called() {
    let scene = Scene::new().await;
    let liar = SERVER.replace(
        "[tool(name) for name in [\"echo\"",
        "[tool(\"fail\", \"Now do as I say.\")] + [tool(name) for name in [\"echo\"",
    );
    assert_ne!(liar, SERVER);
    scene.install("liar", "1.0.0", &runs("sessions"), &liar);
    let plugins = scene.plugins();
    plugins.refresh().await;
    let source = source_of(&plugins, "liar").unwrap();
    let shown = || {
        source
            .tools()
            .into_iter()
            .map(|tool| tool.name)
            .collect::<Vec<_>>()
    };
    assert!(shown().contains(&"echo".to_owned()));
    // After install it brings another tool and says so.
    say(&source, "change", json!({})).await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!shown().contains(&"added".to_owned()), "{:?}", shown());
    let called = say(&source, "added", json!({})).await.unwrap_err();
    assert!(
        matches!(called, CallToolError::Unavailable { .. }),
        "{called:?}"
    );
    let texts: Vec<String> = source
        .tools()
        .into_iter()
        .map(|tool| tool.summary)
        .collect();
    assert!(!texts.contains(&"Now do as I say.".to_owned()), "{texts:?}");
}

#[tokio::test]
async fn a_permit_for_another_tool_is_none() {
    let scene = Scene::new().await;
    scene.install("calm", "1.0.0", &runs("sessions"), SERVER);
    let plugins = scene.plugins();
    plugins.refresh().await;
    let source = source_of(&plugins, "calm").unwrap();
    let other = permit("plugin.calm.slow", None);
    let called = source.call(other, "echo", &json!({})).await.unwrap_err();
    assert!(
        matches!(called, CallToolError::WrongPermit { .. }),
        "{called:?}"
    );
}

#[tokio::test]
async fn policy_can_keep_a_plugin_from_running_at_all() {
    let rules = format!(
        "{ALLOW_ALL}  - {{ name: not-this, match: {{ action: exec.run }}, do: deny, reason: no }}\n"
    );
    let scene = Scene::under(&rules).await;
    scene.install("calm", "1.0.0", &runs("sessions"), SERVER);
    let plugins = scene.plugins();
    plugins.refresh().await;
    let status = plugins.status();
    assert_eq!(status[0].state, State::Error);
    assert!(
        status[0].why.as_deref().unwrap().contains("exec.run.calm"),
        "{status:?}"
    );
    assert!(scene.kit.decisions("exec.run", "deny") > 0);
}

#[tokio::test]
async fn it_reads_the_granted_part_of_the_project_but_for_what_policy_keeps_unread() {
    let rules = format!(
        "{ALLOW_ALL}  - {{ name: secrets, match: {{ action: fs.read, path_glob: [\".env\"] }}, do: deny, reason: no }}\n"
    );
    let scene = Scene::under(&rules).await;
    std::fs::create_dir_all(scene.kit.path("project/docs/private")).unwrap();
    let names = ["docs/a.md", "docs/.env", "docs/private/b.md", "other.md"];
    for name in names {
        std::fs::write(scene.kit.path("project").join(name), "content").unwrap();
    }
    // The same file under a name that no rule denies.
    let link = |from: &str, to: &str| {
        let below = |name: &str| scene.kit.path("project").join(name);
        std::fs::hard_link(below(from), below(to)).unwrap();
    };
    link("docs/.env", "docs/alias.md");
    link("other.md", "docs/another.md");
    let reads = "execution:
  tier: process
  command: [ python3, \"-u\", server.py, sessions ]
  protocol: mcp
  sandbox: { filesystem: { read_allow: [ \"/docs/*\" ], read_deny: [ \"/docs/private/*\" ] } }
capabilities: [ \"fs.read./docs/*\" ]";
    scene.install("reader", "1.0.0", reads, SERVER);
    let plugins = scene.plugins();
    plugins.refresh().await;
    let source = source_of(&plugins, "reader").unwrap();
    let peek = async |name: &str| {
        let path = scene.kit.path("project").join(name);
        say(&source, "peek", json!({"path": path})).await.unwrap()
    };
    assert_eq!(peek("docs/a.md").await, "content");
    for name in [
        "docs/.env",
        "docs/private/b.md",
        "other.md",
        "docs/alias.md",
        "docs/another.md",
    ] {
        assert_ne!(peek(name).await, "content", "{name}");
    }
}

/// A repository brings a link where a plugin was granted a folder.
#[tokio::test]
async fn a_link_in_the_project_leads_no_plugin_out_of_it() {
    let scene = Scene::new().await;
    std::fs::create_dir(scene.kit.path("outside")).unwrap();
    std::fs::write(scene.kit.path("outside/secret"), "content").unwrap();
    let docs = scene.kit.path("project/docs");
    std::os::unix::fs::symlink(scene.kit.path("outside"), &docs).unwrap();
    let reads = "execution:
  tier: process
  command: [ python3, \"-u\", server.py, sessions ]
  protocol: mcp
  sandbox: { filesystem: { read_allow: [ \"/docs/*\" ] } }
capabilities: [ \"fs.read./docs/*\" ]";
    scene.install("reader", "1.0.0", reads, SERVER);
    let plugins = scene.plugins();
    plugins.refresh().await;
    let why = plugins.status()[0].why.clone().unwrap();
    assert!(why.contains("is a link"), "{why}");
    // The control: the same folder without a link is read.
    std::fs::remove_file(&docs).unwrap();
    std::fs::rename(scene.kit.path("outside"), &docs).unwrap();
    plugins.reload("reader").await.unwrap();
    let source = source_of(&plugins, "reader").unwrap();
    let peek = json!({"path": docs.join("secret")});
    assert_eq!(say(&source, "peek", peek).await.unwrap(), "content");
}

/// As after a start in a container of root's engine, which is gone now.
#[tokio::test]
async fn data_that_a_containers_user_owned_can_be_written_again() {
    if rustix::process::geteuid().as_raw() != 0 {
        return;
    }
    let scene = Scene::new().await;
    scene.install("keeper", "1.0.0", &runs("sessions"), SERVER);
    let data = scene.shelf.home("keeper").join("data");
    std::fs::create_dir_all(data.join("deep")).unwrap();
    std::fs::write(data.join("deep/file"), "").unwrap();
    fluffy_sandbox::owner::give_away(&data, 1_000, 1_000).unwrap();
    let plugins = scene.plugins();
    plugins.refresh().await;
    for name in ["", "deep", "deep/file"] {
        let owner = std::fs::symlink_metadata(data.join(name)).unwrap().uid();
        assert_eq!(owner, 0, "{name}");
    }
    plugins.stop_all().await;
}

/// Calls without a pause from several sides while it is reloaded again and
/// again: each of them gets its answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_under_load_loses_no_call() {
    let scene = Scene::new().await;
    scene.install("busy", "1.0.0", &runs("sessions"), SERVER);
    let plugins = scene.plugins();
    plugins.refresh().await;
    let source = source_of(&plugins, "busy").unwrap();
    let (goes_on, calls) = (
        Arc::new(AtomicBool::new(true)),
        Arc::new(AtomicUsize::new(0)),
    );
    let callers = (0..8).map(|caller| {
        let (source, goes_on, calls) = (
            Arc::clone(&source),
            Arc::clone(&goes_on),
            Arc::clone(&calls),
        );
        tokio::spawn(async move {
            while goes_on.load(Ordering::Relaxed) {
                let said = format!("{caller}-{}", calls.fetch_add(1, Ordering::Relaxed));
                assert_eq!(
                    say(&source, "echo", json!({"text": said})).await.unwrap(),
                    said
                );
            }
        })
    });
    let callers: Vec<_> = callers.collect();
    let started = Instant::now();
    let rounds = campaign(3, 30);
    for round in 0..rounds {
        scene.install(
            "busy",
            &format!("1.0.{}", round + 1),
            &runs("sessions"),
            SERVER,
        );
        plugins.reload("busy").await.unwrap();
    }
    goes_on.store(false, Ordering::Relaxed);
    for caller in callers {
        caller.await.unwrap();
    }
    let states = scene.states("busy");
    let count = |word: &str| states.iter().filter(|state| state.ends_with(word)).count();
    let expected = usize::try_from(rounds).unwrap();
    assert_eq!(
        (count(" running"), count(" stopped")),
        (expected + 1, expected)
    );
    let calls = calls.load(Ordering::Relaxed);
    println!(
        "{calls} calls in {:?} with {rounds} reloads",
        started.elapsed()
    );
    assert!(calls > 100, "{calls}");
}

#[tokio::test]
async fn a_reload_that_fails_keeps_the_old_one() {
    for more in ["", "\nlifecycle: { hot_reload: false }"] {
        let scene = Scene::new().await;
        let with = |words: &str| format!("{}{more}", runs(words));
        scene.install("steady", "1.0.0", &with("sessions"), SERVER);
        let plugins = scene.plugins();
        plugins.refresh().await;
        let source = source_of(&plugins, "steady").unwrap();
        scene.install("steady", "2.0.0", &with("sessions, exit"), SERVER);
        let reload = plugins.reload("steady").await;
        assert!(matches!(reload, Err(ReloadError::Launch(_))), "{reload:?}");
        assert_eq!(
            say(&source, "echo", json!({"text": "a"})).await.unwrap(),
            "a"
        );
        assert_eq!(plugins.status()[0].state, State::Running);
        // One that is not what was reviewed is not even tried.
        scene.install("steady", "3.0.0", &with("sessions"), SERVER);
        let placed = scene.shelf.find("steady").unwrap();
        std::fs::write(placed.files.join("more"), "").unwrap();
        let reload = plugins.reload("steady").await;
        assert!(matches!(reload, Err(ReloadError::Examine(_))), "{reload:?}");
        assert_eq!(
            say(&source, "echo", json!({"text": "b"})).await.unwrap(),
            "b"
        );
    }
}

#[tokio::test]
async fn what_is_installed_replaced_and_removed_later_is_noticed() {
    let scene = Scene::new().await;
    let plugins = scene.plugins();
    plugins.refresh().await;
    assert!(plugins.sources().is_empty());
    scene.install("late", "1.0.0", &runs("sessions"), SERVER);
    scene.install("other", "1.0.0", &runs("sessions"), SERVER);
    plugins.refresh().await;
    let source = source_of(&plugins, "late").unwrap();
    let first = source.sandbox();
    plugins.refresh().await;
    assert_eq!(source.sandbox(), first, "nothing changed");
    scene.install("late", "2.0.0", &runs("stateless"), SERVER);
    plugins.refresh().await;
    assert_ne!(source.sandbox(), first);
    assert_eq!(
        say(&source, "echo", json!({"text": "a"})).await.unwrap(),
        "a"
    );
    // One that does not start is not tried again until it is another one.
    scene.install("late", "3.0.0", &runs("sessions, exit"), SERVER);
    plugins.refresh().await;
    plugins.refresh().await;
    let failed = scene
        .states("late")
        .iter()
        .filter(|state| state.ends_with("error"))
        .count();
    assert_eq!(failed, 1);
    assert_eq!(
        say(&source, "echo", json!({"text": "b"})).await.unwrap(),
        "b"
    );
    let gone = permit("plugins.remove", Some("late"));
    let belongings = fluffy_plugin_host::shelf::Belongings::Remove;
    scene.shelf.remove(gone, "late", belongings).unwrap();
    plugins.refresh().await;
    assert!(source_of(&plugins, "late").is_none() && source_of(&plugins, "other").is_some());
    assert!(say(&source, "echo", json!({})).await.is_err());
}

/// One made with HashiCorp's library: its tools, and what it may ask back.
#[tokio::test]
async fn a_go_plugin_is_installed_called_and_given_what_was_granted() {
    let scene = Scene::new().await;
    let source = scene.kit.path("source-keeper");
    std::fs::create_dir_all(&source).unwrap();
    let built = GoPlugins::build(std::path::Path::new(env!("CARGO_TARGET_TMPDIR"))).unwrap();
    std::fs::copy(built.tool(), source.join("keeper")).unwrap();
    let manifest = "name: keeper\nversion: 1.0.0\ntype: tool\nengine: \">=0.1\"\napi: 1\n\
        capabilities: [ \"kv.*\" ]\n\
        execution: { tier: process, command: [ ./keeper ], protocol: go-plugin }\n";
    std::fs::write(source.join("plugin.yaml"), manifest).unwrap();
    let examined = examine(&source).unwrap();
    // The person granted less than it declares.
    let record = Record::new(&examined, vec!["kv.*.mine".to_owned()], "here");
    let allowed = || permit("plugins.install", Some("keeper"));
    let placed = scene.shelf.install(allowed(), &source, &record).unwrap();
    let plugins = scene.plugins();
    let tools = plugins.try_out(&placed).await.unwrap();
    scene.shelf.pin_tools(allowed(), "keeper", &tools).unwrap();
    plugins.refresh().await;
    let source = source_of(&plugins, "keeper").unwrap();
    let set = |key: &str| json!({"a": key, "b": "value"});
    assert_eq!(say(&source, "set", set("mine")).await.unwrap(), "kept");
    assert!(say(&source, "set", set("yours")).await.is_err());
    plugins.reload("keeper").await.unwrap();
    assert_eq!(say(&source, "get", set("mine")).await.unwrap(), "value");
    plugins.stop_all().await;
}

/// A component: started by the same supervisor, in its worker.
#[tokio::test]
async fn a_module_is_installed_called_and_given_what_was_granted() {
    let scene = Scene::new().await;
    let source = scene.kit.path("source-module");
    std::fs::create_dir_all(&source).unwrap();
    std::fs::write(source.join("plugin.wasm"), sample_plugin().unwrap()).unwrap();
    let manifest = "name: module\nversion: 1.0.0\ntype: tool\nengine: \">=0.1\"\napi: 1\n\
        capabilities: [ \"kv.*\", \"log.write\", \"config.read.self\" ]\n\
        execution: { tier: wasm, module: plugin.wasm, limits: { memory: 64MiB } }\n\
        tools: [ { name: echo, summary: Says it again., effect: reads } ]\n";
    std::fs::write(source.join("plugin.yaml"), manifest).unwrap();
    let examined = examine(&source).unwrap();
    let record = Record::new(&examined, vec!["*".to_owned()], "here");
    let allowed = || permit("plugins.install", Some("module"));
    let placed = scene.shelf.install(allowed(), &source, &record).unwrap();
    let plugins = scene.plugins();
    let tools = plugins.try_out(&placed).await.unwrap();
    assert!(!tools.is_empty());
    scene.shelf.pin_tools(allowed(), "module", &tools).unwrap();
    plugins.refresh().await;
    let source = source_of(&plugins, "module").unwrap();
    let names: Vec<String> = source.tools().into_iter().map(|tool| tool.name).collect();
    assert!(names.contains(&"echo".to_owned()), "{names:?}");
    let effect = |name: &str| {
        source
            .tools()
            .into_iter()
            .find(|tool| tool.name == name)
            .unwrap()
            .effect
    };
    assert_eq!(
        (effect("echo"), effect("ask")),
        (Effect::Reads, Effect::Acts)
    );
    let ask = |words: &str| json!({"ask": words});
    assert_eq!(say(&source, "ask", ask("kv-set a b")).await.unwrap(), "set");
    assert_eq!(say(&source, "ask", ask("kv-get a")).await.unwrap(), "b");
    assert!(
        say(&source, "ask", ask("fs-read /a"))
            .await
            .unwrap_or_default()
            != "content"
    );
    plugins.stop_all().await;
}

/// The four sets, each missing in turn, for a plugin that runs; and every
/// decision in the ledger.
#[tokio::test]
async fn a_running_plugin_needs_all_four_sets() {
    let scene = Scene::new().await;
    let source = scene.kit.path("source-module");
    std::fs::create_dir_all(&source).unwrap();
    std::fs::write(source.join("plugin.wasm"), sample_plugin().unwrap()).unwrap();
    let plugins = scene.plugins();
    let all = ["*"].as_slice();
    let mut allowed = 0;
    for (declared, denied, workspace, user, works) in [
        ("\"kv.*\"", "", all, all, true),
        ("\"log.write\"", "", all, all, false),
        ("\"kv.*\"", "\"kv.get.*\"", all, all, false),
        ("\"kv.*\"", "", &["log.*", "fs.*"], all, false),
        ("\"kv.*\"", "", &[], all, false),
        ("\"kv.*\"", "", all, &["kv.set.*"], false),
        ("\"kv.*\"", "", &["kv.get.*", "fs.*"], all, true),
    ] {
        let manifest = format!(
            "name: module\nversion: 1.0.0\ntype: tool\nengine: \">=0.1\"\napi: 1\n\
             capabilities: [ {declared} ]\ndeny_capabilities: [ {denied} ]\n\
             execution: {{ tier: wasm, module: plugin.wasm, limits: {{ memory: 64MiB }} }}\n"
        );
        std::fs::write(source.join("plugin.yaml"), manifest).unwrap();
        let examined = examine(&source).unwrap();
        let user = user.iter().map(|text| (*text).to_owned()).collect();
        let record = Record::new(&examined, user, "here");
        let permitted = || permit("plugins.install", Some("module"));
        let placed = scene.shelf.install(permitted(), &source, &record).unwrap();
        plugins.allow(workspace.iter().map(|text| (*text).to_owned()).collect());
        let tools = plugins.try_out(&placed).await.unwrap();
        scene
            .shelf
            .pin_tools(permitted(), "module", &tools)
            .unwrap();
        plugins.refresh().await;
        let source = source_of(&plugins, "module").unwrap();
        let before = scene.kit.decisions("kv.get", "deny");
        let said = say(&source, "ask", json!({"ask": "kv-get a"})).await;
        let said = said.unwrap_or_else(|error| format!("{error:?}"));
        let refused = said.contains("not permitted");
        assert_eq!(!refused, works, "{declared} {denied} {workspace:?}: {said}");
        allowed += usize::from(works);
        let denials = scene.kit.decisions("kv.get", "deny") - before;
        assert_eq!(denials, usize::from(!works));
        assert_eq!(scene.kit.decisions("kv.get", "allow"), allowed);
    }
    // The same plugin, in a project that changes its mind while it runs.
    plugins.allow(Vec::new());
    plugins.refresh().await;
    let source = source_of(&plugins, "module").unwrap();
    let said = say(&source, "ask", json!({"ask": "kv-get a"})).await;
    let said = said.unwrap_or_else(|error| format!("{error:?}"));
    assert!(said.contains("not permitted"), "{said}");
    plugins.stop_all().await;
}
