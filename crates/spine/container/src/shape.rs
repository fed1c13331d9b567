//! From a plan to exactly what the engine is asked to make: a pure function.
//!
//! Always: read-only root, no capability, no new privileges, no network but the
//! own loopback, no device of the host, no socket of an engine. Paths that an
//! engine could read as options are refused. Next: `sandbox` carries it out.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use bollard::models::{
    ContainerCreateBody, HostConfig, HostConfigLogConfig, Mount as EngineMount, MountBindOptions,
    MountBindOptionsPropagationEnum, MountType, ResourcesUlimits,
};
use fluffy_base::ByteSize;
use fluffy_sandbox::plan::{HOME, HiddenKind, INSIDE_ID, Mount, Plan};

use crate::carry::{Carried, INSIDE};
use crate::engine::Ownership;
use crate::spaces::Space;

/// Marks everything of ours with the launcher that made it.
pub(crate) const OWNER_LABEL: &str = "fluffy.owner";
/// Marks it with the state directory whose launchers may sweep it.
pub(crate) const STATE_LABEL: &str = "fluffy.state";
/// Marks it with the sandbox it is.
pub(crate) const SANDBOX_LABEL: &str = "fluffy.sandbox";

/// Where the folder with the control socket is seen.
pub(crate) const CONTROL_FOLDER: &str = "/.fluffy/control";

/// The user that everything inside runs as, in the container's own numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct User {
    /// The user.
    pub(crate) user: u32,
    /// The group.
    pub(crate) group: u32,
}

/// What a container is made from.
#[derive(Debug)]
pub(crate) struct Shape<'a> {
    /// What the sandbox is.
    pub(crate) plan: &'a Plan,
    /// Which image it has.
    pub(crate) image: &'a str,
    /// Whose programs it sees.
    pub(crate) source: Source,
    /// Our own program.
    pub(crate) carried: &'a Carried,
    /// The user inside.
    pub(crate) user: User,
    /// The host's folder with the control socket.
    pub(crate) control: &'a Path,
    /// Files with the content of [`Mount::File`], by where they are seen.
    pub(crate) files: &'a HashMap<PathBuf, PathBuf>,
    /// What covers hidden paths.
    pub(crate) covers: &'a Covers,
    /// Private file systems that are volumes of the engine.
    pub(crate) spaces: &'a [Space],
    /// The system-call filter, in the engine's words.
    pub(crate) seccomp: String,
    /// The labels.
    pub(crate) labels: HashMap<String, String>,
    /// How many processes one user of this host may have.
    pub(crate) most_processes: u64,
}

/// A file and a directory of the host that nobody inside can open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Covers {
    /// The file.
    pub(crate) file: PathBuf,
    /// The directory.
    pub(crate) directory: PathBuf,
}

/// Whose programs a container sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// The host's, read-only.
    Host,
    /// Those of a named image.
    Image,
}

/// Why a plan makes no container.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ShapeError {
    /// Engines mount no overlay of ours.
    #[error("a container needs a layer that is a copy, not an overlay")]
    Overlay,
    /// The engine would read a part of the path as something else.
    #[error("`{}` has a character that container engines give a meaning", path.display())]
    Path {
        /// The path.
        path: PathBuf,
    },
    /// The plan names a part of the project that is not inside it.
    #[error("`{}` is not inside the project", path.display())]
    Outside {
        /// The path.
        path: PathBuf,
    },
}

/// Who runs inside, so that the layer can be written and nobody else's files.
///
/// Where users are shared with the host, root gives the layer away to an
/// ordinary user and everybody else stays who they are.
pub(crate) fn user_inside(ownership: Ownership, launcher: User) -> User {
    match (ownership, launcher.user) {
        (Ownership::Rootless, _) => User { user: 0, group: 0 },
        (Ownership::Remapped, _) | (Ownership::Shared, 0) => User {
            user: INSIDE_ID,
            group: INSIDE_ID,
        },
        (Ownership::Shared, _) => launcher,
    }
}

