//! A replica that is behind the others: it knows no token that was made a
//! moment ago, and waits for it. One that is cut off from the database hears of
//! no revocation, so it lets nobody in, and it forgets nothing that is to be on
//! record.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fluffy_api::Operation;
use fluffy_api::client::{Ask, CallError, Client, Target};
use fluffy_ledger::LedgerOptions;
use fluffy_server::backend::Control;
use fluffy_server::exec::Execs;
use fluffy_server::hashes::Hashes;
use fluffy_server::http::{self, HttpService, Listener};
use fluffy_server::loops::lease::Timing;
use fluffy_server::material::Workshop;
use fluffy_server::node::NodeDoor;
use fluffy_server::platform::{Founder, Storage};
use fluffy_server::safe::Safe;
use fluffy_server::server::{Options, Server};
use fluffy_test_kit::{FreshDatabase, Network, PrivatePostgres};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::house::{PATIENCE, ask};

const ORG: [&str; 1] = ["local"];
/// Within so long a revocation has to be in force everywhere.
const SOON: Duration = Duration::from_secs(5);

/// How a wire is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Sound,
    /// Nothing comes through, and nobody is told.
    Silent,
    /// Every connection ends.
    Broken,
}

/// What is between a replica and its database.
struct Wire {
    address: SocketAddr,
    state: watch::Sender<State>,
}

impl Wire {
    async fn to(database: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (state, seen) = watch::channel(State::Sound);
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let seen = seen.clone();
                tokio::spawn(async move {
                    let Ok(far) = TcpStream::connect(database).await else {
                        return;
                    };
                    let ((from_near, to_near), (from_far, to_far)) =
                        (near.into_split(), far.into_split());
                    let mut broken = seen.clone();
                    tokio::select! {
                        () = carry(from_near, to_far, seen.clone()) => {}
                        () = carry(from_far, to_near, seen) => {}
                        _ = broken.wait_for(|state| *state == State::Broken) => {}
                    }
                });
            }
        });
        Self { address, state }
    }

    fn is_now(&self, state: State) {
        self.state.send_replace(state);
    }
}

async fn carry(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut seen: watch::Receiver<State>,
) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        let sound = seen.wait_for(|state| *state == State::Sound).await.is_ok();
        if !sound || to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}

/// A replica, on a socket of its own.
struct Replica {
    server: Server,
    service: HttpService<Control>,
    folder: PathBuf,
}

impl Replica {
    /// One whose owner is whoever runs this, or nobody.
    async fn start(database: &str, home: &Path, name: &str, owner: Option<u32>) -> Self {
        let options = Options {
            storage: Storage::database(database.parse().unwrap()),
            ledger: LedgerOptions::default(),
            founder: Founder::Local,
            timing: Timing::default(),
        };
        let mut server = Server::start(options).await.unwrap();
        let platform = server.platform().clone();
        let (safe, error) = Safe::open(platform.aside().clone(), &home.join("keys"));
        assert!(error.is_none(), "{error:?}");
        let names = ["localhost".to_owned()];
        let door = NodeDoor::open(&platform, &safe, &names).await.unwrap();
        let execs = Execs::new(platform.clone(), safe.clone(), door.server().clone());
        let hashes = Hashes::new(platform.aside().clone());
        let no_image = Arc::new(|_| Box::pin(std::future::pending()) as _);
        let workshop = Workshop::new(hashes, safe, no_image);
        let behind = (execs, door.server().logs());
        let control = Control::new(platform, workshop, behind, owner);
        let service = HttpService::new(control, http::Options::default());
        let folder = home.join(name);
        std::fs::create_dir(&folder).unwrap();
        let listener = UnixListener::bind(folder.join("api.sock")).unwrap();
        let stop = server.stopping();
        server.open_door(service.clone().serve(Listener::Local(listener), stop));
        Self {
            server,
            service,
            folder,
        }
    }

    async fn client(&self) -> Client {
        let target = Target::Socket(self.folder.join("api.sock"));
        Client::connect(target).await.unwrap()
    }

