//! From a template and a request to exactly what a sandbox is: a pure function.
//!
//! The launcher derives the plan itself; nobody hands it a mount table. Paths
//! are data: absolute, normalised, inside the roots the launcher was started
//! with, or refused. Nothing here touches the file system: what the host looks
//! like is in [`Host`]. Next: `sys` carries a plan out, `bwrap` and `seatbelt`
//! put it into other tools' words.

mod environment;
mod hidden;
mod plugin;

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use fluffy_base::ByteSize;
use fluffy_base::id::SandboxId;
use fluffy_contract::isolation::{LayerMount, SandboxSpec, Tier};
use serde::{Deserialize, Serialize};

use crate::guard::Guards;
use crate::template::{Lifetime, Network, Profile, Template};

pub(crate) use environment::forbidden;
pub use environment::proxy_variables;
pub(crate) use hidden::look;
pub use hidden::{MAX_HIDDEN, SettleError, refuse_links, settle_hidden};

/// The user that every command runs as, inside.
pub const INSIDE_ID: u32 = 1_000;
/// Where that user is at home.
pub const HOME: &str = "/home/fluffy";
/// Where the egress proxy listens, inside.
pub const PROXY_PORT: u16 = 3_128;

/// What the launcher was started with; a request cannot reach beyond it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The templates that may be named.
    pub templates: Vec<Template>,
    /// The projects that may be seen.
    pub projects: Vec<PathBuf>,
    /// Where layers live; seen only as part of a project.
    pub layers: PathBuf,
    /// Where the launcher keeps its records of what it made.
    pub state: PathBuf,
    /// Read-only directories of tools outside `/usr`.
    pub tools: Vec<PathBuf>,
    /// Where plugins are; only folders below it can be a plugin's.
    #[serde(default)]
    pub plugins: Option<PathBuf>,
    /// Which engine makes the namespaces.
    pub engine: Engine,
}

/// Who makes the namespaces of the process tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// The launcher itself.
    Native,
    /// `bwrap`, where only it may make user namespaces.
    Bwrap,
    /// Nobody: Landlock, seccomp and limits alone. Must be asked for.
    Reduced,
    /// A container engine, which has a launcher of its own.
    Container,
}

impl Engine {
    /// Whether its loopback is its own.
    pub(crate) fn has_network_namespace(self) -> bool {
        self != Self::Reduced
    }

    /// Whether all its processes end with their init.
    pub(crate) fn has_pid_namespace(self) -> bool {
        self != Self::Reduced
    }

    /// Whether processes are counted apart from the host's.
    pub(crate) fn has_user_namespace(self) -> bool {
        match self {
            Self::Native | Self::Bwrap => true,
            Self::Reduced | Self::Container => false,
        }
    }
}

/// What the host looks like, as far as a plan depends on it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Top-level directories with programs and libraries.
    pub system: Vec<PathBuf>,
    /// Top-level links into them (`/bin` to `usr/bin`).
    pub links: Vec<(PathBuf, PathBuf)>,
    /// Files and directories of `/etc` that are public and needed.
    pub etc: Vec<PathBuf>,
    /// The directories of the caller's `PATH`; only those of tools that the
    /// launcher was started with are passed on.
    pub path: Vec<PathBuf>,
}

impl Host {
    /// What every sandbox sees of it: programs, libraries, public settings.
    pub(crate) fn mounts(&self) -> Vec<Mount> {
        let paths = self.system.iter().chain(&self.etc);
        let binds = paths.map(|path| Mount::ReadOnly {
            host: path.clone(),
            inside: path.clone(),
        });
        let links = self.links.iter().map(|(inside, target)| Mount::Link {
            inside: inside.clone(),
            target: target.clone(),
        });
        binds.chain(links).collect()
    }
}

