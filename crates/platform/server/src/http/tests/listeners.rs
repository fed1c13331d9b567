//! Real connections: the socket, TLS in both versions of HTTP, the doors, and
//! how many there are.

use std::time::Duration;

use fluffy_api::Operation;
use fluffy_api::client::{Ask, CallError, ChangeKind, Client, Seen, Target};
use fluffy_api::types::Gone;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use super::*;

/// A service that listens until this is dropped.
struct Served {
    _stop: watch::Sender<bool>,
    task: tokio::task::JoinHandle<()>,
}

fn serve(stand: &Stand, listener: Listener) -> Served {
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(stand.service.clone().serve(listener, stopped));
    Served { _stop: stop, task }
}

async fn said(
    mut stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    text: &str,
) -> String {
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// A certificate for `localhost` that signs itself, and a client that trusts it.
async fn over_tls(stand: &Stand) -> (Served, std::net::SocketAddr, String) {
    let key = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let private = PrivateKeyDer::Pkcs8(key.signing_key.serialize_der().into());
    let acceptor = Tls::new(vec![key.cert.der().clone()], private).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let served = serve(stand, Listener::Public(listener, acceptor));
    (served, address, key.cert.pem())
}

#[tokio::test]
async fn the_client_speaks_to_the_socket() {
    let stand = Stand::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("api.sock");
    let served = serve(&stand, Listener::Local(UnixListener::bind(&path).unwrap()));
    let client = Client::connect(Target::Socket(path.clone())).await.unwrap();

    let who: Value = client.get(Operation::Whoami, &[]).await.unwrap();
    assert_eq!(who["principal_id"], "local");
    let body = serde_json::json!({ "name": "shop" });
    let made: Value = client
        .send(Operation::CreateApp, &["acme"], &body)
        .await
        .unwrap();
    assert_eq!(made["name"], "shop");
    assert_eq!(client.seen(), Some(Seen { epoch: 1, seq: 1 }));
    let again = client
        .send::<Value>(Operation::CreateApp, &["acme"], &body)
        .await;
    let Err(CallError::Refused(problem)) = again else {
        panic!("{again:?}")
    };
    assert_eq!((problem.code.as_str(), problem.status), ("name_taken", 409));
    assert!(problem.request_id.starts_with("req_"));

    for name in ["a", "b", "c"] {
        let body = serde_json::json!({ "name": name });
        client
            .send::<Value>(Operation::CreateApp, &["acme"], &body)
            .await
            .unwrap();
    }
    let ask = Ask::new(Operation::ListApps, &["acme"]).query("limit", "2");
    let all: Vec<Value> = client.list(ask).await.unwrap();
    assert_eq!(all.len(), 4);

    let ask = Ask::new(Operation::ListApps, &["acme"]);
    let mut changes = client.watch(ask, None).await.unwrap();
    for _ in 0..4 {
        assert_eq!(
            changes.next().await.unwrap().unwrap().kind,
            ChangeKind::Snapshot
        );
    }
    assert_eq!(
        changes.next().await.unwrap().unwrap().kind,
        ChangeKind::Synced
    );
    let gone: Gone = client
        .get(Operation::DeleteApp, &["acme", "a"])
        .await
        .unwrap();
    assert!(gone.deleted);
    let change = changes.next().await.unwrap().unwrap();
    assert_eq!(
        (change.kind, change.value["id"].as_str()),
        (ChangeKind::Delete, Some("a"))
    );

    drop(changes);
    drop(client);
    drop(served._stop);
    served.task.await.unwrap();
    assert!(matches!(
        Client::connect(Target::Socket(path)).await,
        Err(CallError::Unreachable { .. })
    ));
}

#[tokio::test]
async fn the_client_speaks_tls_and_trusts_only_whom_it_was_told() {
    let stand = Stand::new();
    let (_served, address, ca) = over_tls(&stand).await;
    let target = |ca: &str| Target::Https {
        url: format!("https://localhost:{}", address.port()),
        ca: Some(ca.to_owned()),
    };
    let client = Client::connect(target(&ca)).await.unwrap();
    let refused = client.get::<Value>(Operation::Whoami, &[]).await;
    assert!(matches!(refused, Err(CallError::Refused(problem)) if problem.status == 401));
    let client = client.with_token(stand.token.clone().into());
    let who: Value = client.get(Operation::Whoami, &[]).await.unwrap();
    assert_eq!(who["principal_id"], "alice");
    let stranger = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let refused = Client::connect(target(&stranger.cert.pem())).await;
    assert!(
        matches!(refused, Err(CallError::Unreachable { .. })),
        "{refused:?}"
    );
}

/// What asks over HTTP/2, and the connection, which answers pings.
type Http2 = (
    hyper::client::conn::http2::SendRequest<Full<Bytes>>,
    JoinHandle<hyper::Result<()>>,
);

async fn http2(address: std::net::SocketAddr, ca: &str) -> Http2 {
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use tokio_rustls::rustls::crypto::ring;
    use tokio_rustls::rustls::pki_types::CertificateDer;
    use tokio_rustls::rustls::pki_types::pem::PemObject as _;
    use tokio_rustls::rustls::{ClientConfig, RootCertStore};

    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(ca.as_bytes()).unwrap())
        .unwrap();
    let mut config = ClientConfig::builder_with_provider(ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
    let stream = TcpStream::connect(address).await.unwrap();
    let stream = connector
        .connect("localhost".try_into().unwrap(), stream)
        .await
        .unwrap();
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    (sender, tokio::spawn(connection))
}

#[tokio::test]
async fn http2_is_spoken_where_a_client_asks_for_it() {
    let stand = Stand::new();
    let (_served, address, ca) = over_tls(&stand).await;
    let (mut sender, _connection) = http2(address, &ca).await;
    let request = stand.request("GET https://localhost/v1/auth/whoami", &[], "");
    let response = sender.send_request(request).await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.version(), hyper::Version::HTTP_2);
}

