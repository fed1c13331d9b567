//! What is waited for: where to look, and when it has come to rest.
//!
//! Deploys and other long operations say so themselves. Of what has no such
//! record its own state says it: a route is no longer pending, an env has as
//! many instances as it should. Must never call something done that it has not
//! seen.

use fluffy_api::{Operation, Spec};
use serde_json::Value;

use super::{number, text};
use crate::command::platform::ask::Asker;
use crate::command::platform::view;
use crate::failure::Failure;

/// What is waited for.
#[derive(Debug, Clone)]
pub(crate) struct Work {
    pub(super) id: String,
    pub(super) read: Operation,
    aim: Aim,
    /// The receipt of what began it, for `--json`.
    pub(super) receipt: Option<Value>,
}

/// What is hoped for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Aim {
    /// It is there, and well.
    There,
    /// It is gone.
    Gone,
}

/// Where something stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It goes on.
    Moving,
    /// It has come to what was wanted.
    Done,
    /// It has come to rest elsewhere.
    Failed,
}

impl Work {
    /// What a write began.
    pub(crate) fn of(spec: &Spec, value: &Value) -> Self {
        let id = view::name(value).into_owned();
        let aim = match spec.id {
            "deleteRoute" => Aim::Gone,
            _ => Aim::There,
        };
        let read = match spec.id {
            "setScale" | "restartInstance" => Operation::GetStatus,
            "updateSecrets" | "replaceSecrets" => Operation::GetSecrets,
            "createRoute" | "deleteRoute" => Operation::GetRoute,
            "createVolume" => Operation::GetVolume,
            "disableNode" | "uncordonNode" => Operation::GetNode,
            _ if id.starts_with("dep_") => Operation::GetDeploy,
            _ if spec.path.starts_with("/v1/orgs/") => Operation::GetOperation,
            _ => Operation::GetPlatformOperation,
        };
        Self {
            id,
            read,
            aim,
            receipt: None,
        }
    }

    /// What an id names.
    pub(crate) fn named(id: &str) -> Self {
        let platform = id.starts_with("drn_") || id.starts_with("req_");
        Self {
            id: id.to_owned(),
            read: match platform {
                true => Operation::GetPlatformOperation,
                false => Operation::GetOperation,
            },
            aim: Aim::There,
            receipt: None,
        }
    }

    /// As it is, with the receipt of what began it.
    pub(crate) fn with_receipt(mut self, receipt: Value) -> Self {
        self.receipt = Some(receipt);
        self
    }

    /// Whether `fluffy wait` knows its id.
    pub(super) fn is_operation(&self) -> bool {
        use Operation::{GetDeploy, GetOperation, GetPlatformOperation};
        [GetDeploy, GetOperation, GetPlatformOperation].contains(&self.read)
    }

    /// Whether it is done once nobody knows it any more.
    pub(super) fn ends_gone(&self) -> bool {
        self.aim == Aim::Gone
    }

    /// What its path names: the target, and itself.
    pub(super) fn path(&self, asker: &Asker<'_>) -> Result<Vec<String>, Failure> {
        let params = self.read.spec().path_params();
        let named = params.map(|part| match part {
            "org" | "app" | "env" => Ok(asker.target.part(part)?.name.clone()),
            _ => Ok(self.id.clone()),
        });
        named.collect()
    }

    /// Where it stands, by what was read of it.
    pub(super) fn standing(&self, value: &Value) -> Standing {
        use Standing::{Done, Failed, Moving};
        let state = text(value, "status");
        match (self.read, state) {
            (Operation::GetStatus, _) => env(value),
            (Operation::GetSecrets, "rotating") => Moving,
            (Operation::GetSecrets, "rotation_failed") => Failed,
            (Operation::GetSecrets, _) => Done,
            (Operation::GetRoute, "pending" | "deleting") => Moving,
            (Operation::GetRoute, "deleted") => Done,
            (Operation::GetRoute, _) if self.aim == Aim::Gone => Moving,
            (Operation::GetRoute | Operation::GetNode, "active") => Done,
            // Out of use, and nothing that could go elsewhere is left on it.
            (Operation::GetNode, "disabled") => match instances(value) {
                0 => Done,
                _ => Moving,
            },
            (Operation::GetVolume, "creating") => Moving,
            (Operation::GetVolume, "available" | "attaching" | "in_use") => Done,
            (Operation::GetRoute | Operation::GetVolume | Operation::GetNode, _) => Failed,
            (_, "succeeded") => Done,
            // A deploy that paused moves only when somebody says so.
            (_, "failed" | "canceled" | "superseded" | "paused") => Failed,
            _ => Moving,
        }
    }
}

