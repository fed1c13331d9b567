//! One person's conversation with a server: login, order, session consistency.
//!
//! Every write carries a key, so that it happens once; every read waits for
//! what this context wrote before. A token goes only to the server it is from.
//! Next: `call.rs` for commands that are one call.

use std::future::Future;
use std::io;
use std::path::Path;

use fluffy_api::Operation;
use fluffy_api::client::{
    self, Answer, Ask, CallError, Client, ExecReceiver, ExecSender, Seen, Watch,
};
use fluffy_config::Paths;
use fluffy_report::{ExitCode, Report};
use fluffy_secret::SecretString;
use serde_json::{Value, json};

use super::contexts::Login;
use super::refusal;
use super::target::{Flags, Server, Target};
use crate::failure::{self, Failure};
use crate::session::Session;

/// The largest file of certificates.
const MAX_PEM: u64 = 1 << 20;

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
        if is_code(&answer, "token_expired") && self.refresh().await {
            answer = self.client().await?.call(call.ask(operation, &path)).await;
        }
        let wrote = operation.spec().is_write();
        if let Some(seen) = answer
            .as_ref()
            .ok()
            .and_then(|it| it.seen)
            .filter(|_| wrote)
        {
            (self.login.last_seq, self.login.epoch) = (seen.seq, seen.epoch);
            // A lost note costs only freshness.
            let _ = self.login.write(self.paths, &self.target.context);
        }
        answer
    }

    /// Opens a list as a stream.
    pub(crate) async fn watch(
        &mut self,
        operation: Operation,
        call: &Call,
        after: Option<u64>,
    ) -> Result<Watch, CallError> {
        let path = call.path();
        let ask = call.ask(operation, &path);
        let opened = self.client().await?.watch(ask.clone(), after).await;
        if is_code(&opened, "token_expired") && self.refresh().await {
            return self.client().await?.watch(ask, after).await;
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

    /// Takes new tokens, and keeps them.
    pub(crate) fn log_in(&mut self, access: &str, refresh: Option<String>) -> Result<(), Failure> {
        self.token = Some(SecretString::from(access.to_owned()));
        self.login.set_tokens(Some(access.to_owned()), refresh);
        self.login.write(self.paths, &self.target.context)
    }

    /// Forgets the tokens.
    pub(crate) fn log_out(&self) -> Result<(), Failure> {
        Login::remove(self.paths, &self.target.context)
    }

    /// The client, with what proves who calls.
    async fn client(&mut self) -> Result<Client, CallError> {
        let client = match &self.client {
            Some(client) => client.clone(),
            None => {
                let client = Client::connect(self.server.clone()).await?;
                if self.login.last_seq > 0 {
                    client.remember(Seen {
                        epoch: self.login.epoch,
                        seq: self.login.last_seq,
                    });
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
    async fn refresh(&mut self) -> bool {
        let held = self.login.refresh_token();
        let held = held.filter(|_| self.target.token.is_none());
        let (Some(refresh), Some(client)) = (held, self.client.clone()) else {
            return false;
        };
        let body = json!({"grant_type": "refresh_token", "refresh_token": refresh.expose()});
        let ask = Ask::new(Operation::ExchangeToken, &[]).body(&body);
        let Ok(answer) = client.call(ask).await else {
            return false;
        };
        let text = |name: &str| answer.value.get(name).and_then(Value::as_str);
        let next = text("refresh_token").map(str::to_owned);
        text("access_token").is_some_and(|access| self.log_in(access, next).is_ok())
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