/// One thing to put into the sandbox's file system, in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "mount", rename_all = "snake_case")]
pub enum Mount {
    /// An empty directory of the read-only root.
    Directory {
        /// Where, inside.
        inside: PathBuf,
    },
    /// A host path, read-only.
    ReadOnly {
        /// Where it is.
        host: PathBuf,
        /// Where it is seen.
        inside: PathBuf,
    },
    /// A host path that may be written: a layer's tree, or a plugin's own.
    Writable {
        /// Where it is.
        host: PathBuf,
        /// Where it is seen.
        inside: PathBuf,
    },
    /// The project with the layer over it.
    Overlay {
        /// The project.
        lower: PathBuf,
        /// The layer's writes.
        upper: PathBuf,
        /// The kernel's scratch space.
        work: PathBuf,
        /// Where it is seen.
        inside: PathBuf,
    },
    /// Something already inside, made read-only where it is.
    Protect {
        /// What, inside. Left out where it does not exist.
        inside: PathBuf,
    },
    /// The inside of an overlay or tree, read-only but for these parts.
    OnlyWritable {
        /// The project, inside.
        inside: PathBuf,
        /// The parts, inside; each must exist.
        parts: Vec<PathBuf>,
    },
    /// A directory already inside, mounted where it is: what is a mount cannot
    /// be moved away. Left out where it does not exist.
    Pin {
        /// Which, inside.
        inside: PathBuf,
    },
    /// Something already inside that nobody may open. Left out where it does
    /// not exist.
    Hide {
        /// What, inside.
        inside: PathBuf,
        /// What is there.
        kind: HiddenKind,
    },
    /// A private file system in memory.
    Scratch {
        /// Where.
        inside: PathBuf,
        /// What it holds at most.
        size: ByteSize,
        /// How many files at most.
        inodes: u64,
    },
    /// A small read-only file.
    File {
        /// Where.
        inside: PathBuf,
        /// What it says.
        content: String,
    },
    /// A symbolic link.
    Link {
        /// Where.
        inside: PathBuf,
        /// What it points to.
        target: PathBuf,
    },
    /// A minimal `/dev` with its own terminals.
    Devices,
    /// `/proc` of the sandbox's own processes, with the host's parts masked.
    Processes,
}

impl Mount {
    /// Where it is seen, if that is one place of the plan's choosing.
    pub(crate) fn inside(&self) -> Option<&Path> {
        match self {
            Self::Directory { inside }
            | Self::ReadOnly { inside, .. }
            | Self::Writable { inside, .. }
            | Self::Overlay { inside, .. }
            | Self::Protect { inside }
            | Self::OnlyWritable { inside, .. }
            | Self::Pin { inside }
            | Self::Hide { inside, .. }
            | Self::Scratch { inside, .. }
            | Self::File { inside, .. }
            | Self::Link { inside, .. } => Some(inside),
            Self::Devices | Self::Processes => None,
        }
    }
}

/// What a hidden path is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HiddenKind {
    /// Nobody has looked yet; whoever mounts it does.
    Unseen,
    /// A file, of whatever kind.
    File,
    /// A directory.
    Directory,
}

/// What Landlock allows, as a second wall behind the mounts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reach {
    /// Below these: read and run.
    pub read: Vec<PathBuf>,
    /// Below these: also write.
    pub write: Vec<PathBuf>,
}

/// The numbers that hold for all processes of a sandbox together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Memory.
    pub memory: ByteSize,
    /// Thousandths of a processor.
    pub cpu_milli: Option<u32>,
    /// Processes and threads.
    pub pids: u32,
    /// The same for its user, its init too, where it has a user of its own.
    pub user_pids: u32,
    /// When its time is over.
    pub time: Lifetime,
    /// What it may write to its layer.
    pub disk: ByteSize,
    /// The largest file.
    pub file_size: ByteSize,
}

