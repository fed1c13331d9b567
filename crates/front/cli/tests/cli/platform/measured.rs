//! What an operator sees and sets of a whole platform: limits of images, lines
//! of an env, shares of a day, figures. With instances that really run.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use fluffy_test_kit::wait_for;
use serde_json::{Value, json};

use super::instances::{LONG, layer, reach};
use super::real::Running;
use super::stage::write_image;
use crate::site::Site;

/// How often it prints, and how much each time: below what one instance may.
const TIMES: u64 = 14;
const EACH: u64 = 900;

fn manifest(process: &str) -> String {
    format!(
        r#"schema_version = "v1"
[app]
name = "hello"
[image]
ref = "oci:image"
[deploy]
min_ready_seconds = 0
[processes.web]
resources = {{ memory = "64MiB" }}
{process}
"#
    )
}

fn site(process: &str) -> Site {
    let site = Site::empty();
    let image = site.context.project().join("image");
    write_image(&image, &layer(&site.context.home()));
    site.context
        .write("fluffy.toml", &manifest(process))
        .unwrap();
    site
}

fn make_env(site: &Site) {
    site.succeeds(&["apps", "create", "hello"]);
    site.succeeds(&["envs", "create", "dev"]);
    site.succeeds(&["context", "set", "here", "--env", "dev"]);
}

/// A platform that takes its instances along.
struct Up(Running);

impl Drop for Up {
    fn drop(&mut self) {
        self.0.leave();
    }
}

fn up(site: &Site, more: &[&str]) -> Up {
    let mut command = site.context.command();
    command.args(["up", "--listen", "none"]).args(more);
    Up(Running::start(command, "runs instances as").0)
}

const SERVES: &str =
    r#"command = ["/bin/busybox", "httpd", "-f", "-p", "[::]:8080", "-h", "/www"]"#;

#[test]
fn an_image_is_taken_on_server_and_node_once_its_limit_is_raised() {
    let site = site(SERVES);
    let _running = up(&site, &[]);
    make_env(&site);
    let limits = |words: &[&str]| {
        let words = [&["nodes", "image-limits", "set"], words].concat();
        site.succeeds(&words);
    };
    let shown = site.succeeds(&["nodes", "image-limits", "list"]);
    assert!(shown.contains("compressed_bytes"), "{shown}");
    assert!(shown.contains("1024GiB"), "{shown}");
    let finished = site.ends(2, &["nodes", "image-limits", "set", "layers=5000"]);
    assert!(
        finished.stderr.contains("from 1 to 1024"),
        "{}",
        finished.stderr
    );

    // The server takes it from the file: too many bytes, with limit and digest.
    limits(&["compressed_bytes=100KiB"]);
    let finished = site.ends(2, &["deploy"]);
    let said = &finished.stderr;
    assert!(said.contains("[image_too_large]"), "{said}");
    assert!(said.contains("the limit is 102400"), "{said}");
    assert!(said.contains("sha256:"), "{said}");

    // The node unpacks it: too many bytes, with limit and digest.
    limits(&["compressed_bytes=default", "unpacked_bytes=100KiB"]);
    site.succeeds(&["deploy", "--no-wait"]);
    let failed = wait_for("an instance that fails", LONG, || {
        let list = site.json(0, &["instances", "list"]);
        let items = list["items"].as_array().unwrap().iter();
        let mut failed = items.filter(|it| it["observed"]["reason_code"] == "image_too_large");
        failed.next().cloned()
    });
    let failed = failed.unwrap();
    let detail = failed["observed"]["reason_detail"].as_str().unwrap();
    assert!(
        detail.contains("more bytes, unpacked, than 102400"),
        "{detail}"
    );
    assert!(detail.contains("sha256:"), "{detail}");

    // Raised, the same image runs; what failed for good is not in the way.
    limits(&["unpacked_bytes=default"]);
    site.succeeds(&["envs", "create", "next"]);
    site.succeeds(&["deploy", "--env", "next"]);
}

/// What the platform serves at an address of this machine.
fn read(address: &str, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .ok()?;
    let question = format!("GET {path} HTTP/1.0\r\n\r\n");
    stream.write_all(question.as_bytes()).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}

fn entries(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap();
    let lines = text.lines();
    lines.map(|it| serde_json::from_str(it).unwrap()).collect()
}

