//! Lines on the channels of logs.
//!
//! A record is `u32 length | u64 sequence | u64 time | u8 flags | text`, all
//! little-endian; the time is in milliseconds since 1970, as the guest's clock
//! has it. A record whose flag says so is a gap: it stands for lines that were
//! dropped, whose number is its text. Credit on these channels says what the
//! host has dealt with: a guest keeps the rest for the next link.

/// The longest line; what is beyond is cut off.
pub const MAX_LINE: usize = 16 << 10;
/// The bytes of a record without its text.
pub const RECORD_HEADER: usize = 21;

const TRUNCATED: u8 = 1;
const GAP: u8 = 2;

/// One line of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Counts up in each stream of one boot.
    pub sequence: u64,
    /// When, in milliseconds since 1970.
    pub time_ms: u64,
    /// What.
    pub content: Content,
}

/// What a record says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// A line, without its end.
    Line {
        /// Its bytes.
        text: Vec<u8>,
        /// Whether it was longer.
        truncated: bool,
    },
    /// Lines are missing here.
    Gap {
        /// How many.
        dropped: u64,
    },
}

/// A record that is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a log record that is not well formed")]
pub struct BadRecord;

impl Record {
    /// The record as bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let number;
        let (flags, text) = match &self.content {
            Content::Line { text, truncated } => {
                (u8::from(*truncated) * TRUNCATED, text.as_slice())
            }
            Content::Gap { dropped } => {
                number = dropped.to_le_bytes();
                (GAP, number.as_slice())
            }
        };
        let text = text.get(..MAX_LINE).unwrap_or(text);
        let length = u32::try_from(text.len()).unwrap_or(0);
        let mut bytes = Vec::with_capacity(RECORD_HEADER + text.len());
        bytes.extend(length.to_le_bytes());
        bytes.extend(self.sequence.to_le_bytes());
        bytes.extend(self.time_ms.to_le_bytes());
        bytes.push(flags);
        bytes.extend_from_slice(text);
        bytes
    }
}

/// Puts records together from the bytes of a channel.
#[derive(Debug, Default)]
pub struct Reader {
    buffer: Vec<u8>,
}

impl Reader {
    /// Takes bytes, in pieces of any size.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole record, with the bytes it took.
    ///
    /// # Errors
    /// When it is not well formed; the stream is of no use then.
    pub fn record(&mut self) -> Result<Option<(Record, usize)>, BadRecord> {
        let Some((header, rest)) = self.buffer.split_first_chunk::<RECORD_HEADER>() else {
            return Ok(None);
        };
        let (length, header) = header.split_first_chunk::<4>().ok_or(BadRecord)?;
        let (sequence, header) = header.split_first_chunk::<8>().ok_or(BadRecord)?;
        let (time, flags) = header.split_first_chunk::<8>().ok_or(BadRecord)?;
        let length = u32::from_le_bytes(*length) as usize;
        if length > MAX_LINE {
            return Err(BadRecord);
        }
        let Some(text) = rest.get(..length) else {
            return Ok(None);
        };
        let content = match flags {
            [GAP] => Content::Gap {
                dropped: u64::from_le_bytes(text.try_into().map_err(|_| BadRecord)?),
            },
            [flags @ (0 | TRUNCATED)] => Content::Line {
                text: text.to_vec(),
                truncated: *flags == TRUNCATED,
            },
            _ => return Err(BadRecord),
        };
        let record = Record {
            sequence: u64::from_le_bytes(*sequence),
            time_ms: u64::from_le_bytes(*time),
            content,
        };
        let taken = RECORD_HEADER + length;
        self.buffer.drain(..taken);
        Ok(Some((record, taken)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records() -> Vec<Record> {
        let line = |text: &[u8], truncated| Content::Line {
            text: text.to_vec(),
            truncated,
        };
        let contents = [
            line(b"one", false),
            line(&[7; MAX_LINE], true),
            Content::Gap { dropped: 9 },
        ];
        let record = |(sequence, content)| Record {
            sequence,
            time_ms: 1_767_225_600_000,
            content,
        };
        (1..).zip(contents).map(record).collect()
    }

    #[test]
    fn records_are_read_back_from_pieces_of_any_size() {
        for size in [1, 7, 20, 21, 4_096] {
            let bytes: Vec<u8> = records().iter().flat_map(Record::to_bytes).collect();
            let mut reader = Reader::default();
            let (mut read, mut taken) = (Vec::new(), 0);
            for piece in bytes.chunks(size) {
                reader.feed(piece);
                while let Some((record, bytes)) = reader.record().unwrap() {
                    read.push(record);
                    taken += bytes;
                }
            }
            assert_eq!(read, records());
            assert_eq!(taken, bytes.len());
        }
    }

    #[test]
    fn what_is_no_record_is_refused() {
        for (length, flags) in [(u32::MAX, 0), (8, 3), (7, GAP), (8, 4)] {
            let mut reader = Reader::default();
            reader.feed(&length.to_le_bytes());
            reader.feed(&[0; 16]);
            reader.feed(&[flags]);
            reader.feed(&[0; 8]);
            assert_eq!(reader.record(), Err(BadRecord), "{length} {flags}");
        }
    }
}
