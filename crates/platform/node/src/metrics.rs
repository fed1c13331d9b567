//! Figures about this node, for Prometheus, on this machine alone.
//!
//! Labels come from fixed sets: never an instance, an env or a name.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::now_ms;

/// How long somebody may take to ask, and to take the answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The most bytes of a question.
const MAX_HEAD: usize = 8 << 10;

/// What a figure is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
    /// For how many seconds something has been so.
    Age,
    /// How long something takes, each time.
    Seconds,
}

/// Up to how many milliseconds each of the fixed buckets goes.
const BOUNDS: [u64; 12] = [
    5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 15_000, 60_000,
];

/// How long something took, by bucket; the last has no bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Times {
    pub(crate) counts: [u64; BOUNDS.len() + 1],
    pub(crate) micros: u64,
}

impl Times {
    fn add(&mut self, took: Duration) {
        let bucket = BOUNDS
            .iter()
            .position(|bound| took <= Duration::from_millis(*bound));
        if let Some(count) = self.counts.get_mut(bucket.unwrap_or(BOUNDS.len())) {
            *count += 1;
        }
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.micros = self.micros.saturating_add(micros);
    }

    /// All together, in seconds.
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    pub(crate) fn seconds(&self) -> f64 {
        self.micros as f64 / 1e6
    }

    pub(crate) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The bounds of the buckets, in seconds.
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    pub(crate) fn bounds() -> impl Iterator<Item = f64> {
        BOUNDS.iter().map(|bound| *bound as f64 / 1e3)
    }
}

/// Every figure there is: its name, what it is, its label if it has one, help.
const FIGURES: &[(&str, Kind, &str, &str)] = &[
    (
        "agent_heartbeats_total",
        Kind::Counter,
        "result",
        "Heartbeats, by whether they were sent",
    ),
    (
        "agent_reconnects_total",
        Kind::Counter,
        "",
        "Connections to a server that were opened",
    ),
    (
        "agent_plan_seq",
        Kind::Gauge,
        "",
        "The number of the plan in force",
    ),
    (
        "agent_clock_skew_seconds",
        Kind::Gauge,
        "",
        "How far this machine's clock was from the server's when they last connected",
    ),
    (
        "agent_instances",
        Kind::Gauge,
        "status",
        "Instances by status",
    ),
    (
        "agent_instance_failures_total",
        Kind::Counter,
        "reason",
        "Failures of instances by reason",
    ),
    (
        "agent_adoptions_total",
        Kind::Counter,
        "result",
        "Instances found at a start of the agent",
    ),
    (
        "agent_boot_seconds",
        Kind::Seconds,
        "driver,result",
        "Time from start to workload, or to the failure",
    ),
    (
        "agent_boot_step_seconds",
        Kind::Seconds,
        "step",
        "Time of the steps of a start",
    ),
    (
        "agent_handshake_seconds",
        Kind::Seconds,
        "",
        "Time from the guest's socket to a config that it took",
    ),
    (
        "agent_boots_total",
        Kind::Counter,
        "result",
        "Starts of instances",
    ),
    (
        "agent_link_resets_total",
        Kind::Counter,
        "",
        "Links to guests that were lost",
    ),
    (
        "agent_image_pulls_total",
        Kind::Counter,
        "result",
        "Images that were asked for",
    ),
    (
        "agent_image_pull_seconds",
        Kind::Seconds,
        "result",
        "Time until an image was ready, fetched and made a root of where it was not here",
    ),
    (
        "agent_image_convert_seconds",
        Kind::Seconds,
        "",
        "Time until fetched layers were made a root",
    ),
    (
        "agent_cache_hits_total",
        Kind::Counter,
        "result",
        "Images that instances needed, by whether they were here",
    ),
    (
        "agent_cache_bytes",
        Kind::Gauge,
        "kind",
        "Bytes of images that are here, that are promised to builds, and that there may be",
    ),
    (
        "agent_cache_evictions_total",
        Kind::Counter,
        "",
        "Images and layers that went for others",
    ),
    (
        "agent_memory_bytes",
        Kind::Gauge,
        "kind",
        "Memory of the machine, and what is free of it",
    ),
    (
        "agent_disk_free_bytes",
        Kind::Gauge,
        "",
        "What is free on the disk of the node's folder",
    ),
    (
        "agent_disk_pressure",
        Kind::Gauge,
        "",
        "1 while so much of the disk is in use that nothing new is placed here",
    ),
    (
        "agent_oom_total",
        Kind::Counter,
        "",
        "Instances that ended because their memory did not suffice",
    ),
    (
        "actor_restarts_total",
        Kind::Counter,
        "kind",
        "Actors that failed and were started again",
    ),
    (
        "exec_sessions",
        Kind::Gauge,
        "",
        "Commands that run beside workloads",
    ),
    (
        "exec_sessions_total",
        Kind::Counter,
        "reason",
        "Commands that ran beside workloads",
    ),
    (
        "firewall_drift_total",
        Kind::Counter,
        "",
        "Times that the rules about packets of instances had to be put right",
    ),
    (
        "firewall_dropped_total",
        Kind::Counter,
        "kind",
        "Packets of instances that were kept back",
    ),
    (
        "log_lines_total",
        Kind::Counter,
        "kind",
        "Lines of workloads",
    ),
    (
        "log_dropped_total",
        Kind::Counter,
        "reason",
        "Lines that were lost",
    ),
    (
        "log_ship_lag_seconds",
        Kind::Age,
        "",
        "Age of the oldest line that waits for a server",
    ),
    (
        "log_spool_bytes",
        Kind::Gauge,
        "",
        "Bytes of lines that wait for a server",
    ),
    (
        "secrets_delivery_total",
        Kind::Counter,
        "result",
        "Secrets that were fetched",
    ),
    (
        "secrets_delivery_seconds",
        Kind::Seconds,
        "",
        "Time until secrets were there",
    ),
];

