//! The worker's main loop behind its handle, against a real server.
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

use std::time::Duration;

use fluffy_contract::model::{
    FaultKind, ModelEvent, ModelProvider as _, ModelStream, StartTurnError,
};
use fluffy_model_server::{Delivery, Fault, Format, ModelServer, Options, Reply};
use fluffy_models::worker::{ProxySetup, Setup, SetupLink, WorkerHandle, serve};
use fluffy_policy::Permit;
use fluffy_test_kit::permit;
use support::*;
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;
use tokio::task::JoinHandle;

const KEY: &str = "worker-key-456";

type Served = JoinHandle<Result<(), fluffy_models::worker::ServeError>>;

async fn worker(server: &ModelServer, format: Format) -> (WorkerHandle, Served) {
    let link = SetupLink {
        settings: settings(server, format),
        model: MODEL.into(),
    };
    let mut setup = Setup::new(vec![link], ProxySetup::Loopback);
    setup.roots = server.certificate().map(str::to_owned);
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (read, write) = theirs.into_split();
    let served = tokio::spawn(serve(read, write));
    let (read, write) = ours.into_split();
    let keys = vec![Some(KEY.to_owned().into())];
    let handle = WorkerHandle::start(write, read, setup, keys).await.unwrap();
    (handle, served)
}

fn allowed(server: &ModelServer) -> Permit {
    permit("net.connect", Some(&server.address().to_string()))
}

async fn all(mut stream: Box<dyn ModelStream>) -> Vec<ModelEvent> {
    let mut events = Vec::new();
    while let Some(event) = stream.next().await {
        events.push(event);
    }
    events
}

