//! A PostgreSQL server of one's own: a Unix socket, gone when we are.
//!
//! Listens on a port of this machine only for tests of the network, and never
//! outlives its owner: a small shell process
//! holds the other end of a pipe and cleans up when that closes, which also
//! happens on Ctrl-C and on `kill -9`. Real durability (`fsync` on) is kept,
//! because tests of faults rely on it.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::install::programs;
use crate::account::RunAs;
use crate::{lifeline, wait_for};

/// After a crash the server first syncs every file, slow on a busy disk.
const START_LIMIT: Duration = Duration::from_secs(120);

/// A fast shutdown only writes a checkpoint.
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// The superuser of the private server; there is no password on its socket.
const ADMIN: &str = "fluffy";

/// Waits for its input to close, then stops the server and removes its folder.
///
/// `$1` is the folder. The server's own lock file tells its process, also after
/// a restart, and vanishes when the server has ended.
const WATCHDOG: &str = r#"
read -r _ || true
lock="$1/data/postmaster.pid"
if [ -e "$lock" ]; then
    process=$(head -n 1 "$lock")
    kill -QUIT "$process" 2>/dev/null
    tries=0
    while [ -e "$lock" ] && [ "$tries" -lt 200 ]; do
        sleep 0.05
        tries=$((tries + 1))
    done
    kill -KILL "$process" 2>/dev/null
fi
rm -rf "$1"
"#;

/// How a server is reached other than by its Unix socket.
#[derive(Debug, Clone, Copy)]
pub struct Network<'a> {
    /// Its certificate and the key of that, as PEM; without it, no TLS.
    pub tls: Option<(&'a str, &'a str)>,
    /// Lines of `pg_hba.conf` that come before those that trust everybody.
    pub access: &'a str,
}

#[derive(Debug, Clone, Copy)]
struct Listening {
    port: u16,
    tls: bool,
}

/// A running PostgreSQL server that nobody else uses.
///
/// Stopped and removed on drop, and also when this process dies.
#[derive(Debug)]
pub struct PrivatePostgres {
    folder: PathBuf,
    programs: PathBuf,
    run_as: RunAs,
    network: Option<Listening>,
    server: Option<Child>,
    watchdog: Child,
    /// Closing it is the watchdog's signal.
    lifeline: Option<ChildStdin>,
}

impl PrivatePostgres {
    /// The folder of the programs that [`Self::start`] would use.
    ///
    /// # Errors
    /// PostgreSQL is not installed; the text has the fix.
    pub fn installed() -> Result<PathBuf> {
        programs()
    }

    /// Creates a data folder and starts a server in it.
    ///
    /// # Errors
    /// PostgreSQL is not installed, or did not start; the text has the fix or
    /// the end of the server's log.
    pub fn start() -> Result<Self> {
        let mut postgres = Self::prepare()?;
        postgres.resume()?;
        Ok(postgres)
    }

    /// Like [`Self::start`], also on a port of 127.0.0.1.
    ///
    /// # Errors
    /// See [`Self::start`].
    pub fn start_with(network: &Network<'_>) -> Result<Self> {
        let mut postgres = Self::prepare()?;
        let data = postgres.folder.join("data");
        let files = network
            .tls
            .map(|(certificate, key)| [("server.crt", certificate), ("server.key", key)]);
        for (name, text) in files.into_iter().flatten() {
            let file = data.join(name);
            fs::write(&file, text).context("cannot write the certificate")?;
            fs::set_permissions(&file, fs::Permissions::from_mode(0o600))?;
            postgres.run_as.own(&file)?;
        }
        let rules = data.join("pg_hba.conf");
        let trusting = fs::read_to_string(&rules).context("cannot read pg_hba.conf")?;
        fs::write(&rules, format!("{}\n{trusting}", network.access))?;
        let mut tries = 5;
        loop {
            // Free now; if somebody takes it meanwhile, another one.
            let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
            postgres.network = Some(Listening {
                port: free.port(),
                tls: network.tls.is_some(),
            });
            tries -= 1;
            match postgres.resume() {
                Err(_) if tries > 0 && postgres.log_tail().contains("could not bind") => {}
                done => return done.map(|()| postgres),
            }
        }
    }