/// Everything a sandbox is; immutable after creation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Its id.
    pub sandbox: SandboxId,
    /// The template's name.
    pub template: String,
    /// Who makes the namespaces.
    pub engine: Engine,
    /// What is mounted, in order.
    pub mounts: Vec<Mount>,
    /// Mounts that wait until a layer is attached (warm sandboxes).
    pub late: Vec<Mount>,
    /// The whole environment of its processes.
    pub environment: BTreeMap<String, String>,
    /// Where commands start.
    pub directory: PathBuf,
    /// The numbers.
    pub limits: Limits,
    /// What it can reach.
    pub network: Network,
    /// Which system calls it may make.
    pub seccomp: Profile,
    /// The second wall.
    pub reach: Reach,
    /// The layer's directory whose size is watched.
    pub watched: Option<PathBuf>,
    /// A directory of the host that stands for `/tmp` and home, where nothing
    /// can be mounted; made and removed with the sandbox.
    pub scratch: Option<PathBuf>,
    /// The guards a control leaves out; never part of a message.
    #[serde(skip)]
    pub without: Guards,
}

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Nobody defined it.
    #[error("there is no template `{name}`")]
    UnknownTemplate {
        /// What was asked for.
        name: String,
        /// What there is.
        known: Vec<String>,
    },
    /// Another tier has to carry it out.
    #[error("template `{template}` needs tier `{needed}`")]
    Tier {
        /// The template.
        template: String,
        /// The tier it needs.
        needed: Tier,
    },
    /// A path that means something else in another place.
    #[error("`{}` is not an absolute path without `.` and `..`", path.display())]
    NotNormal {
        /// The path.
        path: PathBuf,
    },
    /// A path outside what the launcher was started with.
    #[error("`{}` is outside the project, the layers and the tools", path.display())]
    Outside {
        /// The path.
        path: PathBuf,
    },
    /// A path that could lead anywhere.
    #[error("`{}` leads through a link, or cannot be looked at", path.display())]
    Link {
        /// The path.
        path: PathBuf,
    },
    /// A project that would hide or show too much.
    #[error("`{}` cannot be a project: {reason}", path.display())]
    Project {
        /// The path.
        path: PathBuf,
        /// Why.
        reason: &'static str,
    },
    /// A variable that changes how programs are loaded, or is no variable.
    #[error("the variable `{name}` may not be given")]
    Variable {
        /// Its name.
        name: String,
    },
    /// More hidden paths than a sandbox can have.
    #[error("{found} paths of the project are to be hidden, and {MAX_HIDDEN} are allowed")]
    TooManyHidden {
        /// How many there are.
        found: usize,
    },
    /// An engine that mounts nothing can cover nothing.
    #[error("`{}` is to be hidden, and reduced isolation cannot hide a path", path.display())]
    CannotHide {
        /// The first of them.
        path: PathBuf,
    },
    /// A layer of a kind that this engine cannot mount.
    #[error("this engine needs a layer that is a copy of the project")]
    NeedsCopy,
    /// A longer life than the template allows.
    #[error("the time is longer than template `{template}` allows")]
    Time {
        /// The template.
        template: String,
    },
    /// A limit above the template's.
    #[error("more {what} than template `{template}` allows")]
    Limit {
        /// Of what.
        what: &'static str,
        /// The template.
        template: String,
    },
}

impl Plan {
    /// What a sandbox for this request is, or why it is refused.
    ///
    /// # Errors
    /// When the request names what the settings do not hold.
    pub fn derive(
        sandbox: SandboxId,
        spec: &SandboxSpec,
        settings: &Settings,
        host: &Host,
    ) -> Result<Self, PlanError> {
        let template = find_template(spec, settings)?;
        check_paths(spec, settings)?;
        plugin::check(spec, settings)?;
        hidden::check(spec, settings.engine)?;
        let mut mounts = system_mounts(host, template);
        for path in settings.tools.iter().chain(&spec.read) {
            mounts.push(Mount::ReadOnly {
                host: path.clone(),
                inside: path.clone(),
            });
        }
        mounts.extend(plugin::mounts(spec));
        let late = project_mounts(spec);
        if matches!(spec.layer, Some(LayerMount::Overlay { .. }))
            && settings.engine != Engine::Native
        {
            return Err(PlanError::NeedsCopy);
        }
        let plan = Self {
            sandbox,
            template: template.name.clone(),
            engine: settings.engine,
            environment: environment::of(spec, settings, host, template.network)?,
            directory: spec.project.clone().unwrap_or_else(|| HOME.into()),
            limits: limits(spec, template)?,
            network: template.network,
            seccomp: template.seccomp,
            reach: reach(spec, settings, host),
            watched: match &spec.layer {
                Some(LayerMount::Overlay { upper, .. }) => Some(upper.clone()),
                Some(LayerMount::Tree { tree }) => Some(tree.clone()),
                None => plugin::data(spec),
            },
            mounts,
            late,
            scratch: None,
            without: Guards::NONE,
        };
        Ok(match settings.engine {
            Engine::Reduced => plan.without_namespaces(spec, settings, host),
            Engine::Native | Engine::Bwrap | Engine::Container => plan,
        })
    }

