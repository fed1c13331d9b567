//! Custody of master keys by people: shares, of which some together are the key.
//!
//! A set is made by Shamir's scheme over GF(256), so fewer shares than it needs
//! say nothing about the key at all. Every share names its set and carries a
//! checksum of its own; the key carries another one, and its name is checked as
//! well, so what comes together is the key or nothing. The key of fingerprints
//! is in the same secret: a server without files needs both. A key that follows
//! another carries a proof by that one, which a server checks that has it.

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use fluffy_base::Digest;
use fluffy_base::id::MasterKeyId;
use getrandom::SysRng;
use getrandom::rand_core::UnwrapErr;
use vsss_rs::Gf256;
use zeroize::Zeroizing;

use crate::key::{LoadKeyError, MasterKey, is_keyed, keyed};
use crate::seal::{About, Sealed};

/// How every share begins, of whatever version.
pub const BEGINNING: &str = "fluffy-share-";
/// The most shares of a set: every group that suffices is tried when they are
/// made, and those grow fast.
pub const MOST: u8 = 12;
/// Both keys, as they are split.
const KEYS: usize = 32 + 32;
const CHECK: usize = 16;
/// The name of the key before, and what only who had it could say.
const AFTER: usize = 11 + 32;
/// Room for a share as a line.
const LINE: usize = 384;
/// The longest text with a share that is looked at, remarks included.
const LONGEST: usize = 4096;

/// A master key and the key of fingerprints, as their custodians hold them.
#[derive(Debug)]
pub struct Custody {
    pub(crate) key: MasterKey,
    pub(crate) fingerprints: MasterKey,
    /// What the key before says of it, if there was one.
    pub(crate) after: Option<Succession>,
}

/// That a key was made by who had the one before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Succession {
    before: MasterKeyId,
    proof: [u8; 32],
}

/// What is split, and how it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Version 1: both keys.
    Keys,
    /// Version 2: both keys, and the proof by the one before.
    Successor,
}

/// Which shares belong together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SetId([u8; 4]);

/// One custodian's part of a key.
#[derive(Clone)]
pub struct Share {
    form: Form,
    key: MasterKeyId,
    set: SetId,
    index: u8,
    total: u8,
    needed: u8,
    data: Zeroizing<Vec<u8>>,
}

/// Why a key can't be split.
#[derive(Debug, thiserror::Error)]
pub enum SplitError {
    /// The numbers make no sense.
    #[error(
        "{needed} of {total} shares: at least 2 must be needed, and there can be 2 to {MOST} shares"
    )]
    Numbers {
        /// How many would be needed.
        needed: u8,
        /// How many there would be.
        total: u8,
    },
    /// The system gave no random bits.
    #[error("the system gives no random bits")]
    Randomness,
    /// Some of them together were not the key.
    #[error("shares {group:?} of the new set are not the key: nothing was made")]
    Unproven {
        /// Which.
        group: Vec<u8>,
    },
}

/// Why a text is not a share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReadShareError {
    /// No line of it is one.
    #[error("there is no share in it: one begins with `{BEGINNING}`")]
    None,
    /// More lines than one are.
    #[error("there is more than one share in it")]
    Several,
    /// It is too long.
    #[error("it is longer than {LONGEST} bytes")]
    TooLong,
    /// Its form is not known here.
    #[error("the share is of a later version of fluffy")]
    Version,
    /// A word is missing, or is not what it should be.
    #[error("the share is not whole: {0} is missing or malformed")]
    Word(&'static str),
    /// The checksum does not fit.
    #[error("the share was altered or copied wrongly: its checksum does not fit")]
    Checksum,
}

/// Why shares are not a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CombineError {
    /// They are of different sets.
    #[error("the shares are of different sets: {one} and {other}")]
    Sets {
        /// The set of the first.
        one: SetId,
        /// The set of another.
        other: SetId,
    },
    /// There are too few.
    #[error("{here} of the {needed} shares that are needed are here")]
    TooFew {
        /// How many different ones there are.
        here: usize,
        /// How many it takes.
        needed: u8,
    },
    /// What comes together is not the key.
    #[error("the shares do not make master key {key}: one of them is not what was given out")]
    Integrity {
        /// The key that they should be.
        key: MasterKeyId,
    },
}

