//! ClientHellos made here and by openssl, whole, split, broken and hostile.

use std::io::Read;
use std::net::TcpListener;
use std::process::{Command, Stdio};

use proptest::prelude::*;

use super::*;

/// A ClientHello message with these extensions, without its record.
fn message(extensions: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend([0, 0, 2, 0x13, 1, 1, 0]);
    let mut list = Vec::new();
    for (kind, content) in extensions {
        list.extend(kind.to_be_bytes());
        list.extend(u16::try_from(content.len()).unwrap().to_be_bytes());
        list.extend(content);
    }
    body.extend(u16::try_from(list.len()).unwrap().to_be_bytes());
    body.extend(list);
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    [vec![1], length[1..].to_vec(), body].concat()
}

fn name_extension(name: &[u8]) -> (u16, Vec<u8>) {
    let length = u16::try_from(name.len()).unwrap();
    let list = (length + 3).to_be_bytes();
    (0, [&list[..], &[0], &length.to_be_bytes(), name].concat())
}

/// The message in records of at most so many bytes.
fn records(message: &[u8], most: usize) -> Vec<u8> {
    let record = |part: &[u8]| {
        let length = u16::try_from(part.len()).unwrap().to_be_bytes();
        [&[22, 3, 1], &length[..], part].concat()
    };
    message.chunks(most).flat_map(record).collect()
}

/// The first bytes of a client that wants to reach this name.
pub(crate) fn hello_for(name: &str) -> Vec<u8> {
    records(&message(&[name_extension(name.as_bytes())]), MAX_RECORD)
}

/// The first bytes of a client that names nobody.
pub(crate) fn hello_without_name() -> Vec<u8> {
    records(&message(&[(10, vec![0, 2, 0, 29])]), MAX_RECORD)
}

/// The first bytes of a client that hides whom it means.
pub(crate) fn hello_with_hidden_name(outer: &str) -> Vec<u8> {
    let extensions = [name_extension(outer.as_bytes()), (0xfe0d, vec![0; 40])];
    records(&message(&extensions), MAX_RECORD)
}

fn name_of(bytes: &[u8]) -> Result<Option<String>, HelloError> {
    match inspect(bytes)? {
        Progress::Complete(hello) => Ok(hello.server_name),
        Progress::Incomplete => panic!("incomplete"),
    }
}

#[test]
fn the_name_is_found_among_other_extensions() {
    let extensions = [
        (0x0a0a, vec![]),
        name_extension(b"a.com"),
        (43, vec![2, 3, 4]),
    ];
    let bytes = records(&message(&extensions), MAX_RECORD);
    assert_eq!(name_of(&bytes), Ok(Some("a.com".to_owned())));
    assert_eq!(name_of(&hello_without_name()), Ok(None));
    // What follows, such as early data, is not looked at.
    let early = [bytes, vec![23, 3, 3, 0, 1, 0]].concat();
    assert_eq!(name_of(&early), Ok(Some("a.com".to_owned())));
}

#[test]
fn hidden_names_are_refused() {
    for kind in HIDDEN {
        let extensions = [name_extension(b"a.com"), (kind, vec![0; 8])];
        let bytes = records(&message(&extensions), MAX_RECORD);
        assert_eq!(inspect(&bytes), Err(HelloError::Encrypted), "{kind:x}");
    }
}

#[test]
fn other_protocols_are_known_by_their_first_bytes() {
    for bytes in [
        &b"S"[..],
        b"SSH-2.0-x\r\n",
        b"GET / HTTP/1.1\r\n",
        b"EHLO a\r\n",
        &[22, 2],
        &[0x80, 0x2e, 1, 3, 1],
        &[21, 3, 1, 0, 2, 1, 0],
        &[23, 3, 3, 0, 1, 0],
    ] {
        assert_eq!(inspect(bytes), Err(HelloError::NotTls), "{bytes:?}");
    }
    assert_eq!(inspect(&[]), Ok(Progress::Incomplete));
    assert_eq!(inspect(&[22]), Ok(Progress::Incomplete));
}

