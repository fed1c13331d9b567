//! The ground of one attack: a project, and canaries all around it.
//!
//! Lives on the host. Every canary has its own random secret, and `alarms`
//! looks at all of them whatever the attack was after. Must never hand a
//! secret to a [`Stage`]. Next: `listen` for sockets, `tree` for files.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::alarm::Alarm;
use crate::attack::Attack;
use crate::listen::{Ears, Heard};
use crate::outcome::Outcome;
use crate::stage::{Limits, SECRET_PREFIX, Stage, Visit};
use crate::survivor;
use crate::sys::keyring;
use crate::sys::memory::{PAGE, Segment};
use crate::tree::{Fingerprint, Snapshot};

/// The project and the canaries of one attack; gone when dropped.
#[derive(Debug)]
pub struct Ground {
    stage: Stage,
    environment: Vec<(String, String)>,
    secrets: Vec<Secret>,
    sibling_secret: String,
    guarded: Vec<(&'static str, Fingerprint)>,
    surroundings: Snapshot,
    descriptor: File,
    outside: File,
    victim: Child,
    ears: Ears,
    _segment: Option<Segment>,
    _temporary: Vec<tempfile::NamedTempFile>,
    // Last, so that everything in it is closed before it is removed.
    folder: TempDir,
}

#[derive(Debug)]
struct Secret {
    kept: &'static str,
    text: String,
}

impl Ground {
    /// Lays out everything in a new folder below `base`.
    ///
    /// `base` must be a place that a subject would show if it showed the
    /// host's files, so not the host's `/tmp`.
    ///
    /// # Errors
    /// When a canary cannot be made; an attack without canaries proves nothing.
    pub fn lay(base: &Path, attack: &Attack, limits: Limits) -> Result<Self, LayGroundError> {
        let lay = |step| move |source| LayGroundError::Make { step, source };
        let nonce = random_text(8).map_err(lay("a random name"))?;
        let folder = tempfile::Builder::new()
            .prefix("attack-")
            .tempdir_in(base)
            .map_err(lay("a folder"))?;
        let root = folder.path().canonicalize().map_err(lay("a folder"))?;
        let mut secrets = Vec::new();
        lay_project(&root.join("project")).map_err(lay("the project"))?;
        lay_outside(&root, &mut secrets).map_err(lay("the files outside"))?;
        let (temporary, shared) = lay_shared(&mut secrets).map_err(lay("the shared files"))?;
        let ears = Ears::open(&root, &nonce).map_err(lay("the sockets"))?;
        let descriptor = keep_in_file(&root, &mut secrets).map_err(lay("a descriptor"))?;
        let outside = File::open(root.join("outside")).map_err(lay("a descriptor"))?;
        let victim = start_victim(&descriptor, &mut secrets).map_err(lay("a process"))?;
        let segment = lay_segment(&mut secrets).map_err(lay("a segment"))?;
        let key = lay_key(&nonce, &mut secrets).map_err(lay("a key"))?;
        let environment = environment(&root, &mut secrets).map_err(lay("an environment"))?;
        let sibling_secret = secret("a sandbox beside", &mut secrets).map_err(lay("a secret"))?;
        let project = root.join("project");
        let guarded = attack
            .guarded
            .iter()
            .map(|&path| Ok((path, Fingerprint::of(&project.join(path))?)))
            .collect::<io::Result<_>>()
            .map_err(lay("a look at the project"))?;
        let surroundings = surroundings(&root).map_err(lay("a look around"))?;
        let victim_number = i32::try_from(victim.id()).unwrap_or_default();
        let stage = Stage {
            nonce,
            visit: Visit::First,
            limits,
            project,
            outside: root.join("outside"),
            lookalike: root.join("project2"),
            home: root.join("home"),
            temporary: temporary.path().to_owned(),
            shared_memory: shared.path().to_owned(),
            victim: victim_number,
            descriptor: descriptor.as_raw_fd(),
            folder: outside.as_raw_fd(),
            address: own_address(),
            tcp: ears.tcp_port(),
            tcp6: ears.tcp6_port(),
            udp: ears.udp_port(),
            permitted: ears.permitted_port(),
            abstract_name: ears.abstract_name().to_owned(),
            segment: segment.as_ref().map(Segment::id),
            key,
            secret: None,
        };
        Ok(Self {
            stage,
            environment,
            secrets,
            sibling_secret,
            guarded,
            surroundings,
            descriptor,
            outside,
            victim,
            ears,
            _segment: segment,
            _temporary: vec![temporary, shared],
            folder,
        })
    }

