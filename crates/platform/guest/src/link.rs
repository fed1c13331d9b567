//! Frames and channels: bytes in, events out; orders in, bytes out.
//!
//! The stream begins with [`MAGIC`]; whatever comes before it is thrown away,
//! for a serial line may hold the rest of an older talk. Then frames follow: a
//! header of 12 bytes and up to 64 KiB. Bytes on a channel are sent only
//! against credit that the reader gave, so neither side ever holds more than
//! [`WINDOW`] of one channel, and a slow reader slows the writer.

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// What each side says first.
pub const MAGIC: [u8; 16] = *b"FLUFFYLINK/1\r\n\0\0";
/// The most bytes of one frame's content.
pub const MAX_FRAME: usize = 64 << 10;
/// The most bytes of one message, all its frames together.
pub const MAX_MESSAGE: usize = 1 << 20;
/// The most bytes of a file of secrets.
pub const MAX_SECRETS: usize = 256 << 10;
/// The deepest nesting of a message.
pub const MAX_DEPTH: usize = 16;
/// How much of one channel may be on its way.
pub const WINDOW: usize = 256 << 10;
/// Above this many unsent bytes no more should be read from the other side.
pub const CONGESTED: usize = 2 << 20;

/// The channel of messages.
pub const CONTROL: u32 = 0;
/// What the workload writes to its output.
pub const STDOUT: u32 = 1;
/// What the workload writes to its error output.
pub const STDERR: u32 = 2;
/// What init has to say.
pub const INIT_LOG: u32 = 3;
/// The first channel of commands. Each has two: an even one for its input and
/// output, and the next for its error output.
pub const FIRST_EXEC: u32 = 16;

const HEADER: usize = 12;
const MORE: u8 = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Json,
    Data,
    Credit,
    Eof,
    Reset,
    Secrets,
    Ping,
    Pong,
}

impl Kind {
    fn read(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Self::Json,
            1 => Self::Data,
            2 => Self::Credit,
            3 => Self::Eof,
            4 => Self::Reset,
            5 => Self::Secrets,
            6 => Self::Ping,
            7 => Self::Pong,
            _ => return None,
        })
    }

    fn byte(self) -> u8 {
        match self {
            Self::Json => 0,
            Self::Data => 1,
            Self::Credit => 2,
            Self::Eof => 3,
            Self::Reset => 4,
            Self::Secrets => 5,
            Self::Ping => 6,
            Self::Pong => 7,
        }
    }
}

/// Why a link cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// A frame says that it is longer than any may be.
    #[error("a frame of {0} bytes")]
    FrameTooLong(u32),
    /// A frame of a kind that does not exist.
    #[error("a frame of kind {0}")]
    UnknownKind(u8),
    /// Bits that must be nought are not, or a frame is on a wrong channel.
    #[error("a frame that is not well formed")]
    Malformed,
    /// A message or a file of secrets has too many bytes.
    #[error("a message that is too long")]
    MessageTooLong,
    /// More bytes than there was credit for.
    #[error("bytes without credit on channel {0}")]
    NoCredit(u32),
    /// More credit than a channel can have.
    #[error("too much credit for channel {0}")]
    TooMuchCredit(u32),
}

/// Why a message was not read.
#[derive(Debug, thiserror::Error)]
pub enum ReadMessageError {
    /// It nests deeper than [`MAX_DEPTH`].
    #[error("a message that nests too deep")]
    TooDeep,
    /// It is not the JSON of any message.
    #[error("a message that cannot be read")]
    Json(#[source] serde_json::Error),
}

/// Why a message was not sent.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// It has too many bytes.
    #[error("the message has {0} bytes, more than a link takes")]
    TooLong(usize),
    /// It cannot be written as JSON.
    #[error("the message cannot be written")]
    Json(#[source] serde_json::Error),
}

/// What came over a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The other side is there: its [`MAGIC`] was seen.
    Begun,
    /// A message, not read yet; see [`read_message`].
    Message(Vec<u8>),
    /// A file of secrets. Never printed, never kept.
    Secrets(Hidden),
    /// Bytes on a channel; [`Link::consumed`] lets more of them come.
    Data {
        /// Which.
        channel: u32,
        /// What.
        bytes: Vec<u8>,
    },
    /// The reader of a channel took this many bytes.
    Credit {
        /// Which.
        channel: u32,
        /// How many.
        bytes: usize,
    },
    /// No more bytes come on a channel.
    Eof {
        /// Which.
        channel: u32,
    },
    /// The other side wants nothing more to do with a channel.
    Reset {
        /// Which.
        channel: u32,
    },
    /// A sign of life was answered.
    Pong,
}

