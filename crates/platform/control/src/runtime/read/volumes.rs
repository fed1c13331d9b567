//! Volumes, attachments, snapshots and restores.

use fluffy_api::types;
use fluffy_base::id::{AttachmentId, RestoreId, VolumeId, VolumeSnapshotId};
use serde_json::Value;

use super::{Asked, View, found};
use crate::operations::not_found;
use crate::refusal::Refusal;

impl View<'_> {
    pub(super) fn volume(&self, id: VolumeId) -> Option<types::Volume> {
        let volume = self.runtime().volumes.get(&id)?;
        let plan = self.runtime().plan.volumes.get(&id)?;
        Some(types::Volume {
            meta: self.meta("volume", id)?,
            org_id: volume.org,
            name: volume.name.clone(),
            status: plan.state.to_string(),
            reason: volume.reason.clone(),
            size_bytes: volume.size,
            filesystem: volume.filesystem.clone(),
            backup_enabled: volume.backup_enabled,
            home_node_id: plan.home,
            instance_id: volume.instance,
            snapshot_id: volume.snapshot,
            last_backup_at: volume.last_backup_at,
        })
    }

    pub(super) fn attachment(&self, id: AttachmentId) -> Option<types::Attachment> {
        let it = self.runtime().attachments.get(&id)?;
        Some(types::Attachment {
            meta: self.meta("volume_attachment", id)?,
            org_id: it.org,
            app_id: it.app,
            env_id: it.env,
            volume_id: it.volume,
            process: it.process.clone(),
            mount_path: it.mount_path.clone(),
            read_only: it.read_only,
        })
    }

    pub(super) fn snapshot(&self, id: VolumeSnapshotId) -> Option<types::Snapshot> {
        let it = self.runtime().snapshots.get(&id)?;
        Some(types::Snapshot {
            meta: self.meta("snapshot", id)?,
            org_id: it.org,
            volume_id: it.volume,
            source_node_id: it.node,
            status: it.state.to_string(),
            consistency: it.consistency.clone(),
            size_bytes: it.size,
            failed_reason: it.failed_reason.clone(),
            note: it.note.clone(),
        })
    }

    pub(super) fn restore(&self, id: RestoreId) -> Option<types::Restore> {
        let it = self.runtime().restores.get(&id)?;
        Some(types::Restore {
            meta: self.meta("restore_job", id)?,
            org_id: it.org,
            snapshot_id: it.snapshot,
            source_volume_id: it.source,
            new_volume_id: it.volume,
            target_node_id: it.node,
            status: it.state.to_string(),
            failed_reason: it.failed_reason.clone(),
        })
    }
}

impl Asked<'_> {
    fn volume_id(&self) -> Option<VolumeId> {
        let text = self.place.leaf.as_deref()?;
        let named: Option<VolumeId> = text.parse().ok();
        let mut all = self.view.runtime().volumes.iter();
        let found = all.find(|(id, it)| {
            Some(it.org) == self.place.owner.org && (it.name == text || Some(**id) == named)
        });
        found.map(|(id, _)| *id)
    }

    pub(super) fn volume(&self) -> Result<Value, Refusal> {
        found(self.volume_id().and_then(|id| self.view.volume(id)))
    }

    pub(super) fn volumes(&self) -> Result<Value, Refusal> {
        let node = self.given("node");
        let plan = &self.view.runtime().plan.volumes;
        let own = self.view.runtime().volumes.iter().filter(|(id, it)| {
            let home = plan.get(id).map(|it| it.home.to_string());
            Some(it.org) == self.place.owner.org
                && node.is_none_or(|node| home.as_deref() == Some(node))
        });
        self.page("volume", own.map(|(id, _)| *id), View::volume)
    }

    pub(super) fn attachments(&self) -> Result<Value, Refusal> {
        let process = self.given("process");
        let own = self.view.runtime().attachments.iter().filter(|(_, it)| {
            Some(it.env) == self.place.owner.env
                && process.is_none_or(|process| it.process == process)
        });
        self.page(
            "volume_attachment",
            own.map(|(id, _)| *id),
            View::attachment,
        )
    }

    pub(super) fn snapshots(&self) -> Result<Value, Refusal> {
        let volume = self.volume_id().ok_or_else(not_found)?;
        let all = self.view.runtime().snapshots.iter();
        let own = all.filter(|(_, it)| it.volume == volume);
        self.page("snapshot", own.map(|(id, _)| *id), View::snapshot)
    }

    pub(super) fn restores(&self) -> Result<Value, Refusal> {
        let all = self.view.runtime().restores.iter();
        let own = all.filter(|(_, it)| Some(it.org) == self.place.owner.org);
        self.page("restore_job", own.map(|(id, _)| *id), View::restore)
    }
}
