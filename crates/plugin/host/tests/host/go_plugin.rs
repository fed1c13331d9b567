//! Plugins that speak go-plugin: one that was made with HashiCorp's own library
//! and runs here unchanged. Next: `go_plugin_hostile` for those that misbehave.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fluffy_contract::BoxFuture;
use fluffy_contract::tool::{Effect, ToolOutcome, ToolOutput};
use fluffy_egress::Network;
use fluffy_plugin_host::go_plugin::{GoPlugin, GoPluginSettings, Tls, start};
use fluffy_plugin_host::log::{self, Level, Source};
use fluffy_plugin_host::room::Way;
use fluffy_plugin_host::{CallPluginError, Connection as _, Gone, StartPluginError};
use fluffy_policy::Context;
use fluffy_test_kit::{GoPlugins, wait_for};
use serde_json::json;
use tokio::net::TcpStream;

use crate::kit::{ALLOW_ALL, Kit};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const GRACE: Duration = Duration::from_secs(20);

/// Copies a program to where the plugin sees it.
pub(crate) fn program(kit: &Kit, pick: impl Fn(&GoPlugins) -> std::path::PathBuf) -> String {
    let built = GoPlugins::build(Path::new(env!("CARGO_TARGET_TMPDIR"))).unwrap();
    let place = kit.path("p/a/files/plugin");
    std::fs::copy(pick(&built), &place).unwrap();
    place.to_str().unwrap().to_owned()
}

pub(crate) fn settings(tls: Tls) -> GoPluginSettings {
    GoPluginSettings {
        ready: PATIENCE,
        call: PATIENCE,
        tls,
    }
}

async fn go(kit: &Kit, tls: Tls, grant: &[&str]) -> Result<GoPlugin, StartPluginError> {
    let entry = kit.entry([program(kit, GoPlugins::tool)]);
    let services = Arc::new(kit.services(kit.desk(grant)));
    start(entry, services, settings(tls)).await
}

async fn try_to(plugin: &GoPlugin, tool: &str, a: &str) -> Result<ToolOutput, CallPluginError> {
    plugin.call(tool, &json!({ "a": a, "b": "value" })).await
}

fn done(content: &str) -> Result<ToolOutput, CallPluginError> {
    Ok(ToolOutput {
        content: content.to_owned(),
        outcome: ToolOutcome::Done,
    })
}

fn is_refused(answer: &Result<ToolOutput, CallPluginError>) -> bool {
    matches!(answer, Err(CallPluginError::Refused { text }) if text.contains("not permitted"))
}

