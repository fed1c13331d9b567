//! What time alone brings about: sessions end, ranges are freed, releases
//! retire, and what has ended beside the ledger is removed.
//!
//! Only says that time has passed; what follows is decided on exact state.

use std::time::Duration;

use fluffy_contract::BoxFuture;
use fluffy_control::runtime::Notice as RuntimeNotice;
use fluffy_control::{Fence, Notice};

use super::{every, say};
use crate::platform::Platform;

const PERIOD: Duration = Duration::from_secs(5);

pub(super) fn run(platform: Platform, fence: Fence) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        every(PERIOD, || async {
            let notice = Notice::Runtime(RuntimeNotice::Upkeep);
            say(&platform, "retention", &fence, notice).await;
            if let Err(error) = platform.aside().sweep().await {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "what has ended was not removed"
                );
            }
        })
        .await;
    })
}