/// However alive a connection is, it is there to be asked by.
#[tokio::test]
async fn a_connection_that_asks_nothing_ends_and_one_that_does_goes_on() {
    let limit = Duration::from_millis(300);
    let stand = Stand::with(Options {
        idle: limit,
        ..Options::default()
    });
    let (_served, address, ca) = over_tls(&stand).await;
    let ended = async |connection: JoinHandle<hyper::Result<()>>| {
        timeout(Duration::from_secs(30), connection).await.is_ok()
    };
    let begun = tokio::time::Instant::now();
    let (_sender, connection) = http2(address, &ca).await;
    assert!(ended(connection).await);
    assert!(begun.elapsed() >= limit);

    // One that waits for news has asked, for as long as it does.
    let (mut sender, watching) = http2(address, &ca).await;
    let watch = [("accept", "text/event-stream")];
    let request = stand.request("GET https://localhost/v1/orgs/acme/apps", &watch, "");
    let mut news = sender.send_request(request).await.unwrap().into_body();
    // And one that asks now and then is not idle.
    let (mut sender, asking) = http2(address, &ca).await;
    for _ in 0..10 {
        sleep(limit / 3).await;
        let request = stand.request("GET https://localhost/v1/auth/whoami", &[], "");
        let answer = sender.send_request(request).await.unwrap();
        assert_eq!(answer.status(), 200);
    }
    assert!(!watching.is_finished() && !asking.is_finished());
    assert_eq!(stand.create("shop", &[]).await.status, 201);
    let mut told = String::new();
    while !told.contains("shop") {
        let frame = news.frame().await.unwrap().unwrap();
        told.push_str(&String::from_utf8_lossy(frame.data_ref().unwrap()));
    }
    drop(news);
    assert!(ended(watching).await && ended(asking).await);
}

/// Connects from an address of this machine.
async fn from(last: u8, to: std::net::SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, last], 0).into()).unwrap();
    socket.connect(to).await.unwrap()
}

