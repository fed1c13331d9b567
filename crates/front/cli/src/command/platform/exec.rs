//! `fluffy exec`: a command in an instance, with the caller's own streams.
//!
//! The session is asked for like everything else; its WebSocket then carries
//! bytes, sizes and signals. A terminal whose connection broke comes back to
//! its session by itself. The code is the command's own, so none of ours is
//! used: 125 if it never started, 255 if how it ended is not known.

use std::process;
use std::sync::Arc;
use std::time::Duration;

use clap::ArgMatches;
use fluffy_api::Operation;
use fluffy_api::client::{ALIVE_EVERY, CallError, ExecEvent, ExecReceiver, ExecSender};
use fluffy_api::exec::{Control, Exit, Signal};
use fluffy_base::Span;
use fluffy_contract::isolation::Output;
use fluffy_report::{ExitCode, Report};
use fluffy_secret::SecretString;
use rustix::process::Signal as Number;
use serde_json::{Map, Value, json};
use tokio::sync::{Mutex, mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::ask::{self, Asker, Call};
use super::{call, refusal, view};
use crate::args::platform::PlatformCommand;
use crate::command::streams::{Event, Reader, Signals, Writer};
use crate::command::{sandbox, terminal};
use crate::failure::{self, Failure};
use crate::session::Session;

/// The command never started.
const NEVER_STARTED: u8 = 125;
/// Nobody knows how the command ended, as `ssh` says it.
const UNKNOWN: u8 = 255;
/// How long is waited for the end of a command that was killed.
const LAST: Duration = Duration::from_secs(10);
/// How long a server waits for somebody whose connection broke, and how long
/// is waited between two tries, at first and at most.
const COME_BACK: Duration = Duration::from_secs(30);
const PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(2));
/// How much output is told of at once as arrived.
const ACK_EVERY: u64 = 64 << 10;

/// Whether these words run something in an instance.
pub(crate) fn is_exec(command: &PlatformCommand) -> bool {
    let words: Vec<&str> = command.words.iter().map(String::as_str).collect();
    matches!(words.as_slice(), ["exec"] | ["instances", "exec"])
}

/// Runs a command in an instance; the code is the command's own.
pub(crate) fn run(session: &Session, command: &PlatformCommand) -> process::ExitCode {
    let ran = Asker::new(session, &call::flags(&command.matches))
        .and_then(|mut asker| ask::block(whole(&mut asker, &command.matches)));
    match ran {
        Ok(code) => code.into(),
        Err(failure) => {
            sandbox::tell(session, &failure);
            NEVER_STARTED.into()
        }
    }
}

async fn whole(asker: &mut Asker<'_>, matches: &ArgMatches) -> Result<u8, Failure> {
    let operation = Operation::CreateExec;
    call::guard_env(asker, operation.spec()).await?;
    let wishes = Wishes::read(matches)?;
    let path = call::path(asker, operation.spec(), matches)?;
    let org = asker.target.part("org")?.name.clone();
    let granted = ask(asker, path, wishes.body(matches)).await;
    let granted = granted.map_err(|error| refusal::failed(&error, operation.spec().cli))?;
    let (id, token) = opening(&granted)?;
    let opened = asker.exec(&org, &id, &token).await;
    let (sender, receiver) =
        opened.map_err(|error| refusal::failed(&error, operation.spec().cli))?;
    // `--tty` gives the command a terminal even where we have none.
    let raw = terminal::is_interactive() && wishes.tty;
    let raw = raw.then(terminal::RawTerminal::enter).transpose();
    let raw = raw.map_err(|error| failure::no_terminal(&error))?;
    let mut line = Line {
        asker: &mut *asker,
        org: &org,
        id: &id,
        had: 0,
        acked: 0,
        resume: None,
    };
    let end = line.carry(sender, receiver, &wishes).await;
    drop(raw);
    Ok(tell(asker.session, &end))
}

/// Asks for a session. A server that does not know yet what it is to wait for
/// anybody is asked for one that does not.
async fn ask(asker: &mut Asker<'_>, path: Vec<String>, body: Value) -> Result<Value, CallError> {
    let call = |body| Call {
        path: path.clone(),
        body: Some(body),
        ..Call::default()
    };
    let mut plain = body.clone();
    let waits = plain.as_object_mut().and_then(|body| body.remove("resume"));
    let asked = asker.try_call(Operation::CreateExec, &call(body)).await;
    let asked = match asked {
        Err(CallError::Refused(problem)) if waits.is_some() && problem.code == "unknown_field" => {
            asker.try_call(Operation::CreateExec, &call(plain)).await
        }
        asked => asked,
    };
    Ok(asked?.value)
}

/// What was asked beside the command itself.
struct Wishes {
    tty: bool,
    stdin: bool,
    root: bool,
    variables: Map<String, Value>,
}