    /// What an attempt is told, for this visit.
    #[must_use]
    pub fn stage(&self, visit: Visit) -> Stage {
        let secret = (visit == Visit::Sibling).then(|| self.sibling_secret.clone());
        Stage {
            visit,
            secret,
            ..self.stage.clone()
        }
    }

    /// The project on the host.
    #[must_use]
    pub fn project(&self) -> &Path {
        &self.stage.project
    }

    /// The environment of whoever starts the sandbox.
    #[must_use]
    pub fn environment(&self) -> &[(String, String)] {
        &self.environment
    }

    /// What whoever starts the sandbox has open: a file and a folder.
    #[must_use]
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.descriptor.as_fd(), self.outside.as_fd()]
    }

    /// Whether the nonce has arrived at the permitted port.
    pub(crate) fn hears_on_permitted_port(&self) -> bool {
        self.ears
            .permitted_text()
            .is_some_and(|text| contains(&text, self.stage.nonce.as_bytes()))
    }

    /// Whether the victim shows that something was done to it; at once, unless
    /// the attempt says that it was: a process takes a moment to die.
    fn is_victim_harmed(&mut self, said: Option<&Outcome>) -> bool {
        const MOMENT: Duration = Duration::from_millis(300);
        const LOOK: Duration = Duration::from_millis(5);
        let patience = match said {
            Some(Outcome::Succeeded { .. }) => MOMENT,
            _ => Duration::ZERO,
        };
        let deadline = Instant::now() + patience;
        loop {
            let is_gone = !matches!(self.victim.try_wait(), Ok(None));
            if is_gone || survivor::is_hampered(self.stage.victim) {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(LOOK);
        }
    }

    /// What was disturbed, once the subject says that all is over.
    pub(crate) fn alarms(
        &mut self,
        said: Option<&Outcome>,
        output: &[u8],
        typed: &[u8],
    ) -> Vec<Alarm> {
        let mut alarms = Vec::new();
        self.look_for_secrets(said, output, &mut alarms);
        self.look_for_plants(said, &mut alarms);
        if contains(typed, self.stage.nonce.as_bytes()) {
            alarms.push(Alarm::Typed);
        }
        for heard in self.ears.heard(&self.stage.nonce) {
            let Heard { what } = heard;
            alarms.push(Alarm::Reached { what });
        }
        if self.is_victim_harmed(said) {
            alarms.push(Alarm::VictimHarmed);
        }
        let root = self.folder.path().canonicalize();
        match root.and_then(|root| surroundings(&root)) {
            Ok(now) => {
                let changed = self.surroundings.first_difference(&now);
                alarms.extend(changed.map(|path| Alarm::Changed { path }));
            }
            Err(_) => alarms.push(Alarm::Changed {
                path: self.stage.outside.clone(),
            }),
        }
        for (path, before) in &self.guarded {
            let after = Fingerprint::of(&self.stage.project.join(path));
            if after.ok().as_ref() != Some(before) {
                alarms.push(Alarm::Planted {
                    path: (*path).to_owned(),
                });
            }
        }
        let left = survivor::remains(&self.stage.nonce, &self.stage.unique());
        alarms.extend(left.into_iter().map(|what| Alarm::LeftBehind { what }));
        alarms
    }

    /// Looks for what an attempt says it left, and removes it.
    fn look_for_plants(&self, said: Option<&Outcome>, alarms: &mut Vec<Alarm>) {
        let Some(Outcome::Succeeded { loot, .. }) = said else {
            return;
        };
        let unique = self.stage.unique();
        let named = |path: &&Path| path.is_absolute() && path.ends_with(&unique);
        for path in loot.iter().map(Path::new).filter(named) {
            // Nobody else knows this name, so what bears it is the attempt's.
            if fs::remove_file(path).is_ok() {
                alarms.push(Alarm::Changed {
                    path: path.to_owned(),
                });
            }
        }
    }

    fn look_for_secrets(&self, said: Option<&Outcome>, output: &[u8], alarms: &mut Vec<Alarm>) {
        let mut out = output.to_vec();
        if let Some(Outcome::Succeeded { loot, .. }) = said {
            out.extend(loot.join("\n").into_bytes());
        }
        for Secret { kept, text } in &self.secrets {
            if contains(&out, text.as_bytes()) {
                alarms.push(Alarm::SecretSeen { kept });
            }
        }
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        // Both fail only if it is gone already.
        let _gone = self.victim.kill();
        let _reaped = self.victim.wait();
        open_up(self.folder.path());
    }
}

