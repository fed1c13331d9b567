//! A listener keeps the network namespace it was born in.
//!
//! So a sandbox with nothing but its own loopback can hand one out, and the
//! proxy outside accepts on it: nothing of the proxy is inside, and there is no
//! other way out. Here with `unshare`; the sandbox's tests do the same.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;

use fluffy_base::id::SandboxId;
use fluffy_egress::{AllowList, Exchange, Record, RecordError, Settings, serve};
use fluffy_test_kit::record_skip;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde_json::{Value, json};

struct Forget;

impl Record for Forget {
    fn record(&self, _: &Exchange) -> Result<(), RecordError> {
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_proxy_is_the_only_way_out_of_a_namespace() {
    let unshare = ["--map-root-user", "--net"];
    let possible = Command::new("unshare").args(unshare).arg("true").output();
    if !possible.unwrap().status.success() {
        record_skip("namespace", "this machine forbids user namespaces");
        return;
    }
    let port = server();
    // Control: outside, the server is there for anybody.
    assert!(TcpStream::connect(("127.0.0.1", port)).is_ok());

    let (ours, theirs) = UnixStream::pair().unwrap();
    let inside = Command::new("unshare")
        .args(unshare)
        .args([
            "python3",
            concat!(env!("CARGO_MANIFEST_DIR"), "/tests/inside.py"),
        ])
        .arg(port.to_string())
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let listener = tokio::task::spawn_blocking(move || receive_listener(&ours));
    let listener = listener.await.unwrap();
    let list = AllowList::parse(&[format!("registry.test:{port}=127.0.0.1")]).unwrap();
    let id = SandboxId::generate();
    let settings = Settings::new(id, "code-executor", Arc::new(list), Arc::new(Forget));
    let proxy = serve(listener, settings).unwrap();
    let output = tokio::task::spawn_blocking(move || inside.wait_with_output());
    let output = output.await.unwrap().unwrap();
    assert!(output.status.success(), "{output:?}");
    let seen: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(seen["allowed"], json!("hello"));
    assert!(
        seen["denied"].as_str().unwrap().contains("no rule allows"),
        "{seen}"
    );
    assert_eq!(seen["past"], json!([]));
    proxy.stop().await;
}

/// The descriptor that comes over the socket.
fn receive_listener(socket: &UnixStream) -> TcpListener {
    let mut bytes = [0; 16];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    TcpListener::from(descriptor.expect("a listener"))
}

/// A server that greets every request, and its port.
fn server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut request = [0; 4096];
            let _ = stream.read(&mut request);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
        }
    });
    port
}
