//! One connection from a sandbox: read, decide, check, connect, carry, record.
//!
//! The steps are in that order on purpose: nothing is looked up before the
//! decision, nothing is connected before every address is checked, nothing is
//! sent before the tunnel's name is. Every way out of here leaves a record.

use std::net::IpAddr;

use fluffy_base::{Clock, SystemClock};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Duration, Instant, timeout};

use crate::answer::{self, Seen};
use crate::decide::{Allowed, Denied, Kind, Question, Terms};
use crate::dial::dial;
use crate::guard::Guard;
use crate::head::{Asked, HeadError, MAX_HEAD, end_of_head};
use crate::limits::Meter;
use crate::proxy::Shared;
use crate::reason::Reason;
use crate::record::{Exchange, Verdict};
use crate::resolve;
use crate::tunnel;

/// How long we listen after a refusal, so that it is not lost in a reset.
const LINGER: Duration = Duration::from_millis(500);
/// How much of what still comes we take in meanwhile.
const LINGER_BYTES: u64 = 256 * 1024;

/// The sandbox's side of a connection.
pub(crate) struct Client {
    pub(crate) reader: BufReader<Box<dyn AsyncRead + Send + Unpin>>,
    pub(crate) writer: Box<dyn AsyncWrite + Send + Unpin>,
}

impl Client {
    pub(crate) fn new(
        reader: impl AsyncRead + Send + Unpin + 'static,
        writer: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Self {
        Self {
            reader: BufReader::with_capacity(16 * 1024, Box::new(reader)),
            writer: Box::new(writer),
        }
    }

    /// Says no and waits a moment for the other side to read it.
    pub(crate) async fn refuse(&mut self, words: &[u8]) {
        let parting = async {
            self.writer.write_all(words).await?;
            self.writer.shutdown().await?;
            let mut rest = (&mut self.reader).take(LINGER_BYTES);
            tokio::io::copy(&mut rest, &mut tokio::io::sink()).await
        };
        // Whoever does not listen has lost nothing but the explanation.
        let _ = timeout(LINGER, parting).await;
    }
}

/// Why and how an exchange ended early.
struct End {
    reason: Reason,
    say: Say,
}

/// What the client can still be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Say {
    Http,
    Alert,
    Nothing,
}

/// An explanation in HTTP is still possible.
fn in_http(reason: Reason) -> End {
    let say = Say::Http;
    End { reason, say }
}

/// Serves the one request of a connection.
pub(crate) async fn serve(shared: &Shared, mut client: Client, stop: watch::Receiver<()>) {
    let start = Instant::now();
    let meter = Meter::new(&shared.settings.limits, &shared.used);
    let mut exchange = shared.exchange(SystemClock.now());
    let work = converse(shared, &mut client, &meter, &mut exchange);
    let ended = tokio::select! {
        ended = work => ended,
        () = stopped(stop) => Err(End { reason: Reason::Stopped, say: Say::Nothing }),
    };
    let ended = match ended {
        // Opened and closed without a word, as clients do with spare ones.
        Ok(Done::Silent) => return,
        Ok(Done::Carried) => None,
        Err(end) => Some(end),
    };
    (exchange.bytes_up, exchange.bytes_down) = meter.bytes();
    exchange.took = start.elapsed();
    exchange.reason = ended.as_ref().map(|end| end.reason.clone());
    // Before the connection ends: a client that is done finds it recorded.
    shared.record(&exchange);
    if let Some(end) = ended {
        match end.say {
            Say::Http => {
                client
                    .refuse(&end.reason.response(exchange.target().as_deref()))
                    .await
            }
            Say::Alert => client.refuse(tunnel::ALERT).await,
            Say::Nothing => {}
        }
    }
}

enum Done {
    Silent,
    Carried,
}

/// Ends when the proxy is told to.
async fn stopped(mut stop: watch::Receiver<()>) {
    // Nothing is ever sent: the end of the sender is the word.
    while stop.changed().await.is_ok() {}
}

