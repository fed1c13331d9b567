//! What callers meet: two replicas behind HTTP, and a bare handler beside one.
//!
//! The peer is axum in a process of its own with one table in the same
//! PostgreSQL: no authorization, no history, no repeats. Both are asked over a
//! socket by the same client.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use fluffy_base::id::RequestId;
use fluffy_ledger::LedgerOptions;
use fluffy_server::doors::Doors;
use fluffy_server::http::{self, RateLimits};
use fluffy_server::loops::lease::Timing;
use fluffy_server::platform::{Founder, Platform, Storage};
use fluffy_server::server::{Options, Server};
use fluffy_test_kit::{FreshDatabase, axum_peer, campaign};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{HeaderMap, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::UnixStream;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::{BACKGROUND, EVENTS_PER_WRITE, LIMIT, exact, rename};
use crate::figure::{Bar, Figure, Samples, Show};

/// Who creates and reads at once.
const CLIENTS: u64 = 50;
/// Who makes the background.
const WRITERS: u64 = 20;
/// Who asks ours and the peer at once, and how often they take turns.
const CALLERS: u64 = 16;
const ROUNDS: u64 = 5;
const ROUND: Duration = Duration::from_secs(2);

/// Two replicas with their sockets, in a folder that goes with them.
struct Pair {
    here: Server,
    there: Server,
    folder: tempfile::TempDir,
}

/// How soon what was created on one replica is read on another, what a replica
/// says whose views stand still, and calls beside a bare handler.
pub(super) async fn run(ours: &FreshDatabase, bare: &FreshDatabase) -> Result<Vec<Figure>> {
    let storage = Storage::database(ours.url().parse()?);
    let folder = tempfile::tempdir()?;
    let pair = Pair {
        here: serve(&storage, folder.path(), "here").await?,
        there: serve(&storage, folder.path(), "there").await?,
        folder,
    };
    let mut figures = pair.delay().await?;
    pair.stand_still().await?;
    let Pair {
        here,
        there,
        folder,
    } = pair;
    there.stop().await;
    figures.extend(beside_bare(folder.path(), bare).await?);
    here.stop().await;
    Ok(figures)
}

/// A whole replica, as `fluffy server` runs it, but for how often one may call.
async fn serve(storage: &Storage, folder: &Path, name: &str) -> Result<Server> {
    let mut server = Server::start(Options {
        storage: storage.clone(),
        ledger: LedgerOptions::default(),
        founder: Founder::Local,
        timing: Timing::default(),
    })
    .await?;
    let most = 100_000_000;
    let rates = RateLimits {
        reads: most,
        writes: most,
        logins: most,
        execs: most,
        watches: 50,
        ..RateLimits::default()
    };
    let doors = Doors {
        keys: folder.join("keys"),
        socket: Some(folder.join(name)),
        names: vec!["localhost".to_owned()],
        http: http::Options {
            rates,
            ..http::Options::default()
        },
        ..Doors::default()
    };
    server.open(doors).await?;
    Ok(server)
}

impl Pair {
    fn socket(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// From the call that creates to the answer that shows it elsewhere.
    async fn delay(&self) -> Result<Vec<Figure>> {
        let platform = self.here.platform();
        let before = platform.ledger().head()?.seq;
        let started = Instant::now();
        let mut background = JoinSet::new();
        for _ in 0..WRITERS {
            background.spawn(pace(platform.clone()));
        }
        let mut clients = JoinSet::new();
        for client in 0..CLIENTS {
            let (here, there) = (self.socket("here"), self.socket("there"));
            clients.spawn(async move { create_and_read(&here, &there, client).await });
        }
        let mut delays = Vec::new();
        while let Some(done) = clients.join_next().await {
            delays.extend(done??);
        }
        let created = delays.len() as u64 * EVENTS_PER_WRITE;
        while let Some(done) = background.join_next().await {
            done??;
        }
        let seconds = started.elapsed().as_secs_f64();
        let events = platform.ledger().head()?.seq - before - created;
        let wanted = platform.sequencer().applied();
        let other = self.there.platform();
        other.sequencer().wait_for(wanted, LIMIT).await?;
        Ok(vec![
            Figure {
                what: "created on one replica, read on another, 50 clients".to_owned(),
                ours: Samples::new(delays, Show::Time),
                reference: None,
                bar: Bar::P99Under(1.0),
            },
            Figure {
                what: "rate of others kept up meanwhile".to_owned(),
                ours: Samples::new(vec![seconds / exact(events)], Show::Rate),
                reference: None,
                bar: Bar::PerSecond(0.9 * exact(BACKGROUND)),
            },
        ])
    }

    /// A replica whose views stand still takes what is written, says that it
    /// can't show it yet, and never that it is not there.
    async fn stand_still(&self) -> Result<()> {
        let (mut here, mut there) = (
            Asker::connect(&self.socket("here")).await?,
            Asker::connect(&self.socket("there")).await?,
        );
        let states = self.there.platform().sequencer();
        states.hold();
        let (status, made) = there.create("held-1").await?;
        ensure!(status == StatusCode::ACCEPTED, "{status} where 202 was due");
        let (status, elsewhere) = here.create("held-2").await?;
        ensure!(status == StatusCode::CREATED, "{status} where 201 was due");
        for (name, seq) in [("held-1", made), ("held-2", elsewhere)] {
            let (status, value) = there.show(name, Some(seq)).await?;
            let code = value
                .get("code")
                .and_then(Value::as_str)
                .unwrap_or_default();
            let late = status == StatusCode::SERVICE_UNAVAILABLE && code == "projection_lag";
            ensure!(
                late,
                "{name}: {status} {code} where `projection_lag` was due"
            );
        }
        states.release();
        for (name, seq) in [("held-1", made), ("held-2", elsewhere)] {
            let (status, _) = there.show(name, Some(seq)).await?;
            ensure!(status == StatusCode::OK, "{name}: {status} in the end");
        }
        Ok(())
    }
}

/// Writes at its share of the background's pace.
async fn pace(platform: Platform) -> Result<()> {
    let writes = BACKGROUND / EVENTS_PER_WRITE;
    let mut ticks = interval(Duration::from_secs(WRITERS) / u32::try_from(writes)?);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    for number in 0..campaign(10, 60) * writes / WRITERS {
        ticks.tick().await;
        rename(&platform, number).await?;
    }
    Ok(())
}

/// Creates projects on one replica and reads each on the other at once.
async fn create_and_read(here: &Path, there: &Path, client: u64) -> Result<Vec<f64>> {
    let (mut here, mut there) = (Asker::connect(here).await?, Asker::connect(there).await?);
    let mut delays = Vec::new();
    for number in 0..campaign(10, 60) {
        let name = format!("p{client}-{number}");
        let started = Instant::now();
        let (status, seq) = here.create(&name).await?;
        ensure!(status.is_success(), "{name}: {status}");
        let (status, shown) = there.show(&name, Some(seq)).await?;
        ensure!(status == StatusCode::OK, "{name}: {status} {shown}");
        let named = shown.get("name").and_then(Value::as_str);
        ensure!(named == Some(&*name), "{name}: {shown}");
        delays.push(started.elapsed().as_secs_f64());
    }
    Ok(delays)
}

/// Reads and writes of ours and of the bare handler, in turns.
async fn beside_bare(folder: &Path, database: &FreshDatabase) -> Result<Vec<Figure>> {
    let (ours, bare) = (folder.join("here"), folder.join("bare"));
    let serving = Bare::serve(database, &bare).await?;
    let names = Arc::new(AtomicU64::new(0));
    let mut made = Asker::connect(&ours).await?;
    made.create("one").await?;
    let mut asked = BareAsker::connect(&bare).await?;
    asked.create("one").await?;
    let mut times = [vec![], vec![], vec![], vec![]];
    for round in 0..=ROUNDS {
        let [read, bare_read, write, bare_write] = [
            crowd(&ours, Work::Read, Kind::Ours, &names).await?,
            crowd(&bare, Work::Read, Kind::Bare, &names).await?,
            crowd(&ours, Work::Write, Kind::Ours, &names).await?,
            crowd(&bare, Work::Write, Kind::Bare, &names).await?,
        ];
        // The first round of each warms up and is not counted.
        if round > 0 {
            let all = times.iter_mut().zip([read, bare_read, write, bare_write]);
            all.for_each(|(times, round)| times.extend(round));
        }
    }
    drop(serving);
    let [read, bare_read, write, bare_write] = times;
    let figure = |what: &str, ours, reference| Figure {
        what: format!("{what}, {CALLERS} callers"),
        ours: Samples::new(ours, Show::Time),
        reference: Some((
            "bare axum and SQL, p99".to_owned(),
            Samples::new(reference, Show::Time),
        )),
        bar: Bar::P99Inform,
    };
    Ok(vec![
        figure("one read over HTTP", read, bare_read),
        figure("one write over HTTP", write, bare_write),
    ])
}

#[derive(Debug, Clone, Copy)]
enum Work {
    Read,
    Write,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Ours,
    Bare,
}

/// Seconds of each call that so many callers make at once, one after another.
async fn crowd(socket: &Path, work: Work, kind: Kind, names: &Arc<AtomicU64>) -> Result<Vec<f64>> {
    let started = Instant::now();
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let (socket, names) = (socket.to_owned(), Arc::clone(names));
        callers.spawn(async move {
            let mut ours = Asker::connect(&socket).await?;
            let mut bare = BareAsker(Asker::connect(&socket).await?);
            let mut times = Vec::new();
            while started.elapsed() < ROUND {
                let name = format!("w{}", names.fetch_add(1, Ordering::Relaxed));
                let begun = Instant::now();
                let status = match (kind, work) {
                    (Kind::Ours, Work::Read) => ours.show("one", None).await?.0,
                    (Kind::Ours, Work::Write) => ours.create(&name).await?.0,
                    (Kind::Bare, Work::Read) => bare.show("one").await?,
                    (Kind::Bare, Work::Write) => bare.create(&name).await?,
                };
                times.push(begun.elapsed().as_secs_f64());
                ensure!(status.is_success(), "{kind:?} {work:?}: {status}");
            }
            Ok(times)
        });
    }
    let mut times = Vec::new();
    while let Some(done) = callers.join_next().await {
        times.extend(done??);
    }
    Ok(times)
}

/// One connection that asks.
struct Asker {
    sender: SendRequest<Full<Bytes>>,
}

impl Asker {
    async fn connect(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket).await?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        // Its end is seen by whoever asks.
        tokio::spawn(async { drop(connection.await) });
        Ok(Self { sender })
    }

    async fn ask(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<Value>,
    ) -> Result<(StatusCode, HeaderMap, Value)> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "localhost");
        if body.is_some() {
            request = request.header("content-type", "application/json");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let request = request.body(Full::new(Bytes::from(body)))?;
        self.sender.ready().await?;
        let response = self.sender.send_request(request).await?;
        let (head, body) = response.into_parts();
        let bytes = body.collect().await?.to_bytes();
        let value = serde_json::from_slice(&bytes).unwrap_or_default();
        Ok((head.status, head.headers, value))
    }

    /// Creates a project; the position at which it is there.
    async fn create(&mut self, name: &str) -> Result<(StatusCode, u64)> {
        let key = RequestId::generate().to_string();
        let headers = [("idempotency-key", key.as_str())];
        let body = json!({"name": name});
        let path = "/v1/orgs/local/projects";
        let (status, headers, answer) = self.ask("POST", path, &headers, Some(body)).await?;
        let seq = headers.get("fluffy-seq").and_then(|seq| seq.to_str().ok());
        let seq = seq.with_context(|| format!("{name}: {status} {answer}"))?;
        Ok((status, seq.parse()?))
    }

    async fn show(&mut self, name: &str, after: Option<u64>) -> Result<(StatusCode, Value)> {
        let path = format!("/v1/orgs/local/projects/{name}");
        let after = after.map(|seq| seq.to_string());
        let headers: Vec<_> = after
            .iter()
            .map(|seq| ("fluffy-min-seq", seq.as_str()))
            .collect();
        let (status, _, value) = self.ask("GET", &path, &headers, None).await?;
        Ok((status, value))
    }
}

