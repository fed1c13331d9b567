//! A replica that runs: the platform, its loops, and the doors to it.
//!
//! Starts everything and ends everything in the right order: doors first, then
//! loops, then the platform with a last snapshot. Holds no logic of its own.

use std::future::Future;

use fluffy_ledger::LedgerOptions;
use fluffy_secret::SecretString;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::hostnames::Hostnames;
use crate::loops::lease::Timing;
use crate::platform::{Founder, OpenPlatformError, Platform, Storage};
use crate::{loops, readers};

/// How a replica starts.
#[derive(Debug)]
pub struct Options {
    /// Where everything is kept.
    pub storage: Storage,
    /// How the ledger is opened.
    pub ledger: LedgerOptions,
    /// To whom the platform belongs if there is none yet.
    pub founder: Founder,
    /// How long leases last.
    pub timing: Timing,
}

/// A replica that runs.
#[derive(Debug)]
pub struct Server {
    platform: Platform,
    invite: Option<SecretString>,
    stop: watch::Sender<bool>,
    doors: JoinSet<()>,
    loops: JoinSet<()>,
    timing: Timing,
}

impl Server {
    /// Opens what is stored, begins it if it is empty, and starts the loops.
    ///
    /// # Errors
    /// See [`OpenPlatformError`].
    pub async fn start(options: Options) -> Result<Self, OpenPlatformError> {
        let platform = Platform::open(&options.storage, options.ledger).await?;
        let invite = platform.begin(options.founder).await?;
        readers::set_if_alone(&platform).await;
        let (stop, stopped) = watch::channel(false);
        let mut loops = JoinSet::new();
        loops.spawn(loops::run(platform.clone(), options.timing, stopped));
        Ok(Self {
            platform,
            invite,
            stop,
            doors: JoinSet::new(),
            loops,
            timing: options.timing,
        })
    }

    /// What runs.
    #[must_use]
    pub const fn platform(&self) -> &Platform {
        &self.platform
    }

    /// The code of the first invite, if this replica made it; once.
    pub fn take_invite(&mut self) -> Option<SecretString> {
        self.invite.take()
    }

    /// Turns true when the replica ends; doors close then.
    #[must_use]
    pub fn stopping(&self) -> watch::Receiver<bool> {
        self.stop.subscribe()
    }

    /// Runs a door, which ends by itself when the replica does.
    pub fn open_door(&mut self, door: impl Future<Output = ()> + Send + 'static) {
        self.doors.spawn(door);
    }

    /// Keeps looking up hostnames that wait to be proven.
    pub fn verify_routes(&mut self, hostnames: Hostnames) {
        let (platform, stopping) = (self.platform.clone(), self.stopping());
        let run = loops::verify_routes(platform, self.timing, hostnames, stopping);
        self.loops.spawn(run);
    }

    /// Ends everything: nothing that was answered is lost.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        while self.doors.join_next().await.is_some() {}
        while self.loops.join_next().await.is_some() {}
        self.platform.close().await;
    }
}
