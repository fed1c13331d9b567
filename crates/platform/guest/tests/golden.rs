//! What version 1 of the link looked like when it was released: what is read
//! from these files must be written the same again.

use fluffy_guest::link::read_message;
use fluffy_guest::{FromGuest, FromHost, GuestConfig};

#[test]
fn version_1_of_the_config_stays_as_it_is() {
    let golden = include_str!("golden/config-v1.json");
    GuestConfig::read(golden.as_bytes()).unwrap();
    let message: FromHost = read_message(golden.as_bytes()).unwrap();
    let written = serde_json::to_string_pretty(&message).unwrap();
    assert_eq!(written, golden.trim_end());
}

#[test]
fn version_1_of_the_messages_stays_as_it_is() {
    for line in include_str!("golden/from-host-v1.jsonl").lines() {
        let message: FromHost = read_message(line.as_bytes()).unwrap();
        assert_ne!(message, FromHost::Unknown);
        assert_eq!(serde_json::to_string(&message).unwrap(), line);
    }
    for line in include_str!("golden/from-guest-v1.jsonl").lines() {
        let message: FromGuest = read_message(line.as_bytes()).unwrap();
        assert_ne!(message, FromGuest::Unknown);
        assert_eq!(serde_json::to_string(&message).unwrap(), line);
    }
}

#[test]
fn what_is_newer_is_known_to_be_unknown() {
    let message: FromHost = read_message(br#"{"type":"teleport","to":{"x":1}}"#).unwrap();
    assert_eq!(message, FromHost::Unknown);
    let message: FromGuest = read_message(br#"{"type":"teleported"}"#).unwrap();
    assert_eq!(message, FromGuest::Unknown);
}
