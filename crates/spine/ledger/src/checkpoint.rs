//! Signed checkpoints: size and root of the tree as a C2SP signed note.
//!
//! They are kept apart from the database and given to witnesses: this is what
//! catches whoever rewrites the whole chain. Parsing trusts nothing.

use std::fmt;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fluffy_base::Digest;
use fluffy_base::id::LedgerId;

use crate::chain::Head;
use crate::error::StoreError;
use crate::key::{KeyFileError, PublicKey, SigningKeyFile};
use crate::sqlite::private_file;

/// A checkpoint is signed after this many events.
pub const EVENTS_PER_CHECKPOINT: u64 = 1_000;
/// The longest note that is read.
pub const MAX_NOTE: usize = 64 * 1024;
/// How much of a file of notes is read for its newest ones: some hundreds.
const TAIL: u64 = 64 * 1024;

/// The size and root of a ledger's tree at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// Which ledger: `fluffy.local/` and its id.
    pub origin: String,
    /// How many events.
    pub size: u64,
    /// The root of the tree over them.
    pub root: Digest,
}

/// A checkpoint with the signatures under it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedCheckpoint {
    /// What is signed.
    pub checkpoint: Checkpoint,
    /// The signed bytes, with their last newline.
    body: String,
    signatures: Vec<NoteSignature>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct NoteSignature {
    name: String,
    id: [u8; 4],
    bytes: Vec<u8>,
}

/// Why a text is not a signed checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParseCheckpointError {
    /// Longer than any checkpoint.
    #[error("the note is longer than {MAX_NOTE} bytes")]
    TooLong,
    /// No blank line between text and signatures, or no last newline.
    #[error("the note has no text and signatures with a blank line between")]
    Shape,
    /// The text is not an origin, a size and a root.
    #[error("line {0} of the checkpoint can't be understood")]
    Line(u8),
    /// A signature line is malformed, or there is none.
    #[error("a signature line can't be understood")]
    Signature,
}

/// The origin line of a ledger.
#[must_use]
pub fn origin(ledger_id: LedgerId) -> String {
    format!("fluffy.local/{ledger_id}")
}

impl SignedCheckpoint {
    /// Reads one note.
    ///
    /// # Errors
    /// The text is not a checkpoint of the C2SP format.
    pub fn parse(text: &str) -> Result<Self, ParseCheckpointError> {
        if text.len() > MAX_NOTE {
            return Err(ParseCheckpointError::TooLong);
        }
        let at = text.rfind("\n\n").ok_or(ParseCheckpointError::Shape)?;
        let (body, signatures) = text.split_at(at + 1);
        let signatures = signatures
            .strip_prefix('\n')
            .and_then(|lines| lines.strip_suffix('\n'))
            .ok_or(ParseCheckpointError::Shape)?;
        if body.bytes().any(|byte| byte < 0x20 && byte != b'\n') {
            return Err(ParseCheckpointError::Shape);
        }
        Ok(Self {
            checkpoint: parse_body(body)?,
            body: body.to_owned(),
            signatures: signatures
                .split('\n')
                .map(|line| parse_signature(line).ok_or(ParseCheckpointError::Signature))
                .collect::<Result<_, _>>()?,
        })
    }

    /// Whether this key signed it under the name of its origin.
    #[must_use]
    pub fn is_signed_by(&self, key: &PublicKey) -> bool {
        let name = &self.checkpoint.origin;
        let id = key.id(name);
        self.signatures.iter().any(|signature| {
            signature.name == *name
                && signature.id == id
                && key.verifies(self.body.as_bytes(), &signature.bytes)
        })
    }

    /// Signs that the ledger of this origin ends here.
    pub(crate) fn of_head(origin: String, head: &Head, key: &SigningKeyFile) -> Self {
        let (size, root) = (head.seq, head.frontier.root());
        Self::sign(Checkpoint { origin, size, root }, key)
    }

