//! A tour through every operation, each answer held against the document.

use fluffy_api::Operation;
use fluffy_api::client::{Ask, Client};
use fluffy_control::runtime::Notice as RuntimeNotice;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::crew::{Crew, enrolment};
use crate::house::{House, Judge, PATIENCE};

/// What the tour leaves out: a WebSocket is no JSON, a disk that was moved and
/// public addresses are an operator's to bring, a key stays for a month, and a
/// signal needs a node that is connected.
const NOT_ON_THE_TOUR: [&str; 6] = [
    "connectExec",
    "disableIpv4",
    "enableIpv4",
    "rehomeVolume",
    "retireKey",
    "signalInstance",
];

struct Guide<'a> {
    judge: &'a Judge,
    client: Client,
}

impl Guide<'_> {
    async fn call(&self, operation: Operation, path: &[&str]) -> Value {
        self.judge
            .call(&self.client, Ask::new(operation, path), operation)
            .await
    }

    async fn send(&self, operation: Operation, path: &[&str], body: Value) -> Value {
        let ask = Ask::new(operation, path).body(&body);
        self.judge.call(&self.client, ask, operation).await
    }

    /// Reads again until it is as wished.
    async fn until(
        &self,
        operation: Operation,
        path: &[&str],
        wish: impl Fn(&Value) -> bool,
    ) -> Value {
        let limit = Instant::now() + PATIENCE;
        loop {
            let value: Value = self.client.get(operation, path).await.unwrap();
            if wish(&value) {
                return value;
            }
            assert!(Instant::now() < limit, "{operation:?}: {value}");
            sleep(std::time::Duration::from_millis(50)).await;
        }
    }
}

fn id(value: &Value) -> &str {
    value["id"].as_str().unwrap_or("none")
}

