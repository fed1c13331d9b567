//! Figures pushed to a collector on this machine, as OTLP over HTTP in JSON.
//!
//! Only to this machine, because nothing here is encrypted: a collector beside
//! the agent takes them further. Who does not take them loses them; the next
//! push has the sums.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::metrics::{Metrics, Times};
use crate::now_ms;

/// How often figures are pushed.
const EVERY: Duration = Duration::from_secs(15);
/// How long a collector may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// The most that is read of its answer.
const MAX_ANSWER: u64 = 8 << 10;

/// Where a collector takes figures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collector {
    address: SocketAddr,
    path: String,
}

/// Why an endpoint is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CollectorError {
    /// It is not the address of a collector.
    #[error("it is not `http://ADDRESS:PORT`, with a path or not")]
    Form,
    /// It is elsewhere.
    #[error("figures go in the clear, so only to this machine")]
    Elsewhere,
}

impl std::str::FromStr for Collector {
    type Err = CollectorError;

    fn from_str(text: &str) -> Result<Self, CollectorError> {
        let rest = text.strip_prefix("http://").ok_or(CollectorError::Form)?;
        let (place, path) = match rest.split_once('/') {
            Some((place, path)) if !path.is_empty() => (place, path),
            Some((place, _)) => (place, "v1/metrics"),
            None => (rest, "v1/metrics"),
        };
        let place = match place.strip_prefix("localhost:") {
            Some(port) => format!("{}:{port}", IpAddr::from([127, 0, 0, 1])),
            None => place.to_owned(),
        };
        let address: SocketAddr = place.parse().map_err(|_| CollectorError::Form)?;
        if !address.ip().is_loopback() {
            return Err(CollectorError::Elsewhere);
        }
        // It becomes a part of a request's first line.
        if !path.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(CollectorError::Form);
        }
        let path = format!("/{path}");
        Ok(Self { address, path })
    }
}

/// Pushes figures from time to time, until it is dropped.
pub(crate) async fn push(metrics: Arc<Metrics>, collector: Collector, node: String) {
    let since = now_ms();
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut complained = false;
    loop {
        ticks.tick().await;
        let body = document(&metrics, &node, since, now_ms()).to_string();
        let sent = timeout(PATIENCE, send(&collector, &body)).await;
        let failed = match sent {
            Ok(Ok(200..=299)) => None,
            Ok(Ok(status)) => Some(format!("it answered {status}")),
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some("it did not answer in time".to_owned()),
        };
        if let Some(why) = failed.as_ref().filter(|_| !complained) {
            tracing::warn!(why, "the collector does not take figures");
        }
        complained = failed.is_some();
    }
}

