//! Plugins that do not keep to go-plugin's rules: contained and reported.
//!
//! Scripts for what happens before gRPC; a double of our own, written in Go
//! (`dev/fixtures/plugins/go/double`), for what comes after.

use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Duration;

use fluffy_contract::tool::ToolOutcome;
use fluffy_plugin_host::go_plugin::{GoPlugin, GoPluginSettings, Tls, start};
use fluffy_plugin_host::log::{self, Level, Source};
use fluffy_plugin_host::{CallPluginError, Connection as _, Gone, StartPluginError};
use fluffy_test_kit::{GoPlugins, campaign, wait_for};
use serde_json::json;

use crate::go_plugin::{GRACE, PATIENCE, assert_tidy, program, settings};
use crate::kit::{ALLOW_ALL, Kit};

/// Starts a script in place of a plugin; it never becomes one.
async fn script(kit: &Kit, script: &str) -> StartPluginError {
    let entry = kit.entry(["sh", "-c", script]);
    let services = Arc::new(kit.services(kit.desk(&[])));
    start(entry, services, settings(Tls::Offered))
        .await
        .unwrap_err()
}

/// Starts the double in one of its ways to misbehave.
async fn double(kit: &Kit, mode: &str) -> Result<GoPlugin, StartPluginError> {
    double_with(kit, mode, settings(Tls::Offered)).await
}

async fn double_with(
    kit: &Kit,
    mode: &str,
    settings: GoPluginSettings,
) -> Result<GoPlugin, StartPluginError> {
    let entry = kit.entry([program(kit, GoPlugins::double), mode.to_owned()]);
    let services = Arc::new(kit.services(kit.desk(&["kv.*"])));
    start(entry, services, settings).await
}

/// How many processes of this machine were started with a path of this kit.
fn processes(kit: &str) -> usize {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    let own = format!("{kit}/p/a/files");
    lines
        .filter(|line| String::from_utf8_lossy(line).contains(&own))
        .count()
}

fn home(kit: &Kit) -> String {
    kit.path("")
        .to_str()
        .unwrap()
        .trim_end_matches('/')
        .to_owned()
}

fn assert_nothing_runs(kit: &str) {
    let none = || (processes(kit) == 0).then_some(());
    wait_for("nothing of it runs", PATIENCE, none).unwrap();
}

#[tokio::test]
async fn a_first_line_that_is_none_is_refused_in_words() {
    let dir = "$PLUGIN_UNIX_SOCKET_DIR";
    let cases = [
        ("printf '\\377\\000\\001\\n'; sleep 600", "no handshake"),
        ("echo hello; sleep 600", "no handshake but `hello`"),
        (
            "head -c 70000 /dev/zero | tr '\\0' x; sleep 600",
            "longer than 65536 bytes",
        ),
        ("echo '2|1|unix|/s|grpc|'; sleep 600", "core protocol"),
        (
            "echo '1|7|unix|/s|grpc|'; sleep 600",
            "version `7` of the contract",
        ),
        ("echo '1|1|unix|/s'; sleep 600", "net/rpc"),
        (
            "echo '1|1|tcp|0.0.0.0:1234|grpc|'; sleep 600",
            "not an address of the loopback",
        ),
        (
            "echo '1|1|tcp|127.0.0.1:1234|grpc|'; sleep 600",
            "nobody else can reach",
        ),
        (
            &format!("echo \"1|1|unix|{dir}/nothing|grpc|\"; sleep 600"),
            "cannot be reached",
        ),
        (
            &format!("echo x > {dir}/file; echo \"1|1|unix|{dir}/file|grpc|\"; sleep 600"),
            "is not a socket",
        ),
    ];
    let kit = Kit::new(ALLOW_ALL).await;
    for (plugin, why) in cases {
        let error = script(&kit, plugin).await;
        let StartPluginError::Protocol { protocol, what } = error else {
            panic!("{plugin}: {error:?}");
        };
        assert_eq!(protocol, "go-plugin");
        assert!(what.contains(why), "{plugin}: {what}");
    }
}