    /// Everything but a running server.
    fn prepare() -> Result<Self> {
        let programs = programs()?;
        let run_as = RunAs::choose()?;
        // A socket's path has to be short and the server's user has to reach
        // it, so the folder is in /tmp whatever TMPDIR says.
        let folder = TempDir::with_prefix_in("fluffy-pg-", "/tmp")
            .context("cannot make a folder in /tmp")?;
        run_as.own(folder.path())?;
        create_data(&programs, &run_as, folder.path())?;
        let words = ["fluffy-watchdog".as_ref(), folder.path().as_os_str()];
        let (watchdog, lifeline) = lifeline::start(Command::new("sh"), WATCHDOG, &words)?;
        Ok(Self {
            // From here on the watchdog removes the folder.
            folder: folder.keep(),
            programs,
            run_as,
            network: None,
            server: None,
            watchdog,
            lifeline: Some(lifeline),
        })
    }

    /// The address of the administrator's database, for any client library.
    #[must_use]
    pub fn url(&self) -> String {
        self.database_url("postgres")
    }

    /// The address of a database of this server.
    #[must_use]
    pub fn database_url(&self, database: &str) -> String {
        let port = self
            .network
            .map(|network| format!("&port={}", network.port));
        format!(
            "postgresql://{ADMIN}@/{database}?host={}{}",
            self.folder.display(),
            port.unwrap_or_default()
        )
    }

    /// Where it listens, if it was started with a network.
    #[must_use]
    pub fn listens(&self) -> Option<SocketAddr> {
        let port = self.network?.port;
        Some((Ipv4Addr::LOCALHOST, port).into())
    }

    /// The folder of its Unix socket.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn run_as(&self) -> &RunAs {
        &self.run_as
    }

    /// What the server calls itself, such as `postgres (PostgreSQL) 15.14`.
    ///
    /// # Errors
    /// The program cannot be run.
    pub fn version(&self) -> Result<String> {
        let output = Command::new(self.programs.join("postgres"))
            .arg("--version")
            .output()
            .context("cannot run postgres --version")?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// Stops the server in order and starts it again on the same data.
    ///
    /// # Errors
    /// It did not stop or did not start in time.
    pub fn restart(&mut self) -> Result<()> {
        self.stop()?;
        self.resume()
    }

    /// Stops the server in order: sessions are cut, what is committed is kept.
    ///
    /// # Errors
    /// It did not end in time.
    pub fn stop(&mut self) -> Result<()> {
        self.stop_by(Signal::INT)
    }

    /// Stops the server at once: its next start has to recover from the log.
    ///
    /// What PostgreSQL calls an immediate shutdown.
    ///
    /// # Errors
    /// It did not end in time.
    pub fn stop_immediately(&mut self) -> Result<()> {
        self.stop_by(Signal::QUIT)
    }

    fn stop_by(&mut self, way: Signal) -> Result<()> {
        let Some(server) = &mut self.server else {
            return Ok(());
        };
        signal(server.id(), way);
        wait_for("the server has stopped", STOP_LIMIT, || {
            server.try_wait().ok().flatten()
        })?;
        self.server = None;
        Ok(())
    }

    /// Kills the server and all of its processes, as a power cut would.
    ///
    /// Start it again with [`Self::resume`].
    ///
    /// # Errors
    /// A process survived.
    pub fn kill(&mut self) -> Result<()> {
        let Some(mut server) = self.server.take() else {
            return Ok(());
        };
        // Stopped first, so that it starts no process while we read the list.
        signal(server.id(), Signal::STOP);
        let sessions = children_of(server.id());
        server.kill().context("cannot kill the server")?;
        server.wait().context("cannot wait for the server")?;
        for session in &sessions {
            signal(*session, Signal::KILL);
        }
        wait_for("all sessions are dead", STOP_LIMIT, || {
            sessions.iter().all(|id| has_ended(*id)).then_some(())
        })
    }

    /// Starts the server again after a stop or a [`Self::kill`].
    ///
    /// # Errors
    /// It did not answer in time; the text has the end of its log.
    pub fn resume(&mut self) -> Result<()> {
        if self.server.is_some() {
            return Ok(());
        }
        let deadline = Instant::now() + STOP_LIMIT;
        loop {
            match self.try_resume() {
                // A session that was just born when we killed the others gives
                // its memory back a moment later.
                Err(_) if self.is_memory_in_use() && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                done => return done,
            }
        }
    }

    /// Whether the server refused to start because of an older one's memory.
    fn is_memory_in_use(&self) -> bool {
        let tail = self.log_tail();
        let mut last = tail.lines().rev().take(2);
        last.any(|line| line.contains("pre-existing shared memory block"))
    }

    fn try_resume(&mut self) -> Result<()> {
        let mut server = self.launch()?;
        let ready = wait_for("the server is ready", START_LIMIT, || {
            if let Ok(Some(status)) = server.try_wait() {
                return Some(Err(status));
            }
            self.is_ready(server.id()).then_some(Ok(()))
        });
        match ready {
            Ok(Ok(())) => {
                self.server = Some(server);
                Ok(())
            }
            Ok(Err(status)) => bail!("the server ended with {status}:\n{}", self.log_tail()),
            Err(late) => {
                // Not ready is not usable; nothing is left behind.
                let _ = server.kill();
                let _ = server.wait();
                Err(late.context(self.log_tail()))
            }
        }
    }

    /// Runs one statement as the administrator and returns what it printed.
    ///
    /// # Errors
    /// The server refused it; the text is the server's own.
    pub fn sql(&self, database: &str, statement: &str) -> Result<String> {
        run_sql(&self.programs, &self.database_url(database), statement)
    }

    /// Runs one statement by an address, such as one through a pooler.
    ///
    /// # Errors
    /// See [`Self::sql`].
    pub fn sql_at(&self, url: &str, statement: &str) -> Result<String> {
        run_sql(&self.programs, url, statement)
    }

    fn launch(&self) -> Result<Child> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_path())
            .context("cannot open the server's log")?;
        let copy = log.try_clone().context("cannot share the server's log")?;
        let mut command = self.run_as.command(&self.programs.join("postgres"));
        command.arg("-D").arg(self.folder.join("data"));
        command.arg("-k").arg(&self.folder);
        let listening = match self.network {
            Some(network) => vec![
                "listen_addresses=127.0.0.1".to_owned(),
                format!("port={}", network.port),
                format!("ssl={}", if network.tls { "on" } else { "off" }),
            ],
            None => vec!["listen_addresses=".to_owned()],
        };
        for setting in &listening {
            command.args(["-c", setting]);
        }
        for setting in [
            "unix_socket_permissions=0700",
            "max_connections=200",
            "shared_buffers=64MB",
            "fsync=on",
            "full_page_writes=on",
        ] {
            command.args(["-c", setting]);
        }
        // Its own group: Ctrl-C is for us, the watchdog stops the server.
        command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(copy)
            .current_dir(&self.folder)
            .spawn()
            .context("cannot start postgres")
    }

    /// Whether the lock file is of this process and ends with `ready`.
    ///
    /// What `pg_ctl` does: asking the server itself would fill its log.
    fn is_ready(&self, process: u32) -> bool {
        let lock = fs::read_to_string(self.folder.join("data/postmaster.pid"));
        let lock = lock.unwrap_or_default();
        let mut lines = lock.lines().map(str::trim);
        lines.next() == Some(process.to_string().as_str()) && lines.next_back() == Some("ready")
    }

    fn log_path(&self) -> PathBuf {
        self.folder.join("server.log")
    }

    fn log_tail(&self) -> String {
        let log = fs::read(self.log_path()).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().rev().take(20).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}

