//! What host and worker say to each other: length-prefixed JSON frames.
//!
//! Four bytes of big-endian length, then that many bytes of JSON. Both sides
//! check the length before they allocate; the host reads the worker's frames as
//! hostile input. Next: `worker` and `process` are the two ends.

use std::io::{self, Read, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::problem::Problem;

/// The version of these messages; both ends are the same program, unless it
/// was replaced on disk while it ran.
pub(crate) const VERSION: u32 = 1;
/// The longest frame to the worker.
pub(crate) const MAX_TO_WORKER: usize = 1024 * 1024;
/// The longest frame from the worker.
pub(crate) const MAX_FROM_WORKER: usize = 64 * 1024;

/// What the host asks of its worker.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum ToWorker {
    /// The first message, once: the extension to run.
    Load(Load),
    /// One request to judge.
    Ask(Ask),
}

/// The extension and what it may use.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Load {
    pub(crate) version: u32,
    pub(crate) source: String,
    pub(crate) memory: u64,
    pub(crate) stack: u64,
    pub(crate) load_ms: u64,
    pub(crate) evaluation_ms: u64,
}

/// One request and the moment at which it is judged.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ask {
    pub(crate) now_micros: i64,
    /// The request as JSON text: only the script engine ever parses it.
    pub(crate) request: String,
}

/// What the worker answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum FromWorker {
    /// The extension is loaded, declares these actions (`None`: all), and a
    /// first engine stands ready.
    Loaded { actions: Option<Vec<String>> },
    /// A fresh engine stands ready again; follows each verdict.
    Ready,
    /// The extension cannot be loaded.
    Refused(Problem),
    /// What the extension said.
    Spoke { verdict: Verdict, reason: String },
    /// The extension failed; the worker ends after saying so.
    Failed { failure: Failure, detail: String },
}

/// The four things that an extension may say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Allow,
    Deny,
    RequireReview,
    Pass,
}

/// The ways in which an extension fails by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Failure {
    /// It threw.
    Threw,
    /// The engine's own time limit stopped it.
    Interrupted,
    /// It hit the memory limit.
    Memory,
    /// It returned something that is no verdict.
    Nonsense,
}

/// Why a frame could not be exchanged.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExchangeFrameError {
    /// The other end closed, or the operating system failed.
    #[error("the connection failed")]
    Connection(#[from] io::Error),
    /// The frame is longer than agreed.
    #[error("a frame of {length} bytes exceeds {limit}")]
    TooLong { length: usize, limit: usize },
    /// The bytes are not a known message.
    #[error("the frame is not a known message")]
    Malformed(#[source] serde_json::Error),
}

impl Verdict {
    /// The verdict of this name, as scripts write it.
    pub(crate) fn named(name: &str) -> Option<Self> {
        match name {
            "allow" => Some(Self::Allow),
            "deny" => Some(Self::Deny),
            "require_review" => Some(Self::RequireReview),
            "pass" => Some(Self::Pass),
            _ => None,
        }
    }
}

/// Writes one message as one frame, in one piece.
pub(crate) fn write_frame(
    writer: &mut impl Write,
    message: &impl Serialize,
    limit: usize,
) -> Result<(), ExchangeFrameError> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, message).map_err(ExchangeFrameError::Malformed)?;
    let length = frame.len().saturating_sub(4);
    let prefix = match u32::try_from(length) {
        Ok(prefix) if length <= limit => prefix.to_be_bytes(),
        _ => return Err(ExchangeFrameError::TooLong { length, limit }),
    };
    for (slot, byte) in frame.iter_mut().zip(prefix) {
        *slot = byte;
    }
    writer.write_all(&frame)?;
    writer.flush()?;
    Ok(())
}

/// Reads one message; `None` when the other end closed between frames.
pub(crate) fn read_frame<M: DeserializeOwned>(
    reader: &mut impl Read,
    limit: usize,
) -> Result<Option<M>, ExchangeFrameError> {
    let mut prefix = [0; 4];
    let mut rest: &mut [u8] = &mut prefix;
    // By hand, because only an end before the first byte is a proper goodbye.
    let mut began = false;
    while !rest.is_empty() {
        match reader.read(rest) {
            Ok(0) if !began => return Ok(None),
            Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Ok(count) => {
                began = true;
                rest = rest.get_mut(count..).unwrap_or_default();
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    let length = usize::try_from(u32::from_be_bytes(prefix)).unwrap_or(usize::MAX);
    if length > limit {
        return Err(ExchangeFrameError::TooLong { length, limit });
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    serde_json::from_slice(&body)
        .map(Some)
        .map_err(ExchangeFrameError::Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Option<FromWorker>, ExchangeFrameError> {
        read_frame(&mut &*bytes, MAX_FROM_WORKER)
    }

    fn framed(json: &str) -> Vec<u8> {
        let mut bytes = u32::try_from(json.len()).unwrap().to_be_bytes().to_vec();
        bytes.extend_from_slice(json.as_bytes());
        bytes
    }

    #[test]
    fn a_message_survives_the_journey() {
        let mut bytes = Vec::new();
        let message = FromWorker::Spoke {
            verdict: Verdict::RequireReview,
            reason: "größer".to_owned(),
        };
        write_frame(&mut bytes, &message, MAX_FROM_WORKER).unwrap();
        let Some(FromWorker::Spoke { verdict, reason }) = read(&bytes).unwrap() else {
            panic!("another message");
        };
        assert_eq!(
            (verdict, reason.as_str()),
            (Verdict::RequireReview, "größer")
        );
    }

    #[test]
    fn an_end_between_frames_is_a_goodbye_and_inside_one_a_fault() {
        assert!(read(&[]).unwrap().is_none());
        assert!(matches!(read(&[0]), Err(ExchangeFrameError::Connection(_))));
        assert!(matches!(
            read(&[0, 0, 0, 9, b'{']),
            Err(ExchangeFrameError::Connection(_))
        ));
    }

    #[test]
    fn a_length_is_refused_before_it_is_allocated() {
        assert!(matches!(
            read(&[0xff; 8]),
            Err(ExchangeFrameError::TooLong { .. })
        ));
        let mut sink = Vec::new();
        assert!(matches!(
            write_frame(&mut sink, &"x".repeat(11), 12),
            Err(ExchangeFrameError::TooLong {
                length: 13,
                limit: 12
            })
        ));
        assert!(sink.is_empty());
    }

    #[test]
    fn only_known_messages_are_read() {
        for json in [
            "",
            "null",
            r#"{"spoke":{"verdict":"permit","reason":""}}"#,
            r#"{"spoke":{"verdict":"allow","reason":"","more":1}}"#,
            r#"{"spoke":{"verdict":"allow","reason":7}}"#,
            r#"{"loaded":{"actions":null}} {}"#,
            r#"{"allow":{}}"#,
        ] {
            assert!(
                matches!(read(&framed(json)), Err(ExchangeFrameError::Malformed(_))),
                "{json}"
            );
        }
        assert!(
            read(&framed(r#"{"loaded":{"actions":null}}"#))
                .unwrap()
                .is_some()
        );
    }
}
