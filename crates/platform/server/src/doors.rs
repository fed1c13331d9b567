//! The doors of a replica: HTTP for everybody, the socket, and nodes.
//!
//! Puts the parts together and holds no logic of its own. The authority's keys
//! are made once by whichever replica is first, sealed, and found by the
//! others. Next: `backend` for what is behind HTTP.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fluffy_api::node::dial;
use fluffy_base::id::EnvId;
use fluffy_control::runtime::Notice as RuntimeNotice;
use fluffy_control::runtime::notice::log_quotas_due;
use fluffy_control::{Notice, Outcome};
use fluffy_image::{Registries, Shelf, StoreLimits};
use fluffy_vault::LoadKeyError;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Notify;
use tokio::time::{MissedTickBehavior, interval};
use tokio_rustls::rustls;

use crate::backend::Control;
use crate::certificate;
use crate::exec::Execs;
use crate::hashes::Hashes;
use crate::hostnames::Hostnames;
use crate::http::{HttpService, Listener, Options as HttpOptions, Tls};
use crate::images::find_image;
use crate::logs::{Keeping, Logs};
use crate::machine::Reply;
use crate::material::{NodePlace, Workshop};
use crate::node::{LocalEdge, NodeDoor, OpenNodeDoorError};
use crate::peers::{Peers, Place};
use crate::platform::Platform;
use crate::safe::{Safe, SafeError, live_keys, retired_keys};
use crate::sequencer::SubmitError;
use crate::server::Server;
use crate::unseal::{Desk, ServeDeskError};

/// How often a replica says that it lives.
const ALIVE: Duration = Duration::from_secs(5);
/// How often reads are summed up.
const SETTLE: Duration = Duration::from_secs(60);
/// How often the master keys are looked for while they are missing, and
/// whether another server has made a new one.
const SEALED: Duration = Duration::from_secs(2);

/// How often it is looked at whose logs' time is over.
const TEND: Duration = Duration::from_secs(60);

/// How often it is looked at who has printed much of their share.
const TELL: Duration = Duration::from_secs(5);

/// How often the server gets itself another certificate.
const RENEWAL: Duration = Duration::from_secs(24 * 3600);