impl Shape<'_> {
    /// What the engine is asked to create.
    ///
    /// # Errors
    /// The plan holds what no container can have.
    pub(crate) fn body(&self) -> Result<ContainerCreateBody, ShapeError> {
        let mut entrypoint = self.carried.start.clone();
        entrypoint.extend(["worker", "container-init"].map(str::to_owned));
        Ok(ContainerCreateBody {
            image: Some(self.image.to_owned()),
            hostname: Some("sandbox".to_owned()),
            user: Some(format!("{}:{}", self.user.user, self.user.group)),
            working_dir: Some("/".to_owned()),
            entrypoint: Some(entrypoint),
            cmd: Some(Vec::new()),
            // Init needs none, and commands get the plan's.
            env: Some(vec!["PATH=/usr/bin:/bin".to_owned()]),
            labels: Some(self.labels.clone()),
            open_stdin: Some(false),
            tty: Some(false),
            network_disabled: Some(true),
            // Removing it must not wait for init to heed a signal.
            stop_timeout: Some(0),
            host_config: Some(self.host_config()?),
            ..ContainerCreateBody::default()
        })
    }

    fn host_config(&self) -> Result<HostConfig, ShapeError> {
        let limits = &self.plan.limits;
        let memory = Some(signed(limits.memory.0));
        Ok(HostConfig {
            readonly_rootfs: Some(true),
            network_mode: Some("none".to_owned()),
            // Its own, with `/dev/shm` from us: the engine's has no limit on files.
            ipc_mode: Some("none".to_owned()),
            cap_drop: Some(vec!["ALL".to_owned()]),
            privileged: Some(false),
            security_opt: Some(vec![
                "no-new-privileges".to_owned(),
                format!("seccomp={}", self.seccomp),
            ]),
            memory,
            // The same as memory: nothing may be swapped out beyond it.
            memory_swap: memory,
            nano_cpus: limits.cpu_milli.map(|milli| i64::from(milli) * 1_000_000),
            // Init counts too.
            pids_limit: Some(i64::from(limits.pids) + 1),
            // Podman's own are more than some machines allow.
            ulimits: Some(vec![
                ulimit("core", 0),
                ulimit("nofile", 16_384),
                ulimit("nproc", signed(self.most_processes)),
            ]),
            init: Some(false),

            // Nobody reads it, and it would fill the host's disk.
            log_config: Some(HostConfigLogConfig {
                typ: Some("none".to_owned()),
                config: None,
            }),
            mounts: Some(self.binds()?),
            tmpfs: Some(self.scratch()),
            ..HostConfig::default()
        })
    }

    fn mounts(&self) -> impl Iterator<Item = &Mount> {
        self.plan.mounts.iter().chain(&self.plan.late)
    }

    fn scratch(&self) -> HashMap<String, String> {
        let is_volume = |inside: &Path| self.spaces.iter().any(|space| space.inside == inside);
        let spaces = self.mounts().filter_map(|mount| match mount {
            Mount::Scratch {
                inside,
                size,
                inodes,
            } if !is_volume(inside) => Some((inside, size, inodes)),
            _ => None,
        });
        let options = |size: &ByteSize, inodes: &u64| {
            format!(
                "rw,exec,nosuid,nodev,size={},mode=1777,nr_inodes={inodes}",
                size.0
            )
        };
        spaces
            .map(|(inside, size, inodes)| (inside.display().to_string(), options(size, inodes)))
            .collect()
    }

    fn binds(&self) -> Result<Vec<EngineMount>, ShapeError> {
        let mut binds = Vec::new();
        for mount in self.mounts() {
            self.translate(mount, &mut binds)?;
        }
        for (host, inside) in &self.carried.files {
            binds.push(bind(host, inside, Access::Read)?);
        }
        for space in self.spaces {
            binds.push(EngineMount {
                typ: Some(MountType::VOLUME),
                source: Some(space.name.clone()),
                target: Some(plain(&space.inside)?),
                ..EngineMount::default()
            });
        }
        let inside = Path::new(CONTROL_FOLDER);
        debug_assert!(inside.starts_with(INSIDE));
        binds.push(bind(self.control, inside, Access::Read)?);
        Ok(binds)
    }

    fn translate(&self, mount: &Mount, binds: &mut Vec<EngineMount>) -> Result<(), ShapeError> {
        match mount {
            Mount::ReadOnly { host, inside } => binds.push(bind(host, inside, Access::Read)?),
            Mount::Writable { host, inside } => binds.push(bind(host, inside, Access::Write)?),
            Mount::Overlay { .. } => return Err(ShapeError::Overlay),
            Mount::Protect { inside } => {
                binds.push(bind(&self.in_tree(inside)?, inside, Access::Read)?);
            }
            Mount::Pin { inside } => {
                binds.push(bind(&self.in_tree(inside)?, inside, Access::Write)?);
            }
            Mount::Hide { inside, kind } => {
                let cover = match kind {
                    HiddenKind::File => &self.covers.file,
                    HiddenKind::Directory => &self.covers.directory,
                    HiddenKind::Unseen => {
                        let path = inside.clone();
                        return Err(ShapeError::Outside { path });
                    }
                };
                binds.push(bind(cover, inside, Access::Read)?);
            }
            Mount::OnlyWritable { inside, parts } => {
                let project = inside.display().to_string();
                for earlier in binds.iter_mut() {
                    if earlier.target.as_deref() == Some(project.as_str()) {
                        earlier.read_only = Some(true);
                    }
                }
                for part in parts {
                    binds.push(bind(&self.in_tree(part)?, part, Access::Write)?);
                }
            }
            Mount::File { inside, .. } => {
                // A named image knows its own users; names are never its own.
                let wanted = self.source == Source::Host || is_network_file(inside);
                if let Some(host) = self.files.get(inside).filter(|_| wanted) {
                    binds.push(bind(host, inside, Access::Read)?);
                }
            }
            // In the image, or made by the engine itself.
            Mount::Directory { .. }
            | Mount::Link { .. }
            | Mount::Scratch { .. }
            | Mount::Devices
            | Mount::Processes => {}
        }
        Ok(())
    }

    /// Where a path of the project is in the layer's tree.
    fn in_tree(&self, inside: &Path) -> Result<PathBuf, ShapeError> {
        let outside = || ShapeError::Outside {
            path: inside.to_owned(),
        };
        let found = self.mounts().find_map(|mount| match mount {
            Mount::Writable { host, inside: at } | Mount::ReadOnly { host, inside: at }
                if inside.starts_with(at) =>
            {
                Some(host.join(inside.strip_prefix(at).ok()?))
            }
            _ => None,
        });
        found.ok_or_else(outside)
    }
}