    async fn bearer(&self, token: &Value) -> Client {
        let token = token["secret"].as_str().unwrap().to_owned();
        self.client().await.with_token(token.into())
    }

    fn applied(&self) -> u64 {
        self.server.platform().sequencer().applied().seq
    }
}

/// Two replicas over one database, one of them by a wire that can be cut.
struct Ground {
    near: Replica,
    far: Replica,
    wire: Wire,
    owner: Client,
    _home: TempDir,
    _database: FreshDatabase,
    _postgres: PrivatePostgres,
}

impl Ground {
    async fn new() -> Self {
        let network = Network {
            tls: None,
            access: "",
        };
        let postgres = PrivatePostgres::start_with(&network).unwrap();
        let database = FreshDatabase::create_in(&postgres).unwrap();
        let wire = Wire::to(postgres.listens().unwrap()).await;
        let home = tempfile::tempdir().unwrap();
        let me = Some(rustix::process::geteuid().as_raw());
        let near = Replica::start(database.url(), home.path(), "near", me).await;
        let (name, place) = (database.name(), wire.address);
        let url = format!("postgresql://fluffy@{place}/{name}?sslmode=disable");
        let far = Replica::start(&url, home.path(), "far", None).await;
        let owner = near.client().await;
        Self {
            near,
            far,
            wire,
            owner,
            _home: home,
            _database: database,
            _postgres: postgres,
        }
    }

    /// A token of a program that may look at apps.
    async fn token(&self, name: &str) -> Value {
        let body = json!({ "name": name, "grants": ["app.read.local"] });
        let robot = self.owner.send(Operation::CreatePrincipal, &ORG, &body);
        let robot: Value = robot.await.unwrap();
        let body = json!({ "principal_id": robot["id"] });
        let token = self.owner.send(Operation::CreateToken, &ORG, &body);
        token.await.unwrap()
    }

    async fn revoke(&self, token: &Value) {
        let path = ["local", token["id"].as_str().unwrap()];
        let ask = Ask::new(Operation::RevokeToken, &path);
        self.owner.call(ask).await.unwrap();
    }

    async fn stop(self) {
        self.wire.is_now(State::Sound);
        self.far.server.stop().await;
        self.near.server.stop().await;
    }
}

async fn look(client: &Client) -> Result<Value, CallError> {
    client.get(Operation::ListApps, &ORG).await
}

fn code(result: Result<Value, CallError>) -> (u16, String) {
    match result {
        Ok(_) => (200, String::new()),
        Err(CallError::Refused(problem)) => (problem.status, problem.code),
        Err(other) => panic!("{other:?}"),
    }
}

/// Looks until the answer is this one.
async fn until(client: &Client, status: u16, wanted: &str) {
    let limit = Instant::now() + PATIENCE;
    loop {
        let (now, code) = code(look(client).await);
        if (now, code.as_str()) == (status, wanted) {
            return;
        }
        assert!(Instant::now() < limit, "{now} {code}");
        sleep(Duration::from_millis(50)).await;
    }
}

async fn is_cut_off_in_time(ground: &Ground, cut: State) {
    let name = |who: &str| format!("{who}-{cut:?}").to_lowercase();
    let kept = ground.token(&name("kept")).await;
    let lost = ground.token(&name("lost")).await;
    let (kept, mallory) = (
        ground.far.bearer(&kept).await,
        ground.far.bearer(&lost).await,
    );
    until(&kept, 200, "").await;
    until(&mallory, 200, "").await;
    ground.wire.is_now(cut);
    ground.revoke(&lost).await;
    let revoked = Instant::now();
    let head = ground.near.server.platform().ledger().head().unwrap().seq;
    assert!(ground.far.applied() < head, "it has not heard of it");
    // Whoever asks later than in time is refused, also who still may.
    let (mut saw, limit) = (0, revoked + PATIENCE);
    while saw < 2 {
        for client in [&mallory, &kept] {
            let asked = Instant::now();
            let got = code(look(client).await);
            match got.0 {
                200 => assert!(asked < revoked + SOON, "{:?}", revoked.elapsed()),
                _ => {
                    assert_eq!(got, (503, "unavailable".to_owned()));
                    saw += 1;
                }
            }
        }
        assert!(Instant::now() < limit);
        sleep(Duration::from_millis(100)).await;
    }
    // The other one goes on.
    assert_eq!(code(look(&ground.owner).await).0, 200);

    // Operators see it, and a figure says how bad it is.
    let ready = ask(&ground.far.folder, "/readyz").await;
    assert!(ready.starts_with("HTTP/1.1 503"), "{ready}");
    let health = ask(&ground.far.folder, "/healthz").await;
    assert!(health.starts_with("HTTP/1.1 200"), "{health}");
    assert!(lag(&ground.far).await >= 4.0);
    assert!(lag(&ground.near).await < 4.0, "the control");

    ground.wire.is_now(State::Sound);
    until(&kept, 200, "").await;
    until(&mallory, 401, "token_revoked").await;
    let ready = ask(&ground.far.folder, "/readyz").await;
    assert!(ready.starts_with("HTTP/1.1 200"), "{ready}");
}