/// Which doors a replica has.
#[derive(Debug, Clone, Default)]
pub struct Doors {
    /// Where the master keys are.
    pub keys: PathBuf,
    /// Where their custodians bring the master keys, if they are in no files.
    pub unseal: Option<PathBuf>,
    /// Other folders that may have no master keys then, beside `keys`.
    pub keyless: Vec<PathBuf>,
    /// Told once custodians can come and nothing else goes on before they do.
    pub awaited: Option<Arc<Notify>>,
    /// Where this server's own certificate is kept, for a start without keys.
    pub certificate: Option<PathBuf>,
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
    /// Host and port at which other replicas reach this one's API, if not
    /// where it listens.
    pub advertise: Option<String>,
    /// How registries are reached, by this server and by nodes.
    pub registries: Registries,
    /// Where images of this machine's files are kept for nodes; none for who
    /// takes no such images.
    pub images: Option<PathBuf>,
    /// Where what workloads print is kept, and how much of it; none for who
    /// keeps only the last of it, in memory.
    pub logs: Option<Keeping>,
    /// Whether this process has an edge for its own machine.
    pub edge: bool,
    /// How hostnames of routes are proven.
    pub hostnames: Hostnames,
    /// The public IPv4 addresses that envs can have: ranges such as
    /// `203.0.113.0/28`; none leaves them as they were set before.
    pub ipv4_pool: Option<Vec<String>>,
    /// How HTTP behaves.
    pub http: HttpOptions,
    /// How often the server gets itself another certificate; once a day if
    /// not said, which leaves it months to try again.
    pub renewal: Option<Duration>,
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
    /// The place of this process's own edge, where nodes can be.
    pub edge: Option<LocalEdge>,
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
    /// Nobody can bring the keys.
    #[error("the shares of the master keys can't be taken")]
    Custody(#[from] ServeDeskError),
    /// The keys are not at hand, nor is a certificate of before.
    #[error("without its master keys the server needs the certificate in `{path}`")]
    Certificate {
        /// Where it should be.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Images can't be kept.
    #[error("images cannot be kept in `{path}`")]
    Images {
        /// Where they should be.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// What workloads print can't be kept.
    #[error("logs cannot be kept in `{path}`")]
    Logs {
        /// Where they should be.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A range of public addresses is none.
    #[error("the public IPv4 addresses can't be used: {why}")]
    Ipv4Pool {
        /// What is wrong.
        why: String,
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
        let known = platform.sequencer().read(live_keys);
        // What can't be opened can't be shown without a certificate of before.
        let has_certificate = doors.certificate.as_deref().is_some_and(Path::exists);
        let (safe, mut sealed) = match &doors.unseal {
            None => Safe::open_knowing(platform.aside().clone(), &doors.keys, &known),
            Some(socket) => {
                let folders = doors.keyless.iter().chain([&doors.keys]);
                let safe = Safe::open_without(&platform, folders.map(PathBuf::as_path));
                let safe = safe.map_err(ServeDeskError::Keys)?;
                let desk = Desk::new(platform.clone(), safe.clone());
                let serving = desk.serve(socket, self.stopping())?;
                self.open_door(serving);
                if !has_certificate {
                    if let Some(awaited) = &doors.awaited {
                        awaited.notify_one();
                    }
                    // The authority is made or opened with the keys.
                    brought(&safe).await;
                }
                let sealed = safe.look_again(&known).err();
                (safe, sealed)
            }
        };
        introduce(&platform, &safe).await?;
        if let Some(ranges) = doors.ipv4_pool.clone() {
            let notice = Notice::Runtime(RuntimeNotice::Ipv4Pool(ranges));
            let said = platform.notice("ipam", None, notice).await?;
            if let Reply::Wrote(Outcome::Refused(refusal)) = said.reply {
                return Err(OpenDoorsError::Ipv4Pool { why: refusal.why });
            }
        }
        let mut told = Once::default();
        let (door, identity) = loop {
            let opened = match &sealed {
                None => proven(&platform, &safe, &doors).await,
                Some(_) => as_before(&platform, &safe, &doors),
            };
            match opened {
                // The key that the authority is sealed with is not among them:
                // another server sealed it anew meanwhile.
                Err(OpenDoorsError::Nodes(
                    error @ OpenNodeDoorError::Sealed(SafeError::Key(_)),
                )) if doors.unseal.is_some() && !has_certificate => {
                    told.warn(&error, &safe);
                    tokio::time::sleep(SEALED).await;
                    brought(&safe).await;
                }
                Err(OpenDoorsError::Nodes(OpenNodeDoorError::Sealed(SafeError::Key(error)))) => {
                    sealed = Some(error);
                    break as_before(&platform, &safe, &doors)?;
                }
                opened => break opened?,
            }
        };
        let root = identity.chain.last().map(|root| root.to_vec());
        let (root, pin) = (root.unwrap_or_default(), door.server().pin());
        let hashes = Hashes::new(platform.aside().clone());
        let shelf = doors.images.as_deref().map(shelf).transpose()?;
        if let Some(shelf) = &shelf {
            door.server().serve_blobs(Arc::clone(shelf));
        }
        let logs = door.server().logs();
        if let Some(keeping) = doors.logs.clone() {
            let (path, clock) = (keeping.folder.clone(), Arc::clone(platform.clock()));
            let kept = logs.keep_in(keeping, clock).await;
            kept.map_err(|source| OpenDoorsError::Logs { path, source })?;
        }
        let registries = Arc::new(doors.registries.clone());
        door.server().reach_registries(Arc::clone(&registries));
        let find_image = find_image(registries, shelf);
        let nodes = match doors.nodes {
            Some(address) => Some(listen(address).await?),
            None => None,
        };
        let place = nodes.as_ref().and_then(|nodes| nodes.local_addr().ok());
        let place = place.map(|listening| NodePlace {
            server: Place::of(listening, &doors.names).address,
            pin,
        });
        let workshop = Workshop::new(hashes, safe.clone(), find_image).with_nodes(place);
        let peers = Peers::new(&platform, safe.clone(), &root)?;
        let workshop = workshop.with_hostnames(doors.hostnames.clone());
        self.verify_routes(doors.hostnames.clone());
        if sealed.is_some() {
            let unsealed = unseal(platform.clone(), safe.clone(), door.clone());
            self.open_door(until(unsealed, self.stopping()));
        }
        let keys = follow_keys(platform.clone(), safe.clone());
        self.open_door(until(keys, self.stopping()));
        let execs = Execs::new(platform.clone(), safe, door.server().clone());
        let execs = execs.beside(peers.clone());
        let owner = doors.socket.is_some().then(own_user);
        let behind = (execs, Arc::clone(&logs));
        let control = Control::new(platform.clone(), workshop, behind, owner);
        let service = HttpService::new(control, doors.http.clone());

        let mut open = Open {
            api: None,
            nodes: None,
            operators: None,
            root,
            pin,
            edge: None,
            sealed,
        };
        if let Some(address) = doors.api {
            let listener = listen(address).await?;
            open.api = listener.local_addr().ok();
            if let Some(listening) = open.api {
                let mut place = Place::of(listening, &doors.names);
                place.address = doors.advertise.clone().unwrap_or(place.address);
                peers.set_place(place);
            }
            let dial::Identity { chain, key } = identity;
            let tls = Tls::new(chain, key)?;
            let renewed = renew(door.clone(), doors.clone(), tls.clone());
            self.open_door(until(renewed, self.stopping()));
            let listener = Listener::Public(listener, tls);
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
        if let Some(listener) = nodes {
            open.nodes = listener.local_addr().ok();
            open.edge = doors.edge.then(|| door.seat());
            self.open_door(door.run(listener, self.stopping()));
        }
        self.open_door(attend(peers, service, self.stopping()));
        self.open_door(tend(platform, logs, self.stopping()));
        Ok(open)
    }
}

/// Waits until the master keys were brought that a start without a certificate
/// takes, however long that is.
async fn brought(safe: &Safe) {
    let mut told = Once::default();
    loop {
        while safe.is_sealed() {
            tokio::time::sleep(SEALED / 10).await;
        }
        match safe.needs().await {
            Ok(None) => return,
            Ok(Some(id)) => {
                let missing = SafeError::Key(LoadKeyError::Missing { id });
                told.warn(&missing.into(), safe);
            }
            Err(error) => told.warn(&error.into(), safe),
        }
        tokio::time::sleep(SEALED / 2).await;
    }
}

/// Says why the authority can't be opened, once until it is for another reason.
#[derive(Debug, Default)]
struct Once(String);

impl Once {
    fn warn(&mut self, error: &OpenNodeDoorError, safe: &Safe) {
        let text = match error {
            OpenNodeDoorError::Sealed(SafeError::Key(LoadKeyError::Missing { id })) => {
                let how = safe.how_to_get(*id);
                format!("it takes master key {id}, which is not at hand; {how}")
            }
            error => error.to_string(),
        };
        if self.0 != text {
            let error = error as &dyn std::error::Error;
            tracing::warn!(error, "the cluster's authority can't be opened: {text}");
            self.0 = text;
        }
    }
}

/// The images of this machine's files, in a tenth of its disk.
fn shelf(path: &Path) -> Result<Arc<Shelf>, OpenDoorsError> {
    let opened = std::fs::create_dir_all(path).and_then(|()| {
        let limits = StoreLimits::of_disk(path)?;
        Shelf::open(path, limits.quota / 3)
    });
    opened
        .map(Arc::new)
        .map_err(|source| OpenDoorsError::Images {
            path: path.to_owned(),
            source,
        })
}

/// Takes note of the key that seals from now on.
async fn introduce(platform: &Platform, safe: &Safe) -> Result<(), SubmitError> {
    if let Some(key) = safe.key_ids().first() {
        let notice = Notice::Runtime(RuntimeNotice::KeyIntroduced(*key));
        platform.notice("keys", None, notice).await?;
    }
    Ok(())
}

/// The door for nodes, and a fresh certificate of this server, which is kept
/// for a start without the keys.
async fn proven(
    platform: &Platform,
    safe: &Safe,
    doors: &Doors,
) -> Result<(NodeDoor, dial::Identity), OpenDoorsError> {
    let door = NodeDoor::open(platform, safe, &doors.names).await?;
    let identity = fresh(&door, doors).await?;
    Ok((door, identity))
}

/// A certificate of this server that begins now.
async fn fresh(door: &NodeDoor, doors: &Doors) -> Result<dial::Identity, OpenDoorsError> {
    let identity = door.identity(&doors.names).await?;
    if let Some(path) = &doors.certificate
        && let Err(error) = certificate::keep(path, &identity)
    {
        tracing::warn!(
            path = %path.display(),
            error = &error as &dyn std::error::Error,
            "the server's certificate was not kept for a start without its keys"
        );
    }
    Ok(identity)
}

/// Shows a fresh certificate now and then, long before the last one ends.
async fn renew(door: NodeDoor, doors: Doors, tls: Tls) {
    loop {
        tokio::time::sleep(doors.renewal.unwrap_or(RENEWAL)).await;
        let renewed = match fresh(&door, &doors).await {
            Ok(dial::Identity { chain, key }) => tls.replace(chain, key).map_err(Into::into),
            Err(error) => Err(error),
        };
        if let Err(error) = renewed {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "the server's certificate could not be renewed");
        }
    }
}

/// The door for nodes with the certificate of the last start.
fn as_before(
    platform: &Platform,
    safe: &Safe,
    doors: &Doors,
) -> Result<(NodeDoor, dial::Identity), OpenDoorsError> {
    let none = OpenNodeDoorError::Sealed(SafeError::Sealed);
    let path = doors.certificate.as_deref().ok_or(none)?;
    let again = || {
        certificate::recall(path).map_err(|source| OpenDoorsError::Certificate {
            path: path.to_owned(),
            source,
        })
    };
    let door = NodeDoor::open_sealed(platform, safe, again()?, &doors.names)?;
    Ok((door, again()?))
}

/// Looks for the master keys until they are there; then all is as it should be.
async fn unseal(platform: Platform, safe: Safe, door: NodeDoor) {
    let mut ticks = interval(SEALED);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut told = Once::default();
    loop {
        ticks.tick().await;
        let known = platform.sequencer().read(live_keys);
        if safe.look_again(&known).is_err() {
            continue;
        }
        let introduced = introduce(&platform, &safe).await;
        match (introduced, door.unseal().await) {
            (Ok(()), Ok(())) => {
                tracing::info!("the master keys are at hand again");
                return;
            }
            (Err(error), _) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "the master keys were not taken note of");
            }
            (_, Err(error)) => told.warn(&error, &safe),
        }
    }
}

/// Puts the keys away that were retired, whichever server was asked.
fn put_away(platform: &Platform, safe: &Safe) {
    for key in platform.sequencer().read(retired_keys) {
        match safe.put_away(key) {
            Ok(true) => tracing::info!(%key, "a retired master key was put away"),
            Ok(false) => {}
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::debug!(error, %key, "a retired master key can't be put away");
            }
        }
    }
}

/// Seals with the newest key of the ledger, whichever server made it, once its
/// file is in this server's folder.
async fn follow_keys(platform: Platform, safe: Safe) {
    let mut ticks = interval(SEALED);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut missed = None;
    loop {
        ticks.tick().await;
        put_away(&platform, &safe);
        let newest = platform.sequencer().read(live_keys).first().copied();
        let Some(newest) = newest.filter(|_| !safe.is_sealed()) else {
            continue;
        };
        if safe.key_ids().first() == Some(&newest) {
            continue;
        }
        match safe.activate(newest) {
            Ok(()) => tracing::info!(key = %newest, "a new master key seals from now on"),
            Err(error) if missed != Some(newest) => {
                missed = Some(newest);
                let error = &error as &dyn std::error::Error;
                let how = safe.how_to_get(newest);
                tracing::warn!(
                    error,
                    "there is a newer master key {newest}, and what it seals can't be opened \
                     here; {how}"
                );
            }
            Err(_) => {}
        }
    }
}

async fn until(work: impl Future<Output = ()>, mut stop: tokio::sync::watch::Receiver<bool>) {
    tokio::select! {
        () = work => {}
        _ = stop.wait_for(|stop| *stop) => {}
    }
}

/// What goes on beside the doors until the replica stops: sums of reads, and a
/// sign of life.
async fn attend(
    peers: Peers,
    service: HttpService<Control>,
    mut stop: tokio::sync::watch::Receiver<bool>,
) {
    let alive = async {
        let mut ticks = interval(ALIVE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            // Without it each uses the share that it had before.
            if let Ok(replicas) = peers.say_alive().await {
                service.backend().set_replicas(replicas);
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

/// Lets logs go when their time is over, until the replica stops. Each has its
/// own, so each does it, whoever leads.
async fn tend(platform: Platform, logs: Arc<Logs>, mut stop: tokio::sync::watch::Receiver<bool>) {
    let tending = async {
        let mut ticks = interval(TEND);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let state = platform.clone();
            let tended = logs.tend(move |env| is_live(&state, env)).await;
            if let Err(error) = tended {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "logs were not removed whose time is over");
            }
            if let Err(error) = logs.share(platform.aside()).await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "what other servers heard today is not known");
            }
        }
    };
    let telling = async {
        let mut ticks = interval(TELL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            tell_quotas(&platform, &logs).await;
        }
    };
    tokio::select! {
        () = tending => {}
        () = telling => {}
        _ = stop.wait_for(|stop| *stop) => {}
    }
    logs.close().await;
}

/// Says it in the ledger when an org has printed much of its share of today.
/// What was said is in the state, so it is said once, whoever hears of it.
async fn tell_quotas(platform: &Platform, logs: &Logs) {
    let (day, here) = logs.today();
    let used: BTreeMap<_, _> = here.into_keys().map(|org| (org, logs.used(org))).collect();
    let due = platform.sequencer().read(|state| {
        let due = log_quotas_due(&state.runtime, day, &used);
        due.into_iter().map(|(org, _)| org).collect::<Vec<_>>()
    });
    if due.is_empty() {
        return;
    }
    let used = used.into_iter().filter(|(org, _)| due.contains(org));
    let used = used.collect();
    let notice = Notice::Runtime(RuntimeNotice::LogBytes { day, used });
    if let Err(error) = platform.notice("logs", None, notice).await {
        let error = &error as &dyn std::error::Error;
        tracing::warn!(error, "an org was not told how much it printed");
    }
}

fn is_live(platform: &Platform, env: EnvId) -> bool {
    platform.sequencer().read(|state| {
        let env = state.runtime.envs.get(&env);
        env.is_some_and(|env| env.deleted_at.is_none())
    })
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