impl Wishes {
    fn read(matches: &ArgMatches) -> Result<Self, Failure> {
        let mut variables = Map::new();
        let given = matches.get_many::<String>("variable");
        for pair in given.into_iter().flatten() {
            let (name, value) = pair.split_once('=').ok_or_else(|| {
                Report::new(ExitCode::Usage, format!("`{pair}` is not NAME=VALUE"))
                    .fix("write for example `--variable LEVEL=debug`")
            })?;
            variables.insert(name.to_owned(), value.into());
        }
        let alone = !call::has(matches, "no-tty") && terminal::is_interactive();
        Ok(Self {
            tty: call::has(matches, "tty") || alone,
            stdin: !call::has(matches, "no-stdin"),
            root: call::has(matches, "root"),
            variables,
        })
    }

    fn body(&self, matches: &ArgMatches) -> Value {
        let words = matches.get_many::<String>("command");
        let words: Vec<&String> = words.into_iter().flatten().collect();
        let size = self.tty.then(terminal::size);
        let longest = matches.get_one::<Span>("max-time");
        let mut body = json!({
            "command": words,
            "tty": self.tty,
            "cols": size.map(|size| size.columns.clamp(1, 1000)),
            "rows": size.map(|size| size.rows.clamp(1, 1000)),
            "env": self.variables,
            "stdin": self.stdin,
            "max_seconds": longest.map(|span| span.millis / 1000),
            "reason": matches.get_one::<String>("reason"),
        });
        // What an older server does not know is only said where it is meant.
        for (name, wanted) in [("resume", self.tty), ("as_root", self.root)] {
            if wanted && let Value::Object(body) = &mut body {
                body.insert(name.to_owned(), true.into());
            }
        }
        body
    }
}

/// What opens the session that was granted.
fn opening(granted: &Value) -> Result<(String, SecretString), Report> {
    let token = granted.get("token").and_then(Value::as_str);
    let token = token.ok_or_else(|| {
        Report::new(ExitCode::Transient, "the session can't be opened any more")
            .why("its token is told once, and that answer was lost")
            .fix("try again")
    })?;
    let id = view::name(granted).into_owned();
    Ok((id, SecretString::from(token.to_owned())))
}

/// What ended a session here.
enum End {
    /// The command is done, or was ended.
    Told(Exit),
    /// The connection is gone.
    Lost,
    /// Nobody reads the output any more.
    Unheard,
    /// It was killed here, and nothing came of it.
    Left,
}

/// A session, and how far its output came.
struct Line<'a, 'b> {
    asker: &'a mut Asker<'b>,
    org: &'a str,
    id: &'a str,
    /// How much of the output arrived, and how much of that was said.
    had: u64,
    acked: u64,
    /// What lets us in again.
    resume: Option<SecretString>,
}

/// What the caller wants sent.
struct Inbox {
    orders: mpsc::Receiver<Control>,
    typed: mpsc::Receiver<Vec<u8>>,
    typing: bool,
}