/// Nothing is left where plugin and host met.
pub(crate) fn assert_tidy(kit: &Kit) {
    let left: Vec<_> = std::fs::read_dir(kit.meeting()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn a_plugin_of_hashicorps_library_runs_unchanged() {
    for tls in [Tls::Never, Tls::Offered] {
        let kit = Kit::new(ALLOW_ALL).await;
        let plugin = go(&kit, tls, &["kv.*"]).await.unwrap();
        let tools = plugin.tools();
        assert_eq!(tools.len(), 9);
        assert_eq!(
            (tools[0].name.as_str(), tools[0].effect),
            ("echo", Effect::Acts)
        );
        assert_eq!(
            (tools[2].name.as_str(), tools[2].effect),
            ("set", Effect::Acts)
        );
        assert_eq!(tools[0].summary, "tries to echo");
        assert_eq!(tools[0].parameters["properties"]["a"]["type"], "string");
        plugin.health().await.unwrap();
        assert_eq!(try_to(&plugin, "echo", "héllo").await, done("héllo"));
        assert_eq!(try_to(&plugin, "set", "a.b").await, done("kept"));
        assert_eq!(try_to(&plugin, "get", "a.b").await, done("value"));
        let unknown = try_to(&plugin, "nothing", "").await;
        assert!(matches!(unknown, Err(CallPluginError::NoSuchTool { .. })));
        let wrong = plugin.call("echo", &json!([1])).await;
        let words = "these are no arguments".to_owned();
        assert_eq!(wrong, Err(CallPluginError::Refused { text: words }));
        plugin.stop(GRACE).await;
        assert_eq!(plugin.gone().await, Gone::Stopped);
        plugin.stop(GRACE).await;
        let late = try_to(&plugin, "echo", "x").await;
        assert!(
            matches!(late, Err(CallPluginError::Gone { .. })),
            "{late:?}"
        );
        assert_tidy(&kit);
        let said = log::read(&kit.log()).unwrap();
        let encrypted = said.iter().any(|line| {
            line.level == Level::Info && line.text.contains("configuring server automatic mTLS")
        });
        assert_eq!(encrypted, tls == Tls::Offered, "{said:?}");
        assert!(
            said.iter()
                .any(|line| line.level == Level::Debug && line.source == Source::Stderr),
            "{said:?}"
        );
    }
}

/// What it asks its host for, what it opens and where it connects by itself.
#[tokio::test]
async fn it_gets_what_was_granted_and_nothing_else() {
    for tls in [Tls::Never, Tls::Offered] {
        let kit = Kit::new(ALLOW_ALL).await;
        std::fs::write(kit.path("project/a.md"), "text").unwrap();
        std::fs::write(kit.path("project/b.md"), "secret").unwrap();
        std::fs::write(kit.path("outside"), "secret").unwrap();
        let grant = ["kv.set.mine", "kv.get.mine", "fs.read./a.md"];
        let plugin = go(&kit, tls, &grant).await.unwrap();
        assert_eq!(try_to(&plugin, "set", "mine").await, done("kept"));
        assert_eq!(try_to(&plugin, "get", "mine").await, done("value"));
        assert_eq!(try_to(&plugin, "read", "/a.md").await, done("text"));
        for (tool, what) in [
            ("set", "yours"),
            ("get", "yours"),
            ("read", "/b.md"),
            ("reach", "tracker.example:443"),
        ] {
            let answer = try_to(&plugin, tool, what).await;
            assert!(is_refused(&answer), "{tool} {what}: {answer:?}");
        }
        assert_eq!(kit.decisions("kv.set", "deny"), 1);
        assert_eq!(kit.decisions("fs.read", "deny"), 1);
        // Around the host: what the sandbox shows and what it does not.
        let own = kit.file("own", "mine");
        let opened = try_to(&plugin, "open", own.to_str().unwrap()).await;
        assert_eq!(opened, done("mine"));
        for path in ["outside", "project/b.md", "user.yaml", "p/a/kv.sqlite"] {
            let path = kit.path(path);
            assert!(path.exists());
            let answer = try_to(&plugin, "open", path.to_str().unwrap())
                .await
                .unwrap();
            assert_eq!(answer.outcome, ToolOutcome::Failed, "{path:?}: {answer:?}");
        }
        let canary = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        canary.set_nonblocking(true).unwrap();
        let address = canary.local_addr().unwrap().to_string();
        let answer = try_to(&plugin, "connect", &address).await.unwrap();
        assert_eq!(answer.outcome, ToolOutcome::Failed, "{answer:?}");
        assert!(canary.accept().is_err());
        std::net::TcpStream::connect(&address).unwrap();
        assert!(canary.accept().is_ok(), "the control");
        plugin.stop(GRACE).await;
    }
}

/// Names that lead to one listener of this machine.
struct Leading(SocketAddr);

impl Network for Leading {
    fn resolve<'a>(&'a self, _name: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        Box::pin(async { Ok(vec![IpAddr::from([93, 184, 216, 34])]) })
    }

    fn connect(&self, _address: SocketAddr) -> BoxFuture<'_, io::Result<TcpStream>> {
        Box::pin(TcpStream::connect(self.0))
    }
}

