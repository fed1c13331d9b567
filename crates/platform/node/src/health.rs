//! Asks an instance whether it is well, over its own address.
//!
//! A connection (`tcp`), or an answer of 200 to 399 (`http`). One task per
//! start of an instance; it says only what changed.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use fluffy_api::node::v1;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

/// The most bytes of an answer that are looked at.
const MAX_HEAD: usize = 1024;

/// How long what is not well any more has to recover, at least.
const RECOVERY: Duration = Duration::from_secs(30);

/// How long what is not well any more is left to itself before it is ended:
/// as long again as it took to notice, and not too short.
pub(crate) fn recovery(health: &v1::Health) -> Duration {
    let failures = health.failure_threshold.max(1);
    let noticed = seconds(health.interval_seconds, 10).saturating_mul(failures);
    noticed.max(RECOVERY)
}

/// What a plan says, or what is usual where it says nothing.
fn seconds(given: u32, usual: u64) -> Duration {
    match given {
        0 => Duration::from_secs(usual),
        given => Duration::from_secs(given.into()),
    }
}

/// What is asked, and how often.
#[derive(Debug, Clone)]
pub(crate) struct Check {
    address: SocketAddr,
    /// The path, for HTTP.
    path: Option<String>,
    interval: Duration,
    timeout: Duration,
    grace: Duration,
    success: u32,
    failure: u32,
}

impl Check {
    /// Of a plan; values that were left out are those of the documentation.
    pub(crate) fn new(health: &v1::Health, address: Ipv6Addr) -> Self {
        let port = u16::try_from(health.port).unwrap_or(0);
        Self {
            address: SocketAddr::new(IpAddr::V6(address), port),
            path: (health.r#type == "http").then(|| match health.path.is_empty() {
                true => "/".to_owned(),
                false => health.path.clone(),
            }),
            interval: seconds(health.interval_seconds, 10),
            timeout: seconds(health.timeout_seconds, 2),
            grace: Duration::from_secs(health.grace_period_seconds.into()),
            success: health.success_threshold.max(1),
            failure: health.failure_threshold.max(1),
        }
    }

    /// Asks on and on; `say` hears each change, the first verdict included.
    pub(crate) async fn run(self, mut say: impl AsyncFnMut(bool)) {
        let begin = Instant::now();
        let mut verdict = Verdict::default();
        loop {
            let well = timeout(self.timeout, self.ask()).await.unwrap_or(false);
            let counts = well || begin.elapsed() >= self.grace;
            if counts && let Some(changed) = verdict.count(well, (self.success, self.failure)) {
                say(changed).await;
            }
            // Until it is up once, it is asked more often: a start that takes
            // a second need not look like one of ten.
            let pause = match verdict.last {
                Some(_) => self.interval,
                None => self.interval.min(Duration::from_secs(1)),
            };
            sleep(pause).await;
        }
    }

    async fn ask(&self) -> bool {
        let Ok(mut stream) = TcpStream::connect(self.address).await else {
            return false;
        };
        let Some(path) = &self.path else {
            return true;
        };
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {}\r\nUser-Agent: fluffy-health\r\n\
             Connection: close\r\nAccept: */*\r\n\r\n",
            self.address
        );
        if stream.write_all(request.as_bytes()).await.is_err() {
            return false;
        }
        let mut head = Vec::new();
        let mut limited = stream.take(MAX_HEAD as u64);
        while !head.contains(&b'\n') {
            match limited.read_buf(&mut head).await {
                Ok(1..) => {}
                Ok(0) | Err(_) => break,
            }
        }
        is_good(&head)
    }
}

/// Whether the first line of an answer has a status of 200 to 399.
fn is_good(head: &[u8]) -> bool {
    let line = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.split_whitespace();
    let version = words.next().unwrap_or_default();
    let status = words.next().and_then(|status| status.parse::<u16>().ok());
    version.starts_with("HTTP/1.") && status.is_some_and(|status| (200..400).contains(&status))
}

/// Counts answers until they are enough to believe.
#[derive(Debug, Default)]
struct Verdict {
    last: Option<bool>,
    row: (bool, u32),
}

impl Verdict {
    /// What changed with one more answer, if anything.
    fn count(&mut self, well: bool, (success, failure): (u32, u32)) -> Option<bool> {
        self.row = match self.row {
            (same, row) if same == well => (well, row.saturating_add(1)),
            _ => (well, 1),
        };
        let enough = if well { success } else { failure };
        let changed = self.row.1 >= enough && self.last != Some(well);
        if changed {
            self.last = Some(well);
        }
        changed.then_some(well)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_needs_enough_in_a_row() {
        let mut verdict = Verdict::default();
        let answers = [
            false, false, true, true, false, false, true, false, false, false,
        ];
        let said: Vec<Option<bool>> = answers
            .into_iter()
            .map(|well| verdict.count(well, (2, 3)))
            .collect();
        let changes: Vec<(usize, bool)> = said
            .iter()
            .enumerate()
            .filter_map(|(at, said)| said.map(|said| (at, said)))
            .collect();
        assert_eq!(changes, [(3, true), (9, false)]);
    }

    #[test]
    fn what_is_unwell_has_as_long_to_recover_as_it_took_to_notice() {
        let recovers = |interval_seconds, failure_threshold| {
            let health = v1::Health {
                interval_seconds,
                failure_threshold,
                ..v1::Health::default()
            };
            recovery(&health).as_secs()
        };
        assert_eq!(
            recovers(10, 3),
            30,
            "what a manifest that says nothing gets"
        );
        assert_eq!(recovers(1, 1), 30);
        assert_eq!(recovers(60, 5), 300);
        assert_eq!(recovers(0, 0), 30);
    }

    #[test]
    fn only_a_good_status_is_well() {
        for (head, well) in [
            ("HTTP/1.1 200 OK\r\n", true),
            ("HTTP/1.0 399\n", true),
            ("HTTP/1.1 400 no\r\n", false),
            ("HTTP/1.1 199\r\n", false),
            ("HTTP/2 200\r\n", false),
            ("", false),
            ("SSH-2.0 200", false),
        ] {
            assert_eq!(is_good(head.as_bytes()), well, "{head}");
        }
    }
}
