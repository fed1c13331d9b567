//! The other replicas: where each is, and which of them a node is connected to.
//!
//! A replica says beside the ledger where it is, and a node's sign of life says
//! who heard it. What only that replica can do is asked of it, over TLS to the
//! cluster's root: an exec session is handed on whole and decided there, as any
//! client's is; lines are asked for with a ticket that only a holder of the
//! master keys can make. Nobody else gains anything by knowing these ways.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use fluffy_api::types;
use fluffy_base::Timestamp;
use fluffy_base::id::{EnvId, NodeId};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{HOST, HeaderValue};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};
use zeroize::Zeroizing;

use crate::aside::{Aside, AsideError, Kind};
use crate::errand::{Done, Sent};
use crate::logs::{Cursor, MOST_TEXT};
use crate::platform::Platform;
use crate::safe::Safe;
use crate::vitals::Vitals;

/// Where replicas ask each other for lines.
pub(crate) const LOGS: &str = "/replica/logs";
/// Where they ask each other for what nodes do at once.
pub(crate) const ERRAND: &str = "/replica/errand";
/// The header with the ticket.
pub(crate) const TICKET: &str = "fluffy-ticket";
/// The header of the answer that says how far its replica looked.
pub(crate) const THROUGH: &str = "fluffy-log-cursor";

/// Replicas that live, by name.
const REPLICAS: Kind = Kind::new("replica");
/// How long a sign of life is believed.
const ALIVE: Duration = Duration::from_secs(20);
/// More replicas than anybody has.
const MOST: u32 = 1_000;
/// How long a connection to another replica may take, and its answer.
const PATIENCE: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(10));
/// What a ticket is for, and how long it is good.
const PURPOSE: &str = "fluffy-replica-v1";
const ERRAND_PURPOSE: &str = "fluffy-replica-errand-v1";
const GOOD: Duration = Duration::from_secs(60);
/// The largest answer of another replica: the text of one look, each byte of
/// which may be six in JSON, and what stands around 10,000 lines.
const MAX_ANSWER: usize = 8 * MOST_TEXT;
const MAX_DONE: usize = 1 << 20;

/// The other replicas; to be cloned freely.
#[derive(Clone)]
pub struct Peers {
    inner: Arc<Inner>,
}

struct Inner {
    aside: Aside,
    vitals: Vitals,
    safe: Safe,
    /// The name of this replica.
    own: String,
    place: OnceLock<Place>,
    tls: TlsConnector,
}

/// Where a replica is for the others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Host and port.
    pub address: String,
    /// A name that its certificate is for.
    pub name: String,
}

/// Another replica that lives.
#[derive(Clone)]
pub struct Peer {
    place: Place,
    tls: TlsConnector,
}

/// Which lines are wanted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// Of which env.
    pub env: EnvId,
    /// Only of this process type.
    pub process: Option<String>,
    /// Only of this instance.
    pub instance: Option<String>,
    /// Only of this stream, as the interface names it.
    #[serde(default)]
    pub stream: Option<String>,
    /// From then on.
    pub since: Timestamp,
    /// Until then.
    pub until: Timestamp,
    /// The last so many.
    pub tail: usize,
    /// Whether somebody follows, and from where.
    #[serde(default)]
    pub reach: Reach,
}

/// Which lines of a window are wanted.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Reach {
    /// The last ones, by their time.
    #[default]
    Look,
    /// The last ones that came: somebody begins to follow.
    Begin,
    /// Those that came after what somebody has who follows.
    From(Cursor),
}

/// What one replica has.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Told {
    /// The lines.
    pub lines: Vec<Line>,
    /// How far it looked.
    pub through: Cursor,
}

/// One line, with what tells it from every other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// The boot that printed it.
    pub boot: String,
    /// Its number in its stream.
    pub seq: u64,
    /// The store that it is from.
    #[serde(default)]
    pub store: String,
    /// Its number there.
    #[serde(default)]
    pub arrival: u64,
    /// Where somebody is who has had it; between replicas nobody is anywhere.
    #[serde(skip)]
    pub cursor: String,
    /// The line.
    pub line: types::LogLine,
}

/// What a ticket says.
#[derive(Debug, Serialize, Deserialize)]
struct Ticket {
    at: Timestamp,
    wanted: Wanted,
}

/// What a ticket for an errand says.
#[derive(Debug, Serialize, Deserialize)]
struct ErrandTicket {
    at: Timestamp,
    sent: Sent,
}

