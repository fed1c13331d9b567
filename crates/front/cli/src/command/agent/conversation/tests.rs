//! Whole conversations against a kernel that plays a script.

use std::sync::{Arc, Mutex};

use fluffy_kernel::api::{self, Presence};
use fluffy_kernel::event::SessionResult;
use fluffy_report::{Format, Printer, PrinterOptions, SharedWriter};
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::mpsc;

use super::super::connect::fake::{Act, Fake, PATIENCE};
use super::super::connect::{KernelPlace, kernel, tests as connecting};
use super::super::show::sample::{self, SESSION};
use super::*;

const ONE_TASK: Manner = Manner {
    ends: Ends::WithTask,
    answers: Answers::Person,
};
const INTERACTIVE: Manner = Manner {
    ends: Ends::WithPerson,
    answers: Answers::Person,
};

/// A conversation that went to its end.
struct Held {
    outcome: Outcome,
    fake: Fake,
    printed: String,
}

/// A conversation that can be talked to.
struct Stage {
    _folder: TempDir,
    place: KernelPlace,
    fake: Fake,
    printer: Printer,
    printed: Arc<Mutex<Vec<u8>>>,
    lines: Option<mpsc::Sender<String>>,
    interrupts: mpsc::Sender<()>,
    senses: Senses,
}

impl Stage {
    fn new(acts: Vec<Act>, format: Format) -> Self {
        let folder = TempDir::new().unwrap();
        let place = connecting::place(&folder);
        let fake = Fake::serve(&place.socket, SESSION, acts);
        let options = PrinterOptions {
            format,
            ..PrinterOptions::default()
        };
        let (printed, data) = SharedWriter::buffer();
        let (lines, typed) = mpsc::channel(16);
        let (interrupts, pressed) = mpsc::channel(16);
        Self {
            _folder: folder,
            place,
            fake,
            printer: Printer::with_writers(options, data.clone(), data),
            printed,
            lines: Some(lines),
            interrupts,
            senses: Senses {
                lines: Some(typed),
                interrupts: pressed,
            },
        }
    }

    /// Types these lines at once; they wait until somebody reads them.
    fn typing(self, lines: &[&str]) -> Self {
        for line in lines {
            let sender = self.lines.as_ref().unwrap();
            sender.try_send((*line).to_owned()).unwrap();
        }
        self
    }

    /// Nobody will type any more.
    fn silent(mut self) -> Self {
        self.lines = None;
        self
    }

    async fn hold(self, manner: Manner, wanted: Start, task: Option<&str>) -> Held {
        let kernel = kernel(self.place.clone()).await.unwrap();
        let view = View::new(&self.printer);
        let mut conversation = Conversation::new(kernel, view, manner).wanting(wanted);
        let talk = async {
            if let Some(task) = task {
                conversation.begin(task).await.unwrap();
            }
            conversation.run(self.senses).await
        };
        let outcome = tokio::time::timeout(PATIENCE, talk).await.unwrap();
        let printed = self.printed.lock().unwrap().clone();
        Held {
            outcome,
            fake: self.fake,
            printed: String::from_utf8(printed).unwrap(),
        }
    }
}

impl Held {
    fn code(&self) -> ExitCode {
        *self.outcome.as_ref().unwrap()
    }
}

fn tell(events: impl IntoIterator<Item = AgentEvent>) -> Vec<Act> {
    events.into_iter().map(Act::Tell).collect()
}

fn ending(result: SessionResult, exit: u8) -> AgentEvent {
    AgentEvent::SessionEnded(sample::ended(result, exit))
}

/// Begins, asks, waits for the answer and ends.
fn question() -> Vec<Act> {
    vec![
        Act::Tell(sample::started()),
        Act::Tell(sample::wanted()),
        Act::Await(api::ANSWER),
        Act::Tell(ending(SessionResult::Verified, 0)),
    ]
}

#[tokio::test]
async fn a_task_ends_with_the_code_that_the_kernel_says() {
    for (exit, code) in [
        (0, ExitCode::Success),
        (9, ExitCode::Unverified),
        (10, ExitCode::BudgetExhausted),
        (77, ExitCode::Internal),
    ] {
        let acts = tell([sample::started(), ending(SessionResult::Unfinished, exit)]);
        let stage = Stage::new(acts, Format::Text);
        let held = stage
            .hold(ONE_TASK, connecting::wanted(), Some("fix it"))
            .await;
        assert_eq!(held.code(), code);
        assert_eq!(held.fake.call(api::START)["task"], "fix it");
    }
}