/// The seconds that a replica's view may lag.
async fn lag(replica: &Replica) -> f64 {
    let text = ask(&replica.folder, "/metrics").await;
    let name = "fluffy_projection_lag_seconds{name=\"platform\",quantile=\"0.99\"} ";
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_else(|| panic!("{text}")).parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_is_cut_off_lets_nobody_in_by_a_token() {
    let ground = Ground::new().await;
    // The control: what is not cut off hears of it in time.
    let token = ground.token("control").await;
    let control = ground.far.bearer(&token).await;
    until(&control, 200, "").await;
    ground.revoke(&token).await;
    let revoked = Instant::now();
    until(&control, 401, "token_revoked").await;
    assert!(revoked.elapsed() < SOON, "{:?}", revoked.elapsed());

    for cut in [State::Silent, State::Broken] {
        is_cut_off_in_time(&ground, cut).await;
    }
    ground.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_good_at_once_at_every_replica() {
    let ground = Ground::new().await;
    let states = ground.far.server.platform().sequencer().clone();
    states.hold();
    let token = ground.token("young").await;
    let client = ground.far.bearer(&token).await;
    let asked = tokio::spawn(async move { code(look(&client).await) });
    sleep(Duration::from_millis(200)).await;
    assert!(!asked.is_finished());
    states.release();
    assert_eq!(asked.await.unwrap(), (200, String::new()));
    // What nobody made waits for nothing.
    let nobody = json!({ "secret": "flf_pat_of_nobody" });
    let nobody = ground.far.bearer(&nobody).await;
    assert_eq!(code(look(&nobody).await).0, 401);
    ground.stop().await;
}

/// How many reads of a principal are in the ledger.
fn recorded(ground: &Ground, principal: &str) -> u64 {
    let events = ground.near.server.platform().ledger().read(1, 10_000);
    let sums = events.unwrap().into_iter().filter(|event| {
        event.event_type == "authz.reads_summarized" && event.aggregate.id == principal
    });
    let sums = sums.map(|event| event.payload.value().unwrap());
    sums.map(|sum| sum["count"].as_u64().unwrap()).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_read_before_a_cut_is_on_record_after_it() {
    let ground = Ground::new().await;
    let token = ground.token("reader").await;
    let principal = token["principal_id"].as_str().unwrap().to_owned();
    let reader = ground.far.bearer(&token).await;
    until(&reader, 200, "").await;
    look(&reader).await.unwrap();
    look(&reader).await.unwrap();
    ground.wire.is_now(State::Broken);
    let control = ground.far.service.backend();
    control.settle().await.unwrap_err();
    control.settle().await.unwrap_err();
    assert_eq!(recorded(&ground, &principal), 0);
    ground.wire.is_now(State::Sound);
    let limit = Instant::now() + PATIENCE;
    while control.settle().await.is_err() {
        assert!(Instant::now() < limit);
        sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(recorded(&ground, &principal), 3);
    // Once, and what came later as well.
    until(&reader, 200, "").await;
    control.settle().await.unwrap();
    control.settle().await.unwrap();
    assert_eq!(recorded(&ground, &principal), 4);
    ground.stop().await;
}
