//! The table of operations, by resource.
//!
//! An entry says what the document, the router and the authorization need to
//! know, and nothing twice. Paths take an id or a name wherever `{…}` stands.
//! Next: `tests`, which hold the table against itself.

use schemars::JsonSchema;

use super::{
    Auth, Bucket, EXPORT_PARAMS, Kind, Method, Need, Param, ParamKind, Precondition, Spec,
    schema_of,
};
use crate::types::*;

macro_rules! operations {
    ($($name:ident $summary:literal $spec:expr;)*) => {
        /// Something that can be asked of the platform.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Operation {
            $(#[doc = $summary] $name,)*
        }

        impl Operation {
            /// Every operation, in the order of the document.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// What is known of it.
            #[must_use]
            pub fn spec(self) -> &'static Spec {
                match self {
                    $(Self::$name => {
                        const SPEC: &Spec = &$spec.summary($summary);
                        SPEC
                    })*
                }
            }
        }
    };
}

/// A path of an org.
macro_rules! org {
    ($rest:literal) => {
        concat!("/v1/orgs/{org}", $rest)
    };
}

/// A path of an app.
macro_rules! app {
    ($rest:literal) => {
        concat!("/v1/orgs/{org}/apps/{app}", $rest)
    };
}

/// A path of an env.
macro_rules! in_env {
    ($rest:literal) => {
        concat!("/v1/orgs/{org}/apps/{app}/envs/{env}", $rest)
    };
}

