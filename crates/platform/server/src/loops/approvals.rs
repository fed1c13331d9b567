//! Approvals that nobody decided in time end.
//!
//! Only says that the time may be over; which ones end is decided on exact
//! state.

use std::time::Duration;

use fluffy_contract::BoxFuture;
use fluffy_control::access::Notice as AccessNotice;
use fluffy_control::{Fence, Notice};

use super::{every, say};
use crate::platform::Platform;

/// How late an approval may end.
const PERIOD: Duration = Duration::from_secs(15);

pub(super) fn run(platform: Platform, fence: Fence) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        every(PERIOD, || async {
            let notice = Notice::Access(AccessNotice::ApprovalsExpired);
            say(&platform, "approvals", &fence, notice).await;
        })
        .await;
    })
}
