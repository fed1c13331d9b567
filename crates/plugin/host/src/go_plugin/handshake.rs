//! The one line with which a plugin says where it serves. Pure.
//!
//! `core|version|network|address|protocol|certificate`, as go-plugin prints it.
//! Whatever is not exactly what was asked for is refused here.

use std::net::SocketAddr;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;

/// The longest line, in bytes.
pub(super) const MAX_LINE: usize = 64 << 10;

/// The version of our contracts, the only one there is.
pub(super) const VERSION: u32 = 1;

/// What is no longer than this is no certificate for go-plugin either.
const NO_CERTIFICATE: usize = 50;

/// How much of a field is shown.
const SHOWN: usize = 80;

/// Where a plugin serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Handshake {
    /// Its socket, not yet looked at.
    pub(super) socket: PathBuf,
    /// Its certificate in DER, where it wants mTLS.
    pub(super) certificate: Option<Vec<u8>>,
}

/// Why a line is no handshake.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum HandshakeError {
    /// More than [`MAX_LINE`].
    #[error("its first line is longer than {MAX_LINE} bytes")]
    TooLong,
    /// Not a line of fields.
    #[error("its first line is no handshake but `{line}`")]
    NoHandshake {
        /// The beginning of it, escaped.
        line: String,
    },
    /// Another core protocol.
    #[error("it speaks version `{said}` of go-plugin's core protocol, and only 1 is spoken here")]
    Core {
        /// What it said.
        said: String,
    },
    /// Another contract than was offered.
    #[error("it wants version `{said}` of the contract, and only {VERSION} was offered")]
    Version {
        /// What it said.
        said: String,
    },
    /// The older way of go-plugin.
    #[error("it speaks net/rpc; serve it with gRPC (`GRPCServer: plugin.DefaultGRPCServer`)")]
    NetRpc,
    /// Another protocol still.
    #[error("it speaks `{said}`, and only gRPC is spoken here")]
    Protocol {
        /// What it said.
        said: String,
    },
    /// Neither `unix` nor `tcp`.
    #[error("it serves on the network `{said}`, and only a unix socket can be reached")]
    Network {
        /// What it said.
        said: String,
    },
    /// A port for others than itself.
    #[error("it serves on `{said}`, which is not an address of the loopback")]
    NotLoopback {
        /// What it said.
        said: String,
    },
    /// A port, if only on its own loopback.
    #[error(
        "it serves on `{said}`, a port of its sandbox's own loopback that nobody else can reach; \
         serve on a unix socket in PLUGIN_UNIX_SOCKET_DIR"
    )]
    Port {
        /// What it said.
        said: String,
    },
    /// Not an absolute path.
    #[error("its socket `{said}` is no absolute path")]
    Relative {
        /// What it said.
        said: String,
    },
    /// Not a certificate in base64.
    #[error("its certificate is not one in base64")]
    Certificate,
    /// It wants what was never offered.
    #[error("it multiplexes its connections, which was not offered")]
    Multiplexed,
}

/// Reads the first line of a plugin, without its end.
///
/// # Errors
/// When it is anything but what the host offered.
pub(super) fn parse(line: &[u8]) -> Result<Handshake, HandshakeError> {
    if line.len() > MAX_LINE {
        return Err(HandshakeError::TooLong);
    }
    let text = String::from_utf8_lossy(line);
    let fields: Vec<&str> = text.trim().split('|').collect();
    let (core, version, network, address, rest) = match fields.as_slice() {
        [core, version, network, address, rest @ ..] => (*core, *version, *network, *address, rest),
        _ => {
            let line = shown(&text);
            return Err(HandshakeError::NoHandshake { line });
        }
    };
    let said = |text: &str| shown(text);
    if core != "1" {
        return Err(match core.parse::<u32>() {
            Ok(_) => HandshakeError::Core { said: said(core) },
            Err(_) => HandshakeError::NoHandshake { line: said(&text) },
        });
    }
    if version.parse() != Ok(VERSION) {
        let said = said(version);
        return Err(HandshakeError::Version { said });
    }
    let (protocol, certificate, rest) = match rest {
        [] => ("netrpc", "", &[][..]),
        [protocol] => (*protocol, "", &[][..]),
        [protocol, certificate, rest @ ..] => (*protocol, *certificate, rest),
    };
    match protocol {
        "grpc" => {}
        "netrpc" => return Err(HandshakeError::NetRpc),
        other => return Err(HandshakeError::Protocol { said: said(other) }),
    }
    if rest
        .first()
        .is_some_and(|multiplexed| *multiplexed == "true")
    {
        return Err(HandshakeError::Multiplexed);
    }
    Ok(Handshake {
        socket: socket(network, address)?,
        certificate: decode(certificate)?,
    })
}

fn socket(network: &str, address: &str) -> Result<PathBuf, HandshakeError> {
    let said = shown(address);
    match network {
        "unix" => {
            let path = PathBuf::from(address);
            match path.is_absolute() && !address.contains('\0') {
                true => Ok(path),
                false => Err(HandshakeError::Relative { said }),
            }
        }
        "tcp" => match address.parse::<SocketAddr>() {
            Ok(address) if address.ip().is_loopback() => Err(HandshakeError::Port { said }),
            _ => Err(HandshakeError::NotLoopback { said }),
        },
        other => Err(HandshakeError::Network { said: shown(other) }),
    }
}

fn decode(field: &str) -> Result<Option<Vec<u8>>, HandshakeError> {
    if field.len() <= NO_CERTIFICATE {
        return Ok(None);
    }
    let der = STANDARD_NO_PAD.decode(field.trim_end_matches('='));
    der.map(Some).map_err(|_| HandshakeError::Certificate)
}

/// The beginning of what a plugin said, such that it can be shown.
fn shown(text: &str) -> String {
    let some = text.chars().take(SHOWN);
    some.flat_map(char::escape_default).collect()
}

#[cfg(test)]
mod tests;