#[test]
fn more_lines_than_one_answer_holds_are_exported_and_their_org_is_told() {
    let script = format!(
        "i=0; while [ $i -lt {TIMES} ]; do i=$((i + 1)); \
         /bin/busybox seq $(((i - 1) * {EACH} + 1)) $((i * {EACH})); /bin/busybox sleep 1; done; \
         exec /bin/busybox httpd -f -p [::]:8080 -h /www"
    );
    let command = json!(["/bin/sh", "-c", script]);
    let site = site(&format!(
        "command = {command}\nports = [{{ internal = 8080 }}]"
    ));
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let metrics = free.local_addr().unwrap().to_string();
    drop(free);
    let _running = up(&site, &["--metrics", &metrics]);
    make_env(&site);
    site.succeeds(&["deploy"]);
    reach(&site, 1);
    let all = TIMES * EACH;
    let last = all.to_string();
    wait_for("the last line", LONG, || {
        let shown = site.json(0, &["logs", "--tail", "10", "--stream", "stdout"]);
        let items = shown["data"]["items"].as_array().unwrap().clone();
        items.iter().any(|it| it["line"] == last).then_some(())
    })
    .unwrap();
    // One answer does not hold them.
    let shown = site.json(0, &["logs", "--tail", "10000", "--stream", "stdout"]);
    assert_eq!(shown["data"]["items"].as_array().unwrap().len(), 10_000);

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("all.ndjson");
    let name = file.to_str().unwrap();
    let words = [
        "logs", "export", "--since", "30m", "--stream", "stdout", "-o", name,
    ];
    let finished = site.ends(0, &words);
    assert!(finished.stderr.contains("exported"), "{}", finished.stderr);
    let entries = entries(&file);
    let lines = entries.iter().filter(|it| it["kind"] == "LogLine");
    let lines: Vec<&str> = lines
        .map(|it| it["data"]["line"].as_str().unwrap())
        .collect();
    let wanted: Vec<String> = (1..=all).map(|number| number.to_string()).collect();
    assert!(lines == wanted, "{} lines of {all}", lines.len());
    assert!(!entries.iter().any(|it| it["kind"] == "LogGap"));
    let accessed = site.json(
        0,
        &[
            "events",
            "list",
            "--types",
            "logs.accessed",
            "--limit",
            "200",
        ],
    );
    let items = accessed["items"].as_array().unwrap().iter();
    assert!(items.filter(|it| it["payload"]["mode"] == "export").count() >= 3);

    // Its share of a day is smaller than what it printed: said at each level,
    // once, however often it is looked at.
    site.succeeds(&["quotas", "set", "log_bytes_per_day=10KiB"]);
    let told = || {
        let list = site.json(0, &["events", "list", "--types", "org.log_quota_reached"]);
        let items = list["items"].as_array().unwrap().iter();
        items
            .map(|it| it["payload"]["percent"].as_u64().unwrap())
            .collect::<Vec<_>>()
    };
    wait_for("the org is told", LONG, || {
        (told().len() >= 2).then_some(())
    })
    .unwrap();
    let status = site.succeeds(&["status"]);
    assert!(status.contains("logs_sampled"), "{status}");
    assert!(status.starts_with("healthy"), "{status}");

    // What was carried and what waits is told at one place.
    let status = site.json(0, &["status"])["data"].clone();
    let address = status["routes"][0]["address"].as_str().unwrap().to_owned();
    for _ in 0..3 {
        let served = read(&address, "/").unwrap();
        assert!(served.ends_with("hello from an instance\n"), "{served}");
    }
    let port = address.rsplit(':').next().unwrap();
    let carried = format!("fluffy_edge_connections_total{{port=\"{port}\",result=\"closed\"}} 3\n");
    let text = wait_for("what was carried is counted", LONG, || {
        let text = read(&metrics, "/metrics")?;
        text.contains(&carried).then_some(text)
    })
    .unwrap();
    for part in [
        "fluffy_edge_routes 1\n",
        "fluffy_edge_backends{state=\"up\"} 1\n",
        "fluffy_edge_config_stale_seconds 0\n",
        "fluffy_edge_upstream_connect_seconds_count 3\n",
        "fluffy_log_ship_lag_seconds 0\n",
        &format!("fluffy_log_lines_total{{kind=\"workload\"}} {all}\n"),
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    // Nothing in a label names an instance, an env or an app.
    for line in text.lines().filter(|line| line.contains('{')) {
        for word in ["inst_", "env_", "app_", "org_", "rt_", "hello", "127.0.0.1"] {
            assert!(!line.contains(word), "{line}");
        }
    }
    assert_eq!(told(), [80, 100]);
}
