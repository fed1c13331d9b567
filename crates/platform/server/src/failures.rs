//! Credentials that were not good, on record.
//!
//! One by one up to ten a minute and source, then in sum: whoever shows what
//! is none does not fill the ledger with it. Never keeps what was shown. Next:
//! `backend` for who calls, `exec` for who opens a session.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fluffy_base::id::OrgId;
use fluffy_control::Notice;
use fluffy_control::access::Notice as AccessNotice;

use crate::personal::Personal;
use crate::platform::Platform;
use crate::source;

/// Bad credentials of one source are recorded one by one up to so many a
/// minute, then as one.
const ONE_BY_ONE: u64 = 10;

/// The most sources that are counted each; those beyond share one count.
const SOURCES: usize = 1_000;

/// The source of those.
const OTHERS: &str = "others";

/// Records credentials that were not good; to be cloned freely.
#[derive(Debug, Clone)]
pub(crate) struct Failures {
    platform: Platform,
    personal: Personal,
    counts: Arc<Mutex<Counts>>,
}

/// Bad credentials by source, since they were last summed up.
#[derive(Debug, Default)]
struct Counts(BTreeMap<String, u64>);

impl Failures {
    /// Of this platform, none so far.
    pub(crate) fn new(platform: Platform) -> Self {
        Self {
            personal: Personal::new(platform.aside().clone()),
            platform,
            counts: Arc::default(),
        }
    }

    /// Records that somebody showed what is no credential, in the history of
    /// an org or of nobody.
    pub(crate) async fn note(&self, reason: &str, source: &str, org: Option<OrgId>) {
        let count = self.lock().count(source);
        if count > ONE_BY_ONE {
            return;
        }
        let notice = AccessNotice::AuthFailed {
            reason: reason.to_owned(),
            pii_ref: self.personal.keep_source(source).await,
            count: 1,
            org,
        };
        let notice = Notice::Access(notice);
        let recorded = self.platform.notice("access", None, notice).await;
        if let Err(error) = recorded {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "a bad credential was not recorded");
        }
    }

    /// Begins anew, and gives the sum of what was not recorded one by one.
    pub(crate) fn end(&self) -> Option<AccessNotice> {
        self.lock().end()
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    /// Counts one; how many there were of this source.
    fn count(&mut self, source: &str) -> u64 {
        let source = source::counted_text(source);
        let is_known = self.0.len() < SOURCES || self.0.contains_key(source.as_ref());
        let source = if is_known { source.as_ref() } else { OTHERS };
        let count = self.0.entry(source.to_owned()).or_default();
        *count += 1;
        *count
    }

    fn end(&mut self) -> Option<AccessNotice> {
        let by_source = std::mem::take(&mut self.0);
        let beyond = by_source
            .values()
            .map(|count| count.saturating_sub(ONE_BY_ONE));
        let count: u64 = beyond.sum();
        (count > 0).then(|| AccessNotice::AuthFailed {
            reason: "folded".to_owned(),
            pii_ref: None,
            count,
            org: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_counted_as_one_by_whatever_address_of_its_own_it_comes() {
        let mut counts = Counts::default();
        for host in 1..=10 {
            assert_eq!(counts.count(&format!("2001:db8:1:2::{host}")), host);
        }
        assert_eq!(counts.count("2001:db8:1:3::1"), 1, "another network");
        assert_eq!(counts.count("socket:1000"), 1);
        assert_eq!(counts.end(), None);
        // However many sources there are, an end is put to them.
        for number in 0..SOURCES + 30 {
            counts.count(&format!("source {number}"));
        }
        let sum = counts.end();
        assert!(
            matches!(
                &sum,
                Some(AccessNotice::AuthFailed {
                    count: 20,
                    org: None,
                    ..
                })
            ),
            "{sum:?}"
        );
    }
}
