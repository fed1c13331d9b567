//! Attacks on the place of a socket, each beside what a naive bind would do.
#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

mod support;

use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::net::{UnixListener as NaiveListener, UnixStream as NaiveStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Barrier};

use fluffy_ipc::{BindError, Client, Listener};
use support::{hello, ping_server};

struct Place {
    root: tempfile::TempDir,
}

impl Place {
    /// A directory `run` of mode 0700 inside a temporary one.
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("run")).unwrap();
        set_mode(&root.path().join("run"), 0o700);
        Self { root }
    }

    fn directory(&self) -> PathBuf {
        self.root.path().join("run")
    }

    fn socket(&self) -> PathBuf {
        self.directory().join("a.sock")
    }
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

/// A socket file that nobody serves any more, as after a crash.
fn leave_stale(path: &Path) {
    drop(NaiveListener::bind(path).unwrap());
    let error = NaiveStream::connect(path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn the_socket_is_0600_in_a_0700_directory() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("run/a.sock");
    let listener = Listener::bind(&path).unwrap();
    assert_eq!(mode(&path), 0o600);
    assert_eq!(mode(path.parent().unwrap()), 0o700);
    drop(listener);
    assert!(!path.exists(), "the socket goes with its listener");

    let _control = NaiveListener::bind(&path).unwrap();
    assert_ne!(mode(&path), 0o600, "a naive bind leaves it to the umask");
}

#[tokio::test]
async fn a_symlink_as_parent_is_refused() {
    let place = Place::new();
    let link = place.root.path().join("link");
    symlink(place.directory(), &link).unwrap();
    let error = Listener::bind(link.join("a.sock")).unwrap_err();
    assert!(
        matches!(&error, BindError::UnsafeDirectory { directory, .. } if *directory == link),
        "{error:?}"
    );
    assert!(!place.socket().exists());

    let control = NaiveListener::bind(link.join("a.sock")).unwrap();
    assert!(place.socket().exists(), "a naive bind follows the link");
    drop(control);
    Listener::bind(place.socket()).unwrap();
}

#[tokio::test]
async fn a_directory_open_to_others_is_refused() {
    let place = Place::new();
    for open in [0o770, 0o702, 0o777, 0o1777, 0o755, 0o710] {
        set_mode(&place.directory(), open);
        let error = Listener::bind(place.socket()).unwrap_err();
        assert!(
            matches!(error, BindError::UnsafeDirectory { .. }),
            "{open:o}: {error:?}"
        );
        assert!(error.hint().contains("chmod 700"));
        drop(NaiveListener::bind(place.socket()).expect("a naive bind does not look"));
        fs::remove_file(place.socket()).unwrap();
    }
    set_mode(&place.directory(), 0o700);
    Listener::bind(place.socket()).unwrap();
}

#[tokio::test]
async fn a_directory_of_another_user_is_refused() {
    let place = Place::new();
    let refused = |path: PathBuf| {
        let error = Listener::bind(path).unwrap_err();
        assert!(error.to_string().contains("another user"), "{error}");
    };
    if rustix::process::geteuid().is_root() {
        chown(place.directory(), Some(1), None).unwrap();
        refused(place.socket());
        drop(NaiveListener::bind(place.socket()).expect("a naive bind does not look"));
        fs::remove_file(place.socket()).unwrap();
        chown(place.directory(), Some(0), None).unwrap();
        Listener::bind(place.socket()).unwrap();
    } else {
        // Without the right to give a directory away: one that is root's.
        refused(PathBuf::from("/a.sock"));
        Listener::bind(place.socket()).unwrap();
    }
}

#[tokio::test]
async fn a_path_is_as_long_as_an_address_allows_and_no_longer() {
    let place = Place::new();
    let limit = if cfg!(target_os = "linux") { 107 } else { 103 };
    let used = place.directory().as_os_str().len() + 1;
    let longest = place.directory().join("x".repeat(limit - used));
    drop(Listener::bind(&longest).unwrap());
    let longer = place.directory().join("x".repeat(limit - used + 1));
    let error = Listener::bind(&longer).unwrap_err();
    assert!(
        error
            .to_string()
            .contains(&format!("{} bytes where {limit}", limit + 1)),
        "{error}"
    );
    assert!(error.hint().contains("shorter"));
}

#[tokio::test]
async fn a_relative_path_is_refused() {
    for path in ["a.sock", "./a.sock", "/", "/tmp/.."] {
        let error = Listener::bind(path).unwrap_err();
        assert!(
            matches!(error, BindError::NotAbsolute { .. }),
            "{path}: {error:?}"
        );
    }
}

#[tokio::test]
async fn a_stale_socket_is_replaced() {
    let place = Place::new();
    leave_stale(&place.socket());
    let naive = NaiveListener::bind(place.socket()).unwrap_err();
    assert_eq!(naive.kind(), ErrorKind::AddrInUse, "a naive bind gives up");

    let listener = Listener::bind(place.socket()).unwrap();
    let serving = tokio::spawn(ping_server().serve(listener, std::future::pending()));
    let client = Client::connect(place.socket(), hello()).await.unwrap();
    assert_eq!(client.call::<_, u64>("ping", &1).await.unwrap(), 1);
    serving.abort();
}

#[tokio::test]
async fn a_live_socket_is_not_stolen() {
    let place = Place::new();
    let ours = Listener::bind(place.socket()).unwrap();
    let error = Listener::bind(place.socket()).unwrap_err();
    assert!(matches!(error, BindError::InUse { .. }), "{error:?}");
    drop(ours);

    // A server that knows nothing of our lock is not robbed either.
    let foreign = NaiveListener::bind(place.socket()).unwrap();
    let error = Listener::bind(place.socket()).unwrap_err();
    assert!(matches!(error, BindError::InUse { .. }), "{error:?}");
    let probe = foreign.accept().unwrap();
    drop(probe);
    let _peer = NaiveStream::connect(place.socket()).expect("it is still there");
    foreign.accept().unwrap();
}

#[tokio::test]
async fn a_live_socket_with_a_full_backlog_is_neither_stolen_nor_waited_for() {
    let place = Place::new();
    let busy = NaiveListener::bind(place.socket()).unwrap();
    rustix::net::listen(&busy, 0).unwrap();
    let mut waiting = Vec::new();
    let full = loop {
        match tokio::net::UnixStream::connect(place.socket()).await {
            Ok(stream) => waiting.push(stream),
            Err(error) => break error,
        }
    };
    assert_eq!(full.kind(), ErrorKind::WouldBlock);
    let error = Listener::bind(place.socket()).unwrap_err();
    assert!(matches!(error, BindError::InUse { .. }), "{error:?}");
}

#[tokio::test]
async fn what_is_no_socket_is_left_alone() {
    let place = Place::new();
    let victim = place.root.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    fs::write(place.socket(), "a file").unwrap();
    let error = Listener::bind(place.socket()).unwrap_err();
    assert!(matches!(error, BindError::NotOurSocket { .. }), "{error:?}");
    assert_eq!(fs::read_to_string(place.socket()).unwrap(), "a file");

    fs::remove_file(place.socket()).unwrap();
    symlink(&victim, place.socket()).unwrap();
    let error = Listener::bind(place.socket()).unwrap_err();
    assert!(matches!(error, BindError::NotOurSocket { .. }), "{error:?}");
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    assert_eq!(fs::metadata(&victim).unwrap().mode() & 0o777, mode(&victim));
}

#[tokio::test]
async fn a_listener_removes_only_the_socket_it_made() {
    let place = Place::new();
    let listener = Listener::bind(place.socket()).unwrap();
    fs::remove_file(place.socket()).unwrap();
    fs::write(place.socket(), "somebody else's").unwrap();
    drop(listener);
    assert_eq!(
        fs::read_to_string(place.socket()).unwrap(),
        "somebody else's"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_that_start_at_once_exactly_one_serves() {
    const STARTERS: usize = 16;
    for round in 0..20 {
        let place = Place::new();
        if round % 2 == 0 {
            leave_stale(&place.socket());
        }
        let barrier = Arc::new(Barrier::new(STARTERS));
        let runtime = tokio::runtime::Handle::current();
        let starters: Vec<_> = (0..STARTERS)
            .map(|_| {
                let (barrier, runtime) = (Arc::clone(&barrier), runtime.clone());
                let path = place.socket();
                std::thread::spawn(move || {
                    let _context = runtime.enter();
                    barrier.wait();
                    Listener::bind(path)
                })
            })
            .collect();
        let outcomes: Vec<_> = starters.into_iter().map(|s| s.join().unwrap()).collect();
        let winners = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        assert_eq!(winners, 1, "round {round}: {outcomes:?}");
        for outcome in &outcomes {
            if let Err(error) = outcome {
                assert!(matches!(error, BindError::InUse { .. }), "{error:?}");
            }
        }
        assert!(
            NaiveStream::connect(place.socket()).is_ok(),
            "round {round}"
        );
    }
}