    pub(crate) fn sign(checkpoint: Checkpoint, key: &SigningKeyFile) -> Self {
        let Checkpoint { origin, size, root } = &checkpoint;
        let body = format!("{origin}\n{size}\n{}\n", STANDARD.encode(root.as_bytes()));
        let signature = NoteSignature {
            name: origin.clone(),
            id: key.public_key().id(origin),
            bytes: key.sign(body.as_bytes()).to_vec(),
        };
        Self {
            checkpoint,
            body,
            signatures: vec![signature],
        }
    }
}

impl fmt::Display for SignedCheckpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.body)?;
        for signature in &self.signatures {
            let bytes = [&signature.id[..], &signature.bytes].concat();
            writeln!(f, "\u{2014} {} {}", signature.name, STANDARD.encode(bytes))?;
        }
        Ok(())
    }
}

fn parse_body(body: &str) -> Result<Checkpoint, ParseCheckpointError> {
    let mut lines = body.strip_suffix('\n').unwrap_or(body).split('\n');
    let mut line = |number| lines.next().ok_or(ParseCheckpointError::Line(number));
    let (origin, size, root) = (line(1)?, line(2)?, line(3)?);
    if origin.is_empty() {
        return Err(ParseCheckpointError::Line(1));
    }
    // One spelling per number, as the format asks for.
    let number = size.parse::<u64>().ok().filter(|n| n.to_string() == size);
    let hash = STANDARD
        .decode(root)
        .ok()
        .and_then(|bytes| bytes.try_into().ok());
    // Further lines are extensions that belong to others; they may not be empty.
    if lines.any(str::is_empty) {
        return Err(ParseCheckpointError::Shape);
    }
    Ok(Checkpoint {
        origin: origin.to_owned(),
        size: number.ok_or(ParseCheckpointError::Line(2))?,
        root: hash.map(Digest).ok_or(ParseCheckpointError::Line(3))?,
    })
}

fn parse_signature(line: &str) -> Option<NoteSignature> {
    let (name, encoded) = line.strip_prefix("\u{2014} ")?.split_once(' ')?;
    let bytes = STANDARD.decode(encoded).ok()?;
    let (id, signature) = bytes.split_first_chunk::<4>()?;
    let valid = !name.is_empty() && !name.contains(char::is_whitespace) && !name.contains('+');
    (valid && !signature.is_empty()).then(|| NoteSignature {
        name: name.to_owned(),
        id: *id,
        bytes: signature.to_vec(),
    })
}

/// Reads a file of notes, one after the other with a blank line between.
///
/// # Errors
/// The index of the first note that can't be understood, from 0, and why.
pub fn parse_checkpoints(
    text: &str,
) -> Result<Vec<SignedCheckpoint>, (usize, ParseCheckpointError)> {
    let mut notes = Vec::new();
    let mut note = String::new();
    for line in text.split_inclusive('\n') {
        if line == "\n" && note.contains("\n\n") {
            notes.push(std::mem::take(&mut note));
        } else if !(note.is_empty() && line == "\n") {
            note.push_str(line);
        }
    }
    if !note.is_empty() {
        notes.push(note);
    }
    notes
        .iter()
        .enumerate()
        .map(|(index, note)| SignedCheckpoint::parse(note).map_err(|error| (index, error)))
        .collect()
}

/// Where checkpoints are signed and kept.
#[derive(Debug, Clone)]
pub struct Signing {
    /// The file of the secret key, outside the ledger's directory.
    pub key: PathBuf,
    /// The file that every checkpoint is appended to, apart from the database.
    pub checkpoints: PathBuf,
    /// Who else is told.
    pub witnesses: Vec<Witness>,
}

impl Signing {
    /// Key and checkpoints in one directory that is not the ledger's.
    #[must_use]
    pub fn in_directory(directory: &Path) -> Self {
        Self {
            key: directory.join("ledger.key"),
            checkpoints: directory.join("ledger.checkpoints"),
            witnesses: Vec::new(),
        }
    }
}

