//! Opening a ledger whose database is damaged: keep, set aside, and say so.
//!
//! The longest part of the chain that is whole becomes the new ledger; it may
//! be pieced together from the damaged file, snapshots and the archive, since every event
//! has to fit by its hash. Readable events behind a hole go to a file of their
//! own, the damaged files stay as they were. Never silent: the new ledger's
//! first words are what was lost. An interrupted salvage is taken up again.

mod source;

use std::fs;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use fluffy_base::id::LedgerId;
use fluffy_base::{Timestamp, canonical};
use serde_json::json;

use crate::chain::{Genesis, RESTORED};
use crate::draft::{Batch, Draft};
use crate::engine::Engine;
use crate::error::{AppendError, StoreError};
use crate::event::{Actor, Event};
use crate::health::{Health, OpenCheckedError, Opened};
use crate::ledger::{Ledger, LedgerOptions, OpenLedgerError};
use crate::row::RowRef;
use crate::sqlite::{self, Condition, Rebuild, Store, beside};
use source::{Base, Source, remove_if_there, rename_if_there};

/// A ledger that was opened, and what had to be done for that.
#[derive(Debug)]
pub struct Recovered {
    /// The ledger.
    pub ledger: Ledger,
    /// Whether its chain holds since the last checkpoint.
    pub health: Health,
    /// What was salvaged; none if the database was whole.
    pub salvage: Option<Salvage>,
}

/// What a salvage kept and what it could not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Salvage {
    /// What was wrong with the database.
    pub cause: String,
    /// The last event that is still in the chain.
    pub kept: u64,
    /// The events that are no longer in the chain; none if all are.
    pub lost: Option<Lost>,
    /// How many of those could still be read, each whole by itself.
    pub rescued: u64,
    /// The file with what could still be read of them, if anything.
    pub rescued_file: Option<PathBuf>,
    /// The directory with the damaged files.
    pub aside: PathBuf,
    /// Whether not even the ledger's genesis was left.
    pub started_anew: bool,
}

/// A range of events that are no longer in the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lost {
    /// The first.
    pub first: u64,
    /// The last, where the ledger's end could still be read.
    pub last: Option<u64>,
}

