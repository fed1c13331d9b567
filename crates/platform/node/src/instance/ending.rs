//! How an instance ended, by the word of whoever knows it best.

use fluffy_planner::reason::FailureReason;
use tokio::time::Instant;

use super::{Instance, LOOK};
use crate::decide::{Failure, Run};
use crate::driver::{ExitRecord, Stats};
use crate::workload::{self, Witness};

impl Instance {
    /// It ended, and all that it had to say was heard.
    pub(super) async fn ended(&mut self) {
        let Some(record) = self.gone.take() else {
            return;
        };
        if matches!(self.kept.seen.run, Run::Up(_) | Run::Working) {
            // The guest knows best, then who held it.
            let said = self.last_words.take();
            let mut failure = said.unwrap_or_else(|| of_record(record.as_ref()));
            if let Some(record) = record.filter(|record| record.oom) {
                failure = self.out_of_memory(failure, record.memory_peak_bytes).await;
            }
            self.cancel.send_replace(true);
            self.over(failure);
        }
    }

    /// An end of something of which the kernel ended a process for its memory;
    /// its group may be gone with how much it used at most.
    pub(super) async fn out_of_memory(&self, ended: Failure, peak: u64) -> Failure {
        let stats = self.stats().await.unwrap_or_default();
        let spec = self.kept.assignment.workload.as_ref();
        let resources = spec.and_then(|spec| spec.resources);
        let witness = Witness::Host {
            limit: resources.unwrap_or_default().memory_limit_bytes,
            peak: stats.memory_peak_bytes.max(peak),
            now: self
                .oom_kills
                .is_some_and(|before| stats.oom_kills > before),
        };
        workload::out_of_memory(ended, witness)
    }

    async fn stats(&self) -> Option<Stats> {
        let (handle, driver) = self.driven()?;
        driver.stats(&handle).await.ok()
    }

    /// Sees how many processes were ended for their memory so far, so that the
    /// next one is known to be new.
    pub(super) async fn look(&mut self) {
        let due = self.looked.is_none_or(|at| at.elapsed() >= LOOK);
        if due && matches!(self.kept.seen.run, Run::Up(_)) {
            self.looked = Some(Instant::now());
            self.oom_kills = self.stats().await.map(|stats| stats.oom_kills);
        }
    }
}

/// How an end is reported that only the host saw.
pub(super) fn of_record(record: Option<&ExitRecord>) -> Failure {
    match record {
        None => Failure::new(FailureReason::VmmLost, "nobody saw how it ended"),
        Some(record) => match &record.failed {
            Some(why) => Failure::new(FailureReason::ContainerStartFailed, why.clone()),
            None => workload::exited(record.exit_code, record.signal),
        },
    }
}