operations! {
    // The interface itself, and logging in.
    GetCapabilities "Tells what this server can do."
        read("getCapabilities", "/v1/capabilities").open().gives::<Capabilities>().cli("capabilities");
    GetOpenapi "Gives this document."
        read("getOpenapi", "/v1/openapi.json").open().gives::<AnyObject>()
            .cli("no: the document is for programs");
    ExchangeToken "Exchanges an invite, a refresh token or a client secret for an access token."
        write("exchangeToken", Method::Post, "/v1/auth/token").open().rate(Bucket::Auth)
            .takes::<ExchangeToken>().gives::<TokenPair>().errors(&["invalid_grant"]).cli("login");
    RevokeOwnToken "Ends a token of one's own."
        write("revokeOwnToken", Method::Post, "/v1/auth/revoke")
            .takes::<RevokeOwn>().gives::<Token>().errors(&["not_found"]).cli("logout");
    Whoami "Tells who calls, and what they may do."
        read("whoami", "/v1/auth/whoami").gives::<Whoami>().cli("whoami");

    // Orgs.
    ListOrgs "Lists the orgs that the caller can see."
        list("listOrgs", "/v1/orgs").gives::<List<Org>>().query(TIMES).cli("orgs list");
    CreateOrg "Creates an org."
        create("createOrg", "/v1/orgs").can("org.create").takes::<CreateOrg>().gives::<Org>()
            .errors(&["name_taken"]).cli("orgs create");
    GetOrg "Shows an org."
        read("getOrg", org!("")).can("org.read").gives::<Org>().cli("orgs describe");
    UpdateOrg "Changes an org; its legal hold is for operators of the platform: `ledger.admin`."
        change("updateOrg", Method::Patch, org!("")).can("org.admin").takes::<UpdateOrg>()
            .gives::<Org>().cli("orgs update");
    GetQuotas "Shows the limits of an org and what it uses."
        read("getQuotas", org!("/quotas")).can("org.read").gives::<Quotas>().cli("quotas list");
    SetQuotas "Sets limits of an org."
        change("setQuotas", Method::Put, org!("/quotas")).can("quota.set").version_required()
            .takes::<SetQuotas>().gives::<Quotas>().cli("quotas set");

    // Who acts.
    ListMembers "Lists the people of an org, and what their roles are on."
        list("listMembers", org!("/members")).can("member.manage").gives::<List<Member>>()
            .query(MEMBER_PARAMS).cli("members list");
    AddMember "Asks somebody into an org, with a role on all of it or on an app or env."
        create("addMember", org!("/members")).can("member.manage").takes::<AddMember>()
            .gives::<MemberInvited>().errors(&["conflict", "grant_exceeds_own"])
            .cli("members add");
    UpdateMember "Changes the role of a person."
        change("updateMember", Method::Patch, org!("/members/{member}")).can("member.manage")
            .takes::<UpdateMember>().gives::<Member>()
            .errors(&["grant_exceeds_own", "last_owner"]).cli("members update");
    RemoveMember "Takes a role from a person; with the last one they leave the org."
        delete("removeMember", org!("/members/{member}")).can("member.manage")
            .errors(&["grant_exceeds_own", "last_owner"]).cli("members remove");
    ListPrincipals "Lists the service principals of an org."
        list("listPrincipals", org!("/principals")).can("principal.manage")
            .gives::<List<Principal>>().query(TIMES).cli("principals list");
    CreatePrincipal "Creates a service principal."
        create("createPrincipal", org!("/principals")).can("principal.manage")
            .takes::<CreatePrincipal>().gives::<PrincipalIssued>()
            .errors(&["grant_exceeds_own", "name_taken"]).cli("principals create");
    GetPrincipal "Shows a service principal."
        read("getPrincipal", org!("/principals/{principal}")).can("principal.manage")
            .gives::<Principal>().cli("principals describe");
    UpdatePrincipal "Changes what a service principal may do."
        change("updatePrincipal", Method::Patch, org!("/principals/{principal}"))
            .can("principal.manage").takes::<UpdatePrincipal>().gives::<Principal>()
            .errors(&["grant_exceeds_own"]).cli("principals update");
    DeletePrincipal "Deletes a service principal and ends its tokens."
        delete("deletePrincipal", org!("/principals/{principal}")).can("principal.manage")
            .cli("principals delete");
    RotatePrincipal "Gives a service principal a new secret."
        act("rotatePrincipal", org!("/principals/{principal}/rotate")).can("principal.manage")
            .takes::<RotatePrincipal>().gives::<PrincipalIssued>().cli("principals rotate");
    ListTokens "Lists the tokens of an org."
        list("listTokens", org!("/tokens")).can("token.manage").gives::<List<Token>>()
            .query(&[
                one_of("status", &["active", "revoked", "expired"]),
                text("principal", "Only those of this principal."),
                AFTER,
                BEFORE,
            ]).cli("tokens list");
    CreateToken "Issues an API token."
        create("createToken", org!("/tokens")).can("token.manage").takes::<CreateToken>()
            .gives::<TokenIssued>().errors(&["grant_exceeds_own"]).cli("tokens create");
    GetToken "Shows a token, without its secret."
        read("getToken", org!("/tokens/{token}")).can("token.manage").gives::<Token>()
            .cli("tokens describe");
    RevokeToken "Ends a token."
        delete("revokeToken", org!("/tokens/{token}")).can("token.manage").cli("tokens revoke");
    ListGrants "Lists the grants of an org."
        list("listGrants", org!("/grants")).can("grant.manage").gives::<List<Grant>>()
            .query(&[text("principal", "Only those of this principal."), AFTER, BEFORE])
            .cli("grants list");
    CreateGrant "Gives a capability to a principal."
        create("createGrant", org!("/grants")).can("grant.manage").takes::<CreateGrant>()
            .gives::<Grant>().errors(&["grant_exceeds_own"]).cli("grants add");
    GetGrant "Shows a grant."
        read("getGrant", org!("/grants/{grant}")).can("grant.manage").gives::<Grant>()
            .cli("grants describe");
    RemoveGrant "Takes a capability away."
        delete("removeGrant", org!("/grants/{grant}")).can("grant.manage").cli("grants remove");

    // Policy and approvals.
    GetPolicy "Shows the rules of an org."
        read("getPolicy", org!("/policy")).can("policy.manage").gives::<Policy>()
            .cli("orgs policy show");
    SetPolicy "Sets the rules of an org."
        change("setPolicy", Method::Put, org!("/policy")).can("policy.manage").version_required()
            .takes::<SetPolicy>().gives::<Policy>().errors(&["policy_invalid"]).cli("orgs policy set");
    TestPolicy "Tries rules on the last decisions, without setting them."
        read("testPolicy", org!("/policy/test")).by(Method::Post).can("policy.manage")
            .takes::<TestPolicy>().gives::<PolicyTrial>().errors(&["policy_invalid"])
            .cli("orgs policy try");
    ListApprovals "Lists the commands that wait for a person."
        list("listApprovals", org!("/approvals")).can("approval.decide").gives::<List<Approval>>()
            .query(&[one_of("status", &["pending", "approved", "denied", "expired"]), AFTER, BEFORE])
            .cli("approvals list");
    DecideApproval "Allows or refuses a command that waits, and runs it if allowed."
        act("decideApproval", org!("/approvals/{approval}/decide")).can("approval.decide")
            .takes::<DecideApproval>().gives::<Approval>()
            .errors(&["approval_expired", "invalid_transition", "self_approval"])
            .cli("approvals approve");

    // Projects, apps, envs.
    ListProjects "Lists the projects of an org."
        list("listProjects", org!("/projects")).can("project.read").gives::<List<Project>>()
            .query(TIMES).cli("projects list");
    CreateProject "Creates a project."
        create("createProject", org!("/projects")).can("project.manage").takes::<CreateProject>()
            .gives::<Project>().errors(&["name_taken"]).cli("projects create");
    GetProject "Shows a project."
        read("getProject", org!("/projects/{project}")).can("project.read").gives::<Project>()
            .cli("projects describe");
    UpdateProject "Changes a project."
        change("updateProject", Method::Patch, org!("/projects/{project}")).can("project.manage")
            .takes::<UpdateProject>().gives::<Project>().cli("projects update");
    DeleteProject "Deletes a project without apps."
        delete("deleteProject", org!("/projects/{project}")).can("project.manage")
            .errors(&["not_empty"]).cli("projects delete");
    ListApps "Lists the apps of an org."
        list("listApps", org!("/apps")).can("app.read").gives::<List<App>>()
            .query(&[text("project", "Only those of this project."), AFTER, BEFORE])
            .cli("apps list");
    CreateApp "Creates an app."
        create("createApp", org!("/apps")).can("app.create").takes::<CreateApp>().gives::<App>()
            .errors(&["name_taken", "quota_exceeded"]).cli("apps create");
    GetApp "Shows an app."
        read("getApp", app!("")).can("app.read").gives::<App>().cli("apps describe");
    UpdateApp "Changes an app."
        change("updateApp", Method::Patch, app!("")).can("app.update").takes::<UpdateApp>()
            .gives::<App>().cli("apps update");
    DeleteApp "Deletes an app without envs."
        delete("deleteApp", app!("")).can("app.delete").errors(&["not_empty"]).cli("apps delete");
    ListEnvs "Lists the envs of an app."
        list("listEnvs", app!("/envs")).can("env.read").gives::<List<Env>>()
            .query(&[one_of("status", &["active", "deleting"]), AFTER, BEFORE])
            .cli("envs list");
    CreateEnv "Creates an env."
        create("createEnv", app!("/envs")).can("env.create").takes::<CreateEnv>().gives::<Env>()
            .errors(&["name_taken", "quota_exceeded"]).cli("envs create");
    GetEnv "Shows an env."
        read("getEnv", in_env!("")).can("env.read").gives::<Env>().cli("envs describe");
    UpdateEnv "Changes an env; its protection needs `env.protect` too."
        change("updateEnv", Method::Patch, in_env!("")).can("env.update").takes::<UpdateEnv>()
            .gives::<Env>().errors(&["invalid_transition"]).cli("envs update");
    DeleteEnv "Drains an env and deletes it."
        delete("deleteEnv", in_env!("")).can("env.delete").answers(202).gives::<LongOperation>()
            .errors(&["invalid_transition"]).cli("envs delete");

    // Releases.
    ListReleases "Lists the releases of an app."
        list("listReleases", app!("/releases")).can("release.read").gives::<List<Release>>()
            .query(&[one_of("status", &["available", "blocked", "retired"]), AFTER, BEFORE])
            .cli("releases list");
    CreateRelease "Registers an image and a manifest as a release."
        create("createRelease", app!("/releases")).can("release.create").takes::<CreateRelease>()
            .gives::<Release>()
            .errors(&[
                "arch_unavailable", "image_auth_failed", "image_too_large", "image_unresolvable",
                "manifest_invalid", "quota_exceeded",
            ]).cli("releases create");
    GetRelease "Shows a release."
        read("getRelease", app!("/releases/{release}")).can("release.read").gives::<Release>()
            .cli("releases describe");
    BlockRelease "Stops a release from being deployed."
        act("blockRelease", app!("/releases/{release}/block")).can("release.block")
            .takes::<BlockRelease>().gives::<Release>().errors(&["invalid_transition"])
            .cli("releases block");
    UnblockRelease "Lets a release be deployed again."
        act("unblockRelease", app!("/releases/{release}/unblock")).can("release.block")
            .gives::<Release>().errors(&["invalid_transition"]).cli("releases unblock");

    // Deploys, scale, status.
    ListDeploys "Lists the deploys of an env."
        list("listDeploys", in_env!("/deploys")).can("env.read").gives::<List<Deploy>>()
            .query(&[
                one_of("status", DEPLOY_STATUS),
                one_of("kind", &["deploy", "rollback", "restart"]),
                text("process", "Only those that are about this process type."),
                AFTER,
                BEFORE,
            ]).cli("deploys list");
    CreateDeploy "Deploys a release to an env."
        create("createDeploy", in_env!("/deploys")).can("env.deploy").key_required()
            .takes::<CreateDeploy>().gives::<Deploy>()
            .errors(&[
                "E_VOLUME_REPLICA_LIMIT", "manifest_invalid", "name_taken", "no_capacity_disk",
                "quota_exceeded", "release_blocked", "route_target_missing", "scale_out_of_bounds",
                "secrets_missing", "volume_constraints_invalid", "volume_size_change_unsupported",
            ]).cli("deploy");
    GetDeploy "Shows a deploy and how far each group is."
        read("getDeploy", in_env!("/deploys/{deploy}")).can("env.read").gives::<Deploy>()
            .cli("deploys describe");
    CancelDeploy "Calls a deploy off and goes back to the release from before."
        act("cancelDeploy", in_env!("/deploys/{deploy}/cancel")).can("env.deploy")
            .gives::<Deploy>().errors(&["invalid_transition", "volume_constraints_invalid"])
            .cli("deploys cancel");
    PauseDeploy "Lets a deploy stand as it is."
        act("pauseDeploy", in_env!("/deploys/{deploy}/pause")).can("env.deploy")
            .gives::<Deploy>().errors(&["invalid_transition"]).cli("deploys pause");
    ResumeDeploy "Lets a paused deploy go on."
        act("resumeDeploy", in_env!("/deploys/{deploy}/resume")).can("env.deploy")
            .gives::<Deploy>().errors(&["invalid_transition"]).cli("deploys resume");
    CreateRollback "Returns an env to an earlier release."
        create("createRollback", in_env!("/rollbacks")).can("env.rollback").key_required()
            .takes::<CreateRollback>().gives::<Deploy>()
            .errors(&[
                "E_VOLUME_REPLICA_LIMIT", "name_taken", "no_capacity_disk", "no_rollback_target",
                "quota_exceeded", "release_blocked", "route_target_missing", "scale_out_of_bounds",
                "secrets_missing", "volume_constraints_invalid", "volume_size_change_unsupported",
            ]).cli("rollback");
    GetScale "Shows how many instances there should be."
        read("getScale", in_env!("/scale")).can("env.read").gives::<Scale>().cli("scale");
    SetScale "Sets how many instances there should be."
        change("setScale", Method::Put, in_env!("/scale")).can("env.scale").version_required()
            .takes::<SetScale>().gives::<Scale>()
            .errors(&["E_VOLUME_REPLICA_LIMIT", "quota_exceeded", "scale_out_of_bounds"])
            .cli("scale");
    GetStatus "Shows how an env is: wanted and seen."
        read("getStatus", in_env!("/status")).can("env.read").gives::<EnvStatus>().cli("status");

    // Instances, exec, logs.
    ListInstances "Lists the instances of an env."
        list("listInstances", in_env!("/instances")).can("instance.read")
            .gives::<List<Instance>>()
            .query(&[
                one_of("status", INSTANCE_STATUS),
                text("process", "Only those of this process type."),
                text("node", "Only those on this node."),
                AFTER,
                BEFORE,
            ]).cli("instances list");
    GetInstance "Shows an instance."
        read("getInstance", in_env!("/instances/{instance}")).can("instance.read")
            .gives::<Instance>().cli("instances describe");
    RestartInstance "Replaces an instance by a new one of the same spec."
        act("restartInstance", in_env!("/instances/{instance}/restart")).can("instance.restart")
            .gives::<Instance>().errors(&["invalid_transition"]).cli("instances restart");
    SignalInstance "Sends a signal to the workload of an instance."
        act("signalInstance", in_env!("/instances/{instance}/signal")).can("instance.restart")
            .takes::<SignalInstance>().gives::<Instance>()
            .errors(&["instance_not_running", "not_supported"]).cli("instances signal");
    DiagnoseInstance "Shows all that is known of an instance: how it got where it is, what it uses."
        read("diagnoseInstance", in_env!("/instances/{instance}/diagnose")).can("logs.read")
            .gives::<InstanceDiagnosis>().cli("instances diagnose");
    CreateExec "Asks to run a command in an instance."
        create("createExec", in_env!("/instances/{instance}/exec")).can("instance.exec")
            .rate(Bucket::Exec).takes::<CreateExec>().gives::<ExecGranted>()
            .errors(&["exec_limit", "instance_not_running", "quota_exceeded"])
            .cli("instances exec");
    GetExec "Shows an exec session."
        read("getExec", org!("/exec/{exec}")).can("instance.exec").gives::<ExecSession>()
            .cli("no: a session lasts as long as its command; `events audit` has the past ones");
    RevokeExec "Ends an exec session."
        delete("revokeExec", org!("/exec/{exec}")).can("instance.exec").gives::<ExecSession>()
            .errors(&["invalid_transition"])
            .cli("no: ending the command ends its session");
    ConnectExec "Opens the WebSocket of an exec session."
        read("connectExec", org!("/exec/{exec}/connect")).by_exec_token().answers(101)
            .gives::<AnyObject>().errors(&["exec_token_invalid", "not_supported"]).cli("instances exec");
    GetLogs "Reads what instances printed, or follows it."
        read("getLogs", in_env!("/logs")).can("logs.read").gives::<Logs>()
            .query(&[
                text("process", "Only those of this process type."),
                text("instance", "Only those of this instance."),
                one_of("stream", LOG_STREAM),
                time("since", "From then on; the hour before `until` if absent."),
                time("until", "Until then; now if absent."),
                Param {
                    name: "tail",
                    kind: ParamKind::Number(1, 10_000),
                    meaning: "The last lines only; with `cursor` the next ones.",
                },
                Param {
                    name: "cursor",
                    kind: ParamKind::Place,
                    meaning: "Goes through all lines in the order in which they came: `start`, then `next_cursor` of each answer until one has no lines.",
                },
            ]).errors(&["cursor_invalid", "window_too_large"]).cli("logs");

    // Network.
    ListRoutes "Lists the routes of an env."
        list("listRoutes", in_env!("/routes")).can("route.read").gives::<List<Route>>()
            .query(&[one_of("status", ROUTE_STATUS), AFTER, BEFORE]).cli("routes list");
    CreateRoute "Creates a route: its port is taken at once, its hostname once it is proven."
        create("createRoute", in_env!("/routes")).can("route.write").takes::<CreateRoute>()
            .gives::<Route>()
            .errors(&[
                "backend_port_undeclared", "hostname_taken", "ipv4_required", "port_denied",
                "port_taken", "proxy_ack_required", "quota_exceeded",
            ]).cli("routes expose");
    GetRoute "Shows a route."
        read("getRoute", in_env!("/routes/{route}")).can("route.read").gives::<Route>()
            .cli("routes describe");
    UpdateRoute "Changes a route."
        change("updateRoute", Method::Patch, in_env!("/routes/{route}")).can("route.write")
            .version_required().takes::<UpdateRoute>().gives::<Route>()
            .errors(&[
                "backend_port_undeclared", "invalid_transition", "ipv4_required",
                "port_taken", "proxy_ack_required", "quota_exceeded",
            ]).cli("routes update");
    DeleteRoute "Deletes a route and frees its hostname and port."
        delete("deleteRoute", in_env!("/routes/{route}")).can("route.write").gives::<Route>()
            .errors(&["invalid_transition"]).cli("routes delete");
    VerifyRoute "Looks whether the hostname of a route is proven."
        act("verifyRoute", in_env!("/routes/{route}/verify")).can("route.write").gives::<Route>()
            .errors(&[
                "hostname_not_proven", "hostname_taken", "invalid_transition", "unavailable",
            ]).cli("routes verify");
    EnableIpv4 "Gives an env a public IPv4 address."
        change("enableIpv4", Method::Put, in_env!("/ipv4")).can("ipv4.manage").gives::<Ipv4>()
            .errors(&["ipam_unavailable", "ipv4_pool_exhausted", "quota_exceeded"])
            .cli("ipv4 enable");
    DisableIpv4 "Takes the public IPv4 address of an env back."
        delete("disableIpv4", in_env!("/ipv4")).can("ipv4.manage")
            .query(&[flag("force", "Even while routes need it; for operators of the platform.")])
            .errors(&["ipv4_in_use", "ipv4_required"]).cli("ipv4 disable");

    // Secrets.
    GetSecrets "Shows the names and versions of an env's secrets, never values."
        read("getSecrets", in_env!("/secrets")).can("secret.list").gives::<SecretBundle>()
            .cli("secrets list");
    ReplaceSecrets "Replaces all secrets of an env."
        change("replaceSecrets", Method::Put, in_env!("/secrets")).can("secret.write")
            .takes::<ReplaceSecrets>().gives::<SecretBundle>()
            .errors(&["secrets_invalid", "secrets_key_unavailable"]).cli("secrets import");
    UpdateSecrets "Sets and unsets some secrets of an env."
        change("updateSecrets", Method::Patch, in_env!("/secrets")).can("secret.write")
            .takes::<UpdateSecrets>().gives::<SecretBundle>()
            .errors(&["secrets_invalid", "secrets_key_unavailable"]).cli("secrets set");
    DeleteSecrets "Deletes the secrets of an env."
        delete("deleteSecrets", in_env!("/secrets")).can("secret.write")
            .errors(&["secrets_in_use"]).cli("secrets delete");

    // Volumes.
    ListVolumes "Lists the volumes of an org."
        list("listVolumes", org!("/volumes")).can("volume.read").gives::<List<Volume>>()
            .query(&[
                one_of("status", VOLUME_STATUS),
                text("node", "Only those on this node."),
                AFTER,
                BEFORE,
            ]).cli("volumes list");
    CreateVolume "Creates a volume on one node."
        create("createVolume", org!("/volumes")).can("volume.write").key_required()
            .takes::<CreateVolume>().gives::<Volume>()
            .errors(&["name_taken", "no_capacity_disk", "quota_exceeded", "volume_home_mismatch"])
            .cli("volumes create");
    GetVolume "Shows a volume."
        read("getVolume", org!("/volumes/{volume}")).can("volume.read").gives::<Volume>()
            .cli("volumes describe");
    UpdateVolume "Changes whether a volume is backed up."
        change("updateVolume", Method::Patch, org!("/volumes/{volume}")).can("volume.write")
            .takes::<UpdateVolume>().gives::<Volume>().errors(&["invalid_transition"])
            .cli("volumes update");
    DeleteVolume "Deletes a volume and its data."
        delete("deleteVolume", org!("/volumes/{volume}")).can("volume.delete").gives::<Volume>()
            .errors(&["invalid_transition", "volume_attached"]).cli("volumes delete");
    ListAttachments "Lists the attachments of an env."
        list("listAttachments", in_env!("/attachments")).can("volume.read")
            .gives::<List<Attachment>>()
            .query(&[text("process", "Only those of this process type."), AFTER, BEFORE])
            .cli("attachments list");
    CreateAttachment "Attaches a volume to a process type."
        create("createAttachment", in_env!("/attachments")).can("volume.write")
            .takes::<CreateAttachment>().gives::<Attachment>()
            .errors(&[
                "E_VOLUME_REPLICA_LIMIT", "invalid_transition", "mount_path_invalid",
                "quota_exceeded", "volume_attached", "volume_home_mismatch", "volume_in_use",
            ]).cli("attachments create");
    ReplaceAttachment "Puts another volume in the place of the attached one."
        change("replaceAttachment", Method::Put, in_env!("/attachments/{attachment}"))
            .can("volume.write").takes::<ReplaceAttachment>().gives::<Attachment>()
            .errors(&[
                "invalid_transition", "volume_attached", "volume_home_mismatch", "volume_in_use",
            ]).cli("attachments replace");
    DeleteAttachment "Detaches a volume."
        delete("deleteAttachment", in_env!("/attachments/{attachment}")).can("volume.write")
            .errors(&["volume_in_use"]).cli("attachments delete");
    ListSnapshots "Lists the snapshots of a volume."
        list("listSnapshots", org!("/volumes/{volume}/snapshots")).can("volume.read")
            .gives::<List<Snapshot>>().query(&[one_of("status", JOB_STATUS), AFTER, BEFORE])
            .cli("snapshots list");
    CreateSnapshot "Makes a snapshot of a volume."
        create("createSnapshot", org!("/volumes/{volume}/snapshots")).can("volume.write")
            .key_required().takes::<CreateSnapshot>().gives::<Snapshot>()
            .errors(&["invalid_transition", "quota_exceeded"]).cli("snapshots create");
    RestoreSnapshot "Makes a new volume from a snapshot."
        create("restoreSnapshot", org!("/snapshots/{snapshot}/restore")).can("volume.restore")
            .key_required().takes::<RestoreSnapshot>().gives::<Restore>()
            .errors(&["name_taken", "no_capacity_disk", "quota_exceeded", "snapshot_not_ready"])
            .cli("snapshots restore");
    DeleteSnapshot "Deletes a snapshot."
        delete("deleteSnapshot", org!("/snapshots/{snapshot}")).can("volume.write")
            .errors(&["invalid_transition"]).cli("snapshots delete");
    ListRestores "Lists the restores of an org."
        list("listRestores", org!("/restores")).can("volume.read").gives::<List<Restore>>()
            .query(&[one_of("status", JOB_STATUS), AFTER, BEFORE]).cli("restores list");

    // History.
    ListEvents "Lists the events of an org, or follows them."
        list("listEvents", org!("/events")).can("events.read").gives::<List<EventEnvelope>>()
            .query(EVENT_PARAMS).errors(&["events_archived"]).cli("events list");
    ListAudit "Lists events with their decisions and whether they are proven."
        list("listAudit", org!("/audit")).can("audit.read").gives::<List<AuditEntry>>()
            .query(EVENT_PARAMS).errors(&["events_archived"]).cli("events audit");
    ExportOrg "Gives events of an org with the proofs that they are in the ledger, page by page."
        read("exportOrg", org!("/export")).can("audit.read").gives::<OrgExport>()
            .query(EXPORT_PARAMS).errors(&["cursor_invalid", "events_archived", "not_supported"]).cli("orgs export");
    GetOperation "Shows how far something is that takes a while."
        read("getOperation", org!("/operations/{operation}")).can("org.read")
            .gives::<LongOperation>().cli("wait");

    // Operators of the platform.
    ListNodes "Lists the nodes."
        list("listNodes", "/v1/nodes").can("node.read").gives::<List<Node>>()
            .query(&[one_of("status", NODE_STATUS), AFTER, BEFORE]).cli("nodes list");
    GetNode "Shows a node."
        read("getNode", "/v1/nodes/{node}").can("node.read").gives::<Node>()
            .cli("nodes describe");
    DrainNode "Empties a node."
        act("drainNode", "/v1/nodes/{node}/drain").can("node.manage").answers(201)
            .takes::<DrainNode>().gives::<LongOperation>()
            .errors(&["drain_blocked", "invalid_transition"]).cli("nodes drain");
    UncordonNode "Lets a node take instances again."
        act("uncordonNode", "/v1/nodes/{node}/uncordon").can("node.manage").gives::<Node>()
            .errors(&["invalid_transition"]).cli("nodes uncordon");
    ConfirmNodePlan "Lets a node end the instances that its plan leaves out."
        act("confirmNodePlan", "/v1/nodes/{node}/confirm-plan").can("node.manage").gives::<Node>()
            .cli("nodes confirm-plan");
    DisableNode "Takes a node out of use."
        act("disableNode", "/v1/nodes/{node}/disable").can("node.manage").gives::<Node>()
            .errors(&["invalid_transition"]).cli("nodes disable");
    RevokeNode "Shuts a node out for good."
        act("revokeNode", "/v1/nodes/{node}/revoke").can("node.manage").takes::<RevokeNode>()
            .gives::<Node>().errors(&["invalid_transition"]).cli("nodes revoke");
    RemoveNode "Removes a node that is empty."
        delete("removeNode", "/v1/nodes/{node}").can("node.manage")
            .query(&[flag("abandon_volumes", "Even if volumes are lost with it.")])
            .errors(&["invalid_transition", "node_has_volumes"]).cli("nodes remove");
    ListEnrollmentTokens "Lists the permissions to join as a node."
        list("listEnrollmentTokens", "/v1/enrollment-tokens").can("node.enroll")
            .gives::<List<EnrollmentToken>>()
            .query(&[
                one_of("status", ENROLLMENT_STATUS),
                AFTER,
                BEFORE,
            ]).cli("nodes enroll-token list");
    CreateEnrollmentToken "Issues a permission to join as a node."
        create("createEnrollmentToken", "/v1/enrollment-tokens").can("node.enroll")
            .takes::<CreateEnrollmentToken>().gives::<EnrollmentTokenIssued>()
            .cli("nodes enroll-token create");
    RevokeEnrollmentToken "Ends a permission to join as a node."
        delete("revokeEnrollmentToken", "/v1/enrollment-tokens/{enrollment_token}")
            .can("node.enroll").errors(&["invalid_transition"]).cli("nodes enroll-token revoke");
    ApproveEnrollment "Lets the machine in that waits with a permission to join."
        act("approveEnrollment", "/v1/enrollment-tokens/{enrollment_token}/approve")
            .can("node.enroll").gives::<EnrollmentToken>()
            .errors(&["approval_expired", "invalid_transition", "self_approval"])
            .cli("nodes enroll-token approve");
    RefuseEnrollment "Refuses the machine that waits with a permission to join."
        act("refuseEnrollment", "/v1/enrollment-tokens/{enrollment_token}/refuse")
            .can("node.enroll").gives::<EnrollmentToken>()
            .errors(&["approval_expired", "invalid_transition"])
            .cli("nodes enroll-token refuse");
    GetIpam "Shows how many addresses are taken."
        read("getIpam", "/v1/ipam").can("node.read").gives::<Ipam>().cli("nodes addresses");
    GetPlatformOperation "Shows how far something is that belongs to no org."
        read("getPlatformOperation", "/v1/operations/{operation}").can("node.read")
            .gives::<LongOperation>().cli("wait");
    RebuildViews "Builds views anew from events."
        act("rebuildViews", "/v1/admin/rebuild").can("ledger.admin").answers(202)
            .takes::<Rebuild>().gives::<LongOperation>().errors(&["rebuild_running"])
            .cli("events rebuild");
    ArchiveLedger "Seals events into archive segments."
        act("archiveLedger", "/v1/admin/archive").can("ledger.admin").answers(202)
            .gives::<LongOperation>().errors(&["not_supported"])
            .cli("events archive");
    VerifyLedger "Checks numbering, versions, hashes and anchors."
        act("verifyLedger", "/v1/admin/verify").can("ledger.admin").answers(202)
            .gives::<LongOperation>().cli("events verify");
    GetProjections "Shows how far each view is."
        read("getProjections", "/v1/admin/projections").can("ledger.admin").gives::<Projections>()
            .cli("events views");
    ListPlatformEvents "Lists the events of the platform itself, or follows them."
        list("listPlatformEvents", "/v1/events").can("ledger.admin")
            .gives::<List<EventEnvelope>>().query(PLATFORM_EVENT_PARAMS)
            .errors(&["events_archived"]).cli("events platform");
    GetImageLimits "Shows how much an image may be and take."
        read("getImageLimits", "/v1/admin/image-limits").can("quota.set").gives::<ImageLimits>()
            .cli("nodes image-limits list");
    SetImageLimits "Sets how much an image may be and take, for the whole cluster."
        write("setImageLimits", Method::Put, "/v1/admin/image-limits").can("quota.set")
            .takes::<SetImageLimits>().gives::<ImageLimits>().cli("nodes image-limits set");
    GetKeys "Shows the master keys, never their values."
        read("getKeys", "/v1/admin/keys").can("key.admin").gives::<Keys>().cli("keys status");
    RotateKeys "Makes a new master key the current one."
        act("rotateKeys", "/v1/admin/keys/rotate").can("key.admin").gives::<Keys>()
            .errors(&["secrets_key_unavailable"]).cli("keys rotate");
    RewrapKeys "Seals all secrets with the current master key."
        act("rewrapKeys", "/v1/admin/keys/rewrap").can("key.admin").answers(202)
            .gives::<LongOperation>().errors(&["secrets_key_unavailable"])
            .cli("keys rewrap");
    VerifyKeys "Opens everything that master keys seal, and says what does not open."
        act("verifyKeys", "/v1/admin/keys/verify").can("key.admin").answers(202)
            .gives::<LongOperation>().errors(&["secrets_key_unavailable"])
            .cli("keys verify");
    RetireKey "Takes a master key out of use that seals nothing any more."
        act("retireKey", "/v1/admin/keys/{key}/retire").can("key.admin").gives::<Keys>()
            .query(&[flag("single", "Without a second operator, where there is none.")])
            .errors(&["invalid_transition", "key_in_use", "self_approval"])
            .cli("keys retire");
    RehomeVolume "Says that a volume's disk is now in another node."
        act("rehomeVolume", "/v1/admin/volumes/{volume}/rehome").can("node.manage").answers(202)
            .takes::<RehomeVolume>().gives::<LongOperation>()
            .errors(&["fsck_failed", "invalid_transition"]).cli("volumes rehome");
}