/// Bytes that no text ever shows.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Hidden(pub Vec<u8>);

impl std::fmt::Debug for Hidden {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "[{} hidden bytes]", self.0.len())
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        wipe(&mut self.0);
    }
}

/// Overwrites bytes, in a way that is not optimised away.
pub fn wipe(bytes: &mut [u8]) {
    bytes.fill(0);
    std::hint::black_box(bytes);
}

/// One end of a link.
#[derive(Debug)]
pub struct Link {
    /// What came and is not a whole frame yet.
    inbox: Vec<u8>,
    begun: bool,
    json: Vec<u8>,
    secrets: Hidden,
    events: VecDeque<Event>,
    outbox: Vec<u8>,
    /// How much of `outbox` is sent already.
    sent: usize,
    channels: BTreeMap<u32, Channel>,
    pong_owed: bool,
}

#[derive(Debug, Clone, Copy)]
struct Channel {
    /// What we may still send.
    credit: usize,
    /// What the other side may still send.
    granted: usize,
    /// What was consumed and not yet granted again.
    consumed: usize,
}

impl Default for Channel {
    fn default() -> Self {
        Self {
            credit: WINDOW,
            granted: WINDOW,
            consumed: 0,
        }
    }
}

impl Default for Link {
    fn default() -> Self {
        Self::new()
    }
}

impl Link {
    /// A link over a new stream. Channels of logs are open from the start.
    #[must_use]
    pub fn new() -> Self {
        let channels = [STDOUT, STDERR, INIT_LOG];
        Self {
            inbox: Vec::new(),
            begun: false,
            json: Vec::new(),
            secrets: Hidden::default(),
            events: VecDeque::new(),
            outbox: MAGIC.to_vec(),
            sent: 0,
            channels: channels.map(|one| (one, Channel::default())).into(),
            pong_owed: false,
        }
    }

