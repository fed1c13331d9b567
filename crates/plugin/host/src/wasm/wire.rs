//! What the host and its WASM worker say to each other.
//!
//! Frames of a length in four bytes, big end first, and a message. The worker
//! may be in the hands of the plugin: the host takes no frame that is larger
//! than its state allows, and no message where it does not belong.

use fluffy_base::Digest;
use fluffy_wasm::plugin::{Ask, Description, Fault, Output, Reply};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::options::{Fuel, Instances, WasmOptions};

/// The largest frame while a plugin is loaded: its module and compiled code.
pub(super) const MAX_LOAD: usize = 256 << 20;

/// The largest frame afterwards.
pub(super) const MAX_FRAME: usize = 8 << 20;

/// To the worker.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToWorker {
    /// The plugin; the first message, and once.
    Load {
        orders: Orders,
        module: Blob,
        /// What an engine of the worker's identity made of it before.
        compiled: Option<Blob>,
    },
    /// A call into the plugin.
    Call { id: u64, work: Work },
    /// Nobody waits for this call any more.
    Cancel { id: u64 },
    /// The answer to a question.
    Answer {
        id: u64,
        answer: Result<Reply, Fault>,
    },
    /// End, after telling the plugin.
    Stop,
}

/// What the plugin may use, in plain numbers.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Orders {
    pub(super) fuel: Fuel,
    pub(super) call_millis: u64,
    pub(super) memory: u64,
    pub(super) table_elements: u64,
    pub(super) instances: Instances,
    pub(super) concurrency: u32,
}

impl From<&WasmOptions> for Orders {
    fn from(options: &WasmOptions) -> Self {
        Self {
            fuel: options.fuel,
            call_millis: options.call_timeout.millis,
            memory: options.memory.0,
            table_elements: options.table_elements,
            instances: options.instances,
            concurrency: options.concurrency,
        }
    }
}

/// What a call does.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Work {
    /// Carries out a tool's call.
    Execute { tool: String, arguments: String },
    /// Asks whether the plugin is well.
    Health,
}

/// From the worker.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum FromWorker {
    /// It is there, with an engine of this identity.
    Hello { engine: Digest },
    /// What it compiled, before anything of the plugin ran.
    Compiled { code: Blob },
    /// The plugin is ready and has these tools.
    Loaded { tools: Vec<Description> },
    /// The plugin cannot be loaded.
    Failed { what: String },
    /// A question of the plugin.
    Ask { id: u64, question: Question },
    /// What the plugin wrote while it began.
    Said { stdout: Vec<u8>, stderr: Vec<u8> },
    /// A call is over.
    Done { id: u64, done: Done },
}

/// What a worker asks.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Question {
    /// For the plugin.
    Ask(Ask),
    /// Whether `host:port` may be connected to, before the proxy is asked.
    MayConnect { address: String },
}

/// How a call ended.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Done {
    /// What it brought; nothing where the plugin was asked how it is.
    pub(super) result: Result<Option<Output>, Ended>,
    pub(super) usage: Used,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
}

/// What a call used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Used {
    /// What is left of its fuel, where it was counted.
    pub fuel_left: Option<u64>,
    /// The memory of its instance, in bytes.
    pub memory: u64,
    /// How long it ran, in microseconds.
    pub micros: u64,
}

/// Why a call brought nothing.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Ended {
    /// The plugin refused, in its own words.
    Refused(String),
    /// It trapped.
    Trapped(String),
    Fuel,
    Deadline,
    Memory,
    Table,
    Output,
    Asks,
    /// No instance could be made.
    Instance(String),
}

/// Many bytes, passed on at once.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Blob(pub(super) Vec<u8>);

impl Serialize for Blob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes;
        impl serde::de::Visitor<'_> for Bytes {
            type Value = Blob;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Blob, E> {
                Ok(Blob(bytes.to_vec()))
            }
        }
        deserializer.deserialize_bytes(Bytes)
    }
}

