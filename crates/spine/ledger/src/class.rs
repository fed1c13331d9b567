//! The durability class of an event: the one function that decides it.
//!
//! Callers may ask for more, never for less. `queue` acts on the answer.

use serde_json::{Map, Value};

use crate::event::Domain;

/// When an event has to be on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Durability {
    /// May wait in a buffer of at most 100 events or 500 ms.
    Operational,
    /// Is on disk before the action it records goes ahead.
    Security,
}

/// The class that an event has at least.
///
/// A `policy.decision` counts as operational only when its payload plainly
/// says `"decision": "allow"`: anything unclear is treated as a denial.
#[must_use]
pub fn durability_of(domain: Domain, event_type: &str, payload: &Map<String, Value>) -> Durability {
    let security = match (domain, event_type) {
        (Domain::Platform, _) => true,
        (_, "policy.update" | "session.mode" | "token.issued") => true,
        (_, "policy.decision") => payload.get("decision").and_then(Value::as_str) != Some("allow"),
        (_, other) => other.starts_with("merge.") || other.starts_with("ledger."),
    };
    if security {
        Durability::Security
    } else {
        Durability::Operational
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn class(domain: Domain, event_type: &str, payload: &Value) -> Durability {
        durability_of(domain, event_type, payload.as_object().unwrap())
    }

    #[test]
    fn the_table_of_the_specification_holds() {
        use Domain::{Agent, Platform, Plugin};
        use Durability::{Operational, Security};
        let empty = json!({});
        for (domain, event_type, payload, expected) in [
            (Agent, "policy.update", &empty, Security),
            (Agent, "merge.approved", &empty, Security),
            (Agent, "merge.rejected", &empty, Security),
            (Agent, "session.mode", &empty, Security),
            (Agent, "token.issued", &empty, Security),
            (Agent, "token.expired", &empty, Operational),
            (Agent, "ledger.chain_break", &empty, Security),
            (
                Plugin,
                "policy.decision",
                &json!({"decision": "deny"}),
                Security,
            ),
            (
                Plugin,
                "policy.decision",
                &json!({"decision": "require-review"}),
                Security,
            ),
            (
                Plugin,
                "policy.decision",
                &json!({"decision": "allow"}),
                Operational,
            ),
            (
                Agent,
                "policy.decision",
                &json!({"decision": true}),
                Security,
            ),
            (Agent, "policy.decision", &empty, Security),
            (Agent, "tool.execute", &empty, Operational),
            (Agent, "mergers.seen", &empty, Operational),
            (Platform, "app.created", &empty, Security),
        ] {
            assert_eq!(class(domain, event_type, payload), expected, "{event_type}");
        }
    }
}
