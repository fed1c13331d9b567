//! The beginning and the end of a stream of any length.
//!
//! Must never hold more than its two parts, whatever comes.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

/// How much is kept of the beginning, and of the end.
const KEPT: usize = 128 * 1024;

/// The beginning and the end of a stream.
#[derive(Debug, Default)]
pub(crate) struct Excerpt {
    head: Vec<u8>,
    tail: VecDeque<u8>,
}

impl Excerpt {
    /// Takes all that can be read now.
    pub(crate) fn take_from(&mut self, stream: BorrowedFd<'_>) {
        let mut buffer = vec![0_u8; 64 * 1024];
        // Bounded, so that an endless stream cannot keep us from the clock.
        for _ in 0..256 {
            match rustix::io::read(stream, &mut buffer) {
                Ok(length) if length > 0 => self.push(buffer.get(..length).unwrap_or_default()),
                Ok(_) | Err(_) => return,
            }
        }
    }

    /// Adds what came next.
    fn push(&mut self, bytes: &[u8]) {
        let room = KEPT - self.head.len();
        let (head, tail) = bytes.split_at(room.min(bytes.len()));
        self.head.extend(head);
        self.tail.extend(tail);
        let excess = self.tail.len().saturating_sub(KEPT);
        self.tail.drain(..excess);
    }

    /// Both parts, one after the other.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        let mut bytes = self.head;
        bytes.extend(self.tail);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_streams_are_kept_whole_and_long_ones_in_part() {
        let mut short = Excerpt::default();
        short.push(b"one ");
        short.push(b"two");
        assert_eq!(short.into_bytes(), b"one two");
        let mut long = Excerpt::default();
        long.push(b"start");
        for _ in 0..100 {
            long.push(&[b'.'; 10_000]);
        }
        long.push(b"end");
        let bytes = long.into_bytes();
        assert_eq!(bytes.len(), 2 * KEPT);
        assert!(bytes.starts_with(b"start") && bytes.ends_with(b"end"));
    }
}
