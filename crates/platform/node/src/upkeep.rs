//! What the agent does from time to time whatever its plan says: lets images
//! go that nobody needs before the disk is full, and says how full it is.
//! Never lets go what an instance needs.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use crate::facts::{disk_free, disk_used_permille, meminfo};
use crate::images::{Stock, Tidy, Tidying};
use crate::metrics::Metrics;

/// How often.
const EVERY: Duration = Duration::from_secs(30);
/// So much of the disk, in thousandths, is too much for anything new: servers
/// place nothing here from then on.
const PRESSURE: u32 = 900;
/// The most images that servers are told of.
const TOLD: usize = 256;

/// Keeps house until it is dropped; tells which images are here.
pub(crate) async fn keep(
    folder: PathBuf,
    tidy: Tidy,
    metrics: Arc<Metrics>,
    images: watch::Sender<Vec<String>>,
) {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut evicted, mut tidying) = (0, Tidying::Look);
    loop {
        ticks.tick().await;
        let tidy = Arc::clone(&tidy);
        let stock = tokio::task::spawn_blocking(move || tidy(tidying)).await;
        // By the next time every instance of before has its image pinned.
        tidying = Tidying::LetGo;
        match stock.unwrap_or_else(|error| Err(std::io::Error::other(error))) {
            Ok(stock) => {
                let more = stock.evicted.saturating_sub(evicted);
                evicted = stock.evicted;
                let more = i64::try_from(more).unwrap_or(i64::MAX);
                metrics.add("agent_cache_evictions_total", "", more);
                say(&metrics, &stock);
                let mut told = stock.images;
                told.truncate(TOLD);
                images.send_if_modified(|known| {
                    let is_new = *known != told;
                    *known = told;
                    is_new
                });
            }
            Err(error) => {
                let why = error.to_string();
                tracing::warn!(why, "images that nobody needs cannot be let go");
            }
        }
        look(&metrics, &folder);
    }
}

fn say(metrics: &Metrics, stock: &Stock) {
    for (kind, bytes) in [
        ("used", stock.bytes),
        ("promised", stock.promised),
        ("quota", stock.quota),
    ] {
        metrics.set("agent_cache_bytes", kind, bytes);
    }
    for (result, more) in [("hit", stock.tally.hits), ("miss", stock.tally.misses)] {
        let more = i64::try_from(more).unwrap_or(i64::MAX);
        metrics.add("agent_cache_hits_total", result, more);
    }
    for took in &stock.tally.conversions {
        metrics.time("agent_image_convert_seconds", [""; 2], *took);
    }
}

fn look(metrics: &Metrics, folder: &Path) {
    metrics.set("agent_disk_free_bytes", "", disk_free(folder));
    let pressure = disk_used_permille(folder) >= PRESSURE;
    metrics.set("agent_disk_pressure", "", u64::from(pressure));
    for (kind, line) in [("total", "MemTotal"), ("available", "MemAvailable")] {
        metrics.set("agent_memory_bytes", kind, meminfo(line));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use fluffy_image::Tally;

    use super::*;

    #[tokio::test]
    async fn what_is_here_is_told_and_counted() {
        let folder = tempfile::tempdir().unwrap();
        let metrics = Arc::new(Metrics::default());
        let (images, mut told) = watch::channel(Vec::new());
        let calls = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&calls);
        let tidy: Tidy = Arc::new(move |tidying| {
            assert_eq!(tidying, Tidying::Look, "the first time nothing goes");
            counted.fetch_add(1, Ordering::Relaxed);
            Ok(Stock {
                bytes: 7,
                evicted: 2,
                tally: Tally {
                    hits: 3,
                    misses: 1,
                    conversions: vec![Duration::from_millis(40); 2],
                },
                images: (0..1000).map(|number| format!("sha256:{number}")).collect(),
                ..Stock::default()
            })
        });
        let path = folder.path().to_owned();
        let task = tokio::spawn(keep(path, tidy, Arc::clone(&metrics), images));
        told.changed().await.unwrap();
        assert_eq!(told.borrow().len(), TOLD);
        let value = |name: &str| {
            let all = metrics.figures();
            all.into_iter().find(|it| it.name == name).unwrap().values
        };
        let by = tokio::time::Instant::now() + Duration::from_secs(60);
        while !metrics
            .figures()
            .iter()
            .any(|it| it.name == "agent_memory_bytes")
        {
            assert!(tokio::time::Instant::now() < by);
            tokio::task::yield_now().await;
        }
        task.abort();
        assert_eq!(value("agent_cache_evictions_total"), [("", 2)]);
        assert!(value("agent_cache_bytes").contains(&("used", 7)));
        assert_eq!(value("agent_cache_hits_total"), [("hit", 3), ("miss", 1)]);
        let mut timed = metrics.timed().into_iter();
        let converted = timed.find(|it| it.name == "agent_image_convert_seconds");
        assert_eq!(converted.unwrap().times[0].1.count(), 2);
        assert!(value("agent_disk_free_bytes")[0].1 > 0);
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    }
}
