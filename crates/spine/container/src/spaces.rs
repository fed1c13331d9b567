//! Private file systems in memory with a limit on files, as Podman makes them.
//!
//! Podman's own `--tmpfs` knows no such limit, its volumes do. Each belongs to
//! one sandbox and goes with it; what a dead launcher left is swept by its
//! labels. Docker needs none of this. Next: `shape` mounts them.

use std::collections::HashMap;
use std::path::PathBuf;

use bollard::models::VolumeCreateRequest;
use fluffy_base::id::SandboxId;
use fluffy_sandbox::plan::{Mount, Plan};

use crate::engine::Brand;

/// The kernel counts the size of such a file system in these.
const PAGE: u64 = 4_096;

/// One private file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Space {
    /// What the engine calls it.
    pub(crate) name: String,
    /// Where it is seen.
    pub(crate) inside: PathBuf,
    options: String,
}

impl Space {
    /// What the engine is asked to make.
    pub(crate) fn request(&self, labels: &HashMap<String, String>) -> VolumeCreateRequest {
        let options = [
            ("type", "tmpfs"),
            ("device", "tmpfs"),
            ("o", self.options.as_str()),
        ];
        let options = options.map(|(name, value)| (name.to_owned(), value.to_owned()));
        VolumeCreateRequest {
            name: Some(self.name.clone()),
            driver: Some("local".to_owned()),
            driver_opts: Some(HashMap::from(options)),
            labels: Some(labels.clone()),
            ..VolumeCreateRequest::default()
        }
    }
}

/// The file systems that a sandbox needs from an engine of this brand.
pub(crate) fn of_plan(plan: &Plan, brand: Brand) -> Vec<Space> {
    if brand == Brand::Docker {
        return Vec::new();
    }
    let spaces = plan.mounts.iter().filter_map(|mount| match mount {
        Mount::Scratch {
            inside,
            size,
            inodes,
        } => Some((inside, size, inodes)),
        _ => None,
    });
    spaces
        .zip(0..MOST)
        .map(|((inside, size, inodes), number)| Space {
            name: name(plan.sandbox, number),
            inside: inside.clone(),
            // `size` would mean a quota of the disk to Podman.
            options: format!(
                "nr_blocks={},nr_inodes={inodes},mode=1777",
                size.0.div_ceil(PAGE)
            ),
        })
        .collect()
}

/// The names that the file systems of a sandbox may have.
pub(crate) fn names(sandbox: SandboxId, brand: Brand) -> Vec<String> {
    match brand {
        Brand::Docker => Vec::new(),
        Brand::Podman => (0..MOST).map(|number| name(sandbox, number)).collect(),
    }
}

/// No plan has more.
const MOST: usize = 5;

fn name(sandbox: SandboxId, number: usize) -> String {
    format!("fluffy-{sandbox}-{number}")
}
