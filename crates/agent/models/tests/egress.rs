//! Through the real egress proxy: a tunnel for TLS, whole addresses without,
//! and a refusal that is told and not tried again.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

mod support;

use std::net::SocketAddr;
use std::sync::Arc;

use fluffy_base::SystemClock;
use fluffy_base::id::SandboxId;
use fluffy_contract::model::{FaultKind, ModelEvent, Retry};
use fluffy_egress::{AllowList, Exchange, ProxyHandle, Record, RecordError, Settings, serve};
use fluffy_model_server::{Delivery, Format, ModelServer, Options};
use fluffy_models::client::{Client, Egress, ProxyAddress, Roots};
use fluffy_models::driver::Chain;
use support::*;

struct Forget;

impl Record for Forget {
    fn record(&self, _: &Exchange) -> Result<(), RecordError> {
        Ok(())
    }
}

/// A proxy that allows this alone.
fn proxy(allowed: &[String]) -> (SocketAddr, ProxyHandle) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let list = Arc::new(AllowList::parse(allowed).unwrap());
    let settings = Settings::new(SandboxId::generate(), "ai-provider", list, Arc::new(Forget));
    (address, serve(listener, settings).unwrap())
}

fn server(options: Options) -> ModelServer {
    ModelServer::start(options, |_| rich().delivered(Delivery::Pieces(11))).unwrap()
}

/// A turn by the proxy, with the server named as `localhost`.
async fn ask(server: &ModelServer, format: Format, proxy: SocketAddr) -> Vec<ModelEvent> {
    let mut link = link(server, format);
    let url = server.base_url(format).replace("127.0.0.1", "localhost");
    link.settings.base_url = url.parse().unwrap();
    let roots = server
        .certificate()
        .map_or(Roots::none(), |pem| Roots::from_pem(pem).unwrap());
    let dialer = Box::new(Egress::new(ProxyAddress::Tcp(proxy)));
    let client = Client::new(dialer, roots, quick());
    let chain = Chain::new(vec![link], Arc::new(client), Arc::new(SystemClock));
    collect(Arc::new(chain.with_rules(rules(1))).start(turn())).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_allowed_goes_through_with_tls_and_without() {
    for tls in [false, true] {
        let server = server(Options {
            tls,
            ..Options::default()
        });
        let allowed = format!("localhost:{}=127.0.0.1", server.address().port());
        let (proxy, _handle) = proxy(&[allowed]);
        for format in Format::ALL {
            let events = ask(&server, format, proxy).await;
            assert_eq!(
                plain(&answer(&events).into_message()),
                rich_plain(),
                "{format:?} {events:?}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_allowed_is_refused_with_the_reason_and_not_tried_again() {
    for tls in [false, true] {
        let server = server(Options {
            tls,
            ..Options::default()
        });
        let (proxy, _handle) = proxy(&["api.openai.com:443".to_owned()]);
        let events = ask(&server, Format::Chat, proxy).await;
        let [ModelEvent::Error(fault)] = &events[..] else {
            panic!("{events:?}");
        };
        assert_eq!(
            (fault.kind, fault.retryable),
            (FaultKind::Network, Retry::Never)
        );
        assert!(fault.message.contains("localhost"), "{}", fault.message);
        assert!(server.received().is_empty());
    }
}
