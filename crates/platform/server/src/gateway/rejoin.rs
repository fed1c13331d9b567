//! Coming back to a session whose connection broke: the token that lets its
//! client in once more, and what the command said since the client last told
//! how far it is.
//!
//! Only the hash of a token is held, and only here: a session is carried by
//! one replica for as long as it lives. Next: `super::carry`.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fluffy_base::Digest;
use fluffy_secret::SecretString;
use tokio::sync::{Notify, mpsc};

use crate::credential::{Credential, CredentialKind};

/// How long a session waits for its client.
pub const WAITS: Duration = Duration::from_secs(30);
/// How much of the output is held for a client.
pub(super) const HELD: usize = 1 << 20;
/// A session holds what comes while this much more finds room.
const PIECE: usize = fluffy_api::node::MAX_EXEC_FRAME;

/// How the client of a session comes back to it.
#[derive(Debug)]
pub struct Rejoin<S> {
    /// What lets it in.
    pub pass: std::sync::Arc<Pass>,
    /// Its new connections, each let in by the pass.
    pub clients: mpsc::Receiver<S>,
}

/// What lets the client of a session in again: one token at a time, good once.
#[derive(Debug, Default)]
pub struct Pass(Mutex<Option<SecretString>>);

impl Pass {
    /// Makes a token in place of the one before; none where the system gives
    /// no random bits.
    pub(super) fn issue(&self) -> Option<SecretString> {
        let fresh = Credential::generate(CredentialKind::Resume).ok()?;
        *lock(&self.0) = Some(SecretString::from(fresh.hash.to_string()));
        Some(fresh.text)
    }

    /// Whether a token with this hash is good now; it is not any more then.
    #[must_use]
    pub fn redeem(&self, shown: Digest) -> bool {
        let mut held = lock(&self.0);
        let shown = SecretString::from(shown.to_string());
        let good = held.as_ref().is_some_and(|hash| *hash == shown);
        if good {
            *held = None;
        }
        good
    }

    /// Lets nobody in any more.
    pub fn void(&self) {
        *lock(&self.0) = None;
    }
}

/// The last of a command's output, by its place in all of it.
#[derive(Debug, Default)]
pub(super) struct Ring {
    held: Mutex<Held>,
    moved: Notify,
}

#[derive(Debug, Default)]
struct Held {
    /// The place of the first byte that is held.
    start: u64,
    bytes: VecDeque<u8>,
    /// How far the client that is there has said it is.
    client: Option<u64>,
    /// Whether nobody can hear now what the client says.
    is_deaf: bool,
}

impl Held {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    fn has_room(&self) -> bool {
        self.bytes.len() + PIECE <= HELD
    }
}

impl Ring {
    /// Takes output; the oldest goes where it is too much.
    pub(super) fn push(&self, bytes: &[u8]) {
        let mut held = lock(&self.held);
        held.bytes.extend(bytes);
        let over = held.bytes.len().saturating_sub(HELD);
        held.bytes.drain(..over);
        held.start += over as u64;
    }

    /// Another client is there, who has said nothing yet.
    pub(super) fn begin(&self) {
        let mut held = lock(&self.held);
        (held.client, held.is_deaf) = (None, false);
    }

    /// The client has everything before this place; whether there is one.
    pub(super) fn ack(&self, place: u64) -> bool {
        let mut held = lock(&self.held);
        if place > held.end() {
            return false;
        }
        let had = usize::try_from(place.saturating_sub(held.start)).unwrap_or(0);
        held.bytes.drain(..had);
        held.start = held.start.max(place);
        // What was said before may come late; nobody has less than before.
        held.client = held.client.max(Some(place));
        self.moved.notify_one();
        true
    }

    /// Says that the client cannot be heard for a while, or can again: nothing
    /// may wait for its word then.
    pub(super) fn deafen(&self, is_deaf: bool) {
        lock(&self.held).is_deaf = is_deaf;
        self.moved.notify_one();
    }

    /// Whether more finds room without anything being lost.
    pub(super) fn has_room(&self) -> bool {
        lock(&self.held).has_room()
    }

    /// Waits until there is room, if the client says how far it is.
    pub(super) async fn room(&self) {
        loop {
            {
                let held = lock(&self.held);
                if held.has_room() || held.client.is_none() || held.is_deaf {
                    return;
                }
            }
            self.moved.notified().await;
        }
    }

    /// How far the client says it is, once it says so.
    pub(super) async fn client(&self) -> u64 {
        loop {
            let client = lock(&self.held).client;
            if let Some(place) = client {
                return place;
            }
            self.moved.notified().await;
        }
    }

    /// Where what is held begins.
    pub(super) fn start(&self) -> u64 {
        lock(&self.held).start
    }

    /// The next of what is held from a place on, and where it is; nothing at
    /// its end.
    pub(super) fn piece(&self, from: u64, most: usize) -> Option<(u64, Vec<u8>)> {
        let held = lock(&self.held);
        let from = from.max(held.start);
        let skip = usize::try_from(from - held.start).ok()?;
        let bytes: Vec<u8> = held.bytes.iter().skip(skip).take(most).copied().collect();
        (!bytes.is_empty()).then_some((from, bytes))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credential::recognise;

    #[test]
    fn a_ring_holds_the_last_of_what_was_not_taken() {
        let ring = Ring::default();
        ring.push(b"hello world");
        assert_eq!(ring.piece(6, 3), Some((6, b"wor".to_vec())));
        assert!(ring.ack(6) && !ring.ack(12), "nobody has what never was");
        assert_eq!(ring.piece(0, 100), Some((6, b"world".to_vec())));
        assert_eq!(ring.piece(11, 100), None);
        // Said twice, or less than before: nothing comes back.
        assert!(ring.ack(6) && ring.ack(3));
        assert_eq!(ring.start(), 6);
        assert_eq!(lock(&ring.held).client, Some(6));
        ring.push(&vec![b'x'; HELD]);
        assert_eq!(ring.start(), 11);
        assert!(!ring.has_room());
        assert!(ring.ack(11 + HELD as u64) && ring.has_room());
    }

    #[test]
    fn a_token_lets_in_once_and_only_the_last_one_does() {
        let pass = Pass::default();
        let hash = |token: &SecretString| recognise(token.expose().as_str()).unwrap().1;
        let first = hash(&pass.issue().unwrap());
        let second = hash(&pass.issue().unwrap());
        assert!(!pass.redeem(first) && !pass.redeem(Digest::of(b"x")));
        // A wrong one does not use the right one up.
        assert!(pass.redeem(second) && !pass.redeem(second));
        let third = hash(&pass.issue().unwrap());
        pass.void();
        assert!(!pass.redeem(third));
    }
}
