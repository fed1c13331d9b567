//! Secrets and credentials go to the node that runs an instance which needs
//! them, and to no other.
//!
//! Every fetch is a decision on record, the refused ones too; the values are
//! nowhere near.

use fluffy_base::id::{InstanceId, NodeId};
use fluffy_planner::model::{Desired, Instance};

use super::Notice;
use crate::call::{Fact, Outcome, Subject, Written};
use crate::event::AuthzDecided;
use crate::refusal::Refusal;
use crate::runtime::steps::scope;
use crate::state::State;

/// What a fetch of secrets is called in the record; no grant covers it.
const SECRETS: &str = "secret.material";

/// The same for the credentials of a registry.
const REGISTRY: &str = "registry.credential";

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
    let record = state.runtime.instances.get(id);
    let bound =
        record.is_some_and(|it| it.generation == *generation && it.secrets == Some(*version));
    let reason = match standing(state, *node, *id) {
        Err(reason) => Err(reason),
        Ok(_) if !bound => Err("the instance is not bound to this version"),
        Ok(_) => Ok("the node runs an instance bound to this version"),
    };
    let refused = "secrets_missing";
    decided(
        state,
        (*node, *id),
        (SECRETS, version.to_string()),
        reason,
        refused,
    )
}

/// Decides whether a node may have the credentials of the registry that an
/// instance's image is at.
pub(super) fn registry(state: &State, notice: &Notice) -> Written {
    let Notice::RegistryAccessed {
        node,
        instance: id,
        generation,
        registry,
    } = notice
    else {
        return Written::refused(Refusal::new("internal", "another notice", ""));
    };
    let record = state.runtime.instances.get(id);
    let current = record.is_some_and(|it| it.generation == *generation);
    let reason = match standing(state, *node, *id) {
        Err(reason) => Err(reason),
        Ok(_) if !current => Err("the instance is another one by now"),
        Ok(_) => Ok("the node runs an instance whose image is there"),
    };
    let refused = "forbidden";
    decided(
        state,
        (*node, *id),
        (REGISTRY, registry.clone()),
        reason,
        refused,
    )
}

/// The instance, if the node has it and it is not over.
fn standing(state: &State, node: NodeId, id: InstanceId) -> Result<&Instance, &'static str> {
    let plan = &state.runtime.plan;
    let instance = plan.instances.get(&id);
    let instance = instance.filter(|it| it.node == node && !plan.is_fenced(node));
    let instance = instance.ok_or("the node does not have this instance")?;
    match instance.has_ended() || matches!(instance.desired, Desired::Stopped { .. }) {
        true => Err("the instance is over"),
        false => Ok(instance),
    }
}

fn decided(
    state: &State,
    (node, id): (NodeId, InstanceId),
    (capability, resource_id): (&str, String),
    reason: Result<&'static str, &'static str>,
    refused: &'static str,
) -> Written {
    let (Ok(words) | Err(words)) = reason;
    let decided = AuthzDecided {
        principal_id: node.to_string(),
        capability: capability.to_owned(),
        resource_id,
        outcome: if reason.is_ok() { "allow" } else { "deny" }.to_owned(),
        rule_id: None,
        policy_version: 0,
        reason: words.to_owned(),
        operation: None,
        body_hash: None,
        refused: None,
    };
    let mut fact = Fact::new(node, decided.into());
    let instance = state.runtime.plan.instances.get(&id);
    if let Some(instance) = instance.filter(|it| it.node == node) {
        fact = fact.of(&scope(&state.runtime, instance.group.env));
    }
    let outcome = match reason {
        Ok(_) => Outcome::Done {
            status: 200,
            subject: Subject::default(),
        },
        Err(reason) => Outcome::Refused(Refusal::new(refused, reason, "")),
    };
    Written {
        facts: vec![fact],
        outcome,
    }
}
