//! A repository, a model that plays a script, and the real `fluffy run`.
//!
//! Everything between the command line and the model's socket is real: the
//! kernel, its sandboxes, the proxy, the workflow, the ledger, git. The model
//! says one prepared reply after the other and remembers what it was told.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use fluffy_model_server::{Conversation, Format, ModelServer, Options, Received, Reply};
use fluffy_test_kit::{Finished, wait_for};
use serde_json::Value;

use crate::agent::socket;
use crate::site::Site;

pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// What the model will say, and what it was told.
#[derive(Debug, Default)]
struct Play {
    replies: VecDeque<Reply>,
    told: Vec<String>,
    /// Said for ever when nothing else is left.
    then: Reply,
    /// What it says depends on how far the conversation is, as with a model
    /// that is asked the same again.
    by_turn: Option<Vec<Reply>>,
    /// It says what it is given, when it is given it.
    given: Option<mpsc::Receiver<Reply>>,
    /// What it says depends on where the workflow stands, as with a model that
    /// tries again what did not work.
    by_state: Option<fn(&str) -> Reply>,
    /// What it says depends on what was said, as with several sessions at once.
    by_conversation: Option<fn(&Conversation) -> Reply>,
}

/// A project with a model.
pub(crate) struct Stage {
    pub(crate) site: Site,
    server: ModelServer,
    play: Arc<Mutex<Play>>,
    model: &'static str,
    first_commit: String,
}

/// What one run left behind.
#[derive(Debug, Clone)]
pub(crate) struct Played {
    pub(crate) code: i32,
    /// The stream, as it was printed.
    pub(crate) events: Vec<Value>,
    /// What the model was told after each of its replies.
    pub(crate) told: Vec<String>,
    pub(crate) transcript: String,
}

/// One ended call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) tool: String,
    pub(crate) outcome: String,
    pub(crate) summary: String,
}

impl Stage {
    /// A repository with these files, and a model that speaks this format.
    pub(crate) fn new(format: Format, files: &[(&str, &str)]) -> Self {
        Self::with(Options::default(), format, files)
    }

    /// The same with another server.
    pub(crate) fn with(options: Options, format: Format, files: &[(&str, &str)]) -> Self {
        let mut site = Site::empty();
        let play = Arc::new(Mutex::new(Play {
            then: Reply::text("I have nothing more to say."),
            ..Play::default()
        }));
        let mind = Arc::clone(&play);
        let server = ModelServer::start(options, move |conversation| {
            let mut play = mind.lock().unwrap();
            let results = conversation.last_results();
            let told: Vec<&str> = results.iter().map(|one| one.content.as_str()).collect();
            play.told.push(told.join("\n"));
            let then = play.then.clone();
            if let Some(given) = &play.given {
                return given.recv_timeout(PATIENCE).unwrap_or(then);
            }
            if let Some(say) = play.by_conversation {
                return say(conversation);
            }
            if let Some(say) = play.by_state {
                return say(state(conversation));
            }
            if let Some(replies) = &play.by_turn {
                return replies.get(conversation.turns()).cloned().unwrap_or(then);
            }
            play.replies.pop_front().unwrap_or(then)
        })
        .unwrap();
        let model = choose(&mut site, &server, format);
        site.context
            .set("PATH", &tools())
            .set("FLUFFY_KERNEL_LINGER", "1");
        for (path, text) in files {
            site.context.write(path, text).unwrap();
        }
        let stage = Self {
            site,
            server,
            play,
            model,
            first_commit: String::new(),
        };
        stage.git(&["init", "-q", "-b", "main"]);
        stage.git(&["add", "-A"]);
        stage.git(&["commit", "-q", "-m", "before"]);
        let first_commit = stage.git(&["rev-parse", "HEAD"]);
        Self {
            first_commit,
            ..stage
        }
    }

    /// Works on a task with a model that says this.
    pub(crate) fn play(&self, replies: Vec<Reply>) -> Played {
        self.play_with(&[], replies)
    }

    /// The same with more words on the command line.
    pub(crate) fn play_with(&self, words: &[&str], replies: Vec<Reply>) -> Played {
        let task = "Lines without = must not break parse_config";
        self.play_task(words, task, replies)
    }

    /// The same for another task.
    pub(crate) fn play_task(&self, words: &[&str], task: &str, replies: Vec<Reply>) -> Played {
        let start = ["run", "--json", "--model", self.model];
        self.play_on(&[&start[..], words, &[task]].concat(), replies)
    }