#[tokio::test]
async fn one_that_ends_or_says_nothing_is_told_apart() {
    let kit = Kit::new(ALLOW_ALL).await;
    let error = script(&kit, "echo last words >&2; exit 7").await;
    let StartPluginError::Ended { how } = error else {
        panic!("{error:?}");
    };
    assert_eq!(how, "exit code 7; it said: last words");
    let line = "echo \"1|1|unix|$PLUGIN_UNIX_SOCKET_DIR/s|grpc|\"";
    let error = script(&kit, line).await;
    assert!(
        matches!(
            error,
            StartPluginError::Ended { .. } | StartPluginError::Protocol { .. }
        ),
        "{error:?}"
    );
    let entry = kit.entry(["sleep", "600"]);
    let services = Arc::new(kit.services(kit.desk(&[])));
    let ready = Duration::from_millis(500);
    let settings = GoPluginSettings {
        ready,
        ..settings(Tls::Offered)
    };
    let error = start(entry, services, settings).await.unwrap_err();
    assert!(matches!(error, StartPluginError::Late { after } if after == ready));
}

/// The host would connect, in its own name, to whatever a plugin names.
#[tokio::test]
async fn a_socket_elsewhere_is_never_connected_to() {
    let kit = Kit::new(ALLOW_ALL).await;
    let outside = kit.path("canary");
    let canary = UnixListener::bind(&outside).unwrap();
    canary.set_nonblocking(true).unwrap();
    let link = kit.meeting().join("link");
    let (outside_text, link_text) = (outside.display(), link.display());
    let up = kit.meeting().join("../../../canary");
    let cases = [
        (
            format!("1|1|unix|{outside_text}|grpc|"),
            "not directly in its own folder",
        ),
        (
            format!("1|1|unix|{}|grpc|", up.display()),
            "not directly in its own folder",
        ),
        (format!("1|1|unix|{link_text}|grpc|"), "is not a socket"),
        (format!("1|1|unix|{link_text}/|grpc|"), "is not a socket"),
        (
            format!("1|1|unix|{link_text}/..|grpc|"),
            "not directly in its own folder",
        ),
    ];
    for (line, why) in cases {
        let plugin = format!("ln -sf {outside_text} {link_text}; echo '{line}'; sleep 600");
        let error = script(&kit, &plugin).await;
        let StartPluginError::Protocol { what, .. } = error else {
            panic!("{line}: {error:?}");
        };
        assert!(what.contains(why), "{line}: {what}");
        assert!(canary.accept().is_err(), "{line}");
    }
    // Whoever follows the link gets there.
    let _control = UnixStream::connect(&link).unwrap();
    assert!(canary.accept().is_ok());
}

#[tokio::test]
async fn what_a_double_says_of_itself_is_checked() {
    let cases = [
        ("wrong certificate", "its TLS is refused"),
        ("tls 1.2", "its TLS is refused"),
        ("not serving", "not serving"),
        ("no health, unwell", "a double with a cold"),
        ("refuses", "its Init failed: not today"),
        ("two of a name", "two tools `do`"),
        ("a bad name", "no usable name"),
        ("no schema", "parameters of its tool `do`"),
        ("many tools", "more than 128 tools"),
        ("a large list", "its Describe failed"),
    ];
    let kit = Kit::new(ALLOW_ALL).await;
    for (mode, why) in cases {
        let error = double(&kit, mode).await.unwrap_err();
        let StartPluginError::Protocol { what, .. } = error else {
            panic!("{mode}: {error:?}");
        };
        assert!(what.contains(why), "{mode}: {what}");
        assert_tidy(&kit);
    }
    for mode in ["", "plain", "no health", "two lines"] {
        let plugin = double(&kit, mode).await.unwrap();
        plugin.health().await.unwrap();
        let tools = plugin.tools();
        assert_eq!(tools[0].name, "do");
        assert_eq!(tools[0].summary.len(), 1 << 10);
        let done = plugin.call("do", &json!({})).await.unwrap();
        assert_eq!(done.outcome, ToolOutcome::Done);
        plugin.stop(GRACE).await;
        assert_tidy(&kit);
    }
    assert_nothing_runs(&home(&kit));
}