/// Someone outside who keeps checkpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Witness {
    /// A file, best on another disk, that checkpoints are appended to.
    File(PathBuf),
}

/// Why a checkpoint could not be signed and kept.
#[derive(Debug, thiserror::Error)]
pub enum SignError {
    /// The key can't be used.
    #[error("the checkpoint can't be signed")]
    Key(#[from] KeyFileError),
    /// The file can't be written.
    #[error("the checkpoint can't be appended to `{}`", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The events are not durable yet.
    #[error("the events of the checkpoint can't be made durable")]
    Store(#[from] StoreError),
}

/// Signs checkpoints of one ledger and hands them on.
#[derive(Debug)]
pub(crate) struct Notary {
    signing: Signing,
    key: SigningKeyFile,
    origin: String,
    last: u64,
    forced: bool,
}

impl Notary {
    /// A notary that last signed at `last` events.
    pub(crate) fn new(signing: Signing, ledger: LedgerId, last: u64) -> Result<Self, KeyFileError> {
        Ok(Self {
            key: SigningKeyFile::open_or_create(&signing.key)?,
            signing,
            origin: origin(ledger),
            last,
            forced: false,
        })
    }

    pub(crate) fn public_key(&self) -> PublicKey {
        self.key.public_key()
    }

    pub(crate) fn is_due(&self, seq: u64) -> bool {
        self.forced || seq / EVENTS_PER_CHECKPOINT > self.last / EVENTS_PER_CHECKPOINT
    }

    pub(crate) fn is_behind(&self, seq: u64) -> bool {
        seq > 0 && seq != self.last
    }

    /// Makes the next checkpoint due, however few events have come.
    pub(crate) fn force(&mut self) {
        self.forced = true;
    }

    /// Signs the head and appends the note to the file and every witness.
    pub(crate) fn sign(&mut self, head: &Head) -> Result<SignedCheckpoint, SignError> {
        let signed = SignedCheckpoint::of_head(self.origin.clone(), head, &self.key);
        append(&self.signing.checkpoints, &signed)?;
        self.last = head.seq;
        self.forced = false;
        for Witness::File(path) in &self.signing.witnesses {
            append(path, &signed)?;
        }
        Ok(signed)
    }
}

/// The text of a checkpoint file; empty if there is none yet.
pub(crate) fn read_notes(path: &Path) -> Result<String, SignError> {
    match std::fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        other => other.map_err(|source| SignError::Io {
            path: path.to_owned(),
            source,
        }),
    }
}

/// The checkpoints of an origin at the end of the file, in their order; what
/// can't be understood has none.
pub(crate) fn newest_notes(path: &Path, origin: &str) -> Result<Vec<SignedCheckpoint>, SignError> {
    let text = read_tail(path).map_err(|source| SignError::Io {
        path: path.to_owned(),
        source,
    })?;
    let notes = parse_checkpoints(whole_notes(&text, origin)).unwrap_or_default();
    let own = notes.into_iter();
    Ok(own.filter(|it| it.checkpoint.origin == origin).collect())
}

/// The end of a file of notes, which may begin in the middle of one, or all of
/// it with a blank line before it; empty if there is none yet.
fn read_tail(path: &Path) -> io::Result<String> {
    let mut file = match std::fs::File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
        file => file?,
    };
    let from = file.metadata()?.len().saturating_sub(TAIL);
    file.seek(SeekFrom::Start(from))?;
    let mut tail = match from {
        0 => b"\n\n".to_vec(),
        _ => Vec::new(),
    };
    // What is appended meanwhile is the next reader's.
    file.take(TAIL).read_to_end(&mut tail)?;
    Ok(String::from_utf8_lossy(&tail).into_owned())
}