/// The text of a generated file, for a user that may have another number.
pub(crate) fn file_content(inside: &Path, content: &str, user: User) -> String {
    let User { user, group } = user;
    let line = match inside.to_str() {
        Some("/etc/passwd") => format!("fluffy:x:{user}:{group}:fluffy:{HOME}:/bin/sh\n"),
        Some("/etc/group") => format!("fluffy:x:{group}:\n"),
        _ => return content.to_owned(),
    };
    // The first line is the plan's own user.
    let others = content.split_once('\n').map_or("", |(_, rest)| rest);
    line + others
}

fn is_network_file(inside: &Path) -> bool {
    ["/etc/hosts", "/etc/hostname", "/etc/resolv.conf"]
        .iter()
        .any(|name| inside == Path::new(name))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

fn bind(host: &Path, inside: &Path, access: Access) -> Result<EngineMount, ShapeError> {
    Ok(EngineMount {
        typ: Some(MountType::BIND),
        source: Some(plain(host)?),
        target: Some(plain(inside)?),
        read_only: Some(access == Access::Read),
        bind_options: Some(MountBindOptions {
            propagation: Some(MountBindOptionsPropagationEnum::RPRIVATE),
            // What is mounted below would stay writable.
            non_recursive: Some(true),
            ..MountBindOptions::default()
        }),
        ..EngineMount::default()
    })
}

/// Podman reads mounts as a line of options; nothing may look like one.
fn plain(path: &Path) -> Result<String, ShapeError> {
    path.to_str()
        .filter(|text| !text.contains([',', ':', '"', '\\', '\n', '\r', '\0']))
        .map(str::to_owned)
        .ok_or_else(|| ShapeError::Path {
            path: path.to_owned(),
        })
}

fn ulimit(name: &str, most: i64) -> ResourcesUlimits {
    ResourcesUlimits {
        name: Some(name.to_owned()),
        soft: Some(most),
        hard: Some(most),
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
