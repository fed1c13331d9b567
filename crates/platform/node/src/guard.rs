//! Looks after what keeps instances apart outside of them, as long as the
//! agent runs: somebody who reloads the machine's rules takes ours away too.
//! Ends nothing and starts nothing.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::driver::InstanceDriver;
use crate::metrics::Metrics;

/// How often it is looked at.
const EVERY: Duration = Duration::from_secs(30);

/// Which look it is: before the first there may be nothing yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    First,
    Later,
}

/// Looks once at what every driver has.
pub(crate) async fn look(drivers: &[Arc<dyn InstanceDriver>], metrics: &Metrics, when: When) {
    for driver in drivers {
        match driver.guard().await {
            Ok(found) => {
                for (kind, packets) in found.dropped {
                    metrics.set("firewall_dropped_total", kind, packets);
                }
                if found.was_wrong && when == When::Later {
                    metrics.count("firewall_drift_total", "");
                    tracing::warn!(
                        event = "node.firewall_drift",
                        driver = driver.name(),
                        "somebody changed the rules about packets of instances; they are right again"
                    );
                }
            }
            // Nothing starts until it works: each start looks for itself.
            Err(error) => {
                let why = std::error::Error::source(&error).map(ToString::to_string);
                tracing::error!(driver = driver.name(), why, "instances are not kept apart");
            }
        }
    }
}

/// Looks again and again.
pub(crate) async fn watch(drivers: Vec<Arc<dyn InstanceDriver>>, metrics: Arc<Metrics>) {
    let mut ticks = interval_at(Instant::now() + EVERY, EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        look(&drivers, &metrics, When::Later).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use fluffy_contract::BoxFuture;

    use super::*;
    use crate::driver::{
        Adoption, DriverError, ExitRecord, Guarded, Handle, Level, Probe, StartFailure, StartOrder,
        Stats, Unavailable,
    };

    /// Has rules that were changed whenever the number of the look is even.
    #[derive(Debug, Default)]
    struct Changing(AtomicU64);

    impl InstanceDriver for Changing {
        fn name(&self) -> &'static str {
            "changing"
        }
        fn level(&self) -> Level {
            Level::SharedKernel
        }
        fn probe(&self) -> BoxFuture<'_, Result<Probe, Unavailable>> {
            Box::pin(std::future::pending())
        }
        fn start<'a>(&'a self, _: &'a StartOrder) -> BoxFuture<'a, Result<Handle, StartFailure>> {
            Box::pin(std::future::pending())
        }
        fn adopt<'a>(&'a self, _: &'a Handle) -> BoxFuture<'a, Adoption> {
            Box::pin(std::future::pending())
        }
        fn ended<'a>(&'a self, _: &'a Handle) -> BoxFuture<'a, Option<ExitRecord>> {
            Box::pin(std::future::pending())
        }
        fn kill<'a>(&'a self, _: &'a Handle) -> BoxFuture<'a, Result<(), DriverError>> {
            Box::pin(std::future::pending())
        }
        fn clean<'a>(&'a self, _: &'a Handle) -> BoxFuture<'a, Result<(), DriverError>> {
            Box::pin(std::future::pending())
        }
        fn stats<'a>(&'a self, _: &'a Handle) -> BoxFuture<'a, Result<Stats, DriverError>> {
            Box::pin(std::future::pending())
        }
        fn guard(&self) -> BoxFuture<'_, Result<Guarded, DriverError>> {
            let look = self.0.fetch_add(1, Ordering::Relaxed);
            Box::pin(std::future::ready(Ok(Guarded {
                was_wrong: look.is_multiple_of(2),
                dropped: vec![("host", look)],
            })))
        }
        fn sweep<'a>(&'a self, _: &'a [String]) -> BoxFuture<'a, Vec<String>> {
            Box::pin(std::future::pending())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn changed_rules_are_counted_and_the_first_look_is_none() {
        let driver = Arc::new(Changing::default());
        let drivers: Vec<Arc<dyn InstanceDriver>> = vec![driver.clone()];
        let metrics = Arc::new(Metrics::default());
        look(&drivers, &metrics, When::First).await;
        let value = |name: &str| {
            let figures = metrics.figures();
            let found = figures.into_iter().find(|it| it.name == name).unwrap();
            found.values[0].1
        };
        assert_eq!(value("firewall_drift_total"), 0);
        let task = tokio::spawn(watch(drivers.clone(), Arc::clone(&metrics)));
        while driver.0.load(Ordering::Relaxed) < 4 {
            tokio::time::sleep(EVERY).await;
        }
        task.abort();
        assert_eq!(value("firewall_drift_total"), 1);
        assert_eq!(value("firewall_dropped_total"), 3);
    }
}