async fn send(collector: &Collector, body: &str) -> std::io::Result<u16> {
    let mut stream = TcpStream::connect(collector.address).await?;
    let head = format!(
        "POST {} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n",
        collector.path,
        collector.address,
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    let mut answer = Vec::new();
    (&mut stream)
        .take(MAX_ANSWER)
        .read_to_end(&mut answer)
        .await?;
    let line = String::from_utf8_lossy(&answer);
    let status = line
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    status.ok_or_else(|| std::io::ErrorKind::InvalidData.into())
}

/// All figures as one request of the protocol; numbers of 64 bits are texts
/// there.
fn document(all: &Metrics, node: &str, since_ms: u64, now_ms: u64) -> Value {
    let nanos = |ms: u64| format!("{ms}000000");
    let text = |key: &str, value: &str| json!({"key": key, "value": {"stringValue": value}});
    let mut metrics: Vec<Value> = all
        .figures()
        .iter()
        .map(|figure| {
            let points: Vec<Value> = figure
                .values
                .iter()
                .map(|(label, value)| {
                    let attributes = match figure.label {
                        "" => json!([]),
                        name => json!([text(name, label)]),
                    };
                    json!({
                        "attributes": attributes, "asInt": value.to_string(),
                        "startTimeUnixNano": nanos(since_ms), "timeUnixNano": nanos(now_ms),
                    })
                })
                .collect();
            let name = format!("fluffy_{}", figure.name);
            match figure.is_counter {
                // 2: sums since the start.
                true => json!({
                    "name": name, "description": figure.help,
                    "sum": {"aggregationTemporality": 2, "isMonotonic": true, "dataPoints": points},
                }),
                false => json!({
                    "name": name, "description": figure.help, "gauge": {"dataPoints": points},
                }),
            }
        })
        .collect();
    metrics.extend(all.timed().iter().filter(|it| !it.times.is_empty()).map(|timed| {
        let points: Vec<Value> = timed
            .times
            .iter()
            .map(|(words, times)| {
                let labels = timed.labelled(*words).into_iter();
                let attributes: Vec<Value> = labels.map(|(name, word)| text(name, word)).collect();
                let counts: Vec<String> = times.counts.iter().map(u64::to_string).collect();
                json!({
                    "attributes": attributes, "count": times.count().to_string(),
                    "sum": times.seconds(), "bucketCounts": counts,
                    "explicitBounds": Times::bounds().collect::<Vec<f64>>(),
                    "startTimeUnixNano": nanos(since_ms), "timeUnixNano": nanos(now_ms),
                })
            })
            .collect();
        json!({
            "name": format!("fluffy_{}", timed.name), "description": timed.help, "unit": "s",
            "histogram": {"aggregationTemporality": 2, "dataPoints": points},
        })
    }));
    json!({"resourceMetrics": [{
        "resource": {"attributes": [
            text("service.name", "fluffy-node"), text("service.instance.id", node),
        ]},
        "scopeMetrics": [{"scope": {"name": "fluffy"}, "metrics": metrics}],
    }]})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collectors_are_on_this_machine() {
        let at = |text: &str| {
            text.parse::<Collector>()
                .map(|it| (it.address.port(), it.path))
        };
        let metrics = || "/v1/metrics".to_owned();
        assert_eq!(at("http://127.0.0.1:4318"), Ok((4318, metrics())));
        assert_eq!(at("http://localhost:4318/"), Ok((4318, metrics())));
        assert_eq!(at("http://[::1]:80/a/b"), Ok((80, "/a/b".to_owned())));
        assert_eq!(at("http://192.0.2.1:4318"), Err(CollectorError::Elsewhere));
        for wrong in [
            "https://127.0.0.1:4318",
            "127.0.0.1:4318",
            "http://127.0.0.1",
            "http://127.0.0.1:1/a b",
            "http://127.0.0.1:1/\r\nx",
        ] {
            assert_eq!(at(wrong), Err(CollectorError::Form), "{wrong}");
        }
    }

    #[tokio::test]
    async fn figures_reach_a_collector() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let metrics = Arc::new(Metrics::default());
        metrics.count("agent_boots_total", "started");
        metrics.set("agent_plan_seq", "", 7);
        let collector = format!("http://{address}").parse().unwrap();
        let task = tokio::spawn(push(metrics, collector, "node_1".to_owned()));
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut heard = Vec::new();
        let body = loop {
            stream.read_buf(&mut heard).await.unwrap();
            let text = String::from_utf8_lossy(&heard).into_owned();
            if let Some((head, body)) = text.split_once("\r\n\r\n")
                && let Ok(value) = serde_json::from_str::<Value>(body)
            {
                assert!(head.starts_with("POST /v1/metrics HTTP/1.1\r\n"), "{head}");
                break value;
            }
        };
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        let metrics = &body["resourceMetrics"][0]["scopeMetrics"][0]["metrics"];
        let named = |name: &str| {
            let all = metrics.as_array().unwrap().iter();
            let mut found = all.filter(|it| it["name"] == name);
            found
                .next()
                .unwrap_or_else(|| panic!("{name}: {body}"))
                .clone()
        };
        let boots = named("fluffy_agent_boots_total");
        assert_eq!(boots["sum"]["isMonotonic"], true);
        let point = &boots["sum"]["dataPoints"][0];
        assert_eq!(point["asInt"], "1");
        assert_eq!(point["attributes"][0]["value"]["stringValue"], "started");
        let plan = named("fluffy_agent_plan_seq");
        assert_eq!(plan["gauge"]["dataPoints"][0]["asInt"], "7");
        task.abort();
    }
}
