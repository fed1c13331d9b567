//! Tricks with names, each beside its control.
//!
//! The controls are what careless filters do: compare the beginning or the end
//! of a text, forget the port, know a bad address in one spelling only; and
//! what careless resolvers do: stop at a NUL, skip a user, read any number.

use std::net::IpAddr;
use std::sync::Arc;

use fluffy_contract::BoxFuture;
use tokio::io::AsyncWriteExt;

use crate::decide::{Allowed, Content, Denied, Question, Terms};
use crate::guard::Guard;
use crate::{AllowList, Decide, Settings, Target};

use super::support::{EVIL, OK, PUBLIC, Server, Stage, read_all, read_until};

/// A filter that looks at the text of a target and nothing else.
struct Careless(Filter);

type Filter = fn(&str) -> bool;

impl Decide for Careless {
    fn decide<'a>(&'a self, question: &'a Question) -> BoxFuture<'a, Result<Allowed, Denied>> {
        Box::pin(async move {
            let target = &question.target;
            if !(self.0)(&target.to_string()) {
                return Err(Denied::Undecided);
            }
            allowed_as_asked(question).await
        })
    }
}

/// A permit for whatever was asked, as its filter wants it; for a text that no
/// engine takes, one for the host that the filter took it for.
async fn allowed_as_asked(question: &Question) -> Result<Allowed, Denied> {
    let target = question.target.to_string();
    let (list, question) = match AllowList::parse(&[target]) {
        Ok(list) => (list, question.clone()),
        Err(_) => {
            let target = Target::parse(b"allowed.test:443", None).unwrap();
            let list = AllowList::parse(&[target.to_string()]).unwrap();
            let question = Question {
                target,
                ..question.clone()
            };
            (list, question)
        }
    };
    let mut allowed = list.decide(&question).await?;
    allowed.terms = Terms {
        content: Content::Any,
        ..Terms::default()
    };
    Ok(allowed)
}

