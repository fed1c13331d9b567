//! Secrets go to the node that runs an instance bound to them, and no other.
//!
//! Every fetch is a decision on record, the refused ones too; the values are
//! nowhere near.

use fluffy_planner::model::Desired;

use super::Notice;
use crate::call::{Fact, Outcome, Subject, Written};
use crate::event::AuthzDecided;
use crate::refusal::Refusal;
use crate::runtime::steps::scope;
use crate::state::State;

/// What a fetch is called in the record; no grant covers it.
const CAPABILITY: &str = "secret.material";

/// Decides whether a node may have a version of secrets for an instance.
pub(super) fn fetched(state: &State, notice: &Notice) -> Written {
    let Notice::MaterialFetched {
        node,
        instance: id,
        generation,
        version,
    } = notice
    else {
        return Written::refused(Refusal::new("internal", "another notice", ""));
    };
    let runtime = &state.runtime;
    let instance = runtime.plan.instances.get(id);
    let instance = instance.filter(|it| it.node == *node && !runtime.plan.is_fenced(*node));
    let record = runtime.instances.get(id);
    let live = instance
        .is_some_and(|it| !it.has_ended() && !matches!(it.desired, Desired::Stopped { .. }));
    let bound =
        record.is_some_and(|it| it.generation == *generation && it.secrets == Some(*version));
    let allowed = live && bound;
    let reason = match (instance.is_some(), live, bound) {
        (false, _, _) => "the node does not have this instance",
        (true, false, _) => "the instance is over",
        (true, true, false) => "the instance is not bound to this version",
        (true, true, true) => "the node runs an instance bound to this version",
    };
    let decided = AuthzDecided {
        principal_id: node.to_string(),
        capability: CAPABILITY.to_owned(),
        resource_id: version.to_string(),
        outcome: if allowed { "allow" } else { "deny" }.to_owned(),
        rule_id: None,
        policy_version: 0,
        reason: reason.to_owned(),
        operation: None,
        body_hash: None,
    };
    let mut fact = Fact::new(node, decided.into());
    if let Some(instance) = instance {
        fact = fact.of(&scope(runtime, instance.group.env));
    }
    let outcome = match allowed {
        true => Outcome::Done {
            status: 200,
            subject: Subject::default(),
        },
        false => Outcome::Refused(Refusal::new("secrets_missing", reason, "")),
    };
    Written {
        facts: vec![fact],
        outcome,
    }
}
