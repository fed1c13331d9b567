//! What is said over the WebSocket of an exec session.
//!
//! Binary messages; the first byte says what one carries. Both ends use these
//! names: `client` opens sessions, the server's gateway carries them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The most bytes of input or output in one message.
pub const MAX_FRAME: usize = 64 << 10;

/// The protocol that both sides must name.
pub const PROTOCOL: &str = "fluffy.exec.v1";

/// The first byte of a message: what it carries.
pub mod kind {
    /// From the client: bytes for the command's input.
    pub const STDIN: u8 = 0x01;
    /// From the command: its output.
    pub const STDOUT: u8 = 0x02;
    /// From the command: its errors.
    pub const STDERR: u8 = 0x03;
    /// JSON: from the client see [`super::Control`], to it [`super::Word`].
    pub const CONTROL: u8 = 0x10;
    /// From the command, to a client that came back: the place of the first
    /// byte in all of the output, as eight bytes of which the first counts
    /// most, and output that it has not said it had.
    pub const REPLAY: u8 = 0x12;
    /// From the command: JSON, see [`super::Exit`]; the last message.
    pub const EXIT: u8 = 0x11;
}

/// What a client asks for beside sending input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Control {
    /// The terminal has another size.
    Resize {
        /// Its width.
        cols: u16,
        /// Its height.
        rows: u16,
    },
    /// A signal for the command.
    Signal {
        /// Which.
        signal: Signal,
    },
    /// The output before this place arrived. Whoever came back to a session
    /// says so first, and is then told the rest.
    Ack {
        /// How many bytes that are.
        out_offset: u64,
    },
    /// There is no more input.
    Close,
}

/// The most resizes that are passed on in a second.
pub const MAX_RESIZES: u32 = 30;

/// The largest width and height of a terminal.
pub const MAX_SIZE: u16 = 1000;

/// With what the server closes the WebSocket, unless the command ended by
/// itself.
pub mod close {
    /// The session was revoked, or who opened it may no longer.
    pub const REVOKED: u16 = 4403;
    /// Its time was over.
    pub const TIMEOUT: u16 = 4408;
    /// The instance or its node is gone.
    pub const GONE: u16 = 4409;
    /// A mistake of the server's.
    pub const INTERNAL: u16 = 4500;
}

/// What the server says beside output. A client leaves out what it does not
/// know.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Word {
    /// The node runs the command.
    Ready {
        /// The session.
        session_id: String,
        /// The command's number in the instance, where it is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pid: Option<u32>,
        /// What lets its client in again, once, within 30 seconds after the
        /// connection broke; where the session was granted with `resume`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        resume_token: Option<String>,
    },
    /// Something is about to happen: `ends_soon` a minute before the end; or
    /// did: `output_gap`, output is lost before what comes again.
    Warning {
        /// What.
        code: String,
    },
    /// Why the server hangs up.
    Error {
        /// For programs.
        code: String,
        /// For people.
        text: String,
    },
}

/// Without what lets somebody in.
impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready {
                session_id, pid, ..
            } => write!(f, "Ready({session_id}, {pid:?})"),
            Self::Warning { code } => write!(f, "Warning({code})"),
            Self::Error { code, .. } => write!(f, "Error({code})"),
        }
    }
}

/// The signals that a client may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Signal {
    /// As Ctrl-C does.
    Int,
    /// Please end.
    Term,
    /// End.
    Kill,
    /// The terminal is gone.
    Hup,
}

impl Signal {
    /// Its name, without `SIG`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Int => "INT",
            Self::Term => "TERM",
            Self::Kill => "KILL",
            Self::Hup => "HUP",
        }
    }
}

/// How a command ended, as the client hears it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// The code that it ended with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
    /// Why it never started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_started: Option<String>,
    /// `exited`, `killed`, `timeout`, `operator_revoked`, `instance_gone`.
    pub reason: String,
}
