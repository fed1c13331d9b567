//! Reads the headers of tar archives: those of POSIX and of GNU, strictly.
//!
//! A header that says what this does not know is refused, so that no other
//! reader can find something else in the same bytes; all that is read into
//! memory is bounded. Never touches a file: what an entry means, and whether
//! it may be, is decided by whoever reads. Start with [`read_entry`].

#![forbid(unsafe_code)]

use std::io::{self, Read};

const BLOCK: usize = 512;

/// The largest header of records, and of a name of GNU's.
const MAX_RECORDS: u64 = 1 << 20;
const MAX_NAMED: u64 = 64 << 10;

/// The longest name in an extended header.
const MAX_NAME: usize = 4_096;

/// The most headers that may speak about one entry.
const MOST_HEADERS: usize = 8;

/// What an archive says about one entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name; may be anything.
    pub name: Vec<u8>,
    /// Where it leads to, if it is a link.
    pub link: Vec<u8>,
    /// The permissions.
    pub mode: u32,
    /// Whose it is: user and group.
    pub owner: (u32, u32),
    /// When it was changed.
    pub modified: Time,
    /// Its extended attributes, as they were written.
    pub attributes: Vec<(Vec<u8>, Vec<u8>)>,
    /// The bytes of content that follow.
    pub size: u64,
    /// What it is.
    pub kind: Kind,
}

/// A time since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Time {
    /// Whole seconds.
    pub seconds: i64,
    /// The rest, towards the future.
    pub nanos: u32,
}

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// Another name of an entry before.
    HardLink,
    /// A device of bytes.
    ByteDevice {
        /// Which driver, and which of its devices.
        number: (u32, u32),
    },
    /// A device of blocks.
    BlockDevice,
    /// A named pipe.
    Pipe,
    /// Something else.
    Other,
}

/// Why an archive cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadTarError {
    /// It is cut off, or its parts contradict each other.
    #[error("it is broken: {what}")]
    Broken {
        /// What is wrong.
        what: &'static str,
    },
    /// Its bytes cannot be had.
    #[error("it cannot be read")]
    Read(#[source] io::Error),
}

/// Reads all headers of the next entry; none at the end of the archive.
///
/// The content is left to the caller, who must read or skip [`Entry::size`]
/// and then [`Entry::padding`] bytes before the next entry.
///
/// # Errors
/// It is no header, or one that is not understood.
pub fn read_entry(stream: &mut impl Read) -> Result<Option<Entry>, ReadTarError> {
    let mut before = Before::default();
    for _ in 0..MOST_HEADERS {
        let mut header = [0; BLOCK];
        stream.read_exact(&mut header)?;
        if header.iter().all(|byte| *byte == 0) {
            return match before == Before::default() {
                true => Ok(None),
                false => Err(broken("a header speaks about nothing")),
            };
        }
        let header = Header(header);
        header.check()?;
        let size = header.size()?;
        match header.kind() {
            b'L' => before.name = Some(extended(stream, size, MAX_NAMED)?),
            b'K' => before.link = Some(extended(stream, size, MAX_NAMED)?),
            b'x' => before.add(records(&extended(stream, size, MAX_RECORDS)?)?),
            // For all that follow: a comment of git's archives, and no more.
            b'g' if records(&extended(stream, size, MAX_RECORDS)?)? == Before::default() => {}
            b'g' => return Err(broken("a header speaks for all files")),
            kind => return Ok(Some(before.entry(&header, kind, size)?)),
        }
    }
    Err(broken("too many headers speak about one file"))
}

impl Entry {
    /// The bytes that follow its content, up to the next header.
    #[must_use]
    pub const fn padding(&self) -> u64 {
        padding(self.size)
    }
}

impl From<io::Error> for ReadTarError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => broken("it ends too early"),
            _ => Self::Read(error),
        }
    }
}