/// Whether a connection on which nothing was asked was closed.
async fn is_closed(stream: &mut TcpStream, within: Duration) -> bool {
    let mut byte = [0];
    let read = timeout(within, stream.read(&mut byte)).await;
    matches!(read, Ok(Ok(0) | Err(_)))
}

#[tokio::test]
async fn one_address_never_has_a_whole_listener() {
    const ASK: &str = "GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let stand = Stand::with(Options {
        connections: 8,
        ..Options::default()
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let _operators = serve(&stand, Listener::Operators(listener));

    let mut crowd = Vec::new();
    for _ in 0..6 {
        crowd.push(from(2, address).await);
    }
    for _ in 0..20 {
        let mut more = from(2, address).await;
        assert!(is_closed(&mut more, Duration::from_secs(30)).await);
    }
    for stream in &mut crowd {
        assert!(!is_closed(stream, Duration::from_millis(10)).await);
    }
    // Others are answered.
    assert!(said(from(3, address).await, ASK).await.ends_with("ok\n"));
    // The control: with the help of another address all is taken, and everybody
    // waits until somebody leaves.
    for _ in 0..2 {
        crowd.push(from(4, address).await);
    }
    let late = tokio::spawn(said(from(3, address).await, ASK));
    sleep(Duration::from_millis(300)).await;
    assert!(!late.is_finished());
    crowd.truncate(7);
    assert!(late.await.unwrap().ends_with("ok\n"));
    // Who was refused is let in again, as well.
    crowd.truncate(5);
    let again = async {
        loop {
            let mut more = from(2, address).await;
            if !is_closed(&mut more, Duration::from_millis(100)).await {
                break;
            }
        }
    };
    timeout(Duration::from_secs(30), again).await.unwrap();
}

#[tokio::test]
async fn each_door_answers_what_it_is_for() {
    let stand = Stand::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let operators = listener.local_addr().unwrap();
    let _operators = serve(&stand, Listener::Operators(listener));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("api.sock");
    let _local = serve(&stand, Listener::Local(UnixListener::bind(&path).unwrap()));

    let ask = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    for (path, good) in [
        ("/healthz", "ok"),
        ("/readyz", "ready"),
        ("/metrics", "fluffy_double 1"),
    ] {
        let stream = TcpStream::connect(operators).await.unwrap();
        let answer = said(stream, &ask(path)).await;
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.contains(good),
            "{answer}"
        );
        // The control: the public door has none of it.
        assert_eq!(stand.get(path).await.status, 404, "{path}");
    }
    let stream = TcpStream::connect(operators).await.unwrap();
    let answer = said(stream, &ask("/v1/capabilities")).await;
    assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
    let local = UnixStream::connect(&path).await.unwrap();
    let answer = said(local, &ask("/metrics")).await;
    assert!(answer.contains("fluffy_http_answers_total{operation=\"none\",status=\"404\"}"));
    stand.double.hold();
    let stream = TcpStream::connect(operators).await.unwrap();
    let answer = said(stream, &ask("/readyz")).await;
    assert!(
        answer.starts_with("HTTP/1.1 503") && answer.contains("stands still"),
        "{answer}"
    );
}

#[tokio::test]
async fn a_body_is_bounded_however_it_is_announced() {
    let stand = Stand::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("api.sock");
    let _local = serve(&stand, Listener::Local(UnixListener::bind(&path).unwrap()));
    let head = "POST /v1/orgs/acme/apps HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
                content-type: application/json\r\n";
    let announced = format!("{head}content-length: 9999999999\r\n\r\n");
    let chunk = format!("100000\r\n{}\r\n", " ".repeat(1 << 20));
    let chunked = format!("{head}transfer-encoding: chunked\r\n\r\n{chunk}{chunk}");
    for request in [announced, chunked] {
        let mut stream = UnixStream::connect(&path).await.unwrap();
        // It may be refused before all of it is sent.
        let _ = stream.write_all(request.as_bytes()).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
        assert!(answer.contains("\"code\":\"too_large\""), "{answer}");
    }
}

