//! `.tar.gz`: what is in one, up to its last byte.
//!
//! The headers are read by `fluffy-tar`, which refuses what could be read in
//! two ways; whether a plugin may bring an entry is decided by `archive`.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek as _};

use flate2::read::GzDecoder;
use fluffy_tar::{Kind, ReadTarError, read_entry};

use super::{Entry, Folder, UnpackError, What, refused};

/// Unpacks it.
pub(super) fn unpack(mut file: File, folder: &mut Folder<'_>) -> Result<(), UnpackError> {
    file.rewind()?;
    let mut stream = GzDecoder::new(BufReader::new(file));
    while let Some(header) = read_entry(&mut stream)? {
        folder.count(0)?;
        entry(&header, &mut stream, folder)?;
    }
    // To its end, so that its checksum is looked at.
    let mut rest = [0; 64 << 10];
    loop {
        match stream.read(&mut rest)? {
            0 => return Ok(()),
            count => {
                folder.count(count.try_into().unwrap_or(u64::MAX))?;
                let rest = rest.get(..count).unwrap_or_default();
                if rest.iter().any(|byte| *byte != 0) {
                    return Err(broken("something follows its end"));
                }
            }
        }
    }
}

fn entry(
    header: &fluffy_tar::Entry,
    stream: &mut impl Read,
    folder: &mut Folder<'_>,
) -> Result<(), UnpackError> {
    let mut content = Read::by_ref(stream).take(header.size);
    let what = match header.kind {
        Kind::File => What::File(&mut content, header.size),
        Kind::Directory => What::Directory,
        Kind::Link => What::Link(&header.link),
        Kind::HardLink => What::Other("is a hard link"),
        Kind::ByteDevice { .. } | Kind::BlockDevice => What::Other("is a device"),
        Kind::Pipe => What::Other("is a pipe"),
        Kind::Other => What::Other("is neither a file, a directory nor a link"),
    };
    let has_content = matches!(what, What::File(..));
    if header.size > 0 && !has_content {
        return Err(refused(&header.name, "has content and is no file"));
    }
    folder.take(Entry {
        name: &header.name,
        mode: header.mode,
        what,
    })?;
    match has_content {
        true => skip(stream, header.padding()),
        false => Ok(()),
    }
}

fn skip(stream: &mut impl Read, count: u64) -> Result<(), UnpackError> {
    let skipped = io::copy(&mut Read::by_ref(stream).take(count), &mut io::sink())?;
    match skipped == count {
        true => Ok(()),
        false => Err(broken("it ends too early")),
    }
}

impl From<ReadTarError> for UnpackError {
    fn from(error: ReadTarError) -> Self {
        match error {
            ReadTarError::Broken { what } => broken(what),
            ReadTarError::Read(error) => error.into(),
        }
    }
}

fn broken(what: &'static str) -> UnpackError {
    UnpackError::Broken { what }
}
