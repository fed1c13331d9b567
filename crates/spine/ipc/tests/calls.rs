//! Calls as a client and a server see them: order, limits, ends.
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

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use fluffy_ipc::server::{Incident, ServerLimits};
use fluffy_ipc::{CallError, ErrorCode, Failure, RequestContext};
use support::{Serving, ping_server, wait_until};
use tokio::sync::{Notify, Semaphore, mpsc};

/// Sets a flag when it is dropped, as a cancelled call drops it.
struct Flag(Arc<AtomicBool>);

impl Drop for Flag {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A method that never answers, and tells when it began and when it ended.
#[derive(Clone, Default)]
struct Endless {
    begun: Arc<AtomicUsize>,
    dropped: Arc<AtomicBool>,
}

impl Endless {
    fn on(&self, server: fluffy_ipc::Server) -> fluffy_ipc::Server {
        let Self { begun, dropped } = self.clone();
        server.method("endless", move |_, (): ()| {
            begun.fetch_add(1, Ordering::SeqCst);
            let flag = Flag(Arc::clone(&dropped));
            async move {
                let _flag = flag;
                std::future::pending::<()>().await;
                Ok(())
            }
        })
    }

    fn has_begun(&self) -> bool {
        self.begun.load(Ordering::SeqCst) > 0
    }

