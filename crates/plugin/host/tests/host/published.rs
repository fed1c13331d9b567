//! Servers that other people published, run unchanged in their sandboxes.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use fluffy_contract::tool::ToolOutcome;
use fluffy_plugin_host::log::Log;
use fluffy_plugin_host::mcp::{McpPlugin, McpSettings, start};
use fluffy_plugin_host::room::Entry;
use fluffy_plugin_host::{Connection, Gone};
use fluffy_test_kit::PublishedServers;
use serde_json::{Value, json};

use crate::kit::{ALLOW_ALL, Kit};

fn settings() -> McpSettings {
    McpSettings {
        start_timeout: Duration::from_secs(120),
        call_timeout: Duration::from_secs(60),
        roots: Vec::new(),
    }
}

/// A project with something in it, and a plugin's folder with the servers.
struct Ground {
    kit: Kit,
}

impl Ground {
    async fn new() -> Self {
        let kit = Kit::new(ALLOW_ALL).await;
        std::fs::create_dir(kit.path("project/docs")).unwrap();
        for name in ["project/docs/a.md", "project/secret.md"] {
            std::fs::write(kit.path(name), "content").unwrap();
        }
        Self { kit }
    }

    fn servers() -> PublishedServers {
        // The test's own executable is in `<target>/debug/deps`.
        let own = std::env::current_exe().unwrap();
        let target = own.ancestors().nth(3).unwrap();
        PublishedServers::fetched(target)
            .expect("the published servers are fetched by `cargo xtask test --only setup`")
    }

    /// Puts a folder of servers where the plugin's files are.
    fn install(&self, servers: &Path) {
        let files = self.kit.path("p/a/files");
        std::fs::remove_dir(&files).unwrap();
        let copied = Command::new("cp")
            .arg("-a")
            .arg(servers)
            .arg(&files)
            .status();
        assert!(copied.unwrap().success());
    }

    fn node(&self, server: &str, arguments: &[&str]) -> Entry {
        let files = self.kit.path("p/a/files");
        if !files.join("node_modules").exists() {
            self.install(&Self::servers().node());
        }
        let main = files.join(format!(
            "node_modules/@modelcontextprotocol/{server}/dist/index.js"
        ));
        let argv = ["node", main.to_str().unwrap()];
        self.kit.entry(argv.iter().chain(arguments).copied())
    }

    fn python(&self, module: &str, arguments: &[&str]) -> Entry {
        let files = self.kit.path("p/a/files");
        if !files.join("mcp").exists() {
            self.install(&Self::servers().python());
        }
        let argv = ["python3", "-m", module];
        let mut entry = self.kit.entry(argv.iter().chain(arguments).copied());
        let path = files.to_str().unwrap().to_owned();
        entry
            .command
            .environment
            .insert("PYTHONPATH".to_owned(), path);
        entry
    }

    async fn start(&self, entry: Entry, settings: McpSettings) -> McpPlugin {
        let log = Log::open(&self.kit.log()).unwrap();
        start(entry, log, settings).await.unwrap()
    }
}

/// What a call answered, and whether it succeeded.
async fn call(plugin: &McpPlugin, tool: &str, arguments: Value) -> (ToolOutcome, String) {
    let output = plugin.call(tool, &arguments).await.unwrap();
    (output.outcome, output.content)
}

#[tokio::test]
async fn everything_from_npm() {
    let ground = Ground::new().await;
    let granted = McpSettings {
        roots: vec![ground.kit.path("project/docs")],
        ..settings()
    };
    let plugin = ground
        .start(ground.node("server-everything", &[]), granted)
        .await;
    assert_eq!(plugin.version(), "2025-11-25");
    let (outcome, text) = call(&plugin, "echo", json!({"message": "hello"})).await;
    assert_eq!((outcome, text.as_str()), (ToolOutcome::Done, "Echo: hello"));
    let (_, text) = call(&plugin, "get-sum", json!({"a": 2, "b": 3})).await;
    assert!(text.contains('5'), "{text}");
    // Many messages about its progress come before the answer.
    let long = json!({"duration": 0.2, "steps": 20});
    let (outcome, text) = call(&plugin, "trigger-long-running-operation", long).await;
    assert_eq!(outcome, ToolOutcome::Done, "{text}");
    let tools: Vec<String> = plugin.tools().into_iter().map(|tool| tool.name).collect();
    // What we do not offer, it does not offer either.
    assert!(
        !tools
            .iter()
            .any(|name| name.contains("sampling") || name.contains("elicit")),
        "{tools:?}"
    );
    let (_, text) = call(&plugin, "get-env", json!({})).await;
    assert!(!text.contains("CARGO"), "{text}");
    // It does not end when its input ends, so it is asked, and then ended.
    plugin.stop(Duration::from_secs(2)).await;
    assert_eq!(plugin.gone().await, Gone::Stopped);
}