    /// Runs any command with a model that says this.
    pub(crate) fn play_on(&self, words: &[&str], replies: Vec<Reply>) -> Played {
        {
            let mut play = self.play.lock().unwrap();
            play.replies = replies.into();
            play.told.clear();
        }
        let finished = self.site.run(words);
        let told = self.play.lock().unwrap().told.clone();
        // The first request holds no result yet.
        Played::of(&finished, told.into_iter().skip(1).collect())
    }

    /// Plays a recording.
    pub(crate) fn replay(&self, recording: &str) -> Played {
        let file = self.site.context.home().join("session.jsonl");
        std::fs::write(&file, recording).unwrap();
        let words = ["replay", "--json", file.to_str().unwrap()];
        Played::of(&self.site.run(&words), Vec::new())
    }

    /// What the model says from now on.
    pub(crate) fn say(&self, replies: Vec<Reply>) {
        self.play.lock().unwrap().replies = replies.into();
    }

    /// The words of a run with a model that says what fits the conversation.
    pub(crate) fn prepare(&self, replies: Vec<Reply>) -> Vec<String> {
        self.play.lock().unwrap().by_turn = Some(replies);
        self.words()
    }

    /// The words of a run with a model that says what fits the workflow.
    pub(crate) fn prepare_by_state(&self, say: fn(&str) -> Reply) -> Vec<String> {
        self.play.lock().unwrap().by_state = Some(say);
        self.words()
    }

    /// A model that says what fits what was said.
    pub(crate) fn answers_by(&self, say: fn(&Conversation) -> Reply) {
        self.play.lock().unwrap().by_conversation = Some(say);
    }

    fn words(&self) -> Vec<String> {
        let words = [
            "run",
            "--json",
            "--model",
            self.model,
            "Lines without = must not break parse_config",
        ];
        words.map(str::to_owned).to_vec()
    }

    /// A model that says nothing until it is given what to say.
    pub(crate) fn directed(&self) -> mpsc::Sender<Reply> {
        let (give, given) = mpsc::channel();
        self.play.lock().unwrap().given = Some(given);
        give
    }

    /// Waits until the model was asked this often; the newest request.
    pub(crate) fn asked(&self, times: usize) -> Value {
        let asked = || self.server.received().get(times - 1).cloned();
        let asked = wait_for("the model is asked", PATIENCE, asked);
        asked.unwrap().body
    }

    /// The name of its model.
    pub(crate) fn model(&self) -> &'static str {
        self.model
    }

    /// What the model says when its script is over.
    pub(crate) fn then(&self, reply: Reply) {
        self.play.lock().unwrap().then = reply;
    }

    /// Everything the model's server was sent.
    pub(crate) fn received(&self) -> Vec<Received> {
        assert_eq!(self.server.refused(), Vec::<String>::new());
        self.server.received()
    }

    /// What git prints in the project; must succeed.
    pub(crate) fn git(&self, words: &[&str]) -> String {
        let output = Command::new("git")
            .current_dir(self.site.context.project())
            .env("HOME", self.site.context.home())
            .args(["-c", "user.name=Ann", "-c", "user.email=ann@example.com"])
            .args(words)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        assert!(output.status.success(), "git {words:?}: {output:?}");
        text
    }

    /// The files of commits since the first, and their messages.
    pub(crate) fn commits(&self) -> (Vec<String>, String) {
        let range = format!("{}..HEAD", self.first_commit);
        let files = self.git(&["diff", "--name-only", &range]);
        let messages = self.git(&["log", "--format=%an%n%B", &range]);
        (files.lines().map(str::to_owned).collect(), messages)
    }

    /// Nothing is in the repository that was not there before.
    pub(crate) fn is_unchanged(&self) {
        assert_eq!(self.git(&["rev-parse", "HEAD"]), self.first_commit);
        assert_eq!(self.git(&["status", "--porcelain"]), "");
    }

    /// The same, but for what the test itself put there.
    pub(crate) fn is_unchanged_but(&self, own: &str) {
        assert_eq!(self.git(&["rev-parse", "HEAD"]), self.first_commit);
        let status = self.git(&["status", "--porcelain"]);
        let other = status.lines().find(|line| !line.contains(own));
        assert_eq!(other, None, "{status}");
    }

    pub(crate) fn file(&self, path: &str) -> PathBuf {
        self.site.project_file(path)
    }

    /// Events of the ledger, with their payloads.
    pub(crate) fn ledger(&self) -> Vec<Value> {
        self.site.succeeds(&["audit", "verify"]);
        let printed = self.site.succeeds(&["audit", "export"]);
        let lines = printed.lines().map(serde_json::from_str);
        lines.filter_map(Result::ok).collect()
    }

    /// Waits until the kernel has ended by itself.
    pub(crate) fn ends(self) {
        self.rests();
    }

    /// The same, to go on with another one.
    pub(crate) fn rests(&self) {
        let socket = socket(&self.site);
        wait_for("the kernel ends by itself", PATIENCE, || {
            (!socket.exists()).then_some(())
        })
        .unwrap();
    }
}

