//! Links: what can be done with what a call has made.
//!
//! Derived from names: what `createApp` makes is `{app}` in other paths. Tools
//! that explore the interface follow them. Next: `super`.

use serde_json::{Map, Value, json};

use crate::operation::{Operation, Spec};

/// The links of an operation's answer, by the id of where they lead.
pub(super) fn of(operation: Operation) -> Map<String, Value> {
    let spec = operation.spec();
    let Some(made) = made_by(spec) else {
        return Map::new();
    };
    Operation::ALL
        .iter()
        .map(|target| target.spec())
        .filter_map(|target| Some((target.id.to_owned(), link(spec, target, &made)?)))
        .collect()
}

/// The name in paths of what an operation makes.
fn made_by(spec: &Spec) -> Option<String> {
    if spec.success != 201 {
        return None;
    }
    if spec.id == "createRollback" {
        return Some("deploy".into());
    }
    let noun = spec
        .id
        .strip_prefix("create")
        .or_else(|| spec.id.strip_prefix("add"))?;
    let mut name = String::new();
    for letter in noun.chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.extend(letter.to_lowercase());
    }
    Some(name)
}

/// Where every name in the target's path comes from, if all of them do.
fn link(from: &Spec, target: &Spec, made: &str) -> Option<Value> {
    let mut parameters = Map::new();
    for name in target.path_params() {
        let source = if name == made {
            "$response.body#/id".to_owned()
        } else if from.path_params().any(|known| known == name) {
            format!("$request.path.{name}")
        } else {
            return None;
        };
        parameters.insert(name.to_owned(), source.into());
    }
    parameters
        .contains_key(made)
        .then(|| json!({ "operationId": target.id, "parameters": parameters }))
}
