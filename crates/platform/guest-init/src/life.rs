//! The loop: one thread waits for everything and does one thing at a time.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use fluffy_guest::config::is_size;
use fluffy_guest::link::{Event, FIRST_EXEC, Hidden, INIT_LOG, STDERR, STDOUT, read_message};
use fluffy_guest::message::{ExecOpen, Happening, Hello, MountStats, Phase, State, Stats, Status};
use fluffy_guest::{FromGuest, FromHost, GuestConfig, Link, PROTOCOL};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::Shutdown;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use crate::boot::{self, Given};
use crate::call;
use crate::exec::{Exec, Part};
use crate::lines::Lines;
use crate::process::{self, NotStarted, PATH, Start, Streams};
use crate::redact::Redactor;
use crate::user::{self, Identity};

/// How much of a stream is read at once.
const PIECE: usize = 64 << 10;
/// How long the end waits for the node to hear of it.
const LAST_WORDS: Duration = Duration::from_secs(10);
/// How long the node has to close the link after the end.
const PARTING: Duration = Duration::from_secs(2);
/// How often use is reported.
const STATS: Duration = Duration::from_secs(10);
/// How much of init's own log is kept inside.
const OWN_LOG: u64 = 1 << 20;

/// Everything that init knows.
pub(crate) struct Life {
    given: Given,
    born: Instant,
    signals: OwnedFd,
    talk: Option<Talk>,
    phase: Phase,
    config: Option<Configured>,
    /// A config whose secrets have not come yet, with its digest.
    awaiting: Option<(Box<GuestConfig>, String)>,
    redactor: Redactor,
    streams: [Stream; 2],
    own: Lines,
    own_file: Option<File>,
    child: Option<Child>,
    execs: BTreeMap<u32, Exec>,
    ended: Option<Status>,
    end_by: Option<Instant>,
    next_stats: Instant,
}

/// The link to the node.
struct Talk {
    stream: OwnedFd,
    link: Link,
}

/// A config that was applied.
struct Configured {
    config: Box<GuestConfig>,
    identity: Identity,
    environment: BTreeMap<String, String>,
    /// How many commands before the workload are done.
    prestarted: usize,
}

/// The workload, or what runs before it.
struct Child {
    pid: Pid,
    began: Instant,
    is_workload: bool,
    /// When it is killed.
    deadline: Option<Instant>,
    /// Whether that is because it was told to end.
    told: bool,
}

/// A stream of the workload.
struct Stream {
    lines: Lines,
    pipe: Option<OwnedFd>,
}

/// What a descriptor is that something happened to.
#[derive(Clone, Copy)]
enum Token {
    Signals,
    Listener,
    Link,
    Stream(usize),
    Exec(u32, Part),
}

impl Life {
    /// Before anything happened.
    pub(crate) fn begin(given: Given) -> io::Result<Self> {
        let signals = call::signal_descriptor(&[libc::SIGCHLD, libc::SIGTERM, libc::SIGPIPE])?;
        // Nobody in the instance may look into this process: it holds secrets.
        rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        rustix::io::ioctl_fionbio(&given.listener, true)?;
        let own_file = std::fs::create_dir_all("/run/fluffy")
            .and_then(|()| File::create("/run/fluffy/init.log"))
            .ok();
        let now = Instant::now();
        let stream = |channel| Stream {
            lines: Lines::new(channel),
            pipe: None,
        };
        Ok(Self {
            given,
            born: now,
            signals,
            talk: None,
            phase: Phase::Waiting,
            config: None,
            awaiting: None,
            redactor: Redactor::default(),
            streams: [stream(STDOUT), stream(STDERR)],
            own: Lines::new(INIT_LOG),
            own_file,
            child: None,
            execs: BTreeMap::new(),
            ended: None,
            end_by: None,
            next_stats: now + STATS,
        })
    }

