//! Fetches one blob: again where it stopped, a few times, and then no more.
//!
//! Bytes are hashed and written on a thread of their own as they come; a blob
//! gets its name only when its digest is right. What is wrong in itself is not
//! asked for again; what may be better later is, with growing pauses.

use std::io::{self, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fluffy_base::{Digest, Hasher};
use hyper::body::Bytes;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use super::disk::{Disk, Work};
use super::source::{BlobSource, Opened, Piece};
use super::{EnsureError, Shared};
use crate::error::FetchError;

/// Who has the blobs of one image, and how long each may take.
#[derive(Debug, Clone)]
pub(super) struct Origin {
    pub(super) source: Arc<dyn BlobSource>,
    pub(super) deadline: Duration,
}

/// A blob that is wanted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    pub(super) digest: Digest,
    pub(super) size: u64,
}

/// Puts a blob in its place, if it is not there.
pub(super) async fn blob(
    shared: &Shared,
    origin: &Origin,
    wanted: Wanted,
) -> Result<u64, EnsureError> {
    // Of two that want the same the second finds it there.
    let turn = shared.turn(wanted.digest);
    let _turn = turn.lock().await;
    let path = shared.disk.blob(wanted.digest);
    if path.exists() {
        Disk::touch(&path);
        return Ok(0);
    }
    let _slot = shared.blobs.acquire().await;
    let late = EnsureError::Late {
        digest: wanted.digest,
        after: origin.deadline,
    };
    let fetching = async {
        let (work, digest) = loop {
            match whole(shared, origin, wanted).await {
                // Of a mirror; somebody else is asked for all of it.
                Err(error) if error.is_wrong_content() && origin.source.doubt(wanted.digest) => {}
                came => break came?,
            }
        };
        let disk = Arc::clone(&shared.disk);
        let kept = spawn_blocking(move || disk.keep_blob(work, digest)).await;
        Ok(kept.map_err(stopped)??)
    };
    let fetched = timeout(origin.deadline, fetching).await;
    fetched.map_err(|_| late)?
}

/// Reads a small document; its size is known, or may be `most`.
pub(super) async fn document(
    shared: &Shared,
    origin: &Origin,
    (piece, digest): (Piece, Digest),
    most: u64,
) -> Result<Vec<u8>, EnsureError> {
    let fetching = async {
        let mut tries = Tries::new(shared, origin);
        loop {
            tries.admit(digest)?;
            let read = async {
                let mut opened = origin.source.open(piece, digest, 0).await?;
                let mut all = Vec::new();
                while let Some(bytes) = opened.bytes.next().await? {
                    let length = all.len().saturating_add(bytes.len());
                    if u64::try_from(length).unwrap_or(u64::MAX) > most {
                        return Ok(Err(EnsureError::Invalid {
                            digest,
                            why: format!("its document has more than {most} bytes"),
                        }));
                    }
                    all.extend_from_slice(&bytes);
                }
                Ok(Ok(all))
            };
            let right = |all: Vec<u8>| match Digest::of(&all) == digest {
                true => Ok(all),
                false => Err(content(Wanted { digest, size: 0 }, "digest")),
            };
            match read.await {
                Ok(all) => match all.and_then(right) {
                    Err(error) if error.is_wrong_content() && origin.source.doubt(digest) => {}
                    all => {
                        tries.answered();
                        break all;
                    }
                },
                Err(_) if origin.source.doubt(digest) => {}
                Err(error) => tries.failed(digest, error).await?,
            }
        }
    };
    let late = EnsureError::Late {
        digest,
        after: origin.deadline,
    };
    let fetched = timeout(origin.deadline, fetching).await;
    fetched.map_err(|_| late)?
}

/// All of a blob, with the right digest.
async fn whole(
    shared: &Shared,
    origin: &Origin,
    wanted: Wanted,
) -> Result<(Work, Digest), EnsureError> {
    let writing = Writing::begin(&shared.disk)?;
    let (work, digest) = attempts(shared, origin, wanted, writing).await?;
    match digest == wanted.digest {
        true => Ok((work, digest)),
        false => Err(content(wanted, "digest")),
    }
}

async fn attempts(
    shared: &Shared,
    origin: &Origin,
    wanted: Wanted,
    mut writing: Writing,
) -> Result<(Work, Digest), EnsureError> {
    let mut tries = Tries::new(shared, origin);
    while writing.have < wanted.size || !writing.begun {
        tries.admit(wanted.digest)?;
        let opened = origin
            .source
            .open(Piece::Blob, wanted.digest, writing.have)
            .await;
        let came = match opened {
            Ok(opened) => take(opened, wanted, &mut writing).await?,
            Err(error) => Err(error),
        };
        match came {
            Ok(()) => tries.answered(),
            // What a mirror began nobody else goes on with.
            Err(_) if origin.source.doubt(wanted.digest) => {
                writing.send(Feed::Again).await?;
                writing.have = 0;
            }
            Err(error) => tries.failed(wanted.digest, error).await?,
        }
    }
    writing.end().await
}