    /// The same without mounts: the host's own paths, fewer of them, and a
    /// directory of its own in place of the private ones.
    fn without_namespaces(mut self, spec: &SandboxSpec, settings: &Settings, host: &Host) -> Self {
        let scratch = settings
            .state
            .join("scratch")
            .join(self.sandbox.to_string());
        if let Some(text) = scratch.to_str() {
            for name in ["HOME", "TMPDIR"] {
                self.environment.insert(name.to_owned(), text.to_owned());
            }
        }
        let mut read = host.system.clone();
        read.extend(
            host.etc
                .iter()
                .chain(&settings.tools)
                .chain(&spec.read)
                .cloned(),
        );
        let mut write: Vec<PathBuf> = ["null", "zero", "full", "random", "urandom", "tty"]
            .map(|name| Path::new("/dev").join(name))
            .to_vec();
        match &spec.layer {
            Some(layer) => {
                let tree = layer_paths(layer).into_iter().next();
                self.directory = tree.clone().unwrap_or_else(|| scratch.clone());
                write.extend(tree);
            }
            None => {
                read.extend(spec.project.clone());
                self.directory = spec.project.clone().unwrap_or_else(|| scratch.clone());
            }
        }
        write.push(scratch.clone());
        read.extend(plugin::read(spec));
        write.extend(plugin::write(spec));
        self.reach = Reach { read, write };
        self.mounts = Vec::new();
        self.late = Vec::new();
        self.scratch = Some(scratch);
        self
    }
}

fn find_template<'a>(
    spec: &SandboxSpec,
    settings: &'a Settings,
) -> Result<&'a Template, PlanError> {
    let template = settings
        .templates
        .iter()
        .find(|template| template.name == spec.template)
        .ok_or_else(|| PlanError::UnknownTemplate {
            name: spec.template.clone(),
            known: settings.templates.iter().map(|t| t.name.clone()).collect(),
        })?;
    let needed = spec
        .tier
        .unwrap_or(template.least_tier)
        .max(template.least_tier);
    let given = match settings.engine {
        Engine::Native | Engine::Bwrap | Engine::Reduced => Tier::Process,
        Engine::Container => Tier::Container,
    };
    if needed > given {
        return Err(PlanError::Tier {
            template: template.name.clone(),
            needed,
        });
    }
    Ok(template)
}

fn check_paths(spec: &SandboxSpec, settings: &Settings) -> Result<(), PlanError> {
    for path in &spec.read {
        normal(path)?;
        let inside = |root: &PathBuf| path.starts_with(root);
        if !settings.tools.iter().any(inside) && !settings.projects.iter().any(inside) {
            return Err(PlanError::Outside { path: path.clone() });
        }
    }
    let Some(project) = &spec.project else {
        // Without a project there is nothing that a layer could lie over.
        return match spec
            .layer
            .as_ref()
            .map(layer_paths)
            .and_then(|p| p.into_iter().next())
        {
            Some(path) => Err(PlanError::Outside { path }),
            None => Ok(()),
        };
    };
    normal(project)?;
    if !settings.projects.contains(project) {
        return Err(PlanError::Outside {
            path: project.clone(),
        });
    }
    check_project(project, settings)?;
    for path in spec.layer.iter().flat_map(layer_paths) {
        normal(&path)?;
        if !path.starts_with(&settings.layers) || path == settings.layers {
            return Err(PlanError::Outside { path });
        }
    }
    for path in spec.writable.iter().chain(&spec.protected) {
        normal(path)?;
        if !path.starts_with(project) {
            return Err(PlanError::Outside { path: path.clone() });
        }
    }
    Ok(())
}

