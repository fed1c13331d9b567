//! Sessions in the ledger: writing facts, reading them back, listing.
//!
//! A fact is stored before anybody acts on it. Nothing is ever removed here;
//! what retention has moved to the archive is read from there.

use fluffy_base::Timestamp;
use fluffy_base::id::SessionId;
use fluffy_ledger::{
    Actor, ActorKind, Aggregate, AppendError, Batch, Domain, Draft, Event, Ledger, SegmentError,
    StoreError,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::history::only_reads;
use crate::session::{Fact, FoldError, Session};

const KIND: &str = "session";

/// How long a line of forks may be.
const MAX_FORKS: usize = 64;

/// Where sessions are kept.
#[derive(Debug, Clone)]
pub struct SessionStore {
    ledger: Ledger,
}

/// A session as it is listed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// Which.
    pub id: SessionId,
    /// Its task.
    pub task: String,
    /// When it began.
    pub started: Timestamp,
    /// How it ended; none while it is open.
    pub result: Option<crate::event::SessionResult>,
}

/// Why a session cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LoadSessionError {
    /// There is none.
    #[error("there is no session `{session}`")]
    None {
        /// What was asked for.
        session: String,
    },
    /// Several begin like this.
    #[error("`{session}` is the beginning of several sessions")]
    Ambiguous {
        /// What was asked for.
        session: String,
    },
    /// It is a fork of a fork of a fork …
    #[error("session `{session}` is a fork of too many sessions")]
    TooManyForks {
        /// Which.
        session: SessionId,
    },
    /// Its beginning was deleted with an old archive.
    #[error("the beginning of session `{session}` is older than what is kept")]
    Forgotten {
        /// Which.
        session: SessionId,
    },
    /// The ledger cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The ledger's archive cannot be read.
    #[error(transparent)]
    Archive(#[from] SegmentError),
    /// An event of it has an unknown shape.
    #[error("event {seq} of session `{session}` cannot be read")]
    Shape {
        /// Which session.
        session: SessionId,
        /// Which event.
        seq: u64,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// Its facts do not fit together.
    #[error(transparent)]
    Fold(#[from] FoldError),
}

impl SessionStore {
    /// The sessions of this ledger.
    #[must_use]
    pub fn new(ledger: Ledger) -> Self {
        Self { ledger }
    }

    /// Stores a fact; no crash of a process loses it from here on.
    ///
    /// Nor does one of the machine, unless it is the result of a read: that is
    /// on disk with the next fact, and until then a session that goes on reads
    /// again.
    ///
    /// # Errors
    /// It could not be stored; then it did not happen.
    pub async fn append(&self, session: SessionId, fact: &Fact) -> Result<u64, AppendError> {
        let batch = Batch::from(draft(session, fact));
        let batch = match can_be_repeated(fact) {
            true => batch,
            false => batch.durable(),
        };
        let appended = self.ledger.append(batch).await?;
        Ok(appended.last_seq)
    }

    /// Reads a session back.
    ///
    /// # Errors
    /// There is none, or it cannot be read.
    pub fn load(&self, session: SessionId) -> Result<Session, LoadSessionError> {
        self.load_until(session, usize::MAX, MAX_FORKS)
    }

    /// A session after so many of its facts. A fork begins with the session it
    /// came from as it was then, whatever became of that one.
    fn load_until(
        &self,
        session: SessionId,
        count: usize,
        forks: usize,
    ) -> Result<Session, LoadSessionError> {
        let mut facts = self.facts(session)?;
        facts.truncate(count);
        let Some(first) = facts.first() else {
            let session = session.to_string();
            return Err(LoadSessionError::None { session });
        };
        let Fact::Started(started) = first else {
            return Err(FoldError::NoBeginning { session }.into());
        };
        let Some(origin) = started.forked_from else {
            return Ok(Session::fold(session, facts)?);
        };
        let Some(forks) = forks.checked_sub(1) else {
            return Err(LoadSessionError::TooManyForks { session });
        };
        let started = started.clone();
        let origin = self.load_until(origin, started.forked_at.unwrap_or(usize::MAX), forks)?;
        let fork = Session::fork(origin, session, started);
        Ok(fork.after(facts.into_iter().skip(1))?)
    }

    /// The session whose id begins like this; in the archive only if there is
    /// no other.
    ///
    /// # Errors
    /// There is none, or there are several.
    pub fn find(&self, prefix: &str) -> Result<SessionId, LoadSessionError> {
        let among = |all: &[Listed]| {
            let mut found = all
                .iter()
                .filter(|one| one.id.to_string().starts_with(prefix));
            let session = prefix.to_owned();
            match (found.next(), found.next()) {
                (None, _) => Err(LoadSessionError::None { session }),
                (Some(one), None) => Ok(one.id),
                (Some(_), Some(_)) => Err(LoadSessionError::Ambiguous { session }),
            }
        };
        match among(&self.list()?) {
            Err(LoadSessionError::None { .. }) => among(&self.list_archived()?),
            found => found,
        }
    }

    /// The sessions that began in the time the database holds, newest first.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub fn list(&self) -> Result<Vec<Listed>, LoadSessionError> {
        listed(&self.ledger.last_where(usize::MAX, marks)?)
    }

    /// All sessions there are, those in the archive included, newest first.
    ///
    /// # Errors
    /// The ledger or its archive cannot be read.
    pub fn list_archived(&self) -> Result<Vec<Listed>, LoadSessionError> {
        listed(&self.ledger.everywhere(marks)?)
    }

    /// Whether older sessions may be in the archive.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub fn has_archived(&self) -> Result<bool, LoadSessionError> {
        Ok(self.ledger.has_archived()?)
    }

    /// All facts of a session.
    ///
    /// # Errors
    /// The ledger cannot be read, or its archive no longer has the first one.
    pub fn facts(&self, session: SessionId) -> Result<Vec<Fact>, LoadSessionError> {
        let aggregate = aggregate(session);
        let events = self.ledger.history(Domain::Agent, &aggregate)?;
        let has_beginning = match events.first() {
            Some(first) => first.aggregate_version == 1,
            None => self.ledger.version(Domain::Agent, &aggregate)? == 0,
        };
        if !has_beginning {
            return Err(LoadSessionError::Forgotten { session });
        }
        events.iter().map(|event| fact_of(session, event)).collect()
    }
}