impl Place {
    /// Where others find a replica that listens here, unless it says
    /// otherwise: at this address, or at this machine's name if it is all.
    #[must_use]
    pub fn of(listening: SocketAddr, names: &[String]) -> Self {
        let address = match listening.ip().is_unspecified() {
            false => listening.to_string(),
            true => {
                let machine = rustix::system::uname();
                let host = machine.nodename().to_string_lossy();
                format!("{host}:{}", listening.port())
            }
        };
        let name = names.first().map_or("localhost", String::as_str).to_owned();
        Self { address, name }
    }
}

impl Peers {
    /// The replicas beside this one, which are believed by this root.
    ///
    /// # Errors
    /// The root can't be used.
    pub fn new(platform: &Platform, safe: Safe, root: &[u8]) -> Result<Self, rustls::Error> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from(root.to_vec()))?;
        let provider = Arc::new(ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?;
        let mut config = config.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self {
            inner: Arc::new(Inner {
                aside: platform.aside().clone(),
                vitals: Vitals::new(platform.aside().clone()),
                safe,
                own: platform.replica().to_owned(),
                place: OnceLock::new(),
                tls: TlsConnector::from(Arc::new(config)),
            }),
        })
    }

    /// Takes note of where this replica is; once.
    pub fn set_place(&self, place: Place) {
        let _ = self.inner.place.set(place);
    }

    /// Says that this replica lives and where; how many do.
    ///
    /// # Errors
    /// The store beside the ledger is not available.
    pub async fn say_alive(&self) -> Result<u64, AsideError> {
        let Inner { aside, own, .. } = &*self.inner;
        let place = self.inner.place.get();
        // Two texts always have this form.
        let place = place.map(|place| postcard::to_allocvec(place).unwrap_or_default());
        let said = aside.put(REPLICAS, own, place.unwrap_or_default(), Some(ALIVE));
        said.await?;
        Ok(aside.list(REPLICAS, "", MOST).await?.len() as u64)
    }

    /// The replica that heard a node last, if it is another one.
    ///
    /// # Errors
    /// The store beside the ledger is not available.
    pub async fn of(&self, node: NodeId) -> Result<Option<Peer>, AsideError> {
        let heard = self.inner.vitals.of(node).await?;
        let Some(replica) = heard.map(|beat| beat.replica) else {
            return Ok(None);
        };
        if replica == self.inner.own {
            return Ok(None);
        }
        let entry = self.inner.aside.get(REPLICAS, &replica).await?;
        Ok(entry.and_then(|entry| self.peer(&entry.value)))
    }

    /// All others that live.
    async fn others(&self) -> Result<Vec<Peer>, AsideError> {
        let all = self.inner.aside.list(REPLICAS, "", MOST).await?;
        let others = all.iter().filter(|entry| entry.key != self.inner.own);
        Ok(others.filter_map(|entry| self.peer(&entry.value)).collect())
    }

    fn peer(&self, place: &[u8]) -> Option<Peer> {
        Some(Peer {
            place: postcard::from_bytes(place).ok()?,
            tls: self.inner.tls.clone(),
        })
    }

    /// The lines that the others have.
    ///
    /// # Errors
    /// One that lives does not tell: what is missing then is not known.
    pub async fn lines(&self, wanted: &Wanted, now: Timestamp) -> io::Result<Vec<Told>> {
        let others = self.others().await.map_err(io::Error::other)?;
        if others.is_empty() {
            return Ok(Vec::new());
        }
        let ticket = self.ticket(wanted, now)?;
        let asked = others.iter().map(|peer| peer.lines(&ticket));
        futures_util::future::try_join_all(asked).await
    }

    fn ticket(&self, wanted: &Wanted, at: Timestamp) -> io::Result<String> {
        let wanted = wanted.clone();
        let ticket = serde_json::to_vec(&Ticket { at, wanted })?;
        let sealed = self.inner.safe.seal_in_passing(PURPOSE, &ticket);
        Ok(URL_SAFE_NO_PAD.encode(sealed.map_err(io::Error::other)?))
    }

    /// What the bearer of a ticket wants, if another replica made it just now.
    #[must_use]
    pub fn admit(&self, ticket: &str, now: Timestamp) -> Option<Wanted> {
        let bytes = self.open(PURPOSE, ticket)?;
        let Ticket { at, wanted } = serde_json::from_slice(&bytes).ok()?;
        is_fresh(at, now).then_some(wanted)
    }

    /// What a ticket says. Anybody may show one, so it must cost next to
    /// nothing to find out that it is none.
    fn open(&self, purpose: &str, ticket: &str) -> Option<Zeroizing<Vec<u8>>> {
        let sealed = URL_SAFE_NO_PAD.decode(ticket).ok()?;
        self.inner.safe.unseal_at_hand(purpose, &sealed).ok()
    }

    /// Has the replica that a node is connected to do an errand.
    ///
    /// # Errors
    /// It does not say what came of it.
    pub(crate) async fn errand(&self, peer: &Peer, sent: &Sent, at: Timestamp) -> io::Result<Done> {
        peer.errand(&self.errand_ticket(sent, at)?).await
    }

    fn errand_ticket(&self, sent: &Sent, at: Timestamp) -> io::Result<String> {
        let sent = sent.clone();
        let ticket = serde_json::to_vec(&ErrandTicket { at, sent })?;
        let sealed = self.inner.safe.seal_in_passing(ERRAND_PURPOSE, &ticket);
        Ok(URL_SAFE_NO_PAD.encode(sealed.map_err(io::Error::other)?))
    }

    /// The errand that the bearer of a ticket wants done, if another replica
    /// made it just now.
    pub(crate) fn admit_errand(&self, ticket: &str, now: Timestamp) -> Option<Sent> {
        let bytes = self.open(ERRAND_PURPOSE, ticket)?;
        let ErrandTicket { at, sent } = serde_json::from_slice(&bytes).ok()?;
        is_fresh(at, now).then_some(sent)
    }
}