/// The figures of one node.
#[derive(Debug, Default)]
pub(crate) struct Metrics(Mutex<Known>);

/// The words of a figure's labels.
pub(crate) type Words = [&'static str; 2];

#[derive(Debug, Default)]
struct Known {
    values: BTreeMap<(&'static str, &'static str), i64>,
    times: BTreeMap<(&'static str, Words), Times>,
}

impl Metrics {
    /// Counts one more.
    pub(crate) fn count(&self, name: &'static str, label: &'static str) {
        self.add(name, label, 1);
    }

    /// Counts so many more, or fewer.
    pub(crate) fn add(&self, name: &'static str, label: &'static str, by: i64) {
        debug_assert!(FIGURES.iter().any(|figure| figure.0 == name), "{name}");
        let mut all = self.lock();
        let value = all.values.entry((name, label)).or_default();
        *value = value.saturating_add(by);
    }

    /// Says how much it is.
    pub(crate) fn set(&self, name: &'static str, label: &'static str, value: u64) {
        debug_assert!(FIGURES.iter().any(|figure| figure.0 == name), "{name}");
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        self.lock().values.insert((name, label), value);
    }

    /// Says how far the clock is from a server's, if that said what it shows.
    pub(crate) fn server_clock(&self, ms: u64) {
        if ms > 0 {
            let off = ms.abs_diff(now_ms());
            self.set("agent_clock_skew_seconds", "", off / 1_000);
        }
    }

    /// Says since when it has been so, in milliseconds since 1970, if it is.
    pub(crate) fn since(&self, name: &'static str, ms: Option<u64>) {
        debug_assert!(FIGURES.iter().any(|figure| figure.0 == name), "{name}");
        let ms = ms.map(|ms| i64::try_from(ms).unwrap_or(i64::MAX));
        let mut all = self.lock();
        match ms {
            Some(ms) => drop(all.values.insert((name, ""), ms)),
            None => drop(all.values.remove(&(name, ""))),
        }
    }

    /// Says how long it took, with a word for each label that it has.
    pub(crate) fn time(&self, name: &'static str, words: Words, took: Duration) {
        debug_assert!(FIGURES.iter().any(|figure| figure.0 == name), "{name}");
        self.lock()
            .times
            .entry((name, words))
            .or_default()
            .add(took);
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every number there is to say, as it is now.
    pub(crate) fn figures(&self) -> Vec<Figure> {
        let all = self.lock();
        let mut figures = Vec::new();
        for (name, kind, label, help) in FIGURES {
            if *kind == Kind::Seconds {
                continue;
            }
            let of = all.values.iter().filter(|((it, _), _)| it == name);
            let mut values: Vec<(&str, i64)> = of.map(|((_, word), at)| (*word, *at)).collect();
            if *kind == Kind::Age {
                let now = i64::try_from(now_ms()).unwrap_or(i64::MAX);
                for (_, at) in &mut values {
                    *at = now.saturating_sub(*at).max(0) / 1_000;
                }
            }
            if values.is_empty() {
                match label.is_empty() {
                    true => values.push(("", 0)),
                    false => continue,
                }
            }
            figures.push(Figure {
                name,
                is_counter: *kind == Kind::Counter,
                label,
                help,
                values,
            });
        }
        figures
    }

    /// Everything that takes time, and how long it took so far.
    pub(crate) fn timed(&self) -> Vec<Timed> {
        let all = self.lock();
        let timed = FIGURES.iter().filter(|it| it.1 == Kind::Seconds);
        timed
            .map(|(name, _, labels, help)| {
                let of = all.times.iter().filter(|((it, _), _)| it == name);
                Timed {
                    name,
                    labels,
                    help,
                    times: of.map(|((_, words), times)| (*words, *times)).collect(),
                }
            })
            .collect()
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for figure in self.figures() {
            let Figure {
                name, label, help, ..
            } = figure;
            let kind = if figure.is_counter {
                "counter"
            } else {
                "gauge"
            };
            let _ = writeln!(text, "# HELP fluffy_{name} {help}");
            let _ = writeln!(text, "# TYPE fluffy_{name} {kind}");
            for (value, at) in figure.values {
                let _ = match label.is_empty() {
                    true => writeln!(text, "fluffy_{name} {at}"),
                    false => writeln!(text, "fluffy_{name}{{{label}=\"{value}\"}} {at}"),
                };
            }
        }
        for timed in self.timed() {
            timed.write(&mut text);
        }
        text
    }
}

/// Something that takes time, by the words of its labels.
#[derive(Debug)]
pub(crate) struct Timed {
    pub(crate) name: &'static str,
    labels: &'static str,
    pub(crate) help: &'static str,
    pub(crate) times: Vec<(Words, Times)>,
}

impl Timed {
    /// Its labels with these words.
    pub(crate) fn labelled(&self, words: Words) -> Vec<(&'static str, &'static str)> {
        let labels = self.labels.split(',').filter(|label| !label.is_empty());
        labels.zip(words).collect()
    }

    fn write(&self, text: &mut String) {
        let name = self.name;
        let _ = writeln!(text, "# HELP fluffy_{name} {}", self.help);
        let _ = writeln!(text, "# TYPE fluffy_{name} histogram");
        for (words, times) in &self.times {
            let pairs: Vec<String> = self
                .labelled(*words)
                .into_iter()
                .map(|(label, word)| format!("{label}=\"{word}\""))
                .collect();
            let bounds = Times::bounds().map(|bound| bound.to_string());
            let mut sum = 0;
            for (bound, count) in bounds.chain(["+Inf".to_owned()]).zip(times.counts) {
                sum += count;
                let last = format!("le=\"{bound}\"");
                let all = [pairs.as_slice(), &[last]].concat().join(",");
                let _ = writeln!(text, "fluffy_{name}_bucket{{{all}}} {sum}");
            }
            let braced = match pairs.is_empty() {
                true => String::new(),
                false => format!("{{{}}}", pairs.join(",")),
            };
            let _ = writeln!(text, "fluffy_{name}_sum{braced} {}", times.seconds());
            let _ = writeln!(text, "fluffy_{name}_count{braced} {}", times.count());
        }
    }
}

/// One figure with all its values, by the word of its label.
#[derive(Debug)]
pub(crate) struct Figure {
    pub(crate) name: &'static str,
    pub(crate) is_counter: bool,
    /// Empty if it has none.
    pub(crate) label: &'static str,
    pub(crate) help: &'static str,
    pub(crate) values: Vec<(&'static str, i64)>,
}

/// Figures of something else in this process, in the same form; served after
/// the node's.
#[derive(Clone)]
pub struct OtherFigures(pub Arc<dyn Fn() -> String + Send + Sync>);

impl std::fmt::Debug for OtherFigures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OtherFigures")
    }
}

/// Answers at an address of this machine, until it is dropped.
pub(crate) async fn serve(
    metrics: Arc<Metrics>,
    others: Option<OtherFigures>,
    listener: TcpListener,
) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        // One at a time: who is slow is cut off.
        let _ = timeout(PATIENCE, answer(&metrics, others.as_ref(), stream)).await;
    }
}

