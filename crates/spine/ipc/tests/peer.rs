//! Who a peer is: children, other pid namespaces, numbers that come again.
//!
//! A test that needs another process runs this program again, with its own
//! name and a role in the environment.
#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    missing_docs,
    reason = "tests"
)]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use fluffy_base::id::SandboxId;
use fluffy_ipc::server::Incident;
use fluffy_ipc::{
    ApiRange, Client, ConnectError, ErrorCode, Listener, PeerIdentity, RequestContext, Server,
};
use support::{DEADLINE, hello, wait_until};
use tokio::sync::{Notify, mpsc};

const ROLE: &str = "FLUFFY_IPC_TEST_ROLE";
const PLACE: &str = "FLUFFY_IPC_TEST_PLACE";

fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

fn place() -> PathBuf {
    std::env::var_os(PLACE).unwrap().into()
}

/// This program again, as one test in one role.
fn again(mut command: Command, test: &str, role: &str, place: &Path) -> Running {
    let child = command
        .args(["--exact", test, "--nocapture"])
        .env(ROLE, role)
        .env(PLACE, place)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    Running(child)
}

/// A child that does not outlive its test, however the test ends.
struct Running(Child);

impl Running {
    fn id(&self) -> u32 {
        self.0.id()
    }

    fn has_ended(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }

    fn succeeded(&mut self) -> bool {
        self.0.wait().unwrap().success()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn this_program() -> Command {
    Command::new(std::env::current_exe().unwrap())
}

fn in_new_pid_namespace() -> Command {
    let mut command = Command::new("unshare");
    command.args([
        "--user",
        "--map-root-user",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ]);
    command.arg(std::env::current_exe().unwrap());
    command
}

/// Whether this machine lets us make namespaces; says so if it does not.
fn namespaces_are_forbidden() -> bool {
    let tried = Command::new("unshare")
        .args([
            "--user",
            "--map-root-user",
            "--pid",
            "--fork",
            "--mount-proc",
            "true",
        ])
        .output()
        .expect("`unshare` of util-linux is needed; install util-linux");
    if !tried.status.success() {
        let why = String::from_utf8_lossy(&tried.stderr);
        eprintln!("SKIPPED: this host forbids user namespaces: {}", why.trim());
    }
    !tried.status.success()
}

/// A server that hands out each caller and answers when it is told to.
fn introducing(callers: mpsc::Sender<PeerIdentity>, answer: Arc<Notify>) -> Server {
    Server::new("test", ApiRange::current_and_previous(1)).method(
        "introduce",
        move |context: RequestContext, (): ()| {
            let (callers, answer) = (callers.clone(), Arc::clone(&answer));
            async move {
                callers.send(context.peer().clone()).await.unwrap();
                answer.notified().await;
                Ok(())
            }
        },
    )
}

async fn introduce_myself() {
    let client = Client::connect(place().join("run/a.sock"), hello())
        .await
        .unwrap();
    client.call::<_, ()>("introduce", &()).await.unwrap();
}

/// Field 22 of a process's `stat`, read independently of the product.
fn start_time(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let rest = stat.rsplit_once(") ").unwrap().1;
    rest.split(' ').nth(19).unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_child_is_known_by_its_number_and_start_until_it_ends() {
    const TEST: &str = "a_child_is_known_by_its_number_and_start_until_it_ends";
    if role().is_some() {
        return introduce_myself().await;
    }
    let directory = tempfile::tempdir().unwrap();
    let listener = Listener::bind(directory.path().join("run/a.sock")).unwrap();
    let (sender, mut callers) = mpsc::channel(1);
    let answer = Arc::new(Notify::new());
    let server = introducing(sender, Arc::clone(&answer));
    let serving = tokio::spawn(server.serve(listener, std::future::pending()));

    let mut child = again(this_program(), TEST, "client", directory.path());
    let peer = tokio::time::timeout(DEADLINE, callers.recv())
        .await
        .unwrap()
        .unwrap();
    let process = peer.process.unwrap();
    assert_eq!(process.pid, child.id());
    assert_eq!(process.start_time, start_time(child.id()));
    assert_eq!(peer.uid, Some(rustix::process::geteuid().as_raw()));
    assert_eq!(peer.gid, Some(rustix::process::getegid().as_raw()));
    assert_eq!(peer.sandbox, None);
    assert!(peer.is_running() && peer.is(process));

    answer.notify_one();
    wait_until("the child ends", || child.has_ended()).await;
    assert!(child.succeeded());
    assert!(!peer.is_running() && !peer.is(process));
    serving.abort();
}

#[tokio::test]
async fn the_socket_of_a_sandbox_names_the_sandbox_of_visible_peers_too() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run/a.sock");
    let sandbox = SandboxId::generate();
    let listener = Listener::bind_for(&path, sandbox).unwrap();
    let (sender, mut callers) = mpsc::channel(1);
    let answer = Arc::new(Notify::new());
    answer.notify_one();
    let serving = tokio::spawn(introducing(sender, answer).serve(listener, std::future::pending()));
    let client = Client::connect(&path, hello()).await.unwrap();
    client.call::<_, ()>("introduce", &()).await.unwrap();
    let peer = callers.recv().await.unwrap();
    assert_eq!(peer.sandbox, Some(sandbox));
    assert_eq!(peer.process.unwrap().pid, std::process::id());
    serving.abort();
}

/// Serves a shared socket and one of a sandbox until `stop` is called.
async fn serve_both() {
    let sandbox = fs::read_to_string(place().join("sandbox")).unwrap();
    let shared = Listener::bind(place().join("run/shared.sock")).unwrap();
    let own = Listener::bind_for(place().join("run/own.sock"), sandbox.parse().unwrap()).unwrap();
    let stop = Arc::new(Notify::new());
    let inner = Arc::clone(&stop);
    let server = Server::new("test", ApiRange::current_and_previous(1))
        .method("who", |context: RequestContext, (): ()| async move {
            let pid = context.peer().process.map(|process| process.pid);
            Ok((pid, context.peer().sandbox))
        })
        .method("stop", move |_, (): ()| {
            inner.notify_one();
            async { Ok(()) }
        });
    let counters = server.counters();
    let other = tokio::spawn(server.clone().serve(shared, std::future::pending()));
    server.serve(own, stop.notified()).await.unwrap();
    assert_eq!(counters.of(Incident::NoIdentity), 1);
    other.abort();
}

async fn connect_when_there(path: &Path) -> Result<Client, ConnectError> {
    let start = std::time::Instant::now();
    loop {
        match Client::connect(path, hello()).await {
            Err(error @ ConnectError::Unreachable { .. }) => {
                assert!(start.elapsed() < DEADLINE, "{error:?}");
                tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            }
            other => return other,
        }
    }
}

/// We are outside the server's pid namespace, so it sees us as number 0.
#[tokio::test]
async fn a_peer_from_another_pid_namespace_is_known_by_its_socket_only() {
    const TEST: &str = "a_peer_from_another_pid_namespace_is_known_by_its_socket_only";
    if role().is_some() {
        return serve_both().await;
    }
    if namespaces_are_forbidden() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let sandbox = SandboxId::generate();
    fs::write(directory.path().join("sandbox"), sandbox.to_string()).unwrap();
    let mut server = again(in_new_pid_namespace(), TEST, "server", directory.path());

    let own = connect_when_there(&directory.path().join("run/own.sock"))
        .await
        .unwrap();
    let who: (Option<u32>, Option<SandboxId>) = own.call("who", &()).await.unwrap();
    assert_eq!(who, (None, Some(sandbox)));

    let shared = connect_when_there(&directory.path().join("run/shared.sock")).await;
    match shared.unwrap_err() {
        ConnectError::Refused { failure, .. } => {
            assert_eq!(failure.code, ErrorCode::NoIdentity);
            assert!(!failure.retryable);
        }
        other => panic!("{other:?}"),
    }
    own.call::<_, ()>("stop", &()).await.unwrap();
    wait_until("the server ends", || server.has_ended()).await;
    assert!(server.succeeded());
}

/// Starts a client whose process gets exactly this number.
async fn start_with_number(number: u32, test: &str) -> Running {
    let start = std::time::Instant::now();
    loop {
        fs::write("/proc/sys/kernel/ns_last_pid", (number - 1).to_string()).unwrap();
        let child = again(this_program(), test, "client", &place());
        if child.id() == number {
            return child;
        }
        drop(child);
        assert!(
            start.elapsed() < DEADLINE,
            "number {number} never came again"
        );
        tokio::task::yield_now().await;
    }
}

async fn reuse_a_number(test: &str) {
    let listener = Listener::bind(place().join("run/a.sock")).unwrap();
    let (sender, mut callers) = mpsc::channel(1);
    let answer = Arc::new(Notify::new());
    let server = introducing(sender, Arc::clone(&answer));
    let serving = tokio::spawn(server.serve(listener, std::future::pending()));

    let mut first = again(this_program(), test, "client", &place());
    let number = first.id();
    let before = callers.recv().await.unwrap();
    let bound = before.process.unwrap();
    assert!(bound.pid == number && before.is(bound));
    answer.notify_one();
    wait_until("the first ends", || first.has_ended()).await;

    if bound.serial.is_none() {
        // Before Linux 6.9 only the clock's ticks tell the two apart.
        let uptime = || fs::read_to_string("/proc/uptime").unwrap();
        let then = uptime();
        wait_until("the clock ticks", || uptime() != then).await;
    }
    let mut second = start_with_number(number, test).await;
    let after = callers.recv().await.unwrap();
    // The control: by number alone the second would pass for the first.
    assert_eq!(after.process.unwrap().pid, bound.pid);
    assert!(after.is_running());
    assert!(!after.is(bound), "the second must not inherit");
    assert!(!before.is(bound), "the first must stay ended");
    answer.notify_one();
    wait_until("the second ends", || second.has_ended()).await;
    serving.abort();
}

#[tokio::test]
async fn a_process_does_not_inherit_with_a_number() {
    const TEST: &str = "a_process_does_not_inherit_with_a_number";
    match role().as_deref() {
        Some("client") => return introduce_myself().await,
        Some(_) => return reuse_a_number(TEST).await,
        None => {}
    }
    if namespaces_are_forbidden() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut inside = again(in_new_pid_namespace(), TEST, "server", directory.path());
    wait_until("all is done", || inside.has_ended()).await;
    assert!(inside.succeeded());
}

/// A child that inherits the connection of its dead parent is nobody.
#[tokio::test]
async fn a_connection_ends_with_the_process_that_opened_it() {
    const TEST: &str = "a_connection_ends_with_the_process_that_opened_it";
    if role().is_some() {
        // This process hands its connection on and ends; the child goes on.
        return hand_connection_to_a_child().await;
    }
    let directory = tempfile::tempdir().unwrap();
    let listener = Listener::bind(directory.path().join("run/a.sock")).unwrap();
    let server = support::ping_server();
    let counters = server.counters();
    let serving = tokio::spawn(server.serve(listener, std::future::pending()));
    let mut parent = again(this_program(), TEST, "parent", directory.path());
    wait_until("the parent ends", || parent.has_ended()).await;
    assert!(parent.succeeded());
    fs::write(directory.path().join("go"), "").unwrap();
    wait_until("the child is refused", || {
        counters.of(Incident::PeerGone) == 1
    })
    .await;
    serving.abort();
}

#[expect(
    clippy::zombie_processes,
    reason = "the child must outlive us; that is the case under test"
)]
async fn hand_connection_to_a_child() {
    let mut peer = support::RawPeer::greeted(&place().join("run/a.sock")).await;
    peer.request(1, "ping", &1).await;
    assert!(
        peer.response().await.unwrap().outcome.is_ok(),
        "the control"
    );
    let late = fluffy_ipc::message::v1::encode_request(fluffy_ipc::RequestId(2), "ping", &2);
    fs::write(place().join("late"), late.unwrap()).unwrap();
    let socket = peer.stream.into_std().unwrap();
    // A shell that writes to the connection once its parent is gone.
    let script = "for i in $(seq 3000); do [ -e go ] && exec cat late; sleep 0.01; done";
    Command::new("sh")
        .args(["-c", script])
        .current_dir(place())
        .stdin(Stdio::null())
        .stdout(std::os::fd::OwnedFd::from(socket))
        .spawn()
        .unwrap();
}