/// What did not fit into a header, from the headers before it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Before {
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    user: Option<u32>,
    group: Option<u32>,
    modified: Option<Time>,
    attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Before {
    fn add(&mut self, other: Self) {
        self.name = other.name.or(self.name.take());
        self.link = other.link.or(self.link.take());
        self.size = other.size.or(self.size.take());
        self.user = other.user.or(self.user.take());
        self.group = other.group.or(self.group.take());
        self.modified = other.modified.or(self.modified.take());
        self.attributes.extend(other.attributes);
    }

    fn entry(self, header: &Header, kind: u8, size: u64) -> Result<Entry, ReadTarError> {
        let name = self.name.unwrap_or_else(|| header.name());
        let kind = match kind {
            b'0' | 0 if name.ends_with(b"/") => Kind::Directory,
            b'0' | 0 => Kind::File,
            b'1' => Kind::HardLink,
            b'2' => Kind::Link,
            b'3' => Kind::ByteDevice {
                number: (header.small(329)?, header.small(337)?),
            },
            b'4' => Kind::BlockDevice,
            b'5' => Kind::Directory,
            b'6' => Kind::Pipe,
            _ => Kind::Other,
        };
        Ok(Entry {
            name,
            link: self.link.unwrap_or_else(|| header.field(157, 100)),
            mode: header.mode()?,
            owner: (
                self.user.map_or_else(|| header.small(108), Ok)?,
                self.group.map_or_else(|| header.small(116), Ok)?,
            ),
            modified: self.modified.map_or_else(|| header.modified(), Ok)?,
            attributes: self.attributes,
            size: self.size.unwrap_or(size),
            kind,
        })
    }
}

/// The content of a header that is about the next entry.
fn extended(stream: &mut impl Read, size: u64, most: u64) -> Result<Vec<u8>, ReadTarError> {
    if size > most {
        return Err(broken("a header is too large"));
    }
    let mut content = Vec::new();
    let whole = size + padding(size);
    Read::by_ref(stream).take(whole).read_to_end(&mut content)?;
    if u64::try_from(content.len()) != Ok(whole) {
        return Err(broken("it ends too early"));
    }
    content.truncate(usize::try_from(size).unwrap_or_default());
    while content.last() == Some(&0) {
        content.pop();
    }
    Ok(content)
}

/// The records of an extended header: `LENGTH KEY=VALUE\n`.
fn records(mut content: &[u8]) -> Result<Before, ReadTarError> {
    let wrong = || broken("an extended header cannot be read");
    let mut before = Before::default();
    while !content.is_empty() {
        let space = content.iter().position(|byte| *byte == b' ');
        let space = space.ok_or_else(wrong)?;
        let length = number(content.get(..space).unwrap_or_default(), 10).ok_or_else(wrong)?;
        let length = usize::try_from(length).map_err(|_| wrong())?;
        let record = content.get(space + 1..length).ok_or_else(wrong)?;
        let record = record.strip_suffix(b"\n").ok_or_else(wrong)?;
        let equals = record.iter().position(|byte| *byte == b'=');
        let (key, value) = record.split_at(equals.ok_or_else(wrong)?);
        let value = value.get(1..).unwrap_or_default();
        match key {
            b"path" => before.name = Some(value.to_vec()),
            b"linkpath" => before.link = Some(value.to_vec()),
            b"size" => before.size = Some(number(value, 10).ok_or_else(wrong)?),
            b"uid" => before.user = Some(small(value, 10).ok_or_else(wrong)?),
            b"gid" => before.group = Some(small(value, 10).ok_or_else(wrong)?),
            b"mtime" => before.modified = Some(time(value).ok_or_else(wrong)?),
            b"SCHILY.realsize" => return Err(broken("it has files with holes")),
            key if key.starts_with(b"GNU.sparse") => {
                return Err(broken("it has files with holes"));
            }
            b"hdrcharset" if value != b"BINARY" && value != b"ISO-IR 10646 2000 UTF-8" => {
                return Err(broken("its names are in an alphabet of their own"));
            }
            key => {
                if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                    before.attributes.push((name.to_vec(), value.to_vec()));
                }
                // Else names of owners and the like.
            }
        }
        content = content.get(length..).unwrap_or_default();
    }
    let too_long = |text: &Option<Vec<u8>>| text.as_ref().is_some_and(|one| one.len() > MAX_NAME);
    match too_long(&before.name) || too_long(&before.link) {
        true => Err(broken("a name is too long")),
        false => Ok(before),
    }
}

struct Header([u8; BLOCK]);

impl Header {
    fn bytes(&self, from: usize, length: usize) -> &[u8] {
        self.0.get(from..from + length).unwrap_or_default()
    }

    /// A text that ends with its field or a zero.
    fn field(&self, from: usize, length: usize) -> Vec<u8> {
        let bytes = self.bytes(from, length).split(|byte| *byte == 0);
        bytes.into_iter().next().unwrap_or_default().to_vec()
    }

    fn number(&self, from: usize, length: usize) -> Result<u64, ReadTarError> {
        let field = self.bytes(from, length);
        let digits = field.trim_ascii_start();
        let end = digits.iter().position(|byte| matches!(byte, 0 | b' '));
        let digits = digits
            .get(..end.unwrap_or(digits.len()))
            .unwrap_or_default();
        match digits {
            [] => Ok(0),
            digits => number(digits, 8).ok_or_else(|| broken("a number in a header is none")),
        }
    }

