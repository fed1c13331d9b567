//! Both ends against each other, in pieces of any size, and hostile bytes.

use proptest::prelude::*;

use super::*;

/// Everything one end has to say, in pieces of this size.
fn carry(from: &mut Link, to: &mut Link, size: usize) {
    let bytes = from.outgoing().to_vec();
    from.written(bytes.len());
    for piece in bytes.chunks(size) {
        to.feed(piece).unwrap();
    }
}

fn events(link: &mut Link) -> Vec<Event> {
    std::iter::from_fn(|| link.event()).collect()
}

fn frame(length: u32, kind: u8, flags: u8, channel: u32, content: &[u8]) -> Vec<u8> {
    let mut bytes = length.to_le_bytes().to_vec();
    bytes.extend([kind, flags, 0, 0]);
    bytes.extend(channel.to_le_bytes());
    bytes.extend_from_slice(content);
    bytes
}

fn begun() -> Link {
    let mut link = Link::new();
    link.feed(&MAGIC).unwrap();
    assert_eq!(link.event(), Some(Event::Begun));
    link
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn any_division_gives_the_same_events(
        size in 1_usize..5_000,
        noise in proptest::collection::vec(any::<u8>(), 0..64),
        message in "[a-z]{0,90000}",
        data in proptest::collection::vec(any::<u8>(), 0..200_000),
    ) {
        let (mut here, mut there) = (Link::new(), Link::new());
        here.send(&message).unwrap();
        here.send_secrets(&data).unwrap();
        prop_assert_eq!(here.send_data(STDOUT, &data), data.len());
        here.send_eof(STDOUT);
        here.ping();
        there.feed(&noise).unwrap();
        carry(&mut here, &mut there, size);
        let mut read = Vec::new();
        let mut rest = Vec::new();
        for event in events(&mut there) {
            match event {
                Event::Data { channel: STDOUT, bytes } => read.extend(bytes),
                other => rest.push(other),
            }
        }
        prop_assert_eq!(&read, &data);
        let text = serde_json::to_vec(&message).unwrap();
        prop_assert_eq!(rest, vec![
            Event::Begun,
            Event::Message(text),
            Event::Secrets(Hidden(data)),
            Event::Eof { channel: STDOUT },
        ]);
        there.consumed(STDOUT, read.len());
        carry(&mut there, &mut here, size);
        prop_assert_eq!(here.credit(STDOUT), WINDOW);
        prop_assert!(events(&mut here).contains(&Event::Pong));
    }

    #[test]
    fn hostile_bytes_neither_panic_nor_grow(
        pieces in proptest::collection::vec(
            (0_u32..70_000, any::<u8>(), 0_u8..3, 0_u32..20, proptest::collection::vec(any::<u8>(), 0..64)),
            0..64,
        ),
        raw in proptest::collection::vec(any::<u8>(), 0..512),
    ) {
        let mut link = begun();
        for (length, kind, flags, channel, content) in pieces {
            let length = if length % 2 == 0 { u32::try_from(content.len()).unwrap() } else { length };
            if link.feed(&frame(length, kind % 9, flags, channel, &content)).is_err() {
                return Ok(());
            }
            events(&mut link);
            prop_assert!(link.inbox.len() <= MAX_FRAME + HEADER);
            prop_assert!(link.json.len() <= MAX_MESSAGE);
            prop_assert!(link.secrets.0.len() <= MAX_SECRETS);
            let outgoing = link.outgoing().len();
            link.written(outgoing);
        }
        let _ = link.feed(&raw);
    }
}

#[test]
fn noise_before_the_magic_is_not_kept() {
    let mut link = Link::new();
    for _ in 0..100 {
        link.feed(&[b'F'; 4_096]).unwrap();
        assert!(link.inbox.len() < MAGIC.len());
    }
    link.feed(&MAGIC).unwrap();
    assert_eq!(link.event(), Some(Event::Begun));
}