async fn converse(
    shared: &Shared,
    client: &mut Client,
    meter: &Meter<'_>,
    exchange: &mut Exchange,
) -> Result<Done, End> {
    let Some(asked) = hear(shared, client).await.map_err(in_http)? else {
        return Ok(Done::Silent);
    };
    note(exchange, &asked);
    shared.admit().map_err(in_http)?;
    let (terms, server) = reach(shared, &asked, exchange).await.map_err(in_http)?;
    match &asked {
        Asked::Connect(target) => {
            let opened = tunnel::open(shared, client, target, terms.content).await;
            let first = opened.map_err(|reason| End {
                say: match reason {
                    Reason::Broken => Say::Nothing,
                    _ => Say::Alert,
                },
                reason,
            })?;
            exchange.verdict = Verdict::Allowed;
            let carried = tunnel::carry(client, server, &first, meter).await;
            let say = Say::Nothing;
            carried.map_err(|reason| End { reason, say })?;
        }
        Asked::Forward(request) => {
            exchange.verdict = Verdict::Allowed;
            let carried = answer::exchange(client, server, request, meter).await;
            carried.map_err(|(reason, seen)| End {
                reason,
                say: match seen {
                    Seen::Nothing => Say::Http,
                    Seen::Some => Say::Nothing,
                },
            })?;
        }
    }
    Ok(Done::Carried)
}

/// The request, or nothing if none comes.
async fn hear(shared: &Shared, client: &mut Client) -> Result<Option<Asked>, Reason> {
    let time = match shared.guards.stand(Guard::HeadTime) {
        true => shared.settings.limits.head_time,
        false => Duration::MAX,
    };
    let read = timeout(time, read_head(&mut client.reader, MAX_HEAD)).await;
    let Some(head) = read.map_err(|_| Reason::HeadTime)?? else {
        return Ok(None);
    };
    let asked = Asked::parse_guarded(&head, shared.guards);
    asked.map(Some).map_err(Reason::BadRequest)
}

/// The bytes of a head up to its empty line; none if nothing came at all.
pub(crate) async fn read_head<R>(from: &mut R, most: usize) -> Result<Option<Vec<u8>>, Reason>
where
    R: AsyncBufRead + Unpin,
{
    let mut head: Vec<u8> = Vec::new();
    loop {
        let there = from.fill_buf().await.map_err(|_| Reason::Broken)?;
        if there.is_empty() {
            return match head.is_empty() {
                true => Ok(None),
                false => Err(Reason::Broken),
            };
        }
        let before = head.len();
        let count = there.len();
        head.extend_from_slice(there);
        // The end may lie across two pieces.
        let from_here = before.saturating_sub(3);
        let end = head.get(from_here..).and_then(end_of_head);
        if let Some(end) = end.map(|end| from_here + end) {
            from.consume(end - before);
            head.truncate(end);
            return match end > most {
                true => Err(Reason::BadRequest(HeadError::TooLarge)),
                false => Ok(Some(head)),
            };
        }
        from.consume(count);
        if head.len() > most {
            return Err(Reason::BadRequest(HeadError::TooLarge));
        }
    }
}

fn note(exchange: &mut Exchange, asked: &Asked) {
    exchange.kind = Some(kind(asked));
    exchange.host = Some(asked.target().host().to_owned());
    exchange.port = Some(asked.target().port());
}

const fn kind(asked: &Asked) -> Kind {
    match asked {
        Asked::Connect(_) => Kind::Connect,
        Asked::Forward(_) => Kind::Http,
    }
}

/// Decides, looks up, checks and connects.
async fn reach(
    shared: &Shared,
    asked: &Asked,
    exchange: &mut Exchange,
) -> Result<(Terms, TcpStream), Reason> {
    let settings = &shared.settings;
    let target = asked.target();
    let question = Question {
        sandbox: settings.sandbox,
        template: settings.template.clone(),
        target: target.clone(),
        kind: kind(asked),
    };
    let Allowed {
        permit,
        terms,
        rule,
        decision,
    } = match settings.decide.decide(&question).await {
        Ok(allowed) => allowed,
        Err(denied) => return Err(refusal(denied, exchange)),
    };
    (exchange.rule, exchange.decision) = (rule, decision);
    let found = resolve::find(shared, target, &terms.place).await;
    if let Err(Reason::Reserved { address, .. }) = &found {
        exchange.address = Some(*address);
    }
    let mut addresses: Vec<IpAddr> = found?;
    if !shared.guards.stand(Guard::OneLookup) {
        let again = settings.network.resolve(target.host()).await;
        addresses = again.map_err(|_| Reason::NoAddress)?;
    }
    let (server, address) = dial(permit, shared, target, &addresses).await?;
    exchange.address = Some(address);
    Ok((terms, server))
}

fn refusal(denied: Denied, exchange: &mut Exchange) -> Reason {
    match denied {
        Denied::Rule {
            why,
            rule,
            decision,
        } => {
            (exchange.rule, exchange.decision) = (rule, decision);
            Reason::Denied { why }
        }
        Denied::Undecided => Reason::Undecided,
    }
}