    fn name(&self) -> Vec<u8> {
        let name = self.field(0, 100);
        // GNU's own form has other things where POSIX has the prefix.
        let prefix = match self.bytes(257, 8) {
            b"ustar\x0000" => self.field(345, 155),
            _ => Vec::new(),
        };
        match prefix.is_empty() {
            true => name,
            false => [prefix, name].join(&b'/'),
        }
    }

    fn kind(&self) -> u8 {
        self.0.get(156).copied().unwrap_or_default()
    }

    fn size(&self) -> Result<u64, ReadTarError> {
        self.number(124, 12)
    }

    fn small(&self, from: usize) -> Result<u32, ReadTarError> {
        let number = self.number(from, 8)?;
        u32::try_from(number).map_err(|_| broken("a number in a header is too large"))
    }

    fn modified(&self) -> Result<Time, ReadTarError> {
        let seconds = i64::try_from(self.number(136, 12)?);
        let seconds = seconds.map_err(|_| broken("a number in a header is too large"))?;
        Ok(Time { seconds, nanos: 0 })
    }

    fn mode(&self) -> Result<u32, ReadTarError> {
        let mode = self.number(100, 8)?;
        Ok(u32::try_from(mode & 0o7777).unwrap_or_default())
    }

    fn check(&self) -> Result<(), ReadTarError> {
        let wanted = self.number(148, 8)?;
        let sum = |(place, byte): (usize, &u8)| match (148..156).contains(&place) {
            true => u64::from(b' '),
            false => u64::from(*byte),
        };
        let found: u64 = self.0.iter().enumerate().map(sum).sum();
        match found == wanted && self.bytes(257, 5) == b"ustar" {
            true => Ok(()),
            false => Err(broken("a header cannot be read")),
        }
    }
}

fn number(digits: &[u8], radix: u32) -> Option<u64> {
    let digits = std::str::from_utf8(digits).ok()?;
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| u64::from_str_radix(digits, radix).ok())?
}

fn small(digits: &[u8], radix: u32) -> Option<u32> {
    u32::try_from(number(digits, radix)?).ok()
}

/// `-1.25` is a second and a quarter before 1970.
fn time(text: &[u8]) -> Option<Time> {
    let (is_before, text) = match text.strip_prefix(b"-") {
        Some(text) => (true, text),
        None => (false, text),
    };
    let mut parts = text.splitn(2, |byte| *byte == b'.');
    let seconds = i64::try_from(number(parts.next()?, 10)?).ok()?;
    let mut nanos = 0;
    let digits = parts.next().unwrap_or_default();
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    for place in 0..9 {
        let digit = digits.get(place).map_or(0, |digit| digit - b'0');
        nanos = nanos * 10 + u32::from(digit);
    }
    Some(match (is_before, nanos) {
        (false, nanos) => Time { seconds, nanos },
        (true, 0) => Time {
            seconds: -seconds,
            nanos,
        },
        (true, nanos) => Time {
            seconds: -seconds - 1,
            nanos: 1_000_000_000 - nanos,
        },
    })
}

const fn padding(size: u64) -> u64 {
    (512 - size % 512) % 512
}

