//! Frames: a 4-byte big-endian length and that many bytes of strict JSON.
//!
//! Sans I/O, so that a fuzz target can drive it: feed bytes in any chunks, take
//! frames or one error. Must never allocate what a length merely announces.
//! Next: `strict` for what JSON is accepted, `transport` for the sockets.

mod strict;

use std::io;

use serde::Serialize;

pub use strict::{MAX_DEPTH, MAX_VALUES, StrictJsonError};

/// The largest body before the handshake is accepted.
pub const LIMIT_BEFORE_HANDSHAKE: usize = 16 << 10;

/// The largest body after the handshake.
pub const LIMIT: usize = 16 << 20;

const HEADER: usize = 4;

/// Turns chunks of bytes into frames.
///
/// After an error the stream has no known frame boundary any more, so the
/// decoder answers every further byte with the same error.
#[derive(Debug)]
pub struct Decoder {
    limit: usize,
    header: [u8; HEADER],
    header_filled: usize,
    body: Vec<u8>,
    failed: Option<FrameError>,
}

/// One body that is UTF-8 and strict JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame(String);

/// Why bytes are not a frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The length is zero; no JSON text is empty.
    #[error("a frame of length 0")]
    Empty,
    /// The announced length is above the limit; nothing was allocated for it.
    #[error("a frame of {announced} bytes where {limit} are allowed")]
    TooLarge {
        /// What the header says.
        announced: u32,
        /// What is allowed at this point of the connection.
        limit: usize,
    },
    /// The stream ended inside a frame.
    #[error("the stream ended inside a frame, {missing} bytes early")]
    Truncated {
        /// How many bytes of the header or of the body did not arrive.
        missing: usize,
    },
    /// The body is not UTF-8.
    #[error("the frame is not UTF-8 after byte {valid_up_to}")]
    NotUtf8 {
        /// How many bytes were fine.
        valid_up_to: usize,
    },
    /// The body is not strict JSON.
    #[error("the frame is not strict JSON")]
    Json(#[source] StrictJsonError),
}

/// Why a value cannot be sent as a frame.
#[derive(Debug, thiserror::Error)]
pub enum EncodeFrameError {
    /// The JSON text passes the limit; it was cut off there.
    #[error("the message is larger than {limit} bytes")]
    TooLarge {
        /// What is allowed at this point of the connection.
        limit: usize,
    },
    /// The value has no JSON form, such as a map with keys that are not text.
    #[error("the value has no JSON form")]
    Json(#[source] serde_json::Error),
}

impl Decoder {
    /// A decoder that accepts bodies up to `limit` bytes.
    #[must_use]
    pub const fn new(limit: usize) -> Self {
        Self {
            limit,
            header: [0; HEADER],
            header_filled: 0,
            body: Vec::new(),
            failed: None,
        }
    }

    /// Changes the limit for frames whose header is not complete yet.
    pub const fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Takes bytes from the front of `input` up to the end of one frame.
    ///
    /// `None` means that all of `input` was taken and more is needed.
    ///
    /// # Errors
    /// The bytes are not a frame; every later call returns the same error.
    pub fn feed(&mut self, input: &mut &[u8]) -> Result<Option<Frame>, FrameError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.advance(input)
            .inspect_err(|error| self.failed = Some(error.clone()))
    }

    /// Whether a frame has begun and not ended.
    #[must_use]
    pub const fn is_inside_frame(&self) -> bool {
        self.header_filled > 0
    }

    /// Checks that the stream may end here.
    ///
    /// # Errors
    /// The stream ends inside a frame, or had an error before.
    pub fn finish(&self) -> Result<(), FrameError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let missing = match self.header_filled {
            0 => return Ok(()),
            HEADER => self.announced().saturating_sub(self.body.len()),
            filled => HEADER - filled,
        };
        Err(FrameError::Truncated { missing })
    }

    fn announced(&self) -> usize {
        usize::try_from(u32::from_be_bytes(self.header)).unwrap_or(usize::MAX)
    }

    fn advance(&mut self, input: &mut &[u8]) -> Result<Option<Frame>, FrameError> {
        while self.header_filled < HEADER {
            let Some((first, rest)) = input.split_first() else {
                return Ok(None);
            };
            if let Some(slot) = self.header.get_mut(self.header_filled) {
                *slot = *first;
            }
            self.header_filled += 1;
            *input = rest;
            if self.header_filled == HEADER {
                self.check_header()?;
            }
        }
        let missing = self.announced().saturating_sub(self.body.len());
        let (now, later) = input.split_at(missing.min(input.len()));
        // Grows with what arrived, so a lie in the header costs its sender.
        self.body.extend_from_slice(now);
        *input = later;
        if now.len() < missing {
            return Ok(None);
        }
        self.header_filled = 0;
        into_frame(std::mem::take(&mut self.body)).map(Some)
    }

    fn check_header(&self) -> Result<(), FrameError> {
        let announced = u32::from_be_bytes(self.header);
        if announced == 0 {
            return Err(FrameError::Empty);
        }
        if self.announced() > self.limit {
            return Err(FrameError::TooLarge {
                announced,
                limit: self.limit,
            });
        }
        Ok(())
    }
}

impl Frame {
    /// The JSON text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Header and body of `value`, ready to be written.
///
/// # Errors
/// The value is larger than `limit` as JSON, or has no JSON form.
pub fn encode<T: Serialize + ?Sized>(value: &T, limit: usize) -> Result<Vec<u8>, EncodeFrameError> {
    let mut writer = BoundedWriter {
        bytes: vec![0; HEADER],
        left: limit,
        overflowed: false,
    };
    let written = serde_json::to_writer(&mut writer, value);
    if writer.overflowed {
        return Err(EncodeFrameError::TooLarge { limit });
    }
    written.map_err(EncodeFrameError::Json)?;
    let mut bytes = writer.bytes;
    let length =
        u32::try_from(bytes.len() - HEADER).map_err(|_| EncodeFrameError::TooLarge { limit })?;
    for (slot, byte) in bytes.iter_mut().zip(length.to_be_bytes()) {
        *slot = byte;
    }
    Ok(bytes)
}

struct BoundedWriter {
    bytes: Vec<u8>,
    left: usize,
    overflowed: bool,
}

impl io::Write for BoundedWriter {
    fn write(&mut self, chunk: &[u8]) -> io::Result<usize> {
        match self.left.checked_sub(chunk.len()) {
            Some(left) => self.left = left,
            None => {
                self.overflowed = true;
                return Err(io::ErrorKind::FileTooLarge.into());
            }
        }
        self.bytes.extend_from_slice(chunk);
        Ok(chunk.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn into_frame(body: Vec<u8>) -> Result<Frame, FrameError> {
    let text = String::from_utf8(body).map_err(|error| FrameError::NotUtf8 {
        valid_up_to: error.utf8_error().valid_up_to(),
    })?;
    strict::check(&text).map_err(FrameError::Json)?;
    Ok(Frame(text))
}

#[cfg(test)]
mod tests;