fn instances(node: &Value) -> u64 {
    node.get("used").map_or(0, |used| number(used, "instances"))
}

/// An env has come to rest when its last deploy has, and every group has as
/// many instances as it should, all of them ready and as they should be.
fn env(status: &Value) -> Standing {
    let deploy = status
        .pointer("/last_deploy/status")
        .and_then(Value::as_str);
    if matches!(deploy, Some("queued" | "rolling")) {
        return Standing::Moving;
    }
    let groups = status.get("groups").and_then(Value::as_array);
    let settled = groups.into_iter().flatten().all(|group| {
        let wanted = number(group, "desired");
        ["live", "ready", "current"]
            .iter()
            .all(|part| number(group, part) == wanted)
    });
    match (settled, deploy) {
        (true, _) => Standing::Done,
        // Nobody goes on with these by itself.
        (false, Some("paused" | "failed")) => Standing::Failed,
        (false, _) => Standing::Moving,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(id: &str, value: &Value) -> Work {
        let operation = Operation::by_id(id).unwrap();
        Work::of(operation.spec(), value)
    }

    #[test]
    fn each_write_is_followed_until_it_rests() {
        use Standing::{Done, Failed, Moving};
        let cases = [
            ("createRoute", "pending", Moving),
            ("createRoute", "active", Done),
            ("createRoute", "blocked", Failed),
            ("deleteRoute", "active", Moving),
            ("deleteRoute", "deleting", Moving),
            ("deleteRoute", "deleted", Done),
            ("createVolume", "creating", Moving),
            ("createVolume", "available", Done),
            ("createVolume", "error", Failed),
            ("uncordonNode", "active", Done),
            ("uncordonNode", "offline", Failed),
            ("updateSecrets", "rotating", Moving),
            ("replaceSecrets", "active", Done),
            ("updateSecrets", "rotation_failed", Failed),
            ("createDeploy", "rolling", Moving),
            ("createDeploy", "succeeded", Done),
            ("createDeploy", "paused", Failed),
            ("createSnapshot", "running", Moving),
            ("createSnapshot", "failed", Failed),
        ];
        for (id, status, standing) in cases {
            let work = of(id, &json!({"id": "dep_1"}));
            assert_eq!(
                work.standing(&json!({"status": status})),
                standing,
                "{id} {status}"
            );
        }
        assert!(of("deleteRoute", &json!({"id": "rt_1"})).ends_gone());
        assert!(!of("createRoute", &json!({"id": "rt_1"})).ends_gone());
    }

    #[test]
    fn a_node_is_out_of_use_when_it_is_empty() {
        let work = of("disableNode", &json!({"id": "node_1"}));
        let node = |count: u64| json!({"status": "disabled", "used": {"instances": count}});
        assert_eq!(work.standing(&node(2)), Standing::Moving);
        assert_eq!(work.standing(&node(0)), Standing::Done);
    }

    #[test]
    fn an_env_rests_when_it_has_what_it_should() {
        let work = of("setScale", &json!({"env_id": "env_1"}));
        let env = |(live, ready, current): (u64, u64, u64), deploy: &str| {
            json!({
                "status": "progressing", "last_deploy": {"status": deploy},
                "groups": [{"process": "web", "desired": 2, "live": live, "ready": ready,
                            "current": current}],
            })
        };
        assert_eq!(work.standing(&env((2, 2, 2), "succeeded")), Standing::Done);
        // One that is to go, one that is not ready, one that is old.
        for counts in [(3, 3, 2), (2, 1, 2), (2, 2, 1)] {
            assert_eq!(work.standing(&env(counts, "succeeded")), Standing::Moving);
        }
        assert_eq!(work.standing(&env((2, 2, 2), "rolling")), Standing::Moving);
        assert_eq!(work.standing(&env((2, 1, 2), "failed")), Standing::Failed);
    }
}