#[tokio::test]
async fn turns_are_answered_side_by_side_in_every_format_with_the_key() {
    for format in Format::ALL {
        let options = Options {
            key: Some(KEY.into()),
            ..Options::default()
        };
        let server = ModelServer::start(options, |_| rich().delivered(Delivery::Bytes)).unwrap();
        let (worker, served) = worker(&server, format).await;
        let mut streams = Vec::new();
        for _ in 0..4 {
            streams.push(worker.start(allowed(&server), turn()).await.unwrap());
        }
        for stream in streams {
            let events = all(stream).await;
            assert_eq!(
                plain(&answer(&events).into_message()),
                rich_plain(),
                "{format:?}"
            );
        }
        drop(worker);
        served.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn tls_is_spoken_with_those_who_are_trusted_only() {
    let start = || {
        let options = Options {
            tls: true,
            ..Options::default()
        };
        ModelServer::start(options, |_| Reply::text("in secret")).unwrap()
    };
    let (server, other) = (start(), start());
    let (trusting, _served) = worker(&server, Format::Anthropic).await;
    let events = all(trusting.start(allowed(&server), turn()).await.unwrap()).await;
    assert_eq!(answer(&events).text(), "in secret");
    // The same worker, but with the certificate of another server.
    let link = SetupLink {
        settings: settings(&server, Format::Chat),
        model: MODEL.into(),
    };
    let mut setup = Setup::new(vec![link], ProxySetup::Loopback);
    setup.roots = other.certificate().map(str::to_owned);
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (read, write) = theirs.into_split();
    let _served = tokio::spawn(serve(read, write));
    let (read, write) = ours.into_split();
    let wary = WorkerHandle::start(write, read, setup, vec![None])
        .await
        .unwrap();
    let events = all(wary.start(allowed(&server), turn()).await.unwrap()).await;
    let [ModelEvent::Error(fault)] = &events[..] else {
        panic!("{events:?}");
    };
    assert_eq!(fault.kind, FaultKind::Network);
    assert!(fault.message.contains("TLS"), "{}", fault.message);
    assert_eq!(server.received().len(), 1, "nothing was said to a stranger");
}

#[tokio::test]
async fn a_dropped_turn_is_cancelled_and_others_go_on() {
    let mut number = 0;
    let server = ModelServer::thinking(move |_| {
        number += 1;
        match number {
            1 => Reply::failing(Fault::HangAfter { events: 5 }),
            _ => Reply::text("still here"),
        }
    })
    .unwrap();
    let (worker, _served) = worker(&server, Format::Chat).await;
    let mut hanging = worker.start(allowed(&server), turn()).await.unwrap();
    assert!(hanging.next().await.is_some());
    drop(hanging);
    let events = all(worker.start(allowed(&server), turn()).await.unwrap()).await;
    assert_eq!(answer(&events).text(), "still here");
}

#[tokio::test]
async fn a_permit_for_something_else_starts_nothing() {
    let server = ModelServer::scripted(vec![]).unwrap();
    let (worker, _served) = worker(&server, Format::Chat).await;
    for wrong in [
        permit("net.connect", Some("example.com:443")),
        permit("shell.exec", None),
    ] {
        let refused = worker.start(wrong, turn()).await;
        assert!(matches!(refused, Err(StartTurnError::WrongPermit { .. })));
    }
    assert!(server.received().is_empty());
}

#[tokio::test]
async fn a_worker_that_ends_is_noticed_in_the_middle_and_afterwards() {
    let server =
        ModelServer::scripted(vec![Reply::failing(Fault::HangAfter { events: 5 })]).unwrap();
    let (worker, served) = worker(&server, Format::Chat).await;
    let mut stream = worker.start(allowed(&server), turn()).await.unwrap();
    assert!(stream.next().await.is_some());
    served.abort();
    let last = loop {
        match tokio::time::timeout(Duration::from_secs(20), stream.next())
            .await
            .unwrap()
        {
            Some(ModelEvent::Error(fault)) => break fault,
            Some(_) => {}
            None => panic!("ended without a word"),
        }
    };
    assert_eq!(last.kind, FaultKind::Network);
    assert!(stream.next().await.is_none());
    let refused = worker.start(allowed(&server), turn()).await;
    assert!(matches!(refused, Err(StartTurnError::Unreachable { .. })));
}

#[tokio::test]
async fn nonsense_ends_the_worker_with_a_reason() {
    let setup = |version: u32| {
        let body = format!(
            "{{\"kind\":\"setup\",\"version\":{version},\"links\":[],\"proxy\":{{\"kind\":\"loopback\"}}}}"
        );
        let mut bytes = vec![0, 0, 0, 0];
        bytes.extend_from_slice(&u32::try_from(body.len()).unwrap().to_be_bytes());
        bytes.extend_from_slice(body.as_bytes());
        bytes
    };
    for (bytes, wanted) in [
        (u32::MAX.to_be_bytes().to_vec(), "the keys are too long"),
        (vec![0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff], "no message"),
        (vec![0, 0, 0, 0, 0, 0, 0, 2, b'{', b'}'], "no message"),
        (setup(9), "another version"),
        (setup(1), "it names no model"),
    ] {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let (read, write) = theirs.into_split();
        let served = tokio::spawn(serve(read, write));
        ours.write_all(&bytes).await.unwrap();
        let error = served.await.unwrap().unwrap_err();
        assert!(error.to_string().contains(wanted), "{error}");
    }
    // A kernel that goes away before it has said anything is no error.
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let (read, write) = theirs.into_split();
    let served = tokio::spawn(serve(read, write));
    ours.write_all(&[0, 0, 0, 0]).await.unwrap();
    drop(ours);
    assert!(served.await.unwrap().is_ok());
}

#[tokio::test]
async fn the_process_runs_on_pipes_and_cannot_be_looked_into() {
    let server = ModelServer::scripted(vec![Reply::text("by pipe")]).unwrap();
    let (their_input, our_input) = std::io::pipe().unwrap();
    let (our_output, their_output) = std::io::pipe().unwrap();
    let process = std::thread::spawn(move || {
        fluffy_models::worker::run(their_input.into(), their_output.into())
    });
    let input = tokio::net::unix::pipe::Sender::from_owned_fd(our_input.into()).unwrap();
    let output = tokio::net::unix::pipe::Receiver::from_owned_fd(our_output.into()).unwrap();
    let link = SetupLink {
        settings: settings(&server, Format::Gemini),
        model: MODEL.into(),
    };
    let setup = Setup::new(vec![link], ProxySetup::Loopback);
    let keys = vec![Some(KEY.to_owned().into())];
    let handle = WorkerHandle::start(input, output, setup, keys)
        .await
        .unwrap();
    let events = all(handle.start(allowed(&server), turn()).await.unwrap()).await;
    assert_eq!(answer(&events).text(), "by pipe");
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{DumpableBehavior, dumpable_behavior};
        assert_eq!(dumpable_behavior().unwrap(), DumpableBehavior::NotDumpable);
    }
    drop(handle);
    // The runtime has to go on, or the pipe would never be closed.
    let ended = tokio::task::spawn_blocking(move || process.join());
    ended.await.unwrap().unwrap().unwrap();
}
