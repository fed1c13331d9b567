//! The node's end against a guest that is played by the test.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use fluffy_guest::config::{Exec, GuestConfig, Secrets};
use fluffy_guest::host::{ConfigureError, GuestEvent, LinkLost, LogStream, Options, Piece, open};
use fluffy_guest::link::{Event, Link, STDOUT, WINDOW, read_message};
use fluffy_guest::log::{Content, Record};
use fluffy_guest::message::{ExecOpen, Hello};
use fluffy_guest::{FromGuest, FromHost, PROTOCOL};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

fn config() -> GuestConfig {
    let mut config = GuestConfig::read(include_bytes!("golden/config-v1.json")).unwrap();
    config.secrets = Secrets::none();
    config.exec = Exec {
        enabled: true,
        max_sessions: 2,
    };
    config
}

fn patient() -> Options {
    Options {
        handshake: Duration::from_secs(60),
        ping: Duration::from_secs(60),
        missed: 3,
    }
}

struct Guest {
    stream: DuplexStream,
    link: Link,
}

impl Guest {
    fn new(stream: DuplexStream) -> Self {
        let mut link = Link::new();
        link.send(&FromGuest::Hello(Hello {
            protocol: PROTOCOL,
            init_version: "0".to_owned(),
            instance_id: "inst_1".to_owned(),
            boot_id: "boot_1".to_owned(),
            kernel: String::new(),
            features: vec![],
            disks: vec![],
        }))
        .unwrap();
        Self { stream, link }
    }

    async fn flush(&mut self) {
        while self.link.has_outgoing() {
            let written = self.stream.write(self.link.outgoing()).await.unwrap();
            self.link.written(written);
        }
    }

    async fn event(&mut self) -> Option<Event> {
        let mut buffer = [0; 4_096];
        loop {
            self.flush().await;
            match self.link.event() {
                Some(Event::Begun) => continue,
                Some(event) => return Some(event),
                None => {}
            }
            let length = self.stream.read(&mut buffer).await.unwrap();
            if length == 0 {
                return None;
            }
            self.link.feed(buffer.get(..length).unwrap()).unwrap();
        }
    }

    async fn message(&mut self) -> FromHost {
        loop {
            if let Event::Message(message) = self.event().await.unwrap() {
                return read_message(&message).unwrap();
            }
        }
    }

    async fn say(&mut self, message: FromGuest) {
        self.link.send(&message).unwrap();
        self.flush().await;
    }
}

#[tokio::test]
async fn a_config_is_acknowledged_or_refused() {
    for accepted in [true, false] {
        let (here, there) = duplex(4_096);
        let guest = tokio::spawn(async move {
            let mut guest = Guest::new(there);
            assert!(matches!(guest.message().await, FromHost::Config(_)));
            guest
                .say(if accepted {
                    FromGuest::Ack {
                        config_version: "v1".to_owned(),
                        generation: 7,
                        config_sha256: String::new(),
                    }
                } else {
                    FromGuest::Nack {
                        code: "instance_mismatch".to_owned(),
                        detail: String::new(),
                    }
                })
                .await;
            guest
        });
        let (hello, connection, _events) = open(here, patient()).await.unwrap();
        assert_eq!(hello.boot_id, "boot_1");
        let answer = connection.configure(config(), None).await;
        match answer {
            Ok(()) => assert!(accepted),
            Err(ConfigureError::Refused { code, .. }) => {
                assert!(!accepted);
                assert_eq!(code, "instance_mismatch");
            }
            Err(other) => panic!("{other}"),
        }
        guest.await.unwrap();
    }
}

#[tokio::test]
async fn lines_are_acknowledged_when_the_next_is_asked_for() {
    let (here, there) = duplex(1 << 20);
    let mut guest = Guest::new(there);
    for sequence in 1..=2 {
        let record = Record {
            sequence,
            time_ms: 5,
            content: Content::Line {
                text: b"hello".to_vec(),
                truncated: false,
            },
        };
        let bytes = record.to_bytes();
        assert_eq!(guest.link.send_data(STDOUT, &bytes), bytes.len());
    }
    guest.flush().await;
    let (_, _connection, mut events) = open(here, patient()).await.unwrap();
    for expected in 1..=2 {
        let Some(GuestEvent::Log { stream, record }) = events.next().await else {
            panic!("no line");
        };
        assert_eq!((stream, record.sequence), (LogStream::Stdout, expected));
    }
    // The second was not dealt with yet: only the first is acknowledged.
    let credit = loop {
        if let Event::Credit { bytes, .. } = guest.event().await.unwrap() {
            break bytes;
        }
    };
    assert_eq!(credit, 26);
    drop(guest);
    assert!(matches!(
        events.next().await,
        Some(GuestEvent::Lost(LinkLost::Closed | LinkLost::Stream(_)))
    ));
    assert!(events.next().await.is_none());
}

