//! HTTP requests of a plugin: from inside the sandbox, through its proxy.
//!
//! The proxy is the only way out and asks policy about every connection; the
//! host has said yes before. One request, one connection; no redirect is
//! followed, no name resolved here, and everything is bounded.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fluffy_wasm::plugin::{Fault, Request, Response};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Method, Uri};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// Where every sandbox with a way out has its proxy.
const PROXY: &str = "127.0.0.1:3128";

const MAX_HEADERS: usize = 100;
const MAX_REQUEST: usize = 1 << 20;
const MAX_RESPONSE: usize = 2 << 20;
const MAX_TUNNEL_HEAD: usize = 16 << 10;

/// How long an exchange may take; the call's own time may be shorter.
const EXCHANGE: Duration = Duration::from_secs(60);

/// Headers that belong to the connection and not to the plugin.
const RESERVED: &[&str] = &[
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Where a request goes.
#[derive(Debug)]
pub(super) struct Target {
    scheme: Scheme,
    host: String,
    port: u16,
    uri: Uri,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scheme {
    Http,
    Https,
}

impl Target {
    /// `host:port`, as policy knows it.
    pub(super) fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

/// Where this request goes, if it is one that can be sent at all.
pub(super) fn target(request: &Request) -> Result<Target, Fault> {
    let invalid = |why: &str| Fault::Invalid(format!("the request cannot be sent: {why}"));
    if request.body.len() > MAX_REQUEST {
        return Err(Fault::TooLarge("a request body of more than 1 MiB".into()));
    }
    if request.headers.len() > MAX_HEADERS {
        return Err(Fault::TooLarge("more than 100 headers".into()));
    }
    let uri: Uri = request.url.parse().map_err(|_| invalid("no URL"))?;
    let (scheme, usual) = match uri.scheme_str() {
        Some("https") => (Scheme::Https, 443),
        Some("http") => (Scheme::Http, 80),
        _ => return Err(invalid("only `https` and `http` are spoken")),
    };
    let authority = uri.authority().ok_or_else(|| invalid("no host"))?;
    if authority.as_str().contains('@') {
        return Err(invalid("no user and password in a URL"));
    }
    let host = authority.host().to_ascii_lowercase();
    if host.is_empty() {
        return Err(invalid("no host"));
    }
    let port = match authority.port() {
        Some(port) => port.as_u16(),
        None if authority.as_str() != authority.host() => return Err(invalid("no port")),
        None => usual,
    };
    Ok(Target {
        scheme,
        host,
        port,
        uri,
    })
}

/// Sends requests through the proxy.
pub(super) struct Fetcher {
    /// Read from the machine's certificates when it is first needed.
    tls: OnceLock<Option<TlsConnector>>,
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

impl Fetcher {
    pub(super) const fn new() -> Self {
        Self {
            tls: OnceLock::new(),
        }
    }

    /// One request and the whole of its answer.
    pub(super) async fn fetch(&self, target: &Target, request: Request) -> Result<Response, Fault> {
        let exchange = async {
            let request = build(target, request)?;
            let stream = self.dial(target).await?;
            exchange(stream, request).await
        };
        let late = || Fault::Failed(format!("{} did not answer in time", target.address()));
        tokio::time::timeout(EXCHANGE, exchange)
            .await
            .unwrap_or_else(|_| Err(late()))
    }

    async fn dial(&self, target: &Target) -> Result<Box<dyn Stream>, Fault> {
        let failed = |error: std::io::Error| {
            Fault::Failed(format!("no way to {}: {error}", target.address()))
        };
        let mut stream = TcpStream::connect(PROXY).await.map_err(failed)?;
        if target.scheme == Scheme::Http {
            return Ok(Box::new(stream));
        }
        tunnel(&mut stream, &target.address()).await?;
        let connector = self.tls.get_or_init(connector).as_ref();
        let connector = connector
            .ok_or_else(|| Fault::Failed("this machine trusts no certificates".to_owned()))?;
        let name = ServerName::try_from(target.host.clone())
            .map_err(|_| Fault::Invalid("no host that a certificate could name".to_owned()))?;
        let stream = connector.connect(name, stream).await.map_err(failed)?;
        Ok(Box::new(stream))
    }
}

fn connector() -> Option<TlsConnector> {
    let mut roots = RootCertStore::empty();
    // Single damaged files are common and harm nobody.
    let found = rustls_native_certs::load_native_certs();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        return None;
    }
    let provider = Arc::new(ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .ok()?;
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Some(TlsConnector::from(Arc::new(config)))
}

/// Asks the proxy for a tunnel and reads its answer, not a byte more.
async fn tunnel(stream: &mut TcpStream, address: &str) -> Result<(), Fault> {
    let failed = |error: std::io::Error| Fault::Failed(format!("the proxy failed: {error}"));
    let ask = format!("CONNECT {address} HTTP/1.1\r\nhost: {address}\r\n\r\n");
    stream.write_all(ask.as_bytes()).await.map_err(failed)?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() >= MAX_TUNNEL_HEAD {
            return Err(Fault::Failed("the proxy answered nonsense".to_owned()));
        }
        head.push(stream.read_u8().await.map_err(failed)?);
    }
    let head = String::from_utf8_lossy(&head);
    let status = head.split_ascii_whitespace().nth(1).unwrap_or_default();
    match status {
        "200" => Ok(()),
        "403" => Err(Fault::Denied(format!("the proxy refuses {address}"))),
        status => Err(Fault::Failed(format!(
            "the proxy answered {status} for {address}"
        ))),
    }
}

fn build(target: &Target, request: Request) -> Result<hyper::Request<Full<Bytes>>, Fault> {
    let invalid = |what: &str| Fault::Invalid(format!("the request cannot be sent: {what}"));
    let method = Method::from_bytes(request.method.as_bytes())
        .ok()
        .filter(|method| method != Method::CONNECT)
        .ok_or_else(|| invalid("no such method"))?;
    let uri = match target.scheme {
        // The proxy gets the whole address, a server only the path.
        Scheme::Http => target.uri.clone(),
        Scheme::Https => {
            let path = target
                .uri
                .path_and_query()
                .map_or("/", |path| path.as_str());
            path.parse().map_err(|_| invalid("no path"))?
        }
    };
    let mut built = hyper::Request::builder().method(method).uri(uri);
    for (name, value) in request.headers {
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid("a header"))?;
        if RESERVED.contains(&name.as_str()) {
            return Err(invalid(&format!("the header `{name}` is not for plugins")));
        }
        let value = HeaderValue::from_str(&value).map_err(|_| invalid("a header's value"))?;
        built = built.header(name, value);
    }
    let authority = target.uri.authority().map_or("", |name| name.as_str());
    built
        .header(header::HOST, authority)
        .body(Full::new(Bytes::from(request.body)))
        .map_err(|_| invalid("its head"))
}

async fn exchange(
    stream: Box<dyn Stream>,
    request: hyper::Request<Full<Bytes>>,
) -> Result<Response, Fault> {
    let failed = |error: hyper::Error| Fault::Failed(format!("the exchange failed: {error}"));
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(failed)?;
    let reading = async {
        let response = sender.send_request(request).await.map_err(failed)?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, MAX_RESPONSE).collect().await;
        let body = body.map_err(|error| match error.is::<LengthLimitError>() {
            true => Fault::TooLarge("an answer of more than 2 MiB".to_owned()),
            false => Fault::Failed(format!("the answer broke off: {error}")),
        })?;
        let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let headers = head.headers.iter();
        Ok(Response {
            status: head.status.as_u16(),
            headers: headers
                .map(|(name, value)| (name.as_str().to_owned(), text(value)))
                .collect(),
            body: body.to_bytes().to_vec(),
        })
    };
    tokio::pin!(connection, reading);
    tokio::select! {
        biased;
        answer = &mut reading => answer,
        // It ends by itself when all was read; the answer is there then.
        _ = &mut connection => reading.await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(url: &str) -> Request {
        Request {
            method: "GET".to_owned(),
            url: url.to_owned(),
            headers: Vec::new(),
            body: Vec::new(),
        }
    }

    #[test]
    fn a_url_names_one_host_and_one_port() {
        let address = |url: &str| target(&request(url)).map(|target| target.address());
        assert_eq!(address("https://A.Example/x").unwrap(), "a.example:443");
        assert_eq!(address("http://a.example/x").unwrap(), "a.example:80");
        assert_eq!(address("https://a.example:8443").unwrap(), "a.example:8443");
        for url in [
            "",
            "/x",
            "a.example",
            "ftp://a.example/",
            "file:///etc/passwd",
            "https://user@a.example/",
            "https://good.example@evil.example/",
            "https://",
            "https://a.example:/",
            "https://a.example:99999/",
            "https://a b/",
        ] {
            assert!(matches!(address(url), Err(Fault::Invalid(_))), "{url}");
        }
    }

    #[test]
    fn what_belongs_to_the_connection_is_not_the_plugins() {
        let send = |change: &dyn Fn(&mut Request)| {
            let mut request = request("https://a.example/x?y");
            change(&mut request);
            let target = target(&request)?;
            build(&target, request)
        };
        let fine = send(&|request| request.headers.push(("X-A".into(), "b".into()))).unwrap();
        assert_eq!(fine.uri(), "/x?y");
        assert_eq!(fine.headers()["host"], "a.example");
        assert_eq!(fine.headers()["x-a"], "b");
        for (name, value) in [
            ("Host", "evil.example"),
            ("Content-Length", "5"),
            ("transfer-encoding", "chunked"),
            ("x y", "z"),
            ("x", "y\r\nhost: evil.example"),
        ] {
            let refused = send(&|request| request.headers.push((name.into(), value.into())));
            assert!(matches!(refused, Err(Fault::Invalid(_))), "{name}");
        }
        for method in ["CONNECT", "G ET", ""] {
            let refused = send(&|request| request.method = method.into());
            assert!(matches!(refused, Err(Fault::Invalid(_))), "{method}");
        }
        let large = send(&|request| request.body = vec![0; MAX_REQUEST + 1]);
        assert!(matches!(large, Err(Fault::TooLarge(_))));
    }
}
