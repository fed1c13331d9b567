//! The door of exec sessions: a request that becomes a WebSocket.
//!
//! The token alone opens it, and only once; every other caller hears the same.
//! What is said then is carried by `gateway`. Next: `crate::gateway`.

use fluffy_api::Problem;
use fluffy_base::Digest;
use hyper::HeaderMap;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use super::answer::{self, Reply};
use super::backend::{Backend, OpenExec, OpenedExec};
use crate::credential::{self, CredentialKind};
use crate::gateway::{self, Handshake};

/// Opens a session and answers that the connection is now its own.
pub(super) async fn connect<B: Backend>(
    backend: &B,
    headers: &HeaderMap,
    mut ask: OpenExec,
    upgrade: OnUpgrade,
) -> Result<Reply, Box<Problem>> {
    let handshake = Handshake::read(headers).map_err(|error| {
        let fix = "open it as a WebSocket with the subprotocol `fluffy.exec.v1`";
        Box::new(Problem::new("invalid_argument", error.to_string(), fix))
    })?;
    ask.token = handshake.token.as_deref().and_then(exec_token);
    let opened = backend.open_exec(ask).await.map_err(answer::problem)?;
    tokio::spawn(carry(opened, upgrade));
    Ok(Reply::switch(handshake.answer))
}

async fn carry(opened: OpenedExec, upgrade: OnUpgrade) {
    let OpenedExec {
        link,
        longest,
        revoked,
        ended,
    } = opened;
    // A client that is gone before it was let in drops the link, which ends
    // the session; whoever waits for its end hears that nobody will say more.
    if let Ok(stream) = upgrade.await {
        let end = gateway::carry(TokioIo::new(stream), link, longest, revoked).await;
        let _ = ended.send(end);
    }
}

fn exec_token(text: &str) -> Option<Digest> {
    let (kind, hash) = credential::recognise(text)?;
    (kind == CredentialKind::Exec).then_some(hash)
}