    /// Takes bytes of the other side; what they mean is in [`Self::event`].
    ///
    /// # Errors
    /// When they break the protocol; the link is of no use then.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), LinkError> {
        self.inbox.extend_from_slice(bytes);
        if !self.begun && !self.find_magic() {
            return Ok(());
        }
        if !whole_frame(&self.inbox) {
            return Ok(());
        }
        // What is read may be secrets: it is overwritten when it is dropped.
        let inbox = Hidden(std::mem::take(&mut self.inbox));
        let mut rest = inbox.0.as_slice();
        while let Some((header, content, after)) = split(rest)? {
            self.take(header, content)?;
            rest = after;
        }
        self.inbox = rest.to_vec();
        Ok(())
    }

    /// Throws away what is before the magic; keeps what may be its beginning.
    fn find_magic(&mut self) -> bool {
        let found = self
            .inbox
            .windows(MAGIC.len())
            .position(|window| window == MAGIC);
        if let Some(place) = found {
            self.inbox.drain(..place + MAGIC.len());
            self.begun = true;
            self.events.push_back(Event::Begun);
            return true;
        }
        let kept = self.inbox.len().min(MAGIC.len() - 1);
        self.inbox.drain(..self.inbox.len() - kept);
        false
    }

    fn take(&mut self, header: Header, content: &[u8]) -> Result<(), LinkError> {
        let channel = header.channel;
        match header.kind {
            Kind::Json => {
                join(&mut self.json, content, MAX_MESSAGE)?;
                if !header.more {
                    let whole = std::mem::take(&mut self.json);
                    self.events.push_back(Event::Message(whole));
                }
            }
            Kind::Secrets => {
                if self.secrets.0.len() + content.len() > MAX_SECRETS {
                    return Err(LinkError::MessageTooLong);
                }
                // No growth in steps: that would leave copies behind.
                self.secrets.0.reserve_exact(MAX_SECRETS);
                self.secrets.0.extend_from_slice(content);
                if !header.more {
                    let whole = std::mem::take(&mut self.secrets);
                    self.events.push_back(Event::Secrets(whole));
                }
            }
            Kind::Data => return self.take_data(channel, content),
            Kind::Credit => return self.take_credit(channel, content),
            Kind::Eof => self.events.push_back(Event::Eof { channel }),
            Kind::Reset => self.events.push_back(Event::Reset { channel }),
            // However many there are, one answer is enough.
            Kind::Ping => self.pong_owed = true,
            Kind::Pong => self.events.push_back(Event::Pong),
        }
        Ok(())
    }

    fn take_data(&mut self, channel: u32, content: &[u8]) -> Result<(), LinkError> {
        // A channel that is closed here may not be closed there yet.
        let Some(state) = self.channels.get_mut(&channel) else {
            return Ok(());
        };
        state.granted = state
            .granted
            .checked_sub(content.len())
            .ok_or(LinkError::NoCredit(channel))?;
        if !content.is_empty() {
            self.events.push_back(Event::Data {
                channel,
                bytes: content.to_vec(),
            });
        }
        Ok(())
    }

    fn take_credit(&mut self, channel: u32, content: &[u8]) -> Result<(), LinkError> {
        let bytes = <[u8; 4]>::try_from(content).map_err(|_| LinkError::Malformed)?;
        let bytes = u32::from_le_bytes(bytes) as usize;
        let Some(state) = self.channels.get_mut(&channel) else {
            return Ok(());
        };
        if bytes > WINDOW - state.credit {
            return Err(LinkError::TooMuchCredit(channel));
        }
        state.credit += bytes;
        self.events.push_back(Event::Credit { channel, bytes });
        Ok(())
    }

    /// The next thing that came.
    pub fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Opens a channel of commands, on both sides with the same number.
    pub fn open(&mut self, channel: u32) {
        self.channels.entry(channel).or_default();
    }

    /// Forgets a channel; what still comes on it is thrown away.
    pub fn close(&mut self, channel: u32) {
        self.channels.remove(&channel);
    }

    /// Whether a channel is open here.
    #[must_use]
    pub fn is_open(&self, channel: u32) -> bool {
        self.channels.contains_key(&channel)
    }

    /// How many bytes may be sent on a channel now.
    #[must_use]
    pub fn credit(&self, channel: u32) -> usize {
        self.channels.get(&channel).map_or(0, |state| state.credit)
    }

    /// Sends a message.
    ///
    /// # Errors
    /// When it is longer than [`MAX_MESSAGE`]; nothing is sent then.
    pub fn send<M: Serialize>(&mut self, message: &M) -> Result<(), SendError> {
        let bytes = serde_json::to_vec(message).map_err(SendError::Json)?;
        if bytes.len() > MAX_MESSAGE {
            return Err(SendError::TooLong(bytes.len()));
        }
        self.put_all(Kind::Json, &bytes);
        Ok(())
    }

    /// Sends a file of secrets.
    ///
    /// # Errors
    /// When it is longer than [`MAX_SECRETS`]; nothing is sent then.
    pub fn send_secrets(&mut self, secrets: &[u8]) -> Result<(), SendError> {
        if secrets.len() > MAX_SECRETS {
            return Err(SendError::TooLong(secrets.len()));
        }
        // No growth in steps while it is written: that would leave copies.
        self.outbox.reserve(secrets.len() + 8 * HEADER);
        self.put_all(Kind::Secrets, secrets);
        Ok(())
    }

    /// Sends as much of these bytes as there is credit for, and says how much.
    pub fn send_data(&mut self, channel: u32, bytes: &[u8]) -> usize {
        let Some(state) = self.channels.get_mut(&channel) else {
            return 0;
        };
        let length = bytes.len().min(state.credit);
        state.credit -= length;
        let (bytes, _) = bytes.split_at(length);
        for part in bytes.chunks(MAX_FRAME) {
            self.put(Kind::Data, false, channel, part);
        }
        length
    }

    /// Says that nothing more comes on a channel.
    pub fn send_eof(&mut self, channel: u32) {
        self.put(Kind::Eof, false, channel, &[]);
    }

    /// Says that nothing more is wanted of a channel.
    pub fn send_reset(&mut self, channel: u32) {
        self.put(Kind::Reset, false, channel, &[]);
    }

    /// Asks for a sign of life.
    pub fn ping(&mut self) {
        self.put(Kind::Ping, false, CONTROL, &[]);
    }

    /// Says that this many bytes of a channel were dealt with, so that as many
    /// may come again.
    pub fn consumed(&mut self, channel: u32, bytes: usize) {
        // Few frames: not for each line.
        const STEP: usize = WINDOW / 4;
        let Some(state) = self.channels.get_mut(&channel) else {
            return;
        };
        state.consumed = (state.consumed + bytes).min(WINDOW - state.granted);
        // What the other side waits for must not wait for more.
        if state.consumed >= STEP || channel < FIRST_EXEC {
            let given = std::mem::take(&mut state.consumed);
            state.granted += given;
            let given = u32::try_from(given).unwrap_or(0);
            self.put(Kind::Credit, false, channel, &given.to_le_bytes());
        }
    }

    /// What is to be written to the stream.
    #[must_use]
    pub fn outgoing(&mut self) -> &[u8] {
        if std::mem::take(&mut self.pong_owed) {
            self.put(Kind::Pong, false, CONTROL, &[]);
        }
        self.outbox.get(self.sent..).unwrap_or_default()
    }

    /// Whether there is something to be written.
    #[must_use]
    pub fn has_outgoing(&self) -> bool {
        self.pong_owed || self.sent < self.outbox.len()
    }

    /// Whether so much waits to be written that nothing more should be read.
    #[must_use]
    pub fn is_congested(&self) -> bool {
        self.outbox.len() - self.sent > CONGESTED
    }

    /// Says that this much of [`Self::outgoing`] was written.
    pub fn written(&mut self, bytes: usize) {
        // It may have been secrets.
        let end = (self.sent + bytes).min(self.outbox.len());
        if let Some(written) = self.outbox.get_mut(self.sent..end) {
            wipe(written);
        }
        self.sent = end;
        if self.sent == self.outbox.len() {
            self.outbox.clear();
            self.outbox.shrink_to(MAX_FRAME);
            self.sent = 0;
        } else if self.sent > CONGESTED {
            self.outbox.drain(..self.sent);
            self.sent = 0;
        }
    }

    fn put_all(&mut self, kind: Kind, bytes: &[u8]) {
        let mut parts = bytes.chunks(MAX_FRAME).peekable();
        if parts.peek().is_none() {
            self.put(kind, false, CONTROL, &[]);
        }
        while let Some(part) = parts.next() {
            self.put(kind, parts.peek().is_some(), CONTROL, part);
        }
    }

    fn put(&mut self, kind: Kind, more: bool, channel: u32, content: &[u8]) {
        let length = u32::try_from(content.len()).unwrap_or(u32::MAX);
        self.outbox.extend(length.to_le_bytes());
        self.outbox
            .extend([kind.byte(), u8::from(more) * MORE, 0, 0]);
        self.outbox.extend(channel.to_le_bytes());
        self.outbox.extend_from_slice(content);
    }
}

