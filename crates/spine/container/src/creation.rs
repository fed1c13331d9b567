//! Makes one container and waits until its init has the sandbox ready.
//!
//! What a failed attempt left is removed before the failure is told. Nothing
//! the sandbox wrote earlier decides what is mounted: a link in the layer where
//! a mount would go is refused. Next: `sandbox` runs what is made here.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fluffy_base::id::SandboxId;
use fluffy_contract::isolation::SandboxSpec;
use fluffy_sandbox::failure::{refused, system};
use fluffy_sandbox::launcher::ownership::remove_folder;
use fluffy_sandbox::owner::give_away;
use fluffy_sandbox::plan::{Host, Mount, Plan, Reach, Settings, refuse_links};
use fluffy_sandbox::protocol::{self, Failure, FailureKind, Report};
use futures_util::future::{join_all, try_join_all};
use rustix::fs::{Mode, OFlags};
use rustix::process::Pid;
use tokio::sync::mpsc;

use crate::carry::Carried;
use crate::engine::{Engine, EngineError, Ownership};
use crate::images::{Images, Readiness};
use crate::shape::{self, Covers, SANDBOX_LABEL, Shape, Source, User};
use crate::spaces;
use crate::tree::settled;

/// How long a container may take to become ready.
const READY_LIMIT: Duration = Duration::from_secs(60);

/// How often a container that is not ready is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The control socket's name in its folder.
pub(crate) const SOCKET: &str = "socket";

/// What all sandboxes of a launcher share.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) settings: Settings,
    pub(crate) host: Host,
    pub(crate) engine: Engine,
    pub(crate) images: Images,
    pub(crate) carried: Carried,
    /// Who the launcher is on the host.
    pub(crate) launcher: User,
    /// The system-call filter in the engine's words.
    pub(crate) filter: String,
    /// The launcher's own folder, removed with it.
    pub(crate) folder: PathBuf,
    /// The labels of everything that is made.
    pub(crate) labels: HashMap<String, String>,
    /// How many processes one user of this host may have.
    pub(crate) most_processes: u64,
}

/// A container whose init is ready.
#[derive(Debug)]
pub(crate) struct Made {
    /// The engine's id.
    pub(crate) container: String,
    /// What the sandbox is.
    pub(crate) plan: Plan,
    /// The socket to its init.
    pub(crate) control: OwnedFd,
    /// What its init says.
    pub(crate) reports: mpsc::Receiver<Heard>,
    /// Its first process, in the host's numbers.
    pub(crate) process: Pid,
}

/// What came from an init.
#[derive(Debug)]
pub(crate) enum Heard {
    /// A report, with descriptors.
    Report(Report, Vec<OwnedFd>),
    /// It is gone.
    Gone,
}

/// Why there is no container.
#[derive(Debug)]
pub(crate) enum NotMade {
    /// Its image is being fetched.
    Pending(String),
    /// It cannot be made.
    Failed(Failure),
}

impl From<Failure> for NotMade {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<EngineError> for NotMade {
    fn from(error: EngineError) -> Self {
        Self::Failed(error.failure())
    }
}

impl Site {
    /// Makes a sandbox, or leaves nothing behind.
    pub(crate) async fn make(
        &self,
        sandbox: SandboxId,
        spec: &SandboxSpec,
    ) -> Result<Made, NotMade> {
        // Somebody may tidy the engine's images up: then it is made or fetched
        // anew, once.
        for _ in 0..2 {
            if let Some(made) = self.make_once(sandbox, spec).await? {
                return Ok(made);
            }
        }
        let error = io::Error::other("its image is removed as fast as it is made");
        Err(system("make the sandbox", &error).into())
    }

    /// The same, or nothing if its image is gone.
    async fn make_once(
        &self,
        sandbox: SandboxId,
        spec: &SandboxSpec,
    ) -> Result<Option<Made>, NotMade> {
        let (image, source) = match &spec.image {
            None => (self.images.host_image().await?, Source::Host),
            Some(name) => match self.images.named_image(name).await? {
                Readiness::Ready => (name.clone(), Source::Image),
                Readiness::Pending(progress) => return Err(NotMade::Pending(progress)),
            },
        };
        let plan = self.plan(sandbox, spec, source)?;
        let user = shape::user_inside(self.engine.ownership(), self.launcher);
        self.hand_over(&plan, user).await?;
        let made = self.attempt(plan, user, &image, source).await;
        if !matches!(made, Ok(Some(_))) {
            self.remove_rest(sandbox).await;
        }
        if matches!(made, Ok(None)) {
            self.images.forget(&image);
        }
        made
    }

    /// Removes what a sandbox has beside its container; what cannot be removed
    /// now is swept later, by its labels.
    pub(crate) async fn remove_rest(&self, sandbox: SandboxId) {
        let _ = remove_folder(&self.sandbox_folder(sandbox));
        let names = spaces::names(sandbox, self.engine.brand());
        let removals = names.iter().map(|name| self.engine.remove_volume(name));
        join_all(removals).await;
    }