/// Takes what comes; an error inside is one of the other side.
async fn take(
    mut opened: Opened,
    wanted: Wanted,
    writing: &mut Writing,
) -> Result<Result<(), FetchError>, EnsureError> {
    writing.begun = true;
    if opened.begins != writing.have {
        if opened.begins != 0 {
            return Err(content(wanted, "part"));
        }
        writing.send(Feed::Again).await?;
        writing.have = 0;
    }
    loop {
        let bytes = match opened.bytes.next().await {
            Ok(Some(bytes)) => bytes,
            Ok(None) if writing.have < wanted.size => return Err(content(wanted, "size")),
            Ok(None) => return Ok(Ok(())),
            Err(error) => return Ok(Err(error)),
        };
        writing.have += u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        if writing.have > wanted.size {
            return Err(content(wanted, "size"));
        }
        writing.send(Feed::Bytes(bytes)).await?;
    }
}

/// The attempts at one blob.
struct Tries<'a> {
    shared: &'a Shared,
    origin: &'a Origin,
    pauses: std::slice::Iter<'a, Duration>,
}

impl<'a> Tries<'a> {
    fn new(shared: &'a Shared, origin: &'a Origin) -> Self {
        Self {
            shared,
            origin,
            pauses: shared.limits.pauses.iter(),
        }
    }

    /// Begins an attempt, unless its registry is left alone now.
    fn admit(&self, digest: Digest) -> Result<(), EnsureError> {
        if !self.origin.source.is_left_alone() {
            return Ok(());
        }
        let name = self.origin.source.name();
        let admitted = self.shared.breaker(name, |it| it.admit(Instant::now()));
        admitted.map_err(|retry_in| EnsureError::Unavailable {
            digest,
            registry: name.to_owned(),
            retry_in,
        })
    }

    fn answered(&self) {
        self.shared
            .breaker(self.origin.source.name(), |it| it.answered());
    }

    /// Waits for the next attempt, if there is one.
    async fn failed(&mut self, digest: Digest, error: FetchError) -> Result<(), EnsureError> {
        if !error.is_transient() {
            self.answered();
            return Err(EnsureError::fetch(digest, error));
        }
        let name = self.origin.source.name();
        self.shared.breaker(name, |it| it.failed(Instant::now()));
        let Some(pause) = self.pauses.next() else {
            return Err(EnsureError::fetch(digest, error));
        };
        let asked = match &error {
            FetchError::Busy { retry_after, .. } => retry_after.unwrap_or_default(),
            _ => Duration::ZERO,
        };
        let pause = (*pause).max(asked);
        // Nobody is kept waiting for what cannot be in time.
        if pause >= self.origin.deadline {
            return Err(EnsureError::fetch(digest, error));
        }
        sleep(pause).await;
        Ok(())
    }
}

enum Feed {
    Bytes(Bytes),
    /// From the beginning.
    Again,
}

/// A blob that is being hashed and written.
struct Writing {
    feed: Option<mpsc::Sender<Feed>>,
    task: tokio::task::JoinHandle<io::Result<(Work, Digest)>>,
    have: u64,
    /// Whether anything was answered yet: a blob may be empty.
    begun: bool,
}

impl Writing {
    fn begin(disk: &Disk) -> io::Result<Self> {
        let mut work = disk.work()?;
        let (feed, mut fed) = mpsc::channel(16);
        let task = spawn_blocking(move || {
            let (mut hasher, mut written, mut flushing) = (Hasher::new(), 0, None);
            while let Some(next) = fed.blocking_recv() {
                match next {
                    Feed::Bytes(bytes) => {
                        hasher.update(&bytes);
                        work.file.write_all(&bytes)?;
                        written += u64::try_from(bytes.len()).unwrap_or(u64::MAX);
                        work.flush_ahead(&mut flushing, written);
                    }
                    Feed::Again => {
                        hasher = Hasher::new();
                        io::Seek::rewind(&mut work.file)?;
                        work.file.set_len(0)?;
                    }
                }
            }
            Ok((work, hasher.finish()))
        });
        Ok(Self {
            feed: Some(feed),
            task,
            have: 0,
            begun: false,
        })
    }

    async fn send(&mut self, feed: Feed) -> Result<(), EnsureError> {
        let sent = match &self.feed {
            Some(sender) => sender.send(feed).await.is_ok(),
            None => false,
        };
        match sent {
            true => Ok(()),
            // It stopped listening, and says why.
            false => {
                let ended = (&mut self.task).await.map_err(stopped)?;
                let error = ended
                    .err()
                    .unwrap_or_else(|| io::ErrorKind::BrokenPipe.into());
                Err(error.into())
            }
        }
    }

    async fn end(mut self) -> Result<(Work, Digest), EnsureError> {
        self.feed = None;
        Ok(self.task.await.map_err(stopped)??)
    }
}

pub(super) fn stopped(_: tokio::task::JoinError) -> EnsureError {
    io::Error::other("the process shuts down").into()
}

fn content(wanted: Wanted, what: &'static str) -> EnsureError {
    let digest = wanted.digest;
    EnsureError::fetch(digest, FetchError::Content { digest, what })
}
