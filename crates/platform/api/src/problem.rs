//! Refusals: problem+json, and the catalogue of codes.
//!
//! A code is public and never changes its meaning or status. A problem says
//! what, why and how to go on; it never carries a secret or the text of an
//! inner error. Next: `operation`, which says what can answer which code.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A refusal, as `application/problem+json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// `https://fluffy.dev/problems/<code>`: names the kind, need not resolve.
    #[serde(rename = "type")]
    pub kind: String,
    /// What happened.
    pub title: String,
    /// Why.
    pub detail: String,
    /// How to go on.
    pub fix: String,
    /// The HTTP status.
    pub status: u16,
    /// The stable code.
    pub code: String,
    /// The call.
    pub request_id: String,
    /// Whether the same call may succeed later.
    pub retryable: bool,
    /// After how many seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<u64>,
    /// `rate_limited`, with that code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Each thing that is wrong with the request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldProblem>,
    /// More, by code: for `quota_exceeded` the dimension, limit, current and
    /// requested amount.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub details: Map<String, Value>,
}

/// One thing that is wrong with a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FieldProblem {
    /// The stable code.
    pub code: String,
    /// Where, such as `options.max_surge`; empty for the whole body.
    pub field: String,
    /// What is wrong.
    pub message: String,
    /// The line in a text, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// The column in a text, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<u32>,
}

impl Problem {
    /// What a problem's `type` starts with.
    pub const BASE: &'static str = "https://fluffy.dev/problems/";

    /// A problem of a code, with why and how to go on.
    ///
    /// A code that is not in the catalogue becomes `internal`: it would be a
    /// mistake of ours, and no caller could know what it means.
    #[must_use]
    pub fn new(code: &str, detail: impl Into<String>, fix: impl Into<String>) -> Self {
        let code = Code::find(code).unwrap_or(&INTERNAL);
        Self {
            kind: format!("{}{}", Self::BASE, code.code),
            title: code.title.to_owned(),
            detail: detail.into(),
            fix: fix.into(),
            status: code.status,
            code: code.code.to_owned(),
            request_id: String::new(),
            retryable: code.retryable,
            retry_after: None,
            error: None,
            errors: Vec::new(),
            details: Map::new(),
        }
    }
}

/// A code of the catalogue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code {
    /// The code as it is written.
    pub code: &'static str,
    /// The HTTP status.
    pub status: u16,
    /// What it means.
    pub title: &'static str,
    /// Whether the same call may succeed later.
    pub retryable: bool,
}

impl Code {
    /// The code of that name; manifest codes (`E_…`) are 422 by themselves.
    #[must_use]
    pub fn find(code: &str) -> Option<&'static Self> {
        CODES.iter().find(|each| each.code == code)
    }
}

macro_rules! codes {
    ($($status:literal $code:literal $title:literal $($retryable:ident)?;)*) => {
        /// Every code, by status and then by name.
        pub const CODES: &[Code] = &[$(Code {
            code: $code,
            status: $status,
            title: $title,
            retryable: codes!(@retryable $($retryable)?),
        },)*];
    };
    (@retryable retryable) => { true };
    (@retryable) => { false };
}

const INTERNAL: Code = Code {
    code: "internal",
    status: 500,
    title: "something went wrong on our side",
    retryable: true,
};

