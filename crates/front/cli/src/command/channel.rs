//! `fluffy channel run`: sessions of this project through a plugin's channel.
//!
//! The plugin runs in its sandbox and passes words on. Who may speak is decided
//! for every message, in the name of who spoke ([`door`]); each conversation has
//! one session at most and a connection to the kernel of its own ([`talk`]).
//! Never approves anything by itself.

mod door;
mod talk;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use fluffy_contract::Channel as _;
use fluffy_contract::channel::{Incoming, Outgoing, SendMessageError};
use fluffy_gate::Answer;
use fluffy_kernel::api::{Presence, Start};
use fluffy_plugin_host::plugins::{ChannelPlugin, RunChannelError};
use fluffy_policy::Context;
use fluffy_report::{ExitCode, Report};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use self::door::{Door, Entered, Refused};
use self::talk::{Said, Talk};
use crate::args::{ChannelCommand, WorkArgs};
use crate::command::agent::connect::KernelPlace;
use crate::command::agent::senses::{Keyboard, Senses};
use crate::command::agent::wanted;
use crate::command::gate::Desk;
use crate::command::ledger::OpenLedger;
use crate::command::plugin::host::{Host, runtime};
use crate::command::{Outcome, ledger};
use crate::failure::{self, Failure};
use crate::session::{Here, Session};

/// How many conversations there are at once.
const MAX_TALKS: usize = 16;

/// Messages that wait to be sent, or to be read.
const UNREAD: usize = 64;

/// How many strangers are told so; the rest hear nothing.
const MAX_TOLD: usize = 64;

/// How often a message is sent again when the plugin was not there.
const ATTEMPTS: usize = 5;

/// Between two of them.
const AGAIN: Duration = Duration::from_millis(500);

/// How long sessions may take to be stopped at the end.
const ENDING: Duration = Duration::from_secs(5);

/// Runs one of the `channel` commands.
pub(crate) fn run(session: &Session, command: &ChannelCommand) -> Outcome {
    let ChannelCommand::Run { name, work } = command;
    let here = session.here()?;
    if work.record.is_some() || work.yes_auto {
        let what = "a channel's sessions are neither recorded to a file nor answered by a flag";
        let fix = "leave out --record and --yes-auto";
        return Err(Report::new(ExitCode::Usage, what).fix(fix).into());
    }
    let opened = ledger::open(session, here)?;
    let runtime = runtime()?;
    let carried = runtime.block_on(carry(session, here, &opened, (name, work)));
    runtime.shutdown_background();
    ledger::close(session, opened)?;
    carried
}

/// Starts the plugin, serves until Ctrl-C, and ends everything.
async fn carry(
    session: &Session,
    here: &Here,
    opened: &OpenLedger,
    (name, work): (&str, &WorkArgs),
) -> Outcome {
    let senses = Senses::of_process(Keyboard::Left)?;
    let wanted = wanted::wanted(here, &session.folder()?, work, Presence::Present)?;
    let place = KernelPlace::of(here)?;
    let desk = Desk::open(here, opened)?;
    let host = Host {
        session,
        here,
        opened,
        desk: &desk,
    };
    let plugins = host.open(&here.paths.plugins_dir, None).await?;
    let channel = plugins
        .run_channel(name)
        .await
        .map_err(|error| not_run(&error))?;
    may_receive(&channel)?;
    let mut line = Line {
        session,
        place,
        wanted,
        door: Door::new(&desk, name, &here.settings.values().channels),
        talks: BTreeMap::new(),
        told: BTreeSet::new(),
        tasks: JoinSet::new(),
    };
    let served = line.serve(Arc::new(channel), senses).await;
    line.talks.clear();
    let ends = async { while line.tasks.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(ENDING, ends).await;
    plugins.stop_all().await;
    served
}

/// Its own grant has to cover that it brings words in.
fn may_receive(channel: &ChannelPlugin) -> Result<(), Failure> {
    let desk = channel.desk();
    let request = desk.request("messages.receive", Some(channel.name()), &context());
    let refused = match desk.ask(&request) {
        Ok(Answer::Granted(_)) => return Ok(()),
        Ok(Answer::Review(refusal) | Answer::Denied(refusal)) => refusal,
        Err(error) => return Err(failure::not_recorded(&error).into()),
    };
    let name = channel.name();
    let what = format!("`{name}` may not bring messages in");
    Err(Report::new(ExitCode::Denied, what)
        .why(refused.to_string())
        .fix(format!(
            "its manifest needs the capability `messages.*.{name}`, and your grant too"
        ))
        .into())
}

fn context() -> Context {
    Context {
        template: Some("plugin".to_owned()),
        ..Context::default()
    }
}

/// One channel, and the conversations in it.
struct Line<'a> {
    session: &'a Session,
    place: KernelPlace,
    wanted: Start,
    door: Door,
    talks: BTreeMap<String, mpsc::Sender<Said>>,
    /// Conversations that were told that nobody in them may speak.
    told: BTreeSet<String>,
    tasks: JoinSet<()>,
}