#[tokio::test]
async fn a_name_that_only_begins_or_ends_like_an_allowed_one() {
    let filters: [(&str, Filter); 3] = [
        ("allowed.test.evil.test", |text| {
            text.starts_with("allowed.test")
        }),
        ("evilallowed.test", |text| text.contains("allowed.test:80")),
        ("allowed.testing", |text| text.starts_with("allowed.test")),
    ];
    for (name, filter) in filters {
        let server = Server::http(OK).await;
        let request = format!("GET http://{name}/ HTTP/1.1\r\nHost: {name}\r\n\r\n");
        let start = |stage: Stage| {
            stage.names.answer(name, &[EVIL]);
            stage.with_server(EVIL, &server).start()
        };
        let proxy = start(Stage::allowing(&["allowed.test:80", "*.allowed.test:80"]));
        let answer = proxy.talk(request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
        // A denied name is not even looked up: a lookup would carry it out.
        assert!(proxy.names.asked().is_empty());
        assert_eq!(proxy.reason().await, "denied");

        let proxy = start(Stage::deciding(Careless(filter)));
        assert!(
            proxy.talk(request.as_bytes()).await.ends_with("hello"),
            "{name}"
        );
        assert_eq!(proxy.names.asked(), [name]);
    }
}

#[tokio::test]
async fn another_port_of_an_allowed_host() {
    for port in [22, 25, 80, 8443] {
        let request = format!("CONNECT allowed.test:{port} HTTP/1.1\r\n\r\n");
        let proxy = Stage::allowing(&["allowed.test:443"]).start();
        let answer = proxy.talk(request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
        assert_eq!(proxy.record().await.port, Some(port));

        let server = Server::start("hi", "").await;
        let stage = Stage::deciding(Careless(|text| text.starts_with("allowed.test:")));
        let proxy = stage.with_server(PUBLIC, &server).start();
        proxy.tunnel(&format!("allowed.test:{port}")).await;
    }
}

/// Addresses in spellings that a list of bad ones does not have, and texts in
/// which a filter and a resolver each see another name.
#[tokio::test]
async fn a_host_that_programs_read_differently() {
    let not_bad: Filter = |text| !text.starts_with("93.184.215.15:");
    let begins: Filter = |text| text.starts_with("allowed.test");
    let ends: Filter = |text| text.ends_with(".allowed.test:443");
    for (trick, code, filter) in [
        ("1572394767", "unclear_address", not_bad),
        ("0x5db8d70f", "unclear_address", not_bad),
        ("0x5d.0xb8.0xd7.0xf", "unclear_address", not_bad),
        ("0135.0270.0327.017", "unclear_address", not_bad),
        ("93.184.55055", "unclear_address", not_bad),
        ("93.12113679", "unclear_address", not_bad),
        ("allowed.test@evil.test", "bad_host", begins),
        ("allowed.test:443@evil.test", "bad_host", begins),
        ("evil.test%00.allowed.test", "bad_host", ends),
    ] {
        for guard in [None, Some(Guard::Names)] {
            let evil = Server::start("welcome", "").await;
            let stage = Stage::deciding(Careless(filter)).with_server(EVIL, &evil);
            let proxy = stage.maybe_without(guard).start();
            let request = format!("CONNECT {trick}:443 HTTP/1.1\r\n\r\n");
            let mut stream = proxy.connect().await;
            stream.write_all(request.as_bytes()).await.unwrap();
            match guard {
                None => {
                    let answer = read_all(&mut stream).await;
                    assert!(answer.starts_with("HTTP/1.1 400 "), "{trick}: {answer}");
                    assert_eq!(proxy.reason().await, code, "{trick}");
                    assert!(proxy.names.asked().is_empty());
                }
                Some(_) => {
                    let answer = read_until(&mut stream, b"welcome").await;
                    assert!(answer.starts_with("HTTP/1.1 200 "), "{trick}: {answer}");
                }
            }
        }
    }
}

/// Addresses are refused even where everything is allowed, unless named.
#[tokio::test]
async fn an_address_instead_of_a_name() {
    for address in [
        "127.0.0.1:80",
        "[::1]:80",
        "169.254.169.254:80",
        "93.184.215.15:80",
    ] {
        let server = Server::http(OK).await;
        let request = format!("GET http://{address}/ HTTP/1.1\r\nHost: {address}\r\n\r\n");
        let to: IpAddr = address[..address.len() - 3]
            .trim_matches(['[', ']'])
            .parse()
            .unwrap();
        let start = |stage: Stage| stage.with_server(to, &server).start();
        let proxy = start(Stage::deciding(Careless(|_| true)));
        let answer = proxy.talk(request.as_bytes()).await;
        assert!(
            answer.starts_with("HTTP/1.1 403 addresses are not"),
            "{answer}"
        );
        assert_eq!(proxy.reason().await, "address_not_named");
        // Control: named exactly, it is reached.
        let proxy = start(Stage::allowing(&[address]));
        assert!(proxy.talk(request.as_bytes()).await.ends_with("hello"));
    }
}

/// A permit for one host does not connect to another.
#[tokio::test]
async fn a_permit_is_for_its_own_target() {
    struct Swapped(AllowList);
    impl Decide for Swapped {
        fn decide<'a>(&'a self, question: &'a Question) -> BoxFuture<'a, Result<Allowed, Denied>> {
            Box::pin(async move {
                let other = Question {
                    target: Target::parse(b"allowed.test:80", None).unwrap(),
                    ..question.clone()
                };
                self.0.decide(&other).await
            })
        }
    }
    let server = Server::http(OK).await;
    let list = AllowList::parse(&["allowed.test:80"]).unwrap();
    let proxy = Stage::deciding(Swapped(list))
        .with_server(EVIL, &server)
        .start();
    let request = b"GET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n";
    assert!(proxy.talk(request).await.starts_with("HTTP/1.1 503 "));
    assert_eq!(server.heard(), "");
}

#[test]
fn settings_show_no_more_than_they_should() {
    let list = Arc::new(AllowList::parse::<&str>(&[]).unwrap());
    let kept = Arc::<super::support::Kept>::default();
    let id = fluffy_base::id::SandboxId::from_bits(7);
    let shown = format!("{:?}", Settings::new(id, "kernel", list, kept));
    assert!(
        shown.contains("kernel") && shown.contains("Limits"),
        "{shown}"
    );
}
