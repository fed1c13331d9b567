//! The doors of a replica: HTTP for everybody, the socket, and nodes.
//!
//! Puts the parts together and holds no logic of its own. The authority's keys
//! are made once by whichever replica is first, sealed, and found by the
//! others. Next: `backend` for what is behind HTTP.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use fluffy_api::node::dial;
use fluffy_control::Notice;
use fluffy_control::runtime::Notice as RuntimeNotice;
use fluffy_vault::LoadKeyError;
use tokio::net::{TcpListener, UnixListener};
use tokio::time::{MissedTickBehavior, interval};
use tokio_rustls::rustls;

use crate::aside::Kind;
use crate::backend::Control;
use crate::exec::Execs;
use crate::hashes::Hashes;
use crate::http::{HttpService, Listener, Options as HttpOptions, tls};
use crate::images::find_image;
use crate::material::Workshop;
use crate::node::{NodeDoor, OpenNodeDoorError};
use crate::platform::Platform;
use crate::safe::Safe;
use crate::sequencer::SubmitError;
use crate::server::Server;

/// Replicas that live, by name.
const REPLICAS: Kind = Kind::new("replica");
/// How often a replica says that it lives, and how long that is believed.
const ALIVE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(20));
/// How often reads are summed up.
const SETTLE: Duration = Duration::from_secs(60);

/// Which doors a replica has.
#[derive(Debug, Clone, Default)]
pub struct Doors {
    /// Where the master keys are.
    pub keys: PathBuf,
    /// HTTPS for everybody.
    pub api: Option<SocketAddr>,
    /// Nodes and edges.
    pub nodes: Option<SocketAddr>,
    /// Health and figures, in the clear.
    pub operators: Option<SocketAddr>,
    /// The socket of this machine, for its owner.
    pub socket: Option<PathBuf>,
    /// The names and addresses that the server is known by.
    pub names: Vec<String>,
    /// Registries that are spoken to in the clear.
    pub insecure_registries: BTreeSet<String>,
    /// How HTTP behaves.
    pub http: HttpOptions,
}

/// The doors that are open.
#[derive(Debug)]
pub struct Open {
    /// HTTPS for everybody.
    pub api: Option<SocketAddr>,
    /// Nodes and edges.
    pub nodes: Option<SocketAddr>,
    /// Health and figures.
    pub operators: Option<SocketAddr>,
    /// The root that the server's certificates go back to, as DER.
    pub root: Vec<u8>,
    /// What nodes are told to trust.
    pub pin: fluffy_base::Digest,
    /// Why the master keys are not at hand, if they are not.
    pub sealed: Option<LoadKeyError>,
}

/// Why doors can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenDoorsError {
    /// An address or a socket can't be listened at.
    #[error("cannot listen at `{place}`")]
    Listen {
        /// Where.
        place: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The ledger can't take what is new.
    #[error("the ledger is not available")]
    Submit(#[from] SubmitError),
    /// Nodes can't be served.
    #[error("nodes can't be let in")]
    Nodes(#[from] OpenNodeDoorError),
    /// The server's certificate can't be used.
    #[error("the server's certificate can't be used")]
    Tls(#[from] rustls::Error),
}

impl Server {
    /// Opens the doors of a replica.
    ///
    /// # Errors
    /// See [`OpenDoorsError`]; those that opened before stay open.
    pub async fn open(&mut self, doors: Doors) -> Result<Open, OpenDoorsError> {
        let platform = self.platform().clone();
        let (safe, sealed) = Safe::open(platform.aside().clone(), &doors.keys);
        if let Some(key) = safe.key_ids().first() {
            let notice = Notice::Runtime(RuntimeNotice::KeyIntroduced(*key));
            platform.notice("keys", None, notice).await?;
        }
        let door = NodeDoor::open(&platform, &safe, &doors.names).await?;
        let (root, pin) = door.root().await?;
        let hashes = Hashes::new(platform.aside().clone());
        let find_image = find_image(doors.insecure_registries.clone());
        let workshop = Workshop::new(hashes, safe.clone(), find_image);
        let execs = Execs::new(platform.clone(), safe, door.server().clone());
        let owner = doors.socket.is_some().then(own_user);
        let behind = (execs, door.server().logs());
        let control = Control::new(platform.clone(), workshop, behind, owner);
        let service = HttpService::new(control, doors.http.clone());

        let mut open = Open {
            api: None,
            nodes: None,
            operators: None,
            root,
            pin,
            sealed,
        };
        if let Some(address) = doors.api {
            let listener = listen(address).await?;
            open.api = listener.local_addr().ok();
            let dial::Identity { chain, key } = door.identity(&doors.names).await?;
            let listener = Listener::Public(listener, tls(chain, key)?);
            self.open_door(service.clone().serve(listener, self.stopping()));
        }
        if let Some(address) = doors.operators {
            let listener = listen(address).await?;
            open.operators = listener.local_addr().ok();
            let listener = Listener::Operators(listener);
            self.open_door(service.clone().serve(listener, self.stopping()));
        }
        if let Some(path) = &doors.socket {
            let listener = Listener::Local(listen_socket(path)?);
            self.open_door(service.clone().serve(listener, self.stopping()));
        }
        if let Some(address) = doors.nodes {
            let listener = listen(address).await?;
            open.nodes = listener.local_addr().ok();
            self.open_door(door.run(listener, self.stopping()));
        }
        self.open_door(attend(platform, service, self.stopping()));
        Ok(open)
    }
}

/// What goes on beside the doors until the replica stops: sums of reads, and a
/// sign of life.
async fn attend(
    platform: Platform,
    service: HttpService<Control>,
    mut stop: tokio::sync::watch::Receiver<bool>,
) {
    let alive = async {
        let mut ticks = interval(ALIVE.0);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let aside = platform.aside();
            let life = Some(ALIVE.1);
            let said = aside.put(REPLICAS, platform.replica(), Vec::new(), life);
            // Without it each uses the share that it had before.
            if said.await.is_ok()
                && let Ok(replicas) = aside.list(REPLICAS, "", 1_000).await
            {
                service.backend().set_replicas(replicas.len() as u64);
            }
        }
    };
    let settle = async {
        let mut ticks = interval(SETTLE);
        loop {
            ticks.tick().await;
            if let Err(error) = service.backend().settle().await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "reads were not summed up");
            }
        }
    };
    tokio::select! {
        () = alive => {}
        () = settle => {}
        _ = stop.wait_for(|stop| *stop) => {}
    }
    // What was read since the last time is recorded too, if it can be.
    let _ = service.backend().settle().await;
}

async fn listen(address: SocketAddr) -> Result<TcpListener, OpenDoorsError> {
    let listener = TcpListener::bind(address).await;
    listener.map_err(|source| OpenDoorsError::Listen {
        place: address.to_string(),
        source,
    })
}

/// Takes the socket over from a process that is gone.
fn listen_socket(path: &PathBuf) -> Result<UnixListener, OpenDoorsError> {
    let failed = |source| OpenDoorsError::Listen {
        place: path.display().to_string(),
        source,
    };
    if std::os::unix::net::UnixStream::connect(path).is_err() {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
    }
    UnixListener::bind(path).map_err(failed)
}

/// The user that this process is of, who owns what it keeps.
fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}