codes! {
    400 "cursor_invalid" "the cursor is not of this list";
    400 "idempotency_key_invalid" "the idempotency key has a wrong form";
    400 "idempotency_key_required" "this call needs an idempotency key";
    400 "invalid_argument" "the request is not valid";
    400 "invalid_grant" "the credential cannot be exchanged";
    400 "policy_invalid" "the policy is not valid";
    400 "secrets_invalid" "the secrets are not valid";
    400 "unknown_field" "the request has a field that does not exist";
    400 "unknown_parameter" "the request has a parameter that does not exist";
    400 "version_unsupported" "this version is not supported";
    400 "window_too_large" "the window of time is too large";
    401 "token_expired" "the token has expired";
    401 "token_revoked" "the token was revoked";
    401 "unauthenticated" "the caller is not known";
    403 "exec_token_invalid" "the token does not open this session";
    403 "forbidden" "the caller may not do this";
    403 "grant_exceeds_own" "nobody can give what they do not have";
    403 "org_access_denied" "the caller has nothing in this organisation";
    403 "policy_denied" "a policy forbids this";
    403 "self_approval" "nobody approves their own request";
    404 "not_found" "there is no such thing";
    405 "method_not_allowed" "this path does not take this method";
    409 "approval_expired" "the approval has expired";
    409 "backend_port_undeclared" "no release declares this port";
    409 "conflict" "something changed meanwhile" retryable;
    409 "drain_blocked" "the drain is blocked";
    409 "fsck_failed" "the file system check failed";
    409 "hostname_not_proven" "the DNS does not say that the hostname is yours";
    409 "hostname_taken" "the hostname belongs to another environment";
    409 "idempotency_in_progress" "the first call with this key is still running" retryable;
    409 "idempotency_key_reuse" "the key was used for another request";
    409 "instance_not_running" "the instance does not run";
    409 "invalid_transition" "that cannot follow the present state";
    409 "ipv4_in_use" "the address is in use";
    409 "ipv4_pool_exhausted" "there is no address left" retryable;
    409 "ipv4_required" "the environment has no IPv4 address";
    409 "key_in_use" "something is sealed with the master key";
    409 "last_owner" "an organisation keeps at least one owner";
    409 "name_taken" "the name is taken";
    409 "no_capacity_disk" "no node has that much disk left" retryable;
    409 "no_rollback_target" "there is no release to go back to";
    409 "node_has_volumes" "the node is home to volumes";
    409 "not_empty" "it still contains something";
    409 "port_taken" "the port is taken";
    409 "quota_exceeded" "the organisation's limit is reached";
    409 "rebuild_running" "a rebuild is running already" retryable;
    409 "release_blocked" "the release is blocked";
    409 "route_target_missing" "a route leads to what the release does not have";
    409 "secrets_in_use" "a release needs the secrets";
    409 "secrets_missing" "the release needs secrets that are not set";
    409 "snapshot_not_ready" "the snapshot is not complete" retryable;
    409 "version_conflict" "the object has another version";
    409 "volume_attached" "the volume is attached";
    409 "volume_constraints_invalid" "the volumes cannot be placed together";
    409 "volume_home_mismatch" "the volumes are on different nodes";
    409 "volume_in_use" "instances use the volume";
    409 "volume_size_change_unsupported" "a volume keeps its size";
    410 "events_archived" "these events are in the archive only";
    412 "precondition_failed" "the object has another version";
    413 "too_large" "the request is too large";
    414 "uri_too_long" "the path is too long";
    415 "unsupported_media_type" "the body has another form than JSON";
    422 "E_VOLUME_REPLICA_LIMIT" "a process type with volumes has one replica at most";
    422 "arch_unavailable" "the image is not made for these processors";
    422 "image_auth_failed" "the registry does not give the image to the platform";
    422 "image_too_large" "the image is too large";
    422 "image_unresolvable" "the image cannot be found";
    422 "manifest_invalid" "the manifest is not valid";
    422 "mount_path_invalid" "nothing can be mounted there";
    422 "port_denied" "this port is never opened";
    422 "proxy_ack_required" "say that the process expects the PROXY protocol";
    422 "scale_out_of_bounds" "the manifest allows another number of instances";
    428 "precondition_required" "say which version the change is meant for";
    429 "exec_limit" "there are too many sessions" retryable;
    429 "rate_limited" "there were too many requests" retryable;
    431 "header_too_large" "the headers are too large";
    500 "internal" "something went wrong on our side" retryable;
    501 "not_supported" "this server cannot do that";
    503 "ipam_unavailable" "addresses cannot be given out now" retryable;
    503 "ledger_broken" "the ledger is not what was written: nothing is changed on it";
    503 "projection_lag" "the view has not caught up yet" retryable;
    503 "secrets_key_unavailable" "the key of the secrets is not there" retryable;
    503 "unavailable" "the server cannot answer now" retryable;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_unique_and_sorted() {
        for pair in CODES.windows(2) {
            let [before, after] = pair else { continue };
            assert!(
                (before.status, before.code) < (after.status, after.code),
                "{} before {}",
                before.code,
                after.code
            );
        }
        assert!(CODES.contains(&INTERNAL));
    }

    #[test]
    fn a_problem_says_only_what_the_catalogue_knows() {
        let known = Problem::new("name_taken", "an app `shop` exists", "choose another name");
        assert_eq!((known.status, known.retryable), (409, false));
        assert_eq!(Problem::new("made_up", "why", "fix").code, "internal");
        let text = serde_json::to_value(&known).unwrap();
        assert_eq!(text["type"], "https://fluffy.dev/problems/name_taken");
        assert!(text.get("errors").is_none());
    }
}
