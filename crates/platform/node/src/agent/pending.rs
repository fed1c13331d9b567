//! What is on its way: reports to the server, and writes to the disk.

use std::collections::VecDeque;

use fluffy_api::node::{MAX_REPORTS, v1};
use fluffy_base::id::BootId;
use tokio::time::Instant;

use crate::supervise::Failures;

/// What was reported and not acknowledged.
#[derive(Debug)]
pub(super) struct Reports {
    pub(super) boot: BootId,
    pub(super) last: u64,
    pub(super) waiting: VecDeque<v1::Report>,
}

impl Reports {
    pub(super) fn new() -> Self {
        Self {
            boot: BootId::generate(),
            last: 0,
            waiting: VecDeque::new(),
        }
    }

    pub(super) fn add(&mut self, report: v1::InstanceReport, at_ms: u64) {
        self.last += 1;
        self.waiting.push_back(v1::Report {
            number: self.last,
            at_ms,
            of: Some(v1::report::Of::Instance(report)),
        });
    }

    pub(super) fn above(&self, number: u64) -> Vec<v1::Report> {
        let above = self.waiting.iter().filter(|it| it.number > number);
        above.take(MAX_REPORTS).cloned().collect()
    }

    pub(super) fn acknowledged(&mut self, through: u64) {
        while self.waiting.front().is_some_and(|it| it.number <= through) {
            self.waiting.pop_front();
        }
    }
}

/// What the disk did not take, and is to be tried again.
#[derive(Debug, Default)]
pub(super) struct Unwritten {
    /// A plan that nothing goes by yet.
    pub(super) plan: Option<v1::NodePlan>,
    /// Whether an instance of the plan could not be begun.
    pub(super) instances: bool,
    /// Whether the credentials on the disk are those of before.
    pub(super) credentials: bool,
    pub(super) why: String,
    pub(super) failures: Failures,
    pub(super) again: Option<Instant>,
}

impl Unwritten {
    pub(super) fn failed(&mut self, error: &dyn std::error::Error) {
        self.why = match error.source() {
            Some(cause) => format!("{error}: {cause}"),
            None => error.to_string(),
        };
        tracing::error!(why = self.why, "the disk does not take it; tried again");
        self.again = Some(Instant::now() + self.failures.pause());
    }

    /// Nothing waits any more, if that is so.
    pub(super) fn settle(&mut self) {
        if self.plan.is_none() && !self.instances && !self.credentials {
            *self = Self::default();
        }
    }
}