fn layer_paths(layer: &LayerMount) -> Vec<PathBuf> {
    match layer {
        LayerMount::Overlay { upper, work } => vec![upper.clone(), work.clone()],
        LayerMount::Tree { tree } => vec![tree.clone()],
    }
}

/// Directories that a project may not be, or be above of.
const NEVER_PROJECTS: &[&str] = &[
    "/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr",
];

fn check_project(project: &Path, settings: &Settings) -> Result<(), PlanError> {
    let refuse = |reason| {
        Err(PlanError::Project {
            path: project.to_owned(),
            reason,
        })
    };
    if project == Path::new("/") {
        return refuse("it is the whole machine; start in a project's own directory");
    }
    if NEVER_PROJECTS
        .iter()
        .any(|system| project.starts_with(system))
    {
        return refuse("it belongs to the system; work in a directory of your own");
    }
    if settings.state.starts_with(project) || settings.layers.starts_with(project) {
        return refuse("fluffy's own state is inside it; start in a directory below");
    }
    Ok(())
}

/// Refuses what `..`, `.` or a relative path could make of a check.
fn normal(path: &Path) -> Result<(), PlanError> {
    match is_normal(path) {
        true => Ok(()),
        false => Err(PlanError::NotNormal {
            path: path.to_owned(),
        }),
    }
}

/// Whether a path means just what it says: absolute, without `.` and `..`.
pub(crate) fn is_normal(path: &Path) -> bool {
    let clean = path.is_absolute()
        && path
            .components()
            .all(|part| matches!(part, Component::RootDir | Component::Normal(_)))
        && !path.as_os_str().as_encoded_bytes().contains(&0);
    // `components` hides `/./` and `//`; the text must be what it means.
    let rebuilt: PathBuf = path.components().collect();
    clean && rebuilt.as_os_str() == path.as_os_str()
}

fn system_mounts(host: &Host, template: &Template) -> Vec<Mount> {
    let mut mounts = host.mounts();
    mounts.extend(
        etc_files(template.network).map(|(inside, content)| Mount::File {
            inside: inside.into(),
            content,
        }),
    );
    mounts.push(Mount::Devices);
    mounts.push(Mount::Processes);
    let small = ByteSize(template.scratch.0.min(256 << 20));
    for (inside, size) in [
        ("/tmp", template.scratch),
        ("/var/tmp", small),
        ("/run", ByteSize(16 << 20)),
        (HOME, template.scratch),
        ("/dev/shm", small),
    ] {
        mounts.push(Mount::Scratch {
            inside: inside.into(),
            size,
            // A file of a tmpfs costs about a kilobyte of the kernel's memory.
            inodes: (size.0 / 4096).clamp(1_024, 200_000),
        });
    }
    mounts
}

fn etc_files(network: Network) -> impl Iterator<Item = (&'static str, String)> {
    let id = INSIDE_ID;
    let hosts = match network {
        Network::None => String::new(),
        Network::Loopback | Network::Restricted => {
            "127.0.0.1 localhost sandbox\n::1 localhost\n".to_owned()
        }
    };
    [
        (
            "/etc/passwd",
            format!(
                "fluffy:x:{id}:{id}:fluffy:{HOME}:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
            ),
        ),
        ("/etc/group", format!("fluffy:x:{id}:\nnogroup:x:65534:\n")),
        ("/etc/hosts", hosts),
        ("/etc/hostname", "sandbox\n".to_owned()),
        // Names are the proxy's business: no resolver is to be reached.
        ("/etc/resolv.conf", String::new()),
        (
            "/etc/nsswitch.conf",
            "passwd: files\ngroup: files\nhosts: files\nservices: files\nprotocols: files\n"
                .to_owned(),
        ),
    ]
    .into_iter()
}

