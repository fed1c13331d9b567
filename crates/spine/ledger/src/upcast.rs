//! Upcasters: pure functions that lift old payloads to the newest schema.
//!
//! Applied when events are read for folding; stored bytes, and with them the
//! hashes, never change. Nothing here knows any particular event type.

use std::collections::HashMap;

use fluffy_base::canonical::{self, CanonicalError};
use serde_json::{Map, Value};

use crate::event::{Domain, Event, Payload};

/// Lifts a payload by one schema version; must depend on nothing else.
pub type Upcast = fn(Map<String, Value>) -> Result<Map<String, Value>, UnfitPayload>;

/// The payload is not what its schema version says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the payload lacks what its schema version promises")]
pub struct UnfitPayload;

/// The known steps from each schema version to the next.
#[derive(Debug, Clone, Default)]
pub struct Upcasters {
    steps: HashMap<Domain, HashMap<String, HashMap<u32, Upcast>>>,
}

/// Why an event could not be lifted to the newest schema.
#[derive(Debug, thiserror::Error)]
pub enum UpcastError {
    /// The stored payload is no JSON object, which only tampering can cause.
    #[error("the payload of event {seq} is not a JSON object")]
    NotAnObject {
        /// The event.
        seq: u64,
    },
    /// A step does not know what to do with the payload.
    #[error("the payload of event {seq} can't be lifted from version {version}")]
    Unfit {
        /// The event.
        seq: u64,
        /// The version the failing step starts from.
        version: u32,
        /// The step's answer.
        #[source]
        source: UnfitPayload,
    },
    /// A step made something that has no canonical form.
    #[error("the lifted payload of event {seq} has no canonical form")]
    Canonical {
        /// The event.
        seq: u64,
        /// Why not.
        #[source]
        source: CanonicalError,
    },
}

impl Upcasters {
    /// Adds the step from `from_version` to the one after it.
    #[must_use]
    pub fn with(
        mut self,
        domain: Domain,
        event_type: impl Into<String>,
        from_version: u32,
        upcast: Upcast,
    ) -> Self {
        let types = self.steps.entry(domain).or_default();
        let versions = types.entry(event_type.into()).or_default();
        versions.insert(from_version, upcast);
        self
    }

    /// The event with its payload at the newest version there is a step to.
    ///
    /// Hash and position stay those of the stored event.
    ///
    /// # Errors
    /// The payload does not fit one of the steps.
    pub fn lift(&self, mut event: Event) -> Result<Event, UpcastError> {
        let types = self.steps.get(&event.domain);
        let Some(versions) = types.and_then(|types| types.get(&event.event_type)) else {
            return Ok(event);
        };
        if !versions.contains_key(&event.event_version) {
            return Ok(event);
        }
        let seq = event.seq;
        let Ok(Value::Object(mut payload)) = event.payload.value() else {
            return Err(UpcastError::NotAnObject { seq });
        };
        while let Some(upcast) = versions.get(&event.event_version) {
            let version = event.event_version;
            payload = upcast(payload).map_err(|source| UpcastError::Unfit {
                seq,
                version,
                source,
            })?;
            // A step of the last version there can be would have no next one.
            let Some(next) = version.checked_add(1) else {
                break;
            };
            event.event_version = next;
        }
        let text = canonical::to_string(&Value::Object(payload))
            .map_err(|source| UpcastError::Canonical { seq, source })?;
        event.payload = Payload::from_canonical(text);
        Ok(event)
    }
}

#[cfg(test)]
mod tests {
    use fluffy_base::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::draft::Draft;
    use crate::event::{Actor, Aggregate};

    fn event(version: u32, payload: Value) -> Event {
        let aggregate = Aggregate::new("session", "one");
        let draft = Draft::new(
            Domain::Agent,
            aggregate,
            "tool.execute",
            Actor::system("test"),
        )
        .event_version(version)
        .payload(payload);
        draft.prepare(Timestamp::from_micros(0)).unwrap().event
    }

    fn upcasters() -> Upcasters {
        Upcasters::default()
            .with(Domain::Agent, "tool.execute", 1, |mut payload| {
                let name = payload.remove("name").ok_or(UnfitPayload)?;
                payload.insert("tool".to_owned(), name);
                Ok(payload)
            })
            .with(Domain::Agent, "tool.execute", 2, |mut payload| {
                payload.insert("attempt".to_owned(), json!(1));
                Ok(payload)
            })
    }

    #[test]
    fn an_old_event_takes_every_step() {
        let stored = event(1, json!({"name": "edit"}));
        let hash = stored.hash;
        let lifted = upcasters().lift(stored).unwrap();
        assert_eq!(lifted.event_version, 3);
        assert_eq!(lifted.payload.as_str(), r#"{"attempt":1,"tool":"edit"}"#);
        assert_eq!(lifted.hash, hash);
    }

    #[test]
    fn what_has_no_step_stays_as_it_is() {
        let newest = event(3, json!({"tool": "edit"}));
        assert_eq!(upcasters().lift(newest.clone()).unwrap(), newest);
        let mut other = event(1, json!({}));
        other.event_type = "tool.result".to_owned();
        assert_eq!(upcasters().lift(other.clone()).unwrap(), other);
        let mut other = event(1, json!({}));
        other.domain = Domain::Plugin;
        assert_eq!(upcasters().lift(other.clone()).unwrap(), other);
    }

    #[test]
    fn a_payload_that_does_not_fit_is_refused() {
        let error = upcasters().lift(event(1, json!({}))).unwrap_err();
        assert!(
            matches!(error, UpcastError::Unfit { version: 1, .. }),
            "{error}"
        );
        let mut broken = event(2, json!({}));
        broken.payload = Payload::from_canonical("[]");
        let error = upcasters().lift(broken).unwrap_err();
        assert!(matches!(error, UpcastError::NotAnObject { .. }), "{error}");
    }
}
