//! The name in a TLS ClientHello, without speaking TLS.
//!
//! Bytes in, a name or a refusal out; never more than [`MAX_HELLO`] bytes and
//! never a guess. Split records and split segments are put together. Nothing
//! is decrypted here or anywhere in this crate; `tunnel.rs` compares the name.

/// The most bytes of a ClientHello, records included, that are looked at.
pub const MAX_HELLO: usize = 64 * 1024;

/// The most a record of plain text may hold.
const MAX_RECORD: usize = 1 << 14;

/// Several times what any client sends.
const MAX_EXTENSIONS: usize = 256;

/// What a ClientHello says about whom it is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientHello {
    /// The server's name, as it was sent; none if it was left out.
    pub server_name: Option<String>,
}

/// What can be said about the bytes so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// They begin like a ClientHello and go on.
    Incomplete,
    /// They hold one.
    Complete(ClientHello),
}

/// Why bytes are no ClientHello that can be checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HelloError {
    /// The bytes are not TLS at all.
    #[error("the first bytes are not TLS")]
    NotTls,
    /// It breaks the rules of TLS.
    #[error("the ClientHello is malformed")]
    Malformed,
    /// It is longer than any real one.
    #[error("the ClientHello is longer than {MAX_HELLO} bytes")]
    TooLarge,
    /// The true name is encrypted, so it cannot be compared.
    #[error("the ClientHello hides the server's name")]
    Encrypted,
}

/// Looks at the first bytes of a connection.
///
/// # Errors
/// They are not TLS, break its rules, or hide the name.
pub fn inspect(bytes: &[u8]) -> Result<Progress, HelloError> {
    let mut message = Vec::new();
    let mut records = Reader(bytes);
    loop {
        let fragment = match next_record(&mut records)? {
            Some(fragment) => fragment,
            None if bytes.len() >= MAX_HELLO => return Err(HelloError::TooLarge),
            None => return Ok(Progress::Incomplete),
        };
        message.extend_from_slice(fragment);
        if let Some(body) = handshake(&message)? {
            return client_hello(body).map(Progress::Complete);
        }
    }
}

/// The next record's content, or nothing while it is not whole.
fn next_record<'a>(records: &mut Reader<'a>) -> Result<Option<&'a [u8]>, HelloError> {
    // What is there is judged early: a client that speaks first in another
    // protocol must not wait for bytes that never come.
    match *records.0 {
        [] | [22] => return Ok(None),
        [22, 3, ..] => {}
        _ => return Err(HelloError::NotTls),
    }
    let [_, _, _, high, low, rest @ ..] = records.0 else {
        return Ok(None);
    };
    let length = usize::from(u16::from_be_bytes([*high, *low]));
    if length == 0 || length > MAX_RECORD {
        return Err(HelloError::Malformed);
    }
    let Some((fragment, rest)) = rest.split_at_checked(length) else {
        return Ok(None);
    };
    records.0 = rest;
    Ok(Some(fragment))
}

/// The body of the first handshake message, once it is whole.
fn handshake(message: &[u8]) -> Result<Option<&[u8]>, HelloError> {
    let (kind, rest) = match message {
        [kind, rest @ ..] => (*kind, rest),
        [] => return Ok(None),
    };
    if kind != 1 {
        return Err(HelloError::Malformed);
    }
    let [high, middle, low, rest @ ..] = rest else {
        return Ok(None);
    };
    let length = usize::from(*high) << 16 | usize::from(*middle) << 8 | usize::from(*low);
    if length > MAX_HELLO {
        return Err(HelloError::TooLarge);
    }
    match rest.len() {
        have if have < length => Ok(None),
        have if have == length => Ok(Some(rest)),
        // Nothing may share the record with the message that starts it all.
        _ => Err(HelloError::Malformed),
    }
}

fn client_hello(body: &[u8]) -> Result<ClientHello, HelloError> {
    let mut reader = Reader(body);
    let read = (|| {
        reader.take(2 + 32)?;
        let session = reader.short()?;
        let suites = reader.long()?;
        let compressions = reader.short()?;
        let fits = session.0.len() <= 32
            && suites.0.len() >= 2
            && suites.0.len() % 2 == 0
            && !compressions.0.is_empty();
        fits.then_some(())
    })();
    read.ok_or(HelloError::Malformed)?;
    if reader.0.is_empty() {
        // From before extensions existed.
        return Ok(ClientHello { server_name: None });
    }
    let extensions = reader.long().filter(|_| reader.0.is_empty());
    server_name(extensions.ok_or(HelloError::Malformed)?)
}

const SERVER_NAME: u16 = 0;
/// Encrypted ClientHello, and what it was called while it was being made. A
/// decoy ("GREASE") looks the same by design, so it is refused as well.
const HIDDEN: [u16; 3] = [0xfe0d, 0xffce, 0xfe0e];

fn server_name(mut extensions: Reader<'_>) -> Result<ClientHello, HelloError> {
    let mut seen = Vec::new();
    let mut server_name = None;
    while !extensions.0.is_empty() {
        let read = extensions.number().zip(extensions.long());
        let (kind, content) = read.ok_or(HelloError::Malformed)?;
        // Twice the same is for two readers to disagree about.
        if seen.contains(&kind) || seen.len() == MAX_EXTENSIONS {
            return Err(HelloError::Malformed);
        }
        seen.push(kind);
        if HIDDEN.contains(&kind) {
            return Err(HelloError::Encrypted);
        }
        if kind == SERVER_NAME {
            server_name = Some(host_name(content).ok_or(HelloError::Malformed)?);
        }
    }
    Ok(ClientHello { server_name })
}

/// The one name in the extension.
fn host_name(mut content: Reader<'_>) -> Option<String> {
    let mut list = content.long().filter(|_| content.0.is_empty())?;
    let kind = list.take(1)?;
    let name = list.long().filter(|_| list.0.is_empty())?;
    let plain = kind == [0] && !name.0.is_empty() && name.0.iter().all(u8::is_ascii_graphic);
    let name = plain.then_some(name.0)?;
    std::str::from_utf8(name).ok().map(ToOwned::to_owned)
}

/// What is left to read.
#[derive(Debug, Clone, Copy)]
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<u16> {
        let bytes = self.take(2)?;
        Some(u16::from_be_bytes(bytes.try_into().ok()?))
    }

    /// A part with its length in one byte before it.
    fn short(&mut self) -> Option<Reader<'a>> {
        let length = *self.take(1)?.first()?;
        self.take(usize::from(length)).map(Reader)
    }

    /// A part with its length in two bytes before it.
    fn long(&mut self) -> Option<Reader<'a>> {
        let length = self.number()?;
        self.take(usize::from(length)).map(Reader)
    }
}

#[cfg(test)]
pub(crate) mod tests;