/// Whether an event tells that a session began or ended.
fn marks(event: &Event) -> bool {
    let kinds = ["session.started", "session.ended"];
    event.domain == Domain::Agent && kinds.contains(&event.event_type.as_str())
}

/// The sessions that such events tell of, newest first.
fn listed(events: &[Event]) -> Result<Vec<Listed>, LoadSessionError> {
    let mut listed: Vec<Listed> = Vec::new();
    for event in events {
        let Ok(id) = event.aggregate.id.parse::<SessionId>() else {
            continue;
        };
        match fact_of(id, event)? {
            Fact::Started(started) => listed.push(Listed {
                id,
                task: started.task,
                started: started.moment,
                result: None,
            }),
            Fact::Ended(ended) => {
                if let Some(one) = listed.iter_mut().rev().find(|one| one.id == id) {
                    one.result = Some(ended.result);
                }
            }
            _ => {}
        }
    }
    listed.sort_by_key(|one| std::cmp::Reverse(one.id));
    Ok(listed)
}

/// Whether doing it again finds out the same and changes nothing.
fn can_be_repeated(fact: &Fact) -> bool {
    matches!(fact, Fact::Finished(finished) if only_reads(&finished.tool))
}

fn draft(session: SessionId, fact: &Fact) -> Draft {
    // Plain data of ours always has a JSON form.
    let value = serde_json::to_value(fact).unwrap_or_default();
    let payload = value.get("data").cloned().unwrap_or_default();
    let actor = Actor::new(ActorKind::Agent, session.to_string());
    Draft::new(Domain::Agent, aggregate(session), fact.event_type(), actor).payload(payload)
}

fn fact_of(session: SessionId, event: &Event) -> Result<Fact, LoadSessionError> {
    let wrong = |source| LoadSessionError::Shape {
        session,
        seq: event.seq,
        source,
    };
    let mut tagged = serde_json::Map::new();
    tagged.insert("type".to_owned(), Value::from(event.event_type.as_str()));
    tagged.insert("data".to_owned(), event.payload.value().map_err(wrong)?);
    serde_json::from_value(Value::Object(tagged)).map_err(wrong)
}

fn aggregate(session: SessionId) -> Aggregate {
    Aggregate::new(KIND, session.to_string())
}