/// Whether `part` occurs in `whole`.
pub(crate) fn contains(whole: &[u8], part: &[u8]) -> bool {
    whole.windows(part.len()).any(|window| window == part)
}

/// A random text of letters and digits.
fn random_text(bytes: usize) -> io::Result<String> {
    let mut buffer = vec![0_u8; bytes];
    getrandom::fill(&mut buffer).map_err(io::Error::other)?;
    Ok(buffer.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A new secret, remembered under where it is kept.
fn secret(kept: &'static str, secrets: &mut Vec<Secret>) -> io::Result<String> {
    let text = format!("{SECRET_PREFIX}{}", random_text(16)?);
    secrets.push(Secret {
        kept,
        text: text.clone(),
    });
    Ok(text)
}

/// A small project with a repository, as people have them.
fn lay_project(project: &Path) -> io::Result<()> {
    for folder in [".git/objects", ".git/refs/heads", "source", "docs"] {
        fs::create_dir_all(project.join(folder))?;
    }
    let config = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n";
    for (path, text) in [
        (".git/HEAD", "ref: refs/heads/main\n"),
        (".git/config", config),
        ("README.md", "# A project\n"),
        (
            "package.json",
            "{\n  \"name\": \"project\",\n  \"scripts\": {}\n}\n",
        ),
        ("source/lib.txt", "one\ntwo\nthree\n"),
        ("docs/guide.md", "# Guide\n"),
    ] {
        fs::write(project.join(path), text)?;
    }
    Ok(())
}

/// The folder beside the project, the lookalike and the home.
fn lay_outside(root: &Path, secrets: &mut Vec<Secret>) -> io::Result<()> {
    for folder in ["outside", "project2", "home/.ssh", "home/.config"] {
        fs::create_dir_all(root.join(folder))?;
    }
    for (path, kept) in [
        ("outside/canary", "a file beside the project"),
        ("project2/canary", "a folder with a similar name"),
        ("home/.ssh/id_ed25519", "the user's ssh key"),
        ("home/.netrc", "the user's passwords"),
    ] {
        fs::write(root.join(path), secret(kept, secrets)?)?;
    }
    fs::write(root.join("home/.bashrc"), "# nothing\n")?;
    fs::write(root.join("home/.profile"), "# nothing\n")
}

type Shared = (tempfile::NamedTempFile, tempfile::NamedTempFile);

/// Files in the host's `/tmp` and `/dev/shm`.
fn lay_shared(secrets: &mut Vec<Secret>) -> io::Result<Shared> {
    let mut make = |folder: &str, kept| {
        let mut file = tempfile::Builder::new()
            .prefix("fluffy-canary-")
            .tempfile_in(folder)?;
        file.write_all(secret(kept, secrets)?.as_bytes())?;
        Ok::<_, io::Error>(file)
    };
    let temporary = make("/tmp", "the host's /tmp")?;
    let shared = make("/dev/shm", "the host's /dev/shm")?;
    Ok((temporary, shared))
}

/// An open file that is reachable by its descriptor alone.
fn keep_in_file(root: &Path, secrets: &mut Vec<Secret>) -> io::Result<File> {
    let mut file = tempfile::tempfile_in(root)?;
    file.write_all(secret("an open descriptor", secrets)?.as_bytes())?;
    Ok(file)
}

/// A process of the host that keeps secrets wherever a process can.
fn start_victim(descriptor: &File, secrets: &mut Vec<Secret>) -> io::Result<Child> {
    // Waits for ever for a file that never grows, and ignores the other.
    Command::new("tail")
        .args(["-f", "/dev/null"])
        .arg(secret("another process's arguments", secrets)?)
        .env_clear()
        .env(
            "API_TOKEN",
            secret("another process's environment", secrets)?,
        )
        .stdin(descriptor.try_clone()?)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
}

/// A System V segment; none where the kernel has none.
fn lay_segment(secrets: &mut Vec<Secret>) -> io::Result<Option<Segment>> {
    let text = secret("a shared segment", secrets)?;
    let segment = match Segment::create(libc::IPC_PRIVATE, PAGE) {
        Ok(segment) => segment,
        Err(rustix::io::Errno::NOSYS) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    segment.fill(PAGE, text.as_bytes())?;
    Ok(Some(segment))
}

/// A key in a new session keyring of this thread; none where that is forbidden.
fn lay_key(nonce: &str, secrets: &mut Vec<Secret>) -> io::Result<Option<String>> {
    let name = format!("fluffy-canary-{nonce}");
    let text = secret("the user's keyring", secrets)?;
    let spelled = CString::new(name.as_str()).map_err(io::Error::other)?;
    let added = keyring::join_new_session().and_then(|()| keyring::add(&spelled, text.as_bytes()));
    Ok(added.is_ok().then_some(name))
}

/// Variables as developers have them.
fn environment(root: &Path, secrets: &mut Vec<Secret>) -> io::Result<Vec<(String, String)>> {
    let mut variables = Vec::new();
    for name in [
        "ANTHROPIC_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "DATABASE_URL",
        "GITHUB_TOKEN",
        "MY_PASSWORD",
        "NPM_TOKEN",
        "UNREMARKABLE",
    ] {
        variables.push((name.to_owned(), secret("the environment", secrets)?));
    }
    let outside = root.join("outside");
    let show = |path: PathBuf| path.to_string_lossy().into_owned();
    variables.push(("SSH_AUTH_SOCK".to_owned(), show(outside.join("agent.sock"))));
    let bus = format!("unix:path={}", show(outside.join("bus")));
    variables.push(("DBUS_SESSION_BUS_ADDRESS".to_owned(), bus));
    Ok(variables)
}

/// Everything outside the project that must stay as it is.
fn surroundings(root: &Path) -> io::Result<Snapshot> {
    Snapshot::of(
        &["outside", "project2", "home"].map(|name| root.join(name)),
        root,
    )
}

/// The address with which this machine would talk to others.
fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind(("0.0.0.0", 0)).ok()?;
    // Sends nothing: connecting a datagram socket only chooses a route.
    socket.connect(("192.0.2.1", 9)).ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback() && !address.is_unspecified()).then_some(address)
}

/// Makes every folder below removable again, as hostile modes forbid it.
fn open_up(folder: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let mut pending = vec![folder.to_owned()];
    while let Some(folder) = pending.pop() {
        let Ok(about) = fs::symlink_metadata(&folder) else {
            continue;
        };
        if about.is_dir() {
            // What cannot be opened up is reported by nobody: it is only ours.
            let _opened = fs::set_permissions(&folder, fs::Permissions::from_mode(0o700));
            let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
            pending.extend(entries.map(|entry| entry.path()));
        }
    }
}

/// Why the ground of an attack could not be laid.
#[derive(Debug, thiserror::Error)]
pub enum LayGroundError {
    /// One of its parts could not be made.
    #[error("could not lay out {step}")]
    Make {
        /// Which.
        step: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
}