#[test]
fn nothing_is_sent_or_taken_without_credit() {
    let mut link = begun();
    let outgoing = link.outgoing().len();
    link.written(outgoing);
    let bytes = vec![0; WINDOW + 1];
    assert_eq!(link.send_data(STDOUT, &bytes), WINDOW);
    assert_eq!(link.send_data(STDOUT, &bytes), 0);
    assert_eq!(link.send_data(FIRST_EXEC, &bytes), 0, "not open");
    let mut other = begun();
    for _ in 0..WINDOW / MAX_FRAME {
        other
            .feed(&frame(65_536, 1, 0, STDOUT, &[0; MAX_FRAME]))
            .unwrap();
    }
    let error = other.feed(&frame(1, 1, 0, STDOUT, &[0])).unwrap_err();
    assert_eq!(error, LinkError::NoCredit(STDOUT));
    let error = begun()
        .feed(&frame(4, 2, 0, STDOUT, &1_u32.to_le_bytes()))
        .unwrap_err();
    assert_eq!(error, LinkError::TooMuchCredit(STDOUT));
}

#[test]
fn a_reader_that_consumes_little_by_little_never_stops_the_writer() {
    let (mut here, mut there) = (Link::new(), Link::new());
    here.open(FIRST_EXEC);
    there.open(FIRST_EXEC);
    let (mut sent, mut read) = (0, 0);
    let bytes = [7; 10_000];
    while read < 10 * WINDOW {
        sent += here.send_data(FIRST_EXEC, &bytes);
        carry(&mut here, &mut there, 1 << 20);
        let before = read;
        for event in events(&mut there) {
            if let Event::Data { bytes, .. } = event {
                read += bytes.len();
                there.consumed(FIRST_EXEC, bytes.len());
            }
        }
        assert!(read > before, "it stands still at {sent}");
        carry(&mut there, &mut here, 1 << 20);
    }
}

#[test]
fn a_flood_of_pings_is_answered_once() {
    let mut link = begun();
    let before = link.outgoing().len();
    for _ in 0..1_000 {
        link.feed(&frame(0, 6, 0, 0, &[])).unwrap();
    }
    assert_eq!(link.outgoing().len(), before + HEADER);
}

#[test]
fn frames_that_are_none_are_refused() {
    let cases = [
        (frame(65_537, 1, 0, 1, &[]), LinkError::FrameTooLong(65_537)),
        (frame(0, 8, 0, 0, &[]), LinkError::UnknownKind(8)),
        (frame(0, 0, 2, 0, &[]), LinkError::Malformed),
        (frame(0, 0, 0, 1, &[]), LinkError::Malformed),
        (frame(0, 1, 0, 0, &[]), LinkError::Malformed),
        (frame(0, 1, 1, 1, &[]), LinkError::Malformed),
        (frame(3, 2, 0, 1, &[0; 3]), LinkError::Malformed),
    ];
    for (bytes, expected) in cases {
        assert_eq!(begun().feed(&bytes), Err(expected), "{bytes:?}");
    }
}

#[test]
fn a_message_and_secrets_have_a_most() {
    let part = frame(65_536, 0, 1, 0, &[b'a'; MAX_FRAME]);
    let mut link = begun();
    for _ in 0..MAX_MESSAGE / MAX_FRAME {
        link.feed(&part).unwrap();
    }
    assert_eq!(link.feed(&part), Err(LinkError::MessageTooLong));
    let part = frame(65_536, 5, 1, 0, &[b'a'; MAX_FRAME]);
    let mut link = begun();
    for _ in 0..MAX_SECRETS / MAX_FRAME {
        link.feed(&part).unwrap();
    }
    assert_eq!(link.feed(&part), Err(LinkError::MessageTooLong));
    assert!(Link::new().send(&"a".repeat(MAX_MESSAGE)).is_err());
    assert!(Link::new().send_secrets(&[0; MAX_SECRETS + 1]).is_err());
}

#[test]
fn a_message_nests_no_deeper_than_sixteen() {
    let nested = |depth: usize| [vec![b'['; depth], vec![b']'; depth]].concat();
    assert!(read_message::<serde_json::Value>(&nested(MAX_DEPTH)).is_ok());
    assert!(matches!(
        read_message::<serde_json::Value>(&nested(MAX_DEPTH + 1)),
        Err(ReadMessageError::TooDeep)
    ));
    let text = format!("\"{}\\\"{}\"", "[".repeat(40), "{".repeat(40));
    assert!(read_message::<String>(text.as_bytes()).is_ok());
}

#[test]
fn secrets_are_not_shown() {
    let mut link = begun();
    link.feed(&frame(6, 5, 0, 0, b"geheim")).unwrap();
    let event = link.event().unwrap();
    assert_eq!(format!("{event:?}"), "Secrets([6 hidden bytes])");
    assert!(!format!("{link:?}").contains("geheim"));
}
