//! The HTTP layer on a double of the control plane: one list of apps.

mod double;
mod limits;
mod listeners;
mod reads;
mod streams;
mod writes;

use std::net::{IpAddr, Ipv4Addr};

use fluffy_base::Digest;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::{HeaderMap, Request};
use serde_json::Value;

use double::Double;

use super::*;
use crate::credential::{Credential, CredentialKind};

/// A service with one known token.
struct Stand {
    service: HttpService<Double>,
    double: Double,
    token: String,
}

struct Got {
    status: u16,
    headers: HeaderMap,
    value: Value,
}

impl Got {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    fn code(&self) -> &str {
        self.value["code"].as_str().unwrap_or_default()
    }
}

impl Stand {
    fn new() -> Self {
        Self::with(Options::default())
    }

    fn with(options: Options) -> Self {
        Self::on(Double::default(), options)
    }

    fn on(double: Double, options: Options) -> Self {
        let credential = Credential::generate(CredentialKind::Api).unwrap();
        double.know(credential.hash, "alice");
        Self {
            service: HttpService::new(double.clone(), options),
            double,
            token: credential.text.expose().clone(),
        }
    }

    fn request(&self, line: &str, headers: &[(&str, &str)], body: &str) -> Request<Full<Bytes>> {
        let (method, uri) = line.split_once(' ').unwrap();
        let mut request = Request::builder()
            .method(method)
            .uri(uri)
            .header("authorization", format!("Bearer {}", self.token));
        if !body.is_empty() {
            request = request.header("content-type", "application/json");
        }
        for (name, value) in headers {
            request.headers_mut().unwrap().remove(*name);
            request = request.header(*name, *value);
        }
        request
            .body(Full::new(Bytes::from(body.to_owned())))
            .unwrap()
    }

    async fn send(&self, line: &str, headers: &[(&str, &str)], body: &str) -> Got {
        self.send_from(1, self.request(line, headers, body)).await
    }