impl Drop for PrivatePostgres {
    fn drop(&mut self) {
        if self.stop().is_err() {
            // The watchdog is what makes sure; a drop has nobody to tell.
            let _ = self.kill();
        }
        drop(self.lifeline.take());
        let _ = self.watchdog.wait();
    }
}

/// Runs one statement with `psql`, so that no client library is needed here.
pub(super) fn run_sql(programs: &Path, url: &str, statement: &str) -> Result<String> {
    let output = Command::new(programs.join("psql"))
        .args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align"])
        .args(["--set", "ON_ERROR_STOP=1", "--command", statement, url])
        .stdin(Stdio::null())
        .output()
        .context("cannot run psql")?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn create_data(programs: &Path, run_as: &RunAs, folder: &Path) -> Result<()> {
    let output = run_as
        .command(&programs.join("initdb"))
        .arg("--pgdata")
        .arg(folder.join("data"))
        .args(["--username", ADMIN, "--auth", "trust"])
        .args(["--encoding", "UTF8", "--locale", "C.UTF-8"])
        .stdin(Stdio::null())
        .current_dir(folder)
        .output()
        .context("cannot run initdb")?;
    if !output.status.success() {
        bail!(
            "initdb failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}

/// Sends a signal; that the process is already gone is what we want anyway.
fn signal(process: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(process).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

fn children_of(process: u32) -> Vec<u32> {
    let list = format!("/proc/{process}/task/{process}/children");
    let list = fs::read_to_string(list).unwrap_or_default();
    list.split_whitespace()
        .filter_map(|id| id.parse().ok())
        .collect()
}

/// Whether a process is gone, or is only waiting for its parent to notice.
fn has_ended(process: u32) -> bool {
    fs::read(format!("/proc/{process}/cmdline")).map_or(true, |line| line.is_empty())
}