#[tokio::test]
async fn json_lines_are_the_events_with_a_version() {
    let stage = Stage::new(tell(sample::session()), Format::Json);
    let held = stage
        .hold(ONE_TASK, connecting::wanted(), Some("fix it"))
        .await;
    let mut events = Vec::new();
    for line in held.printed.lines() {
        let mut value: Value = serde_json::from_str(line).unwrap();
        let version = value.as_object_mut().unwrap().remove("v");
        assert_eq!(version, Some(Value::from(1)), "{line}");
        events.push(serde_json::from_value::<AgentEvent>(value).unwrap());
    }
    assert_eq!(events, sample::session());
}

#[tokio::test]
async fn questions_are_answered_inline() {
    for (typed, answer) in [
        (["y"].as_slice(), "approve"),
        (&["n"], "reject"),
        (&["perhaps", "", "/approve"], "approve"),
        (&["/reject"], "reject"),
    ] {
        let stage = Stage::new(question(), Format::Text);
        // Typed before it is asked, a line is something to say: wait for it.
        let lines = stage.lines.clone().unwrap();
        let printed = Arc::clone(&stage.printed);
        let typed: Vec<String> = typed.iter().map(|line| (*line).to_owned()).collect();
        let person = tokio::spawn(async move {
            let is_asked = || {
                let text = String::from_utf8(printed.lock().unwrap().clone()).unwrap();
                text.ends_with("approve? [y/n] ")
            };
            while !is_asked() {
                tokio::task::yield_now().await;
            }
            for line in typed {
                lines.send(line).await.unwrap();
            }
        });
        let held = stage
            .hold(ONE_TASK, connecting::wanted(), Some("fix it"))
            .await;
        person.await.unwrap();
        assert_eq!(held.code(), ExitCode::Success, "{}", held.printed);
        assert_eq!(held.fake.call(api::ANSWER)["answer"], answer);
        assert_eq!(
            held.fake
                .called()
                .iter()
                .filter(|name| *name == api::SAY)
                .count(),
            0
        );
    }
}

#[tokio::test]
async fn the_flag_answers_and_says_so() {
    let manner = Manner {
        answers: Answers::AlwaysYes,
        ..ONE_TASK
    };
    let stage = Stage::new(question(), Format::Text).silent();
    let held = stage
        .hold(manner, connecting::wanted(), Some("fix it"))
        .await;
    assert_eq!(held.code(), ExitCode::Success);
    assert!(
        held.printed.contains("because of --yes-auto"),
        "{}",
        held.printed
    );
    assert_eq!(held.fake.call(api::ANSWER)["answer"], "approve");
}

#[tokio::test]
async fn a_question_that_nobody_can_answer_waits_for_a_person() {
    let stage = Stage::new(question(), Format::Text).silent();
    let held = stage
        .hold(ONE_TASK, connecting::wanted(), Some("fix it"))
        .await;
    assert_eq!(held.code(), ExitCode::AwaitingApproval);
    assert!(
        held.printed.contains("fluffy session resume ses_"),
        "{}",
        held.printed
    );
    assert!(!held.fake.called().contains(&api::ANSWER.to_owned()));
}

#[tokio::test]
async fn ctrl_c_stops_the_turn_and_then_the_session() {
    let acts = vec![
        Act::Tell(sample::started()),
        Act::Await(api::STOP),
        Act::Tell(ending(SessionResult::Cancelled, 1)),
    ];
    let stage = Stage::new(acts, Format::Text);
    stage.interrupts.try_send(()).unwrap();
    let held = stage
        .hold(ONE_TASK, connecting::wanted(), Some("fix it"))
        .await;
    assert_eq!(held.code(), ExitCode::Failure);
    assert!(held.printed.contains("Stopped"), "{}", held.printed);

    // A kernel that does not end the turn is left by the second one.
    let stage = Stage::new(tell([sample::started()]), Format::Text);
    stage.interrupts.try_send(()).unwrap();
    stage.interrupts.try_send(()).unwrap();
    let held = stage
        .hold(ONE_TASK, connecting::wanted(), Some("fix it"))
        .await;
    assert_eq!(held.code(), ExitCode::Failure);
    assert!(
        held.printed.contains("fluffy session resume"),
        "{}",
        held.printed
    );
}

