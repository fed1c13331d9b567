//! Hostnames that wait to be proven are looked up again, until they are.
//!
//! Only says what was found; what follows is decided on exact state.

use std::time::Duration;

use fluffy_contract::BoxFuture;
use fluffy_control::runtime::Notice as RuntimeNotice;
use fluffy_control::{Fence, Notice};
use futures_util::{StreamExt as _, stream};

use super::{every, say};
use crate::hostnames::Hostnames;
use crate::platform::Platform;

/// How often a name is looked up.
const PERIOD: Duration = Duration::from_secs(10);
/// How many are looked up at once.
const AT_ONCE: usize = 8;

pub(super) fn run(
    platform: Platform,
    fence: Fence,
    hostnames: Hostnames,
) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        every(PERIOD, || pass(&platform, &fence, &hostnames)).await;
    })
}

async fn pass(platform: &Platform, fence: &Fence, hostnames: &Hostnames) {
    let unproven = platform.sequencer().read(|state| state.runtime.unproven());
    let found = stream::iter(unproven).map(|wanted| async move {
        match hostnames.prove(&wanted).await {
            Ok(method) => method.map(|method| (wanted.route, method)),
            Err(error) => {
                tracing::debug!(
                    hostname = wanted.hostname,
                    error = &error as &dyn std::error::Error,
                    "a hostname was not looked up"
                );
                None
            }
        }
    });
    let mut found = std::pin::pin!(found.buffer_unordered(AT_ONCE));
    while let Some(proven) = found.next().await {
        let Some((route, method)) = proven else {
            continue;
        };
        let method = method.to_owned();
        let notice = Notice::Runtime(RuntimeNotice::RouteProven { route, method });
        say(platform, "routes-verify", fence, notice).await;
    }
}