/// One connection that asks the bare handler.
struct BareAsker(Asker);

impl BareAsker {
    async fn connect(socket: &Path) -> Result<Self> {
        Ok(Self(Asker::connect(socket).await?))
    }

    async fn create(&mut self, name: &str) -> Result<StatusCode> {
        let body = json!({"name": name});
        let asked = self.0.ask("POST", "/projects", &[], Some(body)).await?;
        Ok(asked.0)
    }

    async fn show(&mut self, name: &str) -> Result<StatusCode> {
        let path = format!("/projects/{name}");
        Ok(self.0.ask("GET", &path, &[], None).await?.0)
    }
}

/// The bare handler: a program of its own, ended with this value.
struct Bare(Child);

impl Bare {
    async fn serve(database: &FreshDatabase, socket: &Path) -> Result<Self> {
        let program = tokio::task::spawn_blocking(axum_peer).await??;
        let child = Command::new(program)
            .arg(database.url())
            .arg(socket)
            .spawn()?;
        let mut bare = Self(child);
        while UnixStream::connect(socket).await.is_err() {
            let ended = bare.0.try_wait()?;
            ensure!(ended.is_none(), "the bare handler ended: {ended:?}");
            sleep(Duration::from_millis(10)).await;
        }
        Ok(bare)
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to end.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
