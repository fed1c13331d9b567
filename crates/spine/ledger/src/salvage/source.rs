//! Where a salvage finds events, and what a new chain can start from.
//!
//! Nothing found here is believed: an event is only taken if it continues the
//! chain by its hash.

use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;

use crate::archive::{self, Segment};
use crate::chain::{Genesis, Head};
use crate::engine::Anchor;
use crate::error::StoreError;
use crate::event::Event;
use crate::export::ExportReader;
use crate::snapshot;
use crate::sqlite::{self, Rebuild, Rescue, Store};

/// Something that events can be read from.
#[derive(Debug)]
pub(super) enum Source {
    /// A database that was set aside.
    Damaged(Rescue),
    /// A copy from a better time.
    Snapshot(Rescue),
    /// The segments of the archive, in order.
    Archive(Vec<Segment>),
}

/// What a new chain can start from.
#[derive(Debug)]
pub(super) struct Base<'s> {
    pub(super) genesis: Genesis,
    /// Where its hot rows begin, with the database that says so.
    pub(super) anchor: Option<(&'s Rescue, Anchor)>,
}

impl Base<'_> {
    fn head(&self) -> Head {
        match &self.anchor {
            Some((_, anchor)) => anchor.head.clone(),
            None => Head::empty(&self.genesis),
        }
    }
}

/// Everything that may hold events of the ledger in a directory, the most
/// recent first.
pub(super) fn sources(directory: &Path) -> Vec<Source> {
    let mut sources = Vec::new();
    for part in sqlite::unfinished(directory) {
        sources.extend(Rescue::open(&Store::database(&part)).map(Source::Damaged));
    }
    for path in snapshot::newest_first(directory) {
        sources.extend(Rescue::open(&path).map(Source::Snapshot));
    }
    // An archive that can't be listed can't help; it stays where it is.
    let segments = archive::segments(&directory.join(archive::ARCHIVE)).unwrap_or_default();
    sources.push(Source::Archive(segments));
    sources
}

/// Every start that a source can tell, the likeliest first.
pub(super) fn bases(sources: &[Source]) -> Vec<Base<'_>> {
    let mut bases: Vec<Base<'_>> = sources.iter().filter_map(Source::base).collect();
    // A base that an event continues is surely right; one that none does may
    // itself be damaged, and is the last resort.
    bases.sort_by_cached_key(|base| !sources.iter().any(|source| source.continues(&base.head())));
    bases
}

impl Source {
    /// Passes on every readable event from `from` on, in order.
    pub(super) fn events(&self, from: u64, visit: &mut dyn FnMut(Event) -> ControlFlow<()>) {
        match self {
            Self::Damaged(rescue) | Self::Snapshot(rescue) => rescue.events(from, visit),
            Self::Archive(segments) => {
                for segment in segments.iter().filter(|segment| segment.last_seq >= from) {
                    if read_segment(segment, from, visit).is_break() {
                        return;
                    }
                }
            }
        }
    }

    /// Takes from the source what continues the chain.
    pub(super) fn extend(&self, rebuild: &mut Rebuild) -> Result<(), StoreError> {
        let mut failed = None;
        self.events(
            rebuild.seq() + 1,
            &mut |event| match rebuild.accept(&event) {
                Ok(true) => ControlFlow::Continue(()),
                Ok(false) => ControlFlow::Break(()),
                Err(error) => {
                    failed = Some(error);
                    ControlFlow::Break(())
                }
            },
        );
        failed.map_or(Ok(()), Err)
    }

    /// The end of the damaged chain by its head row, if that can be read.
    pub(super) fn damaged_end(&self) -> Option<u64> {
        match self {
            Self::Damaged(rescue) => rescue.head().map(|head| head.seq),
            Self::Snapshot(_) | Self::Archive(_) => None,
        }
    }

    fn base(&self) -> Option<Base<'_>> {
        match self {
            Self::Damaged(rescue) | Self::Snapshot(rescue) => Some(Base {
                genesis: rescue.genesis()?,
                anchor: rescue.anchor().ok()?.map(|anchor| (rescue, anchor)),
            }),
            // Only the whole history tells versions and subtrees without a
            // database, so the archive must reach back to the first event.
            Self::Archive(segments) => {
                let reader = ExportReader::open(&segments.first()?.path).ok()?;
                let header = reader.header();
                (header.starts_after() == 0).then_some(Base {
                    genesis: header.genesis,
                    anchor: None,
                })
            }
        }
    }

    /// Whether it has the event right after the head.
    fn continues(&self, head: &Head) -> bool {
        let mut fits = false;
        self.events(head.seq + 1, &mut |event| {
            fits = event.seq == head.seq + 1 && event.prev_hash == head.hash;
            ControlFlow::Break(())
        });
        fits
    }
}

fn read_segment(
    segment: &Segment,
    from: u64,
    visit: &mut dyn FnMut(Event) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let Ok(mut reader) = ExportReader::open(&segment.path) else {
        return ControlFlow::Continue(());
    };
    while let Ok(Some(event)) = reader.next_event() {
        if event.seq >= from {
            visit(event)?;
        }
    }
    ControlFlow::Continue(())
}

/// Moves what is there; what is not there is no error.
pub(super) fn rename_if_there(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Removes a file or a whole directory, if it is there.
pub(super) fn remove_if_there(path: &Path) -> io::Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