/// From the first note on that begins in the text, and is of this origin.
fn whole_notes<'t>(text: &'t str, origin: &str) -> &'t str {
    let begin = format!("\n\n{origin}\n");
    let at = text.find(&begin).map(|at| at + 2);
    at.and_then(|at| text.get(at..)).unwrap_or_default()
}

/// The size of the newest checkpoint of this ledger in the file; 0 if none.
pub(crate) fn last_signed(path: &Path, ledger: LedgerId) -> Result<u64, SignError> {
    let text = read_notes(path)?;
    let origin = origin(ledger);
    // A file that somebody damaged must not keep the ledger from being used;
    // verification is what complains about it.
    let notes = parse_checkpoints(&text).unwrap_or_default();
    let own = notes.iter().filter(|note| note.checkpoint.origin == origin);
    Ok(own.map(|note| note.checkpoint.size).max().unwrap_or(0))
}

/// The size of the checkpoint of this ledger that was signed last; 0 if none.
pub(crate) fn newest_signed(path: &Path, ledger: LedgerId) -> Result<u64, SignError> {
    let text = read_notes(path)?;
    let origin = origin(ledger);
    let notes = parse_checkpoints(&text).unwrap_or_default();
    let mut own = notes.iter().rev();
    let last = own.find(|note| note.checkpoint.origin == origin);
    Ok(last.map_or(0, |note| note.checkpoint.size))
}