impl Line<'_, '_> {
    /// Carries everything between the caller and the command until it ends.
    async fn carry(
        &mut self,
        sender: ExecSender,
        mut receiver: ExecReceiver,
        wishes: &Wishes,
    ) -> End {
        let mut signals = Signals::listen();
        let writer = Writer::start();
        let (orders, ordered) = mpsc::channel(8);
        let (typing, typed) = mpsc::channel(1);
        // Ends the reading thread when this function returns. Where nothing can
        // be read there is no input.
        let reader = wishes.stdin.then(|| Reader::start(typing).ok());
        let inbox = Arc::new(Mutex::new(Inbox {
            orders: ordered,
            typed,
            typing: true,
        }));
        let (acks, acked) = watch::channel(0);
        let mut sending = tokio::spawn(send(sender, Arc::clone(&inbox), acked.clone()));
        let mut held = None;
        let mut leave: Option<Instant> = None;
        let end = loop {
            let given_up = async {
                match leave {
                    Some(deadline) => tokio::time::sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // A piece that came is written before another is taken.
                room = writer.pieces.reserve(), if held.is_some() => {
                    if let (Ok(room), Some(piece)) = (room, held.take()) {
                        room.send(piece);
                    }
                }
                event = receiver.next(), if held.is_none() => match event {
                    Some(ExecEvent::Exit(exit)) => break End::Told(exit),
                    Some(event) => {
                        held = self.take(event);
                        if held.as_ref().is_some_and(|piece| writer.is_unheard(piece)) {
                            break End::Unheard;
                        }
                        if self.resume.is_some() && self.had - self.acked >= ACK_EVERY {
                            self.acked = self.had;
                            acks.send_replace(self.had);
                        }
                    }
                    None => {
                        sending.abort();
                        let Some(token) = self.resume.take() else {
                            break End::Lost;
                        };
                        warn(&writer, "the connection broke; coming back to the session").await;
                        let again = tokio::select! {
                            again = self.come_back(&token) => again,
                            () = hurried(&mut signals) => None,
                        };
                        let Some((mut sender, again)) = again else {
                            break End::Lost;
                        };
                        self.acked = self.had;
                        // Nothing older is said after it.
                        acks.send_replace(self.had);
                        let out_offset = self.had;
                        if !sender.control(&Control::Ack { out_offset }).await {
                            break End::Lost;
                        }
                        receiver = again;
                        sending = tokio::spawn(send(sender, Arc::clone(&inbox), acked.clone()));
                        warn(&writer, "the session goes on").await;
                        if let Some(size) = order(&Event::Resized, wishes.tty) {
                            let _ = orders.try_send(size);
                        }
                    }
                },
                event = signals.next() => {
                    if let Event::Signal(number) = event && number == Number::KILL.as_raw() {
                        leave = leave.or_else(|| Some(Instant::now() + LAST));
                    }
                    // Who does not take eight orders takes none.
                    if let Some(order) = order(&event, wishes.tty) {
                        let _ = orders.try_send(order);
                    }
                }
                () = given_up => break End::Left,
            }
        };
        drop(reader);
        sending.abort();
        if matches!(end, End::Told(_)) && self.resume.is_some() {
            receiver.leave().await;
        }
        writer.finish().await;
        end
    }

    /// What is to be written of what came.
    fn take(&mut self, event: ExecEvent) -> Option<Output> {
        match event {
            ExecEvent::Ready { resume_token, .. } => {
                self.resume = resume_token;
                None
            }
            ExecEvent::Stdout(bytes) => {
                self.had += bytes.len() as u64;
                Some(Output::Stdout(bytes.to_vec()))
            }
            ExecEvent::Stderr(bytes) => Some(Output::Stderr(bytes.to_vec())),
            // What arrived before is left out.
            ExecEvent::Again { place, bytes } => {
                let end = place.saturating_add(bytes.len() as u64);
                let known = usize::try_from(self.had.saturating_sub(place)).unwrap_or(usize::MAX);
                self.had = self.had.max(end);
                let new = bytes.get(known..).filter(|new| !new.is_empty())?;
                Some(Output::Stdout(new.to_vec()))
            }
            ExecEvent::Gap => {
                let text = "fluffy: some output is lost here\r\n";
                Some(Output::Stderr(text.as_bytes().to_vec()))
            }
            // The caller looks for it before.
            ExecEvent::Exit(_) => None,
        }
    }

    /// Tries to come back for as long as the session waits.
    async fn come_back(&mut self, token: &SecretString) -> Option<(ExecSender, ExecReceiver)> {
        let until = Instant::now() + COME_BACK;
        let mut pause = PAUSE.0;
        while Instant::now() < until {
            let opened = self.asker.exec(self.org, self.id, token);
            match tokio::time::timeout_at(until, opened).await {
                Ok(Ok(opened)) => return Some(opened),
                // It is over, or the token is.
                Ok(Err(CallError::Refused(problem))) if !problem.retryable => return None,
                Ok(Err(_)) | Err(_) => {}
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE.1);
        }
        None
    }
}

/// Tells the caller something between what the command says.
async fn warn(writer: &Writer, text: &str) {
    // The terminal may be one that begins no new line by itself.
    let text = format!("\r\nfluffy: {text}\r\n");
    let _ = writer.pieces.send(Output::Stderr(text.into_bytes())).await;
}

/// Returns when the caller does not want to wait any more.
async fn hurried(signals: &mut Signals) {
    while let Event::Resized = signals.next().await {}
}

/// What a signal to us means for the command.
fn order(event: &Event, tty: bool) -> Option<Control> {
    let number = match event {
        Event::Resized => {
            let size = terminal::size();
            return tty.then_some(Control::Resize {
                cols: size.columns,
                rows: size.rows,
            });
        }
        Event::Signal(number) => *number,
    };
    let known = [
        (Number::HUP, Signal::Hup),
        (Number::INT, Signal::Int),
        (Number::KILL, Signal::Kill),
    ];
    let found = known.iter().find(|(known, _)| known.as_raw() == number);
    // What is left are two ways to say that it should end.
    let signal = found.map_or(Signal::Term, |(_, signal)| *signal);
    Some(Control::Signal { signal })
}

/// Sends what is typed and ordered, and how much arrived; orders first. What
/// is not taken yet when this ends waits for the next connection.
async fn send(mut sender: ExecSender, inbox: Arc<Mutex<Inbox>>, mut acked: watch::Receiver<u64>) {
    let mut inbox = inbox.lock().await;
    let Inbox {
        orders,
        typed,
        typing,
    } = &mut *inbox;
    let mut alive = interval(ALIVE_EVERY);
    alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let sent = tokio::select! {
            biased;
            Some(order) = orders.recv() => sender.control(&order).await,
            Ok(()) = acked.changed() => {
                let out_offset = *acked.borrow_and_update();
                sender.control(&Control::Ack { out_offset }).await
            }
            piece = typed.recv(), if *typing => match piece {
                Some(piece) => sender.input(&piece).await,
                None => {
                    *typing = false;
                    sender.control(&Control::Close).await
                }
            },
            _ = alive.tick() => sender.alive().await,
        };
        if !sent {
            // Whoever receives knows how it ended.
            return;
        }
    }
}