#[derive(Debug, Clone, Copy)]
struct Header {
    length: usize,
    kind: Kind,
    more: bool,
    channel: u32,
}

impl Header {
    fn read(bytes: &[u8; HEADER]) -> Result<Self, LinkError> {
        let [l0, l1, l2, l3, kind, flags, z0, z1, c0, c1, c2, c3] = *bytes;
        let length = u32::from_le_bytes([l0, l1, l2, l3]);
        if length as usize > MAX_FRAME {
            return Err(LinkError::FrameTooLong(length));
        }
        let kind = Kind::read(kind).ok_or(LinkError::UnknownKind(kind))?;
        let channel = u32::from_le_bytes([c0, c1, c2, c3]);
        let more = flags == MORE;
        let joined = matches!(kind, Kind::Json | Kind::Secrets);
        let of_channel = matches!(kind, Kind::Data | Kind::Credit | Kind::Eof | Kind::Reset);
        let well_formed = flags <= MORE
            && (z0, z1) == (0, 0)
            && (joined || !more)
            && of_channel == (channel != CONTROL);
        if !well_formed {
            return Err(LinkError::Malformed);
        }
        Ok(Self {
            length: length as usize,
            kind,
            more,
            channel,
        })
    }
}

/// A header, its content, and what follows.
type Frame<'a> = (Header, &'a [u8], &'a [u8]);

/// The first frame, its content and what follows, if it is there whole.
fn split(bytes: &[u8]) -> Result<Option<Frame<'_>>, LinkError> {
    let Some((header, after)) = bytes.split_first_chunk::<HEADER>() else {
        return Ok(None);
    };
    let header = Header::read(header)?;
    let parts = after.split_at_checked(header.length);
    Ok(parts.map(|(content, after)| (header, content, after)))
}

/// Whether there is something to do; also if it is wrong.
fn whole_frame(bytes: &[u8]) -> bool {
    !matches!(split(bytes), Ok(None))
}

fn join(whole: &mut Vec<u8>, part: &[u8], most: usize) -> Result<(), LinkError> {
    if whole.len() + part.len() > most {
        return Err(LinkError::MessageTooLong);
    }
    whole.extend_from_slice(part);
    Ok(())
}

/// Reads a message.
///
/// # Errors
/// When it is not one, or nests too deep.
pub fn read_message<M: DeserializeOwned>(bytes: &[u8]) -> Result<M, ReadMessageError> {
    if depth(bytes) > MAX_DEPTH {
        return Err(ReadMessageError::TooDeep);
    }
    serde_json::from_slice(bytes).map_err(ReadMessageError::Json)
}

/// How deep JSON nests at most; of other bytes anything.
fn depth(bytes: &[u8]) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    let (mut in_text, mut escaped) = (false, false);
    for byte in bytes {
        if in_text {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_text = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_text = true,
            b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests;