    fn sandbox_folder(&self, sandbox: SandboxId) -> PathBuf {
        self.folder.join(format!("{sandbox}.d"))
    }

    fn plan(
        &self,
        sandbox: SandboxId,
        spec: &SandboxSpec,
        source: Source,
    ) -> Result<Plan, Failure> {
        let image_host = Host {
            path: self.host.path.clone(),
            ..Host::default()
        };
        let host = match source {
            Source::Host => &self.host,
            Source::Image => &image_host,
        };
        let mut plan =
            Plan::derive(sandbox, spec, &self.settings, host).map_err(|error| error.failure())?;
        refuse_links(spec).map_err(|error| error.failure())?;
        if source == Source::Image {
            // Its root is read-only and its own; the host is not in it.
            plan.reach = Reach {
                read: vec![PathBuf::from("/")],
                ..plan.reach
            };
        }
        plan.late = settled(plan.late)?;
        Ok(plan)
    }

    /// Makes the layer, or a plugin's own folders, writable for the user inside.
    async fn hand_over(&self, plan: &Plan, user: User) -> Result<(), Failure> {
        let writable = plan.mounts.iter().filter_map(|mount| match mount {
            Mount::Writable { host, .. } => Some(host.clone()),
            _ => None,
        });
        let trees: Vec<PathBuf> = plan.watched.clone().into_iter().chain(writable).collect();
        if trees.is_empty() {
            return Ok(());
        }
        if self.engine.ownership() == Ownership::Remapped {
            return Err(Failure {
                kind: FailureKind::Unavailable,
                what: "the container cannot write the layer".to_owned(),
                why: "the engine maps all users to others (`userns-remap`)".to_owned(),
                fix: Some(
                    "use rootless Podman, or an engine without `userns-remap`: \
                     set DOCKER_HOST to its socket"
                        .to_owned(),
                ),
            });
        }
        if self.engine.ownership() != Ownership::Shared || self.launcher == user {
            return Ok(());
        }
        let give = move || {
            let mut trees = trees.iter();
            trees.try_for_each(|tree| give_away(tree, user.user, user.group))
        };
        let given = tokio::task::spawn_blocking(give).await;
        given
            .map_err(io::Error::other)
            .flatten()
            .map_err(|error| system("hand the layer to the container's user", &error))
    }

