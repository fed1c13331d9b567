//! A wish to stop, seen at once by those who wait and those who work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;

/// Whether a turn should end.
#[derive(Debug)]
pub struct Stop {
    flag: Arc<AtomicBool>,
    told: watch::Sender<bool>,
}

impl Default for Stop {
    fn default() -> Self {
        Self {
            flag: Arc::default(),
            told: watch::Sender::new(false),
        }
    }
}

impl Stop {
    /// Asks for the end.
    pub fn ask(&self) {
        self.flag.store(true, Ordering::Relaxed);
        self.told.send_replace(true);
    }

    /// Takes the wish back, for the next turn.
    pub fn clear(&self) {
        self.flag.store(false, Ordering::Relaxed);
        self.told.send_replace(false);
    }

    /// Whether it was asked for.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }

    /// For threads that look now and then.
    #[must_use]
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.flag)
    }

    /// Ready when it is asked for.
    pub async fn asked(&self) {
        let mut told = self.told.subscribe();
        // The sender lives as long as this borrow.
        let _ = told.wait_for(|asked| *asked).await;
    }
}