    /// Until the end.
    pub(crate) fn live(mut self) -> io::Result<()> {
        while !self.is_over() {
            for token in self.wait()? {
                self.ready(token);
            }
            self.reap();
            self.look_at_the_clock();
            self.send();
        }
        self.part();
        self.report()
    }

    /// Leaves the link to the node. A socket that is closed with something
    /// unread takes from the other side what that has not read yet, so
    /// everything is read until the node has closed it too.
    fn part(&mut self) {
        let Some(Talk { stream, .. }) = self.talk.take() else {
            return;
        };
        // Where it is gone already there is nothing to lose.
        let _ = rustix::net::shutdown(&stream, Shutdown::Write);
        let by = Instant::now() + PARTING;
        let mut buffer = [0; 4096];
        while Instant::now() < by {
            let wait = Timespec {
                tv_sec: 0,
                tv_nsec: 50_000_000,
            };
            let mut fds = [PollFd::new(&stream, PollFlags::IN)];
            let _ = rustix::event::poll(&mut fds, Some(&wait));
            match rustix::io::read(&stream, &mut buffer) {
                Ok(1..) | Err(Errno::AGAIN | Errno::INTR) => {}
                Ok(0) | Err(_) => return,
            }
        }
    }

    /// Waits until something happens; says to which descriptors.
    fn wait(&self) -> io::Result<Vec<Token>> {
        let mut interests: Vec<(Token, BorrowedFd<'_>, PollFlags)> = vec![
            (Token::Signals, self.signals.as_fd(), PollFlags::IN),
            (Token::Listener, self.given.listener.as_fd(), PollFlags::IN),
        ];
        for (number, stream) in self.streams.iter().enumerate() {
            if let Some(pipe) = &stream.pipe {
                interests.push((Token::Stream(number), pipe.as_fd(), PollFlags::IN));
            }
        }
        if let Some(talk) = &self.talk {
            let mut flags = PollFlags::empty();
            if !talk.link.is_congested() {
                flags |= PollFlags::IN;
            }
            if talk.link.has_outgoing() {
                flags |= PollFlags::OUT;
            }
            interests.push((Token::Link, talk.stream.as_fd(), flags));
            for exec in self.execs.values() {
                for (part, fd, flags) in exec.interests(&talk.link) {
                    interests.push((Token::Exec(exec.channel, part), fd, flags));
                }
            }
        }
        let mut fds: Vec<PollFd<'_>> = interests
            .iter()
            .map(|(_, fd, flags)| PollFd::from_borrowed_fd(*fd, *flags))
            .collect();
        let timeout = self.deadline().map(|deadline| {
            let left = deadline.saturating_duration_since(Instant::now());
            Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(left.subsec_nanos()),
            }
        });
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let tokens = interests.iter().zip(&fds);
        let tokens = tokens.filter(|(_, fd)| !fd.revents().is_empty());
        Ok(tokens.map(|((token, _, _), _)| *token).collect())
    }

    fn deadline(&self) -> Option<Instant> {
        let child = self.child.as_ref().and_then(|child| child.deadline);
        let stats = self.talk.as_ref().map(|_| self.next_stats);
        let execs = self.execs.values().filter_map(Exec::deadline);
        execs.chain(child).chain(stats).chain(self.end_by).min()
    }

    fn ready(&mut self, token: Token) {
        match token {
            Token::Signals => self.take_signals(),
            Token::Listener => self.accept(),
            Token::Link => self.take_link(),
            Token::Stream(number) => self.take_stream(number),
            Token::Exec(channel, part) => {
                if let (Some(exec), Some(talk)) = (self.execs.get_mut(&channel), &mut self.talk) {
                    exec.ready(part, &mut talk.link);
                }
            }
        }
    }

    fn take_signals(&mut self) {
        let mut buffer = [0; 128];
        let mut told = false;
        while let Ok(length) = rustix::io::read(&self.signals, &mut buffer) {
            let number = buffer.first().copied().filter(|_| length == buffer.len());
            told |= number.map(i32::from) == Some(libc::SIGTERM);
        }
        if told {
            self.stop(None, None, "a signal from outside");
        }
    }

    /// A newer link replaces the older.
    fn accept(&mut self) {
        let flags = rustix::net::SocketFlags::CLOEXEC | rustix::net::SocketFlags::NONBLOCK;
        let Ok(stream) = rustix::net::accept_with(&self.given.listener, flags) else {
            return;
        };
        self.hang_up();
        let mut link = Link::new();
        let hello = FromGuest::Hello(Hello {
            protocol: PROTOCOL,
            init_version: env!("CARGO_PKG_VERSION").to_owned(),
            instance_id: self.given.instance.clone(),
            boot_id: self.given.boot.clone(),
            kernel: rustix::system::uname()
                .release()
                .to_string_lossy()
                .into_owned(),
            features: fluffy_guest::config::FEATURES
                .iter()
                .map(|one| (*one).to_owned())
                .collect(),
            disks: Vec::new(),
        });
        // Far smaller than the most.
        let _ = link.send(&hello);
        self.talk = Some(Talk { stream, link });
        if let Some(ended) = self.ended.clone() {
            self.say(&FromGuest::Status(ended));
        }
    }

    /// The link is gone; the instance goes on.
    fn hang_up(&mut self) {
        self.talk = None;
        self.awaiting = None;
        for exec in self.execs.values_mut() {
            exec.give_up();
        }
        for lines in self.streams.iter_mut().map(|stream| &mut stream.lines) {
            lines.again();
        }
        self.own.again();
    }

    fn take_link(&mut self) {
        let Some(talk) = &mut self.talk else { return };
        let mut buffer = vec![0; PIECE];
        let taken = match rustix::io::read(&talk.stream, &mut buffer) {
            Ok(0) => Err("it was closed".to_owned()),
            Ok(length) => {
                let bytes = buffer.get(..length).unwrap_or_default();
                talk.link.feed(bytes).map_err(|error| error.to_string())
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.to_string()),
        };
        fluffy_guest::link::wipe(&mut buffer);
        if let Err(why) = taken {
            self.note("link_lost", &why);
            self.hang_up();
            return;
        }
        while let Some(event) = self.talk.as_mut().and_then(|talk| talk.link.event()) {
            self.take_event(event);
        }
    }

    fn take_event(&mut self, event: Event) {
        match event {
            Event::Message(message) => self.take_message(&message),
            Event::Secrets(secrets) => self.take_secrets(secrets),
            Event::Credit { channel, bytes } => match channel {
                STDOUT => self.streams[0].lines.taken(bytes),
                STDERR => self.streams[1].lines.taken(bytes),
                INIT_LOG => self.own.taken(bytes),
                _ => {}
            },
            Event::Data { channel, bytes } => {
                if let (Some(exec), Some(talk)) = (self.execs.get_mut(&channel), &mut self.talk) {
                    exec.take(&bytes, &mut talk.link);
                }
            }
            Event::Eof { channel } => {
                if let Some(exec) = self.execs.get_mut(&channel) {
                    exec.end_input();
                }
            }
            Event::Reset { channel } => {
                if let Some(exec) = self.execs.get_mut(&channel) {
                    exec.give_up();
                }
            }
            Event::Begun | Event::Pong => {}
        }
    }

    fn take_message(&mut self, bytes: &[u8]) {
        // A config says itself what is wrong with it.
        let is_config = read_message::<Kind>(bytes).is_ok_and(|kind| kind.name == "config");
        if is_config && self.phase == Phase::Waiting {
            self.take_config(bytes);
            return;
        }
        match read_message(bytes) {
            Ok(message) => self.obey(message),
            Err(error) => self.note("message_refused", &error.to_string()),
        }
    }

    fn obey(&mut self, message: FromHost) {
        match message {
            FromHost::Config(_) => self.note("config_refused", "there is one already"),
            FromHost::StateQuery => self.say_state(),
            FromHost::Stop {
                signal,
                grace_ms,
                reason,
            } => self.stop(signal.as_deref(), grace_ms, &reason),
            FromHost::Signal { signal } => {
                if let (Some(signal), Some(child)) = (process::signal(&signal), &self.child) {
                    let _ = rustix::process::kill_process_group(child.pid, signal);
                }
            }
            FromHost::Freeze { mount, .. } | FromHost::Thaw { mount } => {
                self.say(&FromGuest::FreezeDone {
                    mount,
                    error: Some("there is no such volume here".to_owned()),
                });
            }
            FromHost::ExecOpen(order) => self.open_exec(&order),
            FromHost::ExecResize {
                channel,
                cols,
                rows,
            } => {
                if let Some(exec) = self.execs.get(&channel)
                    && is_size(cols)
                    && is_size(rows)
                {
                    exec.resize(cols, rows);
                }
            }
            FromHost::ExecSignal { channel, signal } => {
                if let (Some(signal), Some(exec)) =
                    (process::signal(&signal), self.execs.get_mut(&channel))
                {
                    exec.signal(signal);
                }
            }
            FromHost::Reject { code } => {
                self.note("rejected", &code);
                self.stop(None, None, &code);
            }
            FromHost::Unknown => self.note("message_unknown", "it is newer than this init"),
        }
    }

    fn take_config(&mut self, bytes: &[u8]) {
        let checked = GuestConfig::read(bytes).and_then(|config| {
            if config.instance_id == self.given.instance {
                Ok(config)
            } else {
                Err(fluffy_guest::config::ConfigError {
                    code: "instance_mismatch",
                    detail: "the config is for another instance".to_owned(),
                })
            }
        });
        match checked {
            Err(error) => {
                self.say(&FromGuest::Nack {
                    code: error.code.to_owned(),
                    detail: error.detail.clone(),
                });
                self.fail(NotStarted::new(error.code, error.detail));
            }
            Ok(config) => {
                let digest = digest(bytes);
                if config.secrets.present {
                    self.awaiting = Some((Box::new(config), digest));
                } else {
                    self.accept_config(Box::new(config), &digest, None);
                }
            }
        }
    }

    fn take_secrets(&mut self, secrets: Hidden) {
        let Some((config, digest)) = self.awaiting.take() else {
            self.note("secrets_refused", "nobody waits for any");
            return;
        };
        if config.secrets.bytes != secrets.0.len() as u64 {
            let detail = "they are not as long as the config says".to_owned();
            self.say(&FromGuest::Nack {
                code: "secrets_missing".to_owned(),
                detail: detail.clone(),
            });
            self.fail(NotStarted::new("secrets_missing", detail));
            return;
        }
        self.accept_config(config, &digest, Some(secrets));
    }

    fn accept_config(&mut self, config: Box<GuestConfig>, digest: &str, secrets: Option<Hidden>) {
        self.say(&FromGuest::Ack {
            config_version: config.config_version.clone(),
            generation: config.generation,
            config_sha256: digest.to_owned(),
        });
        self.phase = Phase::Applying;
        // The node hears of it before anything is done.
        self.send();
        if let Some(secrets) = &secrets
            && config.logs.redact
        {
            self.redactor = crate::secrets::redactor(&secrets.0);
        }
        for stream in &mut self.streams {
            stream.lines.cut_at(config.logs.max_line_bytes);
        }
        let identity = match user::find(&config.user) {
            Ok(identity) => identity,
            Err(detail) => return self.fail(NotStarted::new("bad_user", detail)),
        };
        let secrets = secrets.as_ref().map(|secrets| secrets.0.as_slice());
        if let Err(error) = boot::apply(&config, &identity, secrets, self.given.kernel()) {
            return self.fail(error);
        }
        let mut environment = config.env_vars.clone();
        for (key, value) in [
            ("FLUFFY_INSTANCE_ID", self.given.instance.as_str()),
            ("HOME", identity.home.as_str()),
            ("PATH", PATH),
        ] {
            environment
                .entry(key.to_owned())
                .or_insert_with(|| value.to_owned());
        }
        self.config = Some(Configured {
            config,
            identity,
            environment,
            prestarted: 0,
        });
        self.phase = Phase::Prestart;
        self.tell(Happening::ConfigApplied);
        self.start_next();
    }

    /// The next command before the workload, or the workload.
    fn start_next(&mut self) {
        let Some(configured) = &self.config else {
            return;
        };
        let config = &configured.config;
        let prestart = config.prestart.get(configured.prestarted);
        let command = prestart.map_or(&config.command, |one| &one.command);
        let timeout = prestart.map(|one| Duration::from_secs(one.timeout_seconds));
        let started = self.run(configured, command);
        match started {
            Err(error) => self.fail(error),
            Ok((pid, pipes)) => {
                for (stream, pipe) in self.streams.iter_mut().zip(pipes) {
                    stream.pipe = Some(pipe);
                }
                let now = Instant::now();
                self.child = Some(Child {
                    pid,
                    began: now,
                    is_workload: timeout.is_none(),
                    deadline: timeout.map(|timeout| now + timeout),
                    told: false,
                });
                if timeout.is_none() {
                    self.phase = Phase::Running;
                    let pid = pid.as_raw_nonzero().get().unsigned_abs();
                    self.tell(Happening::WorkloadStarted { pid });
                }
            }
        }
    }

    fn run(
        &self,
        configured: &Configured,
        command: &[String],
    ) -> Result<(Pid, [OwnedFd; 2]), NotStarted> {
        let failed = |error: io::Error| NotStarted::new("exec_permission", error.to_string());
        let (output, near_output) = process::output_pipe().map_err(failed)?;
        let (error, near_error) = process::output_pipe().map_err(failed)?;
        let streams = Streams {
            input: process::nothing().map_err(failed)?,
            output,
            error,
            terminal: false,
        };
        let start = Start {
            command,
            environment: &configured.environment,
            directory: &configured.config.workdir,
            identity: &configured.identity,
            limits: &configured.config.rlimits,
            filter: self.given.filter.as_deref(),
        };
        Ok((start.start(streams)?, [near_output, near_error]))
    }

    fn take_stream(&mut self, number: usize) {
        let Some(stream) = self.streams.get_mut(number) else {
            return;
        };
        let Some(pipe) = &stream.pipe else { return };
        let mut buffer = vec![0; PIECE];
        match rustix::io::read(pipe, &mut buffer) {
            Ok(0) => {
                stream.lines.finish(&self.redactor);
                stream.pipe = None;
            }
            Ok(length) => {
                let bytes = buffer.get(..length).unwrap_or_default();
                stream.lines.take(bytes, &self.redactor);
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(_) => stream.pipe = None,
        }
    }

    /// Reads what is there of the streams, whoever may still hold them.
    fn drain_streams(&mut self) {
        for stream in &mut self.streams {
            let mut buffer = vec![0; PIECE];
            if let Some(pipe) = stream.pipe.take() {
                while let Ok(length @ 1..) = rustix::io::read(&pipe, &mut buffer) {
                    let bytes = buffer.get(..length).unwrap_or_default();
                    stream.lines.take(bytes, &self.redactor);
                }
            }
            stream.lines.finish(&self.redactor);
        }
    }

    /// All that ended, our own and those that lost their parent.
    fn reap(&mut self) {
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            if self.child.as_ref().is_some_and(|child| child.pid == pid) {
                self.child_ended(status);
            } else if let Some(exec) = self.execs.values_mut().find(|exec| exec.pid == pid) {
                exec.ended(status);
            }
        }
        self.finish_execs();
    }

    fn finish_execs(&mut self) {
        let now = Instant::now();
        let mut over = Vec::new();
        let mut words = Vec::new();
        for (channel, exec) in &mut self.execs {
            if !exec.is_wanted() {
                if exec.look(now) {
                    over.push(*channel);
                }
            } else if let Some(talk) = &mut self.talk
                && let Some(exit) = exec.finish(&mut talk.link)
            {
                words.push(exit);
                match exec.leaves_others() {
                    true => exec.give_up(),
                    false => over.push(*channel),
                }
            }
        }
        for word in words {
            self.say(&word);
        }
        for channel in over {
            self.execs.remove(&channel);
            if let Some(talk) = &mut self.talk {
                talk.link.close(channel);
                talk.link.close(channel + 1);
            }
        }
    }

    fn child_ended(&mut self, status: WaitStatus) {
        let Some(child) = self.child.take() else {
            return;
        };
        if child.is_workload {
            // It is the instance: whatever it started ends with it.
            call::signal_everyone(Signal::KILL);
            self.drain_streams();
            let runtime_ms = millis(child.began.elapsed());
            self.end(Happening::Exited {
                exit_code: status.exit_status(),
                signal: status.terminating_signal(),
                oom: false,
                runtime_ms,
            });
            return;
        }
        self.drain_streams();
        if child.told {
            let detail = "it was stopped before the workload ran";
            self.fail(NotStarted::new("prestart_failed", detail));
        } else if child.deadline.is_none() {
            self.fail(NotStarted::new(
                "prestart_timeout",
                "it did not end in time",
            ));
        } else if status.exit_status() != Some(0) {
            let how = match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => format!("it ended with code {code}"),
                (None, Some(signal)) => format!("it ended by signal {signal}"),
                (None, None) => "it ended".to_owned(),
            };
            self.fail(NotStarted::new("prestart_failed", how));
        } else {
            if let Some(configured) = &mut self.config {
                configured.prestarted += 1;
            }
            self.start_next();
        }
    }

    fn look_at_the_clock(&mut self) {
        let now = Instant::now();
        if let Some(child) = &mut self.child
            && child.deadline.is_some_and(|deadline| deadline <= now)
        {
            child.deadline = None;
            call::signal_everyone(Signal::KILL);
        }
        if self.next_stats <= now {
            self.next_stats = now + STATS;
            if self.talk.is_some() {
                self.say(&FromGuest::Stats(stats()));
            }
        }
    }

    /// Ends the workload, or whatever there is.
    fn stop(&mut self, signal: Option<&str>, grace_ms: Option<u64>, reason: &str) {
        self.note("stop", reason);
        let Some(configured) = &self.config else {
            let detail = "it was stopped before it had a config";
            return self.fail(NotStarted::new("config_invalid", detail));
        };
        let stop = &configured.config.stop;
        let most = Duration::from_secs(fluffy_guest::config::MAX_GRACE);
        let grace = grace_ms.map_or(
            Duration::from_secs(stop.grace_seconds),
            Duration::from_millis,
        );
        let signal = process::signal(signal.unwrap_or(&stop.signal)).unwrap_or(Signal::TERM);
        let Some(child) = &mut self.child else {
            // It ended already: the node has heard enough.
            self.end_by = Some(Instant::now());
            return;
        };
        let deadline = Instant::now() + grace.min(most);
        // A second stop may shorten the grace, never lengthen it.
        let sooner = child
            .deadline
            .filter(|before| child.told && *before < deadline);
        child.deadline = Some(sooner.unwrap_or(deadline));
        child.told = true;
        let pid = child.pid;
        self.phase = Phase::Stopping;
        let _ = rustix::process::kill_process_group(pid, signal);
    }

    fn open_exec(&mut self, order: &ExecOpen) {
        let opened = self.start_exec(order);
        let Some(talk) = &mut self.talk else { return };
        let channel = order.channel;
        let answer = match opened {
            Ok(exec) => {
                talk.link.open(channel);
                talk.link.open(channel + 1);
                let pid = exec.pid.as_raw_nonzero().get().unsigned_abs();
                self.execs.insert(channel, exec);
                FromGuest::ExecOpened { channel, pid }
            }
            Err(NotStarted { code, detail }) => FromGuest::ExecError {
                channel,
                code: code.to_owned(),
                detail,
            },
        };
        self.say(&answer);
    }

    fn start_exec(&self, order: &ExecOpen) -> Result<Exec, NotStarted> {
        order
            .check()
            .map_err(|error| NotStarted::new(error.code, error.detail))?;
        let configured = self
            .config
            .as_ref()
            .filter(|_| self.phase == Phase::Running);
        let configured = configured
            .ok_or_else(|| NotStarted::new("instance_not_running", "the workload does not run"))?;
        let exec = &configured.config.exec;
        if !exec.enabled {
            return Err(NotStarted::new(
                "exec_disabled",
                "this instance takes no commands",
            ));
        }
        let most = usize::try_from(exec.max_sessions).unwrap_or(usize::MAX);
        let running = self.execs.values().filter(|exec| exec.is_wanted()).count();
        if running >= most || self.execs.contains_key(&order.channel) {
            return Err(NotStarted::new(
                "exec_limit",
                format!("{running} commands run already"),
            ));
        }
        let mut environment = configured.environment.clone();
        if order.tty {
            environment.insert("TERM".to_owned(), "xterm-256color".to_owned());
        }
        environment.extend(order.env.clone());
        let root = Identity {
            uid: 0,
            gid: 0,
            groups: Vec::new(),
            home: "/root".to_owned(),
        };
        if order.as_root {
            environment.insert("HOME".to_owned(), root.home.clone());
        }
        let start = Start {
            command: &order.command,
            environment: &environment,
            directory: &configured.config.workdir,
            identity: if order.as_root {
                &root
            } else {
                &configured.identity
            },
            limits: &configured.config.rlimits,
            filter: self.given.filter.as_deref(),
        };
        Exec::start(order, &start)
    }

    fn say(&mut self, message: &FromGuest) {
        if let Some(talk) = &mut self.talk {
            // Far smaller than the most: every text in it is bounded.
            let _ = talk.link.send(message);
        }
    }

    fn tell(&mut self, what: Happening) -> Status {
        let status = Status {
            mono_ms: millis(self.born.elapsed()),
            what,
        };
        self.say(&FromGuest::Status(status.clone()));
        status
    }

    /// The workload will never run.
    fn fail(&mut self, error: NotStarted) {
        self.note(error.code, &error.detail);
        call::signal_everyone(Signal::KILL);
        self.end(Happening::Failed {
            code: error.code.to_owned(),
            detail: error.detail,
        });
    }

    fn end(&mut self, what: Happening) {
        if self.ended.is_some() {
            return;
        }
        self.phase = Phase::Ended;
        self.child = None;
        // Lines come before the end that they explain.
        self.send_lines();
        self.ended = Some(self.tell(what));
        self.end_by = Some(Instant::now() + LAST_WORDS);
    }

    /// Whether everything is said, or it is too late for that.
    fn is_over(&self) -> bool {
        let Some(by) = self.end_by else { return false };
        let heard = self
            .talk
            .as_ref()
            .is_some_and(|talk| !talk.link.has_outgoing())
            && self
                .streams
                .iter()
                .all(|stream| stream.lines.is_delivered())
            && self.execs.values().all(|exec| !exec.is_wanted());
        heard || Instant::now() >= by
    }

    fn say_state(&mut self) {
        let workload = self.child.as_ref().filter(|child| child.is_workload);
        let state = State {
            boot_id: self.given.boot.clone(),
            phase: self.phase,
            generation: self.config.as_ref().map_or(0, |one| one.config.generation),
            workload_pid: workload.map(|one| one.pid.as_raw_nonzero().get().unsigned_abs()),
            workload_started_mono_ms: workload
                .map(|one| millis(one.began.saturating_duration_since(self.born))),
            ended: self.ended.clone(),
            exec_sessions: self
                .execs
                .keys()
                .copied()
                .filter(|one| *one >= FIRST_EXEC)
                .collect(),
            log_sequences: [
                self.streams[0].lines.sequence(),
                self.streams[1].lines.sequence(),
                self.own.sequence(),
            ],
        };
        self.say(&FromGuest::State(state));
    }

    /// A line of init's own log. Never a value of a variable or a secret.
    fn note(&mut self, what: &str, detail: &str) {
        let line = serde_json::json!({
            "component": "init", "mono_ms": millis(self.born.elapsed()),
            "msg": what, "detail": detail.chars().take(1_024).collect::<String>(),
        });
        let line = line.to_string();
        if let Some(file) = &mut self.own_file
            && file.metadata().is_ok_and(|meta| meta.len() < OWN_LOG)
        {
            let _ = writeln!(file, "{line}");
        }
        self.own.put(line.into_bytes(), false);
    }

    fn send_lines(&mut self) {
        if let Some(talk) = &mut self.talk {
            for stream in &mut self.streams {
                stream.lines.send(&mut talk.link);
            }
            self.own.send(&mut talk.link);
        }
    }

    fn send(&mut self) {
        self.send_lines();
        let Some(talk) = &mut self.talk else { return };
        while talk.link.has_outgoing() {
            match rustix::io::write(&talk.stream, talk.link.outgoing()) {
                Ok(written) => talk.link.written(written),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return,
                Err(_) => return self.hang_up(),
            }
        }
    }

    /// For whoever reaps this process.
    fn report(self) -> io::Result<()> {
        let mut report = serde_json::to_vec(&self.ended).map_err(io::Error::other)?;
        report.push(b'\n');
        File::from(self.given.report).write_all(&report)
    }
}