/// Whether a ticket of this time is good now.
fn is_fresh(at: Timestamp, now: Timestamp) -> bool {
    let apart = now.as_micros().abs_diff(at.as_micros());
    u128::from(apart) <= GOOD.as_micros()
}

impl Peer {
    /// Sends a request on a connection of its own.
    ///
    /// # Errors
    /// It can't be reached, or is not the one that is believed.
    pub async fn send(&self, mut request: Request<Empty<Bytes>>) -> io::Result<Response<Incoming>> {
        let Place { address, name } = &self.place;
        let host = HeaderValue::try_from(name).map_err(io::Error::other)?;
        request.headers_mut().insert(HOST, host);
        let name = ServerName::try_from(name.clone()).map_err(io::Error::other)?;
        let connected = timeout(PATIENCE.0, async {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            let stream = self.tls.connect(name, stream).await?;
            let spoken = http1::handshake(TokioIo::new(stream)).await;
            spoken.map_err(io::Error::other)
        });
        let (mut sender, connection) = connected.await??;
        // Ends with the answer, or with what it becomes.
        tokio::spawn(connection.with_upgrades());
        let answer = timeout(PATIENCE.1, sender.send_request(request)).await?;
        answer.map_err(io::Error::other)
    }

    async fn errand(&self, ticket: &str) -> io::Result<Done> {
        let request = Request::get(ERRAND).header(TICKET, ticket);
        let request = request.body(Empty::new()).map_err(io::Error::other)?;
        let answer = self.send(request).await?;
        if answer.status() != 200 {
            return Err(io::Error::other(format!("status {}", answer.status())));
        }
        let body = Limited::new(answer.into_body(), MAX_DONE).collect();
        let body = timeout(PATIENCE.1, body).await?;
        let bytes = body.map_err(io::Error::other)?.to_bytes();
        Ok(serde_json::from_slice(&bytes)?)
    }

    async fn lines(&self, ticket: &str) -> io::Result<Told> {
        let request = Request::get(LOGS).header(TICKET, ticket).body(Empty::new());
        let answer = match self.send(request.map_err(io::Error::other)?).await {
            // Nobody listens there any more: its lines went with it.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                return Ok(Told::default());
            }
            answer => answer?,
        };
        let through = answer.headers().get(THROUGH);
        let through = through.and_then(|through| through.to_str().ok()?.parse().ok());
        if answer.status() != 200 {
            return Err(io::Error::other(format!("status {}", answer.status())));
        }
        let body = Limited::new(answer.into_body(), MAX_ANSWER).collect();
        let body = timeout(PATIENCE.1, body).await?;
        let bytes = body.map_err(io::Error::other)?.to_bytes();
        Ok(Told {
            lines: serde_json::from_slice(&bytes)?,
            through: through.unwrap_or_default(),
        })
    }
}