#[tokio::test]
async fn an_interactive_session_goes_on_after_a_task() {
    let acts = vec![
        Act::Tell(sample::started()),
        Act::Tell(ending(SessionResult::Unverified, 9)),
        Act::Await(api::SAY),
        Act::Tell(sample::text("once more")),
        Act::Tell(ending(SessionResult::Verified, 0)),
    ];
    let stage = Stage::new(acts, Format::Text).typing(&[
        "/explore",
        "/model local/qwen",
        "/undo",
        "first task",
        "and now this",
        "/status",
        "/budget",
        "/diff",
        "/undo",
        "/strict",
        "/plan",
        "/nonsense",
        "/help",
    ]);
    let stage = stage.silent();
    let held = stage.hold(INTERACTIVE, connecting::wanted(), None).await;
    let start = held.fake.call(api::START);
    assert_eq!(start["task"], "first task");
    assert_eq!(start["mode"], "explore");
    assert_eq!(start["models"][0], "local/qwen");
    assert_eq!(held.fake.call(api::SAY)["text"], "and now this");
    for shown in [
        "there is no session yet",
        "turns            3 of 50 used, 47 left",
        "refused: no turn has changed anything",
        "+new",
        "there is no plan yet",
        "there is no /nonsense",
        "/quit",
    ] {
        assert!(held.printed.contains(shown), "{shown}\n{}", held.printed);
    }
}

#[tokio::test]
async fn a_kernel_that_is_gone_is_found_again() {
    let acts = vec![
        Act::Tell(sample::started()),
        Act::Tell(sample::text("half")),
        Act::Die,
    ];
    let stage = Stage::new(acts, Format::Text).silent();
    let socket = stage.place.socket.clone();
    let mut acts = tell([
        sample::started(),
        sample::text("half"),
        sample::text(" done"),
    ]);
    acts.push(Act::Tell(ending(SessionResult::Verified, 0)));
    let second = tokio::spawn(async move {
        while socket.exists() {
            tokio::task::yield_now().await;
        }
        Fake::serve(&socket, SESSION, acts)
    });
    let held = stage
        .hold(ONE_TASK, connecting::wanted(), Some("fix it"))
        .await;
    assert_eq!(held.code(), ExitCode::Success);
    assert!(held.printed.contains("looking for it"), "{}", held.printed);
    assert_eq!(held.printed.matches("half").count(), 1, "{}", held.printed);
    assert_eq!(second.await.unwrap().called(), [api::ATTACH]);
}

#[tokio::test]
async fn a_reader_that_goes_away_stops_the_turn_and_is_no_success() {
    struct Gone;
    impl std::io::Write for Gone {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    for format in [Format::Text, Format::Json] {
        let mut stage = Stage::new(tell(sample::session()), format).silent();
        let options = PrinterOptions {
            format,
            ..PrinterOptions::default()
        };
        stage.printer =
            Printer::with_writers(options, SharedWriter::new(Gone), SharedWriter::new(Gone));
        let held = stage
            .hold(ONE_TASK, connecting::wanted(), Some("fix it"))
            .await;
        assert_eq!(held.code(), ExitCode::Failure);
        assert!(held.fake.called().contains(&api::STOP.to_owned()));
    }
}

#[tokio::test]
async fn weaker_isolation_than_was_asked_for_ends_it() {
    let stage = Stage::new(tell([sample::started()]), Format::Text).silent();
    let wanted = Start {
        tier: Some(Tier::Microvm),
        ..connecting::wanted()
    };
    let held = stage.hold(ONE_TASK, wanted, Some("fix it")).await;
    let Err(Failure::Report(report)) = held.outcome else {
        panic!("went on");
    };
    assert_eq!(report.exit(), ExitCode::Conflict);
    assert_eq!(held.fake.call(api::START)["tier"], "microvm");
    assert!(held.fake.called().contains(&api::STOP.to_owned()));
}

#[tokio::test]
async fn nobody_is_told_to_the_kernel() {
    let mut wanted = connecting::wanted();
    wanted.person = Presence::Absent;
    let manner = Manner {
        answers: Answers::Nobody,
        ..ONE_TASK
    };
    let acts = tell([
        sample::started(),
        sample::wanted(),
        ending(SessionResult::Waiting, 8),
    ]);
    let stage = Stage::new(acts, Format::Text).silent();
    let held = stage.hold(manner, wanted, Some("fix it")).await;
    assert_eq!(held.code(), ExitCode::AwaitingApproval);
    assert_eq!(held.fake.call(api::START)["person"], "absent");
}
