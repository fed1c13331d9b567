//! What time alone brings about: sessions end, ranges are freed, releases
//! retire, and what has ended beside the ledger is removed.
//!
//! Only says that time has passed; what follows is decided on exact state.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fluffy_base::id::SecretVersionId;
use fluffy_contract::BoxFuture;
use fluffy_control::runtime::Notice as RuntimeNotice;
use fluffy_control::{Fence, Notice};

use super::{every, say};
use crate::personal::{Address, Personal, is_address_of};
use crate::platform::Platform;
use crate::readers::Looks;
use crate::{safe, works};

const PERIOD: Duration = Duration::from_secs(5);
/// How often days that are over, or a million events, are looked for.
const ARCHIVE: Duration = Duration::from_secs(3600);
/// How often it is looked for secrets that were destroyed.
const DESTROY: Duration = Duration::from_secs(1);
/// How often addresses and sealed secrets are looked for that are nobody's.
const ERASE: Duration = Duration::from_secs(3600);
/// What is younger may be of a command that waits for an approval.
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
            let kept = platform.sequencer().read(safe::versions_of);
            let is_kept = |key: &str| key.parse().is_ok_and(|version| kept.contains(&version));
            if let Err(error) = safe::sweep(platform.aside(), is_kept, YOUNG).await {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "sealed secrets that nobody needs were not removed"
                );
            }
        });
        let kept = Kept::default();
        let destroy = every(DESTROY, || kept.destroy(&platform));
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
        let archive = every(ARCHIVE, || works::archive_in_passing(&platform));
        let looks = Looks::default();
        let readers = every(PERIOD, || looks.look(&platform, Some(&fence)));
        tokio::join!(erase, destroy, upkeep, archive, readers);
    })
}

/// The versions of secrets that were kept when this was last looked at, and
/// those that are not and could not be removed yet.
#[derive(Debug, Default)]
struct Kept(Mutex<BTreeSet<SecretVersionId>>);

impl Kept {
    /// Removes what was sealed of versions that are kept no more, by whatever
    /// event: destroyed, deleted with their bundle, or gone with their env.
    async fn destroy(&self, platform: &Platform) {
        let now = platform.sequencer().read(safe::versions_of);
        let before = std::mem::replace(&mut *self.lock(), now.clone());
        for version in before.difference(&now) {
            if let Err(error) = safe::destroy(platform.aside(), *version).await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, %version, "a destroyed secret was not removed yet");
                self.lock().insert(*version);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<SecretVersionId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
