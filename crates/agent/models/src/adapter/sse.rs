//! Server-sent events out of bytes, in whatever pieces they come.
//!
//! A thin cover of `sse-core`, which keeps comments and line ends to itself;
//! what is added is one bound for an event and one answer for a stream that
//! passes it. Never looks into the data. Next: the four wire formats beside.

use std::num::NonZeroUsize;

use sse_core::{SseDecoder, SseEvent};

/// The most bytes one event may have: a whole answer fits several times.
pub const MAX_EVENT: usize = 8 << 20;

/// Turns bytes into events.
#[derive(Debug)]
pub(crate) struct EventReader {
    decoder: SseDecoder,
    is_broken: bool,
}

/// One event of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StreamEvent {
    /// Its name; `message` if it has none.
    pub(crate) name: String,
    /// Its data.
    pub(crate) data: String,
}

/// An event is larger than [`MAX_EVENT`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EventTooLarge;

impl EventReader {
    pub(crate) fn new() -> Self {
        let limit = NonZeroUsize::new(MAX_EVENT).unwrap_or(NonZeroUsize::MIN);
        Self {
            decoder: SseDecoder::with_limit(limit),
            is_broken: false,
        }
    }

    /// The events that these bytes complete. After an error there are none.
    pub(crate) fn feed(&mut self, mut bytes: &[u8]) -> Result<Vec<StreamEvent>, EventTooLarge> {
        let mut events = Vec::new();
        if self.is_broken {
            return Ok(events);
        }
        while let Some(event) = self.decoder.next(&mut bytes) {
            match event {
                Ok(SseEvent::Message(message)) => events.push(StreamEvent {
                    name: message.event.into_owned(),
                    data: message.data,
                }),
                // We never reconnect to the same stream.
                Ok(SseEvent::Retry(_)) => {}
                Err(_) => {
                    self.is_broken = true;
                    return Err(EventTooLarge);
                }
            }
        }
        Ok(events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = "\u{feff}: keep-alive\r\n\r\nevent: one\r\ndata: gr\u{fc}\u{df}e \u{1f980}\r\n\r\n\
                          :\n\ndata: a\ndata: b\n\nid: 7\nretry: 10\ndata:c\r\rdata: unfinished";

    fn read(pieces: &[&[u8]]) -> Vec<(String, String)> {
        let mut reader = EventReader::new();
        let mut all = Vec::new();
        for piece in pieces {
            all.extend(reader.feed(piece).unwrap());
        }
        all.into_iter().map(|e| (e.name, e.data)).collect()
    }

    #[test]
    fn every_way_to_cut_a_stream_in_two_gives_the_same_events() {
        let bytes = STREAM.as_bytes();
        let whole = read(&[bytes]);
        let expected = [
            ("one", "gr\u{fc}\u{df}e \u{1f980}"),
            ("message", "a\nb"),
            ("message", "c"),
        ];
        assert_eq!(whole, expected.map(|(n, d)| (n.to_owned(), d.to_owned())));
        for at in 0..=bytes.len() {
            assert_eq!(read(&[&bytes[..at], &bytes[at..]]), whole, "cut at {at}");
        }
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(read(&single), whole);
    }

    #[test]
    fn an_event_beyond_the_bound_ends_the_stream() {
        let mut reader = EventReader::new();
        assert_eq!(reader.feed(b"data: fine\n\ndata: ").unwrap().len(), 1);
        let piece = vec![b'x'; 1 << 20];
        let refused = (0..16).find_map(|_| reader.feed(&piece).err());
        assert_eq!(refused, Some(EventTooLarge));
        assert_eq!(reader.feed(b"\n\ndata: later\n\n"), Ok(vec![]));
    }

    #[test]
    fn comments_of_any_length_are_not_kept() {
        let mut reader = EventReader::new();
        assert_eq!(reader.feed(b": "), Ok(vec![]));
        let piece = vec![b'x'; 1 << 20];
        for _ in 0..20 {
            assert_eq!(reader.feed(&piece), Ok(vec![]));
        }
        assert_eq!(reader.feed(b"\ndata: x\n\n").unwrap().len(), 1);
    }
}