/// As newer versions of go-plugin do it: the host trusts only the plugin, and
/// the plugin only the host, on the brokered socket too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stdio_and_the_broker_work_with_mtls_and_without() {
    for mode in ["", "plain"] {
        let kit = Kit::new(ALLOW_ALL).await;
        let plugin = double(&kit, mode).await.unwrap();
        plugin.call("do", &json!("keep")).await.unwrap();
        let services = kit.services(kit.desk(&["kv.*"]));
        assert_eq!(services.kv_get("double").await, Ok(Some(b"kept".to_vec())));
        let brokered = kit.meeting().join("host-tls");
        assert_eq!(brokered.exists(), mode.is_empty());
        plugin.call("do", &json!("print")).await.unwrap();
        let said = wait_for("it is forwarded", PATIENCE, || {
            let said = log::read(&kit.log()).unwrap();
            let has = |text| said.iter().any(|line| line.text == text);
            (has("printed") && has("warned")).then_some(said)
        })
        .unwrap();
        let by = |text: &str| {
            let line = said.iter().find(|line| line.text == text).unwrap();
            (line.level, line.source)
        };
        assert_eq!(by("printed"), (Level::Info, Source::Stdout));
        assert_eq!(by("warned"), (Level::Warn, Source::Stderr));
        assert!(said.iter().all(|line| line.text != "nowhere"));
        plugin.stop(GRACE).await;
    }
}

/// The folder keeps everybody else from the plain one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_brokered_socket_speaks_nothing_but_tls() {
    use std::io::{Read as _, Write as _};
    let kit = Kit::new(ALLOW_ALL).await;
    let plugin = double(&kit, "").await.unwrap();
    plugin.call("do", &json!("keep")).await.unwrap();
    let answered = |socket: &str| {
        let mut stream = UnixStream::connect(kit.meeting().join(socket)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
            .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
            .unwrap();
        let mut head = [0; 9];
        stream.read_exact(&mut head).is_ok_and(|()| head[3] == 4)
    };
    let (tls, plain) = tokio::task::block_in_place(|| (answered("host-tls"), answered("host")));
    assert!(!tls);
    assert!(plain, "the control");
    plugin.stop(GRACE).await;
}

#[tokio::test]
async fn an_answer_that_is_none_or_too_large_is_refused() {
    let kit = Kit::new(ALLOW_ALL).await;
    let plugin = double(&kit, "").await.unwrap();
    let limit = |limit| CallPluginError::Limit { limit };
    let nonsense = |what: &str| CallPluginError::Nonsense {
        what: what.to_owned(),
    };
    let cases = [
        ("a large message", limit("size of a message")),
        ("many messages", limit("size of an answer")),
        (
            "no outcome",
            nonsense("its answer ended without an outcome"),
        ),
        ("an unknown outcome", nonsense("an outcome that is none")),
        ("no part", nonsense("a part that is none")),
    ];
    for (what, error) in cases {
        let answer = plugin.call("do", &json!(what)).await;
        assert_eq!(answer, Err(error), "{what}");
    }
    let large = json!("x".repeat(5 << 20));
    assert_eq!(
        plugin.call("do", &large).await,
        Err(limit("size of a message"))
    );
    plugin.call("do", &json!({})).await.unwrap();
    plugin.stop(GRACE).await;
}

#[tokio::test]
async fn a_flood_is_drained_and_cut() {
    let kit = Kit::new(ALLOW_ALL).await;
    let plugin = double(&kit, "").await.unwrap();
    plugin.call("do", &json!("flood")).await.unwrap();
    plugin.call("do", &json!({})).await.unwrap();
    plugin.stop(GRACE).await;
    let said = log::read(&kit.log()).unwrap();
    let size: usize = said.iter().map(|line| line.text.len()).sum();
    assert!(size < 8 << 20, "{size} of 40 million bytes");
    assert!(
        said.iter()
            .any(|line| line.source == Source::Host && line.text.contains("bytes were left out"))
    );
}

/// Asked by our contract, by go-plugin's, by its input and by a signal.
#[tokio::test]
async fn one_that_will_not_end_is_ended() {
    let kit = Kit::new(ALLOW_ALL).await;
    let plugin = double(&kit, "deaf").await.unwrap();
    assert!(processes(&home(&kit)) > 0, "the control");
    plugin.stop(Duration::from_millis(400)).await;
    assert_eq!(plugin.gone().await, Gone::Stopped);
    assert_nothing_runs(&home(&kit));
    assert_tidy(&kit);
}