#[test]
fn names_and_lists_that_can_be_read_twice_are_refused() {
    let two_names = {
        let (_, one) = name_extension(b"a.com");
        let inner = &one[2..];
        let both = [inner, inner].concat();
        (
            0,
            [&u16::try_from(both.len()).unwrap().to_be_bytes(), &both[..]].concat(),
        )
    };
    for extensions in [
        vec![name_extension(b"a.com"), name_extension(b"b.com")],
        vec![two_names],
        vec![name_extension(b"")],
        vec![name_extension(b"a.com\0.b.com")],
        vec![name_extension(b"a.com b")],
        vec![name_extension("é.com".as_bytes())],
        vec![(0, vec![])],
        vec![(0, vec![0, 8, 1, 0, 5, b'a', b'.', b'c', b'o', b'm'])],
        vec![(0, vec![0, 9, 0, 0, 5, b'a', b'.', b'c', b'o', b'm'])],
        (0..300).map(|kind| (kind + 1000, vec![])).collect(),
    ] {
        let bytes = records(&message(&extensions), MAX_RECORD);
        assert_eq!(
            inspect(&bytes),
            Err(HelloError::Malformed),
            "{extensions:?}"
        );
    }
}

#[test]
fn broken_records_and_messages_are_refused() {
    let good = message(&[name_extension(b"a.com")]);
    let mut server_hello = good.clone();
    server_hello[0] = 2;
    let trailing = [good.clone(), vec![0]].concat();
    let mut short_list = good.clone();
    // The length of the list, before the one extension of 14 bytes.
    let length = short_list.len() - 14 - 1;
    short_list[length] ^= 1;
    for message in [server_hello, trailing, short_list] {
        assert_eq!(
            inspect(&records(&message, MAX_RECORD)),
            Err(HelloError::Malformed)
        );
    }
    assert_eq!(inspect(&[22, 3, 1, 0, 0]), Err(HelloError::Malformed));
    assert_eq!(inspect(&[22, 3, 1, 0x40, 1]), Err(HelloError::Malformed));
    assert_eq!(
        inspect(&[22, 3, 1, 0, 4, 1, 1, 0, 1]),
        Err(HelloError::TooLarge)
    );
    let endless = records(&[&[1, 0, 0xff, 0xff][..], &[0; 0xff00]].concat(), 1);
    let endless = &endless[..endless.len().min(MAX_HELLO + 1)];
    assert_eq!(inspect(endless), Err(HelloError::TooLarge));
}

#[test]
fn what_openssl_sends_is_read_at_every_split() {
    let bytes = openssl_hello("real.example");
    for end in 0..bytes.len() {
        assert_eq!(inspect(&bytes[..end]), Ok(Progress::Incomplete), "{end}");
    }
    assert_eq!(name_of(&bytes), Ok(Some("real.example".to_owned())));
    let message = &bytes[5..];
    for most in [1, 2, 3, 7, 100] {
        let split = records(message, most);
        assert_eq!(
            name_of(&split),
            Ok(Some("real.example".to_owned())),
            "{most}"
        );
    }
}

/// The ClientHello of a real client.
fn openssl_hello(name: &str) -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut client = Command::new("openssl")
        .args(["s_client", "-connect", &address, "-servername", name])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    let mut bytes = vec![0; 5];
    stream.read_exact(&mut bytes).unwrap();
    let length = usize::from(u16::from_be_bytes([bytes[3], bytes[4]]));
    bytes.resize(5 + length, 0);
    stream.read_exact(&mut bytes[5..]).unwrap();
    drop(stream);
    client.wait().unwrap();
    bytes
}

proptest! {
    #[test]
    fn any_bytes_are_judged(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let _ = inspect(&bytes);
    }

    #[test]
    fn more_bytes_never_change_a_judgement(
        name in "[a-z]{1,20}",
        flip in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
        most in 1usize..200,
    ) {
        let mut bytes = records(&message(&[(10, vec![1, 2]), name_extension(name.as_bytes())]), most);
        if let Some((at, with)) = flip {
            let at = at.index(bytes.len());
            bytes[at] ^= with;
        }
        let mut settled = None;
        for end in 0..=bytes.len() {
            let now = inspect(&bytes[..end]);
            if let Some(before) = &settled {
                prop_assert_eq!(&now, before);
            } else if now != Ok(Progress::Incomplete) {
                settled = Some(now);
            }
        }
    }
}
