//! The door of exec sessions: a request that becomes a WebSocket.
//!
//! The token alone opens it, and only once; every other caller hears the same.
//! What is said then is carried by `gateway`. Next: `crate::gateway`.

use std::time::Duration;

use fluffy_api::Problem;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::header::{self, HeaderName};
use hyper::http::request::Parts;
use hyper::upgrade::OnUpgrade;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;

use super::answer::{self, Reply};
use super::backend::{Backend, OpenExec, OpenedExec, Opening};
use crate::credential::{self, CredentialKind};
use crate::gateway::{self, Handshake};
use crate::peers::Peer;

/// What another replica has to know of a request to let it in.
const HANDED_ON: [HeaderName; 6] = [
    header::AUTHORIZATION,
    header::CONNECTION,
    header::UPGRADE,
    header::SEC_WEBSOCKET_KEY,
    header::SEC_WEBSOCKET_PROTOCOL,
    header::SEC_WEBSOCKET_VERSION,
];

/// The largest refusal of another replica.
const MAX_REFUSAL: usize = 64 << 10;

/// Opens a session and answers that the connection is now its own.
pub(super) async fn connect<B: Backend>(
    backend: &B,
    head: &Parts,
    mut ask: OpenExec,
    upgrade: OnUpgrade,
) -> Result<Reply, Box<Problem>> {
    let handshake = Handshake::read(&head.headers).map_err(|error| {
        let fix = "open it as a WebSocket with the subprotocol `fluffy.exec.v1`";
        Box::new(Problem::new("invalid_argument", error.to_string(), fix))
    })?;
    match handshake.token.as_deref().and_then(credential::recognise) {
        Some((CredentialKind::Exec, hash)) => ask.token = Some(hash),
        Some((CredentialKind::Resume, hash)) => ask.resume = Some(hash),
        _ => {}
    }
    match backend.open_exec(ask).await.map_err(answer::problem)? {
        Opening::Here(opened) => drop(tokio::spawn(carry(*opened, upgrade))),
        Opening::Again(clients) => drop(tokio::spawn(async move {
            if let Ok(stream) = upgrade.await {
                // Where nobody takes it, its session has just ended.
                let _ = clients.send(TokioIo::new(stream)).await;
            }
        })),
        Opening::Elsewhere(peer) => hand_on(&peer, head, upgrade).await?,
    }
    Ok(Reply::switch(handshake.answer))
}

/// Has the replica of the node let the client in, and joins the two.
async fn hand_on(peer: &Peer, head: &Parts, upgrade: OnUpgrade) -> Result<(), Box<Problem>> {
    let unreached = || {
        let why = "the server that the instance's node is connected to does not answer";
        answer::unavailable(why, Duration::from_secs(1))
    };
    let mut request = Request::get(head.uri.path()).body(Empty::new());
    if let Ok(request) = &mut request {
        for name in HANDED_ON {
            for value in head.headers.get_all(&name) {
                request.headers_mut().append(name.clone(), value.clone());
            }
        }
    }
    let request = request.map_err(|_| unreached())?;
    let answered = peer.send(request).await.map_err(|_| unreached())?;
    if answered.status() != StatusCode::SWITCHING_PROTOCOLS {
        let refusal = Limited::new(answered.into_body(), MAX_REFUSAL).collect();
        let refusal = refusal.await.map_err(|_| unreached())?.to_bytes();
        let problem = serde_json::from_slice(&refusal).map_err(|_| unreached())?;
        return Err(Box::new(problem));
    }
    tokio::spawn(async move {
        // Whoever is gone ends it for the other.
        if let (Ok(client), Ok(there)) = (upgrade.await, hyper::upgrade::on(answered).await) {
            let (mut client, mut there) = (TokioIo::new(client), TokioIo::new(there));
            let _ = tokio::io::copy_bidirectional(&mut client, &mut there).await;
        }
    });
    Ok(())
}

async fn carry(opened: OpenedExec, upgrade: OnUpgrade) {
    let OpenedExec {
        link,
        terms,
        revoked,
        rejoin,
        ended,
    } = opened;
    // A client that is gone before it was let in drops the link, which ends
    // the session; whoever waits for its end hears that nobody will say more.
    if let Ok(stream) = upgrade.await {
        let end = gateway::carry(TokioIo::new(stream), link, terms, revoked, rejoin).await;
        let _ = ended.send(end);
    }
}