/// Why a damaged ledger could not be salvaged.
#[derive(Debug, thiserror::Error)]
pub enum SalvageError {
    /// Another process has the damaged ledger open.
    #[error("the ledger in `{}` is damaged, and another process has it open", directory.display())]
    InUse {
        /// The ledger's directory.
        directory: PathBuf,
    },
    /// Files can't be moved or written.
    #[error("the ledger in `{}` can't be salvaged", directory.display())]
    Io {
        /// The ledger's directory.
        directory: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The database can't be looked at, or the new one not written.
    #[error("the ledger's storage can't be salvaged")]
    Store(#[from] StoreError),
    /// The new ledger can't be started.
    #[error("the salvaged ledger can't be started")]
    Start(#[from] OpenLedgerError),
    /// The ledger can't be opened and checked.
    #[error("the ledger can't be opened")]
    Open(#[from] OpenCheckedError),
    /// What was lost could not be recorded.
    #[error("what was lost can't be recorded in the ledger")]
    Record(#[from] AppendError),
}

impl Ledger {
    /// Opens the SQLite ledger in a directory; salvages it first if its
    /// database is damaged or gone.
    ///
    /// # Errors
    /// The directory can't be written, or someone else has the damaged ledger
    /// open.
    pub fn open_or_salvage(
        directory: &Path,
        options: LedgerOptions,
    ) -> Result<Recovered, SalvageError> {
        let io = |source| SalvageError::Io {
            directory: directory.to_owned(),
            source,
        };
        let now = options.clock.now();
        sqlite::private_directory(directory).map_err(io)?;
        let mut salvage = None;
        if damage(directory)?.is_some() || !sqlite::unfinished(directory).is_empty() {
            let alone = sqlite::alone(directory).map_err(io)?;
            let _alone = alone.ok_or_else(|| SalvageError::InUse {
                directory: directory.to_owned(),
            })?;
            // Someone may have salvaged it in between.
            if let Some(cause) = damage(directory)? {
                salvage = Some(Site::new(directory, now).salvage(cause)?);
            }
            put_away(directory).map_err(io)?;
        }
        let Opened { ledger, health } = Self::open_checked(directory, options)?;
        Ok(Recovered {
            ledger,
            health,
            salvage,
        })
    }
}

/// What is wrong with the database in a directory, if anything.
fn damage(directory: &Path) -> Result<Option<String>, StoreError> {
    Ok(match sqlite::condition(&Store::database(directory))? {
        Condition::Sound => None,
        Condition::Damaged(cause) => Some(cause),
        Condition::Absent if sqlite::has_traces(directory) => {
            Some("the database is gone".to_owned())
        }
        Condition::Absent => None,
    })
}

/// Ends a salvage: the directories set aside get their final names.
fn put_away(directory: &Path) -> io::Result<()> {
    for part in sqlite::unfinished(directory) {
        fs::rename(&part, part.with_extension(""))?;
    }
    sqlite::sync_directory(directory)
}

/// A directory in which a salvage takes place.
struct Site<'d> {
    directory: &'d Path,
    now: Timestamp,
    /// The moment, as part of file names.
    stamp: String,
}

impl<'d> Site<'d> {
    fn new(directory: &'d Path, now: Timestamp) -> Self {
        // One that was interrupted keeps its names.
        let begun = sqlite::unfinished(directory).into_iter().next();
        let begun = begun.as_deref().and_then(Path::file_stem).and_then(|name| {
            let stamp = name.to_str()?.strip_prefix("damaged-")?;
            Some(stamp.to_owned())
        });
        Self {
            directory,
            now,
            stamp: begun.unwrap_or_else(|| stamp(now)),
        }
    }

    fn salvage(&self, cause: String) -> Result<Salvage, SalvageError> {
        self.set_aside().map_err(|error| self.io(error))?;
        let aside = sqlite::unfinished(self.directory).into_iter().next();
        let sources = source::sources(self.directory);
        let building = self.directory.join("rebuilding");
        let (kept, base) = self.rebuild(&building, &sources)?;
        let rescued = self.rescue(&sources, kept)?;
        let end = sources.iter().find_map(Source::damaged_end);
        let salvage = Salvage {
            cause,
            kept,
            lost: lost(kept, rescued.highest, end),
            rescued: rescued.events,
            rescued_file: rescued.file.is_some().then(|| self.rescued_file()),
            aside: aside.map_or_else(|| self.directory.to_owned(), |part| part.with_extension("")),
            started_anew: base == Foundation::Nothing,
        };
        drop(sources);
        self.record(&building, &salvage)?;
        self.put_in_place(&building, base)
            .map_err(|error| self.io(error))?;
        Ok(salvage)
    }

    fn io(&self, source: io::Error) -> SalvageError {
        SalvageError::Io {
            directory: self.directory.to_owned(),
            source,
        }
    }

    /// Moves the database and its side files away, together with the views,
    /// which may know events that are lost now and can be derived again.
    fn set_aside(&self) -> io::Result<()> {
        let database = Store::database(self.directory);
        let taken = |part: &PathBuf| database.exists() && Store::database(part).exists();
        let part = match sqlite::unfinished(self.directory).into_iter().next() {
            Some(part) if !taken(&part) => part,
            _ => self
                .directory
                .join(format!("damaged-{}.part", stamp(self.now))),
        };
        sqlite::private_directory(&part)?;
        let target = Store::database(&part);
        // The database goes first: without it nobody opens what is left.
        for suffix in ["", "-wal", "-shm"] {
            rename_if_there(&beside(&database, suffix), &beside(&target, suffix))?;
        }
        let views = part.join("views");
        if !views.exists() {
            rename_if_there(&self.directory.join("views"), &views)?;
        }
        sqlite::sync_directory(&part)?;
        sqlite::sync_directory(self.directory)
    }

    /// Builds the longest whole chain; its end, and what it stands on.
    fn rebuild(
        &self,
        building: &Path,
        sources: &[Source],
    ) -> Result<(u64, Foundation), SalvageError> {
        let bases = source::bases(sources);
        let fresh = Base {
            genesis: Genesis {
                ledger_id: LedgerId::generate(),
                created_at: self.now,
            },
            anchor: None,
        };
        let found = bases.len();
        for (index, base) in bases.iter().chain([&fresh]).enumerate() {
            match self.build(building, base, sources) {
                Ok(kept) if index < found => return Ok((kept, Foundation::Found)),
                Ok(kept) => return Ok((kept, Foundation::Nothing)),
                // The bookkeeping of this base can't be copied: try the next.
                Err(SalvageError::Store(error)) if index < found && !is_full(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Err(self.io(io::ErrorKind::NotFound.into()))
    }

    fn build(
        &self,
        building: &Path,
        base: &Base<'_>,
        sources: &[Source],
    ) -> Result<u64, SalvageError> {
        remove_if_there(building).map_err(|error| self.io(error))?;
        sqlite::private_directory(building).map_err(|error| self.io(error))?;
        let anchor = base
            .anchor
            .as_ref()
            .map(|(rescue, anchor)| (*rescue, anchor));
        let path = Store::database(building);
        let mut rebuild = Rebuild::create(&path, &base.genesis, anchor)?;
        // One source may fill the holes of another, so go round until none
        // has anything to add.
        loop {
            let before = rebuild.seq();
            for source in sources {
                source.extend(&mut rebuild)?;
            }
            if rebuild.seq() == before {
                break;
            }
        }
        let kept = rebuild.seq();
        rebuild.finish()?;
        Ok(kept)
    }

    /// Writes what is readable but not in the chain any more.
    fn rescue(&self, sources: &[Source], kept: u64) -> Result<Rescued, SalvageError> {
        let mut rescued = Rescued {
            events: 0,
            highest: kept,
            file: None,
        };
        let mut failed = None;
        let damaged = sources
            .iter()
            .filter(|source| matches!(source, Source::Damaged(_)));
        for source in damaged {
            source.events(
                kept + 1,
                &mut |event| match rescued.write(&self.rescued_file(), &event) {
                    Ok(()) => ControlFlow::Continue(()),
                    Err(error) => {
                        failed = Some(error);
                        ControlFlow::Break(())
                    }
                },
            );
        }
        match failed.map_or_else(|| rescued.sync(), Err) {
            Ok(()) => Ok(rescued),
            Err(error) => Err(self.io(error)),
        }
    }

    fn rescued_file(&self) -> PathBuf {
        self.directory
            .join(format!("salvaged-{}.jsonl", self.stamp))
    }

    /// Appends what happened to the new ledger before anyone sees it.
    fn record(&self, building: &Path, salvage: &Salvage) -> Result<(), SalvageError> {
        let genesis = Genesis {
            ledger_id: LedgerId::generate(),
            created_at: self.now,
        };
        let store = Store::open(building, &genesis)?;
        let ledger = Ledger::start(Engine::Sqlite(store), LedgerOptions::default())?;
        let mut drafts = Vec::new();
        if salvage.lost.is_some() {
            drafts.push(draft(&ledger, "ledger.chain_break", salvage, self.now));
        }
        drafts.push(draft(&ledger, RESTORED, salvage, self.now));
        ledger.append_blocking(Batch::new(drafts))?;
        ledger.close()?;
        Ok(())
    }

    fn put_in_place(&self, building: &Path, base: Foundation) -> io::Result<()> {
        let built = Store::database(building);
        if beside(&built, "-wal").exists() {
            // Closing the last connection copies the WAL and removes it.
            return Err(io::Error::other("the new database did not close"));
        }
        if base == Foundation::Nothing
            && let Some(part) = sqlite::unfinished(self.directory).first()
        {
            // What could not help belongs to the ledger that is gone.
            for name in ["archive", "snapshots"] {
                rename_if_there(&self.directory.join(name), &part.join(name))?;
            }
        }
        fs::rename(&built, Store::database(self.directory))?;
        sqlite::sync_directory(self.directory)?;
        remove_if_there(building)
    }
}

/// The file with events that are readable but not in the chain any more.
struct Rescued {
    events: u64,
    /// The highest position among them.
    highest: u64,
    file: Option<io::BufWriter<fs::File>>,
}

impl Rescued {
    /// Adds an event as an export line. One that does not give its own hash
    /// was hit itself: it is kept as a text under `damaged`, not as an event.
    fn write(&mut self, path: &Path, event: &Event) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                // One from an interrupted salvage starts over.
                remove_if_there(path)?;
                let file = sqlite::private_file(path)?;
                self.file.insert(io::BufWriter::new(file))
            }
        };
        let row = RowRef::of(event);
        let mut line = String::new();
        if row.expected_hash(&event.prev_hash, &mut line) == event.hash {
            self.events += 1;
            line.clear();
            row.write_export(&mut line);
        } else {
            let mut text = String::new();
            row.write_export(&mut text);
            line = "{\"damaged\":".to_owned();
            canonical::write_text(&mut line, &text);
            line.push('}');
        }
        line.push('\n');
        self.highest = self.highest.max(event.seq);
        file.write_all(line.as_bytes())
    }

    fn sync(&mut self) -> io::Result<()> {
        match &mut self.file {
            Some(file) => {
                file.flush()?;
                file.get_ref().sync_all()
            }
            None => Ok(()),
        }
    }
}

/// A moment as part of a file name.
fn stamp(moment: Timestamp) -> String {
    moment.to_string().replace(':', "-")
}

/// Whether anything of the old ledger is in the new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Foundation {
    /// Its genesis was found.
    Found,
    /// Nothing was.
    Nothing,
}

/// The range that is no longer in the chain. `highest` is the last event that
/// could be read, `end` what the head row says, if that could be.
fn lost(kept: u64, highest: u64, end: Option<u64>) -> Option<Lost> {
    match end {
        Some(end) => {
            let last = end.max(highest);
            (last > kept).then_some(Lost {
                first: kept + 1,
                last: Some(last),
            })
        }
        None => Some(Lost {
            first: kept + 1,
            last: None,
        }),
    }
}

fn is_full(error: &StoreError) -> bool {
    matches!(error, StoreError::Full(_))
}

fn draft(ledger: &Ledger, event_type: &str, salvage: &Salvage, now: Timestamp) -> Draft {
    let name = |path: &Path| {
        path.file_name()
            .map(|name| name.to_string_lossy().into_owned())
    };
    let first_bad = salvage.lost.map_or(salvage.kept, |lost| lost.first);
    ledger
        .own_draft(event_type, Actor::system("ledger"))
        .occurred_at(now)
        .payload(json!({
            "seq": first_bad,
            "kind": "storage_damaged",
            "detail": salvage.cause,
            "kept_seq": salvage.kept,
            "lost_first": salvage.lost.map(|lost| lost.first),
            "lost_last": salvage.lost.and_then(|lost| lost.last),
            "rescued_events": salvage.rescued,
            "rescued_file": salvage.rescued_file.as_deref().and_then(name),
            "aside": name(&salvage.aside),
            "started_anew": salvage.started_anew,
        }))
}