#[tokio::test]
async fn a_command_that_does_not_read_holds_its_writer_up() {
    let (here, there) = duplex(1 << 20);
    let mut guest = Guest::new(there);
    guest.flush().await;
    let (_, connection, _events) = open(here, patient()).await.unwrap();
    let order = ExecOpen {
        command: vec!["cat".to_owned()],
        stdin: true,
        ..ExecOpen::default()
    };
    let asked = connection.clone();
    let opening = tokio::spawn(async move { asked.exec(order).await.unwrap() });
    let FromHost::ExecOpen(order) = guest.message().await else {
        panic!("no command");
    };
    guest.link.open(order.channel);
    guest.link.open(order.channel + 1);
    guest
        .say(FromGuest::ExecOpened {
            channel: order.channel,
            pid: 9,
        })
        .await;
    let exec = opening.await.unwrap();
    assert_eq!(exec.pid, 9);
    let input = exec.input.clone();
    let mut writing = tokio::spawn(async move { input.write(vec![1; WINDOW + 1]).await });
    let mut read = 0;
    while read < WINDOW {
        if let Event::Data { bytes, .. } = guest.event().await.unwrap() {
            read += bytes.len();
        }
    }
    // All credit is used: the last byte waits.
    assert!(
        tokio::time::timeout(Duration::from_millis(50), &mut writing)
            .await
            .is_err()
    );
    guest.link.consumed(order.channel, WINDOW);
    guest.flush().await;
    writing.await.unwrap().unwrap();
    let mut output = exec.output;
    assert_eq!(guest.link.send_data(order.channel, b"out"), 3);
    assert_eq!(guest.link.send_data(order.channel + 1, b"err"), 3);
    guest
        .say(FromGuest::ExecExit {
            channel: order.channel,
            exit_code: Some(3),
            signal: None,
        })
        .await;
    assert_eq!(output.next().await, Some(Piece::Stdout(b"out".to_vec())));
    assert_eq!(output.next().await, Some(Piece::Stderr(b"err".to_vec())));
    assert_eq!(
        output.next().await,
        Some(Piece::Exit {
            exit_code: Some(3),
            signal: None
        })
    );
    assert_eq!(output.next().await, None);
}

#[tokio::test]
async fn a_command_nobody_listens_to_is_reset() {
    let (here, there) = duplex(1 << 20);
    let mut guest = Guest::new(there);
    guest.flush().await;
    let (_, connection, _events) = open(here, patient()).await.unwrap();
    let order = ExecOpen {
        command: vec!["cat".to_owned()],
        ..ExecOpen::default()
    };
    let opening = tokio::spawn(async move {
        connection
            .exec(order)
            .await
            .map(|exec| (exec, connection))
            .unwrap()
    });
    let FromHost::ExecOpen(order) = guest.message().await else {
        panic!("no command");
    };
    guest
        .say(FromGuest::ExecOpened {
            channel: order.channel,
            pid: 9,
        })
        .await;
    let (exec, _connection) = opening.await.unwrap();
    drop(exec);
    loop {
        if let Event::Reset { channel } = guest.event().await.unwrap() {
            assert_eq!(channel, order.channel);
            break;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_command_that_a_guest_never_answers_is_given_up() {
    let (here, there) = duplex(1 << 20);
    let mut guest = Guest::new(there);
    guest.flush().await;
    let (_, connection, _events) = open(here, Options::default()).await.unwrap();
    let order = ExecOpen {
        command: vec!["cat".to_owned()],
        ..ExecOpen::default()
    };
    let asked = tokio::time::timeout(Duration::from_secs(1), connection.exec(order));
    assert!(asked.await.is_err());
    let FromHost::ExecOpen(order) = guest.message().await else {
        panic!("no command");
    };
    let reset = async {
        loop {
            if let Event::Reset { channel } = guest.event().await.unwrap() {
                return channel;
            }
        }
    };
    let reset = tokio::time::timeout(Duration::from_secs(60), reset).await;
    assert_eq!(reset, Ok(order.channel));
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_does_not_answer_is_lost() {
    let (here, there) = duplex(1 << 20);
    let mut guest = Guest::new(there);
    guest.flush().await;
    let (_, _connection, mut events) = open(here, Options::default()).await.unwrap();
    let since = tokio::time::Instant::now();
    assert!(matches!(
        events.next().await,
        Some(GuestEvent::Lost(LinkLost::Unresponsive))
    ));
    assert_eq!(since.elapsed().as_secs(), 15);
}

#[tokio::test]
async fn whoever_says_no_hello_is_no_guest() {
    let (here, mut there) = duplex(1 << 20);
    there.write_all(b"FLUFFYLINK/1\r\n\0\0").await.unwrap();
    there
        .write_all(&[0, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0])
        .await
        .unwrap();
    assert!(matches!(
        open(here, patient()).await,
        Err(LinkLost::Protocol(_))
    ));
}
