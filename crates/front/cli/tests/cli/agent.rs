//! `fluffy "task"` and `fluffy run` against a kernel that plays a script.
//!
//! Only the kernel's side of the socket is played; the program, the wire, the
//! pipes and the terminal are real.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fluffy_base::Digest;
use fluffy_kernel::api;
use fluffy_kernel::event::{AgentEvent, SessionResult};
use fluffy_test_kit::Finished;
use serde_json::Value;

use crate::fake::{Act, Fake, PATIENCE};
use crate::sample::{self, SESSION};
use crate::site::Site;

/// Where the kernel of a site's project has its socket.
pub(crate) fn socket(site: &Site) -> PathBuf {
    let project = site.context.project().canonicalize().unwrap();
    let digest = Digest::of(project.as_os_str().as_encoded_bytes()).to_string();
    site.state()
        .join("run")
        .join(&digest[..16])
        .join("kernel.sock")
}

/// A project with a kernel that plays this.
pub(crate) fn stage(acts: Vec<Act>) -> (Site, Fake) {
    let site = Site::initialised();
    let fake = Fake::serve(&socket(&site), SESSION, acts);
    (site, fake)
}

pub(crate) fn tell(events: impl IntoIterator<Item = AgentEvent>) -> Vec<Act> {
    events.into_iter().map(Act::Tell).collect()
}

pub(crate) fn ending(result: SessionResult, exit: u8) -> AgentEvent {
    AgentEvent::SessionEnded(sample::ended(result, exit))
}

fn ends(site: &Site, code: i32, words: &[&str]) -> Finished {
    tokio::task::block_in_place(|| site.ends(code, words))
}

const MODEL: [&str; 2] = ["--model", "openai/gpt-5"];

