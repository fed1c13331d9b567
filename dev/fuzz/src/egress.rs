//! Targets for `fluffy-egress`: what a sandbox sends to its proxy.
//!
//! A head or a ClientHello that two readers understand differently is a way
//! out of the sandbox, so reading is checked against reading again.

use fluffy_egress::head::{Asked, Framing, end_of_head};
use fluffy_egress::hello::{Progress, inspect};

/// A judgement about a ClientHello never changes when more bytes come.
pub(crate) fn client_hello(bytes: &[u8]) {
    let whole = inspect(bytes);
    // Every prefix of small inputs, some of large ones.
    for end in (0..bytes.len()).step_by(1 + bytes.len() / 64) {
        let early = bytes.get(..end).map(inspect);
        if early
            .as_ref()
            .is_some_and(|early| *early != Ok(Progress::Incomplete))
        {
            assert_eq!(early, Some(whole.clone()));
        }
    }
}

/// What goes on to a server is one head, with one host and at most one length,
/// and says the same as what was understood.
pub(crate) fn request_head(bytes: &[u8]) {
    let Ok(Asked::Forward(forward)) = Asked::parse(bytes) else {
        return;
    };
    let head = &forward.head;
    assert_eq!(end_of_head(head), Some(head.len()));
    let lower = head.to_ascii_lowercase();
    let count = |name: &[u8]| {
        lower
            .windows(name.len())
            .filter(|part| *part == name)
            .count()
    };
    assert_eq!(count(b"\r\nhost:"), 1);
    let (lengths, encodings) = (
        count(b"\r\ncontent-length:"),
        count(b"\r\ntransfer-encoding:"),
    );
    match forward.body {
        Framing::Length(_) => assert_eq!((lengths, encodings), (1, 0)),
        Framing::Chunked => assert_eq!((lengths, encodings), (0, 1)),
        Framing::Empty => assert!(lengths <= 1 && encodings == 0),
        Framing::UntilClose => unreachable!("only answers end with the connection"),
    }
    // A server's own reading: the request line as a proxy would see it.
    let space = head.iter().position(|byte| *byte == b' ');
    let (method, rest) = head.split_at(space.unwrap_or_default() + 1);
    let url = format!("http://{}", forward.target);
    let again = [method, url.as_bytes(), rest].concat();
    // The address in the line may make a full head too long.
    if let Ok(Asked::Forward(again)) = Asked::parse(&again) {
        assert_eq!(again.target, forward.target);
        assert_eq!(again.body, forward.body);
        assert_eq!(again.head, forward.head);
    } else {
        assert!(again.len() > fluffy_egress::head::MAX_HEAD);
    }
}