#[tokio::test]
async fn the_way_out_is_the_proxy_and_leads_to_granted_hosts_only() {
    let kit = Kit::new(ALLOW_ALL).await;
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let desk = kit.desk(&["net.connect.tracker.example:443"]);
    let mut entry = kit.entry([program(&kit, GoPlugins::tool)]);
    entry.spec.template = "plugin-net".to_owned();
    entry.create = fluffy_test_kit::permit("sandbox.create", Some("plugin-net"));
    entry.way = Some(Way {
        desk: desk.clone(),
        context: Context::default(),
        ledger: kit.ledger.clone(),
        network: Arc::new(Leading(server.local_addr().unwrap())),
    });
    let services = Arc::new(kit.services(desk));
    let plugin = start(entry, services, settings(Tls::Offered))
        .await
        .unwrap();
    let reached = try_to(&plugin, "reach", "tracker.example:443")
        .await
        .unwrap();
    assert!(reached.content.contains(" 200"), "{reached:?}");
    for elsewhere in ["tracker.example:80", "other.example:443"] {
        let answer = try_to(&plugin, "reach", elsewhere).await;
        assert!(is_refused(&answer), "{elsewhere}: {answer:?}");
    }
    let around = server.local_addr().unwrap().to_string();
    let answer = try_to(&plugin, "connect", &around).await.unwrap();
    assert_eq!(answer.outcome, ToolOutcome::Failed, "{answer:?}");
    plugin.stop(GRACE).await;
}

#[tokio::test]
async fn a_call_nobody_waits_for_is_cancelled() {
    let kit = Kit::new(ALLOW_ALL).await;
    let plugin = go(&kit, Tls::Offered, &["kv.*"]).await.unwrap();
    tokio::select! {
        biased;
        answer = try_to(&plugin, "wait", "dropped") => panic!("{answer:?}"),
        echoed = try_to(&plugin, "echo", "x") => assert_eq!(echoed, done("x")),
    }
    // Long before the call's own time is over.
    let services = kit.services(kit.desk(&["kv.*"]));
    let deadline = tokio::time::Instant::now() + PATIENCE / 2;
    while services.kv_get("dropped").await.unwrap().is_none() {
        assert!(tokio::time::Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    plugin.stop(GRACE).await;
}

#[tokio::test]
async fn a_call_that_takes_too_long_is_late() {
    let kit = Kit::new(ALLOW_ALL).await;
    let entry = kit.entry([program(&kit, GoPlugins::tool)]);
    let services = Arc::new(kit.services(kit.desk(&["kv.*"])));
    let after = Duration::from_millis(300);
    let settings = GoPluginSettings {
        call: after,
        ..settings(Tls::Offered)
    };
    let plugin = start(entry, services, settings).await.unwrap();
    let late = try_to(&plugin, "wait", "late").await;
    assert_eq!(late, Err(CallPluginError::Late { after }));
    plugin.stop(GRACE).await;
    assert_eq!(plugin.gone().await, Gone::Stopped);
}

#[tokio::test]
async fn a_plugin_that_crashes_says_how() {
    let kit = Kit::new(ALLOW_ALL).await;
    let plugin = go(&kit, Tls::Offered, &[]).await.unwrap();
    let answer = try_to(&plugin, "crash", "").await;
    let how = "exit code 3".to_owned();
    assert_eq!(answer, Err(CallPluginError::Gone { how: how.clone() }));
    assert_eq!(plugin.gone().await, Gone::Crashed { how });
    assert!(plugin.health().await.is_err());
    assert_tidy(&kit);
}

#[tokio::test]
async fn a_plugin_for_another_host_says_so_and_is_gone() {
    let kit = Kit::new(ALLOW_ALL).await;
    let entry = kit.entry([program(&kit, GoPlugins::tool), "OTHER_COOKIE".to_owned()]);
    let services = Arc::new(kit.services(kit.desk(&[])));
    let error = start(entry, services, settings(Tls::Offered))
        .await
        .unwrap_err();
    let StartPluginError::Ended { how } = error else {
        panic!("{error:?}");
    };
    assert!(how.starts_with("exit code 1; it said: "), "{how}");
    assert!(how.contains("not meant to be executed directly"), "{how}");
    wait_for("its words are in the log", PATIENCE, || {
        let said = log::read(&kit.log()).unwrap();
        said.iter()
            .any(|line| line.text.contains("This binary is a plugin"))
            .then_some(())
    })
    .unwrap();
}