impl Custody {
    /// A fresh pair.
    ///
    /// # Errors
    /// The system gives no random bits.
    pub fn generate() -> Result<Self, LoadKeyError> {
        Ok(Self {
            key: MasterKey::generate()?,
            fingerprints: MasterKey::generate()?,
            after: None,
        })
    }

    /// A fresh master key for who has this one: fingerprints stay as they are,
    /// so that equal secrets stay equal, and a server that has this one knows
    /// the other for its successor.
    ///
    /// # Errors
    /// The system gives no random bits.
    pub fn next(&self) -> Result<Self, LoadKeyError> {
        let mut next = Self {
            key: MasterKey::generate()?,
            fingerprints: self.fingerprints.copy(),
            after: None,
        };
        next.after = Some(Succession {
            before: self.key_id(),
            proof: *keyed(self.key.bits(), &next.announced()),
        });
        Ok(next)
    }

    /// The key that it follows, as it says.
    #[must_use]
    pub fn after(&self) -> Option<MasterKeyId> {
        self.after.as_ref().map(|after| after.before)
    }

    /// Whether who had this key made the other one.
    pub(crate) fn follows(&self, key: &MasterKey) -> bool {
        let said = self.after.as_ref().filter(|it| it.before == key.id());
        said.is_some_and(|said| is_keyed(key.bits(), &self.announced(), &said.proof))
    }

    /// Whether something was sealed with this key.
    #[must_use]
    pub fn opens(&self, sealed: &Sealed, about: &About<'_>) -> bool {
        sealed.master_key_id == self.key_id() && sealed.unwrapped(about, &self.key).is_ok()
    }

    /// What the key before vouches for: the bits themselves, since names are
    /// short enough to be met by trying.
    fn announced(&self) -> Zeroizing<Vec<u8>> {
        let purpose = b"fluffy-successor-v1";
        let mut text = Zeroizing::new(Vec::with_capacity(purpose.len() + KEYS));
        text.extend_from_slice(purpose);
        text.extend_from_slice(self.key.bits());
        text.extend_from_slice(self.fingerprints.bits());
        text
    }

    /// The name of the master key.
    #[must_use]
    pub fn key_id(&self) -> MasterKeyId {
        self.key.id()
    }

    /// Makes a new set of shares, and proves that every group of the needed
    /// size is the key.
    ///
    /// # Errors
    /// See [`SplitError`]; then there are none.
    pub fn split(&self, total: u8, needed: u8) -> Result<Vec<Share>, SplitError> {
        if needed < 2 || needed > total || total > MOST {
            return Err(SplitError::Numbers { needed, total });
        }
        let mut set = [0; 4];
        // The generator below can't say that it failed, so it is asked first.
        getrandom::fill(&mut set).map_err(|_| SplitError::Randomness)?;
        let set = SetId(set);
        let numbers = (usize::from(needed), usize::from(total));
        let rng = UnwrapErr(SysRng);
        let parts = Gf256::split_bytes(numbers.0, numbers.1, self.secret(set).as_slice(), rng)
            .map_err(|_| SplitError::Numbers { needed, total })?;
        let form = self.form();
        let shares = parts.into_iter().map(Zeroizing::new).map(|part| Share {
            form,
            key: self.key_id(),
            set,
            index: part.first().copied().unwrap_or_default(),
            total,
            needed,
            data: Zeroizing::new(part.get(1..).unwrap_or_default().to_vec()),
        });
        let shares: Vec<Share> = shares.collect();
        for group in groups(&shares, usize::from(needed)) {
            let same = Self::combine(&group).is_ok_and(|it| it.is(self));
            if !same {
                let group = group.iter().map(|share| share.index).collect();
                return Err(SplitError::Unproven { group });
            }
        }
        Ok(shares)
    }

