//! One person's conversation with a server: login, order, session consistency.
//!
//! Every write carries a key, so that it happens once; every read waits for
//! what this context wrote before. A token goes only to the server it is from.
//! Next: `call.rs` for commands that are one call.

use std::future::Future;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use fluffy_api::Operation;
use fluffy_api::client::{
    self, Answer, Ask, CallError, Client, ExecReceiver, ExecSender, Seen, Watch,
};
use fluffy_config::Paths;
use fluffy_report::{ExitCode, Report};
use fluffy_secret::SecretString;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::contexts::{LOOK, Login, LoginLock, PATIENCE};
use super::refusal;
use super::target::{Flags, Server, Target};
use crate::failure::{self, Failure};
use crate::session::Session;

/// The largest file of certificates.
const MAX_PEM: u64 = 1 << 20;

/// How long a note of what was seen waits for its turn.
const NOTE_PATIENCE: Duration = Duration::from_secs(1);

/// What is asked, as it was typed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Call {
    /// What the path names, in order.
    pub(crate) path: Vec<String>,
    /// What stands behind the question mark.
    pub(crate) query: Vec<(String, String)>,
    pub(crate) body: Option<Value>,
    /// The version that a change is meant for.
    pub(crate) if_match: Option<u64>,
}

/// A server, and what is known of the conversation with it.
pub(crate) struct Asker<'a> {
    pub(crate) session: &'a Session,
    pub(crate) paths: &'a Paths,
    pub(crate) target: Target,
    server: client::Target,
    client: Option<Client>,
    token: Option<SecretString>,
    login: Login,
}

impl<'a> Asker<'a> {
    /// Finds the server and the login; nothing is sent yet.
    pub(crate) fn new(session: &'a Session, flags: &Flags) -> Result<Self, Failure> {
        let target = Target::find(session, flags)?;
        let paths = &session.here()?.paths;
        let server = match &target.server {
            Server::Socket(path) => client::Target::Socket(path.clone()),
            Server::Https { url, ca } => client::Target::Https {
                url: url.clone(),
                ca: ca.as_deref().map(read_pem).transpose()?,
            },
        };
        let login = target.login(paths);
        Ok(Self {
            session,
            paths,
            server,
            client: None,
            token: target
                .token
                .as_ref()
                .map(copy)
                .or_else(|| login.access_token()),
            target,
            login,
        })
    }

    /// Asks one operation; a write is sent so that it happens once.
    pub(crate) async fn call(
        &mut self,
        operation: Operation,
        call: Call,
    ) -> Result<Answer, Failure> {
        let words = operation.spec().cli;
        self.try_call(operation, &call)
            .await
            .map_err(|error| refusal::failed(&error, words).into())
    }

    /// As [`Asker::call`], for who can do something about an error.
    pub(crate) async fn try_call(
        &mut self,
        operation: Operation,
        call: &Call,
    ) -> Result<Answer, CallError> {
        let path = call.path();
        let mut answer = self.client().await?.call(call.ask(operation, &path)).await;
        // Tokens that another command got in the meantime may be old as well.
        for _ in 0..2 {
            if is_code(&answer, "token_expired") && self.refresh().await {
                answer = self.client().await?.call(call.ask(operation, &path)).await;
            }
        }
        self.unlearn().await;
        let wrote = operation.spec().is_write();
        if let Some(seen) = answer
            .as_ref()
            .ok()
            .and_then(|it| it.seen)
            .filter(|_| wrote)
        {
            self.note((seen.epoch, seen.seq)).await;
        }
        answer
    }

    /// Asks once, and leaves the login as it is whatever the answer.
    pub(crate) async fn glance(
        &mut self,
        operation: Operation,
        call: &Call,
    ) -> Result<Answer, CallError> {
        let path = call.path();
        self.client().await?.call(call.ask(operation, &path)).await
    }

    /// Keeps where this person's own writes have come to; a note that is lost
    /// costs only freshness. Tokens stay as they are found.
    async fn note(&mut self, seen: (u64, u64)) {
        let (paths, context) = (self.paths, self.target.context.clone());
        let Some(lock) = locked(paths, &context, NOTE_PATIENCE).await else {
            return;
        };
        let mut held = self.target.login(paths);
        // What another command noted meanwhile may be later. What is only old
        // may be of a ledger that is gone, and would be waited for in vain.
        let seen = match held.seen() == self.login.seen() {
            true => seen,
            false => seen.max(held.seen()),
        };
        held.saw(seen);
        if held.write(&lock).is_ok() {
            self.login = held;
        }
    }

    /// Takes note that the server's ledger never had what was last seen.
    async fn unlearn(&mut self) {
        let seen = self.client.as_ref().and_then(Client::seen);
        let seen = seen.map(|it| (it.epoch, it.seq));
        if let Some(seen) = seen.filter(|seen| *seen < self.login.seen()) {
            // A lost note costs a moment at the next call.
            self.note(seen).await;
        }
    }

    /// Opens a list as a stream.
    pub(crate) async fn watch(
        &mut self,
        operation: Operation,
        call: &Call,
        after: Option<u64>,
    ) -> Result<Watch, CallError> {
        let after = after.map(|after| after.to_string());
        self.resume(operation, call, after.as_deref()).await
    }

    /// Opens a stream where it was, by the id of its last change.
    pub(crate) async fn resume(
        &mut self,
        operation: Operation,
        call: &Call,
        after: Option<&str>,
    ) -> Result<Watch, CallError> {
        let path = call.path();
        let ask = call.ask(operation, &path);
        let mut opened = self.client().await?.resume(ask.clone(), after).await;
        for _ in 0..2 {
            if is_code(&opened, "token_expired") && self.refresh().await {
                opened = self.client().await?.resume(ask.clone(), after).await;
            }
        }
        opened
    }

