//! `fluffy plugin` without a session: settings, archives, what came along.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use fluffy_test_kit::{EngineKind, GoPlugins, TestEngine, record_skip};
use serde_json::Value;

use crate::site::{Site, files};

const SECRET: &str = "waffle-7f3a-marked-secret";

const MANIFEST: &str = "name: tracker
version: 1.0.0
type: tool
engine: \">=0.1\"
api: 1
capabilities: [ config.read.self ]
execution:
  tier: process
  command: [ python3, \"-u\", server.py ]
  protocol: mcp
  env: { TOKEN: \"@config.token\" }
config_schema:
  required: [ token, url ]
  properties:
    token: { type: string, secret: true, minLength: 8 }
    url: { type: string, description: Where it is }
    retries: { type: integer, maximum: 5, default: 2 }
";

/// Starts with its token only, and says it wherever it can.
const SERVER: &str = r#"
import json, os, sys
token = os.environ["TOKEN"]
print("here is " + token, file=sys.stderr, flush=True)
tool = {"name": "count", "description": "Counts " + str(len(token)), "inputSchema": {"type": "object"}}
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked: continue
    said = {"jsonrpc": "2.0", "id": asked["id"]}
    if asked["method"] == "server/discover":
        said["result"] = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "resultType": "complete"}
    elif asked["method"] == "tools/list": said["result"] = {"tools": [tool], "resultType": "complete"}
    else: said["error"] = {"code": -32601, "message": "no"}
    print(json.dumps(said), flush=True)
"#;

/// Runs with this on standard input.
fn piped(site: &Site, words: &[&str], input: &str) -> (Option<i32>, String) {
    let mut command = site.context.command();
    command.args(words).stdin(Stdio::piped());
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pipe = child.stdin.take().unwrap();
    // One that refuses its words does not read.
    let _ = pipe.write_all(input.as_bytes());
    drop(pipe);
    let done = child.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let said = text(&done.stdout) + &text(&done.stderr);
    (done.status.code(), said)
}

/// Without the ends of lines, which depend on the width.
fn plain(said: &str) -> String {
    said.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn write(folder: &Path, manifest: &str) -> String {
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join("plugin.yaml"), manifest).unwrap();
    std::fs::write(folder.join("server.py"), SERVER).unwrap();
    folder.to_str().unwrap().to_owned()
}

#[test]
fn a_plugin_waits_for_its_settings_and_its_secret_is_shown_nowhere() {
    let site = Site::initialised();
    let folder = write(&site.context.home().join("tracker"), MANIFEST);
    let mut shown = String::new();
    let mut run = |words: &[&str], input: &str, code: i32| {
        let (ended, said) = piped(&site, words, input);
        assert_eq!(ended, Some(code), "{words:?}\n{said}");
        shown.push_str(&said);
        said
    };
    let install = ["plugin", "install", &folder, "--yes"];
    let said = run(&install, "", 1);
    for words in [
        "does not run yet",
        "fluffy plugin config tracker --secret token",
        "fluffy plugin config tracker url=VALUE",
    ] {
        assert!(plain(&said).contains(words), "{words}\n{said}");
    }
    let config = |words: &[&'static str]| [&["plugin", "config", "tracker"], words].concat();
    // What a person could mistype, each with what to do instead.
    for (words, input, expected) in [
        (["token=shown-in-history"], "", "reads it unseen"),
        (["url"], "", "KEY=VALUE"),
        (["uri=x"], "", "it has retries, token, url"),
        (["retries=9"], "", "it is not 5 or less"),
        (["--secret=url"], SECRET, "is no secret"),
        (["--secret=token"], "short", "it has not between 8"),
        (["--secret=token"], "", "the secret is empty"),
        (["--unset=gone"], "", "there is no setting `gone`"),
    ] {
        let said = run(&config(&words), input, 2);
        assert!(plain(&said).contains(expected), "{expected}\n{said}");
        assert!(!said.contains("shown-in-history"), "{said}");
    }
    let line = format!("{SECRET}\n");
    run(&config(&["--secret", "token"]), &line, 0);
    let said = run(&config(&["url=https://x", "retries=3", "--json"]), "", 0);
    let listed: Value = serde_json::from_str(&said).unwrap();
    let row = |name: &str| {
        let rows = listed["settings"].as_array().unwrap();
        rows.iter().find(|row| row["name"] == name).unwrap().clone()
    };
    assert_eq!(row("token")["state"], "set");
    assert_eq!(row("token")["value"], Value::Null);
    assert_eq!(row("retries")["value"], 3);
    let said = run(&config(&["--unset", "retries"]), "", 0);
    assert!(
        said.contains("(secret)") && said.contains("default"),
        "{said}"
    );
    // It starts only with its token, whose length it tells: the control.
    let said = run(&install, "", 0);
    assert!(said.contains(&format!("Counts {}", SECRET.len())), "{said}");
    let said = run(&["plugin", "logs", "tracker"], "", 0);
    assert!(said.contains("here is ⟦redacted⟧"), "{said}");
    for words in [
        ["plugin", "inspect", "tracker", "--json"].as_slice(),
        &["plugin", "list", "--json"],
        &["plugin", "logs", "tracker", "--json"],
        &["audit", "log", "--json"],
        &["audit", "export"],
    ] {
        run(words, "", 0);
    }
    assert!(!shown.contains(SECRET), "{shown}");
    let holds = |file: &Path| {
        let bytes = std::fs::read(file).unwrap_or_default();
        let mut windows = bytes.windows(SECRET.len());
        windows.any(|window| window == SECRET.as_bytes())
    };
    let places = [site.context.home(), site.context.project()];
    let found: Vec<_> = places.iter().flat_map(|place| files(place)).collect();
    for file in &found {
        assert!(!holds(file), "{}", file.display());
    }
    let planted = site.context.write("planted", SECRET).unwrap();
    assert!(holds(&planted), "the search finds what is there");
}

#[test]
fn an_archive_is_installed_like_its_folder_and_a_hostile_one_leaves_nothing() {
    let site = Site::initialised();
    let home = site.context.home();
    let manifest = MANIFEST.split("  env:").next().unwrap();
    let manifest = manifest.replace("name: tracker", "name: packed");
    write(&home.join("packed"), &manifest);
    let server = SERVER.replace("os.environ[\"TOKEN\"]", "\"none\"");
    std::fs::write(home.join("packed/server.py"), server).unwrap();
    let tar = |words: &[&str]| {
        let mut tar = std::process::Command::new("tar");
        let done = tar.args(words).current_dir(&home).status();
        assert!(done.unwrap().success());
    };
    tar(&["-czf", "packed.tar.gz", "packed"]);
    // The same with a link that leads to a file of the person's.
    std::os::unix::fs::symlink("../../.profile", home.join("packed/out")).unwrap();
    tar(&["-czf", "hostile.tar.gz", "packed"]);
    let path = |name: &str| home.join(name).to_str().unwrap().to_owned();
    let plugins = site.state().join("plugins");
    let install = |name: &str| ["plugin", "install", &path(name), "--yes"].map(str::to_owned);
    let run = |words: &[String], code: i32| {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let (ended, said) = piped(&site, &words, "");
        assert_eq!(ended, Some(code), "{words:?}\n{said}");
        plain(&said)
    };
    let said = run(&install("hostile.tar.gz"), 2);
    assert!(
        said.contains("`packed/out` is a link that leads out"),
        "{said}"
    );
    let left = |folder: &str| files(&plugins.join(folder));
    assert!(left("installed").is_empty() && left("m").is_empty());
    let said = run(
        &["plugin", "inspect", &path("packed.tar.gz")].map(str::to_owned),
        0,
    );
    assert!(said.contains("packed 1.0.0"), "{said}");
    run(&install("packed.tar.gz"), 0);
    assert!(!left("installed").is_empty() && left("m").is_empty());
    let shown = run(&["plugin", "inspect", "packed"].map(str::to_owned), 0);
    assert!(shown.contains("packed.tar.gz"), "{shown}");
}

/// Says in its log what it can do to the machine around it.
const PROBE: &str = r#"
import os, socket, sys
home, port, engine = sys.argv[1:4]
def works(what):
    try:
        what()
        return "yes"
    except OSError:
        return "no"
def connect(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as one:
        one.settimeout(5)
        one.connect(address)
facts = {
    "reads-home": lambda: open(home + "/private").read(),
    "writes-home": lambda: open(home + "/planted", "w"),
    "reaches-host": lambda: connect(socket.AF_INET, ("127.0.0.1", int(port))),
    "reaches-engine": lambda: connect(socket.AF_UNIX, engine),
}
for name, what in facts.items():
    print(name + "=" + works(what), file=sys.stderr, flush=True)
"#;

/// An imagined user with this engine, if it can be had.
fn with_engine(kind: EngineKind) -> Option<(Site, PathBuf)> {
    let socket = match kind.for_tests().unwrap() {
        TestEngine::At(socket) => socket,
        TestEngine::Impossible(reason) => {
            record_skip(&format!("plugins on {}", kind.name()), &reason);
            return None;
        }
    };
    let mut site = Site::initialised();
    let host = format!("unix://{}", socket.display());
    site.context.set("DOCKER_HOST", &host);
    Some((site, socket))
}

fn docker(socket: &Path, words: &[&str]) -> std::process::Command {
    let mut docker = std::process::Command::new("docker");
    docker.env("DOCKER_HOST", format!("unix://{}", socket.display()));
    docker.args(words);
    docker
}

#[test]
fn a_program_runs_in_a_container_where_there_is_an_engine_and_sees_nothing_else() {
    for kind in [EngineKind::Docker, EngineKind::Podman] {
        let Some((site, socket)) = with_engine(kind) else {
            continue;
        };
        let home = site.context.home();
        std::fs::write(home.join("private"), "mine").unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        let home_text = home.to_str().unwrap();
        let engine = socket.to_str().unwrap();
        let manifest = format!(
            "name: probe\nversion: 1.0.0\ntype: tool\nengine: \">=0.1\"\napi: 1\nexecution:\n  \
             tier: process\n  command: [ python3, \"-u\", server.py, \"{home_text}\", \"{port}\", \
             \"{engine}\" ]\n  protocol: mcp\n"
        );
        let folder = write(&home.join("probe"), &manifest);
        let server = SERVER.replace("os.environ[\"TOKEN\"]", "\"none\"");
        let program = home.join("probe/server.py");
        std::fs::write(&program, format!("{PROBE}\n{server}")).unwrap();
        // The control: on the bare machine all of it works.
        let bare = std::process::Command::new("python3")
            .arg(&program)
            .args([home_text, &port, engine])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let bare = String::from_utf8_lossy(&bare.stderr).into_owned();
        assert_eq!(bare.matches("=yes").count(), 4, "{bare}");
        std::fs::remove_file(home.join("planted")).unwrap();
        let (code, said) = piped(&site, &["plugin", "install", &folder, "--yes"], "");
        assert_eq!(code, Some(0), "{}: {said}", kind.name());
        let (_, log) = piped(&site, &["plugin", "logs", "probe"], "");
        assert!(log.contains("it runs in tier container"), "{log}");
        assert_eq!(log.matches("=no").count(), 4, "{}: {log}", kind.name());
        assert!(!home.join("planted").exists());
    }
}

#[test]
fn an_image_speaks_go_plugin_over_the_folder_they_share() {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let program = GoPlugins::build(target).unwrap().tool();
    for kind in [EngineKind::Docker, EngineKind::Podman] {
        let Some((site, socket)) = with_engine(kind) else {
            continue;
        };
        let home = site.context.home();
        let root = home.join("root");
        std::fs::create_dir_all(root.join("tmp")).unwrap();
        std::fs::copy(&program, root.join("tool")).unwrap();
        let name = format!("fluffy-plugin-{}", std::process::id());
        let mut tar = std::process::Command::new("tar")
            .args(["-c", "-C", root.to_str().unwrap(), "."])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let import = docker(&socket, &["import", "-", &name])
            .stdin(tar.stdout.take().unwrap())
            .output()
            .unwrap();
        assert!(
            tar.wait().unwrap().success() && import.status.success(),
            "{import:?}"
        );
        let folder = home.join("boxed");
        std::fs::create_dir(&folder).unwrap();
        let manifest = format!(
            "name: boxed\nversion: 1.0.0\ntype: tool\nengine: \">=0.1\"\napi: 1\n\
             capabilities: [ \"kv.*\" ]\nexecution:\n  tier: container\n  \
             image: \"{name}:latest\"\n  command: [ /tool ]\n  protocol: go-plugin\n"
        );
        std::fs::write(folder.join("plugin.yaml"), manifest).unwrap();
        let folder = folder.to_str().unwrap();
        let (code, said) = piped(&site, &["plugin", "install", folder, "--yes"], "");
        let removed = docker(&socket, &["rmi", "--force", &name]).output();
        assert!(removed.unwrap().status.success());
        assert_eq!(code, Some(0), "{}: {said}", kind.name());
        assert!(said.contains("set  "), "{said}");
        let (_, log) = piped(&site, &["plugin", "logs", "boxed"], "");
        assert!(log.contains("it runs in tier container"), "{log}");
    }
}

#[test]
fn without_an_engine_an_image_is_refused_and_a_program_runs_as_it_declares() {
    let mut site = Site::initialised();
    site.context
        .set("DOCKER_HOST", "unix:///nonexistent/engine.sock");
    let home = site.context.home();
    let manifest = MANIFEST.split("  env:").next().unwrap();
    let program = write(&home.join("tracker"), manifest);
    let server = SERVER.replace("os.environ[\"TOKEN\"]", "\"none\"");
    std::fs::write(home.join("tracker/server.py"), server).unwrap();
    let (code, said) = piped(&site, &["plugin", "install", &program, "--yes"], "");
    assert_eq!(code, Some(0), "{said}");
    let (_, log) = piped(&site, &["plugin", "logs", "tracker"], "");
    assert!(log.contains("it runs in tier process"), "{log}");
    let image = manifest
        .replace("name: tracker", "name: boxed")
        .replace("tier: process", "tier: container\n  image: some/image");
    let image = write(&home.join("boxed"), &image);
    let (code, said) = piped(&site, &["plugin", "install", &image, "--yes"], "");
    assert_eq!(code, Some(1), "{said}");
    let said = plain(&said);
    assert!(
        said.contains("tier `container` is not to be had here"),
        "{said}"
    );
    assert!(said.contains("/nonexistent/engine.sock"), "{said}");
}

#[test]
fn what_came_along_is_listed_from_the_same_manifests() {
    let site = Site::initialised();
    let (code, said) = piped(&site, &["plugin", "list", "--built-in"], "");
    assert_eq!(code, Some(0), "{said}");
    for words in [
        "fs.read reads Read a file",
        "shell.exec acts Run a shell command",
    ] {
        assert!(plain(&said).contains(words), "{words}\n{said}");
    }
    let (_, said) = piped(&site, &["plugin", "list", "--built-in", "--json"], "");
    let listed: Value = serde_json::from_str(&said).unwrap();
    let families = listed["built_in"].as_array().unwrap();
    let names: Vec<&str> = (families.iter())
        .map(|family| family["name"].as_str().unwrap())
        .collect();
    let all = [
        "fs", "git", "plan", "sandbox", "search", "shell", "test", "workflow",
    ];
    assert_eq!(names, all);
    assert_eq!(
        families[5]["capabilities"],
        serde_json::json!(["shell.exec"])
    );
}