fn manifest(version: u32, replicas: u32) -> String {
    format!(
        "schema_version = \"v1\"\n[deploy]\nmin_ready_seconds = 0\n[processes.web]\n\
         command = [\"serve\", \"{version}\"]\nreplicas = {replicas}\n\
         [[processes.web.ports]]\ninternal = 8080\n\
         [processes.web.resources]\nmemory = \"64MiB\"\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_is_what_the_document_says() {
    let house = House::start().await;
    for number in 1..=3 {
        house.crew.join(number).await;
    }
    let crew = house.crew.clone();
    // Nodes do as they are told, as long as the tour lasts.
    let nodes = tokio::spawn(async move { crew.tend_for_ever().await });
    let judge = Judge::new();
    let guide = Guide {
        judge: &judge,
        client: house.owner().await,
    };
    access(&guide, &house).await;
    apps(&guide).await;
    running(&guide, &house).await;
    volumes(&guide, &house).await;
    operators(&guide, &house.crew).await;
    nodes.abort();
    house.server.stop().await;

    let notes = judge.notes.lock().unwrap();
    assert!(notes.problems.is_empty(), "{:#?}", notes.problems);
    let missed: Vec<_> = Operation::ALL
        .iter()
        .map(|operation| operation.spec().id)
        .filter(|id| !notes.reached.contains(id) && !NOT_ON_THE_TOUR.contains(id))
        .collect();
    assert!(missed.is_empty(), "not reached: {missed:?}");
}

async fn access(guide: &Guide<'_>, house: &House) {
    use Operation as O;
    let org = ["local"];
    guide.call(O::GetCapabilities, &[]).await;
    guide.call(O::GetOpenapi, &[]).await;
    guide.call(O::Whoami, &[]).await;
    guide
        .send(O::CreateOrg, &[], json!({ "slug": "acme" }))
        .await;
    guide.call(O::ListOrgs, &[]).await;
    let shown = guide.call(O::GetOrg, &org).await;
    guide
        .send(O::UpdateOrg, &org, json!({ "display_name": "Here" }))
        .await;
    assert_eq!(shown["slug"], "local");
    let quotas = guide.call(O::GetQuotas, &org).await;
    let limits = json!({ "limits": { "apps": 60 }, "expected_version": quotas["version"] });
    guide.send(O::SetQuotas, &org, limits).await;

    let body = json!({ "email": "ann@example.org", "role": "viewer" });
    let member = guide.send(O::AddMember, &org, body).await;
    guide.call(O::ListMembers, &org).await;
    let of_member = ["local", id(&member)];
    guide
        .send(O::UpdateMember, &of_member, json!({ "role": "developer" }))
        .await;
    guide.call(O::RemoveMember, &of_member).await;

    let body = json!({ "name": "ci", "grants": ["app.read.local/*", "app.delete.local/*"] });
    let principal = guide.send(O::CreatePrincipal, &org, body).await;
    guide.call(O::ListPrincipals, &org).await;
    let of_principal = ["local", id(&principal)];
    guide.call(O::GetPrincipal, &of_principal).await;
    let grants = json!({ "grants": ["app.read.local/*", "app.delete.local/*", "org.read.local"] });
    guide.send(O::UpdatePrincipal, &of_principal, grants).await;
    let rotated = guide
        .send(O::RotatePrincipal, &of_principal, json!({}))
        .await;
    let login = json!({
        "grant_type": "client_credentials",
        "client_id": id(&principal),
        "client_secret": rotated["client_secret"],
    });
    let pair = guide.send(O::ExchangeToken, &[], login).await;
    let token = pair["access_token"].as_str().unwrap_or("none");
    let robot = Guide {
        judge: guide.judge,
        client: house.bearer(token).await,
    };
    robot.call(O::Whoami, &[]).await;

    let body = json!({ "principal_id": id(&principal), "ttl_seconds": 3600 });
    let token = guide.send(O::CreateToken, &org, body).await;
    guide.call(O::ListTokens, &org).await;
    guide.call(O::GetToken, &["local", id(&token)]).await;
    guide.call(O::RevokeToken, &["local", id(&token)]).await;
    let body = json!({ "principal_id": id(&principal), "pattern": "env.read.local/*" });
    let grant = guide.send(O::CreateGrant, &org, body).await;
    guide.call(O::ListGrants, &org).await;
    guide.call(O::GetGrant, &["local", id(&grant)]).await;
    guide.call(O::RemoveGrant, &["local", id(&grant)]).await;

    let policy = guide.call(O::GetPolicy, &org).await;
    let rules = "version: 1\ncapabilities:\n  - name: deletions\n    match:\n      action: app.delete\n    do: require_review\n    reason: two people delete an app\n";
    guide
        .send(O::TestPolicy, &org, json!({ "rules": rules }))
        .await;
    let body = json!({ "rules": rules, "expected_version": policy["version"] });
    let set = guide.send(O::SetPolicy, &org, body).await;
    guide
        .send(O::CreateApp, &org, json!({ "name": "gone" }))
        .await;
    let parked = robot.call(O::DeleteApp, &["local", "gone"]).await;
    guide.call(O::ListApprovals, &org).await;
    let approval = parked["approval_id"].as_str().unwrap_or("none");
    let decided = json!({ "outcome": "approved", "note": "fine" });
    guide
        .send(O::DecideApproval, &["local", approval], decided)
        .await;
    let none = json!({ "rules": "version: 1\n", "expected_version": set["version"] });
    guide.send(O::SetPolicy, &org, none).await;
    robot.send(O::RevokeOwnToken, &[], json!({})).await;
    guide.call(O::DeletePrincipal, &of_principal).await;
}

async fn apps(guide: &Guide<'_>) {
    use Operation as O;
    let org = ["local"];
    let project = guide
        .send(O::CreateProject, &org, json!({ "name": "web" }))
        .await;
    guide.call(O::ListProjects, &org).await;
    guide.call(O::GetProject, &["local", id(&project)]).await;
    let body = json!({ "display_name": "The web" });
    guide.send(O::UpdateProject, &["local", "web"], body).await;
    guide
        .send(
            O::CreateApp,
            &org,
            json!({ "name": "shop", "project": "web" }),
        )
        .await;
    guide.call(O::ListApps, &org).await;
    guide.call(O::GetApp, &["local", "shop"]).await;
    let body = json!({ "description": "sells", "project": null });
    guide.send(O::UpdateApp, &["local", "shop"], body).await;
    guide.call(O::DeleteProject, &["local", "web"]).await;
    guide
        .send(O::CreateEnv, &["local", "shop"], json!({ "name": "dev" }))
        .await;
    guide.call(O::ListEnvs, &["local", "shop"]).await;
    guide.call(O::GetEnv, &["local", "shop", "dev"]).await;
    let body = json!({ "allow_shared_kernel": true });
    guide
        .send(O::UpdateEnv, &["local", "shop", "dev"], body)
        .await;
}

async fn running(guide: &Guide<'_>, house: &House) {
    use Operation as O;
    let app = ["local", "shop"];
    let env = ["local", "shop", "dev"];
    let body =
        |version| json!({ "image": "registry.example/shop:1", "manifest": manifest(version, 2) });
    let first = guide.send(O::CreateRelease, &app, body(1)).await;
    guide.call(O::ListReleases, &app).await;
    let of_release = ["local", "shop", id(&first)];
    guide.call(O::GetRelease, &of_release).await;
    guide
        .send(O::BlockRelease, &of_release, json!({ "reason": "broken" }))
        .await;
    guide.call(O::UnblockRelease, &of_release).await;

    let secrets = json!({ "values": { "KEY": "value" } });
    guide.send(O::ReplaceSecrets, &env, secrets).await;
    guide
        .send(
            O::UpdateSecrets,
            &env,
            json!({ "set": { "MORE": "x" }, "unset": ["KEY"] }),
        )
        .await;
    guide.call(O::GetSecrets, &env).await;

    let deploy = guide
        .send(O::CreateDeploy, &env, json!({ "release_id": id(&first) }))
        .await;
    guide.call(O::ListDeploys, &env).await;
    let of_deploy = ["local", "shop", "dev", id(&deploy)];
    let is_done = |value: &Value| value["status"] == "succeeded";
    guide.until(O::GetDeploy, &of_deploy, is_done).await;
    guide.call(O::GetDeploy, &of_deploy).await;
    guide.call(O::GetOperation, &["local", id(&deploy)]).await;
    guide.call(O::GetStatus, &env).await;
    let scale = guide.call(O::GetScale, &env).await;
    let body = json!({ "processes": { "web": 3 }, "expected_version": scale["version"] });
    guide.send(O::SetScale, &env, body).await;

    let is_ready = |value: &Value| {
        let items = value["items"].as_array().unwrap();
        items.len() >= 3
            && items
                .iter()
                .all(|item| item["observed"]["status"] == "ready")
    };
    guide.until(O::ListInstances, &env, is_ready).await;
    let instances = guide.call(O::ListInstances, &env).await;
    let instance = id(&instances["items"][0]);
    let of_instance = ["local", "shop", "dev", instance];
    guide.call(O::GetInstance, &of_instance).await;
    let body = json!({ "principal_id": "local", "pattern": "instance.exec.local/*" });
    guide.send(O::CreateGrant, &["local"], body).await;
    let exec = guide
        .send(O::CreateExec, &of_instance, json!({ "command": ["ls"] }))
        .await;
    guide.call(O::GetExec, &["local", id(&exec)]).await;
    guide.call(O::RevokeExec, &["local", id(&exec)]).await;
    guide.call(O::GetLogs, &env).await;
    let diagnosis = guide.call(O::DiagnoseInstance, &of_instance).await;
    assert!(
        diagnosis["node_problem"].is_string(),
        "its node has no session: {diagnosis}"
    );
    guide.call(O::RestartInstance, &of_instance).await;

    let second = guide.send(O::CreateRelease, &app, body_of(2)).await;
    let deploy = guide
        .send(O::CreateDeploy, &env, json!({ "release_id": id(&second) }))
        .await;
    let of_deploy = ["local", "shop", "dev", id(&deploy)];
    let goes = |value: &Value| value["status"] == "rolling";
    guide.until(O::GetDeploy, &of_deploy, goes).await;
    guide.call(O::PauseDeploy, &of_deploy).await;
    guide.call(O::ResumeDeploy, &of_deploy).await;
    guide.call(O::CancelDeploy, &of_deploy).await;
    let third = guide
        .send(O::CreateDeploy, &env, json!({ "release_id": id(&second) }))
        .await;
    let of_third = ["local", "shop", "dev", id(&third)];
    guide.until(O::GetDeploy, &of_third, is_done).await;
    guide.send(O::CreateRollback, &env, json!({})).await;

    let body = json!({
        "hostname": "shop.example.org", "listen_port": 443, "protocol_hint": "tls_passthrough",
        "backend_process": "web", "backend_port": 8080,
    });
    let route = guide.send(O::CreateRoute, &env, body).await;
    let Value::String(record) = &route["challenge"]["record"] else {
        panic!("{route}");
    };
    let value = route["challenge"]["value"].as_str().unwrap();
    house.names.set(record, &[value]);
    guide.call(O::ListRoutes, &env).await;
    let of_route = ["local", "shop", "dev", id(&route)];
    guide.call(O::GetRoute, &of_route).await;
    let body = json!({ "ipv4_required": false, "expected_version": route["version"] });
    guide.send(O::UpdateRoute, &of_route, body).await;
    guide.call(O::VerifyRoute, &of_route).await;
    guide.call(O::DeleteRoute, &of_route).await;
    guide.call(O::DeleteSecrets, &env).await;
    guide.call(O::ListEvents, &["local"]).await;
    guide.call(O::ListAudit, &["local"]).await;
    guide.call(O::ExportOrg, &["local"]).await;
}

fn body_of(version: u32) -> Value {
    json!({ "image": "registry.example/shop:2", "manifest": manifest(version, 2) })
}

async fn volumes(guide: &Guide<'_>, house: &House) {
    use Operation as O;
    let org = ["local"];
    let env = ["local", "shop", "stateful"];
    let body = |name: &str| json!({ "name": name, "size_bytes": 1_u64 << 30 });
    let volume = guide.send(O::CreateVolume, &org, body("data")).await;
    let other = guide
        .send(
            O::CreateVolume,
            &org,
            json!({
                "name": "more", "size_bytes": 1_u64 << 30, "near": "data",
            }),
        )
        .await;
    guide.call(O::ListVolumes, &org).await;
    let of_volume = ["local", id(&volume)];
    guide.call(O::GetVolume, &of_volume).await;
    guide
        .send(
            O::UpdateVolume,
            &of_volume,
            json!({ "backup_enabled": false }),
        )
        .await;
    guide
        .send(
            O::CreateEnv,
            &["local", "shop"],
            json!({ "name": "stateful" }),
        )
        .await;
    let body = json!({ "volume_id": id(&volume), "process": "web", "mount_path": "/data" });
    let attachment = guide.send(O::CreateAttachment, &env, body).await;
    guide.call(O::ListAttachments, &env).await;
    let of_attachment = ["local", "shop", "stateful", id(&attachment)];
    let body = json!({ "volume_id": id(&other) });
    let attachment = guide.send(O::ReplaceAttachment, &of_attachment, body).await;
    let of_attachment = ["local", "shop", "stateful", id(&attachment)];
    guide.call(O::DeleteAttachment, &of_attachment).await;
    for volume in [&volume, &other] {
        house.crew.provide(id(volume)).await;
    }
    let snapshot = guide
        .send(O::CreateSnapshot, &of_volume, json!({ "note": "first" }))
        .await;
    guide.call(O::ListSnapshots, &of_volume).await;
    house.crew.back_up(id(&snapshot)).await;
    let body = json!({ "name": "copy" });
    guide
        .send(O::RestoreSnapshot, &["local", id(&snapshot)], body)
        .await;
    guide.call(O::ListRestores, &org).await;
    let snapshot = guide
        .send(O::CreateSnapshot, &of_volume, json!({ "note": "second" }))
        .await;
    guide
        .call(O::DeleteSnapshot, &["local", id(&snapshot)])
        .await;
    guide.call(O::DeleteVolume, &["local", id(&other)]).await;
}

async fn operators(guide: &Guide<'_>, crew: &Crew) {
    use Operation as O;
    let nodes = guide.call(O::ListNodes, &[]).await;
    let node = |index: usize| id(&nodes["items"][index]).to_owned();
    let (first, second) = (node(0), node(1));
    guide.call(O::GetNode, &[&first]).await;
    guide.call(O::GetIpam, &[]).await;
    guide.call(O::ListPlatformEvents, &[]).await;
    let drain = guide
        .send(O::DrainNode, &[&first], json!({ "leave_stateful": true }))
        .await;
    guide.call(O::GetPlatformOperation, &[id(&drain)]).await;
    guide.call(O::UncordonNode, &[&first]).await;
    guide.call(O::ConfirmNodePlan, &[&first]).await;
    guide.call(O::DisableNode, &[&first]).await;
    guide
        .send(O::RevokeNode, &[&second], json!({ "reason": "stolen" }))
        .await;
    let of_first = [first.as_str()];
    let is_empty = |value: &Value| value["used"]["instances"] == 0;
    guide.until(O::GetNode, &of_first, is_empty).await;
    let ask = Ask::new(O::RemoveNode, &of_first).query("abandon_volumes", "true");
    guide.judge.call(&guide.client, ask, O::RemoveNode).await;
    let token = guide.send(O::CreateEnrollmentToken, &[], json!({})).await;
    guide.call(O::ListEnrollmentTokens, &[]).await;
    for operation in [O::ApproveEnrollment, O::RefuseEnrollment] {
        let careful = json!({ "require_approval": true, "labels": { "zone": "a" } });
        let careful = guide.send(O::CreateEnrollmentToken, &[], careful).await;
        let machine = Box::new(enrolment(4, id(&careful)));
        crew.notice(RuntimeNotice::Enroll(machine)).await;
        guide.call(operation, &[id(&careful)]).await;
    }
    guide.call(O::RevokeEnrollmentToken, &[id(&token)]).await;
    guide.call(O::GetProjections, &[]).await;
    let rebuilt = guide.send(O::RebuildViews, &[], json!({})).await;
    assert_eq!(rebuilt["status"], "succeeded", "{rebuilt}");
    assert!(
        rebuilt["result"]["digests"]["instances"].is_string(),
        "{rebuilt}"
    );
    let verified = guide.call(O::VerifyLedger, &[]).await;
    assert_eq!(verified["status"], "succeeded", "{verified}");
    assert!(
        verified["result"]["events"].as_u64() > Some(100),
        "{verified}"
    );
    let again = guide.call(O::GetPlatformOperation, &[id(&verified)]).await;
    assert_eq!(again["result"], verified["result"], "{again}");
    let archived = guide.call(O::ArchiveLedger, &[]).await;
    // Files have a place for an archive; a database that is shared has none.
    let refused = archived["error"]["code"] == "not_supported";
    assert!(
        refused || archived["result"]["sealed"].is_array(),
        "{archived}"
    );
    guide.call(O::GetImageLimits, &[]).await;
    let limits = json!({ "limits": { "layers": 130, "entries": null } });
    guide.send(O::SetImageLimits, &[], limits).await;
    guide.call(O::GetKeys, &[]).await;
    guide.call(O::RotateKeys, &[]).await;
    let rewrapped = guide.call(O::RewrapKeys, &[]).await;
    assert_eq!(rewrapped["status"], "succeeded", "{rewrapped}");
    assert!(rewrapped["result"]["rewrapped"].is_u64(), "{rewrapped}");
    let opened = guide.call(O::VerifyKeys, &[]).await;
    assert_eq!(opened["status"], "succeeded", "{opened}");
    assert!(opened["result"]["opened"].is_u64(), "{opened}");
    guide
        .call(O::DeleteEnv, &["local", "shop", "stateful"])
        .await;
    guide.call(O::DeleteEnv, &["local", "shop", "dev"]).await;
}
