//! The two decisions and the scan, in virtual time.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "tests")]

use std::time::Duration;

use fluffy_bootstrap::engine::wanted;
use fluffy_bootstrap::heartbeat::{Beat, Heartbeat, Rhythm};
use fluffy_bootstrap::restart::{Allowance, Restarts};

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[test]
fn three_restarts_with_doubling_pauses_and_then_none() {
    let mut restarts = Restarts::new(Allowance::default());
    assert_eq!(restarts.next(seconds(1)), Some(millis(100)));
    assert_eq!(restarts.next(seconds(2)), Some(millis(200)));
    assert_eq!(restarts.next(seconds(3)), Some(millis(400)));
    assert_eq!(restarts.next(seconds(4)), None);
}

#[test]
fn a_restart_counts_for_five_minutes() {
    let mut restarts = Restarts::new(Allowance::default());
    for at in [0, 100, 200] {
        assert!(restarts.next(seconds(at)).is_some());
    }
    assert_eq!(restarts.next(millis(299_999)), None);
    // The first one no longer counts; two still do.
    assert_eq!(restarts.next(seconds(300)), Some(millis(400)));
    assert_eq!(restarts.next(seconds(301)), None);
    // After a quiet time all is forgotten.
    assert_eq!(restarts.next(seconds(10_000)), Some(millis(100)));
}

#[test]
fn there_are_never_more_than_three_in_any_five_minutes() {
    for step in [1, 7, 40, 99, 100, 101, 150] {
        let mut restarts = Restarts::new(Allowance::default());
        let mut made: Vec<u64> = Vec::new();
        for at in (0..3_000).step_by(step) {
            if restarts.next(seconds(at)).is_some() {
                made.push(at);
            }
        }
        assert!(!made.is_empty());
        for window in made.windows(4) {
            assert!(
                window.last().unwrap() - window.first().unwrap() >= 300,
                "{made:?}"
            );
        }
    }
}

#[test]
fn a_ping_waits_for_its_answer_and_the_next_for_its_time() {
    let mut heartbeat = Heartbeat::new(Rhythm::default());
    assert_eq!(heartbeat.turn(seconds(0)), Beat::Send(1));
    // The first answer may take longer.
    assert_eq!(heartbeat.turn(seconds(1)), Beat::Wait(seconds(29)));
    heartbeat.heard(1, seconds(2));
    assert_eq!(heartbeat.turn(seconds(2)), Beat::Wait(seconds(1)));
    assert_eq!(heartbeat.turn(seconds(3)), Beat::Send(2));
    assert_eq!(heartbeat.turn(millis(7_999)), Beat::Wait(millis(1)));
    assert_eq!(heartbeat.turn(seconds(8)), Beat::Silent);
}

#[test]
fn only_the_byte_that_was_sent_is_an_answer() {
    let mut heartbeat = Heartbeat::new(Rhythm::default());
    heartbeat.turn(seconds(0));
    for byte in (0..=255).filter(|byte| *byte != 1) {
        heartbeat.heard(byte, seconds(1));
    }
    assert_eq!(heartbeat.turn(seconds(30)), Beat::Silent);
    let mut heartbeat = Heartbeat::new(Rhythm::default());
    heartbeat.turn(seconds(0));
    heartbeat.heard(1, seconds(1));
    // An answer that nobody waits for changes nothing.
    heartbeat.heard(1, seconds(2));
    assert_eq!(heartbeat.turn(seconds(2)), Beat::Send(2));
    heartbeat.heard(1, seconds(3));
    assert_eq!(heartbeat.turn(seconds(7)), Beat::Silent);
}

#[test]
fn the_numbers_of_pings_go_round() {
    let mut heartbeat = Heartbeat::new(Rhythm::default());
    for round in 0..600_u64 {
        let Beat::Send(byte) = heartbeat.turn(seconds(round)) else {
            panic!("the ping of second {round}");
        };
        heartbeat.heard(byte, seconds(round));
    }
}

#[test]
fn the_engine_is_found_wherever_toml_puts_it() {
    let found: &[&str] = &[
        "[sandbox]\nengine = \"bwrap\"\n",
        "[sandbox]\r\nengine=\"bwrap\" # why\r\n",
        "model = \"a/b\"\nsandbox.engine = 'bwrap'",
        "[budget]\nengine = \"native\"\n[ sandbox ] # here\n tier = 1\n  engine = \"bwrap\"",
        "[sandbox]\nengine = \"bwrap\"\nengine = \"native\"\n",
    ];
    for configuration in found {
        let wanted = wanted(configuration.as_bytes());
        assert_eq!(wanted, Some(&b"bwrap"[..]), "{configuration}");
    }
}

#[test]
fn what_is_not_there_or_not_understood_is_not_guessed() {
    let nothing: &[&[u8]] = &[
        b"",
        b"engine = \"bwrap\"",
        b"[budget]\nengine = \"bwrap\"",
        b"[sandbox]\n# engine = \"bwrap\"",
        b"[sandbox]\nengine = bwrap",
        b"[sandbox]\nengine = \"bwrap",
        b"[sandbox]\nengine =",
        b"[sandbox]\nengine",
        b"[sandbox.engine]\nname = \"bwrap\"",
        b"[\n=\n\"=\xff\xfe\x00[sandbox",
    ];
    for configuration in nothing {
        assert_eq!(wanted(configuration), None, "{configuration:?}");
    }
}
