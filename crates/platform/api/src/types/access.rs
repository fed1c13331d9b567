//! Who acts: members, service principals, tokens, grants, and logging in.
//!
//! Data only; a secret appears in the answer that makes it and nowhere else.
//! Next: `super::policy`.

use std::fmt;

use fluffy_base::Timestamp;
use fluffy_base::id::{AppId, EnvId, GrantId, MemberId, OrgId, PrincipalId, TokenId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::common::Meta;

/// Asks for an access token.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExchangeToken {
    /// What is exchanged.
    pub grant_type: GrantType,
    /// The code of an invite.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub code: Option<String>,
    /// The refresh token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub refresh_token: Option<String>,
    /// The id of a service principal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub client_id: Option<String>,
    /// Its secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub client_secret: Option<String>,
}

impl fmt::Debug for ExchangeToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExchangeToken")
            .field("grant_type", &self.grant_type)
            .finish_non_exhaustive()
    }
}

/// What is exchanged for an access token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GrantType {
    /// A one-time code.
    Invite,
    /// A refresh token, which is used up.
    RefreshToken,
    /// The id and secret of a service principal.
    ClientCredentials,
}

/// Tokens, shown once.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TokenPair {
    /// Proves who calls.
    pub access_token: String,
    /// `Bearer`.
    pub token_type: String,
    /// How many seconds the access token is good.
    pub expires_in: u64,
    /// Gets the next access token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refresh_token: Option<String>,
    /// Who it is for.
    pub principal_id: String,
}

impl fmt::Debug for TokenPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenPair")
            .field("principal_id", &self.principal_id)
            .finish_non_exhaustive()
    }
}

/// Ends a token of one's own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RevokeOwn {
    /// Which; the one that the call is made with if absent.
    #[serde(default)]
    pub token_id: Option<TokenId>,
}

/// Who calls, and what they may do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Whoami {
    /// Who.
    pub principal_id: String,
    /// What kind: `user`, `service_principal`, `agent`.
    pub kind: String,
    /// How they proved it: a token's id, or `local`.
    pub credential: String,
    /// For whom they act.
    pub on_behalf_of: Option<String>,
    /// Whether they run the platform itself.
    pub platform_operator: bool,
    /// The orgs that they are in.
    pub orgs: Vec<Membership>,
    /// What they may do, as patterns; the ceiling of the token applied.
    pub effective_patterns: Vec<String>,
    /// Until when the credential is good.
    pub expires_at: Option<Timestamp>,
}

/// An org that a principal is in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Membership {
    /// Which.
    pub org_id: OrgId,
    /// Its name.
    pub slug: String,
    /// The role in all of it, if they have one.
    pub role: Option<String>,
    /// Every role, and what it is on.
    #[serde(default)]
    pub roles: Vec<BoundRole>,
}

/// A role, and what it is on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BoundRole {
    /// The role.
    pub role: String,
    /// What it is on: `org`, `org/app` or `org/app/env`.
    pub path: String,
}

/// A role of a person in an org, or in an app or env of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Member {
    /// Identity.
    #[serde(flatten)]
    pub meta: Meta<MemberId>,
    /// In which org.
    pub org_id: OrgId,
    /// The app that the role is bound to, if it is.
    pub app_id: Option<AppId>,
    /// The env that the role is bound to, if it is.
    pub env_id: Option<EnvId>,
    /// What the role is on, `org`, `org/app` or `org/app/env`; null once that
    /// is gone, and then the role gives nothing.
    pub path: Option<String>,
    /// Who it is.
    pub principal_id: String,
    /// What they may do.
    pub role: RoleName,
    /// Where they can be reached, unless erased.
    pub email: Option<String>,
    /// Whether they have used their invite.
    #[schemars(extend("enum" = ["invited", "active"]))]
    pub status: String,
}

/// A role of an org.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum RoleName {
    /// Sees everything but logs and audit.
    Viewer,
    /// Deploys to envs that are not protected.
    Developer,
    /// Runs every env.
    Operator,
    /// Also deletes, and manages people, credentials and policy.
    Admin,
    /// Also changes the org itself.
    Owner,
}

/// Asks somebody in, or gives who is in already a further role.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AddMember {
    /// Where they can be reached, of somebody new; kept apart from the ledger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        with = "String",
        length(min = 3, max = 254),
        regex(pattern = r"^[^@\s]+@[^@\s]+$")
    )]
    pub email: Option<String>,
    /// Instead of an address, who it is: somebody who is in the org already.
    #[serde(default)]
    pub principal_id: Option<String>,
    /// What they may do.
    pub role: RoleName,
    /// The app that the role is bound to; without it, it is on the whole org.
    #[serde(default)]
    pub app: Option<String>,
    /// The env of the app that the role is bound to.
    #[serde(default)]
    pub env: Option<String>,
}

/// A new member with the code that lets them in, shown once.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemberInvited {
    /// The member.
    #[serde(flatten)]
    pub member: Member,
    /// For `fluffy login --invite`; absent in a replayed answer, and where who
    /// is in already got a further role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invite_code: Option<String>,
}

impl fmt::Debug for MemberInvited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemberInvited")
            .field("member", &self.member)
            .finish_non_exhaustive()
    }
}

/// Changes a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateMember {
    /// What they may do from now on.
    pub role: RoleName,
    /// The version that the change is meant for.
    #[serde(default)]
    pub expected_version: Option<u64>,
}