/// What is no frame or no message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum WireError {
    /// Larger than allowed.
    #[error("a frame of {found} bytes, and {limit} are allowed")]
    TooLarge { found: usize, limit: usize },
    /// Not a message.
    #[error("a frame that is no message")]
    Malformed,
}

/// A message as a frame.
pub(super) fn encode(message: &impl Serialize) -> Result<Vec<u8>, WireError> {
    // Writing into memory fails for no message of ours.
    let mut frame = postcard::to_extend(message, vec![0; 4]).map_err(|_| WireError::Malformed)?;
    let length = frame.len() - 4;
    let found = u32::try_from(length).map_err(|_| WireError::TooLarge {
        found: length,
        limit: MAX_LOAD,
    })?;
    if let Some(head) = frame.first_chunk_mut::<4>() {
        *head = found.to_be_bytes();
    }
    Ok(frame)
}

/// Takes messages out of bytes as they come.
#[derive(Debug)]
pub(super) struct Decoder {
    limit: usize,
    buffer: Vec<u8>,
    start: usize,
}

impl Decoder {
    pub(super) const fn new(limit: usize) -> Self {
        Self {
            limit,
            buffer: Vec::new(),
            start: 0,
        }
    }

    /// Takes no larger frames from now on.
    pub(super) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    pub(super) fn feed(&mut self, bytes: &[u8]) {
        // What was taken goes before more comes, so it never piles up.
        self.buffer.drain(..self.start);
        self.start = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// The next message, where it is whole.
    pub(super) fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, WireError> {
        let rest = self.buffer.get(self.start..).unwrap_or_default();
        let Some((head, body)) = rest.split_first_chunk::<4>() else {
            return Ok(None);
        };
        let found = usize::try_from(u32::from_be_bytes(*head)).unwrap_or(usize::MAX);
        let limit = self.limit;
        if found > limit {
            return Err(WireError::TooLarge { found, limit });
        }
        let Some(body) = body.get(..found) else {
            return Ok(None);
        };
        let message = match postcard::take_from_bytes::<T>(body) {
            Ok((message, [])) => message,
            Ok(_) | Err(_) => return Err(WireError::Malformed),
        };
        self.start += 4 + found;
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_whole_and_nothing_else_does() {
        let messages: Vec<Vec<u8>> = (0..3)
            .map(|id| encode(&ToWorker::Cancel { id }).unwrap())
            .collect();
        let bytes = messages.concat();
        let mut decoder = Decoder::new(64);
        let mut ids = Vec::new();
        for byte in &bytes {
            decoder.feed(&[*byte]);
            while let Some(message) = decoder.next().unwrap() {
                match message {
                    ToWorker::Cancel { id } => ids.push(id),
                    other => panic!("{other:?}"),
                }
            }
        }
        assert_eq!(ids, [0, 1, 2]);
        let large = [0, 0, 0, 65];
        let mut decoder = Decoder::new(64);
        decoder.feed(&large);
        let refused = decoder.next::<ToWorker>().unwrap_err();
        let (found, limit) = (65, 64);
        assert_eq!(refused, WireError::TooLarge { found, limit });
        // An empty one, one with a rest, and one of nobody.
        for bytes in [&[0, 0, 0, 0][..], &[0, 0, 0, 3, 2, 1, 1], &[0, 0, 0, 1, 99]] {
            let mut decoder = Decoder::new(64);
            decoder.feed(bytes);
            assert_eq!(
                decoder.next::<ToWorker>().unwrap_err(),
                WireError::Malformed,
                "{bytes:?}"
            );
        }
        let blob = Blob(vec![7; 1000]);
        let frame = encode(&blob).unwrap();
        let mut decoder = Decoder::new(2000);
        decoder.feed(&frame);
        assert_eq!(decoder.next::<Blob>(), Ok(Some(blob)));
        // A length inside that is longer than the frame.
        let mut decoder = Decoder::new(64);
        decoder.feed(&[0, 0, 0, 3, 0xff, 0xff, 0x7f]);
        assert_eq!(decoder.next::<Blob>(), Err(WireError::Malformed));
    }
}