    async fn attempt(
        &self,
        plan: Plan,
        user: User,
        image: &str,
        source: Source,
    ) -> Result<Option<Made>, NotMade> {
        let folder = self.sandbox_folder(plan.sandbox);
        let prepare = |error: io::Error| system("prepare the container's folder", &error);
        let files = write_files(&folder, &plan, user).map_err(prepare)?;
        let covers = write_covers(&folder).map_err(prepare)?;
        let control = folder.join("control");
        let listener = listen(&control).map_err(prepare)?;
        let mut labels = self.labels.clone();
        labels.insert(SANDBOX_LABEL.to_owned(), plan.sandbox.to_string());
        let spaces = spaces::of_plan(&plan, self.engine.brand());
        let requests = spaces.iter().map(|space| space.request(&labels));
        try_join_all(requests.map(|request| self.engine.create_volume(request))).await?;
        let shape = Shape {
            plan: &plan,
            image,
            source,
            carried: &self.carried,
            user,
            control: &control,
            files: &files,
            covers: &covers,
            spaces: &spaces,
            seccomp: self.filter.clone(),
            labels,
            most_processes: self.most_processes,
        };
        let body = shape
            .body()
            .map_err(|error| refused("the sandbox", &error.to_string()))?;
        let name = format!("fluffy-{}", plan.sandbox);
        let container = match self.engine.create(&name, body).await {
            Ok(container) => container,
            Err(error) if error.is_missing() => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let started = self.start(&container, plan, &listener, &control).await;
        if started.is_err() {
            // What cannot be removed now is swept later, by its label.
            let _ = self.engine.remove(&container).await;
        }
        started.map(Some)
    }

    async fn start(
        &self,
        container: &str,
        plan: Plan,
        listener: &tokio::net::UnixListener,
        control: &Path,
    ) -> Result<Made, NotMade> {
        self.engine.start(container).await?;
        let stream = self.await_init(container, listener).await?;
        let hear = |error: io::Error| system("reach the container's init", &error);
        let process = stream.peer_cred().map_err(hear)?.pid();
        let process = process.and_then(Pid::from_raw);
        let process = process.ok_or_else(|| hear(io::ErrorKind::NotConnected.into()))?;
        let stream = stream.into_std().map_err(hear)?;
        stream.set_nonblocking(false).map_err(hear)?;
        let socket = OwnedFd::from(stream);
        // From here on there is nothing in the folder to connect to.
        fs::remove_file(control.join(SOCKET)).map_err(hear)?;
        protocol::send(&socket, &for_init(&plan), &[]).map_err(hear)?;
        let mut reports = read_reports(&socket).map_err(hear)?;
        let first = tokio::time::timeout(READY_LIMIT, reports.recv()).await;
        match first {
            Ok(Some(Heard::Report(Report::Ready, _))) => Ok(Made {
                container: container.to_owned(),
                plan,
                control: socket,
                reports,
                process,
            }),
            Ok(Some(Heard::Report(Report::Failed { failure }, _))) => Err(failure.into()),
            _ => {
                let error = io::Error::other("its init ended before it was ready");
                Err(system("make the sandbox", &error).into())
            }
        }
    }

    /// Waits until init connects; a container that has ended never will.
    async fn await_init(
        &self,
        container: &str,
        listener: &tokio::net::UnixListener,
    ) -> Result<tokio::net::UnixStream, NotMade> {
        let deadline = tokio::time::Instant::now() + READY_LIMIT;
        let failed = |why: &str| Failure {
            fix: selinux_fix(),
            ..system("start our init in the container", &io::Error::other(why))
        };
        loop {
            match tokio::time::timeout(LOOK_EVERY, listener.accept()).await {
                Ok(Ok((stream, _))) => return Ok(stream),
                Ok(Err(error)) => return Err(failed(&error.to_string()).into()),
                Err(_) if tokio::time::Instant::now() >= deadline => {
                    return Err(failed("it did not connect in time").into());
                }
                Err(_) => {}
            }
            if self.engine.inspect(container).await?.process.is_none() {
                return Err(failed("the container ended at once").into());
            }
        }
    }
}

/// What init must know: not the mounts, which are made already.
fn for_init(plan: &Plan) -> Plan {
    Plan {
        mounts: Vec::new(),
        late: Vec::new(),
        ..plan.clone()
    }
}

/// Writes the plan's small files; where each is to be seen.
fn write_files(folder: &Path, plan: &Plan, user: User) -> io::Result<HashMap<PathBuf, PathBuf>> {
    make_folder(folder, 0o700)?;
    let mut written = HashMap::new();
    for mount in &plan.mounts {
        if let Mount::File { inside, content } = mount {
            let file = folder.join(format!("file-{}", written.len()));
            fs::write(&file, shape::file_content(inside, content, user))?;
            fs::set_permissions(&file, fs::Permissions::from_mode(0o444))?;
            written.insert(inside.clone(), file);
        }
    }
    Ok(written)
}

/// Makes what hidden paths are covered with: no mode, so that nobody without
/// capabilities opens it, whoever owns it.
fn write_covers(folder: &Path) -> io::Result<Covers> {
    let covers = Covers {
        file: folder.join("hidden-file"),
        directory: folder.join("hidden-directory"),
    };
    fs::write(&covers.file, "")?;
    fs::set_permissions(&covers.file, fs::Permissions::from_mode(0o000))?;
    make_folder(&covers.directory, 0o000)?;
    Ok(covers)
}

fn make_folder(folder: &Path, mode: u32) -> io::Result<()> {
    fs::DirBuilder::new().mode(mode).create(folder)?;
    fs::set_permissions(folder, fs::Permissions::from_mode(mode))
}

/// Listens in a folder of its own, however long its path is.
fn listen(folder: &Path) -> io::Result<tokio::net::UnixListener> {
    make_folder(folder, 0o755)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(folder, flags, Mode::empty())?;
    let number = std::os::fd::AsRawFd::as_raw_fd(&opened.as_fd());
    let socket = PathBuf::from(format!("/proc/self/fd/{number}/{SOCKET}"));
    let listener = UnixListener::bind(&socket)?;
    // The folder above is private; inside, another user has to connect.
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o777))?;
    listener.set_nonblocking(true)?;
    tokio::net::UnixListener::from_std(listener)
}

/// Reads on a thread of its own: an init that hangs stops nobody else.
fn read_reports(socket: &OwnedFd) -> io::Result<mpsc::Receiver<Heard>> {
    let (sender, reports) = mpsc::channel(64);
    let socket = socket.try_clone()?;
    std::thread::Builder::new()
        .name("init".to_owned())
        .spawn(move || {
            while let Ok(Some((report, descriptors))) = protocol::receive::<Report>(&socket) {
                let heard = Heard::Report(report, descriptors);
                if sender.blocking_send(heard).is_err() {
                    return;
                }
            }
            let _ = sender.blocking_send(Heard::Gone);
        })?;
    Ok(reports)
}

/// Where SELinux is in force, containers may not read what is bound into them.
fn selinux_fix() -> Option<String> {
    let enforced = fs::read_to_string("/sys/fs/selinux/enforce").is_ok_and(|text| text == "1");
    enforced.then(|| {
        "SELinux keeps containers from the host's files: use tier `process`, or set          `label = false` under `[containers]` in containers.conf (Podman)"
            .to_owned()
    })
}