impl std::fmt::Debug for Peers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Peers(of {})", self.inner.own)
    }
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Peer({})", self.place.address)
    }
}

#[cfg(test)]
mod tests {
    use fluffy_base::{Clock as _, SystemClock};
    use fluffy_ledger::LedgerOptions;

    use super::*;
    use crate::node::NodeDoor;
    use crate::platform::Storage;

    async fn peers(folder: &std::path::Path, keys: &str) -> Peers {
        let storage = Storage::Directory(folder.to_owned());
        let platform = Platform::open(&storage, LedgerOptions::default()).await;
        let platform = platform.unwrap();
        let (safe, error) = Safe::open(platform.aside().clone(), &folder.join(keys));
        assert!(error.is_none(), "{error:?}");
        let door = NodeDoor::open(&platform, &safe, &["localhost".to_owned()]).await;
        let identity = door.unwrap().identity(&["localhost".to_owned()]).await;
        let root = identity.unwrap().chain.pop().unwrap();
        Peers::new(&platform, safe, &root).unwrap()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn only_who_has_the_keys_gets_lines_and_only_for_a_while() {
        let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let here = peers(folder.path(), "keys").await;
        let stranger = peers(other.path(), "keys").await;
        let now = SystemClock.now();
        let wanted = Wanted {
            env: EnvId::generate(),
            process: None,
            instance: Some("one".to_owned()),
            since: now,
            until: now,
            tail: 7,
            stream: None,
            reach: Reach::Begin,
        };
        let ticket = here.ticket(&wanted, now).unwrap();
        assert_eq!(here.admit(&ticket, now), Some(wanted.clone()));
        assert_eq!(here.admit(&ticket, now.after(GOOD)), Some(wanted.clone()));
        let late = now.after(GOOD + Duration::from_secs(1));
        assert_eq!(here.admit(&ticket, late), None);
        assert_eq!(stranger.admit(&ticket, now), None);
        let (mut altered, last) = (ticket.clone(), ticket.len() - 5);
        let other = if &ticket[last..=last] == "A" {
            "B"
        } else {
            "A"
        };
        altered.replace_range(last..=last, other);
        assert_eq!(here.admit(&altered, now), None);
        assert_eq!(here.admit("", now), None);
        // Neither is one for an errand, nor the other way round.
        let sent = Sent {
            node: NodeId::generate(),
            instance: "inst_1".to_owned(),
            errand: crate::errand::Errand::Diagnose,
        };
        let errand = here.errand_ticket(&sent, now).unwrap();
        assert_eq!(here.admit_errand(&errand, now), Some(sent));
        assert_eq!(here.admit_errand(&errand, late), None);
        assert_eq!(stranger.admit_errand(&errand, now), None);
        assert_eq!(here.admit_errand(&ticket, now), None);
        assert_eq!(here.admit(&errand, now), None);
        // What is sealed for something else is no ticket.
        let sealed = here.inner.safe.seal("fluffy-exec-v1 x", b"{}").unwrap();
        assert_eq!(here.admit(&URL_SAFE_NO_PAD.encode(sealed), now), None);
    }

    /// Whoever names a key that there is not must not have one looked for.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_ticket_has_no_keys_read_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let here = peers(folder.path(), "keys").await;
        let keys = folder.path().join("keys");
        let (other, error) = Safe::open(here.inner.aside.clone(), &keys);
        assert!(error.is_none(), "{error:?}");
        let next = other.make_key().unwrap();
        other.activate(next).unwrap();
        let at = SystemClock.now();
        let sent = Sent {
            node: NodeId::generate(),
            instance: "inst_1".to_owned(),
            errand: crate::errand::Errand::Diagnose,
        };
        let says = ErrandTicket {
            at,
            sent: sent.clone(),
        };
        let sealed = other.seal(ERRAND_PURPOSE, &serde_json::to_vec(&says).unwrap());
        let ticket = URL_SAFE_NO_PAD.encode(sealed.unwrap());
        assert_eq!(here.admit_errand(&ticket, at), None);
        assert_eq!(here.admit(&ticket, at), None);
        assert!(!here.inner.safe.key_ids().contains(&next));
        // The control: it is good once the key is in use here.
        here.inner.safe.activate(next).unwrap();
        assert_eq!(here.admit_errand(&ticket, at), Some(sent));
    }
}
