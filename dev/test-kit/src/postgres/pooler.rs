//! PgBouncer in front of a private PostgreSQL, one session for each transaction.
//!
//! It is a child of a script that outlives us and ends it, however we end.
//! Never listens on a port.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tempfile::TempDir;

use super::server::PrivatePostgres;
use crate::{lifeline, wait_for};

/// Where Debian puts it, where not every PATH leads.
const PROGRAM: &str = "/usr/sbin/pgbouncer";

/// Long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs the pooler until its owner is gone, and takes its files away.
const SCRIPT: &str = r#"
"$2" "$1/pgbouncer.ini" &
pid=$!
read -r _ || true
kill -9 "$pid"
wait "$pid"
rm -rf -- "$1"
"#;

/// A pooler with few sessions of the server, all of which it hands around.
#[derive(Debug)]
pub struct PrivatePooler {
    folder: PathBuf,
    watchdog: Child,
    /// Closing it is the watchdog's signal.
    lifeline: Option<ChildStdin>,
}

impl PrivatePooler {
    /// Whether the program is installed.
    #[must_use]
    pub fn is_installed() -> bool {
        Path::new(PROGRAM).is_file()
    }

    /// Starts one that has `sessions` sessions of the server for each database.
    ///
    /// # Errors
    /// It is not installed, or does not answer in time.
    pub fn start(postgres: &PrivatePostgres, sessions: u32) -> Result<Self> {
        let folder = TempDir::with_prefix_in("fluffy-pool-", "/tmp")?;
        let path = folder.path().to_owned();
        let place = path.display();
        fs::write(path.join("users"), "\"fluffy\" \"\"\n")?;
        fs::write(
            path.join("pgbouncer.ini"),
            format!(
                "[databases]\n* = host={}\n[pgbouncer]\nlisten_addr =\nlisten_port = 5432\n\
                 unix_socket_dir = {place}\nauth_type = trust\nauth_file = {place}/users\n\
                 pool_mode = transaction\ndefault_pool_size = {sessions}\n\
                 max_client_conn = 500\nlogfile = {place}/log\n",
                postgres.folder().display()
            ),
        )?;
        let run_as = postgres.run_as();
        run_as.own(&path)?;
        let sh = run_as.command(Path::new("sh"));
        let words = ["fluffy-pooler".as_ref(), path.as_os_str(), PROGRAM.as_ref()];
        let (watchdog, lifeline) = lifeline::start(sh, SCRIPT, &words)?;
        let pooler = Self {
            // From here on the watchdog removes the folder.
            folder: folder.keep(),
            watchdog,
            lifeline: Some(lifeline),
        };
        let socket = pooler.folder.join(".s.PGSQL.5432");
        let listening = wait_for("the pooler listens", PATIENCE, || {
            UnixStream::connect(&socket).ok()
        });
        listening.with_context(|| {
            let log = fs::read_to_string(pooler.folder.join("log"));
            format!("{PROGRAM}: {}", log.unwrap_or_default())
        })?;
        Ok(pooler)
    }

    /// The address of a database of the server, through the pooler.
    #[must_use]
    pub fn database_url(&self, database: &str) -> String {
        let folder = self.folder.display();
        format!("postgresql://fluffy@/{database}?host={folder}")
    }
}

impl Drop for PrivatePooler {
    fn drop(&mut self) {
        drop(self.lifeline.take());
        let _ = self.watchdog.wait();
    }
}
