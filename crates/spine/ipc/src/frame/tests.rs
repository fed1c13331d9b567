//! Tests of the frame codec: every chunking, every lie a header can tell.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn raw(body: &[u8]) -> Vec<u8> {
    let mut bytes = u32::try_from(body.len()).unwrap().to_be_bytes().to_vec();
    bytes.extend_from_slice(body);
    bytes
}

/// Feeds the chunks in turn and gathers everything that comes out.
fn decode(limit: usize, chunks: &[&[u8]]) -> Result<Vec<String>, FrameError> {
    let mut decoder = Decoder::new(limit);
    let mut frames = Vec::new();
    for chunk in chunks {
        let mut input = *chunk;
        while let Some(frame) = decoder.feed(&mut input)? {
            frames.push(frame.as_str().to_owned());
        }
        assert!(input.is_empty(), "`None` must mean that all was taken");
    }
    decoder.finish()?;
    Ok(frames)
}

#[test]
fn every_chunk_boundary_gives_the_same_frames() {
    let bodies = [r#"{"a":"é"}"#, "[]", "7"];
    let bytes: Vec<u8> = bodies.iter().flat_map(|b| raw(b.as_bytes())).collect();
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(decode(LIMIT, &single).unwrap(), bodies);
    for first in 0..=bytes.len() {
        for second in first..=bytes.len() {
            let chunks = [&bytes[..first], &bytes[first..second], &bytes[second..]];
            assert_eq!(decode(LIMIT, &chunks).unwrap(), bodies, "{first} {second}");
        }
    }
}

#[test]
fn length_zero_is_refused() {
    assert_eq!(decode(LIMIT, &[&[0, 0, 0, 0]]), Err(FrameError::Empty));
}

#[test]
fn the_largest_length_is_refused_before_any_allocation() {
    let mut decoder = Decoder::new(LIMIT);
    let mut input: &[u8] = &[0xff; 4];
    let refused = FrameError::TooLarge {
        announced: u32::MAX,
        limit: LIMIT,
    };
    assert_eq!(decoder.feed(&mut input), Err(refused));
    assert_eq!(decoder.body.capacity(), 0);
}

#[test]
fn the_limit_is_exact() {
    let body = format!("\"{}\"", "x".repeat(98));
    assert!(decode(100, &[&raw(body.as_bytes())]).is_ok());
    let larger = format!("\"{}\"", "x".repeat(99));
    assert!(matches!(
        decode(100, &[&raw(larger.as_bytes())]),
        Err(FrameError::TooLarge {
            announced: 101,
            limit: 100
        })
    ));
}

#[test]
fn an_announced_length_allocates_only_what_arrived() {
    let mut decoder = Decoder::new(LIMIT);
    let mut bytes = u32::try_from(LIMIT).unwrap().to_be_bytes().to_vec();
    bytes.extend_from_slice(&[b' '; 1000]);
    assert_eq!(decoder.feed(&mut bytes.as_slice()), Ok(None));
    assert!(
        decoder.body.capacity() < 4096,
        "{}",
        decoder.body.capacity()
    );
}

#[test]
fn a_short_body_or_header_is_truncated() {
    let bytes = raw(b"[1,2,3]");
    for end in 1..bytes.len() {
        let missing = if end < 4 { 4 - end } else { bytes.len() - end };
        assert_eq!(
            decode(LIMIT, &[&bytes[..end]]),
            Err(FrameError::Truncated { missing }),
            "{end}"
        );
    }
    assert_eq!(decode(LIMIT, &[]), Ok(Vec::new()));
}

#[test]
fn invalid_utf8_is_refused() {
    for body in [&b"\"\xff\""[..], b"\"\xed\xa0\x80\"", b"\"\xc0\xaf\""] {
        assert_eq!(
            decode(LIMIT, &[&raw(body)]),
            Err(FrameError::NotUtf8 { valid_up_to: 1 }),
            "{body:?}"
        );
    }
}

#[test]
fn hostile_json_is_refused() {
    let nested = "[".repeat(100_000);
    for body in [nested.as_str(), r#"{"a":1,"a":2}"#, "1e400", "{", "1 2"] {
        let outcome = decode(LIMIT, &[&raw(body.as_bytes())]);
        assert!(matches!(outcome, Err(FrameError::Json(_))), "{outcome:?}");
    }
}

#[test]
fn after_an_error_nothing_is_read_any_more() {
    let mut decoder = Decoder::new(LIMIT);
    assert_eq!(decoder.feed(&mut &[0, 0, 0, 0][..]), Err(FrameError::Empty));
    let good = raw(b"{}");
    assert_eq!(decoder.feed(&mut good.as_slice()), Err(FrameError::Empty));
    assert_eq!(decoder.finish(), Err(FrameError::Empty));
}

#[test]
fn a_message_above_the_limit_is_not_encoded() {
    assert_eq!(encode("12345678", 10).unwrap(), raw(b"\"12345678\""));
    assert!(matches!(
        encode("123456789", 10),
        Err(EncodeFrameError::TooLarge { limit: 10 })
    ));
    let no_json = std::collections::BTreeMap::from([(vec![1], 1)]);
    assert!(matches!(
        encode(&no_json, 100),
        Err(EncodeFrameError::Json(_))
    ));
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        ".*".prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 64, 8, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
            prop::collection::btree_map(".*", inner, 0..8).prop_map(|map| json!(map)),
        ]
    })
}

proptest! {
    #[test]
    fn what_is_encoded_decodes_to_the_same(
        values in prop::collection::vec(any_json(), 1..4),
        size in 1_usize..64,
    ) {
        let mut bytes = Vec::new();
        for value in &values {
            bytes.extend(encode(value, LIMIT).unwrap());
        }
        let chunks: Vec<&[u8]> = bytes.chunks(size).collect();
        let texts = decode(LIMIT, &chunks).unwrap();
        let back: Vec<Value> = texts.iter().map(|t| serde_json::from_str(t).unwrap()).collect();
        prop_assert_eq!(back, values);
    }

    #[test]
    fn no_bytes_panic_and_chunks_do_not_matter(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        small in prop::collection::vec(0_u8..4, 3),
        size in 1_usize..16,
    ) {
        // Three zero-ish bytes in front make short announced lengths likely.
        let bytes: Vec<u8> = small.into_iter().map(|b| b & 1).chain(bytes).collect();
        let whole = decode(1 << 16, &[&bytes]);
        let chunks: Vec<&[u8]> = bytes.chunks(size).collect();
        prop_assert_eq!(decode(1 << 16, &chunks), whole);
    }
}