const AFTER: Param = time("created_after", "Only what was created after this.");
const BEFORE: Param = time("created_before", "Only what was created before this.");
const TIMES: &[Param] = &[AFTER, BEFORE];
const MEMBER_PARAMS: &[Param] = &[
    one_of("status", &["invited", "active"]),
    AFTER,
    BEFORE,
    text(
        "app",
        "Only roles that are bound to this app, or to an env of it.",
    ),
    text("env", "Only roles that are bound to this env of the app."),
];

const DEPLOY_STATUS: &[&str] = &[
    "queued",
    "rolling",
    "paused",
    "succeeded",
    "failed",
    "canceled",
    "superseded",
];
const INSTANCE_STATUS: &[&str] = &[
    "allocated",
    "preparing",
    "booting",
    "ready",
    "unhealthy",
    "failed",
    "lost",
    "draining",
    "stopped",
    "collected",
];
const JOB_STATUS: &[&str] = &["queued", "running", "succeeded", "failed"];
const NODE_STATUS: &[&str] = &[
    "enrolled", "active", "degraded", "draining", "drained", "offline", "disabled", "removed",
    "revoked",
];
const ENROLLMENT_STATUS: &[&str] = &[
    "pending", "waiting", "approved", "refused", "consumed", "revoked", "expired",
];
const LOG_STREAM: &[&str] = &["stdout", "stderr", "platform"];
const ROUTE_STATUS: &[&str] = &["pending", "active", "degraded", "blocked", "deleting"];
const VOLUME_STATUS: &[&str] = &[
    "creating",
    "available",
    "attaching",
    "in_use",
    "detaching",
    "unavailable",
    "error",
    "deleting",
];

