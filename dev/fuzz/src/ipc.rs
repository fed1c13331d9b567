//! Target for `fluffy-ipc`: frames and the messages in them.
//!
//! The decoder sees bytes of peers that are not trusted, in chunks of any size.

use fluffy_ipc::frame::{Decoder, Frame, FrameError, LIMIT_BEFORE_HANDSHAKE};
use fluffy_ipc::message::v1::Message;

/// Frames do not depend on how the bytes arrive.
pub(crate) fn frames(bytes: &[u8]) {
    let whole = decode(bytes.chunks(usize::MAX));
    let single = decode(bytes.chunks(1));
    assert_eq!(whole, single);
    for frame in &whole.0 {
        // A message or an error; what is left is that nothing breaks.
        let _ = Message::parse(frame);
    }
}

/// All frames, and how the stream ended.
fn decode<'a>(chunks: impl Iterator<Item = &'a [u8]>) -> (Vec<Frame>, Result<(), FrameError>) {
    let mut decoder = Decoder::new(LIMIT_BEFORE_HANDSHAKE);
    let mut frames = Vec::new();
    for mut chunk in chunks {
        loop {
            match decoder.feed(&mut chunk) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => return (frames, Err(error)),
            }
        }
    }
    let end = decoder.finish();
    (frames, end)
}