fn project_mounts(spec: &SandboxSpec) -> Vec<Mount> {
    let Some(project) = &spec.project else {
        return hidden::covers(spec).collect();
    };
    let mut mounts = vec![match &spec.layer {
        None => Mount::ReadOnly {
            host: project.clone(),
            inside: project.clone(),
        },
        Some(LayerMount::Overlay { upper, work }) => Mount::Overlay {
            lower: project.clone(),
            upper: upper.clone(),
            work: work.clone(),
            inside: project.clone(),
        },
        Some(LayerMount::Tree { tree }) => Mount::Writable {
            host: tree.clone(),
            inside: project.clone(),
        },
    }];
    if spec.layer.is_some() && !spec.writable.is_empty() {
        mounts.push(Mount::OnlyWritable {
            inside: project.clone(),
            parts: spec.writable.clone(),
        });
    }
    mounts.extend(hidden::pins(spec));
    mounts.extend(spec.protected.iter().map(|path| Mount::Protect {
        inside: path.clone(),
    }));
    mounts.extend(hidden::covers(spec));
    mounts
}

fn limits(spec: &SandboxSpec, template: &Template) -> Result<Limits, PlanError> {
    let time = match (spec.time, template.time) {
        (None, time) => time,
        (Some(asked), Lifetime::Total(most)) if asked.millis > most.millis => {
            return Err(PlanError::Time {
                template: template.name.clone(),
            });
        }
        (Some(asked), Lifetime::Total(_) | Lifetime::Owner | Lifetime::Silent(_)) => {
            Lifetime::Total(asked)
        }
    };
    let less = &spec.limits;
    let (memory, pids) = (less.memory, less.pids);
    let pids = within(pids, template.pids, "processes", template)?;
    Ok(Limits {
        memory: within(memory, template.memory, "memory", template)?,
        cpu_milli: match (less.cpu_milli, template.cpu_milli) {
            (asked, Some(most)) => Some(within(asked, most, "processor time", template)?),
            (asked, None) => asked,
        },
        pids,
        user_pids: pids.saturating_add(1),
        time,
        disk: template.disk,
        file_size: template.file_size,
    })
}

/// What was asked for, if it is no more than there is.
fn within<T: PartialOrd>(
    asked: Option<T>,
    most: T,
    what: &'static str,
    template: &Template,
) -> Result<T, PlanError> {
    match asked {
        Some(asked) if asked > most => Err(PlanError::Limit {
            what,
            template: template.name.clone(),
        }),
        Some(asked) => Ok(asked),
        None => Ok(most),
    }
}

fn reach(spec: &SandboxSpec, settings: &Settings, host: &Host) -> Reach {
    let mut read: Vec<PathBuf> = host.system.clone();
    read.extend(["/etc", "/proc", "/dev"].map(PathBuf::from));
    read.extend(settings.tools.iter().chain(&spec.read).cloned());
    let mut write: Vec<PathBuf> = ["/tmp", "/var/tmp", "/run", HOME, "/dev"]
        .map(PathBuf::from)
        .to_vec();
    if let Some(project) = &spec.project {
        match (&spec.layer, spec.writable.is_empty()) {
            (Some(_), true) => write.push(project.clone()),
            (Some(_), false) => {
                read.push(project.clone());
                write.extend(spec.writable.iter().cloned());
            }
            (None, _) => read.push(project.clone()),
        }
    }
    read.extend(plugin::read(spec));
    write.extend(plugin::write(spec));
    Reach { read, write }
}

#[cfg(test)]
pub(crate) mod sample;
#[cfg(test)]
mod tests;
