//! What time alone brings about: sessions end, ranges are freed, releases
//! retire, and what has ended beside the ledger is removed.
//!
//! Only says that time has passed; what follows is decided on exact state.

use std::time::Duration;

use fluffy_contract::BoxFuture;
use fluffy_control::runtime::Notice as RuntimeNotice;
use fluffy_control::{Fence, Notice};

use super::{every, say};
use crate::personal::{Address, Personal, is_address_of};
use crate::platform::Platform;

const PERIOD: Duration = Duration::from_secs(5);
/// How often addresses that are nobody's any more are looked for.
const ERASE: Duration = Duration::from_secs(3600);
/// What is younger may be of somebody whose invitation waits for an approval.
const YOUNG: Duration = Duration::from_secs(25 * 3600);

pub(super) fn run(platform: Platform, fence: Fence) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        let erase = every(ERASE, || async {
            let personal = Personal::new(platform.aside().clone());
            let is_kept = |key: &str| {
                let sequencer = platform.sequencer();
                sequencer
                    .read(|state| Address::of_key(key).is_some_and(|it| is_address_of(state, &it)))
            };
            if let Err(error) = personal.sweep(is_kept, YOUNG).await {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "addresses that nobody needs were not erased"
                );
            }
        });
        let upkeep = every(PERIOD, || async {
            let notice = Notice::Runtime(RuntimeNotice::Upkeep);
            say(&platform, "retention", &fence, notice).await;
            if let Err(error) = platform.aside().sweep().await {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "what has ended was not removed"
                );
            }
        });
        tokio::join!(erase, upkeep);
    })
}