#[tokio::test(flavor = "multi_thread")]
async fn a_headless_run_prints_the_stream_and_ends_with_its_code() {
    for (result, exit) in [
        (SessionResult::Verified, 0),
        (SessionResult::Denied, 3),
        (SessionResult::Waiting, 8),
        (SessionResult::Unverified, 9),
        (SessionResult::Budget, 10),
    ] {
        let mut events = sample::session();
        events.pop();
        events.push(ending(result, exit));
        let (site, fake) = stage(tell(events.clone()));
        let words = [&["run", "--json", "fix the parser"], MODEL.as_slice()].concat();
        let finished = ends(&site, i32::from(exit), &words);
        let lines: Vec<Value> = (finished.stdout.lines())
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines.len(), events.len());
        assert!(lines.iter().all(|line| line["v"] == 1), "{lines:?}");
        assert_eq!(lines[0]["type"], "session.started");
        assert_eq!(lines[lines.len() - 1]["exit"], exit);
        let start = fake.call(api::START);
        assert_eq!(start["task"], "fix the parser");
        assert_eq!(start["person"], "absent");
        assert_eq!(start["mode"], "strict");
        assert_eq!(start["models"], serde_json::json!(["openai/gpt-5"]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_in_a_pipe_is_plain_text_without_any_escape() {
    let (site, fake) = stage(tell(sample::session()));
    let finished = ends(
        &site,
        0,
        &["fix the parser", "--model", "a/b", "--mode", "explore"],
    );
    assert!(!finished.stdout.contains('\x1b'), "{}", finished.stdout);
    assert!(
        finished.stdout.contains("Done, verified"),
        "{}",
        finished.stdout
    );
    assert_eq!(fake.call(api::START)["mode"], "explore");
    // The result and nothing else.
    let (site, _fake) = stage(tell(sample::session()));
    let finished = ends(&site, 0, &["fix the parser", "--model", "a/b", "--quiet"]);
    assert!(!finished.stdout.contains("fs.read"), "{}", finished.stdout);
    assert!(
        finished.stdout.contains("Done, verified"),
        "{}",
        finished.stdout
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_missing_is_said_with_a_way_out() {
    let site = Site::initialised();
    let error = tokio::task::block_in_place(|| site.json_error(2, &["fix the parser"]));
    assert_eq!(error["code"], "no_model", "{error}");
    let error =
        tokio::task::block_in_place(|| site.json_error(2, &["fix the parser", "--model", "gpt-5"]));
    assert_eq!(error["code"], "no_model", "{error}");
    let empty = Site::empty();
    let error =
        tokio::task::block_in_place(|| empty.json_error(4, &["fix the parser", "--model", "a/b"]));
    assert!(error["fix"].to_string().contains("fluffy init"), "{error}");
    ends(&site, 2, &["--model", "a/b"]);
    ends(&site, 2, &["run", "--model", "a/b"]);
    ends(&site, 2, &["run", " ", "--model", "a/b"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kernel_that_dies_in_the_middle_costs_nothing() {
    let events = sample::session();
    let (site, first) = stage(tell(events[..6].to_vec()));
    let socket = socket(&site);
    let mut command = site.context.command();
    command
        .args(["run", "--json", "fix the parser"])
        .args(MODEL);
    let mut program = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
    // What was acknowledged is not lost: die once the session is known.
    let begun = tokio::task::block_in_place(|| lines.next().unwrap().unwrap());
    first.kill().await;
    let second = Fake::serve(&socket, SESSION, tell(events.clone()));
    let (status, rest) = tokio::task::block_in_place(|| {
        let rest: Vec<String> = lines.map(Result::unwrap).collect();
        (program.wait().unwrap(), rest)
    });
    assert_eq!(status.code(), Some(0), "{rest:?}");
    assert!(begun.contains("session.started"), "{begun}");
    assert_eq!(1 + rest.len(), events.len(), "{rest:?}");
    assert_eq!(second.called(), [api::ATTACH]);
    second.kill().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_leaves_stops_the_turn_and_hears_no_success() {
    let mut acts = tell([sample::started()]);
    acts.extend(tell((0..2_000).map(|n| sample::text(&n.to_string()))));
    acts.push(Act::Await(api::STOP));
    let (site, fake) = stage(acts);
    let mut command = site.context.command();
    command
        .args(["run", "--json", "fix the parser"])
        .args(MODEL);
    let mut program = command.stdout(Stdio::piped()).spawn().unwrap();
    let status = tokio::task::block_in_place(|| {
        let mut reader = BufReader::new(program.stdout.take().unwrap());
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        assert!(line.contains("session.started"), "{line}");
        drop(reader);
        program.wait().unwrap()
    });
    assert_eq!(status.code(), Some(1));
    assert!(fake.called().contains(&api::STOP.to_owned()));
}

/// The program at a terminal of `script`, whose screen is a file.
pub(crate) struct Terminal {
    child: Child,
    screen: PathBuf,
    /// How much of the screen has been looked at.
    seen: usize,
}

impl Terminal {
    pub(crate) fn start(site: &Site, term: &str, words: &str) -> Self {
        let inner = site.context.command();
        let program = Path::new(inner.get_program()).display().to_string();
        let screen = site.context.home().join("screen");
        let child = Command::new("script")
            .args(["--quiet", "--flush", "--return", "--command"])
            .arg(format!("stty cols 80 rows 24; exec {program} {words}"))
            .arg(&screen)
            .env_clear()
            .envs(
                inner
                    .get_envs()
                    .filter_map(|(name, value)| Some((name, value?))),
            )
            .env_remove("NO_COLOR")
            .env("TERM", term)
            .current_dir(site.context.project())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self {
            child,
            screen,
            seen: 0,
        }
    }

    /// Waits until this is on the screen, after what was waited for before.
    pub(crate) fn sees(&mut self, wanted: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let text = self.text();
            let new = text.get(self.seen..).unwrap_or_default();
            if let Some(at) = new.find(wanted) {
                self.seen += at + wanted.len();
                return;
            }
            assert!(Instant::now() < deadline, "not seen: {wanted}\n{new}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Types a line.
    pub(crate) fn types(&mut self, line: &str) {
        let input = self.child.stdin.as_mut().unwrap();
        input.write_all(format!("{line}\n").as_bytes()).unwrap();
        input.flush().unwrap();
    }

    fn text(&self) -> String {
        let bytes = fs::read(&self.screen).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Waits until this is on the screen, and types a line.
    fn answer(&mut self, wanted: &str, line: &str) {
        let deadline = Instant::now() + PATIENCE;
        while !self.text().contains(wanted) {
            assert!(Instant::now() < deadline, "{wanted}\n{}", self.text());
            std::thread::sleep(Duration::from_millis(10));
        }
        let input = self.child.stdin.as_mut().unwrap();
        input.write_all(line.as_bytes()).unwrap();
        input.flush().unwrap();
    }

    pub(crate) fn end(mut self) -> (Option<i32>, String) {
        let status = self.child.wait().unwrap();
        (status.code(), self.text())
    }
}

fn question() -> Vec<Act> {
    vec![
        Act::Tell(sample::started()),
        Act::Tell(sample::text("I will merge now.")),
        Act::Tell(sample::wanted()),
        Act::Await(api::ANSWER),
        Act::Tell(ending(SessionResult::Verified, 0)),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn at_a_terminal_there_is_a_status_line_and_a_question() {
    let (site, fake) = stage(question());
    let (code, screen) = tokio::task::block_in_place(|| {
        let mut terminal = Terminal::start(&site, "xterm", "'fix the parser' --model a/b");
        terminal.answer("approve? [y/n]", "y\n");
        terminal.end()
    });
    assert_eq!(code, Some(0), "{screen}");
    assert_eq!(fake.call(api::START)["person"], "present");
    assert_eq!(fake.call(api::ANSWER)["answer"], "approve");
    assert!(screen.contains("\x1b[32m+    done\x1b[0m"), "{screen}");
    assert!(screen.contains("asks you"), "{screen}");
    // The status line is wiped at the end, and nothing follows it.
    let (_, last) = screen.rsplit_once("\x1b[J").unwrap();
    assert!(!last.contains("strict"), "{last}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dumb_terminal_gets_words_and_nothing_else() {
    let (site, _fake) = stage(question());
    let (code, screen) = tokio::task::block_in_place(|| {
        let mut terminal = Terminal::start(&site, "dumb", "'fix the parser' --model a/b");
        terminal.answer("approve? [y/n]", "n\n");
        terminal.end()
    });
    assert_eq!(code, Some(0), "{screen}");
    assert!(!screen.contains('\x1b'), "{screen}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_word_it_asks_and_goes_on_until_one_leaves() {
    let acts = vec![
        Act::Tell(sample::started()),
        Act::Tell(ending(SessionResult::Unverified, 9)),
        Act::Await(api::SAY),
        Act::Tell(sample::text("Once more, with a test.")),
        Act::Tell(ending(SessionResult::Verified, 0)),
    ];
    let (site, fake) = stage(acts);
    let (code, screen) = tokio::task::block_in_place(|| {
        let mut terminal = Terminal::start(&site, "xterm", "--model a/b");
        terminal.answer("> ", "fix the parser\n");
        terminal.answer("Done, UNVERIFIED", "now with a test\n");
        terminal.answer("Done, verified", "/budget\n");
        terminal.answer("3 of 50 used", "/quit\n");
        terminal.end()
    });
    assert_eq!(code, Some(0), "{screen}");
    assert_eq!(fake.call(api::START)["task"], "fix the parser");
    assert_eq!(fake.call(api::SAY)["text"], "now with a test");
    assert!(screen.contains("fluffy session resume ses_"), "{screen}");
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_at_a_terminal_stops_the_turn() {
    let acts = vec![
        Act::Tell(sample::started()),
        Act::Tell(sample::text("This takes long. ")),
        Act::Await(api::STOP),
        Act::Tell(ending(SessionResult::Cancelled, 1)),
    ];
    let (site, _fake) = stage(acts);
    let (code, screen) = tokio::task::block_in_place(|| {
        let mut terminal = Terminal::start(&site, "xterm", "'fix the parser' --model a/b");
        terminal.answer("takes long", "\x03");
        terminal.end()
    });
    assert_eq!(code, Some(1), "{screen}");
    assert!(screen.contains("stopping the turn"), "{screen}");
}
