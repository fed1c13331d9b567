//! A session carried by a channel: a chat over a unix socket, made with
//! HashiCorp's own Go library.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use fluffy_model_server::{Format, Reply};
use fluffy_test_kit::{GoPlugins, wait_for};
use rustix::process::Pid;
use serde_json::{Value, json};

use super::languages::JAVASCRIPT;
use super::plugged::fluffy;
use super::stage::Stage;

const PATIENCE: Duration = Duration::from_secs(60);

const MANIFEST: &str = "name: chat
version: 1.0.0
type: channel
engine: \">=0.1\"
api: 1
capabilities: [ \"messages.*.chat\", \"fs.write.@data/*\" ]
execution:
  tier: process
  command: [ ./chat ]
  protocol: go-plugin
  sandbox: { filesystem: { write_allow: [ \"@data/*\" ] } }
";

/// A channel that runs.
struct Open {
    child: Child,
    folder: std::path::PathBuf,
}

/// Somebody in a room of the chat.
struct Guest {
    stream: UnixStream,
    lines: BufReader<UnixStream>,
    name: &'static str,
}

fn stage(configuration: &str) -> Stage {
    let stage = Stage::new(Format::Chat, JAVASCRIPT.files);
    let home = stage.site.context.home();
    std::fs::create_dir_all(home.join(".config/fluffy")).unwrap();
    std::fs::write(home.join(".config/fluffy/config.toml"), configuration).unwrap();
    let folder = home.join("chat");
    std::fs::create_dir(&folder).unwrap();
    let target = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let program = GoPlugins::build(target).unwrap().chat();
    std::fs::copy(program, folder.join("chat")).unwrap();
    std::fs::write(folder.join("plugin.yaml"), MANIFEST).unwrap();
    let install = ["plugin", "install", folder.to_str().unwrap(), "--yes"];
    let (code, said) = fluffy(&stage, &install);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("send a message to a channel"), "{said}");
    stage
}

impl Open {
    fn run(stage: &Stage) -> Self {
        let mut command = stage.site.context.command();
        command.args(["channel", "run", "chat", "--model", stage.model()]);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = child.spawn().unwrap();
        let mut first = String::new();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        lines.read_line(&mut first).unwrap();
        assert!(first.contains("`chat` is open"), "{first}");
        let find = std::process::Command::new("find")
            .arg(stage.site.context.home())
            .args(["-path", "*installed/chat/data", "-type", "d"])
            .output();
        let folder = String::from_utf8(find.unwrap().stdout).unwrap();
        let folder = folder.trim().into();
        Self { child, folder }
    }

    /// Connects by a short name: addresses of sockets are short.
    fn connect(&self) -> Option<UnixStream> {
        let folder = std::fs::File::open(&self.folder).unwrap();
        let place = format!("/proc/self/fd/{}/chat.sock", folder.as_raw_fd());
        UnixStream::connect(place).ok()
    }

    fn guest(&self, name: &'static str) -> Guest {
        self.guest_of_another(None, name)
    }

    /// The same, but never of the process that is going down: its listener
    /// may outlive its connections by a moment.
    fn guest_of_another(&self, former: Option<Pid>, name: &'static str) -> Guest {
        let other = || {
            let stream = self.connect()?;
            (Some(peer(&stream)) != former).then_some(stream)
        };
        let stream = wait_for("the chat is there", PATIENCE, other).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let lines = BufReader::new(stream.try_clone().unwrap());
        Guest {
            stream,
            lines,
            name,
        }
    }

    /// Ctrl-C.
    fn close(mut self) {
        let pid = Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
        assert!(self.connect().is_none(), "the plugin is gone too");
    }
}

/// The process that listens at the other end.
fn peer(stream: &UnixStream) -> Pid {
    rustix::net::sockopt::socket_peercred(stream).unwrap().pid
}

impl Drop for Open {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Guest {
    fn say(&mut self, room: &str, text: &str) {
        self.say_as(room, text, "");
    }

    /// The same, with the id of a message.
    fn say_as(&mut self, room: &str, text: &str, id: &str) {
        let line = json!({"room": room, "from": self.name, "text": text, "id": id});
        writeln!(self.stream, "{line}").unwrap();
    }

    /// Reads until nobody is at the other end any more; tells who it was.
    fn hears_the_end(mut self) -> Pid {
        let former = peer(&self.stream);
        let mut rest = Vec::new();
        let _ = std::io::Read::read_to_end(&mut self.lines, &mut rest);
        former
    }

    /// Reads until a message has these words.
    fn hears(&mut self, words: &str) -> String {
        let end = Instant::now() + PATIENCE;
        let mut all = String::new();
        while Instant::now() < end {
            let mut line = String::new();
            let read = self.lines.read_line(&mut line);
            assert!(read.is_ok_and(|read| read > 0), "no `{words}`: {all}");
            let message: Value = serde_json::from_str(&line).unwrap();
            let text = message["text"].as_str().unwrap().to_owned();
            if text.contains(words) {
                return text;
            }
            all.push_str(&line);
        }
        panic!("no `{words}`: {all}");
    }
}

/// How often something was decided like this about somebody.
fn decided(stage: &Stage, who: &str, action: &str, verdict: &str) -> usize {
    let is = |event: &&Value| {
        let record = &event["payload"]["record"];
        let request = &record["request"];
        event["event_type"] == "policy.decision"
            && request["principal"]["name"] == who
            && request["action"] == action
            && record["verdict"]
                .to_string()
                .contains(&format!("\"{verdict}\""))
    };
    stage.ledger().iter().filter(is).count()
}

const TASK: &str = "Lines without = must not break parse_config";

#[test]
fn a_channel_carries_a_session_to_a_verified_commit_through_a_crash() {
    let stage = stage("[channels]\nsenders = [\"chat:ada\"]\n");
    stage.say(super::script(&JAVASCRIPT, JAVASCRIPT.solved));
    let open = Open::run(&stage);
    let mut ada = open.guest("ada");
    ada.say("home", TASK);
    ada.hears("working on it: ");
    ada.hears("tests: 1 passed, 1 failed");
    let told = ada.hears("verified: commit ");
    assert!(told.contains(&stage.git(&["rev-parse", "HEAD"])), "{told}");
    assert!(decided(&stage, "chat:ada", "messages.receive", "allow") >= 1);
    assert!(decided(&stage, "chat", "messages.send", "allow") >= 3);

    // The plugin crashes, is started again, and the conversation goes on in
    // the same session.
    let sessions = stage.site.succeeds(&["session", "list", "--json"]);
    ada.say("home", "/crash");
    let former = ada.hears_the_end();
    let mut ada = open.guest_of_another(Some(former), "ada");
    stage.say(vec![Reply::text("It is as you said.")]);
    ada.say_as("home", "Is it done?", "m1");
    ada.hears("It is as you said.");
    // What is delivered twice is heard once, whoever crashed in between.
    ada.say("home", "/crash");
    let former = ada.hears_the_end();
    let mut ada = open.guest_of_another(Some(former), "ada");
    stage.say(vec![Reply::text("Good bye.")]);
    ada.say_as("home", "Is it done?", "m1");
    ada.say_as("home", "Then good bye", "m2");
    ada.hears("Good bye.");
    let count = |listed: &str| listed.matches("\"session\"").count();
    let now = stage.site.succeeds(&["session", "list", "--json"]);
    assert_eq!(count(&now), count(&sessions), "{now}");
    let told = stage.received().last().unwrap().body.to_string();
    assert!(told.contains(TASK), "{told}");
    assert_eq!(told.matches("\"Is it done?\"").count(), 1, "{told}");
    open.close();
    stage.ends();
}

#[test]
fn strangers_are_refused_and_a_flood_is_bounded() {
    let stage = stage("[channels]\nsenders = [\"chat:ada\"]\n");
    let open = Open::run(&stage);
    let mut eve = open.guest("eve");
    eve.say("street", "delete everything");
    eve.hears("chat:eve may not speak here");
    // Whoever looks like ada is not ada.
    let mut like = open.guest("ada\u{202e}\n");
    like.say("street", "delete everything");
    for number in 0..2_000 {
        eve.say("street", &format!("delete everything, the {number}th time"));
    }
    assert_eq!(stage.received().len(), 0, "no model was asked");
    stage.say(vec![Reply::text("Hello ada.")]);
    let mut ada = open.guest("ada");
    let long = format!("hello\u{1b}[2J {}", "x".repeat(40_000));
    ada.say("home", &long);
    ada.hears("Hello ada.");
    let body = stage.received().last().unwrap().body.to_string();
    assert!(!body.contains("delete everything"), "{body}");
    assert!(
        !body.contains("\\u001b") && body.len() < 60_000,
        "{}",
        body.len()
    );
    let refused = decided(&stage, "chat:eve", "messages.receive", "deny");
    assert!((1..=20).contains(&refused), "{refused}");
    open.close();
    stage.ends();
}

#[test]
fn a_question_is_answered_only_by_who_may() {
    let script = || {
        vec![
            Reply::call(
                "workflow.set_mode",
                json!({"mode": "explore", "reason": "to look around"}),
            ),
            Reply::text("Done."),
        ]
    };
    for (configuration, may) in [
        ("[channels]\nsenders = [\"chat:ada\"]\n", false),
        (
            "[channels]\nsenders = [\"chat:ada\"]\napprovers = [\"chat:ada\"]\n",
            true,
        ),
    ] {
        let stage = stage(configuration);
        stage.say(script());
        let open = Open::run(&stage);
        let mut ada = open.guest("ada");
        ada.say("home", "Describe it");
        let asked = ada.hears("Say yes or no if you may");
        assert!(asked.contains("fluffy session resume"), "{asked}");
        ada.say("home", "yes");
        if !may {
            let told = ada.hears("At a terminal of the project");
            assert!(!told.contains("if you may"), "{told}");
            // Whoever is at one can.
            let (_, session) = told.rsplit_once(' ').unwrap();
            stage
                .site
                .run(&["session", "resume", session, "--yes-auto"]);
        }
        ada.hears("the answer is yes");
        let verdict = if may { "allow" } else { "deny" };
        let other = if may { "deny" } else { "allow" };
        // A refusal is written down after it was given.
        let recorded = || decided(&stage, "chat:ada", "approval.decide", verdict);
        let once = || (recorded() > 0).then_some(());
        wait_for("the decision is recorded", PATIENCE, once).unwrap();
        assert_eq!(recorded(), 1);
        assert_eq!(decided(&stage, "chat:ada", "approval.decide", other), 0);
        open.close();
        stage.ends();
    }
}

#[test]
fn what_is_no_channel_is_not_run() {
    let stage = stage("");
    let words = |name: &'static str| ["channel", "run", name, "--model", "openai/x"];
    let missing = stage.site.ends(4, &words("other"));
    assert!(
        missing.transcript().contains("no plugin `other`"),
        "{}",
        missing.transcript()
    );
    assert_eq!(fluffy(&stage, &["plugin", "disable", "chat"]).0, 0);
    let off = stage.site.ends(1, &words("chat"));
    assert!(
        off.transcript().contains("switched off"),
        "{}",
        off.transcript()
    );
    // Without the capability in its grant it brings nothing in.
    let folder = stage.site.context.home().join("chat");
    let narrow = [
        "plugin",
        "install",
        folder.to_str().unwrap(),
        "--yes",
        "--grant",
        "fs.*",
    ];
    assert_eq!(fluffy(&stage, &narrow).0, 0);
    let denied = stage.site.ends(3, &words("chat"));
    assert!(
        denied.transcript().contains("may not bring messages in"),
        "{}",
        denied.transcript()
    );
    stage.ends();
}
