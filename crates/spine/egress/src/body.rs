//! Moving bodies and tunnels: exactly as many bytes as belong to them.
//!
//! A chunked body is taken apart and put together anew, without extensions and
//! trailers, so that nobody downstream can see other borders than we did. All
//! bytes are counted before they go on.

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncWrite, AsyncWriteExt};

use crate::head::Framing;
use crate::limits::Tally;
use crate::reason::Reason;

/// The longest line between chunks, extensions included.
const MAX_LINE: usize = 512;
/// The most bytes of trailers that are skipped.
const MAX_TRAILERS: usize = 8 * 1024;

/// Copies one body; what follows it stays unread.
pub(crate) async fn copy_body<R, W>(
    from: &mut R,
    to: &mut W,
    framing: Framing,
    tally: Tally<'_>,
) -> Result<(), Reason>
where
    R: AsyncBufRead + Unpin + ?Sized,
    W: AsyncWrite + Unpin + ?Sized,
{
    let mut copy = Copy { from, to, tally };
    match framing {
        Framing::Empty => {}
        Framing::Length(length) => copy.exactly(length).await?,
        Framing::Chunked => copy.chunks().await?,
        Framing::UntilClose => copy.everything().await?,
    }
    copy.to.flush().await.map_err(broken)
}

/// A side that went away; which one is of no consequence.
pub(crate) fn broken(_: io::Error) -> Reason {
    Reason::Broken
}

struct Copy<'a, R: ?Sized, W: ?Sized> {
    from: &'a mut R,
    to: &'a mut W,
    tally: Tally<'a>,
}

impl<R, W> Copy<'_, R, W>
where
    R: AsyncBufRead + Unpin + ?Sized,
    W: AsyncWrite + Unpin + ?Sized,
{
    async fn everything(&mut self) -> Result<(), Reason> {
        while self.some(u64::MAX).await? > 0 {}
        Ok(())
    }

    async fn exactly(&mut self, length: u64) -> Result<(), Reason> {
        let mut left = length;
        while left > 0 {
            match self.some(left).await? {
                0 => return Err(Reason::BadBody),
                moved => left -= moved,
            }
        }
        Ok(())
    }

    /// Moves what is there, at most `most`; 0 at the end.
    async fn some(&mut self, most: u64) -> Result<u64, Reason> {
        let there = self.from.fill_buf().await.map_err(broken)?;
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let part = there.get(..most).unwrap_or(there);
        self.tally.count(part.len())?;
        self.to.write_all(part).await.map_err(broken)?;
        let moved = part.len();
        self.from.consume(moved);
        // Small pieces must not wait for more: the other side may be waiting.
        self.to.flush().await.map_err(broken)?;
        Ok(moved as u64)
    }

    async fn chunks(&mut self) -> Result<(), Reason> {
        loop {
            let line = self.line(MAX_LINE).await?;
            let length = chunk_length(&line).ok_or(Reason::BadBody)?;
            self.write(format!("{length:x}\r\n").as_bytes()).await?;
            if length == 0 {
                break;
            }
            self.exactly(length).await?;
            if !self.line(0).await?.is_empty() {
                return Err(Reason::BadBody);
            }
            self.write(b"\r\n").await?;
        }
        let mut skipped = 0;
        loop {
            let line = self.line(MAX_TRAILERS).await?;
            skipped += line.len() + 2;
            match line.is_empty() {
                true => return self.write(b"\r\n").await,
                false if skipped > MAX_TRAILERS => return Err(Reason::BadBody),
                false => {}
            }
        }
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), Reason> {
        self.tally.count(bytes.len())?;
        self.to.write_all(bytes).await.map_err(broken)
    }

    /// One line of at most so many bytes, which CR LF ends and is not in.
    async fn line(&mut self, most: usize) -> Result<Vec<u8>, Reason> {
        let mut line = Vec::new();
        loop {
            let there = self.from.fill_buf().await.map_err(broken)?;
            let Some(&byte) = there.first() else {
                return Err(Reason::BadBody);
            };
            self.from.consume(1);
            match (byte, line.last()) {
                (b'\n', Some(b'\r')) => {
                    line.pop();
                    return Ok(line);
                }
                // Neither alone: some readers take it for the end of a line.
                (b'\n', _) | (_, Some(b'\r')) => return Err(Reason::BadBody),
                (0, _) => return Err(Reason::BadBody),
                _ if line.len() > most => return Err(Reason::BadBody),
                _ => line.push(byte),
            }
        }
    }
}