/// Listens for who wants figures; only this machine is let in.
pub(crate) async fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    if !address.ip().is_loopback() {
        return Err(std::io::Error::new(
            std::io::ErrorKind::InvalidInput,
            "figures are served on this machine only",
        ));
    }
    TcpListener::bind(address).await
}

async fn answer(
    metrics: &Metrics,
    others: Option<&OtherFigures>,
    mut stream: TcpStream,
) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|four| four == b"\r\n\r\n") && head.len() < MAX_HEAD {
        if stream.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
    let (status, body) = match head.starts_with(b"GET /metrics ") {
        true => {
            let others = others.map(|others| (others.0)());
            ("200 OK", metrics.text() + others.as_deref().unwrap_or(""))
        }
        false => ("404 Not Found", String::new()),
    };
    let answer = format!(
        "HTTP/1.1 {status}\r\ncontent-type: text/plain; version=0.0.4\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_as_far_off_as_the_server_says_whichever_goes_ahead() {
        let metrics = Metrics::default();
        let skew = || {
            let figures = metrics.figures();
            let skew = figures
                .iter()
                .find(|it| it.name == "agent_clock_skew_seconds");
            skew.unwrap().values[0].1
        };
        assert_eq!(skew(), 0);
        metrics.server_clock(now_ms() - 400_000);
        // As long as this test may take.
        assert!((400..500).contains(&skew()), "{}", skew());
        metrics.server_clock(0);
        assert!(skew() >= 400, "a server of before says nothing of it");
        metrics.server_clock(now_ms() + 400_000);
        assert!((300..=400).contains(&skew()), "{}", skew());
    }

    #[tokio::test]
    async fn figures_are_served_and_nothing_else() {
        let metrics = Arc::new(Metrics::default());
        metrics.count("agent_boots_total", "started");
        metrics.set("agent_plan_seq", "", 7);
        for ms in [3, 300, 90_000] {
            let took = Duration::from_millis(ms);
            metrics.time("agent_boot_seconds", ["container-rootfs", "started"], took);
        }
        metrics.time(
            "agent_handshake_seconds",
            [""; 2],
            Duration::from_millis(10),
        );
        let listener = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let others = OtherFigures(Arc::new(|| "fluffy_other 5\n".to_owned()));
        let task = tokio::spawn(serve(metrics, Some(others), listener));
        for (path, wanted) in [
            (
                "/metrics",
                "fluffy_agent_boots_total{result=\"started\"} 1\n",
            ),
            (
                "/metrics",
                "# TYPE fluffy_agent_plan_seq gauge\nfluffy_agent_plan_seq 7\n",
            ),
            ("/metrics", "fluffy_exec_sessions 0\n"),
            ("/metrics", "\nfluffy_other 5\n"),
            (
                "/metrics",
                "# TYPE fluffy_agent_boot_seconds histogram\n\
                 fluffy_agent_boot_seconds_bucket{driver=\"container-rootfs\",result=\"started\",le=\"0.005\"} 1\n",
            ),
            ("/metrics", "result=\"started\",le=\"0.25\"} 1\n"),
            ("/metrics", "result=\"started\",le=\"0.5\"} 2\n"),
            ("/metrics", "result=\"started\",le=\"60\"} 2\n"),
            ("/metrics", "result=\"started\",le=\"+Inf\"} 3\n"),
            (
                "/metrics",
                "fluffy_agent_boot_seconds_sum{driver=\"container-rootfs\",result=\"started\"} 90.303\n\
                 fluffy_agent_boot_seconds_count{driver=\"container-rootfs\",result=\"started\"} 3\n",
            ),
            (
                "/metrics",
                "fluffy_agent_handshake_seconds_bucket{le=\"0.01\"} 1\n",
            ),
            ("/metrics", "fluffy_agent_handshake_seconds_count 1\n"),
            ("/other", "404 Not Found"),
        ] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let question = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
            stream.write_all(question.as_bytes()).await.unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).await.unwrap();
            assert!(text.contains(wanted), "{text}");
        }
        task.abort();
        assert!(listen("0.0.0.0:0".parse().unwrap()).await.is_err());
    }
}
