//! Shares of every version that was ever written are the keys that they were.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

use fluffy_vault::{Custody, Keyring, Share};

fn shares(file: &str) -> Vec<Share> {
    let shares = file.lines().map(|line| {
        let share: Share = line.parse().unwrap();
        assert_eq!(share.expose().as_str(), line, "it is written as it was");
        share
    });
    shares.collect()
}

#[test]
fn shares_of_every_version_are_their_key_for_good() {
    let first = shares(include_str!("fixtures/shares-1.txt"));
    let first = Custody::combine(&first).unwrap();
    assert_eq!(first.key_id().to_string(), "mk_b64fad01");
    assert_eq!(first.after(), None);
    let second = shares(include_str!("fixtures/shares-2.txt"));
    let (second, other) = (
        Custody::combine(&second[..2]).unwrap(),
        Custody::combine(&second[1..]).unwrap(),
    );
    assert_eq!(second.key_id().to_string(), "mk_b572dc97");
    assert_eq!(second.after(), Some(first.key_id()));
    // What the one before said of it holds, too.
    let ring = Keyring::of(first);
    assert!(ring.vouches_for(&second).unwrap());
    assert!(ring.vouches_for(&other).unwrap());
}