/// The number before the extensions of a chunk, in plain hex digits.
fn chunk_length(line: &[u8]) -> Option<u64> {
    let end = line.iter().position(|byte| *byte == b';');
    let digits = line.get(..end.unwrap_or(line.len()))?;
    let plain = (1..=16).contains(&digits.len()) && digits.iter().all(u8::is_ascii_hexdigit);
    let digits = std::str::from_utf8(digits).ok().filter(|_| plain)?;
    u64::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::limits::{Limits, Meter, Used, Way};

    use super::*;

    /// What goes on of these bytes, and what stays unread.
    async fn moved(bytes: &[u8], framing: Framing) -> Result<(Vec<u8>, Vec<u8>), Reason> {
        let (limits, used) = (Limits::default(), Used::default());
        let meter = Meter::new(&limits, &used);
        let mut from = bytes;
        let mut to = Vec::new();
        copy_body(&mut from, &mut to, framing, meter.tally(Way::Up)).await?;
        Ok((to, from.to_vec()))
    }

    #[tokio::test]
    async fn a_body_ends_where_it_ends() {
        let length = moved(b"abcdef", Framing::Length(4)).await.unwrap();
        assert_eq!(length, (b"abcd".to_vec(), b"ef".to_vec()));
        let chunked = moved(b"3\r\nabc\r\n0\r\n\r\nGET /", Framing::Chunked).await;
        let whole = b"3\r\nabc\r\n0\r\n\r\n".to_vec();
        assert_eq!(chunked.unwrap(), (whole, b"GET /".to_vec()));
        let empty = moved(b"abc", Framing::Empty).await.unwrap();
        assert_eq!(empty, (Vec::new(), b"abc".to_vec()));
    }

    #[tokio::test]
    async fn extensions_and_trailers_do_not_go_on() {
        let body = b"003;a=\"b\"\r\nabc\r\n0;x\r\nTrailer: y\r\nHost: evil\r\n\r\n";
        let (to, left) = moved(body, Framing::Chunked).await.unwrap();
        assert_eq!(to, b"3\r\nabc\r\n0\r\n\r\n");
        assert!(left.is_empty());
    }

    #[tokio::test]
    async fn an_unclear_chunk_is_refused() {
        for body in [
            &b"3\nabc\r\n0\r\n\r\n"[..],
            b"3\r\nabc0\r\n\r\n",
            b"3\r\nabcd\r\n0\r\n\r\n",
            b"0x3\r\nabc\r\n0\r\n\r\n",
            b" 3\r\nabc\r\n0\r\n\r\n",
            b"3 \r\nabc\r\n0\r\n\r\n",
            b"+3\r\nabc\r\n0\r\n\r\n",
            b"-3\r\nabc\r\n0\r\n\r\n",
            b"\r\nabc\r\n0\r\n\r\n",
            b"3\r\nabc\r\n0\r\n",
            b"3\r\nabc\r\n0\r\nx\n\r\n",
            b"3\r\rabc\r\n0\r\n\r\n",
            b"11111111111111111\r\nabc",
            b"3\r\nab",
        ] {
            let shown = String::from_utf8_lossy(body);
            assert_eq!(
                moved(body, Framing::Chunked).await,
                Err(Reason::BadBody),
                "{shown:?}"
            );
        }
        let long = [b"3;".to_vec(), vec![b'a'; 2 * MAX_LINE]].concat();
        assert_eq!(moved(&long, Framing::Chunked).await, Err(Reason::BadBody));
        let trailers = [b"0\r\n".to_vec(), b"a: b\r\n".repeat(MAX_TRAILERS)].concat();
        assert_eq!(
            moved(&trailers, Framing::Chunked).await,
            Err(Reason::BadBody)
        );
        assert_eq!(
            moved(b"abc", Framing::Length(4)).await,
            Err(Reason::BadBody)
        );
    }

    #[tokio::test]
    async fn a_spent_allowance_stops_before_the_bytes_go_on() {
        let limits = Limits {
            bytes_up: 4,
            idle_time: Duration::from_secs(1),
            ..Limits::default()
        };
        let used = Used::default();
        let meter = Meter::new(&limits, &used);
        let (mut from, mut to) = (&b"abcdef"[..], Vec::new());
        let body = Framing::Length(6);
        let copied = copy_body(&mut from, &mut to, body, meter.tally(Way::Up)).await;
        assert_eq!(copied, Err(Reason::BytesUp));
        assert!(to.is_empty());
        assert_eq!(used.bytes(), (0, 0));
    }
}