/// Says what the code alone does not, and gives the code.
fn tell(session: &Session, end: &End) -> u8 {
    let (code, report) = judged(end);
    if let Some(report) = report {
        session.printer.report(&report);
    }
    code
}

fn judged(end: &End) -> (u8, Option<Report>) {
    let report = |what: &str, why: &str| {
        let report = Report::new(ExitCode::Transient, what.to_owned()).why(why.to_owned());
        Some(report.fix("`fluffy instances list` shows what runs now"))
    };
    let exit = match end {
        End::Told(exit) => exit,
        End::Lost => {
            let why = "the connection broke; the command is told to end";
            return (UNKNOWN, report("how the command ended is not known", why));
        }
        // As a pipe would have told it.
        End::Unheard => return (ended_by(Number::PIPE.as_raw()), None),
        End::Left => return (ended_by(Number::KILL.as_raw()), None),
    };
    if let Some(why) = &exit.not_started {
        return (NEVER_STARTED, report("the command never started", why));
    }
    let cut = match exit.reason.as_str() {
        "timeout" => report(
            "the session was ended",
            "its time is over; --max-time allows more",
        ),
        "operator_revoked" => report("the session was ended", "somebody revoked it"),
        _ => None,
    };
    if let Some(signal) = &exit.signal {
        return (ended_by(number(signal)), cut);
    }
    match exit.exit_code {
        // Only the last byte of a code is seen anywhere.
        Some(code) => (code.to_le_bytes()[0], cut),
        None => {
            let why = "the instance or its node is gone";
            (UNKNOWN, report("how the command ended is not known", why))
        }
    }
}

fn ended_by(signal: i32) -> u8 {
    u8::try_from(signal.saturating_add(128)).unwrap_or(UNKNOWN)
}

/// The number of a signal's name.
fn number(name: &str) -> i32 {
    const NAMES: [&str; 15] = [
        "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2",
        "PIPE", "ALRM", "TERM",
    ];
    let name = name.strip_prefix("SIG").unwrap_or(name);
    let place = NAMES.iter().position(|known| *known == name);
    let place = place.and_then(|place| i32::try_from(place + 1).ok());
    // A number is its own name; what is neither ended it all the same.
    let number = place.or_else(|| name.parse().ok());
    number.unwrap_or(Number::KILL.as_raw())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(change: impl FnOnce(&mut Exit)) -> u8 {
        let mut exit = Exit {
            exit_code: None,
            signal: None,
            not_started: None,
            reason: "exited".to_owned(),
        };
        change(&mut exit);
        judged(&End::Told(exit)).0
    }

    #[test]
    fn the_code_is_the_commands_own() {
        assert_eq!(exit(|exit| exit.exit_code = Some(0)), 0);
        assert_eq!(exit(|exit| exit.exit_code = Some(42)), 42);
        assert_eq!(exit(|exit| exit.exit_code = Some(256 + 3)), 3);
        assert_eq!(exit(|exit| exit.signal = Some("TERM".to_owned())), 143);
        assert_eq!(exit(|exit| exit.signal = Some("SIGKILL".to_owned())), 137);
        assert_eq!(exit(|exit| exit.signal = Some("34".to_owned())), 162);
        let beyond = i32::MAX.to_string();
        assert_eq!(exit(|exit| exit.signal = Some(beyond)), 255);
        assert_eq!(exit(|exit| exit.not_started = Some("no".to_owned())), 125);
        assert_eq!(exit(|_| {}), 255);
        assert_eq!(judged(&End::Lost).0, 255);
        assert_eq!(judged(&End::Unheard).0, 141);
    }

    #[test]
    fn only_a_terminal_has_a_size_to_tell() {
        assert_eq!(order(&Event::Resized, false), None);
        assert!(matches!(
            order(&Event::Resized, true),
            Some(Control::Resize { .. })
        ));
        let quit = Event::Signal(Number::QUIT.as_raw());
        let signal = Signal::Term;
        assert_eq!(order(&quit, true), Some(Control::Signal { signal }));
    }
}
