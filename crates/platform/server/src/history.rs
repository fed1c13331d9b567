//! The history of an org or of the platform: its events, read from the ledger
//! itself.
//!
//! A page looks at a bounded stretch, so that a filter that picks little can't
//! keep the ledger busy; where it stopped is where the next page goes on, with
//! or without anything found. Decides nothing: who may look was decided before.

use std::collections::BTreeMap;

use fluffy_api::types::{AuditDecision, AuditEntry, EventActor, EventEnvelope};
use fluffy_base::id::{AppId, EnvId, OrgId};
use fluffy_control::access::names::Names;
use fluffy_control::access::{Audit, is_of_platform, may_see};
use fluffy_control::{Body, Owner};
use fluffy_ledger::{Event, Ledger, StoreError};
use serde_json::{Value, json};

/// How many events are read at once, and looked at for one page.
const STRIDE: usize = 1_000;
const STRETCH: u64 = 20_000;

/// Whose history it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// An org's, with decisions or without.
    Org(OrgId, Audit),
    /// That of the platform itself.
    Platform,
}

impl Whose {
    fn has(self, event: &Event) -> bool {
        match self {
            Self::Org(org, audit) => may_see(org, audit, event),
            Self::Platform => is_of_platform(event),
        }
    }

    const fn org(self) -> Option<OrgId> {
        match self {
            Self::Org(org, _) => Some(org),
            Self::Platform => None,
        }
    }
}

/// Which events are wanted.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// Of whose history.
    pub whose: Whose,
    /// Behind which event.
    pub after: u64,
    /// How many at most.
    pub limit: usize,
    types: Option<Vec<String>>,
    env: Option<Option<EnvId>>,
    app: Option<Option<AppId>>,
    actor: Option<String>,
}

/// Why a page can't be read.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The events from there on are archived.
    #[error("the events before {first} are archived")]
    Archived {
        /// The first that can be read.
        first: u64,
    },
    /// The ledger can't be read.
    #[error("the ledger can't be read")]
    Store(#[from] StoreError),
}

impl Wanted {
    /// What a query asks for; names in it are those of this moment.
    #[must_use]
    pub fn of(whose: Whose, query: &BTreeMap<String, String>, names: &Names) -> Self {
        // An app or env that is not there picks nothing.
        let named = |text: &str| names.app(whose.org()?, text);
        let app = |text: &str| named(text).or_else(|| text.parse().ok());
        let env = |text: &str| match text.split_once('/') {
            Some((of, name)) => names.env(app(of)?, name),
            None => text.parse().ok(),
        };
        let text = |name: &str| query.get(name).cloned();
        let number = |name: &str| query.get(name).and_then(|text| text.parse().ok());
        let types = text("types").map(|types| {
            let types = types.split(',').map(str::trim);
            types.map(str::to_owned).collect()
        });
        Self {
            whose,
            after: number("after").unwrap_or(0),
            limit: number("limit")
                .and_then(|n| usize::try_from(n).ok())
                .unwrap_or(50),
            types,
            env: text("env").map(|text| env(&text)),
            app: text("app").map(|text| app(&text)),
            actor: text("actor"),
        }
    }

    fn picks(&self, event: &Event) -> bool {
        let owner = Owner::of(&event.scope);
        let of_type = |wanted: &String| match wanted.strip_suffix('*') {
            Some(start) => event.event_type.starts_with(start),
            None => *wanted == event.event_type,
        };
        self.whose.has(event)
            && self
                .types
                .as_ref()
                .is_none_or(|types| types.iter().any(of_type))
            && self.env.is_none_or(|env| env.is_some() && env == owner.env)
            && self.app.is_none_or(|app| app.is_some() && app == owner.app)
            && self.actor.as_ref().is_none_or(|id| *id == event.actor.id)
    }
}

/// One page, up to `through` at most; blocks while the ledger is read.
///
/// # Errors
/// What is asked for is archived, or the ledger can't be read.
pub fn page(ledger: &Ledger, wanted: &Wanted, through: u64) -> Result<Value, HistoryError> {
    let first = ledger.first_hot()?;
    // Whoever starts at the beginning starts with what there is.
    let mut last = match wanted.after {
        0 => first - 1,
        after if after + 1 < first => return Err(HistoryError::Archived { first }),
        after => after,
    };
    let end = through.min(last + STRETCH);
    let mut items = Vec::new();
    while last < end && items.len() < wanted.limit {
        let events = ledger.read(last + 1, STRIDE)?;
        if events.is_empty() {
            break;
        }
        for event in events {
            if event.seq > end || items.len() == wanted.limit {
                break;
            }
            last = event.seq;
            if wanted.picks(&event) {
                items.push(item(ledger, wanted.whose, &event)?);
            }
        }
    }
    let more = (last < through).then(|| last.to_string());
    Ok(json!({"items": items, "next_cursor": more}))
}

fn item(ledger: &Ledger, whose: Whose, event: &Event) -> Result<Value, HistoryError> {
    let shown = match whose {
        Whose::Platform | Whose::Org(_, Audit::Left) => serde_json::to_value(envelope(event)),
        Whose::Org(_, Audit::Included) => serde_json::to_value(AuditEntry {
            event: envelope(event),
            decision: decision(ledger, event)?,
            verification: verification(event).to_owned(),
        }),
    };
    // Structs of texts and numbers always are JSON.
    Ok(shown.unwrap_or_default())
}

/// Whether the event is what its hash says; the chain as a whole is verified
/// by `fluffy audit verify`.
fn verification(event: &Event) -> &'static str {
    match event.is_intact() {
        true => "verified",
        false => "failed",
    }
}