    /// The key that these shares are; one may be there more than once.
    ///
    /// # Errors
    /// See [`CombineError`].
    pub fn combine(shares: &[Share]) -> Result<Self, CombineError> {
        let none = CombineError::TooFew { here: 0, needed: 2 };
        let first = shares.first().ok_or(none)?;
        let mut seen = BTreeSet::new();
        let mut parts = Zeroizing::new(Vec::new());
        for share in shares {
            if share.set != first.set {
                let (one, other) = (first.set, share.set);
                return Err(CombineError::Sets { one, other });
            }
            if share.form != first.form {
                return Err(CombineError::Integrity { key: first.key });
            }
            if seen.insert(share.index) {
                let mut part = Vec::with_capacity(1 + share.data.len());
                part.push(share.index);
                part.extend_from_slice(&share.data);
                parts.push(part);
            }
        }
        let (here, needed) = (parts.len(), first.needed);
        if here < usize::from(needed) {
            return Err(CombineError::TooFew { here, needed });
        }
        let wrong = || CombineError::Integrity { key: first.key };
        let secret = Gf256::combine_bytes(parts.as_slice()).map(Zeroizing::new);
        let secret = secret.map_err(|_| wrong())?;
        let custody = Self::of(first.form, first.set, &secret).ok_or_else(wrong)?;
        match custody.key_id() == first.key {
            true => Ok(custody),
            false => Err(wrong()),
        }
    }

    fn form(&self) -> Form {
        match &self.after {
            None => Form::Keys,
            Some(_) => Form::Successor,
        }
    }

    /// What is split: both keys, the proof by the one before if there is one,
    /// and what tells that they came together right.
    fn secret(&self, set: SetId) -> Zeroizing<Vec<u8>> {
        let form = self.form();
        let mut secret = Zeroizing::new(Vec::with_capacity(form.size()));
        secret.extend_from_slice(self.key.bits());
        secret.extend_from_slice(self.fingerprints.bits());
        if let Some(after) = &self.after {
            secret.extend_from_slice(after.before.to_string().as_bytes());
            secret.extend_from_slice(&after.proof);
        }
        let check = form.check(set, &secret);
        secret.extend_from_slice(&check);
        secret
    }

    fn of(form: Form, set: SetId, secret: &[u8]) -> Option<Self> {
        let (content, said) = secret.split_last_chunk::<CHECK>()?;
        if *said != form.check(set, content) {
            return None;
        }
        let (key, rest) = content.split_first_chunk::<32>()?;
        let (fingerprints, rest) = rest.split_first_chunk::<32>()?;
        Some(Self {
            key: MasterKey::of(Zeroizing::new(*key)),
            fingerprints: MasterKey::of(Zeroizing::new(*fingerprints)),
            after: match form {
                Form::Keys => None,
                Form::Successor => Some(Succession::read(rest)?),
            },
        })
    }

    fn is(&self, other: &Self) -> bool {
        self.key.bits() == other.key.bits()
            && self.fingerprints.bits() == other.fingerprints.bits()
            && self.after == other.after
    }
}

impl Succession {
    fn read(bytes: &[u8]) -> Option<Self> {
        let (name, proof) = bytes.split_first_chunk::<{ AFTER - 32 }>()?;
        Some(Self {
            before: std::str::from_utf8(name).ok()?.parse().ok()?,
            proof: proof.try_into().ok()?,
        })
    }
}

impl Form {
    const ALL: [Self; 2] = [Self::Keys, Self::Successor];

    /// The first word of a share.
    const fn word(self) -> &'static str {
        match self {
            Self::Keys => "fluffy-share-1",
            Self::Successor => "fluffy-share-2",
        }
    }

    /// How long the secret is.
    const fn size(self) -> usize {
        match self {
            Self::Keys => KEYS + CHECK,
            Self::Successor => KEYS + AFTER + CHECK,
        }
    }

    fn check(self, set: SetId, content: &[u8]) -> [u8; CHECK] {
        let purpose: &[u8] = match self {
            Self::Keys => b"fluffy-custody-v1",
            Self::Successor => b"fluffy-custody-v2",
        };
        // Room for all of it at once: growing would leave copies behind.
        let room = purpose.len() + set.0.len() + content.len();
        let mut text = Zeroizing::new(Vec::with_capacity(room));
        text.extend_from_slice(purpose);
        text.extend_from_slice(&set.0);
        text.extend_from_slice(content);
        let Digest(digest) = Digest::of(&text);
        let (check, _) = digest.split_first_chunk().unwrap_or((&[0; CHECK], &[]));
        *check
    }
}

