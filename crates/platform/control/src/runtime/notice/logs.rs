//! How much of its log bytes of a day an org has printed: said once per level.
//!
//! The bytes are no events; who counts them says them here, again and again,
//! and what is due is decided on exact state, so that of several servers one
//! says it. Decides nothing about what is kept.

use std::collections::BTreeMap;
use std::time::Duration;

use fluffy_base::Timestamp;
use fluffy_base::id::OrgId;

use super::Said;
use crate::call::Fact;
use crate::event::OrgLogQuotaReached;
use crate::runtime::Runtime;
use crate::runtime::quota::{Dimension, UNLIMITED};
use crate::state::{Owner, State};

/// The hundredths of its share at which an org is told.
const LEVELS: [u64; 2] = [80, 100];

/// The date of a day since 1970.
pub(crate) fn date(day: u64) -> String {
    let begin = Duration::from_secs(day.saturating_mul(24 * 3600));
    let text = Timestamp::from_micros(0).after(begin).to_string();
    text.split('T').next().unwrap_or_default().to_owned()
}

/// What has to be said of what orgs printed on a day.
#[must_use]
pub fn due(
    runtime: &Runtime,
    day: u64,
    used: &BTreeMap<OrgId, u64>,
) -> Vec<(OrgId, OrgLogQuotaReached)> {
    let (day, mut due) = (date(day), Vec::new());
    for (id, used) in used {
        let Some(org) = runtime.orgs.get(id) else {
            continue;
        };
        let limit = runtime.limit(*id, Dimension::LogBytesPerDay);
        if *used == 0 || limit >= UNLIMITED {
            continue;
        }
        let said = org.log_quota.as_ref();
        // Who counts may be a little behind who has begun the next day.
        if said.is_some_and(|said| said.day > day) {
            continue;
        }
        let said = said.filter(|said| said.day == day);
        let said = said.map_or(0, |said| said.percent);
        let reached =
            |percent: u64| u128::from(*used) * 100 >= u128::from(limit) * u128::from(percent);
        for percent in LEVELS {
            if percent > said && reached(percent) {
                let reached = OrgLogQuotaReached {
                    percent,
                    day: day.clone(),
                    used: *used,
                    limit,
                };
                due.push((*id, reached));
            }
        }
    }
    due
}

/// Says what is due.
pub(super) fn printed(state: &State, day: u64, used: &BTreeMap<OrgId, u64>) -> Said {
    let due = due(&state.runtime, day, used).into_iter();
    let facts = due.map(|(org, reached)| {
        let owner = Owner {
            org: Some(org),
            ..Owner::default()
        };
        Fact::new(org, reached.into()).of(&owner.scope())
    });
    Said::facts(facts.collect())
}