/// The decision that allowed an event, or that it is.
fn decision(ledger: &Ledger, event: &Event) -> Result<Option<AuditDecision>, HistoryError> {
    let decided = match event.decision_seq {
        Some(seq) => ledger.read(seq, 1)?.into_iter().next(),
        None => Some(event.clone()),
    };
    let Some(decided) = decided else {
        return Ok(None);
    };
    Ok(match Body::read(&decided) {
        Ok(Body::AuthzDecided(body)) => Some(AuditDecision {
            seq: decided.seq,
            principal_id: body.principal_id,
            capability: body.capability,
            resource_id: body.resource_id,
            outcome: body.outcome,
            rule_id: body.rule_id,
            reason: body.reason,
        }),
        _ => None,
    })
}

fn envelope(event: &Event) -> EventEnvelope {
    EventEnvelope {
        seq: event.seq,
        prev_hash: event.prev_hash,
        hash: event.hash,
        occurred_at: event.occurred_at,
        domain: event.domain.to_string(),
        aggregate_type: event.aggregate.kind.clone(),
        aggregate_id: event.aggregate.id.clone(),
        aggregate_version: event.aggregate_version,
        event_type: event.event_type.clone(),
        event_version: event.event_version,
        actor: EventActor {
            kind: event.actor.kind.to_string(),
            id: event.actor.id.clone(),
            on_behalf_of: event.actor.on_behalf_of.clone(),
        },
        org_id: event.scope.org_id.clone(),
        app_id: event.scope.app_id.clone(),
        env_id: event.scope.env_id.clone(),
        request_id: Some(event.request_id.clone()),
        correlation_id: event.correlation_id.clone(),
        causation_seq: event.causation_seq,
        decision_seq: event.decision_seq,
        payload: event.payload.value().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use fluffy_control::Fact;
    use fluffy_control::event::{AppDeleted, OrgUpdated};
    use fluffy_ledger::{Actor, Batch, Draft, LedgerOptions};
    use tempfile::TempDir;

    use super::*;

    const OURS: OrgId = OrgId::from_bits(1);

    /// A ledger with one event of ours, many of others, and one of ours.
    fn ledger(between: usize) -> (TempDir, Ledger) {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(folder.path(), LedgerOptions::default()).unwrap();
        let ours = Owner {
            org: Some(OURS),
            ..Owner::default()
        };
        let other = Owner {
            org: Some(OrgId::from_bits(2)),
            ..Owner::default()
        };
        let draft = |owner: &Owner, body: Body| {
            let fact = Fact::new("x", body);
            let aggregate = fluffy_ledger::Aggregate::new(fact.body.aggregate_kind(), "x");
            let actor = Actor::system("test");
            let domain = fluffy_ledger::Domain::Platform;
            Draft::new(domain, aggregate, fact.body.event_type(), actor)
                .payload(fact.body.payload())
                .scope(owner.scope())
        };
        let renamed = || OrgUpdated { display_name: None };
        let mut drafts = vec![draft(&ours, renamed().into())];
        drafts.extend((0..between).map(|_| draft(&other, renamed().into())));
        drafts.push(draft(&ours, AppDeleted {}.into()));
        for some in drafts.chunks(5_000) {
            ledger.append_blocking(Batch::new(some.to_vec())).unwrap();
        }
        (folder, ledger)
    }

    fn wanted(query: &[(&str, &str)]) -> Wanted {
        let text = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let query = query.iter().map(text).collect();
        Wanted::of(Whose::Org(OURS, Audit::Left), &query, &Names::default())
    }

    fn seqs(page: &Value) -> Vec<u64> {
        let items = page["items"].as_array().unwrap().iter();
        items.map(|item| item["seq"].as_u64().unwrap()).collect()
    }

    #[test]
    fn only_what_is_ones_own_and_wanted_is_shown() {
        let (_folder, ledger) = ledger(3);
        let all = page(&ledger, &wanted(&[]), 5).unwrap();
        assert_eq!(
            (seqs(&all), &all["next_cursor"]),
            (vec![1, 5], &Value::Null)
        );
        let before = page(&ledger, &wanted(&[]), 4).unwrap();
        assert_eq!(seqs(&before), [1], "nothing beyond what is applied here");
        for (types, found) in [("app.*", 5), ("org.updated,route.*", 1)] {
            let page = page(&ledger, &wanted(&[("types", types)]), 5).unwrap();
            assert_eq!(seqs(&page), [found], "{types}");
        }
        for nothing in [("env", "env_unknown"), ("app", "shop"), ("actor", "eve")] {
            let page = page(&ledger, &wanted(&[nothing]), 5).unwrap();
            assert_eq!(seqs(&page), Vec::<u64>::new(), "{nothing:?}");
        }
        let one = page(&ledger, &wanted(&[("limit", "1")]), 5).unwrap();
        assert_eq!((seqs(&one), &one["next_cursor"]), (vec![1], &json!("1")));
    }

    /// A stretch without anything of ours ends a page, and the next goes on
    /// behind it.
    #[test]
    fn a_page_that_finds_nothing_still_leads_on() {
        let between = usize::try_from(STRETCH).unwrap() + 10;
        let (_folder, ledger) = ledger(between);
        let head = ledger.head().unwrap().seq;
        let first = page(&ledger, &wanted(&[("after", "1")]), head).unwrap();
        assert_eq!(seqs(&first), Vec::<u64>::new());
        let next = first["next_cursor"].as_str().unwrap();
        assert_eq!(next, (1 + STRETCH).to_string());
        let second = page(&ledger, &wanted(&[("after", next)]), head).unwrap();
        assert_eq!(seqs(&second), [head]);
    }
}
