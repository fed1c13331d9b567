//! Instances and exec sessions.

use fluffy_api::types::{
    self, Assignment, InstanceDesired, InstanceMount, InstanceObserved, InstanceResources,
};
use fluffy_base::id::{ExecSessionId, InstanceId};
use fluffy_planner::model::Desired;
use serde_json::Value;

use super::{Asked, View, isolation};
use crate::access::{json, page};
use crate::refusal::Refusal;

impl View<'_> {
    pub(super) fn instance(&self, id: InstanceId) -> Option<types::Instance> {
        let instance = self.runtime().plan.instances.get(&id)?;
        let record = self.runtime().instances.get(&id)?;
        let (state, reason) = match instance.desired {
            Desired::Running => ("running", None),
            Desired::Draining { reason, .. } => ("draining", Some(reason.to_string())),
            Desired::Stopped { reason } => ("stopped", Some(reason.to_string())),
        };
        let (seen, mounts) = (&instance.observed, record.mounts.iter());
        let exit_code = record.exit_code.and_then(|code| i32::try_from(code).ok());
        Some(types::Instance {
            meta: self.meta("instance", id)?,
            org_id: record.org,
            app_id: record.app,
            env_id: instance.group.env,
            process: instance.group.process.to_string(),
            release_id: record.release,
            deploy_id: record.deploy,
            spec_hash: instance.spec,
            secret_version_id: record.secrets,
            desired: InstanceDesired {
                state: state.to_owned(),
                reason,
                since: record.desired_since,
            },
            observed: InstanceObserved {
                status: seen.status.to_string(),
                since: seen.since,
                boot_id: record.boot,
                reason_code: seen.reason.map(|reason| reason.to_string()),
                reason_detail: record.detail.clone(),
                exit_code,
                boot_ms: record.boot_ms,
                failures: seen.failures,
            },
            assignment: Assignment {
                id: record.assignment,
                node_id: instance.node,
                generation: record.generation,
            },
            isolation: isolation(instance.driver),
            overlay_ipv6: record.address.to_string(),
            resources: InstanceResources {
                cpu_millis: instance.booking.cpu_millis,
                memory_bytes: instance.booking.memory.saturating_sub(record.overhead),
                disk_bytes: instance.booking.disk,
                overhead_bytes: record.overhead,
            },
            mounts: mounts
                .map(|mount| InstanceMount {
                    volume_id: mount.volume_id,
                    mount_path: mount.mount_path.clone(),
                    read_only: mount.read_only,
                })
                .collect(),
        })
    }

    pub(super) fn exec(&self, id: ExecSessionId) -> Option<types::ExecSession> {
        let session = self.runtime().execs.get(&id)?;
        let ended = session.ended.as_ref();
        let exit_code = ended.and_then(|ended| ended.exit_code);
        Some(types::ExecSession {
            meta: self.meta("exec_session", id)?,
            org_id: session.org,
            app_id: session.app,
            env_id: session.env,
            instance_id: session.instance,
            status: session.state.to_string(),
            command: session.command.clone(),
            tty: session.tty,
            as_root: session.as_root,
            resume: session.resume,
            reason: session.reason.clone(),
            principal_id: session.principal.clone(),
            expires_at: session.expires_at,
            end_reason: ended.map(|ended| ended.reason.clone()),
            exit_code: exit_code.and_then(|code| i32::try_from(code).ok()),
            bytes_in: ended.map(|ended| ended.bytes_in),
            bytes_out: ended.map(|ended| ended.bytes_out),
        })
    }

    /// How to connect; the token is the server's to add.
    pub(super) fn exec_granted(&self, id: ExecSessionId) -> Option<types::ExecGranted> {
        let session = self.runtime().execs.get(&id)?;
        Some(types::ExecGranted {
            id,
            connect_url: format!("/v1/orgs/{}/exec/{id}/connect", session.org),
            token: None,
            expires_at: session.expires_at?,
        })
    }
}

impl Asked<'_> {
    pub(super) fn instances(&self) -> Result<Value, Refusal> {
        let (status, process, node) = (
            self.given("status"),
            self.given("process"),
            self.given("node"),
        );
        let all = self.view.runtime().plan.instances.iter();
        let own = all.filter(|(_, it)| {
            Some(it.group.env) == self.place.owner.env
                && status.is_none_or(|status| it.observed.status.as_str() == status)
                && process.is_none_or(|process| &*it.group.process == process)
                && node.is_none_or(|node| it.node.to_string() == node)
        });
        // What an instance is observed to be is not a field of its own.
        let mut request = self.request.clone();
        request.query.remove("status");
        let ids = own.map(|(id, _)| *id);
        page(self.view.state, &request, "instance", ids, |id| {
            self.view.instance(id).map(|shown| json(&shown))
        })
    }
}