/// Every group of this size.
fn groups(shares: &[Share], size: usize) -> Vec<Vec<Share>> {
    let masks = 0_u32..(1 << shares.len());
    let wanted = masks.filter(|mask| mask.count_ones() as usize == size);
    let group = |mask: u32| {
        let members = shares.iter().enumerate();
        let members = members.filter(|(bit, _)| mask & (1 << bit) != 0);
        members.map(|(_, share)| share.clone()).collect()
    };
    wanted.map(group).collect()
}

impl Share {
    /// The key that it is a part of.
    #[must_use]
    pub fn key(&self) -> MasterKeyId {
        self.key
    }

    /// The set that it belongs to.
    #[must_use]
    pub fn set(&self) -> SetId {
        self.set
    }

    /// Its number in the set, from 1.
    #[must_use]
    pub fn index(&self) -> u8 {
        self.index
    }

    /// How many there are.
    #[must_use]
    pub fn total(&self) -> u8 {
        self.total
    }

    /// How many it takes.
    #[must_use]
    pub fn needed(&self) -> u8 {
        self.needed
    }

    /// What its custodian keeps, one line; look closely at every caller.
    #[must_use]
    pub fn expose(&self) -> Zeroizing<String> {
        let mut line = self.unchecked();
        let check = line_check(&line);
        line.push(' ');
        line.push_str(&check);
        line
    }

    fn unchecked(&self) -> Zeroizing<String> {
        // Room for all of it at once: growing would leave copies behind.
        let mut line = Zeroizing::new(String::with_capacity(LINE));
        let Self { key, set, .. } = self;
        let (index, total, needed) = (self.index, self.total, self.needed);
        let word = self.form.word();
        // A text takes everything.
        let _ = write!(
            line,
            "{word} {key} set={set} share={index}/{total} needs={needed} "
        );
        URL_SAFE_NO_PAD.encode_string(self.data.as_slice(), &mut line);
        line
    }
}

fn line_check(line: &str) -> String {
    let Digest(digest) = Digest::of(line.as_bytes());
    let first = digest.iter().take(4);
    first.map(|byte| format!("{byte:02x}")).collect()
}

impl FromStr for Share {
    type Err = ReadShareError;

    /// Reads the share in a text; lines that begin with `#` are remarks.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.len() > LONGEST {
            return Err(ReadShareError::TooLong);
        }
        let mut lines = text.lines().map(str::trim);
        let mut lines = lines.by_ref().filter(|line| line.starts_with(BEGINNING));
        let line = lines.next().ok_or(ReadShareError::None)?;
        if lines.next().is_some() {
            return Err(ReadShareError::Several);
        }
        let mut words = line.split(' ');
        let first = words.next().unwrap_or_default();
        let form = Form::ALL.into_iter().find(|form| form.word() == first);
        let form = form.ok_or(ReadShareError::Version)?;
        let mut word = |name| words.next().ok_or(ReadShareError::Word(name));
        let malformed = ReadShareError::Word;
        let key = word("the key")?;
        let key = key.parse().map_err(|_| malformed("the key"))?;
        let set = word("the set")?.strip_prefix("set=").and_then(set_of);
        let set = set.ok_or(malformed("the set"))?;
        let place = word("the number")?.strip_prefix("share=");
        let place = place.and_then(|place| place.split_once('/'));
        let (index, total) = place.ok_or(malformed("the number"))?;
        let needed = word("how many it takes")?.strip_prefix("needs=");
        let needed = needed.ok_or(malformed("how many it takes"))?;
        let data = word("its data")?;
        let said = word("its checksum")?;
        let (before, _) = line.rsplit_once(' ').unwrap_or_default();
        if line_check(before) != said {
            return Err(ReadShareError::Checksum);
        }
        let number = |text: &str| text.parse::<u8>().ok().filter(|it| (1..=MOST).contains(it));
        let data = URL_SAFE_NO_PAD.decode(data).map(Zeroizing::new).ok();
        let data = data.filter(|data| data.len() == form.size());
        let share = Self {
            form,
            key,
            set,
            index: number(index).ok_or(malformed("the number"))?,
            total: number(total).ok_or(malformed("the number"))?,
            needed: number(needed).ok_or(malformed("how many it takes"))?,
            data: data.ok_or(malformed("its data"))?,
        };
        if share.index > share.total || share.needed > share.total || share.needed < 2 {
            return Err(malformed("the number"));
        }
        // What can be written in two ways could be taken for two shares.
        match *share.unchecked() == before {
            true => Ok(share),
            false => Err(malformed("its data")),
        }
    }
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (index, total) = (self.index, self.total);
        write!(f, "{} set {} share {index}/{total}", self.key, self.set)
    }
}