/// A piece of automation that acts by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Principal {
    /// Identity; its id is also the client id.
    #[serde(flatten)]
    pub meta: Meta<PrincipalId>,
    /// In which org.
    pub org_id: OrgId,
    /// Its name.
    pub name: String,
    /// What it may do, as patterns.
    pub grants: Vec<String>,
    /// Until when the secret before the current one is good.
    pub old_secret_valid_until: Option<Timestamp>,
}

/// Asks for a service principal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreatePrincipal {
    /// Its name, for good.
    #[schemars(regex(pattern = r"^[a-z][a-z0-9-]{0,31}$"))]
    pub name: String,
    /// What it may do, as patterns such as `env.deploy.acme/shop/*`.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub grants: Vec<String>,
}

/// Changes what a service principal may do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdatePrincipal {
    /// All that it may do from now on.
    #[schemars(length(max = 64))]
    pub grants: Vec<String>,
    /// The version that the change is meant for.
    #[serde(default)]
    pub expected_version: Option<u64>,
}

/// Asks for a new secret of a service principal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RotatePrincipal {
    /// How long the old secret stays good, in seconds; an hour if absent.
    #[serde(default)]
    #[schemars(range(max = 86400))]
    pub overlap_seconds: Option<u32>,
}

/// A service principal with its secret, shown once.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PrincipalIssued {
    /// The service principal.
    #[serde(flatten)]
    pub principal: Principal,
    /// Its secret; absent in a replayed answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_secret: Option<String>,
}

impl fmt::Debug for PrincipalIssued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrincipalIssued")
            .field("principal", &self.principal)
            .finish_non_exhaustive()
    }
}

/// A credential, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Token {
    /// Identity.
    #[serde(flatten)]
    pub meta: Meta<TokenId>,
    /// In which org; null for one that belongs to none.
    pub org_id: Option<OrgId>,
    /// Who it is for.
    pub principal_id: String,
    /// What kind.
    #[schemars(extend("enum" = ["access", "refresh", "api", "invite"]))]
    pub kind: String,
    /// Where it stands.
    #[schemars(extend("enum" = ["active", "revoked", "expired"]))]
    pub status: String,
    /// Above which nothing is allowed, as patterns; null for no ceiling.
    pub ceiling: Option<Vec<String>>,
    /// For whom its bearer acts.
    pub on_behalf_of: Option<String>,
    /// How many reads its bearer has in a minute, if fewer than the org.
    pub reads_per_minute: Option<u32>,
    /// How many writes its bearer has in a minute, if fewer than the org.
    pub writes_per_minute: Option<u32>,
    /// Until when it is good.
    pub expires_at: Timestamp,
}

/// Asks for an API token.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateToken {
    /// What kind.
    #[serde(default)]
    pub kind: TokenKind,
    /// Who it is for; the caller if absent.
    #[serde(default)]
    #[schemars(length(min = 1, max = 64))]
    pub principal_id: Option<String>,
    /// How long it is good, in seconds; 30 days if absent, 90 at most.
    #[serde(default)]
    #[schemars(range(min = 60, max = 7776000))]
    pub ttl_seconds: Option<u32>,
    /// Above which nothing is allowed, as patterns.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub ceiling: Option<Vec<String>>,
    /// For whom its bearer acts.
    #[serde(default)]
    #[schemars(length(min = 1, max = 64))]
    pub on_behalf_of: Option<String>,
    /// How many reads its bearer has in a minute; those of the org if absent.
    #[serde(default)]
    #[schemars(range(min = 1, max = 1000000))]
    pub reads_per_minute: Option<u32>,
    /// How many writes its bearer has in a minute; those of the org if absent.
    #[serde(default)]
    #[schemars(range(min = 1, max = 1000000))]
    pub writes_per_minute: Option<u32>,
}

/// What kind of token can be asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TokenKind {
    /// For automation.
    #[default]
    Api,
}

/// A token with its secret, shown once.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TokenIssued {
    /// The token.
    #[serde(flatten)]
    pub token: Token,
    /// What a caller sends; absent in a replayed answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

impl fmt::Debug for TokenIssued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenIssued")
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}

/// A capability given to a principal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Grant {
    /// Identity.
    #[serde(flatten)]
    pub meta: Meta<GrantId>,
    /// In which org.
    pub org_id: OrgId,
    /// Who has it.
    pub principal_id: String,
    /// What, as it was written.
    pub pattern: String,
    /// What, with ids in the place of names.
    pub resolved_ids: Vec<String>,
    /// Why.
    pub reason: Option<String>,
    /// Until when.
    pub expires_at: Option<Timestamp>,
}

/// Gives a capability to a principal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateGrant {
    /// Who gets it.
    #[schemars(length(min = 1, max = 64))]
    pub principal_id: String,
    /// What, such as `instance.exec.acme/shop/*`.
    #[schemars(length(min = 3, max = 256))]
    pub pattern: String,
    /// How long, in seconds; for good if absent.
    #[serde(default)]
    #[schemars(range(min = 60, max = 31536000))]
    pub ttl_seconds: Option<u32>,
    /// That it is meant for an emergency: needs a reason and ends within 4 hours.
    #[serde(default)]
    pub break_glass: bool,
    /// Why.
    #[serde(default)]
    #[schemars(length(min = 1, max = 256))]
    pub reason: Option<String>,
}