/// What a client of an exec session sends.
fn knock(token: &str) -> String {
    format!(
        "GET /v1/orgs/acme/exec/exec_1/connect HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\n\
         upgrade: websocket\r\nsec-websocket-version: 13\r\n\
         sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         sec-websocket-protocol: fluffy.exec.v1, bearer.{token}\r\n\r\n"
    )
}

#[tokio::test]
async fn an_exec_session_opens_by_its_token_and_carries_bytes() {
    let stand = Stand::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("api.sock");
    let _local = serve(&stand, Listener::Local(UnixListener::bind(&path).unwrap()));
    let good = Credential::generate(CredentialKind::Exec).unwrap();
    let mut session = stand.double.expect_exec(good.hash);

    // The controls: no token, another one, one of another kind that is known.
    let other = Credential::generate(CredentialKind::Exec).unwrap();
    for token in ["x", other.text.expose(), &stand.token] {
        let mut stream = UnixStream::connect(&path).await.unwrap();
        stream.write_all(knock(token).as_bytes()).await.unwrap();
        let mut answer = vec![0; 4096];
        let read = stream.read(&mut answer).await.unwrap();
        let answer = String::from_utf8_lossy(&answer[..read]).into_owned();
        assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
        assert!(answer.contains("exec_token_invalid"), "{answer}");
        assert!(session.to_node.try_recv().is_err());
    }

    let mut stream = UnixStream::connect(&path).await.unwrap();
    stream
        .write_all(knock(good.text.expose()).as_bytes())
        .await
        .unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(stream.read_u8().await.unwrap());
    }
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 101"), "{answer}");
    assert!(
        answer.contains("sec-websocket-protocol: fluffy.exec.v1\r\n"),
        "{answer}"
    );
    assert!(!answer.contains(good.text.expose().as_str()));
    // A masked binary message of type stdin: `hi`.
    stream
        .write_all(&[0x82, 0x83, 0, 0, 0, 0, 0x01, b'h', b'i'])
        .await
        .unwrap();
    let sent = session.to_node.recv().await.unwrap();
    assert!(format!("{sent:?}").contains("Stdin"), "{sent:?}");
    drop(stream);
    drop(session.from_node);
    let ended = session.ended.await.unwrap();
    assert_eq!((ended.bytes_in, ended.bytes_out), (2, 0));
}

#[tokio::test]
async fn what_is_no_websocket_opens_nothing() {
    let stand = Stand::new();
    let good = Credential::generate(CredentialKind::Exec).unwrap();
    let _session = stand.double.expect_exec(good.hash);
    let got = stand.get("/v1/orgs/acme/exec/exec_1/connect").await;
    assert_eq!((got.status, got.code()), (400, "invalid_argument"));
}

/// What was refused before its body was read is read to its end, so that the
/// next call on the connection is answered.
#[tokio::test]
async fn a_connection_survives_a_body_that_nobody_wanted() {
    let stand = Stand::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("api.sock");
    let _served = serve(&stand, Listener::Local(UnixListener::bind(&path).unwrap()));
    // A place that is none, and a body that is too large.
    for (place, size, status) in [("nowhere", 48 << 10, 404), ("orgs/acme/apps", 2 << 20, 413)] {
        let mut stream = UnixStream::connect(&path).await.unwrap();
        let head = format!(
            "POST /v1/{place} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
             idempotency-key: one\r\ncontent-length: {size}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        // The rest comes once the server has had time to answer.
        sleep(Duration::from_millis(50)).await;
        stream.write_all(&vec![b'x'; size]).await.unwrap();
        let next = "GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        let answers = said(stream, next).await;
        let expected = format!("HTTP/1.1 {status}");
        assert!(answers.starts_with(&expected), "{answers}");
        assert!(answers.ends_with("ok\n"), "{answers}");
    }
}
