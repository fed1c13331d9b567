//! How long something took, as Prometheus counts it: in buckets.
//!
//! Only ever grows, so that whoever reads it now and then knows what was in
//! between. Next: `http::metrics` and `figures`.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counts how long something took.
#[derive(Debug)]
pub(crate) struct Histogram<const N: usize> {
    /// The longest of each bucket.
    bounds: [Duration; N],
    buckets: [AtomicU64; N],
    /// Those included that are in no bucket.
    count: AtomicU64,
    micros: AtomicU64,
}

impl<const N: usize> Histogram<N> {
    /// Nothing so far, in buckets that end here.
    pub(crate) fn new(bounds: [Duration; N]) -> Self {
        Self {
            bounds,
            buckets: std::array::from_fn(|_| AtomicU64::new(0)),
            count: AtomicU64::new(0),
            micros: AtomicU64::new(0),
        }
    }

    /// Counts one.
    pub(crate) fn count(&self, took: Duration) {
        let buckets = self.bounds.iter().zip(&self.buckets);
        for (_, bucket) in buckets.filter(|(bound, _)| took <= **bound) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.micros.fetch_add(micros, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Writes it down under a name, with a label such as `class="read"` or
    /// none.
    pub(crate) fn write(&self, text: &mut String, name: &str, label: &str) {
        // First, so that no bucket holds more.
        let buckets = self.buckets.each_ref().map(|it| it.load(Ordering::Relaxed));
        let count = self.count.load(Ordering::Relaxed);
        let comma = if label.is_empty() { "" } else { "," };
        for (bound, held) in self.bounds.iter().zip(buckets) {
            let bound = seconds(*bound);
            let _ = writeln!(text, "{name}_bucket{{{label}{comma}le=\"{bound}\"}} {held}");
        }
        let _ = writeln!(text, "{name}_bucket{{{label}{comma}le=\"+Inf\"}} {count}");
        let label = match label {
            "" => String::new(),
            label => format!("{{{label}}}"),
        };
        let sum = Duration::from_micros(self.micros.load(Ordering::Relaxed));
        let _ = writeln!(text, "{name}_sum{label} {}", seconds(sum));
        let _ = writeln!(text, "{name}_count{label} {count}");
    }
}

/// Seconds without needless zeros: whole microseconds need no floating point.
fn seconds(time: Duration) -> String {
    let (whole, rest) = (time.as_secs(), time.subsec_micros());
    let text = format!("{whole}.{rest:06}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bucket_holds_all_that_took_no_longer() {
        let bounds = [50, 250, 5_000].map(Duration::from_millis);
        let histogram = Histogram::new(bounds);
        for millis in [1, 250, 251, 60_000] {
            histogram.count(Duration::from_millis(millis));
        }
        let mut text = String::new();
        histogram.write(&mut text, "took", "class=\"read\"");
        let lines = "took_bucket{class=\"read\",le=\"0.05\"} 1\n\
                     took_bucket{class=\"read\",le=\"0.25\"} 2\n\
                     took_bucket{class=\"read\",le=\"5\"} 3\n\
                     took_bucket{class=\"read\",le=\"+Inf\"} 4\n\
                     took_sum{class=\"read\"} 60.502\n\
                     took_count{class=\"read\"} 4\n";
        assert_eq!(text, lines);
        text.clear();
        Histogram::new([Duration::from_secs(120)]).write(&mut text, "none", "");
        let lines = "none_bucket{le=\"120\"} 0\nnone_bucket{le=\"+Inf\"} 0\n\
                     none_sum 0\nnone_count 0\n";
        assert_eq!(text, lines);
    }
}