const EVENTS_AFTER: Param = Param {
    name: "after",
    kind: ParamKind::Number(0, (1 << 53) - 1),
    meaning: "Only what comes after this event.",
};
const EVENT_TYPES: Param = text(
    "types",
    "Only these event types, with commas between; `app.*` is all of a kind.",
);
const EVENT_ACTOR: Param = text("actor", "Only those of this principal.");
const EVENT_PARAMS: &[Param] = &[
    EVENTS_AFTER,
    EVENT_TYPES,
    text("app", "Only those of this app."),
    text("env", "Only those of this env, as an id or `app/env`."),
    EVENT_ACTOR,
];
const PLATFORM_EVENT_PARAMS: &[Param] = &[EVENTS_AFTER, EVENT_TYPES, EVENT_ACTOR];

const fn text(name: &'static str, meaning: &'static str) -> Param {
    Param {
        name,
        kind: ParamKind::Text,
        meaning,
    }
}

const fn time(name: &'static str, meaning: &'static str) -> Param {
    Param {
        name,
        kind: ParamKind::Time,
        meaning,
    }
}

const fn flag(name: &'static str, meaning: &'static str) -> Param {
    Param {
        name,
        kind: ParamKind::Flag,
        meaning,
    }
}

const fn one_of(name: &'static str, words: &'static [&'static str]) -> Param {
    Param {
        name,
        kind: ParamKind::Word(words),
        meaning: "Only those that are so.",
    }
}

const fn read(id: &'static str, path: &'static str) -> Spec {
    Spec {
        id,
        summary: "",
        method: Method::Get,
        path,
        kind: Kind::Read,
        auth: Auth::Caller,
        capability: None,
        request: None,
        response: schema_of::<Gone>,
        success: 200,
        query: &[],
        idempotency: Need::Allowed,
        precondition: Precondition::None,
        rate: Bucket::Read,
        errors: &[],
        cli: "",
    }
}

const fn list(id: &'static str, path: &'static str) -> Spec {
    let mut spec = read(id, path);
    spec.kind = Kind::List;
    spec
}

const fn write(id: &'static str, method: Method, path: &'static str) -> Spec {
    let mut spec = read(id, path).by(method);
    spec.kind = Kind::Write;
    spec.rate = Bucket::Write;
    spec
}

/// Makes something new.
const fn create(id: &'static str, path: &'static str) -> Spec {
    write(id, Method::Post, path).answers(201)
}

/// Does something to what is there.
const fn act(id: &'static str, path: &'static str) -> Spec {
    change(id, Method::Post, path)
}

/// Changes what is there.
const fn change(id: &'static str, method: Method, path: &'static str) -> Spec {
    let mut spec = write(id, method, path);
    spec.precondition = Precondition::Allowed;
    spec
}

const fn delete(id: &'static str, path: &'static str) -> Spec {
    change(id, Method::Delete, path)
}

impl Spec {
    const fn summary(mut self, summary: &'static str) -> Self {
        self.summary = summary;
        self
    }

    const fn by(mut self, method: Method) -> Self {
        self.method = method;
        self
    }

    /// Needs no login.
    const fn open(mut self) -> Self {
        self.auth = Auth::None;
        self
    }

    const fn by_exec_token(mut self) -> Self {
        self.auth = Auth::ExecToken;
        self
    }

    const fn can(mut self, capability: &'static str) -> Self {
        self.capability = Some(capability);
        self
    }

    const fn takes<T: JsonSchema>(mut self) -> Self {
        self.request = Some(schema_of::<T>);
        self
    }

    const fn gives<T: JsonSchema>(mut self) -> Self {
        self.response = schema_of::<T>;
        self
    }

    const fn answers(mut self, success: u16) -> Self {
        self.success = success;
        self
    }

    const fn query(mut self, query: &'static [Param]) -> Self {
        self.query = query;
        self
    }

    const fn key_required(mut self) -> Self {
        self.idempotency = Need::Required;
        self
    }

    const fn version_required(mut self) -> Self {
        self.precondition = Precondition::Required;
        self
    }

    const fn rate(mut self, rate: Bucket) -> Self {
        self.rate = rate;
        self
    }

    const fn errors(mut self, errors: &'static [&'static str]) -> Self {
        self.errors = errors;
        self
    }

    const fn cli(mut self, cli: &'static str) -> Self {
        self.cli = cli;
        self
    }
}