    fn was_dropped(&self) -> bool {
        self.dropped.load(Ordering::SeqCst)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_concurrent_calls_each_get_their_own_answer() {
    let serving = Serving::start(ping_server());
    let client = serving.client().await;
    let calls: Vec<_> = (0..1000_u64)
        .map(|number| {
            let client = client.clone();
            tokio::spawn(async move { client.call::<_, u64>("ping", &number).await })
        })
        .collect();
    for (number, call) in calls.into_iter().enumerate() {
        assert_eq!(call.await.unwrap().unwrap(), number as u64);
    }
    serving.stop().await;
}

#[tokio::test]
async fn answers_come_in_the_order_of_the_work_not_of_the_calls() {
    let gate = Arc::new(Notify::new());
    let opened = Arc::clone(&gate);
    let server = ping_server().method("gated", move |_, (): ()| {
        let gate = Arc::clone(&opened);
        async move {
            gate.notified().await;
            Ok("late")
        }
    });
    let serving = Serving::start(server);
    let mut peer = serving.raw().await;
    peer.request(1, "gated", &()).await;
    peer.request(2, "ping", &7).await;
    let first = peer.response().await.unwrap();
    assert_eq!(first.id.unwrap().0, 2);
    assert_eq!(first.outcome.unwrap().get(), "7");
    gate.notify_one();
    let second = peer.response().await.unwrap();
    assert_eq!(second.id.unwrap().0, 1);
    serving.stop().await;
}

#[tokio::test]
async fn failures_arrive_with_their_code_and_whether_to_retry() {
    let server = ping_server()
        .method("busy", |_, (): ()| async {
            Err::<(), _>(Failure::new(ErrorCode::Unavailable, "the database is away"))
        })
        .method("huge", |_, (): ()| async { Ok("x".repeat(17 << 20)) });
    let serving = Serving::start(server);
    let client = serving.client().await;

    let busy = client.call::<_, ()>("busy", &()).await.unwrap_err();
    assert_eq!(busy.code(), Some(ErrorCode::Unavailable));
    assert!(busy.is_retryable());
    let missing = client.call::<_, ()>("nothing", &()).await.unwrap_err();
    assert_eq!(missing.code(), Some(ErrorCode::UnknownMethod));
    let wrong = client.call::<_, u64>("ping", &"text").await.unwrap_err();
    assert_eq!(wrong.code(), Some(ErrorCode::InvalidParams));
    assert!(!wrong.is_retryable());
    let huge = client.call::<_, String>("huge", &()).await.unwrap_err();
    assert_eq!(huge.code(), Some(ErrorCode::TooLarge));
    let unsent = client.call::<_, ()>("ping", &"x".repeat(17 << 20)).await;
    assert!(matches!(unsent, Err(CallError::Encode { .. })));
    let shape = client.call::<_, String>("ping", &1).await;
    assert!(matches!(shape, Err(CallError::Decode { .. })));

    assert_eq!(client.call::<_, u64>("ping", &5).await.unwrap(), 5);
    serving.stop().await;
}

#[tokio::test]
async fn a_panic_fails_its_own_call_and_nothing_else() {
    let server = ping_server()
        .method("panic", |_, (): ()| async {
            panic!("a defect with a secret in it");
            #[expect(unreachable_code, reason = "gives the closure its type")]
            Ok(())
        })
        .method("early", |_, number: u64| {
            assert!(number > 10, "before the future exists");
            async { Ok(()) }
        });
    let counters = server.counters();
    let serving = Serving::start(server);
    let client = serving.client().await;
    for (method, params) in [("panic", None), ("early", Some(1_u64))] {
        let error = client.call::<_, ()>(method, &params).await.unwrap_err();
        assert_eq!(error.code(), Some(ErrorCode::Internal), "{method}");
        let CallError::Failed { failure, .. } = error else {
            panic!("{error:?}");
        };
        assert!(!failure.message.contains("secret"), "{failure}");
    }
    assert_eq!(counters.of(Incident::Panic), 2);
    assert_eq!(client.call::<_, u64>("ping", &5).await.unwrap(), 5);
    serving.stop().await;
}

#[tokio::test]
async fn a_call_ends_when_its_client_disconnects() {
    let endless = Endless::default();
    let serving = Serving::start(endless.on(ping_server()));
    let mut peer = serving.raw().await;
    peer.request(1, "endless", &()).await;
    wait_until("the call begins", || endless.has_begun()).await;
    assert!(!endless.was_dropped());
    drop(peer);
    wait_until("the call is dropped", || endless.was_dropped()).await;
    serving.stop().await;
}

#[tokio::test]
async fn a_disconnect_is_noticed_while_nothing_is_read() {
    let endless = Endless::default();
    let server = endless.on(ping_server()).limits(ServerLimits {
        in_flight: 1,
        ..ServerLimits::default()
    });
    let serving = Serving::start(server);
    let mut peer = serving.raw().await;
    peer.request(1, "endless", &()).await;
    wait_until("the call begins", || endless.has_begun()).await;
    // Bytes that the server does not read hide the end of the stream.
    for id in 2..100 {
        peer.request(id, "ping", &"x".repeat(500)).await;
    }
    drop(peer);
    wait_until("the call is dropped", || endless.was_dropped()).await;
    serving.stop().await;
}

#[tokio::test]
async fn a_call_that_is_given_up_is_withdrawn_from_the_server() {
    let endless = Endless::default();
    let serving = Serving::start(endless.on(ping_server()));
    let client = serving.client().await;
    let short = client.with_timeout(Duration::from_millis(50));
    let error = short.call::<_, ()>("endless", &()).await.unwrap_err();
    assert!(matches!(error, CallError::TimedOut { .. }), "{error:?}");
    assert!(error.is_retryable());
    wait_until("the call is dropped", || endless.was_dropped()).await;
    assert_eq!(client.call::<_, u64>("ping", &5).await.unwrap(), 5);
    serving.stop().await;
}

#[tokio::test]
async fn calls_that_are_given_up_do_not_block_the_connection() {
    let endless = Endless::default();
    let server = endless.on(ping_server()).limits(ServerLimits {
        in_flight: 2,
        ..ServerLimits::default()
    });
    let serving = Serving::start(server);
    let client = serving.client().await;
    let short = client.with_timeout(Duration::from_millis(50));
    let calls: Vec<_> = (0..20)
        .map(|_| {
            let short = short.clone();
            tokio::spawn(async move { short.call::<_, ()>("endless", &()).await })
        })
        .collect();
    for call in calls {
        let error = call.await.unwrap().unwrap_err();
        assert!(matches!(error, CallError::TimedOut { .. }), "{error:?}");
    }
    assert_eq!(client.call::<_, u64>("ping", &5).await.unwrap(), 5);
    serving.stop().await;
}

#[tokio::test]
async fn calls_in_flight_are_bounded_per_connection() {
    let gate = Arc::new(Semaphore::new(0));
    let begun = Arc::new(AtomicUsize::new(0));
    let (inner_gate, inner_begun) = (Arc::clone(&gate), Arc::clone(&begun));
    let server = ping_server()
        .method("gated", move |_, (): ()| {
            inner_begun.fetch_add(1, Ordering::SeqCst);
            let gate = Arc::clone(&inner_gate);
            async move {
                gate.acquire().await.unwrap().forget();
                Ok(())
            }
        })
        .limits(ServerLimits {
            in_flight: 2,
            ..ServerLimits::default()
        });
    let serving = Serving::start(server);
    let mut peer = serving.raw().await;
    for id in 1..=3 {
        peer.request(id, "gated", &()).await;
    }
    wait_until("two begin", || begun.load(Ordering::SeqCst) == 2).await;
    // The server has every chance to start the third, and others are served.
    let other = serving.client().await;
    for number in 0..50 {
        assert_eq!(other.call::<_, u64>("ping", &number).await.unwrap(), number);
    }
    assert_eq!(begun.load(Ordering::SeqCst), 2);
    gate.add_permits(1);
    wait_until("the third begins", || begun.load(Ordering::SeqCst) == 3).await;
    gate.add_permits(2);
    for _ in 0..3 {
        assert!(peer.response().await.unwrap().outcome.is_ok());
    }
    serving.stop().await;
}

async fn count_to(context: RequestContext, end: u32) -> Result<&'static str, Failure> {
    for number in 0..end {
        let sent = context.events().emit("number", &number).await;
        sent.map_err(|error| Failure::new(ErrorCode::Unavailable, error.to_string()))?;
    }
    Ok("done")
}

#[tokio::test]
async fn events_of_a_call_arrive_in_order_before_its_answer() {
    let serving = Serving::start(ping_server().method("count", count_to));
    let client = serving.client().await;
    let (sender, mut receiver) = mpsc::channel(1);
    let count = 500;
    let call = client.call_with_events::<_, String>("count", &count, sender);
    let gather = async {
        let mut numbers = Vec::new();
        while let Some(event) = receiver.recv().await {
            assert_eq!(event.method, "number");
            numbers.push(event.read::<u32>().unwrap());
        }
        numbers
    };
    let (answer, numbers) = tokio::join!(call, gather);
    assert_eq!(answer.unwrap(), "done");
    assert_eq!(numbers, (0..count).collect::<Vec<_>>());
    serving.stop().await;
}

#[tokio::test]
async fn an_unread_event_queue_holds_the_server_back() {
    let sent = Arc::new(AtomicUsize::new(0));
    let progress = Arc::clone(&sent);
    let server = ping_server().method("flood", move |context: RequestContext, (): ()| {
        let sent = Arc::clone(&progress);
        async move {
            let text = "x".repeat(100_000);
            for _ in 0..200 {
                if context.events().emit("chunk", &text).await.is_err() {
                    break;
                }
                sent.fetch_add(1, Ordering::SeqCst);
            }
            Ok(())
        }
    });
    let serving = Serving::start(server);
    let client = serving.client().await;
    let mut events = client.subscribe(1);
    let flood = tokio::spawn({
        let client = client.clone();
        async move { client.call::<_, ()>("flood", &()).await }
    });
    let first = events.next().await.unwrap();
    assert_eq!(first.read::<String>().unwrap().len(), 100_000);
    // Others are served meanwhile, and the flood cannot have ended: twenty
    // megabytes do not fit the queue, the socket and our one place.
    let other = serving.client().await;
    for number in 0..50 {
        assert_eq!(other.call::<_, u64>("ping", &number).await.unwrap(), number);
    }
    assert!(sent.load(Ordering::SeqCst) < 200);
    for _ in 1..200 {
        assert_eq!(events.next().await.unwrap().method, "chunk");
    }
    flood.await.unwrap().unwrap();
    assert_eq!(sent.load(Ordering::SeqCst), 200);
    serving.stop().await;
}

#[tokio::test]
async fn a_sender_of_events_outlives_its_call_but_not_its_client() {
    let (hand_over, mut handed) = mpsc::channel(1);
    let server = ping_server().method("subscribe", move |context: RequestContext, (): ()| {
        let hand_over = hand_over.clone();
        async move {
            hand_over.send(context.events()).await.unwrap();
            Ok(())
        }
    });
    let serving = Serving::start(server);
    let client = serving.client().await;
    let mut events = client.subscribe(4);
    client.call::<_, ()>("subscribe", &()).await.unwrap();
    let sender = handed.recv().await.unwrap();
    sender.emit("later", &1).await.unwrap();
    assert_eq!(events.next().await.unwrap().read::<u32>().unwrap(), 1);
    drop(client);
    assert!(events.next().await.is_none());
    let gone = async {
        while sender.emit("later", &2).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(support::DEADLINE, gone)
        .await
        .expect("the sender must learn that its client is gone");
    serving.stop().await;
}

#[tokio::test]
async fn shutdown_waits_for_calls_in_flight_and_refuses_new_peers() {
    let gate = Arc::new(Notify::new());
    let begun = Arc::new(AtomicBool::new(false));
    let (inner_gate, inner_begun) = (Arc::clone(&gate), Arc::clone(&begun));
    let server = ping_server().method("gated", move |_, (): ()| {
        let gate = Arc::clone(&inner_gate);
        inner_begun.store(true, Ordering::SeqCst);
        async move {
            gate.notified().await;
            Ok("finished")
        }
    });
    let mut serving = Serving::start(server);
    let client = serving.client().await;
    let call = tokio::spawn({
        let client = client.clone();
        async move { client.call::<_, String>("gated", &()).await }
    });
    wait_until("the call begins", || begun.load(Ordering::SeqCst)).await;
    serving.begin_stop();
    let path = serving.path();
    wait_until("the socket is gone", || !path.exists()).await;
    let refused = fluffy_ipc::Client::connect(&path, support::hello()).await;
    assert!(refused.unwrap_err().is_retryable());
    gate.notify_one();
    assert_eq!(call.await.unwrap().unwrap(), "finished");
    serving.stop().await;
    let after = client.call::<_, u64>("ping", &1).await.unwrap_err();
    assert!(
        matches!(&after, CallError::Disconnected { .. }),
        "{after:?}"
    );
    assert!(after.is_retryable());
}

#[tokio::test]
async fn shutdown_ends_calls_that_outlast_the_grace() {
    let endless = Endless::default();
    let server = endless.on(ping_server()).limits(ServerLimits {
        grace: Duration::from_millis(20),
        ..ServerLimits::default()
    });
    let serving = Serving::start(server);
    let client = serving.client().await;
    let call = tokio::spawn(async move { client.call::<_, ()>("endless", &()).await });
    wait_until("the call begins", || endless.has_begun()).await;
    serving.stop().await;
    let error = call.await.unwrap().unwrap_err();
    let CallError::Disconnected { reason, .. } = error else {
        panic!("{error:?}");
    };
    assert_eq!(reason.unwrap().code, ErrorCode::ShuttingDown);
    assert!(endless.was_dropped());
}