    /// Opens an exec session that was granted.
    pub(crate) async fn exec(
        &mut self,
        org: &str,
        id: &str,
        token: &SecretString,
    ) -> Result<(ExecSender, ExecReceiver), CallError> {
        self.client().await?.exec(org, id, token).await
    }

    /// Uses a token from now on, without keeping it.
    pub(crate) fn try_token(&mut self, access: &str) {
        self.token = Some(SecretString::from(access.to_owned()));
    }

    /// Takes new tokens, and keeps them.
    pub(crate) fn log_in(&mut self, access: &str, refresh: Option<String>) -> Result<(), Failure> {
        let lock = LoginLock::wait(self.paths, &self.target.context, PATIENCE)?;
        let mut held = self.target.login(self.paths);
        held.set_tokens(Some(access.to_owned()), refresh);
        held.write(&lock)?;
        drop(lock);
        self.login = held;
        self.try_token(access);
        Ok(())
    }

    /// Forgets the tokens for this server.
    pub(crate) fn log_out(&self) -> Result<(), Failure> {
        let lock = LoginLock::wait(self.paths, &self.target.context, PATIENCE)?;
        Login::remove(&lock, &self.target.server.to_string())
    }

    /// The client, with what proves who calls.
    pub(crate) async fn client(&mut self) -> Result<Client, CallError> {
        let client = match &self.client {
            Some(client) => client.clone(),
            None => {
                let client = Client::connect(self.server.clone()).await?;
                let (epoch, seq) = self.login.seen();
                if seq > 0 {
                    client.remember(Seen { epoch, seq });
                }
                self.client.insert(client).clone()
            }
        };
        Ok(match &self.token {
            Some(token) => client.with_token(copy(token)),
            None => client,
        })
    }

    /// Exchanges the refresh token; whether that worked.
    ///
    /// A refresh token is good for once, and sent twice it ends the login. So
    /// it is read, sent and replaced by one command at a time; who comes later
    /// finds what the first one got.
    async fn refresh(&mut self) -> bool {
        let (None, Some(client)) = (&self.target.token, self.client.clone()) else {
            return false;
        };
        let (paths, context) = (self.paths, self.target.context.clone());
        let Some(lock) = locked(paths, &context, PATIENCE).await else {
            return false;
        };
        let mut held = self.target.login(paths);
        let used = self.token.as_ref().map(|token| token.expose().clone());
        if let Some(newer) = held.access_token()
            && used.as_ref() != Some(newer.expose())
        {
            self.login = held;
            self.token = Some(newer);
            return true;
        }
        let Some(refresh) = held.refresh_token() else {
            return false;
        };
        let body = json!({"grant_type": "refresh_token", "refresh_token": refresh.expose()});
        let ask = Ask::new(Operation::ExchangeToken, &[]).body(&body);
        let Ok(answer) = client.call(ask).await else {
            return false;
        };
        let text = |name: &str| answer.value.get(name).and_then(Value::as_str);
        let Some(access) = text("access_token") else {
            return false;
        };
        let next = text("refresh_token").map(str::to_owned);
        held.set_tokens(Some(access.to_owned()), next);
        let kept = held.write(&lock).is_ok();
        self.login = held;
        self.try_token(access);
        kept
    }
}

/// The lock of a login, as soon as it is free; none after so long.
async fn locked<'a>(
    paths: &'a Paths,
    context: &'a str,
    patience: Duration,
) -> Option<LoginLock<'a>> {
    let began = Instant::now();
    loop {
        match LoginLock::take(paths, context) {
            Ok(Some(lock)) => return Some(lock),
            Ok(None) if began.elapsed() < patience => sleep(LOOK).await,
            Ok(None) | Err(_) => return None,
        }
    }
}

impl Call {
    fn path(&self) -> Vec<&str> {
        self.path.iter().map(String::as_str).collect()
    }

    fn ask<'a>(&'a self, operation: Operation, path: &'a [&'a str]) -> Ask<'a> {
        let mut ask = Ask::new(operation, path);
        for (name, value) in &self.query {
            ask = ask.query(name, value);
        }
        if let Some(body) = &self.body {
            ask = ask.body(body);
        }
        match self.if_match {
            Some(version) => ask.if_match(version),
            None => ask,
        }
    }
}

/// Secrets are copied on purpose or not at all.
fn copy(secret: &SecretString) -> SecretString {
    SecretString::from(secret.expose().clone())
}

fn is_code<T>(answer: &Result<T, CallError>, code: &str) -> bool {
    matches!(answer, Err(CallError::Refused(problem)) if problem.code == code)
}

/// Runs something that talks, until it ends or the person interrupts it.
pub(crate) fn block<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| failure::no_threads(&error))?;
    runtime.block_on(work)
}

fn read_pem(path: &Path) -> Result<String, Failure> {
    let read = || -> io::Result<String> {
        let mut text = String::new();
        let file = std::fs::File::open(path)?;
        io::Read::read_to_string(&mut io::Read::take(file, MAX_PEM), &mut text)?;
        Ok(text)
    };
    read().map_err(|error| {
        Report::new(
            ExitCode::Usage,
            format!("cannot read the certificates in `{}`", path.display()),
        )
        .why(error.to_string())
        .fix("name a file in PEM form: fluffy context set NAME --ca FILE")
        .into()
    })
}