    /// Sends from the address with this last number.
    async fn send_from(&self, last: u8, request: Request<Full<Bytes>>) -> Got {
        let peer = Peer::Address(IpAddr::V4(Ipv4Addr::new(192, 0, 2, last)));
        let response = self.service.respond(Door::Public, peer, request).await;
        let (head, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        Got {
            status: head.status.as_u16(),
            headers: head.headers,
            value: serde_json::from_slice(&bytes).unwrap_or(Value::Null),
        }
    }

    async fn get(&self, path: &str) -> Got {
        self.send(&format!("GET {path}"), &[], "").await
    }

    async fn create(&self, name: &str, headers: &[(&str, &str)]) -> Got {
        let body = format!(r#"{{"name":"{name}"}}"#);
        self.send("POST /v1/orgs/acme/apps", headers, &body).await
    }
}

#[tokio::test]
async fn every_answer_says_who_it_is_and_what_is_left() {
    let stand = Stand::new();
    let long = format!("GET /v1/orgs/acme/apps?actor={}", "a".repeat(9000));
    let wide = "w".repeat(17_000);
    let large = format!(r#"{{"name":"a","description":"{}"}}"#, "d".repeat(2 << 20));
    let requests = [
        (200, "", stand.request("GET /v1/orgs/acme/apps", &[], "")),
        (200, "", stand.request("GET /v1/openapi.json", &[], "")),
        (
            400,
            "unknown_parameter",
            stand.request("GET /v1/orgs/acme/apps?colour=red", &[], ""),
        ),
        (
            400,
            "invalid_argument",
            stand.request("GET /v1/orgs/%2e%2e/apps", &[], ""),
        ),
        (
            401,
            "unauthenticated",
            stand.request("GET /v1/orgs", &[("authorization", "Basic x")], ""),
        ),
        (404, "not_found", stand.request("GET /v1/wishes", &[], "")),
        (
            405,
            "method_not_allowed",
            stand.request("PUT /v1/orgs", &[], ""),
        ),
        (
            405,
            "method_not_allowed",
            stand.request("TRACE /v1/orgs", &[], ""),
        ),
        (
            413,
            "too_large",
            stand.request("POST /v1/orgs/acme/apps", &[], &large),
        ),
        (414, "uri_too_long", stand.request(&long, &[], "")),
        (
            415,
            "unsupported_media_type",
            stand.request(
                "POST /v1/orgs/acme/apps",
                &[("content-type", "text/plain")],
                "{}",
            ),
        ),
        (
            431,
            "header_too_large",
            stand.request("GET /v1/orgs", &[("x-wide", &wide)], ""),
        ),
    ];
    for (status, code, request) in requests {
        let line = format!("{} {:.40}", request.method(), request.uri().to_string());
        let got = stand.send_from(1, request).await;
        assert_eq!((got.status, got.code()), (status, code), "{line}");
        let id = got.header("fluffy-request-id").unwrap();
        assert!(id.starts_with("req_"), "{line}");
        assert_eq!(got.header("fluffy-epoch"), Some("1"), "{line}");
        for name in ["limit", "remaining", "reset"] {
            let value = got.header(&format!("x-ratelimit-{name}")).unwrap();
            assert!(value.parse::<u64>().is_ok(), "{line}: {name}");
        }
        if status >= 400 {
            assert_eq!(got.header("content-type"), Some("application/problem+json"));
            assert_eq!(got.value["request_id"], id);
            for field in ["type", "title", "detail", "fix"] {
                assert_ne!(got.value[field].as_str().unwrap(), "", "{line}: {field}");
            }
        }
    }
}

#[tokio::test]
async fn a_path_says_which_methods_it_takes() {
    let stand = Stand::new();
    let got = stand.send("DELETE /v1/orgs/acme/policy", &[], "").await;
    assert_eq!(got.header("allow"), Some("GET, PUT"));
}

#[tokio::test]
async fn who_calls_is_known_by_the_token_alone() {
    let stand = Stand::new();
    assert_eq!(
        stand.get("/v1/auth/whoami").await.value["principal_id"],
        "alice"
    );
    let other = Credential::generate(CredentialKind::Api).unwrap();
    let refresh = Credential::generate(CredentialKind::Refresh).unwrap();
    stand.double.know(refresh.hash, "mallory");
    let shown = [
        format!("Bearer {}", other.text.expose()),
        // A known credential of another kind opens nothing.
        format!("Bearer {}", refresh.text.expose()),
        format!("Basic {}", stand.token),
        format!("Bearer {}x", stand.token),
        "Bearer".to_owned(),
        String::new(),
    ];
    for shown in &shown {
        let got = stand
            .send("GET /v1/auth/whoami", &[("authorization", shown)], "")
            .await;
        assert_eq!(
            (got.status, got.code()),
            (401, "unauthenticated"),
            "{shown}"
        );
        assert_eq!(got.header("www-authenticate"), Some("Bearer"));
    }
    assert_eq!(stand.double.failures(), shown.len());
}

#[tokio::test]
async fn what_a_server_can_do_is_told_to_everybody() {
    let stand = Stand::new();
    let request = stand.request("GET /v1/capabilities", &[("authorization", "none")], "");
    let got = stand.send_from(9, request).await;
    assert_eq!(got.status, 200);
    assert_eq!(got.value["limits"]["body_bytes"], 1 << 20);
    let document = stand.get("/v1/openapi.json").await.value;
    assert_eq!(document, fluffy_api::openapi::document());
}

#[tokio::test]
async fn a_server_that_is_full_says_so_and_does_not_hang() {
    let stand = Stand::with(Options {
        at_once: 1,
        turn: std::time::Duration::from_millis(50),
        ..Options::default()
    });
    stand.double.stall();
    let slow = stand.get("/v1/orgs/acme/apps");
    let quick = async {
        stand.double.stalled().await;
        let got = stand.get("/v1/orgs/acme/apps").await;
        stand.double.go_on();
        got
    };
    let (slow, quick) = tokio::join!(slow, quick);
    assert_eq!((quick.status, quick.code()), (503, "unavailable"));
    assert_eq!(quick.header("retry-after"), Some("1"));
    assert_eq!(slow.status, 200);
}

/// The hash of a token that nobody has.
fn nobody() -> Digest {
    Digest::of(b"nobody")
}

/// Whether a client is served is a matter of its version; others are not asked.
#[tokio::test]
async fn clients_of_ours_are_served_by_their_version_and_told_which_is_needed() {
    let stand = Stand::with(Options {
        version: "2.5.0".parse().unwrap(),
        ..Options::default()
    });
    let ask = async |line: &str, version: &str| {
        stand
            .send(line, &[("fluffy-client-version", version)], "")
            .await
    };
    let apps = "GET /v1/orgs/acme/apps";
    for served in ["2.5.7", "2.4.0", "2.3.0", "2.3.0-rc.1"] {
        assert_eq!(ask(apps, served).await.status, 200, "{served}");
    }
    for other in ["2.2.9", "2.6.0", "1.5.0", "3.5.0", "nonsense", ""] {
        // Also of what such a client may know and this server does not.
        for line in [apps, "POST /v1/orgs/acme/apps", "GET /v1/of-later"] {
            let got = ask(line, other).await;
            assert_eq!(
                (got.status, got.code()),
                (400, "version_unsupported"),
                "{other}"
            );
            assert_eq!(got.value["details"]["needed"], "2.3", "{}", got.value);
            let fix = got.value["fix"].as_str().unwrap();
            assert!(fix.contains("2.5") && fix.contains("2.3"), "{fix}");
        }
        // What the server is, it tells everybody.
        assert_eq!(ask("GET /v1/capabilities", other).await.status, 200);
        assert_eq!(ask("GET /v1/openapi.json", other).await.status, 200);
    }
    assert_eq!(stand.double.apps(), 0, "nothing was done");
    // Who names no version goes by the path.
    assert_eq!(stand.get("/v1/orgs/acme/apps").await.status, 200);
}
