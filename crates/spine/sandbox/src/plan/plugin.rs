//! The folders of a plugin: its files to read, its data and sockets to write.
//!
//! Each lies below the one folder that the launcher was told plugins are in,
//! and none is, or is in, another: what a plugin writes is never what it runs.

use std::path::{Path, PathBuf};

use fluffy_contract::isolation::{PluginMount, SandboxSpec};

use super::{Mount, PlanError, Settings, normal};

/// Refuses folders outside the plugins' own, and those that overlap.
pub(super) fn check(spec: &SandboxSpec, settings: &Settings) -> Result<(), PlanError> {
    let Some(plugin) = &spec.plugin else {
        return Ok(());
    };
    let folders: Vec<&PathBuf> = all(plugin).collect();
    for (index, folder) in folders.iter().enumerate() {
        normal(folder)?;
        let root = settings.plugins.as_deref();
        let is_below = |root: &Path| folder.starts_with(root) && folder.as_path() != root;
        let mut others = folders.iter().take(index);
        let overlaps = others.any(|one| one.starts_with(folder) || folder.starts_with(one));
        if !root.is_some_and(is_below) || overlaps {
            return Err(PlanError::Outside {
                path: (*folder).clone(),
            });
        }
    }
    Ok(())
}

pub(super) fn mounts(spec: &SandboxSpec) -> Vec<Mount> {
    let read = read(spec).into_iter().map(|host| Mount::ReadOnly {
        inside: host.clone(),
        host,
    });
    let write = write(spec).into_iter().map(|host| Mount::Writable {
        inside: host.clone(),
        host,
    });
    read.chain(write).collect()
}

pub(super) fn read(spec: &SandboxSpec) -> Option<PathBuf> {
    spec.plugin.as_ref().map(|plugin| plugin.files.clone())
}

pub(super) fn write(spec: &SandboxSpec) -> Vec<PathBuf> {
    let plugin = spec.plugin.iter();
    let folders = plugin.flat_map(|plugin| plugin.data.iter().chain(&plugin.meeting));
    folders.cloned().collect()
}

pub(super) fn data(spec: &SandboxSpec) -> Option<PathBuf> {
    spec.plugin.as_ref()?.data.clone()
}

fn all(plugin: &PluginMount) -> impl Iterator<Item = &PathBuf> {
    let written = plugin.data.iter().chain(&plugin.meeting);
    std::iter::once(&plugin.files).chain(written)
}