fn set_of(text: &str) -> Option<SetId> {
    let hex = text.len() == 8 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = u32::from_str_radix(text, 16).ok().filter(|_| hex)?;
    Some(SetId(number.to_be_bytes()))
}

impl fmt::Display for SetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", u32::from_be_bytes(self.0))
    }
}

impl fmt::Debug for SetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_group_that_suffices_is_the_key_and_no_smaller_one_is_taken() {
        let first = || Custody::generate().unwrap();
        for (total, needed, custody) in [
            (2, 2, first()),
            (3, 2, first().next().unwrap()),
            (5, 3, first()),
            (12, 6, first()),
        ] {
            let shares = custody.split(total, needed).unwrap();
            assert_eq!(shares.len(), usize::from(total));
            for group in groups(&shares, usize::from(needed)) {
                assert!(Custody::combine(&group).unwrap().is(&custody));
            }
            for group in groups(&shares, usize::from(needed) - 1) {
                let error = Custody::combine(&group).map(drop).unwrap_err();
                let here = usize::from(needed) - 1;
                assert_eq!(error, CombineError::TooFew { here, needed });
            }
        }
    }

    /// The attack: one share less, whose owner lies about how many are needed.
    /// What comes out is not the key, and all that is wrong with it is told.
    #[test]
    fn who_lies_about_the_number_gets_nothing() {
        let custody = Custody::generate().unwrap();
        let shares = custody.split(3, 3).unwrap();
        let two = shares
            .iter()
            .take(2)
            .cloned()
            .map(|share| Share { needed: 2, ..share });
        let error = Custody::combine(&two.collect::<Vec<_>>()).map(drop);
        let key = custody.key_id();
        assert_eq!(error.unwrap_err(), CombineError::Integrity { key });
    }

    /// One share says nothing: over many splits of one key each of its bytes
    /// takes every value. The control is the key itself, which does not.
    #[test]
    fn a_share_alone_says_nothing() {
        let custody = Custody::generate().unwrap();
        let mut seen = vec![BTreeSet::new(); 64];
        for _ in 0..4096 {
            let [one, _] = custody.split(2, 2).unwrap().try_into().unwrap();
            for (values, byte) in seen.iter_mut().zip(one.data.iter()) {
                values.insert(*byte);
            }
        }
        // That one of 64 x 256 values is missed by chance: 2 in 1000.
        let missed: usize = seen.iter().map(|values| 256 - values.len()).sum();
        assert!(missed < 4, "{missed} values never came");
    }

    #[test]
    fn shares_are_read_as_they_were_written() {
        let custody = Custody::generate().unwrap();
        let shares = custody.split(3, 2).unwrap();
        let read: Vec<Share> = shares
            .iter()
            .map(|share| format!("# keep this\n\n{}\r\n", *share.expose()))
            .map(|text| text.parse().unwrap())
            .collect();
        assert!(Custody::combine(&read[1..]).unwrap().is(&custody));
        let shown = format!("{:?} {custody:?}", read[0]);
        let line = shares[0].expose();
        assert!(!shown.contains(line.split(' ').nth(5).unwrap()), "{shown}");
    }

    #[test]
    fn a_share_that_was_altered_is_refused() {
        let custody = Custody::generate().unwrap();
        for custody in [custody.next().unwrap(), custody] {
            altered(&custody);
        }
    }

    fn altered(custody: &Custody) {
        let line = custody.split(2, 2).unwrap()[0].expose();
        for place in 0..line.len() {
            let mut bytes = line.as_bytes().to_vec();
            bytes[place] = if bytes[place] == b'0' { b'1' } else { b'0' };
            let text = String::from_utf8(bytes).unwrap();
            assert!(text.parse::<Share>().is_err(), "{text}");
        }
        for end in 0..line.len() {
            assert!(line[..end].parse::<Share>().is_err());
        }
        let twice = format!("{}\n{}", *line, *line);
        assert_eq!(twice.parse::<Share>().unwrap_err(), ReadShareError::Several);
        let long = format!("{}\n{}", *line, "#".repeat(LONGEST));
        assert_eq!(long.parse::<Share>().unwrap_err(), ReadShareError::TooLong);
    }

    #[test]
    fn shares_of_two_sets_or_of_a_forger_are_not_mixed() {
        let custody = Custody::generate().unwrap();
        let (one, other) = (custody.split(3, 2).unwrap(), custody.split(3, 2).unwrap());
        let mixed = [one[0].clone(), other[1].clone()];
        let error = Custody::combine(&mixed).map(drop).unwrap_err();
        assert!(matches!(error, CombineError::Sets { .. }), "{error}");
        // Somebody who writes the right set on another share is found out.
        let forged = Share {
            set: one[0].set,
            ..other[1].clone()
        };
        let forged: Share = forged.expose().parse().unwrap();
        let error = Custody::combine(&[one[0].clone(), forged]).map(drop);
        let key = custody.key_id();
        assert_eq!(error.unwrap_err(), CombineError::Integrity { key });
        let twice = [one[0].clone(), one[0].clone()];
        let error = Custody::combine(&twice).map(drop).unwrap_err();
        assert_eq!(error, CombineError::TooFew { here: 1, needed: 2 });
    }

    #[test]
    fn numbers_that_make_no_sense_are_refused() {
        let custody = Custody::generate().unwrap();
        for (total, needed) in [(3, 1), (1, 1), (2, 3), (13, 2), (0, 0)] {
            let error = custody.split(total, needed).unwrap_err();
            assert!(matches!(error, SplitError::Numbers { .. }), "{error}");
        }
    }

    #[test]
    fn a_successor_keeps_fingerprints_and_shows_what_it_follows() {
        let custody = Custody::generate().unwrap();
        let next = custody.next().unwrap();
        assert_ne!(next.key_id(), custody.key_id());
        assert_eq!(next.fingerprints.bits(), custody.fingerprints.bits());
        assert_eq!(custody.after(), None);
        // It does so as shares, too, and a new set of them.
        let shares = next.split(3, 2).unwrap();
        let again = Custody::combine(&shares[1..]).unwrap();
        assert_eq!(again.after(), Some(custody.key_id()));
        assert!(again.follows(&custody.key));
        assert!(again.next().unwrap().follows(&again.key));
        // The controls: another key before, another key, another platform.
        let other = Custody::generate().unwrap();
        assert!(!again.follows(&other.key));
        assert!(!again.next().unwrap().follows(&custody.key));
        for changed in [
            Custody {
                key: MasterKey::generate().unwrap(),
                fingerprints: next.fingerprints.copy(),
                after: next.after.clone(),
            },
            Custody {
                key: next.key.copy(),
                fingerprints: other.fingerprints.copy(),
                after: next.after.clone(),
            },
        ] {
            assert_eq!(changed.after(), Some(custody.key_id()));
            assert!(!changed.follows(&custody.key));
        }
    }

    /// A name is 32 bits: whoever has another key of it opens nothing.
    #[test]
    fn what_was_sealed_tells_a_key_from_its_namesake() {
        let custody = Custody::generate().unwrap();
        let about = About {
            purpose: "fluffy-authority-v1",
            owners: &[],
        };
        let sealed = Sealed::seal(b"anything", &about, &custody.key).unwrap();
        assert!(custody.opens(&sealed, &about));
        let other = Custody::generate().unwrap();
        assert!(!other.opens(&sealed, &about));
        let renamed = Sealed {
            master_key_id: other.key_id(),
            ..sealed
        };
        assert!(!other.opens(&renamed, &about));
    }

    #[test]
    fn a_share_of_a_later_version_is_said_to_be_one() {
        let line = Custody::generate().unwrap().split(2, 2).unwrap()[0].expose();
        for later in ["fluffy-share-3", "fluffy-share-10"] {
            let line = line.replacen("fluffy-share-1", later, 1);
            let error = line.parse::<Share>().unwrap_err();
            assert_eq!(error, ReadShareError::Version);
        }
        // One form is not taken for the other.
        let line = line.replacen("fluffy-share-1", "fluffy-share-2", 1);
        assert!(line.parse::<Share>().is_err());
    }
}