#[tokio::test]
async fn one_that_stopped_itself_is_late_and_can_be_ended() {
    let kit = Kit::new(ALLOW_ALL).await;
    let after = Duration::from_secs(1);
    let short = GoPluginSettings {
        call: after,
        ..settings(Tls::Offered)
    };
    let plugin = double_with(&kit, "", short).await.unwrap();
    for what in ["stop yourself", "hello"] {
        let answer = plugin.call("do", &json!(what)).await;
        assert_eq!(answer, Err(CallPluginError::Late { after }), "{what}");
    }
    assert_eq!(plugin.health().await, Err(CallPluginError::Late { after }));
    plugin.stop(Duration::from_millis(200)).await;
    assert_eq!(plugin.gone().await, Gone::Stopped);
    assert_nothing_runs(&home(&kit));
    assert_tidy(&kit);
}

/// A child that holds its pipes, and prints for ever, neither hides the end of
/// the plugin nor outlives it.
#[tokio::test]
async fn what_a_plugin_leaves_behind_goes_with_it() {
    let kit = Kit::new(ALLOW_ALL).await;
    let plugin = double(&kit, "").await.unwrap();
    let answer = plugin.call("do", &json!("leave a child")).await;
    assert!(answer.is_err(), "{answer:?}");
    let how = "exit code 4".to_owned();
    assert_eq!(plugin.gone().await, Gone::Crashed { how });
    assert_nothing_runs(&home(&kit));
    assert_tidy(&kit);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_a_plugin_ends_it() {
    let kit = Kit::new(ALLOW_ALL).await;
    drop(double(&kit, "deaf").await.unwrap());
    assert_nothing_runs(&home(&kit));
    wait_for("its sockets are removed", PATIENCE, || {
        let mut left = std::fs::read_dir(kit.meeting()).unwrap();
        left.next().is_none().then_some(())
    })
    .unwrap();
}

/// This very test is the host as well, in a process that can be killed.
#[test]
fn a_host_that_is_killed_leaves_no_plugin() {
    const PLACE: &str = "FLUFFY_TEST_HOST";
    let runtime = || tokio::runtime::Runtime::new().unwrap();
    if let Some(place) = std::env::var_os(PLACE) {
        runtime().block_on(async {
            let kit = Kit::new(ALLOW_ALL).await;
            let plugin = double(&kit, "deaf").await.unwrap();
            std::fs::write(&place, home(&kit)).unwrap();
            plugin.gone().await;
        });
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("kit");
    let name = "go_plugin_hostile::a_host_that_is_killed_leaves_no_plugin";
    let mut host = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name])
        .env(PLACE, &place)
        .spawn()
        .unwrap();
    let kit = wait_for("the plugin serves", PATIENCE, || {
        let kit = std::fs::read_to_string(&place).unwrap_or_default();
        (!kit.is_empty()).then_some(kit)
    })
    .unwrap();
    assert!(processes(&kit) > 0, "the control");
    host.kill().unwrap();
    host.wait().unwrap();
    assert_nothing_runs(&kit);
    std::fs::remove_dir_all(&kit).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_starts_leave_nothing_behind() {
    let kit = Kit::new(ALLOW_ALL).await;
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let mut before = 0;
    for turn in 0..campaign(20, 200) {
        let plugin = double(&kit, "").await.unwrap();
        plugin.call("do", &json!("keep")).await.unwrap();
        plugin.stop(GRACE).await;
        assert_tidy(&kit);
        drop(plugin);
        if turn == 0 {
            before = settled(descriptors);
        }
    }
    assert_nothing_runs(&home(&kit));
    wait_for("no descriptor is left", PATIENCE, || {
        (descriptors() <= before).then_some(())
    })
    .unwrap();
    let zombies = || {
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let stats = entries.filter_map(|entry| {
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            let (_, rest) = stat.rsplit_once(") ")?;
            let mut fields = rest.split(' ');
            let state = fields.next()?.to_owned();
            let parent: u32 = fields.next()?.parse().ok()?;
            Some((state, parent))
        });
        let ours = std::process::id();
        stats
            .filter(|(state, parent)| state == "Z" && *parent == ours)
            .count()
    };
    assert_eq!(zombies(), 0);
}

/// A number that is the same twice in a row, with a pause between.
fn settled(count: impl Fn() -> usize) -> usize {
    let mut last = usize::MAX;
    wait_for("it settles", PATIENCE, || {
        let now = count();
        let same = now == last;
        last = now;
        same.then_some(now)
    })
    .unwrap()
}