/// Just enough of a message to see what it is.
#[derive(serde::Deserialize)]
struct Kind {
    #[serde(rename = "type")]
    name: String,
}

fn digest(bytes: &[u8]) -> String {
    use sha2::Digest;
    let digest = sha2::Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// What the instance uses, as far as it can see itself.
fn stats() -> Stats {
    let page = rustix::param::page_size() as u64;
    let mut stats = Stats::default();
    for pid in process::processes() {
        stats.processes += 1;
        let resident = std::fs::read_to_string(format!("/proc/{pid}/statm"))
            .ok()
            .and_then(|text| text.split(' ').nth(1)?.parse::<u64>().ok());
        stats.memory_bytes += resident.unwrap_or(0) * page;
    }
    let first = |path: &str| std::fs::read_to_string(path).ok();
    stats.memory_total_bytes = first("/proc/meminfo")
        .and_then(|text| {
            text.lines()
                .next()?
                .split_ascii_whitespace()
                .nth(1)?
                .parse()
                .ok()
        })
        .map_or(0, |kib: u64| kib << 10);
    stats.load_milli = first("/proc/loadavg")
        .and_then(|text| {
            let (whole, rest) = text.split_once(' ')?.0.split_once('.')?;
            let hundredths: u64 = rest.parse().ok()?;
            Some(whole.parse::<u64>().ok()? * 1_000 + hundredths * 10)
        })
        .unwrap_or(0);
    if let Ok(root) = rustix::fs::statvfs("/") {
        stats.mounts.push(MountStats {
            path: "/".to_owned(),
            used_bytes: root.f_blocks.saturating_sub(root.f_bfree) * root.f_frsize,
            total_bytes: root.f_blocks * root.f_frsize,
        });
    }
    stats
}
