//! The last tables that were good, on disk: two of them, each with its digest.
//!
//! A table appears by a rename; what was written half, or changed since, is
//! not read, and the one before it is. Blocks.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use fluffy_api::node::v1;
use fluffy_base::Digest;
use prost::Message as _;

/// The largest file that is read.
const LARGEST: u64 = 64 << 20;

/// Where tables are kept.
#[derive(Debug, Clone)]
pub struct Keep {
    folder: PathBuf,
}

/// Why a table is not kept.
#[derive(Debug, thiserror::Error)]
#[error("the routing table cannot be kept in `{}`", folder.display())]
pub struct KeepError {
    /// Where.
    folder: PathBuf,
    /// Why.
    #[source]
    source: io::Error,
}

impl Keep {
    /// Keeps tables in a folder.
    #[must_use]
    pub fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
        }
    }

    /// The newest table that is whole; none if there is none.
    #[must_use]
    pub fn read(&self) -> Option<v1::RoutingTable> {
        ["table", "table.before"].iter().find_map(|name| {
            let path = self.folder.join(name);
            let size = fs::metadata(&path).ok()?.len();
            let bytes = (size <= LARGEST).then(|| fs::read(&path).ok())??;
            let (digest, bytes) = bytes.split_at_checked(32)?;
            (Digest::of(bytes).as_bytes() == digest)
                .then(|| v1::RoutingTable::decode(bytes).ok())?
        })
    }

    /// Keeps a table beside the one before it.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, table: &v1::RoutingTable) -> Result<(), KeepError> {
        self.written(table).map_err(|source| KeepError {
            folder: self.folder.clone(),
            source,
        })
    }

    fn written(&self, table: &v1::RoutingTable) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        let path = |name: &str| self.folder.join(name);
        let bytes = table.encode_to_vec();
        let mut options = File::options();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(path("table.new"))?;
        file.write_all(Digest::of(&bytes).as_bytes())?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        match fs::rename(path("table"), path("table.before")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::rename(path("table.new"), path("table"))?;
        File::open(&self.folder)?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(seq: u64) -> v1::RoutingTable {
        v1::RoutingTable {
            config: Some(v1::Position { epoch: 1, seq }),
            routes: Vec::new(),
        }
    }

    #[test]
    fn a_damaged_table_gives_way_to_the_one_before() {
        let folder = tempfile::tempdir().unwrap();
        let keep = Keep::new(&folder.path().join("edge"));
        assert_eq!(keep.read(), None);
        for seq in 1..=3 {
            keep.write(&table(seq)).unwrap();
            assert_eq!(keep.read(), Some(table(seq)));
        }
        let newest = folder.path().join("edge/table");
        let whole = fs::read(&newest).unwrap();
        for length in 0..whole.len() {
            fs::write(&newest, &whole[..length]).unwrap();
            assert_eq!(keep.read(), Some(table(2)), "{length}");
        }
        let mut changed = whole.clone();
        *changed.last_mut().unwrap() ^= 1;
        fs::write(&newest, &changed).unwrap();
        assert_eq!(keep.read(), Some(table(2)));
        // Killed between the two renames.
        fs::remove_file(&newest).unwrap();
        assert_eq!(keep.read(), Some(table(2)));
        keep.write(&table(4)).unwrap();
        assert_eq!(keep.read(), Some(table(4)));
        fs::write(folder.path().join("edge/table"), b"").unwrap();
        assert_eq!(keep.read(), Some(table(2)));
    }
}