const fn broken(what: &'static str) -> ReadTarError {
    ReadTarError::Broken { what }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One header and its content, padded.
    fn piece(kind: u8, name: &str, content: &[u8]) -> Vec<u8> {
        let mut header = vec![0; BLOCK];
        let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, name.as_bytes());
        put(100, b"0000755\0");
        put(124, format!("{:011o}\0", content.len()).as_bytes());
        put(148, b"        ");
        put(156, &[kind]);
        put(257, b"ustar\x0000");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        let padding = vec![0; usize::try_from(padding(content.len() as u64)).unwrap()];
        [header, content.to_vec(), padding].concat()
    }

    fn record(text: &str) -> Vec<u8> {
        let length = (text.len()..).find(|all| all.to_string().len() + 2 + text.len() == *all);
        format!("{} {text}\n", length.unwrap()).into_bytes()
    }

    fn first(archive: &[u8]) -> Result<Option<Entry>, String> {
        read_entry(&mut &archive[..]).map_err(|error| error.to_string())
    }

    #[test]
    fn an_entry_is_read_with_all_headers_that_speak_about_it() {
        let long = "n/".repeat(200) + "name";
        let records = [record("path=other"), record("size=3"), record("mtime=1.5")].concat();
        for (archive, name, size) in [
            (piece(b'0', "plain", b"content"), "plain", 7),
            (
                [piece(b'L', "x", long.as_bytes()), piece(b'0', "short", b"")].concat(),
                &*long,
                0,
            ),
            (
                [piece(b'x', "x", &records), piece(b'0', "short", b"")].concat(),
                "other",
                3,
            ),
            // The size is that of the file, not of a header in between.
            (
                [
                    piece(b'x', "x", &record("size=3")),
                    piece(b'L', "x", b"long"),
                    piece(b'0', "", b""),
                ]
                .concat(),
                "long",
                3,
            ),
            (
                [
                    piece(b'g', "x", &record("comment=x")),
                    piece(b'0', "a", b""),
                ]
                .concat(),
                "a",
                0,
            ),
        ] {
            let entry = first(&archive).unwrap().unwrap();
            assert_eq!((entry.name.as_slice(), entry.size), (name.as_bytes(), size));
            assert_eq!((entry.kind, entry.mode), (Kind::File, 0o755));
            assert_eq!((entry.size + entry.padding()) % 512, 0);
        }
        assert_eq!(first(&[0; 1024]), Ok(None));
        let kinds = [
            (b'1', Kind::HardLink),
            (b'2', Kind::Link),
            (b'3', Kind::ByteDevice { number: (0, 0) }),
            (b'4', Kind::BlockDevice),
        ];
        for (byte, kind) in kinds
            .into_iter()
            .chain([(b'7', Kind::Other), (b'6', Kind::Pipe)])
        {
            assert_eq!(first(&piece(byte, "a", b"")).unwrap().unwrap().kind, kind);
        }
        assert_eq!(
            first(&piece(b'0', "a/", b"")).unwrap().unwrap().kind,
            Kind::Directory
        );
    }

    #[test]
    fn owners_times_and_attributes_are_those_of_the_last_word() {
        let mut header = piece(b'0', "a", b"");
        header[108..116].copy_from_slice(b"0000017\0");
        header[136..148].copy_from_slice(b"00000000012\0");
        header[148..156].copy_from_slice(b"        ");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        let plain = first(&header).unwrap().unwrap();
        let at = |seconds, nanos| Time { seconds, nanos };
        assert_eq!((plain.owner, plain.modified), ((15, 0), at(10, 0)));
        let records = [
            record("uid=70000"),
            record("gid=3000000000"),
            record("mtime=-1.25"),
            record("SCHILY.xattr.user.a=b=c"),
            record("uname=root"),
        ];
        let said = first(&[piece(b'x', "x", &records.concat()), header].concat());
        let said = said.unwrap().unwrap();
        assert_eq!(said.owner, (70_000, 3_000_000_000));
        assert_eq!(said.modified, at(-2, 750_000_000));
        assert_eq!(said.attributes, [(b"user.a".to_vec(), b"b=c".to_vec())]);
        for (text, expected) in [
            ("7", Some(at(7, 0))),
            ("7.000000001", Some(at(7, 1))),
            ("7.0000000019", Some(at(7, 1))),
            ("-7", Some(at(-7, 0))),
            ("", None),
            ("-", None),
            ("1.x", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(time(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_not_read() {
        let global = record("path=all");
        let holes = record("GNU.sparse.major=1");
        let mut wrong_sum = piece(b'0', "a", b"");
        wrong_sum[0] = b'b';
        let mut wrong_size = piece(b'0', "a", b"");
        wrong_size[124] = 0x80;
        let short = piece(b'x', "x", b"99 path=x\n");
        let endless = piece(b'L', "x", b"name").repeat(MOST_HEADERS + 1);
        for (archive, why) in [
            (piece(b'g', "x", &global), "a header speaks for all files"),
            (piece(b'x', "x", &holes), "it has files with holes"),
            (wrong_sum, "a header cannot be read"),
            (wrong_size, "a header cannot be read"),
            (short, "an extended header cannot be read"),
            (
                piece(b'x', "x", &record(&format!("path={}", "a".repeat(5000)))),
                "a name is too long",
            ),
            (
                piece(b'L', "x", &vec![b'a'; 1 << 21]),
                "a header is too large",
            ),
            (
                piece(b'x', "x", &record("hdrcharset=other")),
                "its names are in an alphabet of their own",
            ),
            (endless, "too many headers speak about one file"),
            (
                [piece(b'L', "x", b"name"), vec![0; 512]].concat(),
                "a header speaks about nothing",
            ),
            (
                piece(b'L', "x", b"name")[..600].to_vec(),
                "it ends too early",
            ),
            (vec![0; 100], "it ends too early"),
            (Vec::new(), "it ends too early"),
        ] {
            assert_eq!(first(&archive), Err(format!("it is broken: {why}")));
        }
    }
}