impl Played {
    fn of(finished: &Finished, told: Vec<String>) -> Self {
        let lines = finished.stdout.lines();
        let events = lines
            .map(|line| {
                serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"))
            })
            .collect();
        Self {
            code: finished.code.unwrap_or(-1),
            events,
            told,
            transcript: finished.transcript(),
        }
    }

    fn of_type(&self, kind: &str) -> impl Iterator<Item = &Value> {
        let kind = kind.to_owned();
        self.events
            .iter()
            .filter(move |event| event["type"] == kind)
    }

    /// The ended calls, in order; each was started before.
    pub(crate) fn calls(&self) -> Vec<Call> {
        let ended = self.of_type("tool.finished");
        ended
            .map(|event| {
                let started = |one: &&Value| one["call"] == event["call"];
                let count = self.of_type("tool.started").filter(started).count();
                assert!(count > 0, "never started: {event}");
                let text = |name: &str| event[name].as_str().unwrap().to_owned();
                Call {
                    tool: text("tool"),
                    outcome: text("outcome"),
                    summary: text("summary"),
                }
            })
            .collect()
    }

    /// How it ended.
    pub(crate) fn ended(&self) -> &Value {
        let ended: Vec<&Value> = self.of_type("session.ended").collect();
        assert_eq!(ended.len(), 1, "{}", self.transcript);
        assert_eq!(ended[0]["exit"], self.code, "{}", self.transcript);
        ended[0]
    }

    /// What happened, a few words each, without the model's own words.
    pub(crate) fn course(&self) -> Vec<String> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let course = self.events.iter().filter_map(|event| {
            Some(match event["type"].as_str()? {
                "session.started" => "started".to_owned(),
                "tool.finished" => format!("{} {}", text(&event["tool"]), text(&event["outcome"])),
                "workflow.changed" => format!("→ {}", text(&event["to"])),
                "tests.ran" => match event["failed"].as_array().map(Vec::len) {
                    Some(0) => "tests green".to_owned(),
                    _ => "tests red".to_owned(),
                },
                "session.ended" => format!("ended {}", text(&event["result"])),
                _ => return None,
            })
        });
        course.collect()
    }

    /// It did not end as done, and nothing says that it was verified.
    pub(crate) fn is_not_done(&self) {
        assert_ne!(self.code, 0, "{}", self.transcript);
        let ended = self.ended();
        assert_ne!(ended["result"], "verified");
        assert_eq!(
            ended["evidence"]["fail_to_pass"],
            serde_json::json!([]),
            "{ended}"
        );
        let said: Vec<String> = self.events.iter().map(ToString::to_string).collect();
        let says = |line: &&String| {
            let line = line.replace("unverified", "");
            line.contains("verified") && !line.contains("text.delta")
        };
        assert_eq!(said.iter().find(says), None);
    }
}

/// Where the workflow stands, by what the model is told of it.
fn state(conversation: &Conversation) -> &str {
    let (_, after) = conversation.system.split_once(", state ").unwrap();
    after.split_once(':').unwrap().0
}

/// Tells the program where the model is; its name.
fn choose(site: &mut Site, server: &ModelServer, format: Format) -> &'static str {
    let address = server.base_url(format);
    match format {
        Format::Responses => {
            let text =
                format!("[providers.openai]\nwire = \"responses\"\nbase_url = \"{address}\"\n");
            let folder = site.context.home().join(".config/fluffy");
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("config.toml"), text).unwrap();
            "openai/gpt-5.5"
        }
        Format::Chat => {
            site.context.set("OPENAI_BASE_URL", &address);
            "openai/some-model"
        }
        Format::Anthropic => {
            site.context.set("ANTHROPIC_BASE_URL", &address);
            "anthropic/claude-opus-4-8"
        }
        Format::Gemini => {
            site.context.set("GOOGLE_GEMINI_BASE_URL", &address);
            "google/gemini-3-pro"
        }
    }
}

/// Where programs are: the toolchain of these tests, and the system's own.
fn tools() -> String {
    let printed = Command::new("rustc").args(["--print", "sysroot"]).output();
    let sysroot = String::from_utf8(printed.unwrap().stdout).unwrap();
    format!("{}/bin:/usr/local/bin:/usr/bin:/bin", sysroot.trim())
}