impl Line<'_> {
    async fn serve(&mut self, channel: Arc<ChannelPlugin>, mut senses: Senses) -> Outcome {
        let name = channel.name().to_owned();
        let text = format!("`{name}` is open; Ctrl-C closes it.");
        self.session.printer.data(&text)?;
        let (say, outbox) = mpsc::channel(UNREAD);
        let (heard, mut inbox) = mpsc::channel(UNREAD);
        let ears = tokio::spawn(listen(Arc::clone(&channel), heard));
        let mouth = tokio::spawn(speak(channel, outbox));
        let served = loop {
            tokio::select! {
                said = inbox.recv() => match said {
                    Some(said) => self.hear(said, &say).await,
                    None => break Err(closed(&name).into()),
                },
                Some(()) = senses.interrupts.recv() => break Ok(ExitCode::Success),
            }
        };
        ears.abort();
        mouth.abort();
        served
    }

    /// One message: who said it decides whether it is read.
    async fn hear(&mut self, said: Incoming, say: &mpsc::Sender<Outgoing>) {
        let Incoming {
            from,
            conversation,
            text,
            ..
        } = said;
        let entered = match self.door.enter(&from, &conversation, &text).await {
            Ok(entered) => entered,
            Err(Refused::Flood) => return,
            Err(Refused::Stranger { who }) => {
                self.session.printer.note(&format!("refused: {who}"));
                if self.told.len() < MAX_TOLD && self.told.insert(conversation.clone()) {
                    let text = format!("{who} may not speak here");
                    let _ = say.try_send(Outgoing { conversation, text });
                }
                return;
            }
        };
        let Entered { speaker, text } = entered;
        self.talks.retain(|_, talk| !talk.is_closed());
        if !self.talks.contains_key(&conversation) {
            if self.talks.len() >= MAX_TALKS {
                let text = "too many conversations are open".to_owned();
                let _ = say.try_send(Outgoing { conversation, text });
                return;
            }
            let (sender, receiver) = mpsc::channel(UNREAD);
            let talk = Talk::new(
                self.place.clone(),
                self.wanted.clone(),
                conversation.clone(),
                say.clone(),
            );
            self.tasks.spawn(talk.run(receiver));
            self.talks.insert(conversation.clone(), sender);
        }
        let talk = self.talks.get(&conversation);
        let full = talk.is_some_and(|talk| talk.try_send(Said { speaker, text }).is_err());
        if full {
            let text = "too much waits already; that was not read".to_owned();
            let _ = say.try_send(Outgoing { conversation, text });
        }
    }
}

/// Passes on what people say until the channel is closed for good.
async fn listen(channel: Arc<ChannelPlugin>, heard: mpsc::Sender<Incoming>) {
    while let Some(said) = channel.receive().await {
        if heard.send(said).await.is_err() {
            return;
        }
    }
}

/// Says one thing after the other, each decided about in the plugin's name.
async fn speak(channel: Arc<ChannelPlugin>, mut outbox: mpsc::Receiver<Outgoing>) {
    let context = context();
    while let Some(message) = outbox.recv().await {
        for _ in 0..ATTEMPTS {
            let desk = channel.desk();
            let request = desk.request("messages.send", Some(channel.name()), &context);
            // A refusal is recorded; there is nobody to tell it to.
            let Ok(Answer::Granted(granted)) = desk.ask(&request) else {
                break;
            };
            match channel.send(granted.permit, message.clone()).await {
                Err(SendMessageError::Disconnected { .. }) => tokio::time::sleep(AGAIN).await,
                _ => break,
            }
        }
    }
}

fn closed(name: &str) -> Report {
    Report::new(
        ExitCode::Failure,
        format!("the channel `{name}` has closed"),
    )
    .why("its plugin ended or crashed too often")
    .fix(format!("`fluffy plugin logs {name}` shows what it said"))
}

fn not_run(error: &RunChannelError) -> Failure {
    let code = match error {
        RunChannelError::Examine(_) => ExitCode::NotFound,
        RunChannelError::Kind { .. } => ExitCode::Usage,
        _ => ExitCode::Failure,
    };
    Failure::of(code, error, "`fluffy plugin list` shows what is installed")
}
