//! The answer to a commit is lost: was it stored? Both answers are tried.
//!
//! A small proxy stands between the ledger and the server and cuts the
//! connection at the worst moment, either before the commit reaches the server
//! or after it was carried out.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

mod postgres_kit;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use fluffy_test_kit::FreshDatabase;

use postgres_kit::{Acknowledged, Load, check, draft, open};

/// What the proxy does with the next commit it sees.
const PASS: u8 = 0;
const CUT_BEFORE: u8 = 1;
const CUT_AFTER: u8 = 2;

/// The type of the events: what carries it stores them, and the commit comes
/// with it or is part of it.
const STORES: &[u8] = b"app.updated";
/// What the server says when no transaction is open any more.
const OVER: &[u8] = b"Z\0\0\0\x05I";

/// Passes bytes on between TCP clients and the server's socket.
struct Proxy {
    url: String,
    next: Arc<AtomicU8>,
}

impl Proxy {
    fn start(database: &FreshDatabase) -> Self {
        let (start, folder) = database.url().split_once("?host=").unwrap();
        let socket = PathBuf::from(folder).join(".s.PGSQL.5432");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let url = start.replace("@/", &format!("@127.0.0.1:{port}/"));
        let next = Arc::new(AtomicU8::new(PASS));
        let shared = Arc::clone(&next);
        // Ends with the process.
        thread::spawn(move || {
            for client in listener.incoming() {
                let server = UnixStream::connect(&socket).unwrap();
                join(client.unwrap(), server, &shared);
            }
        });
        Self { url, next }
    }

    /// Cuts the connection at the next commit, and waits until it has.
    fn cut(&self, how: u8) {
        self.next.store(how, Ordering::SeqCst);
    }

    fn has_cut(&self) -> bool {
        self.next.load(Ordering::SeqCst) == PASS
    }
}

fn has(chunk: &[u8], wanted: &[u8]) -> bool {
    chunk.windows(wanted.len()).any(|part| part == wanted)
}

fn join(client: TcpStream, server: UnixStream, next: &Arc<AtomicU8>) {
    client.set_nodelay(true).unwrap();
    let silent = Arc::new(Mutex::new(false));
    let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    let (next, muted) = (Arc::clone(next), Arc::clone(&silent));
    thread::spawn(move || {
        let mut bytes = vec![0; 1 << 16];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            let chunk = &bytes[..count];
            let how = if has(chunk, STORES) {
                next.swap(PASS, Ordering::SeqCst)
            } else {
                PASS
            };
            if how == CUT_BEFORE {
                break;
            }
            // Held while sending, so that no answer slips through before.
            let mut muted = muted.lock().unwrap();
            *muted |= how == CUT_AFTER;
            if to.write_all(chunk).is_err() {
                break;
            }
        }
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    });
    let (mut from, mut to) = (server, client);
    thread::spawn(move || {
        let mut bytes = vec![0; 1 << 16];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            let chunk = &bytes[..count];
            let muted = *silent.lock().unwrap();
            if muted && has(chunk, OVER) {
                break;
            }
            if !muted && to.write_all(chunk).is_err() {
                break;
            }
        }
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    });
}

#[test]
fn a_commit_whose_answer_was_lost_is_stored_exactly_once() {
    let database = FreshDatabase::create().unwrap();
    let proxy = Proxy::start(&database);
    let ledger = open(&proxy.url);
    let mut acknowledged = Acknowledged::new();
    // After two commits in peace the head is no longer asked for, and the
    // group is stored in one go; that is cut as well as the longer way.
    let ways = [
        [PASS, CUT_BEFORE, PASS, CUT_AFTER, CUT_AFTER, CUT_BEFORE],
        [PASS, PASS, PASS, CUT_BEFORE, PASS, PASS],
        [PASS, CUT_AFTER, PASS, PASS, CUT_AFTER, PASS],
    ];
    for (number, how) in ways.into_iter().flatten().enumerate() {
        let number = u64::try_from(number).unwrap();
        proxy.cut(how);
        let appended = ledger.append_blocking(draft((0, number))).unwrap();
        assert!(proxy.has_cut());
        assert_eq!(appended.last_seq, number + 1);
        acknowledged.insert(appended.last_seq, (0, number));
    }
    check(&ledger, &acknowledged);
}

#[test]
fn lost_commits_under_load_are_stored_exactly_once() {
    let database = FreshDatabase::create().unwrap();
    let proxy = Proxy::start(&database);
    let ledger = open(&proxy.url);
    let load = Load::start(&ledger, 16);
    for how in [CUT_BEFORE, CUT_AFTER].into_iter().cycle().take(10) {
        proxy.cut(how);
        let limit = std::time::Duration::from_secs(60);
        let before = load.count();
        let recovered = || (proxy.has_cut() && load.count() > before + 50).then_some(());
        fluffy_test_kit::wait_for("writers go on after a cut", limit, recovered).unwrap();
    }
    let acknowledged = load.stop();
    check(&ledger, &acknowledged);
    let stored = ledger.head().unwrap().seq;
    assert_eq!(
        stored,
        acknowledged.len() as u64,
        "stored but never acknowledged"
    );
}
