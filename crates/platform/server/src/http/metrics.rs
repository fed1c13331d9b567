//! Figures of this layer, in the form of Prometheus.
//!
//! Counts by operation and class of status, never by anything a caller chose.
//! How long answers took is counted for reads and writes apart: they have
//! targets of their own.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use fluffy_api::Operation;
use fluffy_api::operation::{Auth, Kind};

use crate::histogram::Histogram;

/// The longest of each bucket, in milliseconds; the targets are among them.
const BOUNDS: [u64; 11] = [5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000];

#[derive(Debug)]
pub(super) struct Metrics {
    answers: Mutex<BTreeMap<(&'static str, u16), u64>>,
    reads: Histogram<11>,
    writes: Histogram<11>,
    running: AtomicU64,
}

impl Default for Metrics {
    fn default() -> Self {
        let bounds = BOUNDS.map(Duration::from_millis);
        Self {
            answers: Mutex::default(),
            reads: Histogram::new(bounds),
            writes: Histogram::new(bounds),
            running: AtomicU64::new(0),
        }
    }
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

    /// Counts an answer; a stream's is its beginning.
    pub(super) fn count(&self, operation: Option<Operation>, status: u16, took: Duration) {
        let spec = operation.map(Operation::spec);
        let name = spec.map_or("none", |spec| spec.id);
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        *answers.entry((name, status)).or_default() += 1;
        drop(answers);
        match spec.map(|spec| (spec.auth, spec.kind)) {
            // It lasts as long as a node takes to start a command.
            None | Some((Auth::ExecToken, _)) => {}
            Some((_, Kind::Write)) => self.writes.count(took),
            Some((_, Kind::Read | Kind::List)) => self.reads.count(took),
        }
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
        drop(answers);
        text.push_str("# TYPE fluffy_http_answer_seconds histogram\n");
        for (class, histogram) in [("read", &self.reads), ("write", &self.writes)] {
            let label = format!("class=\"{class}\"");
            histogram.write(&mut text, "fluffy_http_answer_seconds", &label);
        }
        let running = self.running.load(Ordering::Relaxed);
        let _ = write!(
            text,
            "# TYPE fluffy_http_running gauge\nfluffy_http_running {running}\n"
        );
        text
    }
}