/// Appends one note with a blank line after it, in one write, durably.
fn append(path: &Path, note: &SignedCheckpoint) -> Result<(), SignError> {
    let write = || {
        if let Some(parent) = path.parent() {
            crate::sqlite::private_directory(parent)?;
        }
        let mut file = private_file(path)?;
        file.write_all(format!("{note}\n").as_bytes())?;
        file.sync_data()
    };
    write().map_err(|source| SignError::Io {
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use signed_note::{Note, StandardVerifier, VerifierList};

    use super::*;

    fn key() -> (tempfile::TempDir, SigningKeyFile) {
        let directory = tempfile::tempdir().unwrap();
        let key = SigningKeyFile::open_or_create(&directory.path().join("key")).unwrap();
        (directory, key)
    }

    fn signed(key: &SigningKeyFile) -> SignedCheckpoint {
        let checkpoint = Checkpoint {
            origin: origin(LedgerId::from_bits(9)),
            size: 1_000,
            root: Digest::of(b"root"),
        };
        SignedCheckpoint::sign(checkpoint, key)
    }

    #[test]
    fn a_note_reads_back_and_verifies() {
        let (_directory, key) = key();
        let note = signed(&key);
        let back = SignedCheckpoint::parse(&note.to_string()).unwrap();
        assert_eq!(back, note);
        assert!(back.is_signed_by(&key.public_key()));
        let (_other, stranger) = self::key();
        assert!(!back.is_signed_by(&stranger.public_key()));
    }

    #[test]
    fn a_second_implementation_accepts_our_notes() {
        let (_directory, key) = key();
        let note = signed(&key);
        let vkey = key.public_key().verifier_key(&note.checkpoint.origin);
        let verifier = StandardVerifier::new(&vkey).unwrap();
        let theirs = Note::from_bytes(note.to_string().as_bytes()).unwrap();
        let (verified, _) = theirs
            .verify(&VerifierList::new(vec![Box::new(verifier)]))
            .unwrap();
        assert_eq!(verified.len(), 1);
        assert_eq!(theirs.text(), note.body.as_bytes());
    }

    #[test]
    fn any_changed_byte_of_the_text_breaks_the_signature() {
        let (_directory, key) = key();
        let note = signed(&key);
        let text = note.to_string();
        for at in 0..note.body.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            let Ok(changed) = String::from_utf8(bytes) else {
                continue;
            };
            let accepted = SignedCheckpoint::parse(&changed)
                .is_ok_and(|note| note.is_signed_by(&key.public_key()));
            assert!(!accepted, "byte {at}");
        }
    }

    #[test]
    fn a_file_of_notes_reads_back() {
        let (_directory, key) = key();
        let note = signed(&key);
        let text = format!("{note}\n{note}\n{note}\n");
        assert_eq!(parse_checkpoints(&text).unwrap(), vec![note.clone(); 3]);
        assert_eq!(
            parse_checkpoints(&note.to_string()).unwrap(),
            vec![note.clone()]
        );
        assert_eq!(parse_checkpoints("").unwrap(), vec![]);
        assert_eq!(
            parse_checkpoints(&format!("{note}\nrubbish\n"))
                .unwrap_err()
                .0,
            1
        );
    }

    /// However long the file has become, and whoever else's notes are in it.
    #[test]
    fn the_newest_notes_are_found_at_the_end_of_a_long_file() {
        let (directory, key) = key();
        let path = directory.path().join("checkpoints");
        assert_eq!(newest_notes(&path, "none").unwrap(), vec![]);
        let note = |ledger: u128, size: u64| {
            let checkpoint = Checkpoint {
                origin: origin(LedgerId::from_bits(ledger)),
                size,
                root: Digest::of(&size.to_be_bytes()),
            };
            SignedCheckpoint::sign(checkpoint, &key)
        };
        let own = origin(LedgerId::from_bits(1));
        for size in 1..=3 {
            append(&path, &note(1, size)).unwrap();
        }
        let few = newest_notes(&path, &own).unwrap();
        assert_eq!(few, [1, 2, 3].map(|size| note(1, size)));
        let mut text = std::fs::read_to_string(&path).unwrap();
        let mut size = 3;
        while text.len() < usize::try_from(3 * TAIL).unwrap() {
            size += 1;
            text.push_str(&format!("{}\n", note(u128::from(size % 2) + 1, size)));
        }
        std::fs::write(&path, &text).unwrap();
        // Wherever the cut is.
        for _ in 0..300 {
            let found = newest_notes(&path, &own).unwrap();
            let last = text.match_indices(&format!("{own}\n")).count();
            assert!((10..last).contains(&found.len()), "{}", found.len());
            let newest = if size % 2 == 0 { size } else { size - 1 };
            assert_eq!(found.last(), Some(&note(1, newest)));
            assert_eq!(
                found.first(),
                Some(&note(1, newest + 2 - 2 * found.len() as u64))
            );
            text.insert(0, 'x');
            std::fs::write(&path, &text).unwrap();
        }
        text.push_str("rubbish\n");
        std::fs::write(&path, &text).unwrap();
        assert_eq!(newest_notes(&path, &own).unwrap(), vec![]);
    }

    #[test]
    fn the_notary_appends_to_its_file_and_witnesses() {
        let directory = tempfile::tempdir().unwrap();
        let mut signing = Signing::in_directory(directory.path());
        let witness = directory.path().join("other/witness");
        signing.witnesses.push(Witness::File(witness.clone()));
        let mut notary = Notary::new(signing.clone(), LedgerId::from_bits(1), 0).unwrap();
        assert!(!notary.is_due(999));
        assert!(notary.is_due(1_000));
        let head = Head {
            seq: 1_000,
            hash: Digest::of(b""),
            epoch: 1,
            frontier: crate::tree::Frontier::default(),
        };
        notary.sign(&head).unwrap();
        notary.sign(&head).unwrap();
        for path in [&signing.checkpoints, &witness] {
            let notes = parse_checkpoints(&std::fs::read_to_string(path).unwrap()).unwrap();
            assert_eq!(notes.len(), 2);
            assert!(notes[1].is_signed_by(&notary.public_key()));
        }
        assert!(!notary.is_due(1_999));
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in "[ -~\n\u{2014}=+/]{0,200}") {
            if let Ok(note) = SignedCheckpoint::parse(&text) {
                prop_assert_eq!(SignedCheckpoint::parse(&note.to_string()), Ok(note));
            }
            let _ = parse_checkpoints(&text);
        }
    }
}
