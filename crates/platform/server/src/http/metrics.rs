//! Figures of this layer, in the form of Prometheus.
//!
//! Counts by operation and class of status, never by anything a caller chose.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

#[derive(Debug, Default)]
pub(super) struct Metrics {
    answers: Mutex<BTreeMap<(&'static str, u16), u64>>,
    running: AtomicU64,
}

/// A request that is being answered.
pub(super) struct Running<'a>(&'a Metrics);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Metrics {
    pub(super) fn begin(&self) -> Running<'_> {
        self.running.fetch_add(1, Ordering::Relaxed);
        Running(self)
    }

    pub(super) fn count(&self, operation: &'static str, status: u16) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        *answers.entry((operation, status)).or_default() += 1;
    }

    pub(super) fn text(&self) -> String {
        let mut text = String::from("# TYPE fluffy_http_answers_total counter\n");
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        for ((operation, status), count) in &*answers {
            let _ = writeln!(
                text,
                "fluffy_http_answers_total{{operation=\"{operation}\",status=\"{status}\"}} {count}"
            );
        }
        let running = self.running.load(Ordering::Relaxed);
        let _ = write!(
            text,
            "# TYPE fluffy_http_running gauge\nfluffy_http_running {running}\n"
        );
        text
    }
}