#[tokio::test]
async fn filesystem_from_npm_reads_what_was_granted_and_writes_nothing() {
    let ground = Ground::new().await;
    let project = ground.kit.path("project");
    let arguments = [project.to_str().unwrap()];
    let read = |name: &str| json!({"path": project.join(name)});
    // It may serve the whole project, and was granted a part of it.
    let mut entry = ground.node("server-filesystem", &arguments);
    entry.spec.read = vec![project.join("docs")];
    let plugin = ground.start(entry, settings()).await;
    let (outcome, text) = call(&plugin, "read_text_file", read("docs/a.md")).await;
    assert_eq!((outcome, text.as_str()), (ToolOutcome::Done, "content"));
    let (outcome, text) = call(&plugin, "read_text_file", read("secret.md")).await;
    assert_eq!(outcome, ToolOutcome::Failed, "{text}");
    let write = json!({"path": project.join("docs/a.md"), "content": "changed"});
    let (outcome, text) = call(&plugin, "write_file", write).await;
    assert_eq!(outcome, ToolOutcome::Failed, "{text}");
    assert_eq!(
        std::fs::read(project.join("docs/a.md")).unwrap(),
        b"content"
    );
    plugin.stop(Duration::from_secs(1)).await;
    // The control: the same server with the whole project granted.
    let mut entry = ground.node("server-filesystem", &arguments);
    entry.spec.read = vec![project.clone()];
    let plugin = ground.start(entry, settings()).await;
    let (outcome, text) = call(&plugin, "read_text_file", read("secret.md")).await;
    assert_eq!((outcome, text.as_str()), (ToolOutcome::Done, "content"));
}

#[tokio::test]
async fn time_from_pypi() {
    let ground = Ground::new().await;
    let plugin = ground
        .start(ground.python("mcp_server_time", &[]), settings())
        .await;
    assert_eq!(plugin.version(), "2026-07-28");
    let asked = json!({"timezone": "Etc/UTC"});
    let (outcome, text) = call(&plugin, "get_current_time", asked).await;
    assert_eq!(outcome, ToolOutcome::Done, "{text}");
    assert!(text.contains("+00:00"), "{text}");
    let (outcome, _) = call(&plugin, "get_current_time", json!({"timezone": "No/Where"})).await;
    assert_eq!(outcome, ToolOutcome::Failed);
    plugin.health().await.unwrap();
    plugin.stop(Duration::from_secs(20)).await;
    assert_eq!(plugin.gone().await, Gone::Stopped);
}

#[tokio::test]
async fn git_from_pypi_reads_a_repository_and_changes_nothing() {
    let ground = Ground::new().await;
    let project = ground.kit.path("project");
    let git = |words: &[&str]| {
        let done = Command::new("git")
            .arg("-C")
            .arg(&project)
            .args(words)
            .output()
            .unwrap();
        assert!(done.status.success(), "{done:?}");
        String::from_utf8(done.stdout).unwrap()
    };
    git(&["init", "--quiet"]);
    git(&["add", "docs"]);
    let author = ["-c", "user.name=Ann", "-c", "user.email=ann@example.com"];
    git(&[&author[..], &["commit", "--quiet", "-m", "first"]].concat());
    let head = git(&["rev-parse", "HEAD"]);
    let path = project.to_str().unwrap();
    let mut entry = ground.python("mcp_server_git", &["--repository", path]);
    entry.spec.read = vec![project.clone()];
    let plugin = ground.start(entry, settings()).await;
    let (outcome, text) = call(&plugin, "git_log", json!({"repo_path": path})).await;
    assert_eq!(outcome, ToolOutcome::Done, "{text}");
    assert!(text.contains("first"), "{text}");
    let files = json!({"repo_path": path, "files": ["secret.md"]});
    let added = plugin.call("git_add", &files).await;
    assert!(added.is_err() || added.unwrap().outcome == ToolOutcome::Failed);
    assert_eq!(git(&["rev-parse", "HEAD"]), head);
    assert_eq!(git(&["status", "--porcelain"]), "?? secret.md\n");
}
